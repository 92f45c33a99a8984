//! Posting slots: the safe layer.

#![allow(unsafe_code)]

mod request;
mod template;

use std::mem::ManuallyDrop;

use uverbs_mlx5::mmio::{BlueFlame, Register};
use uverbs_mlx5::recv_queue::RecvBatch;
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, Batch as RawBatch, Carries, Inline, Operation, SendRequest, Takes,
};
use uverbs_mlx5::user_index::QueueHandle;

pub use request::SlotRequest;
use request::used_by;
pub use template::InlineTemplate;

use super::QueuePairType;
use super::queue_pair::{QueuePair, Queues};
use super::work_queue::WorkQueue;
use crate::device::layer::Safe;
use crate::memory::flight::{CqBits, Serial};
use crate::memory::pd::ProtectionDomain;
use crate::memory::posting::{Admission, Refused, Sends, for_atomic};
use crate::memory::slot::{Abandoned, Slot};

/// The safe layer's part of a queue pair: the state for posting slots and getting them back.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Identifies the slots in flight on this queue pair; its completions carry the number.
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
        let sends = Sends::new(admit(serial.sends(cqs[0])), signal_all);
        Self { serial, cqs, sends, receives: admit(serial.receives(cqs[1])), low_water_mark: 0 }
    }

    /// Makes the completions of the queue carry the flights of its slots.
    pub(super) fn mark(&self, user: &QueueHandle) {
        let [sends, receives] = self.serial.side_contexts(self.cqs);
        // SAFETY: this layer identifies its requests by these values; nothing of the queue is in
        // flight yet.
        unsafe { user.state().set_side_contexts(sends, receives) };
    }

    /// The values with which receives are posted.
    #[inline(always)]
    pub(super) fn receives(&self) -> Admission {
        self.receives
    }

    /// Moves the state out. The remaining value must not post.
    pub(super) fn move_out(&mut self) -> Self {
        let sends = self.sends.move_out();
        let Self { serial, cqs, receives, low_water_mark, .. } = *self;
        Self { serial, cqs, sends, receives, low_water_mark }
    }

    /// Prepares for requests after a reset. Returns the slots that were in flight before.
    pub(super) fn start_over<T: QueuePairType, R: Register>(
        &mut self,
        serial: Serial,
        [old, new]: [&QueueHandle; 2],
        queues: &mut Queues<T, R>,
    ) -> Abandoned {
        let left = self.abandoned(Some(old.clone()), queues);
        self.serial = serial;
        self.sends.start_over(serial.sends(self.cqs[0]));
        self.receives.flight = serial.receives(self.cqs[1]);
        self.mark(new);
        left
    }

    /// The slots that were in flight when the queue pair was destroyed or reset. `user` is closed,
    /// so no new completion is accepted. A poller may still be taking earlier completions.
    pub(super) fn abandoned<T: QueuePairType, R: Register>(
        &self,
        user: Option<QueueHandle>,
        queues: &mut Queues<T, R>,
    ) -> Abandoned {
        let mut ids = Vec::new();
        queues.send.iter_mut().for_each(|send| send.for_each_outstanding(|id| ids.push(id)));
        queues.receive.iter_mut().for_each(|side| side.for_each_outstanding(|id| ids.push(id)));
        // SAFETY: requests of this queue, whose ids are those of slots.
        unsafe { Abandoned::new(user, ids, self.sends.pending(), self.serial) }
    }
}

