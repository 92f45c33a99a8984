//! Requests built one after the other, to be published together.

use super::encode::{Place, Wish, full_blocks};
use super::payload::Payload;
use super::{Carries, Operation, SendQueue, Takes, Transport};
use crate::mmio::Register;
use crate::request::{PostError, PostFlags};

/// Requests being built into a send queue, published together.
///
/// Dropping it leaves what was built in the queue, unpublished: a later [`SendQueue::publish`], batch or submit rings
/// for it.
#[derive(Debug)]
#[must_use = "requests reach the device when they are published"]
pub struct Batch<'q, T: Transport, R: Register> {
    queue: &'q mut SendQueue<T, R>,
    pub(super) place: Place,
    pub(super) front: Front,
    mode: u64,
    quick_inline: [u32; 5],
}

/// How far a batch has come. A copy, never lent by reference, so that it can stay in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) head: u32,
    limit: u32,
    pub(super) last_control: u64,
}

impl<'q, T: Transport, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue<T, R>) -> Self {
        let front =
            Front { head: queue.head, limit: queue.limit, last_control: queue.last_control };
        let (place, mode, quick_inline) = (Place::of(queue), queue.mode, queue.quick_inline);
        Self { queue, place, front, mode, quick_inline }
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
        if !Place::is_quick::<O, P>(payload, &self.quick_inline) {
            let Front { head, limit, .. } = self.front;
            // SAFETY: the caller's promise is the same.
            let (head, limit, last_control) =
                unsafe { self.queue.build_general(head, limit, operation, payload.again(), wish) }?;
            self.front = Front { head, limit, last_control };
            return Ok(());
        }
        let blocks = full_blocks::<O>() as u32 + 1;
        let mode = self.reserve(blocks)?;
        let head = self.front.head;
        // SAFETY: reserved.
        let [first, _] = unsafe {
            self.place.write_quick::<O, P, u64, false>(head, mode, operation, payload, wish)
        };
        self.moved(blocks, first[0][0]);
        Ok(())
    }

    /// Rings the doorbell for everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        let queue = self.commit();
        queue.publish();
    }

    /// Forgets the requests of this batch: the queue is as it was before.
    pub fn abort(mut self) {
        self.front.head = self.queue.head;
        // One of the forgotten requests may have taken up a fence; a fence too many does no harm.
        self.queue.leave_fence(self.front.head);
    }

    /// The queue's counter behind the requests built so far.
    pub(crate) fn head(&self) -> u32 {
        self.front.head
    }

    #[inline(always)]
    pub(super) fn inline_limit(&self) -> u32 {
        self.queue.limits.max_inline
    }

    /// The queue's number where a control segment has it.
    #[inline(always)]
    pub(super) fn number(&self) -> u64 {
        self.queue.number
    }

    pub(super) fn min_inline_header(&self) -> u8 {
        self.queue.min_inline_header
    }

    /// Makes sure of `blocks` blocks; returns the mode word that the request gets in any case.
    #[inline(always)]
    pub(super) fn reserve(&mut self, blocks: u32) -> Result<u64, PostError> {
        let Front { head, limit, .. } = self.front;
        if limit.wrapping_sub(head) >= blocks {
            return Ok(self.mode);
        }
        let (limit, mode) = self.queue.attend(head, blocks)?;
        self.front.limit = limit;
        Ok(mode)
    }

    /// Moves on over a request that was written.
    #[inline(always)]
    pub(super) fn moved(&mut self, blocks: u32, control: u64) {
        self.front.head = self.front.head.wrapping_add(blocks);
        self.front.last_control = control;
    }

    /// Writes the local copies back.
    #[inline(always)]
    fn commit(mut self) -> &'q mut SendQueue<T, R> {
        self.write_back();
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the borrow is moved out of it once.
        unsafe { core::ptr::read(&this.queue) }
    }

    #[inline(always)]
    fn write_back(&mut self) {
        let built = self.front.head.wrapping_sub(self.queue.head);
        if built != 0 {
            self.queue.note_unpublished(self.front.head, self.front.last_control);
        }
    }
}

impl<T: Transport, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.write_back();
    }
}
