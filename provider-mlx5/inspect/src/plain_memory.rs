//! Ordinary memory in place of memory shared with a device.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use uverbs_mlx5::format::{BLUEFLAME_REGISTER_SIZE, WQEBB_SIZE};
use uverbs_mlx5::memory::DmaMemory;

/// Memory with the alignment of a queue or a doorbell register, accessed only through raw pointers.
pub(super) struct Memory(NonNull<u8>, usize);

impl Memory {
    /// At least `bytes` bytes and at least one block, filled with `fill`.
    pub(super) fn new(bytes: usize, fill: u8) -> Self {
        let length = bytes.max(1).next_multiple_of(WQEBB_SIZE);
        let layout = layout(length);
        // SAFETY: the length is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        // SAFETY: just allocated, of this length.
        unsafe { start.write_bytes(fill, length) };
        Self(start, length)
    }

    /// The address of the first byte, as a pointer to `T`.
    pub(super) fn start<T>(&self) -> NonNull<T> {
        self.0.cast()
    }

    /// Writes bytes, as a device would.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.1);
        // SAFETY: within the memory, to which no reference exists.
        unsafe { self.0.as_ptr().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// # Safety
    /// As for [`DmaMemory::new`].
    pub(super) unsafe fn dma(&self) -> DmaMemory {
        // SAFETY: the caller's promise; the memory has that many bytes.
        unsafe { DmaMemory::new(self.0, self.1) }
    }

    pub(super) fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.1);
        // SAFETY: within the memory; the queue that wrote it is gone.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().add(at), length) }.to_vec()
    }

    pub(super) fn array<const N: usize>(&self) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(0, N));
        array
    }

    /// `count` entries from counter `from` of a ring of `entries`, wrapping at its end.
    pub(super) fn wrapped(&self, from: u32, count: u32, entries: u32, size: usize) -> Vec<u8> {
        let slots = (0..count).map(|index| from.wrapping_add(index) & (entries - 1));
        slots.flat_map(|slot| self.bytes(slot as usize * size, size)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is what `new` allocated, dropped once.
        unsafe { dealloc(self.0.as_ptr(), layout(self.1)) };
    }
}

/// A doorbell register is aligned to its own size.
fn layout(length: usize) -> Layout {
    Layout::from_size_align(length, BLUEFLAME_REGISTER_SIZE).expect("less than all memory")
}
