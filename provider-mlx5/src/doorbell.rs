//! Doorbell records: words in ordinary memory where software leaves a queue's counter for the
//! device; and a send queue's doorbell, which is a record and a register.

use crate::barrier;
pub use crate::mapped::DoorbellWord;
use crate::mmio::{BlueFlame, Register};

/// What makes a send queue's requests known to the device.
#[derive(Debug)]
pub(crate) struct Doorbell<R> {
    pub(crate) record: DoorbellWord,
    pub(crate) register: R,
}

impl<R: Register> Doorbell<R> {
    /// Announces what is in the ring up to counter `head`: the record first, then what `write`
    /// stores to the register.
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
