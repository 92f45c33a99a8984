//! Removes the completions of closed queues from the ring. The caller excludes all pollers of the
//! CQ.

use core::mem::offset_of;

use super::CompletionQueue;
use super::past::INDEX;
use super::resize::is_mark;
use super::slow::put_aside;
use crate::format::Cqe;

impl CompletionQueue {
    /// Removes the CQEs of queues that were closed or reset, so that they no longer occupy entries.
    /// The other CQEs stay in order. libmlx5 does the same when it resets or destroys a QP
    /// (`mlx5_cq_clean`).
    ///
    /// Does nothing during a resize.
    pub fn remove_closed(&mut self) {
        if !self.can_remove() {
            return;
        }
        // Read before the ring, because CQEs of queues that are closed later stay in it.
        let requested = self.monitor.requested();
        let monitor = self.monitor.clone();
        // The lock is held meanwhile, because another thread that searches for a queue's CQEs would
        // miss those that move.
        monitor.set_place(self.queues.table().is_inherited(), |_| self.move_up());
        self.report_drained(requested);
    }

    /// Whether CQEs may be removed: no resize is pending, and all refused CQEs have been reported.
    pub(super) fn can_remove(&self) -> bool {
        self.pending.is_empty() && self.kept == 0
    }

    /// Moves the CQEs of open queues to the end, and the consumer index to the first of them.
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

    /// The number of CQEs that the device has written and no poll has consumed. Decompresses all of
    /// them.
    fn written(&mut self) -> u32 {
        self.ring.expand_waiting(self.consumed, self.mini_format, |op_own| !is_mark(op_own))
    }

    /// Whether the CQE at a counter belongs to a closed queue, or is from before its queue's reset.
    /// If so and it holds an SRQ's receive, the receive is posted again.
    fn is_of_closed(&mut self, at: u32) -> bool {
        let cqe = self.ring.cqe(at);
        let index = cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX;
        let state = self.queues.table().block(index);
        if !self.queues.table().is_over(state, &self.monitor, at) {
            return false;
        }
        if let Some(op_own) = self.ring.written(at) {
            put_aside(cqe, op_own, state);
        }
        true
    }
}
