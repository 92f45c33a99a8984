//! Requests built one after the other, to be published together.

use super::encode::{Built, NEXT_PLACE, Room, Slot, Wish, full_blocks, is_quick};
use super::payload::Payload;
use super::wide::Wide;
use super::{Block, Carries, Operation, SendQueue, Takes, Transport};
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};
use crate::sync::AtomicU64;

/// Requests being built into a send queue, published together.
///
/// Dropping it leaves what was built in the queue, unpublished: a later [`SendQueue::publish`], batch or submit rings
/// for it. Nothing of it reaches the queue before that: a batch that is forgotten is one that was aborted.
#[derive(Debug)]
#[must_use = "requests reach the device when they are published"]
pub struct Batch<'q, T: Transport, R: Register> {
    queue: &'q mut SendQueue<T, R>,
    front: Front,
    base: Wide,
    quick_inline: [u32; 5],
}

/// Where the next requests go. A copy, never lent by reference, so that it can stay in registers.
#[derive(Clone, Copy, Debug)]
struct Front {
    /// The next block, its work request id, and its [`Slot::place`].
    block: *mut Block,
    entry: *const AtomicU64,
    place: u32,
    /// Where free blocks end, or the ring.
    end: *mut Block,
}

impl Front {
    /// Blocks from here on that are free, and before the ring's end.
    #[inline(always)]
    fn left(&self) -> u32 {
        ((self.end.addr() - self.block.addr()) / size_of::<Block>()) as u32
    }

    /// Whether `blocks` blocks are left.
    #[inline(always)]
    fn has(&self, blocks: u32) -> bool {
        // A comparison of addresses is the shorter question.
        if blocks == 1 { self.block != self.end } else { self.left() >= blocks }
    }
}

/// What else there is to know of a batch, for its slow path. It lies in the queue, where it does not compete for
/// registers, and counts as long as there is a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// The counter at [`Front::end`].
    end: u32,
    room: Room,
    /// The counter behind the last request that was not of one block, and that request's first eight bytes.
    longer: u32,
    longer_control: u64,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Where a batch goes on at counter `head`.
    #[inline(always)]
    fn resume(&mut self, head: u32, room: Room) -> Front {
        let Slot { first, entry, place, .. } = self.slot(head);
        let before_end = self.mask + 1 - (head & self.mask);
        let left = room.limit.wrapping_sub(head).min(before_end);
        self.ahead.end = head.wrapping_add(left);
        self.ahead.room = room;
        Front { block: first, entry, place, end: first.wrapping_add(left as usize) }
    }

    /// Makes what a batch has built the queue's own.
    #[inline(always)]
    fn take_over(&mut self, left: u32) {
        let Ahead { end, room, longer, longer_control } = self.ahead;
        let head = end.wrapping_sub(left);
        if head != self.head {
            let control =
                if head == longer { longer_control } else { self.control_at(head.wrapping_sub(1)) };
            self.note_unpublished(head, control);
            self.room = room;
        }
    }

    /// The first eight bytes of the request at counter `index`.
    #[inline(always)]
    fn control_at(&self, index: u32) -> u64 {
        // SAFETY: within the ring, which this queue alone writes.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    /// Notes the request from `start` to `head`, which may have more than one block.
    #[inline(always)]
    fn note_longer(&mut self, start: u32, head: u32) {
        self.ahead.longer = head;
        self.ahead.longer_control = self.control_at(start);
    }

    /// [`SendQueue::take_over`], out of line: where a batch is dropped its place has to stay in registers, too.
    #[inline(never)]
    fn take_over_dropped(&mut self, left: u32) {
        self.take_over(left);
    }

    /// [`SendQueue::build`], out of line, for a batch.
    ///
    /// # Safety
    /// As for [`Batch::post`].
    #[inline(never)]
    unsafe fn build_general<O: Operation, P: Payload>(
        &mut self,
        left: u32,
        operation: O,
        payload: P,
        wish: Wish,
    ) -> Result<Front, PostError> {
        let Ahead { end, room, .. } = self.ahead;
        let start = end.wrapping_sub(left);
        // SAFETY: the caller's promise is the same.
        let Built { head, room, .. } =
            unsafe { self.build(start, room, operation, payload, wish) }?;
        self.note_longer(start, head);
        Ok(self.resume(head, room))
    }
}

