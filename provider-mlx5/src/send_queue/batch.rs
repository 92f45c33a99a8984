//! Batches: requests that are built one after the other and published together.

use core::mem::{ManuallyDrop, MaybeUninit};

use super::encode::{Promised, Request};
use super::payload::{Payload, SgeList};
use super::ring::Next;
use super::space::Place;
use super::wide::{Wide, WideBlock, keep_apart};
use super::{Operation, SendQueue, Template, Transport};
use crate::format::WQEBB_SIZE;
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};

/// Requests being built into a send queue, published together.
///
/// Dropping a batch leaves its requests in the queue, unpublished: the doorbell of a later
/// `publish`, batch or post announces them. The queue takes the requests over only when the batch
/// is published or dropped, so `mem::forget` of a batch has the effect of [`Batch::abort`].
#[derive(Debug)]
#[must_use = "requests reach the device when they are published"]
pub struct Batch<'q, T: Transport, R: Register> {
    queue: &'q mut SendQueue<T, R>,
    next: Next,
    base: Wide,
}

/// The start of a batch. It is in the queue, so that it takes none of the batch's registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchStart {
    /// The place of the first request since [`Next`] was made.
    from: Place,
    /// The upper half of the counter, of which [`Next::at`] has the lower half: of the batch's
    /// place, or the queue's if there is no batch.
    pub(super) high: u32,
    /// Whether there is a batch, or one was forgotten. Then blocks after the head may be marked as
    /// not the first of a request.
    pub(super) is_open: bool,
}

