//! Resizing: the device moves to a new ring, and the poller follows when it reaches the CQE that
//! marks the move.
//!
//! After RESIZE_CQ the old ring ends in a CQE of opcode RESIZE, here called the mark. The device
//! continues in the new ring at the index after the mark's. So no CQE needs to be copied: the
//! poller polls the old ring up to the mark.

use super::CompletionQueue;
use super::past::entries_of;
use super::ring::Ring;
use crate::format::{CqeOpcode, OpOwn};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;

/// A ring to which the device will or may move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    ring: Ring,
    /// The command failed. The device may execute it nevertheless, and may do so later.
    refused: bool,
}

/// Why a CQ cannot be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The poller has not reached the mark of the last resize.
    #[error(
        "the previous resize is not finished: poll the CQ until its completions from before are \
         gone"
    )]
    InProgress,
    /// See [`QueueError`].
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl CompletionQueue {
    /// Prepares to follow the device to a new ring. Call it before the kernel's RESIZE_CQ; if that
    /// fails, call [`CompletionQueue::cancel_resize`]. The old ring's memory must stay valid until
    /// [`CompletionQueue::resize_is_finished`].
    ///
    /// # Errors
    /// [`ResizeError`]; then nothing has changed.
    pub fn prepare_resize(
        &mut self,
        memory: DmaMemory,
        entries: u32,
        cqe_size: u32,
    ) -> Result<(), ResizeError> {
        self.follow_marks();
        if !self.resize_is_finished() {
            return Err(ResizeError::InProgress);
        }
        let ring = Ring::new(&memory, entries, cqe_size)?;
        self.pending.push(Pending { ring, refused: false });
        self.show_rings();
        Ok(())
    }

    /// Leaves each ring whose mark is the next CQE, without a poll: a program may resize twice in a
    /// row, and an event reports completions, which a mark is not.
    pub(super) fn follow_marks(&mut self) {
        for _ in 0..=self.pending.len() {
            let next = self.ring.written(self.consumed);
            if !next.is_some_and(is_mark) || !self.pass_mark() {
                return;
            }
            self.update_next();
        }
    }

    /// Whether the device is in the ring of the last [`prepare_resize`](Self::prepare_resize): true
    /// if no command failed, of those that the poller has not followed. A RESIZE_CQ whose response
    /// could not be delivered returns an error although it was executed. After several failed
    /// commands this is known only once the device has written a CQE there.
    pub fn resize_has_begun(&self) -> bool {
        self.pending.last().is_some_and(|last| self.device_rings() == [last.ring])
    }

    /// Entries of the ring that the device is in. If it may be in one of several, those of the
    /// smallest.
    pub fn device_entries(&self) -> u32 {
        let rings = self.device_rings();
        rings.iter().map(Ring::entries).min().unwrap_or_else(|| self.entries())
    }

    /// The rings that the device may be in: several if it is not known to which of them it has
    /// moved.
    fn device_rings(&self) -> Vec<Ring> {
        if self.resize_is_certain() {
            return vec![self.pending.last().map_or(self.ring, |last| last.ring)];
        }
        let (mut ring, mut at, mut left) = (self.ring, self.consumed, self.pending.clone());
        while !left.is_empty() {
            let Some(mark) = mark_from(&ring, at) else { break };
            at = mark.wrapping_add(1);
            match after_mark(&left, at) {
                Some(next) => ring = left.remove(next).ring,
                None => return left.iter().map(|step| step.ring).collect(),
            }
        }
        vec![ring]
    }

    /// Whether no command failed that the device may have executed. Then no mark need be searched
    /// for. A program that polls the ring itself may have overwritten it.
    fn resize_is_certain(&self) -> bool {
        !self.pending.iter().any(|step| step.refused)
    }

    /// Notes that the command failed, so that another resize may be prepared. The poller still
    /// follows if the device moves, now or later. So the new ring's memory must stay valid as long
    /// as the CQ.
    pub fn cancel_resize(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.refused = true);
    }

    /// Whether the poller has left the old ring of the last resize that was not cancelled. Then
    /// that ring's memory can be freed.
    pub fn resize_is_finished(&self) -> bool {
        self.pending.iter().all(|pending| pending.refused)
    }

    /// Publishes the ring in use and the possible next rings to other threads.
    fn show_rings(&self) {
        let pending = self.pending.iter().map(|pending| pending.ring);
        let rings: Vec<_> = core::iter::once(self.ring).chain(pending).collect();
        self.monitor.set_place(self.queues.table().is_inherited(), |place| {
            if let Some(place) = place {
                place.rings = rings;
            }
        });
    }

    /// Consumes the mark at the consumer index and moves to the ring that the device has moved to.
    /// Returns false, with nothing changed, if that ring is not known yet.
    pub(super) fn pass_mark(&mut self) -> bool {
        let Some(next) = self.ring_after_mark() else { return false };
        self.consume();
        if next < self.pending.len() {
            let left = core::mem::replace(&mut self.ring, self.pending.remove(next).ring);
            self.monitor.change_capacity(left.entries(), self.ring.entries());
            // Other threads search a single ring from the published index on, and this ring has no
            // CQE before it. Entries that a batch holds are in the ring that the device has left.
            self.publish();
            self.show_rings();
        }
        // Entries of the new ring that the device has not written yet may have either owner bit
        // here. The slow path recognises them by their opcode. They cannot be marked again, since
        // the device may be writing them.
        true
    }

    /// The index in `pending` of the ring to which the device moved at the mark; `None` if that is
    /// not known yet. (A mark that leads to no ring of `pending` is also skipped.)
    ///
    /// The mark does not name the ring. There may be several, because the device may have executed
    /// commands that failed. Then the first CQE that the device writes after the mark decides: it
    /// is in the ring to which the device moved. Until there is one, the device is in the ring of
    /// the command that succeeded, if one did: before its response, a move to any other ring would
    /// have left a mark there (`copy_resize_cqes` of drivers/infiniband/hw/mlx5/cq.c relies on it).
    fn ring_after_mark(&self) -> Option<usize> {
        after_mark(&self.pending, self.consumed.wrapping_add(1))
    }

    /// Whether the next CQE is written, and is not a mark whose ring is unknown.
    pub(super) fn has_next(&self) -> bool {
        let next = self.ring.written(self.consumed);
        next.is_some_and(|next| !is_mark(next) || self.ring_after_mark().is_some())
    }
}

/// Whether the CQE with this last byte is the mark at which the device left the ring.
pub(super) fn is_mark(op_own: OpOwn) -> bool {
    op_own.opcode() == CqeOpcode::RESIZE
}

/// The counter of the first mark in `ring` from counter `from` on.
fn mark_from(ring: &Ring, from: u32) -> Option<u32> {
    // Only entries with a CQE can have a mark: those of a compressed session have any bytes.
    let mut at = from;
    while at.wrapping_sub(from) < ring.entries() {
        let op_own = ring.written(at)?;
        if is_mark(op_own) {
            return Some(at);
        }
        at = at.wrapping_add(entries_of(ring, at, op_own));
    }
    None
}

/// [`CompletionQueue::ring_after_mark`] in `steps`, for a mark before the counter `next`.
fn after_mark(steps: &[Pending], next: u32) -> Option<usize> {
    if steps.len() < 2 {
        return Some(0);
    }
    let written = steps.iter().position(|step| step.ring.written(next).is_some());
    written.or_else(|| steps.iter().position(|step| !step.refused))
}
