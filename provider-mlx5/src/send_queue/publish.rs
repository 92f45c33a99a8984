//! Publishing built requests to the device.

use super::batch::high;
use super::{SendQueue, Transport};
use crate::doorbell::Plain;
use crate::format::WQEBB_SIZE;
use crate::mmio::Register;

/// Most bytes that the fast path copies to a register.
pub(super) const MAX_COPIED: u32 = 4 * WQEBB_SIZE as u32;

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Rings the doorbell for all requests that are built and not published yet; does nothing if
    /// there are none.
    #[inline(always)]
    pub fn publish(&mut self) {
        // A batch that was leaked still has space, and has marked blocks in the ring.
        self.end_batch();
        self.publish_built();
    }

    /// [`SendQueue::publish`] when there is no batch.
    #[inline(always)]
    pub(super) fn publish_built(&mut self) {
        if self.has_unpublished() {
            self.ring_last();
            self.recompute_fast_limit();
        }
    }

    /// Publishes the request from `start` to the head, which is in the ring. It is copied to the
    /// BlueFlame register, unless others are unpublished or it has more blocks than that takes.
    #[inline(always)]
    pub(super) fn ring_from_ring(&mut self, start: u32) {
        let (head, base, mask) = (self.head, self.ring.base, self.ring.mask);
        self.state().publish_sends(head);
        self.ring_blocks(head, head.wrapping_sub(start), |i| {
            base.wrapping_add((start.wrapping_add(i) & mask) as usize)
        });
        self.note_published();
        self.recompute_fast_limit();
    }

    /// Whether requests are built but unpublished.
    #[inline(always)]
    pub(super) fn has_unpublished(&self) -> bool {
        self.unpublished != 0
    }

    /// Whether the fast path may post to this register: it takes copies of all requests that the
    /// fast path composes, or no copies at all.
    #[inline(always)]
    pub(super) fn posts_directly(&self) -> bool {
        let copies = self.doorbell.register.copy_limit();
        copies == 0 || copies >= MAX_COPIED
    }

    /// Moves the fast path to the head, and recomputes how far it may go.
    #[doc(hidden)]
    #[inline(always)]
    pub fn recompute_fast_limit(&mut self) {
        if self.unpublished != 0 || !self.posts_directly() {
            return self.close_at_head();
        }
        self.next = self.next_at(self.place());
        self.batch_start.high = high(self.head);
    }

    /// Moves the fast path to the head, and closes it.
    #[inline(never)]
    fn close_at_head(&mut self) {
        self.next = self.ring.next(self.head, 0);
        self.batch_start.high = high(self.head);
    }

    /// Publishes up to `head`, with an 8-byte doorbell. The caller recomputes the fast limit
    /// afterwards.
    #[inline(always)]
    pub(super) fn ring_last(&mut self) {
        let control = self.last_control;
        self.state().publish_sends(self.head);
        self.doorbell.ring(self.head, Plain(control));
        if self.has_unpublished() {
            self.note_published();
        }
    }

    /// Records that the requests from `start` to the head are unpublished.
    #[inline(always)]
    pub(super) fn note_unpublished(&mut self, start: u32) {
        self.unpublished = self.unpublished.wrapping_add(self.head.wrapping_sub(start));
        self.last_control = self.last_control();
        self.direct = 0;
        self.close_at_head();
    }

    /// The first eight bytes of the request before the head, read from the ring.
    #[inline(always)]
    pub(super) fn last_control(&self) -> u64 {
        self.ring.control_at(self.state().send_start(self.head.wrapping_sub(1)))
    }

    /// Records that nothing is unpublished.
    #[inline(always)]
    pub(super) fn note_published(&mut self) {
        self.unpublished = 0;
        self.direct = self.doorbell.register.copy_limit() / WQEBB_SIZE as u32;
    }
}