impl<'q, T: Transport, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue<T, R>) -> Self {
        let front = queue.resume(queue.head, queue.room);
        // Nothing ends there that this batch has built.
        queue.ahead.longer = queue.head;
        let (base, quick_inline) = (queue.base, queue.quick_inline);
        Self { queue, front, base, quick_inline }
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
    pub unsafe fn post<O, P>(
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
        unsafe { self.post_any(wr_id, operation, payload, flags) }
    }

    /// [`Batch::post`] without the promise that the queue's service has the operation.
    ///
    /// # Safety
    /// As for [`Batch::post`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn post_any<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.queue.check(operation)?;
        let wish = Wish { wr_id, flags };
        let blocks = full_blocks::<O>() as u32 + 1;
        // Two questions and two ways out: the compiler makes a value of them otherwise.
        if !self.front.has(blocks) {
            crate::hint::seldom();
            // SAFETY: passed on to the caller.
            return unsafe { self.post_general(operation, payload, wish) };
        }
        if !is_quick::<O, P>(payload, &self.quick_inline) {
            crate::hint::seldom();
            // SAFETY: passed on to the caller.
            return unsafe { self.post_general(operation, payload, wish) };
        }
        // SAFETY: the blocks are free.
        unsafe { self.slot().write_once(operation, payload, wish) };
        self.moved(blocks);
        Ok(())
    }

    /// [`Batch::post`] for requests that are not quick, and where room has to be looked for.
    ///
    /// # Safety
    /// As for [`Batch::post`].
    #[inline(always)]
    unsafe fn post_general<O: Operation, P: Payload>(
        &mut self,
        operation: O,
        payload: P,
        wish: Wish,
    ) -> Result<(), PostError> {
        let (left, payload) = (self.front.left(), payload.again());
        // SAFETY: passed on to the caller.
        let front = unsafe { self.queue.build_general(left, operation, payload, wish) }?;
        self.go_on(front);
        Ok(())
    }

    /// Rings the doorbell for everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        let queue = self.commit();
        queue.publish();
    }

    /// Forgets the requests of this batch: the queue is as it was before.
    pub fn abort(self) {
        core::mem::forget(self);
    }

    /// The queue's counter behind the requests built so far.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.queue.ahead.end.wrapping_sub(self.front.left())
    }

    #[inline(always)]
    pub(super) fn queue(&self) -> &SendQueue<T, R> {
        self.queue
    }

    /// Makes sure of one block; returns what its request gets beside what all get, as a control segment's second word.
    #[inline(always)]
    pub(super) fn claim_block(&mut self) -> Result<u64, PostError> {
        if self.front.has(1) {
            return Ok(0);
        }
        let head = self.head();
        let (room, mode) = self.queue.reserve(head, self.queue.ahead.room, 1)?;
        let front = self.queue.resume(head, room);
        self.go_on(front);
        Ok(mode)
    }

    /// Where the next request goes.
    #[inline(always)]
    pub(super) fn slot(&self) -> Slot {
        let Front { block, entry, place, .. } = self.front;
        Slot { first: block, entry, place, base: self.base, number: self.queue.number }
    }

    /// Moves on over a request that was written into `blocks` blocks, which were left.
    #[inline(always)]
    pub(super) fn moved(&mut self, blocks: u32) {
        if blocks > 1 {
            let start = self.head();
            let extra = self.queue.ahead.room.extra;
            self.queue.ahead.room.extra = self.queue.note_blocks(start, blocks, extra);
            self.queue.note_longer(start, start.wrapping_add(blocks));
        }
        let front = &mut self.front;
        front.block = front.block.wrapping_add(blocks as usize);
        front.entry = front.entry.wrapping_add(blocks as usize);
        // The counter's 16 bits run over at the ring's end if at all, where none are left and this is made anew.
        front.place = front.place.wrapping_add(blocks * NEXT_PLACE);
    }

    /// Field by field: a copy of the whole would go by way of memory.
    #[inline(always)]
    fn go_on(&mut self, front: Front) {
        self.front.block = front.block;
        self.front.entry = front.entry;
        self.front.place = front.place;
        self.front.end = front.end;
    }

    /// Leaves what was built to the queue.
    #[inline(always)]
    fn commit(self) -> &'q mut SendQueue<T, R> {
        let left = self.front.left();
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the borrow is moved out of it once.
        let queue = unsafe { core::ptr::read(&this.queue) };
        queue.take_over(left);
        queue
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.take_over_dropped(self.front.left());
    }
}
