//! Posting slots: the safe layer.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use uverbs_mlx5::mmio::{BlueFlame, Register};
use uverbs_mlx5::recv_queue::{RecvBatch, RecvQueue};
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{AtomicResult, Batch as RawBatch, Carries, Inline, Operation, Takes};
use uverbs_mlx5::user_index::QueueHandle;

use super::QueuePairType;
use super::queue_pair::{QueuePair, Queues};
use crate::device::layer::Safe;
use crate::error::Result as VerbResult;
use crate::memory::flight::{CqBits, Serial};
use crate::memory::pd::ProtectionDomain;
use crate::memory::posting::{Admission, Refused, Sends, for_atomic};
use crate::memory::slot::{Abandoned, Chain, Slot};

/// What a queue pair of the safe layer knows of its slots.
#[derive(Debug)]
pub(crate) struct Slots {
    /// What its slots in flight are known by; its completions name it.
    serial: Serial,
    cqs: [CqBits; 2],
    sends: Sends,
    receives: Admission,
    low_water_mark: u32,
}

impl Slots {
    /// `cqs`: the numbers of the completion queues of its sends and of its receives.
    pub(super) fn new(
        serial: Serial,
        pd: &ProtectionDomain,
        cqs: [u32; 2],
        signal_all: bool,
    ) -> Self {
        let (domain, cqs) = (pd.identity(), cqs.map(CqBits::of));
        let admit = |flight| Admission { domain, flight };
        let admission = admit(serial.sends(cqs[0]));
        let sends = Sends { admission, signal_all, pending: Chain::EMPTY };
        Self { serial, cqs, sends, receives: admit(serial.receives(cqs[1])), low_water_mark: 0 }
    }

    /// Has completions of the queue hand back what its slots in flight are known by.
    pub(super) fn mark(&self, user: &QueueHandle) {
        let [sends, receives] = self.serial.side_contexts();
        // SAFETY: this is the layer that knows its requests by these values; nothing of the queue is in flight yet.
        unsafe { user.state().set_side_contexts(sends, receives) };
    }

    /// After a reset: slots are known by another number from now on. What was in flight before.
    pub(super) fn start_over<T: QueuePairType, R: Register>(
        &mut self,
        old: &QueueHandle,
        new: &QueueHandle,
        queues: &mut Queues<T, R>,
    ) -> VerbResult<Abandoned> {
        let serial = Serial::new("modify_qp")?;
        let left = self.left(Some(old.clone()), queues);
        self.serial = serial;
        self.sends.admission.flight = serial.sends(self.cqs[0]);
        self.sends.pending = Chain::EMPTY;
        self.receives.flight = serial.receives(self.cqs[1]);
        self.mark(new);
        Ok(left)
    }

    /// What is in flight at the end. The queue pair was destroyed or reset, and `user` is closed, so the device completes
    /// nothing more; a poller may still be taking what had completed before.
    pub(super) fn left<T: QueuePairType, R: Register>(
        &self,
        user: Option<QueueHandle>,
        queues: &mut Queues<T, R>,
    ) -> Abandoned {
        let mut ids = Vec::new();
        queues.send.iter_mut().for_each(|send| send.for_each_outstanding(|id| ids.push(id)));
        queues.receive.iter_mut().for_each(|side| side.for_each_outstanding(|id| ids.push(id)));
        // SAFETY: requests of this queue, whose ids are those of slots.
        unsafe { Abandoned::new(user, ids, self.sends.pending, self.serial) }
    }
}