impl<T: QueuePairType, R: Register> QueuePair<T, Safe, R> {
    /// Posts an operation on the filled part of `slot`: the data of a SEND or WRITE, or the space
    /// for the result of a READ.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<O>(
        &mut self,
        operation: O,
        slot: Slot,
        flags: PostFlags,
    ) -> Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let Some(send) = self.queues.send.as_mut() else {
            return Err(Refused { slot, reason: PostError::NoQueue });
        };
        let (data, sends) = (slot.filled(), &mut self.slots.sends);
        let (slot, launch) = sends.launch(slot, flags)?;
        // SAFETY: `data` is the slot's memory. From the launch until the completion or the
        // destruction of the queue pair nothing touches that memory, and it stays registered.
        let posted = unsafe { send.post_as(launch, operation, data, flags) };
        sends.finish(posted, slot, launch)
    }

    /// Posts an atomic ([`FetchAdd`](crate::op::FetchAdd),
    /// [`CompareSwap`](crate::op::CompareSwap)). The old value goes into the first 8 bytes of
    /// `slot`, in this machine's byte order.
    ///
    /// # Errors
    /// The slot, with the reason: `BadAtomic` for a slot of less than 8 bytes.
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
        let Some(send) = self.queues.send.as_mut() else {
            return Err(Refused { slot, reason: PostError::NoQueue });
        };
        let (slot, result) = for_atomic(slot)?;
        let sends = &mut self.slots.sends;
        let (slot, launch) = sends.launch(slot, flags)?;
        // SAFETY: the result is the slot's memory, and slots are aligned to 64 bytes; otherwise as
        // in `post_send`.
        let posted = unsafe { send.post_as(launch, operation, result, flags) };
        sends.finish(posted, slot, launch)
    }

    /// Posts an operation whose data is copied into the request; its completion carries no slot.
    ///
    /// # Errors
    /// Any [`PostError`].
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
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        let id = self.slots.sends.id_without_slot(flags);
        // SAFETY: inline data is copied, so no memory is shared; the id is not that of a slot.
        let posted = unsafe { send.post_as(id, operation, Inline(data), flags) };
        self.slots.sends.finish_without_slot(posted, id)
    }

    /// Builds a request of one block (64 bytes) with inline `data`, to post it many times with
    /// other data or another address ([`InlineTemplate`]).
    ///
    /// # Errors
    /// Those of posting the request, except `Full` and `BadState`; `NotATemplate` if it takes more
    /// than one block (more than 44 bytes of data, or 28 with a remote address).
    pub fn template<'a, O>(
        &mut self,
        operation: O,
        data: &'a [u8],
        flags: PostFlags,
    ) -> Result<InlineTemplate<O::Held>, PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        self.long_template(operation, data, flags)
    }

    /// As [`QueuePair::template`], for a request of up to `BLOCKS` blocks.
    ///
    /// # Errors
    /// As for [`QueuePair::template`]; `NotATemplate` if the request takes more blocks.
    pub fn long_template<'a, const BLOCKS: usize, O>(
        &mut self,
        operation: O,
        data: &'a [u8],
        flags: PostFlags,
    ) -> Result<InlineTemplate<O::Held, BLOCKS>, PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        let template = send.long_template(operation, Inline(data), flags)?;
        Ok(InlineTemplate { template, flags })
    }

    /// Posts a template's request; its completion carries no slot.
    ///
    /// # Errors
    /// `BadState` before RTS, `Full`, `NoQueue`.
    #[inline(always)]
    pub fn post_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        template: &InlineTemplate<O, BLOCKS>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        let send = self.queues.send.as_mut().ok_or(PostError::NoQueue)?;
        let id = self.slots.sends.id_without_slot(template.flags);
        // SAFETY: the template has its data inside, and no other memory; the id is not that of a
        // slot.
        let posted = unsafe { send.post_template(id, &template.template) };
        self.slots.sends.finish_without_slot(posted, id)
    }

    /// Posts sends whose operations are known only at run time, in order, and rings the doorbell
    /// once for all of them (`ibv_post_send` with a list).
    ///
    /// If the iterator is passed by `&mut`, it still has the requests after a refused one.
    ///
    /// # Errors
    /// The slot of the first request that cannot be posted, with the reason; those before it are
    /// posted and rung. `BadOpcode` for an operation that carries no slot.
    #[doc(alias = "ibv_post_send")]
    pub fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = SlotRequest<'a>>,
    ) -> Result<(), Refused> {
        let send = &mut self.queues.send;
        let mut requests = requests.into_iter();
        let Some(first) = requests.next() else { return Ok(()) };
        let begun = send.as_mut().ok_or(PostError::NoQueue).and_then(|send| send.batch());
        let mut batch = match begun {
            Ok(batch) => Batch::new(batch, &mut self.slots.sends),
            Err(reason) => return Err(Refused { slot: first.slot, reason }),
        };
        batch.build_request(first)?;
        requests.try_for_each(|request| batch.build_request(request))
    }

    /// Starts building several sends, which share one doorbell.
    ///
    /// ```no_run
    /// # use uverbs::{op, qp::PostFlags, qp_type::Rc};
    /// # fn burst(qp: &mut uverbs::QueuePair<Rc>, slots: Vec<uverbs::Slot>) -> uverbs::Result<()> {
    /// let mut batch = qp.batch()?;
    /// for slot in slots {
    ///     batch.build(op::Send, slot, PostFlags::SIGNALED)?;
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
    #[inline(always)]
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(&mut self, slot: Slot) -> Result<(), Refused> {
        let Some(receive) = self.queues.receive.as_mut() else {
            return Err(Refused { slot, reason: PostError::NoQueue });
        };
        let (slot, launch) = self.slots.receives.launch(slot)?;
        // SAFETY: the slot is launched before the device learns of it, and nothing touches its
        // memory until the completion or the destruction of the queue pair; it keeps the
        // registration. No slot is empty or too long.
        if unsafe { receive.post_fast(|| launch.receive()) } {
            return Refused::unless(Ok(()), slot);
        }
        self.post_receive_slow(slot)
    }

    /// [`QueuePair::post_receive`] if the fast path has no space: recomputes the space, or refuses
    /// the slot.
    #[cold]
    #[inline(never)]
    fn post_receive_slow(&mut self, slot: Slot) -> Result<(), Refused> {
        match self.receive_batch() {
            Ok(mut batch) => batch.build(slot),
            Err(reason) => Err(Refused { slot, reason }),
        }
    }

    /// Sets the number of outstanding receives below which
    /// [`receives_run_low`](Self::receives_run_low) returns true; initially 0.
    pub fn set_low_water_mark(&mut self, receives: u32) {
        self.slots.low_water_mark = receives;
    }

    /// Whether fewer receives are outstanding than the low-water mark. For occasional checks in the
    /// polling loop.
    pub fn receives_run_low(&mut self) -> bool {
        self.outstanding_receives() < self.slots.low_water_mark
    }

    /// Starts building several receives, which the device learns of together.
    ///
    /// # Errors
    /// `BadState` in RESET, `NoQueue` if it was made without a receive queue of its own.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> Result<ReceiveBatch<'_>, PostError> {
        let receive = self.queues.receive.as_mut().ok_or(PostError::NoQueue)?;
        Ok(ReceiveBatch::new(receive.batch()?, self.slots.receives))
    }
}

