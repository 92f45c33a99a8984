//! The caller's memory as a kernel sees it: any address can be invalid.
//!
//! A kernel answers EFAULT if a program passes a bad pointer. A library that dereferences the
//! pointer crashes the program. So control-path copies use `process_vm_readv(2)` and
//! `process_vm_writev(2)` on this process: each copy is one system call, and a bad address is an
//! error. If a sandbox forbids these calls (ENOSYS, EPERM), the copy is direct and a bad address
//! crashes the program.
#![allow(unsafe_code)]

use nix::errno::Errno;
use uverbs_soft_adapter::process_vm::{self, populate};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::home::own_process;

/// The kernel's page size as far as this ABI is concerned.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// The right to read and write the addresses that one system call was given.
///
/// The constructor is unsafe: its caller guarantees the addresses. Copies through the value are
/// then safe calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMemory {
    /// The forked process that made the call; `None` for this process.
    child: Option<libc::pid_t>,
}

impl UserMemory {
    /// # Safety
    /// No thread writes the memory that the system call reads while it runs. The memory that it
    /// writes may be overwritten with any bytes.
    pub(crate) const unsafe fn new() -> Self {
        Self { child: None }
    }

    /// The memory of a child that inherited the device.
    ///
    /// # Safety
    /// As [`new`](Self::new), of that process.
    pub(crate) const unsafe fn of_child(process: libc::pid_t) -> Self {
        Self { child: Some(process) }
    }

    /// EIO if the caller is a forked child: the device accesses the memory of its own process only.
    pub(crate) fn in_reach(self) -> Result<(), Errno> {
        if self.child.is_some() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Checks a range as `ib_umem_get` does (umem.c) and brings its pages in, as pinning would.
    ///
    /// # Errors
    /// EINVAL for an empty range or one that wraps; EFAULT if the range is not mapped, or not
    /// writable though `writable` is set; EIO for a child's range.
    pub(crate) fn pin(self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        self.in_reach()?;
        let end = address.checked_add(length).ok_or(Errno::EINVAL)?;
        let last = end.checked_add(PAGE_SIZE - 1).ok_or(Errno::EINVAL)? & !(PAGE_SIZE - 1);
        let first = address & !(PAGE_SIZE - 1);
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        populate(first, (last - first) as usize, writable)
    }

    fn process(self) -> libc::pid_t {
        self.child.unwrap_or_else(|| own_process() as libc::pid_t)
    }

    /// True if the system forbids the copy but the memory is this process's, so that it can be
    /// copied directly. EIO if the memory is a child's.
    fn refusal(self, result: Result<(), Errno>) -> Result<bool, Errno> {
        match result {
            Err(error) if process_vm::is_forbidden(error) => self.in_reach().map(|()| true),
            result => result.map(|()| false),
        }
    }

    /// Copies `into.len()` bytes from `address`; EFAULT if any of them is not readable.
    pub(crate) fn read(self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        if !self.refusal(process_vm::read(self.process(), address, into))? {
            return Ok(());
        }
        // SAFETY: `UserMemory::new`'s caller guaranteed the address; `into` is ours, so it cannot
        // overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len())
        };
        Ok(())
    }

    /// Copies `bytes` to `address`; EFAULT if any of it is not writable.
    pub(crate) fn write(self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: `UserMemory::new`'s caller guaranteed that the memory may be overwritten.
        let copied = unsafe { process_vm::write(self.process(), address, bytes) };
        if !self.refusal(copied)? {
            return Ok(());
        }
        // SAFETY: as above, without the kernel's check.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    /// Reads one value.
    pub(crate) fn read_value<T: FromBytes + IntoBytes>(self, address: u64) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        self.read(address, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Writes one value.
    pub(crate) fn write_value<T: IntoBytes + Immutable>(
        self,
        address: u64,
        value: &T,
    ) -> Result<(), Errno> {
        self.write(address, value.as_bytes())
    }

    /// Writes `length` zero bytes.
    pub(crate) fn clear(self, address: u64, length: usize) -> Result<(), Errno> {
        let zeros = [0u8; 256];
        let mut done = 0;
        while done < length {
            let step = zeros.len().min(length - done);
            self.write(address.wrapping_add(done as u64), &zeros[..step])?;
            done += step;
        }
        Ok(())
    }

    /// Whether `length` bytes from `address` are all zero.
    pub(crate) fn is_clear(self, address: u64, length: usize) -> Result<bool, Errno> {
        let mut chunk = [0u8; 256];
        let mut done = 0;
        while done < length {
            let step = chunk.len().min(length - done);
            self.read(address.wrapping_add(done as u64), &mut chunk[..step])?;
            if chunk[..step].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            done += step;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
