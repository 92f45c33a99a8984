//! Resizing: the device moves to a new ring, and the poller follows when it meets the mark that
//! says where.
//!
//! When the kernel has carried out RESIZE_CQ, the old ring ends in a CQE of opcode RESIZE, and the
//! device continues in the new ring at the place after that CQE's index. So nothing has to be
//! copied: the old ring is polled to that mark.

use super::CompletionQueue;
use super::ring::Ring;
use crate::format::{CqeOpcode, OpOwn};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;

/// A ring that the device will move to, or may move to.
#[derive(Debug)]
pub(super) struct Pending {
    ring: Ring,
    /// The command failed. The device may carry it out nevertheless, also later.
    refused: bool,
}

/// Why a CQ cannot be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The last resize has not been polled through.
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
    /// Prepares to follow the device to a new ring; to be called before the kernel's RESIZE_CQ, and
    /// followed by [`CompletionQueue::cancel_resize`] if that fails. The old ring's memory is
    /// needed until [`CompletionQueue::resize_is_finished`].
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

    /// Leaves each ring whose mark is the next CQE, without polling: a program may resize twice in
    /// a row.
    fn follow_marks(&mut self) {
        for _ in 0..=self.pending.len() {
            let next = self.ring.written(self.consumed);
            if !next.is_some_and(is_mark) || !self.pass_mark() {
                return;
            }
            self.update_next();
        }
    }

    /// Whether the device has moved although the poller has not: a RESIZE_CQ whose answer could not
    /// be delivered fails although it was carried out.
    pub fn resize_has_begun(&self) -> bool {
        // A ring meets its end once, so no mark in it is an old one.
        let is_mark = |index| is_mark(OpOwn(self.ring.cqe(index).op_own()));
        !self.pending.is_empty() && (0..self.ring.entries()).any(is_mark)
    }

    /// The command failed: another resize may be prepared. The poller follows if the device moves
    /// nevertheless, also later, so the new ring's memory is needed as long as the CQ.
    pub fn cancel_resize(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.refused = true);
    }

    /// Whether the poller has left the ring from before the last resize that was not cancelled, so
    /// that its memory can be freed.
    pub fn resize_is_finished(&self) -> bool {
        self.pending.iter().all(|pending| pending.refused)
    }

    /// Shows other threads the ring in use, and those that may come next.
    fn show_rings(&self) {
        let pending = self.pending.iter().map(|pending| pending.ring);
        let rings: Vec<_> = core::iter::once(self.ring).chain(pending).collect();
        self.monitor.set_place(|place| {
            if let Some(place) = place {
                place.rings = rings;
            }
        });
    }

    /// Consumes the mark at the consumer index and moves to the ring that it leads to. Nothing has
    /// changed if that is not known yet.
    pub(super) fn pass_mark(&mut self) -> bool {
        let Some(next) = self.ring_after_mark() else { return false };
        self.consume();
        if next < self.pending.len() {
            let left = core::mem::replace(&mut self.ring, self.pending.remove(next).ring);
            self.monitor.change_capacity(left.entries(), self.ring.entries());
            self.show_rings();
        }
        // Entries of the new ring that the device has not written yet may carry either owner bit
        // here; the opcode tells them, on the slow path. They cannot be marked anew, since the
        // device may be writing them.
        true
    }

    /// Which of the rings the device moved to at the mark that is the next CQE; `None` if that is
    /// not known yet. (A mark that leads nowhere is passed as well: it names no ring of `pending`.)
    ///
    /// The mark does not say. If there is more than one ring, because commands failed that the
    /// device may have carried out, the CQE behind the mark does: of the rings that the device has
    /// not been in yet, it is in that one. While there is none, the device is in the ring of the
    /// command that succeeded, if one did: before that one's answer it would have left a mark in
    /// any other ring (`copy_resize_cqes` of drivers/infiniband/hw/mlx5/cq.c relies on it).
    fn ring_after_mark(&self) -> Option<usize> {
        if self.pending.len() < 2 {
            return Some(0);
        }
        let next = self.consumed.wrapping_add(1);
        let written = self.pending.iter().position(|step| step.ring.written(next).is_some());
        written.or_else(|| self.pending.iter().position(|step| !step.refused))
    }

    /// Whether the next CQE is there, and more than a mark of which it is not known where it leads.
    pub(super) fn has_next(&self) -> bool {
        let next = self.ring.written(self.consumed);
        next.is_some_and(|next| !is_mark(next) || self.ring_after_mark().is_some())
    }
}

/// Whether a CQE with this last byte is the one at which the device left the ring.
pub(super) fn is_mark(op_own: OpOwn) -> bool {
    op_own.opcode() == CqeOpcode::RESIZE
}
