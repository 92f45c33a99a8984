//! Finds the end of a queue's completions in a CQ, for the thread that resets the queue.
//!
//! The kernel's reset (MODIFY_QP to RESET) returns once the device writes no more CQEs of the
//! queue. So all its CQEs from before the reset are between the consumer index and the last one
//! that is in the ring by then. The poller recognises them by their position.

use core::mem::offset_of;

use super::ring::Ring;
use crate::doorbell::DoorbellWord;
use crate::format::{Cqe, CqeFormat, OpOwn};
use crate::sync::{AtomicU32, Ordering};

/// Consumer indices and user indices have 24 bits.
pub(super) const INDEX: u32 = 0xff_ffff;

/// The rings of a CQ and its consumer index, as threads other than the poller see them.
#[derive(Debug)]
pub(super) struct Place {
    /// The ring in use, and those that the poller may move to.
    pub(super) rings: Vec<Ring>,
    /// The consumer index in the doorbell record: everything before it has been polled. Like the
    /// rings, the record is valid until the CQ's poller removes it (`CqMonitor::set_place`).
    pub(super) consumed: DoorbellWord,
}

/// The CQEs that a CQ holds of a queue, after the device has written the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The counter after the last CQE.
    pub(super) end: u32,
    /// The number of CQEs.
    pub(super) count: u32,
}

impl Place {
    /// The CQEs of the queue with this user index; `None` if there are none. `lap` is the start of
    /// the poller's lap. `counts` says by opcode which CQEs are counted.
    ///
    /// The count may include CQEs that were polled since the consumer index was published, which is
    /// harmless.
    pub(super) fn left_of(
        &self,
        user_index: u32,
        lap: &AtomicU32,
        counts: impl Fn(OpOwn) -> bool,
    ) -> Option<Left> {
        let consumed = self.counter(lap);
        let mut left: Option<Left> = None;
        let mut visit = |ring: &Ring, at: u32, op_own: OpOwn, entries: u32| {
            if ring.cqe(at).shared_u32(offset_of!(Cqe, srqn_user_index)) & INDEX != user_index {
                return;
            }
            let Left { end, count } = left.unwrap_or(Left { end: consumed, count: 0 });
            let behind = at.wrapping_add(entries);
            left = Some(Left {
                end: if is_before(end, behind) { behind } else { end },
                count: count + if counts(op_own) { entries } else { 0 },
            });
        };
        let is_only = self.rings.len() == 1;
        for ring in &self.rings {
            // With one ring, the device fills it from the consumer index on. With several, it may
            // have begun at a different position in each.
            let may_end = |at| is_only && !is_before(at, self.counter(lap));
            each_written(ring, consumed, may_end, &mut visit);
        }
        left
    }

    /// The consumer index with the 32 bits that the poller counts.
    fn counter(&self, lap: &AtomicU32) -> u32 {
        loop {
            let before = lap.load(Ordering::Acquire);
            let published = self.consumed.load();
            if lap.load(Ordering::Relaxed) == before {
                return nearest(published, before);
            }
        }
    }
}

/// The counter with these lower 24 bits that is nearest to `lap`. They differ by at most a ring's
/// entries (2^23), and by fewer if the counter is behind, because the device writes no entry before
/// it is given back.
fn nearest(published: u32, lap: u32) -> u32 {
    let ahead = published.wrapping_sub(lap) << 8;
    lap.wrapping_add_signed(ahead as i32 >> 8)
}

/// Visits the CQEs that the device has written, from a counter on, each with the number of entries
/// that it covers. `may_end` says whether an entry that was not written ends the search. An entry
/// that the poller has passed does not end it, because the device may have written the entry in the
/// next lap.
fn each_written(
    ring: &Ring,
    from: u32,
    may_end: impl Fn(u32) -> bool,
    mut visit: impl FnMut(&Ring, u32, OpOwn, u32),
) {
    let mut at = from;
    while at.wrapping_sub(from) < ring.entries() {
        let entries = match ring.written(at) {
            Some(op_own) => {
                let entries = entries_of(ring, at, op_own);
                visit(ring, at, op_own, entries);
                entries
            }
            None if may_end(at) => return,
            None => 1,
        };
        at = at.wrapping_add(entries);
    }
}

/// How many entries the CQE at `index` covers. Only the title of a compressed session covers
/// several, and the device does not write all of them. The poller decompresses them and writes the
/// title last. So a reader finds either the title, or all CQEs of the session. If `op_own` changes
/// while the length is read, the value read may be the byte count of the first CQE.
pub(super) fn entries_of(ring: &Ring, index: u32, op_own: OpOwn) -> u32 {
    if op_own.format() != CqeFormat::COMPRESSED {
        return 1;
    }
    let entries = ring.cqe(index).shared_u32(offset_of!(Cqe, byte_count));
    if ring.written(index) == Some(op_own) { entries.clamp(1, ring.entries()) } else { 1 }
}

/// Whether the CQE at counter `consumed` comes before the counter `end`.
pub(crate) fn is_before(consumed: u32, end: u32) -> bool {
    (end.wrapping_sub(consumed) as i32) > 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The poller's counter is found from the record's 24 bits at any position.
    #[test]
    fn a_published_index_is_a_counter_near_the_lap() {
        for entries in [2u32, 1 << 10, 1 << 22, 1 << 23] {
            for lap in [0u32, 3, 4, 255, 511].map(|lap| lap.wrapping_mul(entries)) {
                for ahead in [0, 1, entries / 2, entries - 1] {
                    for counter in [lap.wrapping_add(ahead), lap.wrapping_sub(ahead)] {
                        assert_eq!(nearest(counter & INDEX, lap), counter, "{lap:#x} {ahead:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_counter_is_before_an_end_over_wraps() {
        for end in [5u32, 0x100_0000, 0x8000_0000, u32::MAX, 0] {
            assert!(
                is_before(end.wrapping_sub(1), end) && is_before(end.wrapping_sub(1 << 23), end)
            );
            // Also where the 24 bits of the consumer index have wrapped.
            for after in [0, 1, (1 << 23) + 1, (1 << 24) - 1, 1 << 24] {
                assert!(!is_before(end.wrapping_add(after), end));
            }
        }
    }
}