/// Sends that share one doorbell, which is rung when the batch is published or dropped: from
/// [`QueuePair::batch`].
///
/// If a batch is leaked, its doorbell is never rung. The slots of its signaled sends are lost, and
/// so are those of unsignaled sends before them. The slots of its other unsignaled sends come back
/// with the next signaled send.
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

    /// As [`QueuePair::post_send`], after what was built before.
    ///
    /// # Errors
    /// The slot, with the reason. What was built before stays built.
    #[inline(always)]
    pub fn build<O>(&mut self, operation: O, slot: Slot, flags: PostFlags) -> Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let data = slot.filled();
        let (slot, launch) = self.sends.launch(slot, flags)?;
        // SAFETY: `data` is the slot's memory. It is launched before the device learns of the
        // request, and from then on nothing touches that memory until the completion or the
        // destruction of the queue pair, and it keeps the registration.
        let built = unsafe { self.batch.build(launch.id(), operation, data, flags) };
        self.sends.finish(launch.started(built), slot, launch)
    }

    /// As [`QueuePair::post_atomic`], after what was built before.
    ///
    /// # Errors
    /// As for [`Batch::build`]; `BadAtomic` also for a slot of less than 8 bytes.
    #[inline(always)]
    pub fn build_atomic<O>(
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
        let (slot, launch) = self.sends.launch(slot, flags)?;
        // SAFETY: the result is the slot's memory, and slots are aligned to 64 bytes; otherwise as
        // in `build`.
        let built = unsafe { self.batch.build(launch.id(), operation, result, flags) };
        self.sends.finish(launch.started(built), slot, launch)
    }

    /// As [`QueuePair::post_inline`], after what was built before.
    ///
    /// # Errors
    /// Any [`PostError`]. What was built before stays built.
    #[inline(always)]
    pub fn build_inline<'a, O>(
        &mut self,
        operation: O,
        data: &'a [u8],
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        let id = self.sends.id_without_slot(flags);
        // SAFETY: inline data is copied, so no memory is shared; the id is not that of a slot.
        let built = unsafe { self.batch.build(id, operation, Inline(data), flags) };
        self.sends.finish_without_slot(built, id)
    }

    /// As [`QueuePair::post_template`], after what was built before.
    ///
    /// # Errors
    /// `Full`. What was built before stays built.
    #[inline(always)]
    pub fn build_template<O: Operation, const BLOCKS: usize>(
        &mut self,
        template: &InlineTemplate<O, BLOCKS>,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
    {
        let id = self.sends.id_without_slot(template.flags);
        // SAFETY: the template has its data inside, and no other memory; the id is not that of a
        // slot.
        let built = unsafe { self.batch.build_template(id, &template.template) };
        self.sends.finish_without_slot(built, id)
    }

    /// Builds a send whose operation is known only at run time, after what was built before.
    ///
    /// # Errors
    /// The slot, with the reason, which may be a combination that the types of [`Batch::build`] do
    /// not allow. What was built before stays built.
    pub fn build_request(&mut self, request: SlotRequest<'_>) -> Result<(), Refused> {
        let SlotRequest { operation, destination, flags, slot } = request;
        let (slot, data) = used_by(operation, slot)?;
        let (slot, launch) = self.sends.launch(slot, flags)?;
        let (wr_id, data, inline) = (launch.id(), &[data], false);
        let request = SendRequest { wr_id, operation, destination, flags, inline, data };
        // SAFETY: as in `build`, or in `build_atomic`.
        let built = unsafe { self.batch.build_request(&request) };
        self.sends.finish(launch.started(built), slot, launch)
    }

    /// Rings the doorbell for everything built so far, as dropping the batch does.
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

/// Out of line, and by value, so that the batch of the caller stays in registers.
#[inline(never)]
fn publish_dropped<T: QueuePairType, R: Register>(batch: RawBatch<'_, T, R>) {
    batch.publish();
}

/// Receives that the device sees together, when the batch is published or dropped: from
/// [`QueuePair::receive_batch`].
///
/// If a batch is leaked, the device may never see its receives, and their slots may be lost.
#[derive(Debug)]
pub struct ReceiveBatch<'q> {
    batch: ManuallyDrop<RecvBatch<'q>>,
    admission: Admission,
}

