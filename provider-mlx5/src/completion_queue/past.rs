//! Where the completions of a queue end that a CQ holds now, for the thread that resets the queue.
//!
//! The kernel's reset (MODIFY_QP to RESET) returns once the device writes no more CQEs of the queue. So every CQE of the
//! queue's past lies between the consumer index and the last one that is found in the ring by then, and the poller can
//! tell it by its place from those of the queue's next life.

use core::mem::offset_of;
use core::ptr::NonNull;

use super::cqe_view::CqeView;
use super::{OWNER, Ring};
use crate::format::{Cqe, CqeFormat, CqeOpcode, OpOwn};
use crate::sync::{AtomicU32, Ordering};

/// Consumer indices have 24 bits.
pub(super) const INDEX: u32 = 0xff_ffff;

/// The rings of a CQ and how far it has been polled, as other threads than the poller see them.
#[derive(Debug)]
pub(super) struct Place {
    /// The ring in use, and the one that the poller is going to move to.
    pub(super) rings: [Option<Ring>; 2],
    /// The consumer index of the doorbell record: all before it has been polled.
    pub(super) consumed: NonNull<AtomicU32>,
}

// SAFETY: rings and record live until the CQ's poller takes this away (`CqMonitor::set_place`), and are read atomically.
unsafe impl Send for Place {}

impl Place {
    /// The index behind the last CQE of the queue with this user index; `None` if there is none.
    ///
    /// Entries that were polled since the consumer index was published count as well, which does no harm.
    pub(super) fn end_of(&self, user_index: u32) -> Option<u32> {
        // SAFETY: see `Place`.
        let consumed = unsafe { self.consumed.as_ref() }.load(Ordering::Acquire);
        let consumed = u32::from_be(consumed);
        let ends = self.rings.iter().flatten().filter_map(|ring| {
            let ahead = (0..=ring.mask).rev();
            ahead.filter_map(|ahead| end_at(ring, consumed.wrapping_add(ahead), user_index)).max()
        });
        ends.max_by_key(|end| end.wrapping_sub(consumed)).map(|end| end & INDEX)
    }
}

/// The index behind the CQE at `index`, if the device has written it in this lap and it is the queue's.
fn end_at(ring: &Ring, index: u32, user_index: u32) -> Option<u32> {
    // SAFETY: an entry of a ring that is alive.
    let cqe = unsafe { CqeView::new(ring.cqe(index)) };
    let op_own = OpOwn(cqe.u8(offset_of!(Cqe, op_own)));
    if op_own.0 & OWNER != ring.lap(index) || op_own.opcode() == CqeOpcode::INVALID {
        return None;
    }
    crate::barrier::from_device();
    if cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX != user_index {
        return None;
    }
    // The first entry of a compressed session says how many there are; the device does not write all of them.
    let is_session = op_own.format() == CqeFormat::COMPRESSED;
    let entries = if is_session { cqe.u32(offset_of!(Cqe, byte_count)) } else { 1 };
    Some(index.wrapping_add(entries.clamp(1, ring.mask + 1)))
}

/// Whether the CQE at counter `consumed` comes before the index `end`.
pub(crate) fn is_before(consumed: u32, end: u32) -> bool {
    (1..=INDEX / 2).contains(&(end.wrapping_sub(consumed) & INDEX))
}
