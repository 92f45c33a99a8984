//! A buffer that replaces host memory.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::{BusError, HostMemory};

/// A buffer instead of host memory, for tests, simulations and fuzzers: every access is
/// checked.
///
/// ```
/// use uverbs_soft_adapter::memory::{BufferMemory, HostMemory};
/// let memory = BufferMemory::new(0x10_0000, 4096);
/// memory.write(0x10_0010, b"hello").unwrap();
/// assert!(memory.write(0x10_0fff, b"too long").is_err());
/// ```
pub struct BufferMemory {
    base: u64,
    words: Box<[AtomicU64]>,
}

impl BufferMemory {
    /// `len` zero bytes (rounded up to a multiple of 8) from bus address `base`, a multiple of 8.
    /// Empty if there is not that much memory.
    pub fn new(base: u64, len: usize) -> Self {
        // The allocator zeroes it at once; fresh pages take no memory until they are touched.
        let words = Box::into_raw(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        // SAFETY: `words` comes from `Box::into_raw`; `AtomicU64` has the size, the validity and
        // (asserted below) the alignment of `u64`, so the slice and its allocation are the same.
        let words = unsafe { Box::from_raw(words as *mut [AtomicU64]) };
        Self { base: base & !7, words }
    }

    /// Bus address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn offset(&self, address: u64, len: usize) -> Result<usize, BusError> {
        let offset = address.checked_sub(self.base).and_then(|o| usize::try_from(o).ok());
        offset
            .filter(|o| o.checked_add(len).is_some_and(|end| end <= self.len()))
            .ok_or(BusError::new(address, len))
    }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());

impl fmt::Debug for BufferMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMemory({:#x}, {} bytes)", self.base, self.len())
    }
}

// SAFETY: `offset` checked that the range is in the allocation. It consists of atomics, so it may
// be written through a shared reference.
unsafe impl HostMemory for BufferMemory {
    fn with(
        &self,
        address: u64,
        len: usize,
        _writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError> {
        let offset = self.offset(address, len)?;
        let first = NonNull::from(&*self.words).cast::<u8>();
        // SAFETY: `offset` is inside the allocation or at its end.
        access(unsafe { first.add(offset) });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
