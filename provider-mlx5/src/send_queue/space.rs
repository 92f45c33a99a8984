//! How far the ring may be filled: blocks that are free, and requests that may be outstanding.
//!
//! The fast path compares with one limit, [`Next::limit`]. It is computed here from the tail, which
//! in turn is computed from the poller's published progress.

use super::batch::high;
use super::ring::Next;
use super::wide::{copies_pairs, few_rounds};
use super::{RequestId, SendQueue, Transport, place};
use crate::format::{OCTOWORD, WQEBB_SIZE};
use crate::hint::likely;
use crate::mmio::Register;
use crate::queue_state::completed_counter;
use crate::request::PostError;
use crate::user_index::SENDS;

/// Where the next request goes, and the fence that the request before it requires.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Blocks filled so far. All counters wrap.
    pub(super) head: u32,
    /// Mode bits that the request gets because of the one before it.
    pub(super) fence: u8,
}

/// A cache of how many requests are outstanding from the tail to a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    requests: u32,
    /// Between tail and head, or in a batch after it.
    end: u32,
}

impl Counted {
    /// None, up to a counter.
    pub(super) fn up_to(end: u32) -> Self {
        Self { requests: 0, end }
    }
}

impl Next {
    /// The place, in bytes.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The place and the limit, in bytes.
    #[inline(always)]
    pub(super) fn at_and_limit(&self) -> (usize, usize) {
        (self.at, self.limit)
    }

    /// The counter, where a control segment's first word has it. Within the limit it does not
    /// overflow.
    #[inline(always)]
    pub(super) fn place(&self) -> u32 {
        place_at(self.at)
    }

    /// Whether requests of so many bytes can be written.
    #[inline(always)]
    pub(super) fn has_bytes(&self, bytes: usize) -> bool {
        likely(self.at + bytes <= self.limit)
    }

    /// Whether so many blocks can be written.
    #[inline(always)]
    pub(super) fn has(&self, blocks: usize) -> bool {
        // Both are whole blocks, and for one block this takes an instruction less.
        if blocks == 1 { likely(self.at < self.limit) } else { self.has_bytes(blocks * WQEBB_SIZE) }
    }

    /// Whether a request of so many octowords can be written. Place and limit are whole blocks, so
    /// its blocks need not be known.
    #[inline(always)]
    pub(super) fn has_octowords(&self, octowords: usize) -> bool {
        self.has_bytes(octowords * OCTOWORD)
    }

    /// Takes the id of the next request, before the queue moves on. A program's own implementation
    /// may panic, and the fast path may be open for that request alone.
    #[inline(always)]
    pub(super) fn take<I: RequestId>(&mut self, wr_id: I) -> u64 {
        let closes = Closes(self);
        let wr_id = wr_id.take();
        core::mem::forget(closes);
        wr_id
    }

    /// The place, in bytes, if the fast path takes a template there. Of one block the compiler
    /// knows how many bytes are needed. Of several it knows that once they fit, and works the place
    /// out from their end, which it has to have.
    #[inline(always)]
    pub(super) fn place_for<const N: usize>(&self, needed: Needed<N>) -> Option<usize> {
        match N {
            1 => self.has(1).then_some(self.at),
            2..=MAX_DIRECT => {
                let end = self.at + needed.0;
                likely(end <= self.limit).then_some(end.wrapping_sub(N * WQEBB_SIZE))
            }
            _ => None,
        }
    }
}

/// The counter at a place in bytes, see [`Next::place`].
#[inline(always)]
pub(super) fn place_at(at: usize) -> u32 {
    (at as u32).wrapping_mul(place(1) / WQEBB_SIZE as u32)
}

/// Closes the fast path when it is dropped.
struct Closes<'n>(&'n mut Next);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.limit = 0;
    }
}

/// Blocks that go to a BlueFlame register at most.
const MAX_DIRECT: usize = 4;

