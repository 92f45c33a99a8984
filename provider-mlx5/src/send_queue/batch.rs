//! Batches: requests that are built one after the other and published together.

#![allow(unsafe_code)]

use core::mem::ManuallyDrop;

use super::encode::{Request, Wqe, first_word, header, short_blocks};
use super::payload::Payload;
use super::post::Next;
use super::space::Place;
use super::wide::{Wide, WideBlock, copy_request, or, store_block, wide};
use super::{Carries, Operation, SendQueue, Takes, Transport};
use crate::format::{Fence, WQEBB_SIZE};
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};
use crate::sync::Ordering;

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
    /// The upper half of the counter.
    high: u32,
    /// Whether there is a batch, or one was forgotten. Then blocks after the head may be marked as
    /// not the first of a request.
    pub(super) is_open: bool,
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
        self.next.limit = 0;
        self.set_batch_start(Place { head: self.head, fence: 0 });
        next
    }

    /// Records where a batch begins or continues.
    #[inline(always)]
    fn set_batch_start(&mut self, from: Place) {
        self.batch_start.from = from;
        self.batch_start.high = from.head & !u32::from(u16::MAX);
    }

    /// [`SendQueue::recompute_fast_limit`] after a batch was published: posts may use the rest of
    /// the batch's limit.
    #[inline(always)]
    fn set_fast_limit(&mut self, next: Next) {
        self.next.limit = 0;
        if self.posts_directly() {
            self.next = next;
        }
    }

    /// The position at which a batch continues.
    #[inline(always)]
    pub(super) fn resume(&mut self, from: Place) -> Next {
        self.set_batch_start(from);
        self.next_at(from)
    }

    /// The counter of a batch whose position is [`Next::at`].
    #[inline(always)]
    fn counter_at(&self, at: usize) -> u32 {
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

    /// [`SendQueue::build`], out of line, for a batch that is at [`Next::at`].
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[inline(never)]
    unsafe fn build_general<O: Operation, P: Payload>(
        &mut self,
        at: usize,
        wr_id: u64,
        operation: O,
        payload: P,
        octowords: usize,
        flags: PostFlags,
    ) -> Result<Next, PostError> {
        let at = self.place_at(at);
        let request = Request { operation, payload, octowords, flags };
        // SAFETY: the caller's promise is the same.
        let next = unsafe { self.build(at, wr_id, request) }?;
        Ok(self.resume(next))
    }

    /// [`SendQueue::build_image`], out of line, for a batch that is at [`Next::at`].
    #[inline(never)]
    fn build_image_at(
        &mut self,
        at: usize,
        wr_id: u64,
        own: Wide,
        image: &[WideBlock],
    ) -> Result<Next, PostError> {
        let at = self.place_at(at);
        let next = self.build_image(at, wr_id, own, image)?;
        Ok(self.resume(next))
    }

    /// [`SendQueue::build_general`] of data that may be empty, have empty SGEs, or be refused.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[cold]
    #[inline(never)]
    unsafe fn build_unusual<O: Operation, P: Payload>(
        &mut self,
        at: usize,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<Next, PostError> {
        let octowords = header::<O>() + payload.octowords(&self.limits)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_general(at, wr_id, operation, payload, octowords, flags) }
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
            queue.next.limit = 0;
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

    /// Builds one request after those built before.
    ///
    /// # Errors
    /// Any [`PostError`] but `BadState`. Then nothing has been stored, and the requests built
    /// before remain.
    ///
    /// # Safety
    /// Until the request has completed or the QP has been destroyed, the memory that `payload`
    /// names stays registered; no code writes it meanwhile, nor, for reads and atomics, accesses it
    /// at all. Inline data and `()` demand nothing.
    #[inline(always)]
    pub unsafe fn build<O, P>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_any(wr_id, operation, payload, flags) }
    }

    /// [`Batch::build`] without the compile-time check that the queue's service has the operation.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_any<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.queue.check(operation)?;
        let at = self.next.at;
        let Some(octowords) = payload.usual(&self.queue.limits, header::<O>()) else {
            crate::hint::cold_path();
            let (queue, payload) = (&mut *self.queue, payload.any());
            // SAFETY: passed on to the caller.
            let next = unsafe { queue.build_unusual(at, wr_id, operation, payload, flags) }?;
            self.go_on(next);
            return Ok(());
        };
        // Does not call `try_direct`, because testing its result costs two instructions here.
        let request = Request { operation, payload, octowords, flags };
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: the blocks are free, and behind each other.
                unsafe { self.write(wr_id, request, short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: as above.
            unsafe { self.write(wr_id, request, request.blocks()) };
            return Ok(());
        }
        crate::hint::cold_path();
        // SAFETY: passed on to the caller.
        let next = unsafe {
            self.queue.build_general(at, wr_id, operation, payload.again(), octowords, flags)
        }?;
        self.go_on(next);
        Ok(())
    }

    /// The fast path of [`Batch::build_any`]. Returns `false`, with nothing changed, if the caller
    /// has to call `build_any` instead.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn build_fast<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        let octowords = payload.usual(&self.queue.limits, header::<O>());
        let (Some(octowords), Ok(())) = (octowords, self.queue.check(operation)) else {
            return false;
        };
        // SAFETY: passed on to the caller.
        unsafe { self.try_direct(wr_id, Request { operation, payload, octowords, flags }) }
    }

    /// Builds the request if the fast path can; returns whether it did.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[inline(always)]
    unsafe fn try_direct<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        request: Request<O, P>,
    ) -> bool {
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: the blocks are free, and behind each other.
                unsafe { self.write(wr_id, request, short_blocks::<O>()) };
                return true;
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: as above.
            unsafe { self.write(wr_id, request, request.blocks()) };
            return true;
        }
        false
    }

    /// Writes a request of `blocks` blocks, and moves on over it.
    ///
    /// # Safety
    /// The blocks are free, and behind each other.
    #[inline(always)]
    unsafe fn write<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        request: Request<O, P>,
        blocks: usize,
    ) {
        let control = or(wide(request.control(self.next.place())), self.base);
        let wqe = request.with_control(control, self.queue.number);
        // SAFETY: the caller guarantees that the blocks are free.
        unsafe {
            match blocks {
                1 => self.put(wr_id, wqe, 1),
                2 => self.put(wr_id, wqe, 2),
                3 => self.put(wr_id, wqe, 3),
                4 => self.put(wr_id, wqe, 4),
                _ => {
                    crate::hint::cold_path();
                    wqe.store_long(self.next.block());
                    self.enter(wr_id, blocks);
                }
            }
        }
    }

    /// Stores a request of `blocks` blocks, a constant, and moves on over it.
    ///
    /// # Safety
    /// It has so many. They are free, and behind each other.
    #[inline(always)]
    unsafe fn put<O: Operation, P: Payload>(&mut self, wr_id: u64, wqe: Wqe<O, P>, blocks: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            wqe.store_blocks(self.next.block(), blocks);
            self.enter(wr_id, blocks);
        }
    }

    /// Stores a template's blocks, and moves on over them.
    ///
    /// # Safety
    /// The blocks are free, and behind each other.
    #[inline(always)]
    pub(super) unsafe fn store<const N: usize>(
        &mut self,
        wr_id: u64,
        control: Wide,
        image: &[WideBlock; N],
    ) {
        // SAFETY: passed on to the caller.
        unsafe {
            if N == 1 {
                let [_, second, third, fourth] = image[0];
                store_block(self.next.block(), &[control, second, third, fourth]);
            } else {
                copy_request(control, image, (self.next.base, self.next.at));
            }
            self.enter(wr_id, N);
        }
    }

    /// Builds a request that the program has encoded itself, behind those built before. Its index
    /// and the queue's number are entered into the control segment.
    ///
    /// # Errors
    /// [`PostError::BadOpcode`] unless there are as many bytes as the control segment says;
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// As for [`Batch::build`], for all memory that the request names, and whatever it does is what
    /// the program may do with the queue pair.
    #[cold]
    #[inline(never)]
    pub unsafe fn build_encoded(&mut self, wr_id: u64, wqe: &[u8]) -> Result<(), PostError> {
        self.enter_encoded(wr_id, wqe, 0)
    }

    /// [`Batch::build_encoded`] of a change of a memory key, which the next request waits for.
    ///
    /// # Errors
    /// As for [`Batch::build_encoded`].
    ///
    /// # Safety
    /// As for [`Batch::build_encoded`].
    #[cold]
    #[inline(never)]
    pub unsafe fn build_key_change(&mut self, wr_id: u64, wqe: &[u8]) -> Result<(), PostError> {
        self.enter_encoded(wr_id, wqe, Fence::SMALL.0)
    }

    /// Rings the doorbell for everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        let (next, mut this) = (self.next, ManuallyDrop::new(self));
        let queue = &mut *this.queue;
        if queue.end_batch_at(next.at) {
            queue.publish_batch(next);
        } else {
            queue.recompute_fast_limit();
            queue.publish_built();
        }
    }

    /// Forgets the requests of this batch: the queue is as it was before.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {
        let (at, mut this) = (self.next.at, ManuallyDrop::new(self));
        let queue = &mut *this.queue;
        let built = queue.counter_at(at).wrapping_sub(queue.head);
        queue.forget_batch(built);
        queue.recompute_fast_limit();
    }

    /// The queue's counter after the requests built so far.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.queue.place_at(self.next.at).head
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

    /// Builds a template's request outside the fast path.
    #[inline(always)]
    pub(super) fn build_image(
        &mut self,
        wr_id: u64,
        own: Wide,
        image: &[WideBlock],
    ) -> Result<(), PostError> {
        let next = self.queue.build_image_at(self.next.at, wr_id, own, image)?;
        self.go_on(next);
        Ok(())
    }

    /// The control segment of the next request, with `own` as the request's part of it.
    #[inline(always)]
    pub(super) fn stamp(&self, own: Wide) -> Wide {
        or(or(own, wide([first_word(self.next.place()), 0])), self.base)
    }

    /// Enters a request that was written into `blocks` blocks, and advances past it.
    ///
    /// # Safety
    /// The blocks are free, and behind each other.
    #[inline(always)]
    unsafe fn enter(&mut self, wr_id: u64, blocks: usize) {
        let entry = self.next.entry;
        self.next.pass(blocks);
        // SAFETY: an entry of the table, which the queue's handle keeps alive.
        unsafe {
            (*entry).store(wr_id, Ordering::Relaxed);
            self.queue.ring.note_inner(entry, blocks, self.queue.counter_at(self.next.at));
        }
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

    /// Field by field, because copying the struct would go through memory.
    #[inline(always)]
    pub(super) fn go_on(&mut self, next: Next) {
        self.next.base = next.base;
        self.next.entry = next.entry;
        self.next.at = next.at;
        self.next.limit = next.limit;
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.take_over_dropped(self.next.at);
    }
}
