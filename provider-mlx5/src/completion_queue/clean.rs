//! Taking the completions of closed queues out of the ring, for a caller that keeps every poller of
//! the CQ out meanwhile.

use core::mem::offset_of;

use super::CompletionQueue;
use super::past::INDEX;
use super::resize::is_mark;
use super::slow::put_aside;
use crate::format::Cqe;

impl CompletionQueue {
    /// Takes out what the ring holds of queues that were closed or reset, so that it takes up no
    /// places until it is polled. What remains stays in order. libmlx5 does the same when it resets
    /// or destroys a QP (`mlx5_cq_clean`).
    ///
    /// Nothing happens while a resize is going on.
    pub fn remove_closed(&mut self) {
        if !self.pending.is_empty() || self.kept > 0 {
            return;
        }
        // Before the ring is looked at: queues that are closed later are not drained by this.
        let requested = self.monitor.requested();
        let monitor = self.monitor.clone();
        // The threads that look for a queue's CQEs would miss those that move.
        monitor.set_place(|_| self.move_up());
        self.report_drained(requested);
    }

    /// Moves what remains to the end, and the consumer index to where that begins.
    fn move_up(&mut self) {
        let mut removed = 0;
        for ahead in (0..self.written()).rev() {
            let at = self.consumed.wrapping_add(ahead);
            if self.is_of_closed(at) {
                removed += 1;
            } else if removed > 0 {
                self.ring.copy(at, at.wrapping_add(removed));
            }
        }
        (0..removed).for_each(|_| self.consume());
        self.dropped += u64::from(removed);
        self.publish();
        self.update_next();
    }

    /// CQEs that the device has written and nothing has polled; afterwards none is compressed.
    fn written(&mut self) -> u32 {
        self.ring.expand_waiting(self.consumed, self.mini_format, |op_own| !is_mark(op_own))
    }

    /// Whether the CQE at a counter is of a queue that was closed, or of a life before the queue's
    /// reset. The receive of an SRQ that it holds is posted again then.
    fn is_of_closed(&mut self, at: u32) -> bool {
        let cqe = self.ring.cqe(at);
        let index = cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX;
        self.known.refresh();
        let Some(state) = self.known.any(index) else { return false };
        if !self.known.table().is_over(state, &self.monitor, at) {
            return false;
        }
        if let Some(op_own) = self.ring.written(at) {
            put_aside(cqe, op_own.opcode(), state);
        }
        true
    }
}