impl WorkQueue<Safe> {
    /// Posts a receive that may fill all of `slot`: the device may use it from now on.
    ///
    /// # Errors
    /// The slot, with the reason: `BadState` in RESET, `Full`.
    #[inline(always)]
    #[doc(alias = "ibv_post_wq_recv")]
    pub fn post_receive(&mut self, slot: Slot) -> Result<(), Refused> {
        let Some(receive) = self.queue.receive.as_mut() else {
            return Err(Refused { slot, reason: PostError::NoQueue });
        };
        let (slot, launch) = self.slots.receives().launch(slot)?;
        // SAFETY: as for a queue pair's.
        if unsafe { receive.post_fast(|| launch.receive()) } {
            return Refused::unless(Ok(()), slot);
        }
        self.post_receive_slow(slot)
    }

    #[cold]
    #[inline(never)]
    fn post_receive_slow(&mut self, slot: Slot) -> Result<(), Refused> {
        match self.receive_batch() {
            Ok(mut batch) => batch.build(slot),
            Err(reason) => Err(Refused { slot, reason }),
        }
    }

    /// Starts building several receives, which the device learns of together.
    ///
    /// # Errors
    /// `BadState` in RESET.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> Result<ReceiveBatch<'_>, PostError> {
        let receive = self.queue.receive.as_mut().ok_or(PostError::NoQueue)?;
        Ok(ReceiveBatch::new(receive.batch()?, self.slots.receives()))
    }
}

impl<'q> ReceiveBatch<'q> {
    #[inline(always)]
    fn new(batch: RecvBatch<'q>, admission: Admission) -> Self {
        Self { batch: ManuallyDrop::new(batch), admission }
    }

    /// Builds a receive that may fill all of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason. What was built before stays built.
    #[inline(always)]
    pub fn build(&mut self, slot: Slot) -> Result<(), Refused> {
        let (slot, launch) = self.admission.launch(slot)?;
        // SAFETY: the slot is launched next, and nothing touches its memory until the completion or
        // the destruction of the queue pair; it keeps the registration. The device learns of it
        // only when it is published.
        let built = unsafe { self.batch.build(launch.id(), &[slot.whole()]) };
        Refused::unless(launch.started(built), slot)
    }

    /// Publishes everything built so far, as dropping the batch does.
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
