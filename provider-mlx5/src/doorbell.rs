//! Doorbell records: words in ordinary memory where software leaves a queue's counter for the
//! device; and a send queue's doorbell, which is a record and a register.

use crate::barrier;
pub use crate::mapped::DoorbellWord;
use crate::mmio::{BlueFlame, Register, Ring};
use crate::sync::Ordering;

impl DoorbellWord {
    /// Stores a counter. Relaxed, because the barriers around the call order it.
    #[inline(always)]
    pub(crate) fn store(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores a counter after all earlier reads: from now on the device may overwrite what they
    /// read.
    #[inline(always)]
    pub(crate) fn store_release(&self, value: u32) {
        self.word().store(value.to_be(), Ordering::Release);
    }

    /// The value stored last. Acquire: stores before that one are visible from here on.
    pub fn load(&self) -> u32 {
        u32::from_be(self.word().load(Ordering::Acquire))
    }
}

/// A send queue's doorbell: tells the device that requests were posted.
#[derive(Debug)]
pub(crate) struct Doorbell<R> {
    pub(crate) record: DoorbellWord,
    pub(crate) register: R,
}

impl<R: Register> Doorbell<R> {
    /// Announces the requests in the ring up to counter `head`: first by the record, then by the
    /// store that `write` makes to the register.
    #[inline(always)]
    pub(crate) fn ring(&mut self, head: u32, write: impl Ring) {
        barrier::to_device();
        self.record.store(head & 0xffff);
        barrier::before_doorbell();
        self.register.with(Flushed(write));
    }
}

/// A store to the register, followed by the barrier that flushes it.
struct Flushed<W>(W);

impl<W: Ring> Ring for Flushed<W> {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        self.0.ring(register);
        barrier::flush_doorbell();
    }
}

/// A doorbell without a request: the first half of the last control segment, as it is in memory.
pub(crate) struct Plain(pub(crate) u64);

impl Ring for Plain {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        register.doorbell(self.0);
    }
}
