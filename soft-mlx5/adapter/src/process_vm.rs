//! The memory of this process, or of one that it forked, as the kernel sees it: any address can be
//! invalid.
//!
//! A copy with `process_vm_readv(2)` or `process_vm_writev(2)` is one system call, brings pages in
//! like any access, and reports a bad address instead of crashing.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// This process.
pub fn own_pid() -> libc::pid_t {
    nix::unistd::getpid().as_raw()
}

/// Copies `into.len()` bytes from `address` of a process.
///
/// # Errors
/// EFAULT if any of them is not readable; ENOSYS or EPERM where a sandbox forbids the call.
pub fn read(process: libc::pid_t, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    if into.is_empty() {
        return Ok(());
    }
    let (process, remote) = (Pid::from_raw(process), remote(address, into.len()));
    whole(process_vm_readv(process, &mut [IoSliceMut::new(into)], &[remote]), remote.len)
}

/// Copies `bytes` to `address` of a process.
///
/// # Safety
/// The range may be overwritten with any bytes, as far as it is mapped.
///
/// # Errors
/// EFAULT if any of it is not writable; ENOSYS or EPERM where a sandbox forbids the call.
pub unsafe fn write(process: libc::pid_t, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (process, remote) = (Pid::from_raw(process), remote(address, bytes.len()));
    whole(process_vm_writev(process, &[IoSlice::new(bytes)], &[remote]), remote.len)
}

fn remote(address: u64, len: usize) -> RemoteIoVec {
    RemoteIoVec { base: address as usize, len }
}

/// Whether the copy itself was forbidden.
pub fn is_forbidden(error: Errno) -> bool {
    matches!(error, Errno::ENOSYS | Errno::EPERM)
}

fn whole(copied: nix::Result<usize>, wanted: usize) -> Result<(), Errno> {
    match copied {
        Ok(length) if length == wanted => Ok(()),
        Err(error) if is_forbidden(error) => Err(error),
        _ => Err(Errno::EFAULT),
    }
}

/// Brings in the pages of a range, as an access would; changes no byte.
///
/// # Errors
/// EFAULT if any page is not mapped, or not writable though `writable` is set.
pub fn populate(first: u64, length: usize, writable: bool) -> Result<(), Errno> {
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no byte of the range; the kernel checks the range.
        let populated = unsafe { libc::madvise(first as *mut _, length, advice) };
        match Errno::result(populated) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::EINVAL) => return present(first, length),
            Err(_) => return Err(Errno::EFAULT),
        }
    }
}

const PAGE_SIZE: u64 = 4096;

/// Whether the pages are mapped, for kernels that cannot tell whether they are accessible.
fn present(first: u64, length: usize) -> Result<(), Errno> {
    if populate_supported() {
        // EINVAL came from the mapping: no access, or device memory that cannot be pinned.
        return Err(Errno::EFAULT);
    }
    let step = 1usize << 24;
    let mut residence = vec![0u8; step / PAGE_SIZE as usize];
    for offset in (0..length).step_by(step) {
        let part = step.min(length - offset);
        // SAFETY: `residence` has a byte for each page of the part; the kernel checks the range.
        let known = unsafe {
            libc::mincore((first + offset as u64) as *mut _, part, residence.as_mut_ptr())
        };
        Errno::result(known).map_err(|_| Errno::EFAULT)?;
    }
    Ok(())
}

/// Whether this kernel has the populate advice (5.14). If so, an empty range is not an error.
fn populate_supported() -> bool {
    // SAFETY: an empty range touches nothing.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
}
