//! Doorbell records: words in ordinary memory where software leaves a queue's counter for the device; and a send queue's
//! doorbell, which is a record and a register.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::barrier;
use crate::mmio::{BlueFlame, Register};
use crate::sync::{AtomicU32, Ordering};

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

/// What makes a send queue's requests known to the device.
#[derive(Debug)]
pub(crate) struct Doorbell<R> {
    pub(crate) record: DoorbellWord,
    pub(crate) register: R,
}

impl<R: Register> Doorbell<R> {
    /// Announces what is in the ring up to counter `head`: the record first, then what `write` stores to the register.
    #[inline(always)]
    pub(crate) fn ring(&mut self, head: u32, write: impl FnOnce(&mut BlueFlame)) {
        barrier::to_device();
        self.record.store(head & 0xffff);
        barrier::before_doorbell();
        self.register.with(|register| {
            write(register);
            barrier::flush_doorbell();
        });
    }
}
