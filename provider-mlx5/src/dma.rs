//! Memory that the device reads or writes while we hold it: the spans of queues, and the words of
//! doorbell records.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::sync::{AtomicU32, Ordering};

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

/// One word of a doorbell record, written by software and read by the device, in big-endian order.
///
/// A QP's record is two words, the receive counter first; a CQ's the consumer index and the arm word; an SRQ's
/// one word (`MLX5_RCV_DBR`, `MLX5_SND_DBR`, `MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB` in mlx5dv.h).
#[derive(Debug)]
pub struct DoorbellWord(NonNull<AtomicU32>);

// SAFETY: the word is only ever accessed atomically.
unsafe impl Send for DoorbellWord {}

impl DoorbellWord {
    /// The word at `word`.
    ///
    /// # Safety
    /// Until the queue that takes this value has been dropped, `word` is valid for reads and writes and aligned to 4
    /// bytes, and nothing else in this process writes it.
    pub const unsafe fn new(word: NonNull<u32>) -> Self {
        Self(word.cast())
    }

    /// Both words of an 8-byte record, in order.
    ///
    /// # Safety
    /// As for [`DoorbellWord::new`], for both words; `record` is aligned to 8 bytes, as the device demands.
    pub const unsafe fn pair(record: NonNull<u32>) -> (Self, Self) {
        // SAFETY: the caller vouches for two words.
        unsafe { (Self::new(record), Self::new(record.add(1))) }
    }

    /// Stores a counter. Relaxed: the named barriers around the call make the order.
    #[inline(always)]
    pub(crate) fn store(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores a counter after everything that was read before it: the device may overwrite that from now on.
    #[inline(always)]
    pub(crate) fn store_release(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Release);
    }

    /// The same word for another part of the queue that took this value; that part is gone before
    /// the queue is.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }

    /// What was stored last. Acquire: what was stored before it is seen from here on.
    pub fn load(&self) -> u32 {
        u32::from_be(self.word().load(Ordering::Acquire))
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned by the contract of `new`; an atomic may be shared with the device.
        unsafe { self.0.as_ref() }
    }
}