/// Bytes of the ring that the fast path needs for a template of `N` blocks: more than any ring has
/// where it is not for the template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed<const N: usize>(usize);

impl<const N: usize> Needed<N> {
    /// More than any ring has, and no sum with these overflows.
    pub(super) const NEVER: Self = Self(1 << 24);

    /// Whether the fast path may take the template.
    pub(super) fn is_ever(self) -> bool {
        N == 1 || self.0 != Self::NEVER.0
    }

    /// For a request that takes all blocks.
    pub(super) fn all() -> Self {
        if N <= MAX_DIRECT && copies_pairs() { Self(N * WQEBB_SIZE) } else { Self::NEVER }
    }

    /// The same for a request that takes so many of them.
    #[inline(always)]
    pub(super) fn of(self, blocks: usize) -> Self {
        if blocks == N { self } else { Self::NEVER }
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// The fast path from `at` on: as far as requests may be built without looking at the state or
    /// for more space.
    #[inline(always)]
    pub(super) fn next_at(&self, at: Place) -> Next {
        let is_closed = self.stale | (at.fence != 0);
        let open = self.blocks_open(at.head);
        self.ring.next(at.head, if is_closed { 0 } else { open })
    }

    /// Blocks that the fast path may fill from a counter on; 0 if no request may be posted there.
    #[inline(always)]
    pub(super) fn blocks_open(&self, head: u32) -> u32 {
        if self.requests_open(head) > 0 { self.open_from(head, 0) } else { 0 }
    }

    /// Blocks that the fast path may fill from a counter on, at which a request may be posted. A
    /// request of `blocks` blocks is built at once: whatever their number, it is one request.
    #[inline(always)]
    fn open_from(&self, head: u32, blocks: u32) -> u32 {
        let free = self.free_at(head).min(self.ring.before_end(head));
        free.min(self.bound.wrapping_sub(head).max(blocks))
    }

    /// Free blocks at a counter, as far as the tail is known.
    #[inline(always)]
    fn free_at(&self, head: u32) -> u32 {
        self.tail.wrapping_add(self.ring.blocks()).wrapping_sub(head)
    }

    /// A lower bound of the requests that may be posted at a counter.
    #[inline(always)]
    fn requests_open(&self, head: u32) -> u32 {
        (self.bound.wrapping_sub(head) as i32).max(0) as u32
    }

    /// Requests that may be posted at a counter, as far as the tail is known.
    #[inline(always)]
    pub(super) fn requests_left(&mut self, head: u32) -> u32 {
        let is_past = (self.counted.end.wrapping_sub(head) as i32) > 0;
        if is_past {
            self.counted = Counted::up_to(self.tail);
        }
        self.counted.requests += self.requests_in(self.counted.end, head);
        self.counted.end = head;
        // Another program may have written the ring, so it is not trusted.
        self.max_requests.saturating_sub(self.counted.requests)
    }

    /// Raises the bound by counting the requests before a counter.
    #[inline(always)]
    fn count(&mut self, head: u32) {
        self.bound = head.wrapping_add(self.requests_left(head));
    }

    /// Requests in the ring between two counters at which requests start.
    #[inline(always)]
    pub(super) fn requests_in(&self, start: u32, end: u32) -> u32 {
        let (mut at, mut requests) = (start, 0);
        while (end.wrapping_sub(at) as i32) > 0 {
            few_rounds();
            at = at.wrapping_add(self.ring.blocks_at(at).max(1));
            requests += 1;
        }
        requests
    }

    /// Whether a request of `blocks` blocks may be built at a counter, as far as is known.
    #[inline(always)]
    fn has_space(&self, head: u32, blocks: u32) -> bool {
        !self.stale & (self.free_at(head) >= blocks) & (self.requests_open(head) > 0)
    }

    /// Makes sure that `blocks` blocks from a counter on are free for a request. The head does not
    /// move, because a batch may be forgotten.
    #[inline(always)]
    pub(super) fn claim(&mut self, head: u32, blocks: u32) -> Result<(), PostError> {
        if self.has_space(head, blocks) { Ok(()) } else { self.find_space(head, blocks) }
    }

    #[inline(never)]
    fn find_space(&mut self, head: u32, blocks: u32) -> Result<(), PostError> {
        self.search(head, blocks)
    }

    #[inline(always)]
    fn search(&mut self, head: u32, blocks: u32) -> Result<(), PostError> {
        self.retire();
        if self.requests_open(head) == 0 && self.free_at(head) >= blocks {
            self.count(head);
        }
        if self.has_space(head, blocks) { Ok(()) } else { self.count_space(head, blocks) }
    }

    /// [`SendQueue::find_space`] by the QP's state, what was granted, and the requests in the ring.
    #[cold]
    #[inline(never)]
    fn count_space(&mut self, head: u32, blocks: u32) -> Result<(), PostError> {
        self.look_at_state()?;
        if self.free_at(head) < blocks {
            return Err(PostError::Full);
        }
        self.follow_grant();
        if self.requests_open(head) > 0 {
            return Ok(());
        }
        self.count(head);
        if self.requests_open(head) > 0 { Ok(()) } else { Err(PostError::Full) }
    }

    /// Finds space for a request of `blocks` blocks at the head, and takes its id, which is 0 if
    /// there is no space. (A pair goes through registers, a result with an id through memory.)
    #[cold]
    #[inline(never)]
    pub(super) fn find_and_take<I: RequestId>(
        &mut self,
        wr_id: I,
        blocks: u32,
    ) -> (u64, Result<(), PostError>) {
        self.end_batch();
        match self.claim(self.head, blocks) {
            Ok(()) => (wr_id.take(), Ok(())),
            Err(reason) => (0, Err(reason)),
        }
    }

    /// Whether the fast path is open for a request of one block.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.next.has(1)
    }

