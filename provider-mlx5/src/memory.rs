//! Memory that the device reads or writes while we hold it.

#![allow(unsafe_code)]

use core::ptr::NonNull;

/// A span of memory shared with the device: the bytes of one queue.
///
/// It is a right to access, not an owner: dropping it frees nothing. No Rust reference ever points into it, because
/// the device is a second writer; everything here goes through raw pointers and atomics.
#[derive(Debug)]
pub struct DmaMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the only access to the span goes through this value (contract of `new`), so it may move between threads.
unsafe impl Send for DmaMemory {}

impl DmaMemory {
    /// Takes the `len` bytes at `base` for a queue.
    ///
    /// # Safety
    /// From now until the queue that is made of this span has been dropped:
    /// - `base..base + len` is valid for reads and writes, and `base` is aligned to at least 64 bytes;
    /// - nothing in this process reads or writes it but that queue (and, through the CQ, the poller of its
    ///   completions), and no reference points into it.
    ///
    /// Initialized bytes are not required: the queues write what they later read.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Cuts the span in two; the second part starts at byte `at`. `None` if `at` lies outside.
    ///
    /// A QP's receive and send queue usually share one buffer, the receive queue first.
    pub fn split_at(self, at: usize) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(at)?;
        // SAFETY: `at` is at most `len`, so the result stays within the span or at its end.
        let second = unsafe { self.base.add(at) };
        Some((Self { base: self.base, len: at }, Self { base: second, len: rest }))
    }

    /// Address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a ring of `entries` (a power of two) of `stride` bytes fits and is aligned to 64 bytes.
    pub(crate) fn holds(&self, entries: u32, stride: usize) -> bool {
        let needed = (entries as usize).checked_mul(stride);
        entries.is_power_of_two()
            && needed.is_some_and(|n| n <= self.len)
            && self.base.as_ptr().addr() % 64 == 0
    }
}
