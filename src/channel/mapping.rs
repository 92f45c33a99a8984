//! Pages of the device mapped into this process.

use std::ffi::c_void;
use std::ptr::NonNull;

use nix::errno::Errno;

/// A mapping of device pages; unmapped when dropped.
///
/// It never hands out references: what lies behind it is a device register or memory that the device and
/// the kernel write.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: a mapping is owned by the process, not by a thread; this type only hands out its address, and
// munmap may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over a mapping.
    ///
    /// # Safety
    /// `start` must be the address of a live mapping of `length` bytes that nobody else unmaps.
    pub unsafe fn from_raw(start: NonNull<c_void>, length: usize) -> Self {
        Self { start, length }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the mapping is empty (it never is: the kernel refuses such a mapping).
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `from_raw` was promised that this mapping is ours alone, and nothing uses it any more.
        let result = unsafe { libc::munmap(self.start.as_ptr(), self.length) };
        if result != 0 {
            tracing::warn!(errno = %Errno::last(), "munmap of a device page failed");
        }
    }
}
