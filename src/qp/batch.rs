//! Several slots posted with one doorbell.

use std::mem::ManuallyDrop;

use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::recv_queue::RecvBatch;
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{AtomicResult, Batch as RawBatch, Carries, Inline, Operation, Takes};

use super::QueuePairType;
use crate::memory::posting::{Admission, Refused, Sends, for_atomic};
use crate::memory::slab::Slot;

/// Sends for which one doorbell is rung, when this is published or dropped: from
/// [`QueuePair::batch`](super::safe::QueuePair::batch).
///
/// One that is leaked is never rung for, and the slots of its signaled sends are lost. Those of unsignaled ones come back with
/// the next signaled send.
#[derive(Debug)]
pub struct Batch<'q, T: QueuePairType> {
    batch: ManuallyDrop<RawBatch<'q, T, BlueFlame>>,
    sends: &'q mut Sends,
}

impl<'q, T: QueuePairType> Batch<'q, T> {
    #[inline(always)]
    pub(crate) fn new(batch: RawBatch<'q, T, BlueFlame>, sends: &'q mut Sends) -> Self {
        Self { batch: ManuallyDrop::new(batch), sends }
    }

    /// As [`QueuePair::post`](super::safe::QueuePair::post), behind what was posted before.
    ///
    /// # Errors
    /// The slot, with the reason. What was posted before stands.
    #[inline(always)]
    pub fn post<O>(&mut self, operation: O, slot: Slot, flags: PostFlags) -> Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let (data, batch) = (slot.filled(), &mut self.batch);
        self.sends.send(slot, flags, |launch| {
            // SAFETY: `data` is the slot's memory. It is launched before the device learns of the request, and from then
            // on nothing touches that memory until the completion or the destruction of the queue pair, and it keeps the
            // registration.
            unsafe { batch.post(launch.id(), operation, data, flags) }?;
            launch.start();
            Ok(())
        })
    }

    /// As [`QueuePair::post_atomic`](super::safe::QueuePair::post_atomic), behind what was posted before.
    ///
    /// # Errors
    /// As for [`Batch::post`]; `BadAtomic` also for a slot of less than 8 bytes.
    #[inline(always)]
    pub fn post_atomic<O>(
        &mut self,
        operation: O,
        slot: Slot,
        flags: PostFlags,
    ) -> Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<AtomicResult> + Operation,
    {
        let (slot, result) = for_atomic(slot)?;
        let batch = &mut self.batch;
        self.sends.send(slot, flags, |launch| {
            // SAFETY: the result is the slot's memory, and slots are aligned to 64 bytes; else as in `post`.
            unsafe { batch.post(launch.id(), operation, result, flags) }?;
            launch.start();
            Ok(())
        })
    }

    /// As [`QueuePair::post_inline`](super::safe::QueuePair::post_inline), behind what was posted before.
    ///
    /// # Errors
    /// Any [`PostError`]. What was posted before stands.
    #[inline(always)]
    pub fn post_inline<'a, O>(
        &mut self,
        operation: O,
        data: &'a [u8],
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        let batch = &mut self.batch;
        self.sends.send_without_slot(flags, |id| {
            // SAFETY: inline data demands nothing; the id is no slot's.
            unsafe { batch.post(id, operation, Inline(data), flags) }
        })
    }

    /// Rings the doorbell for everything posted so far, as dropping it does.
    #[inline(always)]
    pub fn publish(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again.
        unsafe { ManuallyDrop::take(&mut this.batch) }.publish();
    }
}

impl<T: QueuePairType> Drop for Batch<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of `batch`.
        publish_dropped(unsafe { ManuallyDrop::take(&mut self.batch) });
    }
}

/// Out of line, for a copy: so the batch itself stays in registers.
#[inline(never)]
fn publish_dropped<T: QueuePairType>(batch: RawBatch<'_, T, BlueFlame>) {
    batch.publish();
}

/// Receives of which the device is told together, when this is published or dropped: from
/// [`QueuePair::receive_batch`](super::safe::QueuePair::receive_batch).
///
/// Of one that is leaked the device may never be told, and its slots be lost: nobody gets them any more.
#[derive(Debug)]
pub struct ReceiveBatch<'q> {
    batch: ManuallyDrop<RecvBatch<'q>>,
    admission: Admission,
}

impl<'q> ReceiveBatch<'q> {
    #[inline(always)]
    pub(crate) fn new(batch: RecvBatch<'q>, admission: Admission) -> Self {
        Self { batch: ManuallyDrop::new(batch), admission }
    }

    /// Posts a receive that may fill all of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason. What was posted before stands.
    #[inline(always)]
    pub fn receive(&mut self, slot: Slot) -> Result<(), Refused> {
        let batch = &mut self.batch;
        self.admission.receive(slot, |id, data| {
            // SAFETY: the slot is launched then, and nothing touches its memory until the completion or the destruction of
            // the queue pair; it keeps the registration. The device learns of it only when it is published.
            unsafe { batch.post(id, data) }
        })
    }

    /// Tells the device of everything posted so far, as dropping it does.
    #[inline(always)]
    pub fn publish(self) {}
}

impl Drop for ReceiveBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of `batch`.
        unsafe { ManuallyDrop::take(&mut self.batch) }.publish();
    }
}