    /// Opens the fast path for one request of `blocks` blocks, where there is space: requests have
    /// completed, or those before have fewer blocks than they might. Requests that were built step
    /// by step and not published may be before it; the last of them has its data. Returns whether
    /// it did.
    ///
    /// Then [`recompute_fast_limit`](Self::recompute_fast_limit) has to follow, unless a request of
    /// exactly `blocks` blocks was posted, or a request was built step by step: the path stays open
    /// for the others, and requests of fewer blocks would be more than may be outstanding.
    #[doc(hidden)]
    #[inline(never)]
    pub fn reopen(&mut self, blocks: u32) -> bool {
        let Self { unpublished, fence, .. } = *self;
        let is_closed = self.batch_start.is_open | (unpublished != 0) | (fence != 0);
        if is_closed || !self.posts_directly() {
            return false;
        }
        let head = self.counter_at(self.next.at);
        if self.ring.is_start(head) {
            // The path ends with the ring.
            if head != self.head {
                return false;
            }
            self.next = self.ring.next(head, 0);
            self.batch_start.high = high(head);
        }
        self.open(head, self.next.at, blocks)
    }

    /// Opens the fast path up to the end of a request of `blocks` blocks at a counter, at least.
    /// `at` is [`Next::at`] there. Returns whether the blocks are free, and one request more may be
    /// posted.
    #[inline(always)]
    pub(super) fn open(&mut self, head: u32, at: usize, blocks: u32) -> bool {
        self.retire();
        if self.requests_open(head) == 0 {
            // Out of line, so that no register has to be saved where nothing is counted.
            return self.count_and_open(head, at, blocks);
        }
        self.open_counted(head, at, blocks)
    }

    #[inline(never)]
    fn count_and_open(&mut self, head: u32, at: usize, blocks: u32) -> bool {
        self.count(head);
        self.requests_open(head) > 0 && self.open_counted(head, at, blocks)
    }

