//! Where the completions of a queue end that a CQ holds now, for the thread that resets the queue.
//!
//! The kernel's reset (MODIFY_QP to RESET) returns once the device writes no more CQEs of the
//! queue. So every CQE of the queue's past is between the consumer index and the last one that is
//! found in the ring by then, and the poller can tell it by its place from those of the queue's
//! next life.

use core::mem::offset_of;
use core::ptr::NonNull;

use super::ring::Ring;
use crate::format::{Cqe, CqeFormat};
use crate::sync::{AtomicU32, Ordering};

/// Consumer indices and user indices have 24 bits.
pub(super) const INDEX: u32 = 0xff_ffff;

/// The rings of a CQ and how far it has been polled, as other threads than the poller see them.
#[derive(Debug)]
pub(super) struct Place {
    /// The ring in use, and those that the poller may move to.
    pub(super) rings: Vec<Ring>,
    /// The consumer index of the doorbell record: all before it has been polled.
    pub(super) consumed: NonNull<AtomicU32>,
}

// SAFETY: rings and record live until the CQ's poller takes this away (`CqMonitor::set_place`), and
// are read atomically.
unsafe impl Send for Place {}

impl Place {
    /// The counter behind the last CQE of the queue with this user index; `None` if there is none.
    /// `lap` is where the poller's lap begins.
    ///
    /// Entries that were polled since the consumer index was published count as well, which does no
    /// harm.
    pub(super) fn end_of(&self, user_index: u32, lap: &AtomicU32) -> Option<u32> {
        let consumed = self.counter(lap);
        let ends = self.rings.iter().flat_map(|ring| {
            // From the first on: the poller writes the entries of a compressed session anew, the
            // title last. So either the title is found here, or after it all that it stood for.
            let ahead = 0..ring.entries();
            ahead.filter_map(move |ahead| end_at(ring, consumed.wrapping_add(ahead), user_index))
        });
        ends.max_by_key(|end| end.wrapping_sub(consumed))
    }

    /// The consumer index as the poller counts: with 32 bits.
    fn counter(&self, lap: &AtomicU32) -> u32 {
        loop {
            let before = lap.load(Ordering::Acquire);
            // SAFETY: see `Place`.
            let published = unsafe { self.consumed.as_ref() }.load(Ordering::Acquire);
            if lap.load(Ordering::Relaxed) == before {
                return nearest(u32::from_be(published), before);
            }
        }
    }
}

/// The counter with these lower 24 bits that is nearest to `lap`. It is at most a ring's entries
/// away, 2^23, and on the lower side fewer: the device writes no entry before its place was given
/// back.
fn nearest(published: u32, lap: u32) -> u32 {
    let ahead = published.wrapping_sub(lap) << 8;
    lap.wrapping_add_signed(ahead as i32 >> 8)
}

/// The counter behind the CQE at `index`, if the device has written it in this lap and it is the
/// queue's.
fn end_at(ring: &Ring, index: u32, user_index: u32) -> Option<u32> {
    let op_own = ring.written(index)?;
    let cqe = ring.cqe(index);
    if cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX != user_index {
        return None;
    }
    // The title of a compressed session says how many there are; the device does not write all of
    // them.
    let is_session = op_own.format() == CqeFormat::COMPRESSED;
    let entries = if is_session { cqe.u32(offset_of!(Cqe, byte_count)) } else { 1 };
    Some(index.wrapping_add(entries.clamp(1, ring.entries())))
}

/// Whether the CQE at counter `consumed` comes before the counter `end`.
pub(crate) fn is_before(consumed: u32, end: u32) -> bool {
    (end.wrapping_sub(consumed) as i32) > 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Wherever the poller is, the 24 bits of the record lead to its counter.
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
            // Also where the 24 bits of the consumer index have come round.
            for after in [0, 1, (1 << 23) + 1, (1 << 24) - 1, 1 << 24] {
                assert!(!is_before(end.wrapping_add(after), end));
            }
        }
    }
}
