//! An open file of the device: ioctl(2), mmap(2), close(2).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::event_reader::EventReader;
use super::file::FileShared;
use super::mapping;
use crate::chardev::abi::dispatch;
use crate::chardev::abi::user_memory::{PAGE_SIZE, UserMemory};
use crate::chardev::objects::object::Kind;

/// An open `/dev/infiniband/uverbsN`. Dropping it is close(2): the objects created through it are
/// destroyed, and its event files end.
///
/// It may be used by several threads at once; requests run one after the other.
///
/// A forked child cannot use it: every request fails with EIO, and closing it there changes nothing
/// for the parent. The parent can run some requests for the child, see
/// [`ioctl_of_child`](Self::ioctl_of_child).
#[derive(Debug)]
pub struct OpenFile {
    file: Arc<FileShared>,
}

impl OpenFile {
    pub(crate) fn new(file: Arc<FileShared>) -> Self {
        Self { file }
    }

    /// `ioctl(fd, RDMA_VERBS_IOCTL, header)`: raw bytes, a `struct ib_uverbs_ioctl_hdr` with its
    /// attributes.
    ///
    /// # Errors
    /// The kernel's errno. A pointer to unmapped memory, in the request or to it, is EFAULT, unless
    /// the process may not call `process_vm_readv(2)`.
    ///
    /// # Safety
    /// As for the ioctl of a real device:
    /// - memory that the request names as output may be overwritten with any bytes during the call;
    /// - memory that it registers or gives to a queue (buffers, doorbell records) stays mapped
    ///   until that object is destroyed, and is accessed through raw pointers or atomics only while
    ///   the device may write it. A kernel keeps such pages pinned; a device in the same process
    ///   cannot.
    pub unsafe fn ioctl(&self, header: *mut u8) -> Result<(), Errno> {
        if self.file.device.is_orphan() {
            return Err(Errno::EIO);
        }
        // SAFETY: the caller guarantees the memory of the request.
        let user = unsafe { UserMemory::new() };
        dispatch::ioctl(&self.file, header as u64, user)
    }

    /// An ioctl for a process that this one forked, with the request at `header` in that process's
    /// memory.
    ///
    /// # Errors
    /// As [`ioctl`](Self::ioctl). EIO for objects that the device would access in that process
    /// (queues, memory regions, event descriptors), or if its memory may not be read
    /// (`process_vm_readv(2)`).
    ///
    /// # Safety
    /// As [`ioctl`](Self::ioctl), of that process's memory.
    pub unsafe fn ioctl_of_child(&self, process: i32, header: u64) -> Result<(), Errno> {
        if self.file.device.is_orphan() {
            return Err(Errno::EIO);
        }
        // SAFETY: the caller guarantees the memory of the request.
        let user = unsafe { UserMemory::of_child(process) };
        dispatch::ioctl(&self.file, header, user)
    }

    /// `mmap(addr, length, prot, flags, fd, offset)`: doorbell pages, clock pages, on-device
    /// memory. The result is a real mapping that outlives this file, to be unmapped with munmap(2).
    ///
    /// # Errors
    /// EINVAL before GET_CONTEXT, for an unknown offset or a length that does not match it; EPERM
    /// for writable clock pages; EIO after removal; errors of mmap(2) itself.
    ///
    /// # Safety
    /// As mmap(2): with `MAP_FIXED` in `flags`, what was mapped at `addr` is replaced.
    pub unsafe fn mmap(
        &self,
        addr: *mut libc::c_void,
        length: usize,
        prot: i32,
        flags: i32,
        offset: i64,
    ) -> Result<*mut libc::c_void, Errno> {
        let (fd, at) = self.backing(length, prot, flags, offset)?;
        // SAFETY: the caller guarantees that `addr` and `flags` may replace a mapping.
        let mapped = unsafe { libc::mmap(addr, length, prot, flags, fd, at) };
        if mapped == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(mapped) }
    }

    /// What [`mmap`](Self::mmap) would map: a descriptor, which belongs to the device, and an
    /// offset in its file. A child that was forked after the device was created has the descriptor
    /// under the same number, and can map it itself.
    ///
    /// # Errors
    /// As [`mmap`](Self::mmap).
    pub fn backing(
        &self,
        length: usize,
        prot: i32,
        flags: i32,
        offset: i64,
    ) -> Result<(RawFd, i64), Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if self.file.device.is_removed() || self.file.device.is_orphan() {
            return Err(Errno::EIO);
        }
        if length == 0 || offset % PAGE_SIZE != 0 {
            return Err(Errno::EINVAL);
        }
        self.file.device.faults().count_mapping()?;
        let mut state = self.file.lock();
        let context = state.context.as_mut().ok_or(Errno::EINVAL)?;
        let request = mapping::Request { length, protection: prot, flags, offset };
        mapping::find(&self.file.device, context, request)
    }

    /// Updates the counter of the device's clock page, which is otherwise as old as the last step
    /// of the device's thread.
    pub fn refresh_clock(&self) {
        self.file.device.refresh_clock();
    }

    /// Makes progress in the calling thread: checks the doorbells, the wire and the clock once, and
    /// does what is due. Polling programs call it between two polls that found nothing. This avoids
    /// switches to the device's thread, which sleeps as long as programs make these calls. If there
    /// is nothing to do, or another thread is doing it, the call yields the processor. On a machine
    /// with more threads to run than processors it waits in the kernel for a packet instead, at
    /// most 500 us.
    ///
    /// In a forked child it is only `sched_yield(2)`.
    pub fn poll_idle(&self) {
        self.file.device.idle();
    }

    /// A counter of the port: see [`SoftDevice::hw_counter`](super::SoftDevice::hw_counter).
    pub fn hw_counter(&self, name: &str) -> Option<u64> {
        self.file.device.hw_counter(name)
    }

    /// `poll(2)` for reading: waits until one of `files` is readable, at most for `timeout`, and
    /// returns the index of the first one that is. It is for threads that sleep until there is an
    /// event: meanwhile the thread does the device's work, so that a packet wakes only this thread.
    ///
    /// In a child process this is only poll(2).
    ///
    /// # Errors
    /// As poll(2): EINTR by a signal.
    pub fn wait_readable(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, Errno> {
        self.file.device.wait_readable(files, timeout)
    }

    /// A reader for the events of the completion channel with this descriptor; `None` if this file
    /// has no such channel.
    pub fn event_reader(&self, channel: BorrowedFd<'_>) -> Option<EventReader> {
        let queue = self.file.lock().event_queue(channel.as_raw_fd(), Kind::CompChannel).ok()?;
        Some(EventReader { device: self.file.device.clone(), queue })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.file.close();
    }
}