    /// [`SendQueue::open`] at a counter at which a request may be posted.
    #[inline(always)]
    fn open_counted(&mut self, head: u32, at: usize, blocks: u32) -> bool {
        let open = self.open_from(head, blocks);
        let has_space = !self.stale & (open >= blocks);
        if has_space {
            self.next.limit = at + open as usize * WQEBB_SIZE;
        }
        has_space
    }

    /// The fast path of a batch that is at [`Next::at`], with space for a request of `blocks`
    /// blocks, if it can take the request.
    #[inline(never)]
    pub(super) fn open_at(&mut self, at: usize, blocks: u32) -> Result<Next, PostError> {
        let at = self.place_at(at);
        self.claim(at.head, blocks)?;
        self.set_batch_start(at);
        let open = if at.fence == 0 { self.open_from(at.head, blocks) } else { 0 };
        Ok(self.ring.next(at.head, open))
    }

    /// Computes how many requests may be outstanding. The number only grows until the queue is
    /// reset.
    pub(super) fn follow_grant(&mut self) {
        let granted = self.granted.saturating_sub(self.ring.handle().held(SENDS));
        // A request has a block at least.
        self.max_requests = granted.min(self.ring.blocks());
        self.raise_bound();
    }

    fn raise_bound(&mut self) {
        let bound = self.tail.wrapping_add(self.max_requests);
        if (bound.wrapping_sub(self.bound) as i32) > 0 {
            self.bound = bound;
        }
    }

    /// Whether the QP's state lets requests be posted.
    #[inline(always)]
    pub(super) fn look_at_state(&mut self) -> Result<(), PostError> {
        if !self.state().can_send() {
            return Err(self.state().refusal());
        }
        self.stale = false;
        Ok(())
    }

    /// Removes the marks of `blocks` blocks from the head on, which a batch that is gone has made.
    #[cold]
    #[inline(never)]
    pub(super) fn forget_batch(&mut self, blocks: u32) {
        self.batch_start.is_open = false;
        self.bound = self.tail.wrapping_add(self.max_requests);
        self.counted = Counted::up_to(self.tail);
        for block in 0..blocks {
            let counter = self.head.wrapping_add(block);
            self.state().set_send_end(counter, None);
            self.state().forget_encoded(counter);
        }
    }

    /// Removes the marks of a batch that was forgotten, if there was one.
    #[inline(always)]
    pub(super) fn end_batch(&mut self) {
        if self.batch_start.is_open {
            self.forget_batch(self.free_at(self.head));
        }
    }

    /// Computes the tail from the poller's published progress. Requests that a batch has built
    /// after the head cannot have completed, whatever the device says. Returns whether there was
    /// progress.
    #[inline]
    pub(super) fn retire(&mut self) -> bool {
        let completed = self.state().completed_send();
        if completed == self.seen {
            return false;
        }
        self.seen = completed;
        let outstanding = self.head.wrapping_sub(self.tail);
        // Outstanding requests are still in the ring as they were built, so their length can be
        // read there.
        let Some(start) = completed_counter(completed, self.head, outstanding) else {
            return false;
        };
        let end = start.wrapping_add(self.ring.blocks_at(start));
        let is_outstanding = end.wrapping_sub(self.tail) <= outstanding;
        if is_outstanding {
            self.move_tail(end);
        }
        is_outstanding
    }

    /// Takes the requests from the tail to `end` off those that were counted.
    #[inline(never)]
    fn count_retired(&mut self, end: u32) {
        let retired = self.requests_in(self.tail, end);
        self.counted.requests = self.counted.requests.saturating_sub(retired);
    }

    #[inline(always)]
    fn move_tail(&mut self, end: u32) {
        let is_counted = (self.counted.end.wrapping_sub(end) as i32) > 0;
        if is_counted {
            self.count_retired(end);
        } else {
            self.counted = Counted::up_to(end);
        }
        self.tail = end;
        self.raise_bound();
    }
}
