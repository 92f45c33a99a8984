//! Ordinary memory in the place of what a device would share.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::format::WQEBB_SIZE;
use crate::memory::DmaMemory;

/// Memory aligned as a queue wants it, reached through raw pointers only.
pub(super) struct Memory(NonNull<u8>, usize);

#[derive(Clone, Copy)]
#[repr(align(64))]
#[allow(dead_code, reason = "reached through raw pointers")]
struct Line([u8; WQEBB_SIZE]);

impl Memory {
    pub(super) fn new(bytes: usize, fill: u8) -> Self {
        let lines = vec![Line([fill; WQEBB_SIZE]); bytes.div_ceil(WQEBB_SIZE)].into_boxed_slice();
        let lines = Box::leak(lines);
        Self(NonNull::from(&mut *lines).cast(), lines.len())
    }

    /// The first byte, or whatever stands there.
    pub(super) fn start<T>(&self) -> NonNull<T> {
        self.0.cast()
    }

    /// Writes bytes, as a device would.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.1 * WQEBB_SIZE);
        // SAFETY: within the memory, to which no reference exists.
        unsafe { self.0.as_ptr().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// # Safety
    /// As for [`DmaMemory::new`].
    pub(super) unsafe fn dma(&self) -> DmaMemory {
        // SAFETY: passed on to the caller; the memory has that many bytes.
        unsafe { DmaMemory::new(self.0, self.1 * WQEBB_SIZE) }
    }

    pub(super) fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.1 * WQEBB_SIZE);
        // SAFETY: within the memory; the queue that wrote it is gone.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().add(at), length) }.to_vec()
    }

    pub(super) fn array<const N: usize>(&self) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(0, N));
        array
    }

    /// `count` entries from counter `from` of a ring of `entries`, as if it did not end.
    pub(super) fn wrapped(&self, from: u32, count: u32, entries: u32, size: usize) -> Vec<u8> {
        let slots = (0..count).map(|index| from.wrapping_add(index) & (entries - 1));
        slots.flat_map(|slot| self.bytes(slot as usize * size, size)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let lines = core::ptr::slice_from_raw_parts_mut(self.0.as_ptr().cast::<Line>(), self.1);
        // SAFETY: it is what `new` leaked, dropped once.
        drop(unsafe { Box::from_raw(lines) });
    }
}
