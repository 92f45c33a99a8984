//! Resizing: the device moves to a new ring, and the poller follows when it meets the mark that says where.
//!
//! When the kernel has carried out RESIZE_CQ, the old ring ends in a CQE of opcode RESIZE, and the device continues in the
//! new ring at the place after that CQE's index. So nothing has to be copied: the old ring is polled to that mark.

use super::CompletionQueue;
use super::ring::Ring;
use crate::format::{CqeOpcode, OpOwn};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;

/// A ring that the device will move to, or may move to.
#[derive(Debug)]
pub(super) struct Pending {
    ring: Ring,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The command has been sent, or is about to be.
    Asked,
    /// The command failed. The device may carry it out nevertheless, also later.
    Refused,
    /// The poller is in the ring.
    Moved,
}

/// Why a CQ cannot be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The last resize has not been polled through.
    #[error(
        "the previous resize is not finished: poll the CQ until its completions from before are gone"
    )]
    InProgress,
    /// See [`QueueError`].
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl CompletionQueue {
    /// Prepares to follow the device to a new ring; to be called before the kernel's RESIZE_CQ, and followed by
    /// [`CompletionQueue::cancel_resize`] if that fails. The old ring's memory is needed until
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
        self.follow_mark();
        if !self.resize_is_finished() {
            return Err(ResizeError::InProgress);
        }
        let ring = Ring::new(&memory, entries, cqe_size)?;
        self.resize = Some(Pending { ring, step: Step::Asked });
        self.show_rings(Some(ring));
        Ok(())
    }

    /// Leaves the old ring if its mark is the next CQE, without polling: a program may resize twice in a row.
    fn follow_mark(&mut self) {
        let next = self.ring.written(self.consumed);
        let is_mark = next.is_some_and(|op_own| op_own.opcode() == CqeOpcode::RESIZE);
        if is_mark && !self.resize_is_finished() {
            self.consume();
            self.switch_ring();
            self.settle();
        }
    }

    /// Whether the device has moved although the poller has not: a RESIZE_CQ whose answer could not be delivered fails
    /// although it was carried out. Then the poller must follow, and both rings stay.
    pub fn resize_has_begun(&self) -> bool {
        // A ring meets its end once, so no mark in it is an old one.
        let is_mark = |index| OpOwn(self.ring.cqe(index).op_own()).opcode() == CqeOpcode::RESIZE;
        !self.resize_is_finished() && (0..self.ring.entries()).any(is_mark)
    }

    /// The command failed, and the device has not moved yet: another resize may be prepared. Until then the poller
    /// follows if the device moves nevertheless, so the new ring's memory is needed as long as the CQ.
    pub fn cancel_resize(&mut self) {
        if let Some(pending) = &mut self.resize {
            pending.step = Step::Refused;
        }
        self.show_rings(None);
    }

    /// Whether the poller has left the ring from before the last resize, so that its memory can be freed.
    pub fn resize_is_finished(&self) -> bool {
        self.resize.as_ref().is_none_or(|pending| pending.step != Step::Asked)
    }

    /// Shows other threads the ring in use, and the one that comes next.
    fn show_rings(&self, next: Option<Ring>) {
        let rings = [Some(self.ring), next];
        self.monitor.set_place(|place| place.iter_mut().for_each(|place| place.rings = rings));
    }

    /// Moves to the new ring; the counter is already that of the first CQE there.
    pub(super) fn switch_ring(&mut self) {
        let Some(pending) = self.resize.as_mut() else { return };
        if pending.step == Step::Moved {
            return;
        }
        pending.step = Step::Moved;
        self.ring = pending.ring;
        self.monitor.set_capacity(self.ring.entries());
        self.show_rings(None);
        // Entries that the device has not written yet may carry either owner bit here; the opcode tells them, on the slow
        // path. They cannot be marked anew, since the device may be writing them.
    }
}