/// The upper half of a counter.
#[inline(always)]
pub(super) fn high(counter: u32) -> u32 {
    counter & !u32::from(u16::MAX)
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// The position at which a batch begins: that of the next post, if the fast path is open.
    #[inline(always)]
    fn begin(&mut self) -> Next {
        let next = self.next;
        if !next.has(1) {
            crate::hint::cold_path();
            return self.resume(self.place());
        }
        self.next.close();
        self.set_batch_start(Place { head: self.head, fence: 0 });
        next
    }

    /// Records where a batch begins or continues.
    #[inline(always)]
    pub(super) fn set_batch_start(&mut self, from: Place) {
        self.batch_start.from = from;
        self.batch_start.high = high(from.head);
    }

    /// [`SendQueue::recompute_fast_limit`] after a batch was published: posts may use the rest of
    /// the batch's limit.
    #[inline(always)]
    fn set_fast_limit(&mut self, next: Next) {
        self.next = next;
        if !self.posts_directly() {
            self.next.close();
        }
    }

    /// The position at which a batch continues.
    #[inline(always)]
    pub(super) fn resume(&mut self, from: Place) -> Next {
        self.set_batch_start(from);
        self.next_at(from)
    }

    /// The counter at [`Next::at`] of the batch, or of the queue's own place.
    #[inline(always)]
    pub(super) fn counter_at(&self, at: usize) -> u32 {
        self.batch_start.high.wrapping_add((at / WQEBB_SIZE) as u32)
    }

    /// The position of a batch at [`Next::at`].
    #[inline(always)]
    pub(super) fn place_at(&self, at: usize) -> Place {
        let (head, from) = (self.counter_at(at), self.batch_start.from);
        // A fence is for the request at `from`.
        Place { head, fence: if head == from.head { from.fence } else { 0 } }
    }

    /// Takes the requests of a batch over into the queue, to be published later.
    #[inline(always)]
    fn take_over(&mut self, at: usize) {
        let start = self.head;
        if self.end_batch_at(at) {
            self.note_unpublished(start);
        } else {
            self.recompute_fast_limit();
        }
    }

    /// Ends a batch, and moves the queue to its end. Returns whether it has built anything.
    #[inline(always)]
    fn end_batch_at(&mut self, at: usize) -> bool {
        let next = self.place_at(at);
        self.batch_start.is_open = false;
        let has_built = next.head != self.head;
        if has_built {
            self.move_to(next);
        }
        has_built
    }

    /// Publishes a batch that ended at the head. Posts may use the rest of its limit.
    #[inline(always)]
    fn publish_batch(&mut self, next: Next) {
        self.last_control = self.last_control();
        self.ring_last();
        self.set_fast_limit(next);
    }

    /// [`SendQueue::take_over`], out of line, so that the place of a batch that is dropped stays in
    /// registers.
    #[inline(never)]
    fn take_over_dropped(&mut self, at: usize) {
        self.take_over(at);
    }

    /// Builds a request of any data, out of line, for a batch that is at [`Next::at`]. (All of
    /// [`Next`] would have to go through memory.)
    #[inline(never)]
    fn build_general<O: Operation, P: Payload>(
        &mut self,
        at: usize,
        limit: usize,
        wr_id: u64,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<Next, PostError> {
        self.check(operation)?;
        let mut list = SgeList::new();
        let request = payload.request(operation, flags, &self.limits, &mut list)?;
        let blocks = request.blocks();
        let mut next = self.ring.next_within(self.counter_at(at), at, limit);
        if !next.has(blocks) {
            next = self.open_at(at, blocks as u32)?;
        }
        if request.is_direct() {
            if let Some(placed) = next.place_any(request) {
                placed.write(wr_id, self.base, self);
                return Ok(next);
            }
        }
        let mut aside = MaybeUninit::uninit();
        let image = request.image(self.number, &mut aside);
        let (flags, fences) = (PostFlags::empty(), request.fences());
        self.build_image_at(next.at(), wr_id, image, flags, fences)
    }

    /// [`SendQueue::build_image`], out of line, for a batch that is at [`Next::at`].
    #[inline(never)]
    fn build_image_at(
        &mut self,
        at: usize,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
        fences: Option<u8>,
    ) -> Result<Next, PostError> {
        let at = self.place_at(at);
        let next = self.build_image(at, wr_id, image, flags, fences)?;
        Ok(self.resume(next))
    }
}

impl<'q, T: Transport, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue<T, R>) -> Self {
        queue.end_batch();
        // If the batch is forgotten, the next request has to undo the marks that it made.
        queue.batch_start.is_open = true;
        let next = queue.begin();
        let base = queue.base;
        Self { queue, next, base }
    }

    /// A batch that continues at `next`: one that was paused, or a new one after requests that were
    /// built step by step from the head on.
    pub(super) fn after_steps(
        queue: &'q mut SendQueue<T, R>,
        next: Next,
        was_paused: bool,
    ) -> Self {
        if !was_paused {
            // As `begin` does.
            queue.batch_start.is_open = true;
            queue.next.close();
            queue.set_batch_start(Place { head: queue.head, fence: 0 });
        }
        let base = queue.base;
        Self { queue, next, base }
    }

    /// Ends the batch, and opens the queue's fast path after it. The queue does not take the
    /// requests over.
    pub(super) fn suspend(self) {
        let mut this = ManuallyDrop::new(self);
        this.queue.next = this.next;
    }

    /// Builds a request with data for which the promise was made, after those built before.
    #[inline(always)]
    pub(super) fn build_promised<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.queue.check(operation)?;
        // Does not call `build_promised_general` for SGEs: with it, sends of 16 cost four
        // instructions more.
        let (at, limit) = self.next.at_and_limit();
        if !P::IS_READ_TO {
            // Inline data. One call for all that the fast path does not take: with several the
            // compiler keeps fewer constants in registers.
            if self.build_promised_fast(wr_id, operation, payload, flags) {
                return Ok(());
            }
            crate::hint::cold_path();
            return self.build_promised_general(wr_id, operation, payload, flags);
        }
        let Some(request) = payload.usual(&operation, flags, &self.queue.limits) else {
            crate::hint::cold_path();
            let payload = payload.again();
            let next = self.queue.build_general(at, limit, wr_id, operation, payload, flags)?;
            self.go_on(next);
            return Ok(());
        };
        // Does not call `try_direct`, because testing its result costs two instructions here.
        let is_direct = request.is_direct();
        if request.is_short() {
            if is_direct {
                if let Some(placed) = self.next.place_short(request) {
                    placed.write(wr_id, self.base, self.queue);
                    return Ok(());
                }
            }
        } else if is_direct {
            if let Some(placed) = self.next.place_any(request) {
                placed.write(wr_id, self.base, self.queue);
                return Ok(());
            }
        }
        crate::hint::cold_path();
        let payload = payload.again();
        let next = self.queue.build_general(at, limit, wr_id, operation, payload, flags)?;
        self.go_on(next);
        Ok(())
    }

    /// [`Batch::build_promised`] of any data, and where space has to be looked for.
    #[inline(always)]
    pub(super) fn build_promised_general<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let (at, limit) = self.next.at_and_limit();
        let next = self.queue.build_general(at, limit, wr_id, operation, payload, flags)?;
        self.go_on(next);
        Ok(())
    }

    /// The fast path of [`Batch::build_promised`]. Returns `false`, with nothing changed, if the
    /// caller has to call that instead.
    #[inline(always)]
    pub(super) fn build_promised_fast<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: Promised<P>,
        flags: PostFlags,
    ) -> bool {
        let Some(request) = payload.usual(&operation, flags, &self.queue.limits) else {
            return false;
        };
        // Otherwise the compiler turns both answers into numbers.
        keep_apart();
        self.queue.check(operation).is_ok() && self.try_direct(wr_id, request)
    }

    /// Builds the request if the fast path can; returns whether it did.
    #[inline(always)]
    fn try_direct<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        request: Promised<Request<O, P>>,
    ) -> bool {
        let is_direct = request.is_direct();
        if request.is_short() {
            if is_direct {
                if let Some(placed) = self.next.place_short(request) {
                    placed.write(wr_id, self.base, self.queue);
                    return true;
                }
            }
        } else if is_direct {
            if let Some(placed) = self.next.place_any(request) {
                placed.write(wr_id, self.base, self.queue);
                return true;
            }
        }
        false
    }

    /// Rings the doorbell for everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        let (next, mut this) = (self.next, ManuallyDrop::new(self));
        let queue = &mut *this.queue;
        if queue.end_batch_at(next.at()) {
            queue.publish_batch(next);
        } else {
            queue.recompute_fast_limit();
            queue.publish_built();
        }
    }

    /// Forgets the requests of this batch: the queue is as it was before.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {
        let (at, mut this) = (self.next.at(), ManuallyDrop::new(self));
        let queue = &mut *this.queue;
        let built = queue.counter_at(at).wrapping_sub(queue.head);
        queue.forget_batch(built);
        queue.recompute_fast_limit();
    }

    /// The queue's counter after the requests built so far.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.queue.place_at(self.next.at()).head
    }

    /// How many requests were built.
    #[inline(always)]
    pub(super) fn built(&self) -> usize {
        self.queue.requests_in(self.queue.head, self.head()) as usize
    }

    #[inline(always)]
    pub(super) fn queue(&self) -> &SendQueue<T, R> {
        self.queue
    }

    #[inline(always)]
    pub(super) fn queue_mut(&mut self) -> &mut SendQueue<T, R> {
        self.queue
    }

    #[inline(always)]
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// Builds a template's request if the fast path can; returns whether it did.
    #[inline(always)]
    pub(super) fn put_template<O: Operation, const N: usize>(
        &mut self,
        wr_id: u64,
        template: Promised<&Template<O, N>>,
        flags: PostFlags,
    ) -> bool {
        let Some(slots) = self.next.open_for(template.needed()) else { return false };
        slots.put(wr_id, template, flags, self.base, self.queue);
        true
    }

    /// Builds a template's request outside the fast path.
    #[inline(always)]
    pub(super) fn build_image(
        &mut self,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let next = self.queue.build_image_at(self.next.at(), wr_id, image, flags, None)?;
        self.go_on(next);
        Ok(())
    }

    /// Runs `call` on a copy of the batch, and continues at the copy's end.
    #[inline(always)]
    pub(super) fn lend<X>(&mut self, call: impl FnOnce(&mut Batch<'_, T, R>) -> X) -> X {
        let copy = Batch { queue: &mut *self.queue, next: self.next, base: self.base };
        // Not dropped, because the original takes the requests over.
        let mut copy = ManuallyDrop::new(copy);
        let result = call(&mut copy);
        let next = copy.next;
        self.go_on(next);
        result
    }

    /// Goes on where a request that was built out of line ends.
    #[inline(always)]
    pub(super) fn go_on(&mut self, next: Next) {
        self.next.go_on(next);
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.take_over_dropped(self.next.at());
    }
}
