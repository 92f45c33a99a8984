//! Ordinary memory in place of memory shared with a device.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use uverbs_mlx5::memory::DmaMemory;

/// Zeroed memory in a separate allocation, so that an address sanitizer reports every access
/// outside.
pub(crate) struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    /// `length` bytes, at least 1, aligned to the next power of two from 64 to 512.
    pub(crate) fn new(length: usize) -> Self {
        // A doorbell register is aligned to its own size.
        let align = length.next_power_of_two().clamp(64, 512);
        let layout = Layout::from_size_align(length.max(1), align).expect("a sensible size");
        // SAFETY: the size is not zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        Self { base, layout }
    }

    pub(crate) fn start<T>(&self) -> NonNull<T> {
        self.base.cast()
    }

    /// The address of byte `offset`, for a program to write into a WQE.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        assert!(offset < self.layout.size());
        (self.base.as_ptr().expose_provenance() + offset) as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        // SAFETY: inside the allocation, to which no reference exists.
        unsafe { self.base.as_ptr().add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.layout.size());
        let mut bytes = [0; N];
        // SAFETY: as in `write`; zeroed at first, so initialized.
        unsafe { self.base.as_ptr().add(offset).copy_to(bytes.as_mut_ptr(), N) };
        bytes
    }

    /// # Safety
    /// As for [`DmaMemory::new`].
    pub(crate) unsafe fn dma(&self) -> DmaMemory {
        // SAFETY: the caller's promise; the allocation has that many bytes and that alignment.
        unsafe { DmaMemory::new(self.base, self.layout.size()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
