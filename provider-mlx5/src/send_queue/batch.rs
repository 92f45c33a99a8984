//! Requests built one after the other, to be published together.

use super::encode::{Built, NEXT_WORD, Room, Slot, Wish, full_blocks, is_quick};
use super::payload::Payload;
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
    mode: u64,
    quick_inline: [u32; 5],
}

/// Where the next requests go. A copy, never lent by reference, so that it can stay in registers.
#[derive(Clone, Copy, Debug)]
struct Front {
    /// The next block, its work request id, and its [`Slot::word`].
    block: *mut Block,
    entry: *const AtomicU64,
    word: u64,
    /// Blocks from here on that are free, and before the ring's end.
    left: u32,
    /// The first eight bytes of the request built last.
    last_control: u64,
}

/// What else there is to know of a batch, for its slow path. It lies in the queue, where it does not compete for
/// registers, and counts as long as there is a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// The counter where [`Front::left`] will have run out.
    end: u32,
    room: Room,
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Where a batch goes on at counter `head`.
    #[inline(always)]
    fn resume(&mut self, head: u32, room: Room, last_control: u64) -> Front {
        let Slot { first, entry, word, .. } = self.slot(head);
        let before_end = self.mask + 1 - (head & self.mask);
        let left = room.limit.wrapping_sub(head).min(before_end);
        self.ahead = Ahead { end: head.wrapping_add(left), room };
        Front { block: first, entry, word, left, last_control }
    }

    /// Makes what a batch has built the queue's own: all but `left` blocks of what was free.
    #[inline(always)]
    fn take_over(&mut self, left: u32, last_control: u64) {
        let Ahead { end, room } = self.ahead;
        let head = end.wrapping_sub(left);
        if head != self.head {
            self.note_unpublished(head, last_control);
            self.room = room;
        }
    }

    /// [`SendQueue::take_over`], out of line: where a batch is dropped its place has to stay in registers, too.
    #[inline(never)]
    fn take_over_dropped(&mut self, left: u32, last_control: u64) {
        self.take_over(left, last_control);
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
        let Ahead { end, room } = self.ahead;
        // SAFETY: the caller's promise is the same.
        let Built { head, room, control } =
            unsafe { self.build(end.wrapping_sub(left), room, operation, payload, wish) }?;
        Ok(self.resume(head, room, control))
    }
}

impl<'q, T: Transport, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue<T, R>) -> Self {
        let front = queue.resume(queue.head, queue.room, queue.last_control);
        let (mode, quick_inline) = (queue.mode, queue.quick_inline);
        Self { queue, front, mode, quick_inline }
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
    #[inline(always)]
    pub(crate) unsafe fn post_any<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.queue.check(operation)?;
        let wish = Wish { wr_id, flags };
        let blocks = full_blocks::<O>() as u32 + 1;
        if is_quick::<O, P>(payload, &self.quick_inline) {
            if let Some(left) = self.front.left.checked_sub(blocks) {
                let (slot, mode) = (self.slot(), self.mode);
                let next = || slot.first.wrapping_add(1);
                // SAFETY: the blocks are free.
                let [first, _] = unsafe {
                    slot.write_quick::<O, P, u64, false>(next, mode, operation, payload, wish)
                };
                self.moved(blocks, left, first[0][0]);
                return Ok(());
            }
        }
        let (left, payload) = (self.front.left, payload.again());
        // SAFETY: the caller's promise is the same.
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
    pub(crate) fn head(&self) -> u32 {
        self.queue.ahead.end.wrapping_sub(self.front.left)
    }

    #[inline(always)]
    pub(super) fn inline_limit(&self) -> u32 {
        self.queue.limits.max_inline
    }

    #[inline(always)]
    pub(super) fn number(&self) -> u64 {
        self.queue.number
    }

    pub(super) fn min_inline_header(&self) -> u8 {
        self.queue.min_inline_header
    }

    /// Makes sure of one block; returns how many are left behind it, and the mode word that its request gets in any case.
    #[inline(always)]
    pub(super) fn claim_block(&mut self) -> Result<(u32, u64), PostError> {
        if let Some(left) = self.front.left.checked_sub(1) {
            return Ok((left, self.mode));
        }
        let head = self.head();
        let (room, mode) = self.queue.reserve(head, self.queue.ahead.room, 1)?;
        let front = self.queue.resume(head, room, self.front.last_control);
        self.go_on(front);
        Ok((front.left.wrapping_sub(1), mode))
    }

    /// Where the next request goes.
    #[inline(always)]
    pub(super) fn slot(&self) -> Slot {
        let Front { block, entry, word, .. } = self.front;
        Slot { first: block, entry, word }
    }

    /// Moves on over a request that was written into `blocks` blocks, which leaves `left`.
    #[inline(always)]
    pub(super) fn moved(&mut self, blocks: u32, left: u32, control: u64) {
        let front = &mut self.front;
        front.block = front.block.wrapping_add(blocks as usize);
        front.entry = front.entry.wrapping_add(blocks as usize);
        // The counter's 16 bits run over at the ring's end if at all, where none are left and the word is made anew.
        front.word = front.word.wrapping_add(u64::from(blocks) * NEXT_WORD);
        front.left = left;
        front.last_control = control;
    }

    /// Field by field: a copy of the whole would go by way of memory.
    #[inline(always)]
    fn go_on(&mut self, front: Front) {
        self.front.block = front.block;
        self.front.entry = front.entry;
        self.front.word = front.word;
        self.front.left = front.left;
        self.front.last_control = front.last_control;
    }

    /// Leaves what was built to the queue.
    #[inline(always)]
    fn commit(self) -> &'q mut SendQueue<T, R> {
        let Front { left, last_control, .. } = self.front;
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the borrow is moved out of it once.
        let queue = unsafe { core::ptr::read(&this.queue) };
        queue.take_over(left, last_control);
        queue
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.take_over_dropped(self.front.left, self.front.last_control);
    }
}
