//! Pages that the device and the program both have mapped: UARs, clock pages, on-device memory.
//!
//! A memfd replaces the PCI BAR: the program maps parts of it, the device all of it. Neither side
//! holds a reference into it; doorbells and clocks are atomics behind raw pointers.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;

use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::sealed::set_size;

/// A memfd and the device's own mapping of it.
#[derive(Debug)]
pub(crate) struct SharedPages {
    fd: OwnedFd,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; all access is through atomics.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// `pages` zero pages. Untouched pages take no memory.
    pub(crate) fn new(name: &std::ffi::CStr, pages: usize) -> Result<Self, Errno> {
        let length = pages * PAGE_SIZE as usize;
        // SAFETY: a valid C string.
        let fd = Errno::result(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: just created, without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_size(&fd, length)?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { fd, base, length })
    }

    /// Descriptor and offset of a page, to map it.
    pub(crate) fn backing(&self, page: u64) -> (RawFd, libc::off_t) {
        (self.fd.as_raw_fd(), (page * PAGE_SIZE) as libc::off_t)
    }

    /// Address of a page in this process.
    pub(crate) fn address(&self, page: usize) -> u64 {
        self.base.as_ptr() as u64 + page as u64 * PAGE_SIZE
    }

    /// A word of 8 bytes.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && offset + 8 <= self.length);
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; the program's side
        // is another mapping, whose accesses are outside this one's memory model.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// A word of 4 bytes.
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset % 4 == 0 && offset + 4 <= self.length);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Fills a page with zeros.
    pub(crate) fn clear(&self, page: usize) {
        for offset in (0..PAGE_SIZE as usize).step_by(8) {
            self.word(page * PAGE_SIZE as usize + offset).store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Pages of a dma-buf, mapped for the device.
#[derive(Debug)]
pub(crate) struct ForeignPages {
    base: NonNull<u8>,
    length: usize,
    inside: u64,
}

// SAFETY: the mapping belongs to no thread; only the core accesses it, by copy.
unsafe impl Send for ForeignPages {}
// SAFETY: as above.
unsafe impl Sync for ForeignPages {}

impl ForeignPages {
    /// Maps `length` bytes from `offset` of a dma-buf, or of a memfd if those are `allowed`.
    ///
    /// # Errors
    /// EBADF if `fd` is not open, EINVAL if it is something else or the range is not in it
    /// (`ib_umem_dmabuf_get`).
    pub(crate) fn map(
        fd: RawFd,
        offset: u64,
        length: u64,
        writable: bool,
        allowed: Memfds,
    ) -> Result<Self, Errno> {
        let size = buffer_size(fd, allowed)?;
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        if length == 0 || end > size {
            return Err(Errno::EINVAL);
        }
        let inside = offset % PAGE_SIZE;
        let mapped = (length + inside) as usize;
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let from = (offset - inside) as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, protection, libc::MAP_SHARED, fd, from)
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::EINVAL);
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { base, length: mapped, inside })
    }

    /// Address of the first byte in this process.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64 + self.inside
    }
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the memory key over it has been destroyed before.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Whether memfds are accepted as dma-bufs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memfds {
    Refused,
    Allowed,
}

/// `DMA_BUF_MAGIC` of linux/magic.h: the file system of dma-bufs.
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// Whether the file is a dma-buf, or a memfd that is accepted as one (`is_dma_buf_file` of
/// drivers/dma-buf/dma-buf.c). Memfds are distinguished from other files of a tmpfs by their name.
fn is_buffer(fd: RawFd, memfds: Memfds) -> Result<bool, Errno> {
    // SAFETY: borrowed for this call only; a number that is not open makes it fail.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    if nix::sys::statfs::fstatfs(file)?.filesystem_type().0 as u32 == DMA_BUF_MAGIC {
        return Ok(true);
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EINVAL)?;
    Ok(memfds == Memfds::Allowed && link.to_string_lossy().starts_with("/memfd:"))
}

/// Size of a dma-buf or memfd; EBADF or EINVAL for anything else.
fn buffer_size(fd: RawFd, memfds: Memfds) -> Result<u64, Errno> {
    super::event_queue::identity(fd)?;
    if !is_buffer(fd, memfds)? {
        return Err(Errno::EINVAL);
    }
    // SAFETY: seeks to the end and back to the start, the only seeks that a dma-buf knows; a
    // memfd's owner could see the moved position, a dma-buf's owner cannot.
    let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    // SAFETY: as above.
    unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
    u64::try_from(size).map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_one_memory() {
        let pages = SharedPages::new(c"test", 4).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no MAP_FIXED; the mapping is unmapped before its memory is freed.
        unsafe {
            let (fd, at) = pages.backing(2);
            let program = libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_SHARED, fd, at);
            assert_ne!(program, libc::MAP_FAILED);
            program.cast::<u64>().write_volatile(77);
            assert_eq!(pages.word(2 * 4096).load(Ordering::Relaxed), 77);
            pages.clear(2);
            assert_eq!(program.cast::<u64>().read_volatile(), 0);
            libc::munmap(program, 4096);
        }
    }
}
