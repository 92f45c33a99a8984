//! How far the ring may be filled: blocks that are free, and requests that may be outstanding.
//!
//! The fast path compares with one counter, `limit`. It is worked out here from the tail, which in turn is worked out from
//! what the poller published.

use super::encode::mode_word;
use super::{SendQueue, Transport};
use crate::format::{MAX_DS, WQEBB_SIZE};
use crate::mmio::Register;
use crate::queue_state::{NO_START, completed_counter};
use crate::request::PostError;
use crate::sync::Ordering;
use crate::user_index::SENDS;

/// Where the next request goes, and what the ones before it leave to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Blocks filled so far. All counters wrap.
    pub(super) head: u32,
    /// Blocks so far that are not the first of their request. So blocks less these are requests.
    pub(super) extra: u32,
    /// Mode bits that the request gets because of the one before it.
    pub(super) fence: u8,
}

/// Up to where requests need no look at the queue's state, and no other space.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// A request may end up to here; each block up to here may be a request.
    pub(super) limit: u32,
    /// Where the free blocks end, or the ring.
    pub(super) end: u32,
}

impl Window {
    /// Moves the limit over the request of `blocks` blocks at the head: it was one request.
    #[inline(always)]
    pub(super) fn pass(&mut self, blocks: u32) {
        if blocks > 1 {
            let beyond = self.end.wrapping_sub(self.limit);
            self.limit = self.limit.wrapping_add(beyond.min(blocks - 1));
        }
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// What is open at a place.
    #[inline(always)]
    pub(super) fn window(&self, at: Place) -> Window {
        if self.stale | (at.fence != 0) {
            return Window { limit: at.head, end: at.head };
        }
        let blocks = self.free_at(at.head).min(self.before_end(at.head));
        let end = at.head.wrapping_add(blocks);
        let limit = at.head.wrapping_add(blocks.min(self.requests_left(at)));
        Window { limit, end }
    }

    /// Blocks from a counter to the ring's end.
    #[inline(always)]
    pub(super) fn before_end(&self, counter: u32) -> u32 {
        self.mask + 1 - (counter & self.mask)
    }

    /// Free blocks at a counter, as far as the tail is known.
    #[inline(always)]
    fn free_at(&self, head: u32) -> u32 {
        self.tail.wrapping_add(self.mask + 1).wrapping_sub(head)
    }

    /// Requests that may be posted at a place, as far as the tail is known.
    #[inline(always)]
    pub(super) fn requests_left(&self, at: Place) -> u32 {
        let extra = at.extra.wrapping_sub(self.tail_extra);
        self.max_requests - at.head.wrapping_sub(self.tail).wrapping_sub(extra)
    }

    /// Makes sure of `blocks` blocks for a request; returns the mode word that it gets in any case.
    #[inline(always)]
    pub(super) fn claim(&mut self, at: Place, blocks: u32) -> Result<u64, PostError> {
        if self.stale || self.has_stale_marks(at.head) || !self.has_space(at, blocks) {
            self.find_space(at, blocks)?;
        }
        self.follow(at.head);
        Ok(self.mode | mode_word(at.fence, 0))
    }

    /// Keeps [`Ahead::longer`](super::batch::Ahead) near the head. Claims come once a lap at least,
    /// and 2^31 blocks later a counter that stayed behind would be ahead.
    #[inline(always)]
    fn follow(&mut self, head: u32) {
        if self.ahead.longer != head {
            self.ahead.longer = head;
            self.ahead.longer_start = head.wrapping_sub(1);
        }
    }

    #[inline(always)]
    fn has_space(&self, at: Place, blocks: u32) -> bool {
        self.free_at(at.head) >= blocks && self.requests_left(at) != 0
    }

    /// Looks at the QP's state, and for space. The queue stays where it is: a batch may be forgotten.
    #[cold]
    #[inline(never)]
    fn find_space(&mut self, at: Place, blocks: u32) -> Result<(), PostError> {
        if !self.state().can_send() {
            return Err(self.state().refusal());
        }
        self.stale = false;
        self.clear_marks(at.head);
        self.retire();
        self.follow_grant();
        if self.has_space(at, blocks) { Ok(()) } else { Err(PostError::Full) }
    }

    /// Works out how many requests may be outstanding. Only ever more, until the queue is reset.
    pub(super) fn follow_grant(&mut self) {
        self.max_requests = self.granted.saturating_sub(self.handle.held(SENDS));
    }

    /// Whether a batch that was forgotten has noted blocks from this counter on, where the next request starts.
    #[inline(always)]
    pub(super) fn has_stale_marks(&self, head: u32) -> bool {
        (self.ahead.longer.wrapping_sub(head) as i32) > 0
    }

    /// Takes back what was noted of blocks from this counter on.
    #[cold]
    #[inline(never)]
    pub(super) fn clear_marks(&mut self, head: u32) {
        if !self.has_stale_marks(head) {
            return;
        }
        let noted = self.ahead.longer.wrapping_sub(head).min(self.mask + 1);
        for counter in (0..noted).map(|block| head.wrapping_add(block)) {
            // SAFETY: as in `note_inner`. The upper half is another counter than any that is in this place.
            let mark = unsafe { &*self.marks.add((counter & self.mask) as usize) };
            mark.store(u64::from(!counter) << 32, Ordering::Relaxed);
        }
        self.ahead.longer = head;
    }

    /// Notes that the request at counter `start` has `blocks` blocks, so that no other request starts within it. Given what
    /// [`Place::extra`] is before it, returns what it is behind it.
    #[inline(always)]
    pub(super) fn note_blocks(&self, start: u32, blocks: u32, extra: u32) -> u32 {
        let behind = extra.wrapping_add(blocks - 1);
        for counter in (1..blocks).map(|block| start.wrapping_add(block)) {
            // SAFETY: the masked index is below the ring's size.
            unsafe { self.note_inner((counter & self.mask) as usize, counter, behind) };
        }
        behind
    }

    /// Notes that no request starts at a counter, whose index in the ring is `index`.
    ///
    /// # Safety
    /// The index is below the ring's size.
    #[inline(always)]
    pub(super) unsafe fn note_inner(&self, index: usize, counter: u32, behind: u32) {
        let mark = u64::from(counter) << 32 | u64::from(behind);
        // SAFETY: both tables have an entry for each block of the ring; `handle` keeps them.
        unsafe {
            (*self.entries.add(index)).store(NO_START, Ordering::Relaxed);
            (*self.marks.add(index)).store(mark, Ordering::Relaxed);
        }
    }

    /// What [`Place::extra`] is behind the request from `start` to `end`, between tail and head.
    fn extra_behind(&self, start: u32, end: u32) -> u32 {
        if self.tail_extra == self.extra {
            return self.tail_extra;
        }
        if end.wrapping_sub(start) > 1 {
            let second = (start.wrapping_add(1) & self.mask) as usize;
            // SAFETY: as in `note_blocks`.
            let mark = unsafe { &*self.marks.add(second) };
            return mark.load(Ordering::Relaxed) as u32;
        }
        let (mut at, mut extra) = (self.tail, self.tail_extra);
        while at != end {
            let blocks = self.blocks_at(at).clamp(1, end.wrapping_sub(at));
            extra = extra.wrapping_add(blocks - 1);
            at = at.wrapping_add(blocks);
        }
        extra
    }

    /// Works out the tail from what the poller published. Of what a batch has built behind the head nothing can have
    /// completed, whatever the device says.
    pub(super) fn retire(&mut self) {
        let completed = self.state().completed_send();
        if completed == self.seen {
            return;
        }
        self.seen = completed;
        let outstanding = self.head.wrapping_sub(self.tail);
        // The ring still holds what is outstanding as it was built, so the length can be read there.
        let Some(start) = completed_counter(completed, self.head, outstanding) else { return };
        let end = start.wrapping_add(self.blocks_at(start));
        if end.wrapping_sub(self.tail) <= outstanding {
            self.tail_extra = self.extra_behind(start, end);
            self.tail = end;
        }
    }

    /// Length in blocks of the request at counter `index`, from its control segment.
    pub(super) fn blocks_at(&self, index: u32) -> u32 {
        let offset = (index & self.mask) as usize * WQEBB_SIZE;
        // SAFETY: the masked index lies within the ring, which this queue alone writes.
        let ds = unsafe { self.ring.add(offset + 7).read() } & MAX_DS;
        u32::from(ds).div_ceil(4)
    }
}
