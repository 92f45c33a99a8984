//! Requests built one after the other, to be published together.

#![allow(unsafe_code)]

use super::encode::{Request, Wqe, first_word, short_blocks};
use super::payload::Payload;
use super::ring::Next;
use super::space::Place;
use super::wide::{Wide, WideBlock, or, store_blocks, wide};
use super::{Block, Carries, Operation, SendQueue, Takes, Transport};
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};
use crate::sync::{AtomicU64, Ordering};

/// Requests being built into a send queue, published together.
///
/// Dropping it leaves what was built in the queue, unpublished: a later [`SendQueue::publish`], batch or post rings
/// for it. Nothing of it reaches the queue before that: `mem::forget` of a batch has the
/// effect of [`Batch::abort`].
#[derive(Debug)]
#[must_use = "requests reach the device when they are published"]
pub struct Batch<'q, T: Transport, R: Register> {
    queue: &'q mut SendQueue<T, R>,
    front: Front,
    base: Wide,
}

/// Where the next requests go. A copy, never lent by reference, so that it can stay in registers.
#[derive(Clone, Copy, Debug)]
struct Front {
    /// The next block, its work request id, and its counter's 16 bits, where a control segment's first word has them.
    block: *mut Block,
    entry: *const AtomicU64,
    place: u32,
    /// [`SendQueue::limit`], as a block.
    limit: *mut Block,
}

/// A block's address, in blocks.
#[inline(always)]
fn number_of(block: *mut Block) -> u32 {
    (block.addr() / size_of::<Block>()) as u32
}

/// What one block adds to [`Front::place`].
const NEXT_PLACE: u32 = 1 << 8;

impl Front {
    /// Whether `blocks` blocks may be written.
    #[inline(always)]
    fn has(&self, blocks: usize) -> bool {
        // A comparison of addresses is the shorter question.
        if blocks == 1 { self.block != self.limit } else { self.has_many(blocks) }
    }

    /// [`Front::has`] of a number that the compiler does not know.
    #[inline(always)]
    fn has_many(&self, blocks: usize) -> bool {
        self.limit.addr() - self.block.addr() >= blocks * size_of::<Block>()
    }
}

/// Where a batch began. It is in the queue, where it does not compete for registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// The place of the first request since [`Front`] was made.
    from: Place,
    /// What a block's address, in blocks, is less than its counter.
    origin: u32,
    /// Whether there is a batch, or one was forgotten: then blocks behind the head may be noted as
    /// inner ones.
    pub(super) is_open: bool,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Where a batch begins: where a post would be written, if the queue is open for one.
    #[inline(always)]
    fn begin(&mut self) -> Front {
        let (head, block) = (self.head, self.next.block);
        let open = self.limit.wrapping_sub(head);
        if open == 0 {
            crate::hint::seldom();
            return self.resume(self.place());
        }
        self.limit = head;
        self.ahead.from = Place { head, fence: 0 };
        self.ahead.origin = head.wrapping_sub(number_of(block));
        let limit = block.wrapping_add(open as usize);
        Front { block, entry: self.next.entry, place: super::place(head), limit }
    }

    /// [`SendQueue::settle`] behind a batch that was published: what it has left is open for posts.
    #[inline(always)]
    fn settle_at(&mut self, front: Front) {
        self.limit = self.head;
        if self.posts_directly() {
            let open = (front.limit.addr() - front.block.addr()) / size_of::<Block>();
            self.limit = self.head.wrapping_add(open as u32);
            self.next = Next { block: front.block, entry: front.entry };
        }
    }

    /// Where a batch goes on.
    #[inline(always)]
    fn resume(&mut self, from: Place) -> Front {
        let limit = self.open_until(from);
        let block = self.ring.block(from.head);
        self.ahead.from = from;
        self.ahead.origin = from.head.wrapping_sub(number_of(block));
        let limit = block.wrapping_add(limit.wrapping_sub(from.head) as usize);
        let entry = self.state().send_entry(from.head);
        Front { block, entry, place: super::place(from.head), limit }
    }

    /// The counter of a batch's block.
    #[inline(always)]
    fn counter_of(&self, block: *mut Block) -> u32 {
        self.ahead.origin.wrapping_add(number_of(block))
    }

    /// Where a batch is whose next block is this one.
    #[inline(always)]
    fn ahead_at(&self, block: *mut Block) -> Place {
        let (head, from) = (self.counter_of(block), self.ahead.from);
        // A fence is for the request at `from`.
        Place { head, fence: if head == from.head { from.fence } else { 0 } }
    }

    /// Makes what a batch has built the queue's own.
    #[inline(always)]
    fn take_over(&mut self, block: *mut Block) {
        let (start, next) = (self.head, self.ahead_at(block));
        self.ahead.is_open = false;
        if next.head == start {
            return self.settle();
        }
        self.move_to(next);
        self.note_unpublished(start);
    }

    /// [`SendQueue::take_over`], out of line: where a batch is dropped its place has to stay in registers, too.
    #[inline(never)]
    fn take_over_dropped(&mut self, block: *mut Block) {
        self.take_over(block);
    }

    /// [`SendQueue::build`], out of line, for a batch whose next block is `block`.
    ///
    /// # Safety
    /// As for [`Batch::build`].
    #[inline(never)]
    unsafe fn build_general<O: Operation, P: Payload>(
        &mut self,
        block: *mut Block,
        wr_id: u64,
        operation: O,
        payload: P,
        size: usize,
        flags: PostFlags,
    ) -> Result<Front, PostError> {
        let at = self.ahead_at(block);
        let request = Request { operation, payload, size, flags };
        // SAFETY: the caller's promise is the same.
        let next = unsafe { self.build(at, wr_id, request) }?;
        Ok(self.resume(next))
    }

    /// [`SendQueue::build_image`], out of line, for a batch whose next block is `block`.
    #[inline(never)]
    fn build_image_at(
        &mut self,
        block: *mut Block,
        wr_id: u64,
        image: &[WideBlock],
        fence_mask: u64,
    ) -> Result<Front, PostError> {
        let at = self.ahead_at(block);
        let next = self.build_image(at, wr_id, image, fence_mask)?;
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
        block: *mut Block,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<Front, PostError> {
        let size = payload.octowords(&self.limits)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_general(block, wr_id, operation, payload, size, flags) }
    }
}

