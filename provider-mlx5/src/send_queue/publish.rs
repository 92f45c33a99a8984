//! How what was built is made known to the device.

#![allow(unsafe_code)]

use super::wide::copy_block;
use super::{Block, SendQueue, Transport};
use crate::format::WQEBB_SIZE;
use crate::mmio::Register;

/// Bytes that the fast path copies to a register at most.
pub(super) const MOST_COPIED: u32 = 4 * WQEBB_SIZE as u32;

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Rings the doorbell for everything built and not yet published; does nothing if there is
    /// nothing.
    #[inline(always)]
    pub fn publish(&mut self) {
        // What a forgotten batch was granted, and what it noted, must not count any more.
        self.end_batch();
        self.publish_built();
    }

    /// [`SendQueue::publish`] where there is no batch.
    #[inline(always)]
    pub(super) fn publish_built(&mut self) {
        if self.has_unpublished() {
            self.ring_last();
            self.settle();
        }
    }

    /// Whether something was built that the device does not know of.
    #[inline(always)]
    pub(super) fn has_unpublished(&self) -> bool {
        self.unpublished != 0
    }

    /// Whether a post of what fits is stored to the register as it is: it takes all such requests,
    /// or none.
    #[inline(always)]
    pub(super) fn posts_directly(&self) -> bool {
        let copies = self.doorbell.register.copy_limit();
        copies == 0 || copies >= MOST_COPIED
    }

    /// Works out anew how far the fast path may go.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        self.limit = self.head;
        if self.unpublished == 0 && self.posts_directly() {
            self.limit = self.open_until(self.place());
            let place = (self.head & self.mask) as usize;
            self.next_block = self.ring.cast::<Block>().wrapping_add(place);
            self.next_entry = self.entries.wrapping_add(place);
        }
    }

    /// Publishes up to `head`, with an 8-byte doorbell. The queue has to be settled then.
    #[inline(always)]
    pub(super) fn ring_last(&mut self) {
        let control = self.last_control;
        self.state().publish_sends(self.head);
        self.doorbell.ring(self.head, |register| register.doorbell(control));
        self.note_published();
    }

    /// Publishes the request from `start` to the head, which is in the ring: to BlueFlame, unless others wait to be
    /// published or the register does not take so much.
    #[inline(always)]
    pub(super) fn ring_from_ring(&mut self, start: u32) {
        let (ring, mask, head) = (self.ring.cast::<Block>(), self.mask, self.head);
        let (blocks, control) = (head.wrapping_sub(start), self.control_at(start));
        let copies = blocks <= self.direct;
        self.state().publish_sends(head);
        self.doorbell.ring(head, |register| {
            if !copies {
                return register.doorbell(control);
            }
            let half = register.take_half().cast::<Block>();
            for i in 0..blocks {
                // SAFETY: the half takes `blocks` blocks, all of which lie in the ring.
                unsafe {
                    let block = ring.add((start.wrapping_add(i) & mask) as usize);
                    copy_block(half.add(i as usize), block);
                }
            }
        });
        self.note_published();
        self.settle();
    }

    /// Notes that the requests from `start` to the head were built and not published.
    #[inline(always)]
    pub(super) fn note_unpublished(&mut self, start: u32) {
        self.unpublished = self.unpublished.wrapping_add(self.head.wrapping_sub(start));
        self.last_control = self.control_at(self.state().send_start(self.head.wrapping_sub(1)));
        self.direct = 0;
        self.limit = self.head;
    }

    /// The first eight bytes of the request at counter `index`.
    #[inline(always)]
    fn control_at(&self, index: u32) -> u64 {
        // SAFETY: within the ring, which this queue alone writes.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    #[inline(always)]
    pub(super) fn note_published(&mut self) {
        self.unpublished = 0;
        self.direct = self.doorbell.register.copy_limit() / WQEBB_SIZE as u32;
    }
}