impl<T: QueuePairType, R: Register> QueuePair<T, Safe, R> {
    /// Posts an operation on the filled part of `slot`: what a send or a write carries, or how much a read
    /// fetches.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    #[doc(alias = "ibv_post_send")]
    pub fn post<O>(&mut self, operation: O, slot: Slot, flags: PostFlags) -> Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let (data, send) = (slot.filled(), &mut self.queues.send);
        self.slots.sends.send(slot, flags, |launch| {
            let send = send.as_mut().ok_or(PostError::NoQueue)?;
            // SAFETY: `data` is the slot's memory. From its launch on nothing touches that until the completion or the
            // destruction of the queue pair, and it keeps the registration.
            unsafe { send.submit_as(launch, operation, data, flags) }
        })
    }

    /// Posts an atomic whose result goes into the first 8 bytes of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason: `BadAtomic` also for a slot of less than 8 bytes.
    #[inline]
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
        let send = &mut self.queues.send;
        self.slots.sends.send(slot, flags, |launch| {
            let send = send.as_mut().ok_or(PostError::NoQueue)?;
            // SAFETY: the result is the slot's memory, and slots are aligned to 64 bytes; else as in `post`.
            unsafe { send.submit_as(launch, operation, result, flags) }
        })
    }

    /// Posts an operation whose data is copied into the request; its completion carries no slot.
    ///
    /// # Errors
    /// Any [`PostError`].
    #[inline]
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
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        self.slots.sends.send_without_slot(flags, |id| {
            // SAFETY: inline data demands nothing; the id is no slot's.
            unsafe { send.submit_as(id, operation, Inline(data), flags) }
        })
    }

    /// Starts posting several sends, for which one doorbell is rung.
    ///
    /// ```no_run
    /// # use uverbs::{op, qp::PostFlags, qp_type::Rc};
    /// # fn burst(qp: &mut uverbs::QueuePair<Rc>, slots: Vec<uverbs::Slot>) -> uverbs::Result<()> {
    /// let mut batch = qp.batch()?;
    /// for slot in slots {
    ///     batch.post(op::Send, slot, PostFlags::SIGNALED)?;
    /// }
    /// batch.publish();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PostError::BadState`] before RTS; `NoQueue` if it was made without a send queue.
    #[inline(always)]
    #[doc(alias = "ibv_wr_start")]
    pub fn batch(&mut self) -> Result<Batch<'_, T, R>, PostError> {
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        Ok(Batch::new(send.batch()?, &mut self.slots.sends))
    }

    /// Posts a receive that may fill all of `slot`: the device may use it from now on.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&mut self, slot: Slot) -> Result<(), Refused> {
        let receive = &mut self.queues.receive;
        self.slots.receives.receive(slot, |id, data| {
            let receive = receive.as_mut().ok_or(PostError::NoQueue)?;
            // SAFETY: the slot is launched then, and nothing touches its memory until the completion or the destruction of
            // the queue pair; it keeps the registration. The device learns of it only when it is published, below.
            unsafe { receive.post(id, data) }
        })?;
        self.queues.receive.iter_mut().for_each(RecvQueue::publish);
        Ok(())
    }

    /// Sets the number of outstanding receives below which [`receives_run_low`](Self::receives_run_low) says so; 0 at first.
    pub fn set_low_water_mark(&mut self, receives: u32) {
        self.slots.low_water_mark = receives;
    }

    /// Whether fewer receives are outstanding than the low-water mark: to be asked now and then in the loop that polls.
    pub fn receives_run_low(&mut self) -> bool {
        self.outstanding_receives() < self.slots.low_water_mark
    }

    /// Starts posting several receives, of which the device is told together.
    ///
    /// # Errors
    /// `BadState` in RESET, `NoQueue` if it was made without a receive queue of its own.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> Result<ReceiveBatch<'_>, PostError> {
        let receive = self.queues.receive.as_mut().ok_or(PostError::NoQueue)?;
        Ok(ReceiveBatch::new(receive.batch()?, self.slots.receives))
    }
}

/// Sends for which one doorbell is rung, when this is published or dropped: from
/// [`QueuePair::batch`].
///
/// One that is leaked is never rung for, and the slots of its signaled sends are lost. Those of unsignaled ones come back with
/// the next signaled send.
#[derive(Debug)]
pub struct Batch<'q, T: QueuePairType, R: Register = BlueFlame> {
    batch: ManuallyDrop<RawBatch<'q, T, R>>,
    sends: &'q mut Sends,
}

impl<'q, T: QueuePairType, R: Register> Batch<'q, T, R> {
    #[inline(always)]
    fn new(batch: RawBatch<'q, T, R>, sends: &'q mut Sends) -> Self {
        Self { batch: ManuallyDrop::new(batch), sends }
    }

    /// As [`QueuePair::post`], after what was posted before.
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

    /// As [`QueuePair::post_atomic`], after what was posted before.
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

    /// As [`QueuePair::post_inline`], after what was posted before.
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

impl<T: QueuePairType, R: Register> Drop for Batch<'_, T, R> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of `batch`.
        publish_dropped(unsafe { ManuallyDrop::take(&mut self.batch) });
    }
}

/// Out of line, for a copy: so the batch itself stays in registers.
#[inline(never)]
fn publish_dropped<T: QueuePairType, R: Register>(batch: RawBatch<'_, T, R>) {
    batch.publish();
}

/// Receives of which the device is told together, when this is published or dropped: from
/// [`QueuePair::receive_batch`].
///
/// Of one that is leaked the device may never be told, and its slots be lost: nobody gets them any more.
#[derive(Debug)]
pub struct ReceiveBatch<'q> {
    batch: ManuallyDrop<RecvBatch<'q>>,
    admission: Admission,
}

impl<'q> ReceiveBatch<'q> {
    #[inline(always)]
    fn new(batch: RecvBatch<'q>, admission: Admission) -> Self {
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