impl<'q, T: Transport, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue<T, R>) -> Self {
        queue.end_batch();
        // If the batch is forgotten, the next request has to take back what it noted.
        queue.ahead.is_open = true;
        let front = queue.begin();
        let base = queue.base;
        Self { queue, front, base }
    }

    /// Builds one request behind those built before.
    ///
    /// # Errors
    /// Any [`PostError`] but `BadState`. Nothing has been stored then, and the requests built before stand.
    ///
    /// # Safety
    /// The memory that `payload` names stays registered, and is not used against the device's reading (or, for reads and
    /// atomics, writing) it, until the request has completed or the QP has been destroyed. Inline data and `()` demand
    /// nothing.
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

    /// [`Batch::build`] without the promise that the queue's service has the operation.
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
        let block = self.front.block;
        let Some(size) = payload.usual(&self.queue.limits) else {
            crate::hint::seldom();
            let (queue, payload) = (&mut *self.queue, payload.any());
            // SAFETY: passed on to the caller.
            let front = unsafe { queue.build_unusual(block, wr_id, operation, payload, flags) }?;
            self.go_on(front);
            return Ok(());
        };
        // Not by `try_direct`: to look at its answer costs two instructions here.
        let request = Request { operation, payload, size, flags };
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.front.has(short_blocks::<O>()) {
                // SAFETY: the blocks are free, and behind each other.
                unsafe { self.write(wr_id, request, short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.front.has(request.blocks()) {
            // SAFETY: as above.
            unsafe { self.write(wr_id, request, request.blocks()) };
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: passed on to the caller.
        let front = unsafe {
            self.queue.build_general(block, wr_id, operation, payload.again(), size, flags)
        }?;
        self.go_on(front);
        Ok(())
    }

    /// [`Batch::build_any`], as far as it is the fast path. `false`, and nothing has changed, if
    /// that has to be called.
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
        let size = payload.usual(&self.queue.limits);
        let (Some(size), Ok(())) = (size, self.queue.check(operation)) else { return false };
        // SAFETY: passed on to the caller.
        unsafe { self.try_direct(wr_id, Request { operation, payload, size, flags }) }
    }

    /// Builds a request for which nothing has to be looked up; whether it is one.
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
            if is_direct && self.front.has(short_blocks::<O>()) {
                // SAFETY: the blocks are free, and behind each other.
                unsafe { self.write(wr_id, request, short_blocks::<O>()) };
                return true;
            }
        } else if is_direct && self.front.has(request.blocks()) {
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
        let control = or(wide(request.control(self.front.place)), self.base);
        let wqe = request.with_control(control, self.queue.number);
        // SAFETY: the caller vouches for the blocks.
        unsafe {
            match blocks {
                1 => self.put(wr_id, wqe, 1),
                2 => self.put(wr_id, wqe, 2),
                3 => self.put(wr_id, wqe, 3),
                4 => self.put(wr_id, wqe, 4),
                _ => {
                    crate::hint::seldom();
                    wqe.store_long(self.front.block);
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
            wqe.store_blocks(self.front.block, blocks);
            self.enter(wr_id, blocks);
        }
    }

    /// Stores a template's blocks, and moves on over them.
    ///
    /// # Safety
    /// The blocks are free, and behind each other.
    #[inline(always)]
    pub(super) unsafe fn store<const N: usize>(&mut self, wr_id: u64, blocks: &[WideBlock; N]) {
        // SAFETY: passed on to the caller.
        unsafe {
            store_blocks(self.front.block, blocks);
            self.enter(wr_id, N);
        }
    }

    /// Rings the doorbell for everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        let front = self.front;
        let queue = self.commit();
        if queue.has_unpublished() {
            queue.ring_last();
            queue.settle_at(front);
        }
    }

    /// Forgets the requests of this batch: the queue is as it was before.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the borrow is moved out of it once.
        let queue = unsafe { core::ptr::read(&this.queue) };
        let built = queue.counter_of(this.front.block).wrapping_sub(queue.head);
        queue.forget_batch(built);
        queue.settle();
    }

    /// The queue's counter behind the requests built so far.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.queue.ahead_at(self.front.block).head
    }

    #[inline(always)]
    pub(super) fn queue(&self) -> &SendQueue<T, R> {
        self.queue
    }

    /// Whether `blocks` blocks can be written at [`Batch::block`], behind each other.
    #[inline(always)]
    pub(super) fn has(&self, blocks: usize) -> bool {
        self.front.has(blocks)
    }

    /// As [`Front::has_many`].
    #[inline(always)]
    pub(super) fn has_many(&self, blocks: usize) -> bool {
        self.front.has_many(blocks)
    }

    /// Builds a template's request wherever there is space.
    #[inline(always)]
    pub(super) fn build_image(
        &mut self,
        wr_id: u64,
        image: &[WideBlock],
        fence_mask: u64,
    ) -> Result<(), PostError> {
        let front = self.queue.build_image_at(self.front.block, wr_id, image, fence_mask)?;
        self.go_on(front);
        Ok(())
    }

    /// A control segment that says `own` of its request, for the next one.
    #[inline(always)]
    pub(super) fn stamp(&self, own: Wide) -> Wide {
        or(or(own, wide([first_word(self.front.place), 0])), self.base)
    }

    /// Enters a request that was written into `blocks` blocks, and moves on over it.
    ///
    /// # Safety
    /// The blocks are free, and behind each other.
    #[inline(always)]
    unsafe fn enter(&mut self, wr_id: u64, blocks: usize) {
        let (queue, front) = (&*self.queue, &mut self.front);
        // SAFETY: an entry of the table, which the queue's handle keeps alive.
        unsafe {
            (*front.entry).store(wr_id, Ordering::Relaxed);
            let end = queue.counter_of(front.block).wrapping_add(blocks as u32);
            queue.ring.note_inner(front.entry, blocks, end);
        }
        front.block = front.block.wrapping_add(blocks);
        front.entry = front.entry.wrapping_add(blocks);
        // The counter's 16 bits run over at the ring's end if at all, where none are left and this is made anew.
        front.place = front.place.wrapping_add(blocks as u32 * NEXT_PLACE);
    }

    /// Runs `call` on a copy of the batch, and goes on where that is then.
    #[inline(always)]
    pub(super) fn lend<X>(&mut self, call: impl FnOnce(&mut Self) -> X) -> X {
        // SAFETY: the exclusive borrow is used through the copy alone while `call` runs, and the copy is not dropped.
        let queue = unsafe { core::ptr::read(&self.queue) };
        let copy = Self { queue, front: self.front, base: self.base };
        let mut copy = core::mem::ManuallyDrop::new(copy);
        let result = call(&mut copy);
        self.go_on(copy.front);
        result
    }

    /// Field by field: a copy of the whole would go by way of memory.
    #[inline(always)]
    fn go_on(&mut self, front: Front) {
        self.front.block = front.block;
        self.front.entry = front.entry;
        self.front.place = front.place;
        self.front.limit = front.limit;
    }

    /// Leaves what was built to the queue.
    #[inline(always)]
    fn commit(self) -> &'q mut SendQueue<T, R> {
        let block = self.front.block;
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the borrow is moved out of it once.
        let queue = unsafe { core::ptr::read(&this.queue) };
        queue.take_over(block);
        queue
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.take_over_dropped(self.front.block);
    }
}
