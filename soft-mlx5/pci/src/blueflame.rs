//! BlueFlame registers: the driver writes a WQE to the device instead of only a doorbell.
//!
//! A BlueFlame copy arrives as stores of eight bytes, of which the first looks exactly like a
//! doorbell. The device reads WQEs from the ring in any case, so for most queues that first store
//! is all it needs. The kernel, however, tests whether write combining works by writing WQEs that
//! ask for a completion to the register only (`mlx5_core_test_wc` of 6.12, `mlx5_ib_test_wc` of
//! 6.1). The whole copy of such a WQE, a NOP on a queue of the kernel's own, is therefore
//! collected.

/// Bytes of a BlueFlame copy: one basic block.
pub(super) const BLOCK: usize = 64;
/// Longest time to the second store, in nanoseconds. After it the first store counts as a plain
/// doorbell. A busy host may preempt the virtual machine monitor inside a copy, but for less than
/// this; and the kernel waits longer for the completion of its test (100 ms,
/// `TEST_WC_POLLING_MAX_TIME_JIFFIES`). If a copy is taken for a doorbell, the device reads the
/// ring, whose entries make the kernel conclude that write combining does not work. A real doorbell
/// for a NOP is delayed by this time. Such doorbells are rare: the kernel uses them only to raise
/// an interrupt (`mlx5e_trigger_irq`).
const PATIENCE: u64 = 50_000_000;
/// Longest time between later stores. After a second store, more stores certainly follow.
const PATIENCE_INSIDE: u64 = 1_000_000_000;

/// A copy of which some stores are still missing.
#[derive(Debug)]
struct Partial {
    uar: u32,
    base: u64,
    filled: usize,
    bytes: [u8; BLOCK],
    deadline: u64,
}

/// The meaning of the stores so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collected {
    /// A doorbell for a queue.
    Doorbell(u32),
    /// A whole block for a queue.
    Block(u32, [u8; BLOCK]),
}

/// Collects BlueFlame copies, one at a time.
#[derive(Debug, Default)]
pub(super) struct BlueFlame {
    partial: Option<Partial>,
}

impl Partial {
    fn queue(&self) -> u32 {
        u32::from_be_bytes([self.bytes[4], self.bytes[5], self.bytes[6], self.bytes[7]]) >> 8
    }

    fn is_continued_by(&self, uar: u32, offset: u64) -> bool {
        self.uar == uar && self.base + self.filled as u64 == offset
    }

    fn add(&mut self, data: [u8; 8], now: u64) {
        self.bytes[self.filled..self.filled + 8].copy_from_slice(&data);
        self.deadline = now + if self.filled == 0 { PATIENCE } else { PATIENCE_INSIDE };
        self.filled += 8;
    }
}

impl BlueFlame {
    /// Begins a copy with its first store.
    pub(super) fn begin(&mut self, uar: u32, offset: u64, data: [u8; 8], now: u64) {
        let mut partial = Partial { uar, base: offset, filled: 0, bytes: [0; BLOCK], deadline: 0 };
        partial.add(data, now);
        self.partial = Some(partial);
    }

    /// Adds the next store. `None` if it does not belong to the copy; `Some(Some(_))` if it
    /// completes the copy.
    pub(super) fn continue_copy(
        &mut self,
        uar: u32,
        offset: u64,
        data: [u8; 8],
        now: u64,
    ) -> Option<Option<Collected>> {
        let partial =
            self.partial.as_mut().filter(|partial| partial.is_continued_by(uar, offset))?;
        partial.add(data, now);
        if partial.filled < BLOCK {
            return Some(None);
        }
        let done = Collected::Block(partial.queue(), partial.bytes);
        self.partial = None;
        Some(Some(done))
    }

    /// Ends an incomplete copy; its first store counts as a doorbell.
    pub(super) fn abandon(&mut self) -> Option<Collected> {
        self.partial.take().map(|partial| Collected::Doorbell(partial.queue()))
    }

    /// Ends a copy whose deadline has passed.
    pub(super) fn expire(&mut self, now: u64) -> Option<Collected> {
        if self.deadline().is_some_and(|deadline| deadline <= now) { self.abandon() } else { None }
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.partial.as_ref().map(|partial| partial.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> [u8; 8] {
        [0, 0, 1, 0, 0, 0, 0x42, 1]
    }

    #[test]
    fn eight_stores_in_a_row_are_a_block() {
        let mut blueflame = BlueFlame::default();
        blueflame.begin(16, 0x800, first(), 0);
        for index in 1..7 {
            assert_eq!(
                blueflame.continue_copy(16, 0x800 + 8 * index, [index as u8; 8], 0),
                Some(None)
            );
        }
        let Some(Some(Collected::Block(0x42, bytes))) =
            blueflame.continue_copy(16, 0x838, [7; 8], 0)
        else {
            panic!()
        };
        assert_eq!((&bytes[..8], &bytes[56..]), (&first()[..], &[7; 8][..]));
        assert_eq!(blueflame.deadline(), None);
    }

    #[test]
    fn a_store_alone_is_a_doorbell_after_a_while() {
        let mut blueflame = BlueFlame::default();
        blueflame.begin(16, 0x800, first(), 5);
        assert_eq!(blueflame.continue_copy(16, 0x900, first(), 6), None, "another register");
        assert_eq!(blueflame.expire(5 + PATIENCE - 1), None);
        assert_eq!(blueflame.expire(5 + PATIENCE), Some(Collected::Doorbell(0x42)));
        assert_eq!(blueflame.expire(u64::MAX), None);
    }

    #[test]
    fn a_copy_that_was_interrupted_is_waited_for() {
        let mut blueflame = BlueFlame::default();
        blueflame.begin(16, 0x800, first(), 0);
        assert_eq!(blueflame.continue_copy(16, 0x808, [1; 8], PATIENCE - 1), Some(None));
        assert_eq!(blueflame.expire(3 * PATIENCE), None, "sixteen bytes are not a doorbell");
        assert_eq!(blueflame.expire(PATIENCE + PATIENCE_INSIDE), Some(Collected::Doorbell(0x42)));
    }
}
