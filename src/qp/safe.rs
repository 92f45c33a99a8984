//! Queue pairs that take slots.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{AtomicResult, Carries, Inline, Operation, Takes};
use uverbs_mlx5::user_index::QueueHandle;

use super::batch::{Batch, ReceiveBatch};
use super::endpoint::Endpoint;
use super::queue_pair as raw;
use super::{
    Capacities, Connected, QpBuilder, QpInfo, QueuePairType, RateLimit, RawPacket, State,
    Unconnected,
};
use crate::device::address::AddressVector;
use crate::device::context::Context;
use crate::error::Result;
use crate::host::events::{ObjectId, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::memory::Grave;
use crate::memory::header::{CqBits, Serial, header_of};
use crate::memory::posting::{Admission, Refused, Sends, for_atomic};
use crate::memory::slab::Slot;

impl<T: QueuePairType> QpBuilder<T> {
    /// Creates it with a doorbell register of its own, in INIT: receives may be posted, and
    /// [`QueuePair::connect`] does the rest.
    ///
    /// # Errors
    /// `InvalidInput` beyond what the device can; `NotFound` without a usable GID; ENOMEM, with the memlock
    /// limit where that is the likely reason; what else the kernel says.
    pub fn build(self) -> Result<QueuePair<T>> {
        let mut qp = self.build_in_reset()?;
        qp.to_init()?;
        Ok(qp)
    }

    /// As [`QpBuilder::build`], in RESET, to take every step by hand.
    ///
    /// # Errors
    /// As there.
    pub fn build_in_reset(self) -> Result<QueuePair<T>> {
        let signal_all = self.signals_all();
        let domain = self.domain().identity();
        let serial = Serial::new("create_qp")?;
        let [send_cq, receive_cq] = self.completes_to().map(CqBits::of);
        let admit = |flight| Admission { domain, flight };
        let receives = admit(serial.receives(receive_cq));
        let admission = admit(serial.sends(send_cq));
        let mut qp = ManuallyDrop::new(self.build_queue(serial.get())?);
        if let Some(handle) = user(&mut qp) {
            let [sends, receives] = serial.side_contexts();
            // SAFETY: what the queue's slots in flight are known by; nothing of it is in flight yet.
            unsafe { handle.state().set_side_contexts(sends, receives) };
        }
        let sends = Sends { admission, signal_all, pending: ptr::null_mut() };
        Ok(QueuePair { qp, serial, sends, receives, low_water_mark: 0 })
    }
}

/// A queue pair whose memory in flight is out of everybody's reach: see [the module](crate::safe).
pub struct QueuePair<T: QueuePairType> {
    qp: ManuallyDrop<raw::QueuePair<T>>,
    /// What its slots in flight are known by; its completions name it.
    serial: Serial,
    sends: Sends,
    receives: Admission,
    low_water_mark: u32,
}

// SAFETY: `sends.pending` leads to slots in flight, which belong to this queue pair and not to a thread.
unsafe impl<T: QueuePairType> Send for QueuePair<T> {}

impl<T: QueuePairType> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp.fmt(f)
    }
}

impl<T: QueuePairType> QueuePair<T> {
    /// Posts an operation on the filled part of `slot`: what a send or a write carries, or how much a read
    /// fetches.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    #[doc(alias = "ibv_post_send")]
    pub fn post<O>(
        &mut self,
        operation: O,
        slot: Slot,
        flags: PostFlags,
    ) -> std::result::Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<Sge> + Operation,
    {
        let (data, qp) = (slot.filled(), &mut self.qp);
        self.sends.send(slot, flags, |launch| {
            // SAFETY: `data` is the slot's memory. From its launch on nothing touches that until the completion or the
            // destruction of the queue pair, and it keeps the registration.
            unsafe { qp.post_send_as(launch, operation, data, flags) }
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
    ) -> std::result::Result<(), Refused>
    where
        T: Carries<O>,
        O: Takes<AtomicResult> + Operation,
    {
        let (slot, result) = for_atomic(slot)?;
        let qp = &mut self.qp;
        self.sends.send(slot, flags, |launch| {
            // SAFETY: the result is the slot's memory, and slots are aligned to 64 bytes; else as in `post`.
            unsafe { qp.post_send_as(launch, operation, result, flags) }
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
    ) -> std::result::Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<Inline<'a>> + Operation,
    {
        let qp = &mut self.qp;
        self.sends.send_without_slot(flags, |id| {
            // SAFETY: inline data demands nothing; the id is no slot's.
            unsafe { qp.post_send(id, operation, Inline(data), flags) }
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
    pub fn batch(&mut self) -> std::result::Result<Batch<'_, T>, PostError> {
        Ok(Batch::new(self.qp.batch()?, &mut self.sends))
    }

    /// Posts a receive that may fill all of `slot`: the device may use it from now on.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(&mut self, slot: Slot) -> std::result::Result<(), Refused> {
        let qp = &mut self.qp;
        self.receives.receive(slot, |id, data| {
            // SAFETY: the slot is launched then, and nothing touches its memory until the completion or the destruction of
            // the queue pair; it keeps the registration. The device learns of it only when it is published, below.
            unsafe { qp.build_receive(id, data) }
        })?;
        self.qp.publish_receives();
        Ok(())
    }

    /// Receives that were posted and whose completion was not polled; 0 on a shared receive queue. A slot that a completion
    /// brought and that is dropped goes to its slab and not back here, so the number falls by one.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.qp.outstanding_receives()
    }

    /// Sets the number of outstanding receives below which [`receives_run_low`](Self::receives_run_low) says so; 0 at first.
    pub fn set_low_water_mark(&mut self, receives: u32) {
        self.low_water_mark = receives;
    }

    /// Whether fewer receives are outstanding than the low-water mark: to be asked now and then in the loop that polls.
    pub fn receives_run_low(&mut self) -> bool {
        self.outstanding_receives() < self.low_water_mark
    }

    /// Starts posting several receives, of which the device is told together.
    ///
    /// # Errors
    /// `BadState` in RESET, `NoQueue` if it was made without a receive queue of its own.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> std::result::Result<ReceiveBatch<'_>, PostError> {
        Ok(ReceiveBatch::new(self.qp.receive_batch()?, self.receives))
    }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.qp.id()
    }

    /// The state as far as this process knows.
    pub fn state(&self) -> State {
        self.qp.state()
    }

    /// What a peer needs to connect to it, or to send datagrams to it.
    pub fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    /// The address vector that leads to `peer`.
    ///
    /// # Errors
    /// `InvalidInput` where the two cannot talk.
    pub fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        self.qp.address_of(peer)
    }

    /// Asks the device for all attributes.
    ///
    /// # Errors
    /// What the kernel says.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.qp.query()
    }

    /// Takes it to INIT, where receives may be posted.
    ///
    /// # Errors
    /// `InvalidInput` from another state than RESET or INIT; what the kernel says.
    pub fn to_init(&mut self) -> Result<()> {
        self.qp.to_init()
    }

    /// Takes it from INIT to RTR, where it receives: from `peer`, or from anyone if it has no peer.
    ///
    /// # Errors
    /// As [`raw::QueuePair::to_rtr`].
    pub fn to_rtr(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.qp.to_rtr(peer)
    }

    /// Takes it from RTR to RTS, where it sends.
    ///
    /// # Errors
    /// As [`raw::QueuePair::to_rts`].
    pub fn to_rts(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.qp.to_rts(peer)
    }

    /// Takes it to ERR: everything outstanding is flushed, and its slots come back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn to_error(&mut self) -> Result<()> {
        self.qp.to_error()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.qp.context()
    }

    /// What was granted at creation.
    pub fn capacities(&self) -> Capacities {
        self.qp.capacities()
    }

    destroy_methods! {
        "`Deadlock` if this thread holds an event of it; what the kernel says. It comes back unharmed. Slots that \
         were in flight go back to their slabs."
    }
}

impl QueuePair<RawPacket> {
    /// The queue pair that steering rules lead to.
    pub(crate) fn raw(&mut self) -> &mut raw::QueuePair<RawPacket> {
        &mut self.qp
    }
}

impl<T: QueuePairType> Destroy for QueuePair<T> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.qp.destroy_in_place(wait)
    }
}

impl<T: Connected> QueuePair<T> {
    /// Connects to a peer: see [`raw::QueuePair::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        self.qp.connect(peer)
    }
}

impl<T: Unconnected> QueuePair<T> {
    /// Takes the queue pair to RTS: see [`raw::QueuePair::activate`].
    ///
    /// # Errors
    /// As there.
    pub fn activate(&mut self) -> Result<()> {
        self.qp.activate()
    }
}

impl QueuePair<RawPacket> {
    /// Bytes of each frame that have to stand inside its request: see [`raw::QueuePair::inline_header`].
    pub fn inline_header(&self) -> usize {
        self.qp.inline_header()
    }

    /// Limits how fast it sends: see [`raw::QueuePair::modify_rate_limit`].
    ///
    /// # Errors
    /// As there.
    pub fn modify_rate_limit(&mut self, limit: RateLimit) -> Result<()> {
        self.qp.modify_rate_limit(limit)
    }
}

/// Its entry in the table of queues that complete something.
fn user<T: QueuePairType>(qp: &mut raw::QueuePair<T>) -> Option<QueueHandle> {
    // SAFETY: they are only looked at.
    let (send, receive) = unsafe { qp.queues() };
    let handle = send.map(|send| send.handle().clone());
    handle.or_else(|| receive.map(|receive| receive.handle().clone()))
}

impl<T: QueuePairType> Drop for QueuePair<T> {
    fn drop(&mut self) {
        let context = self.qp.context().clone();
        let grave = self.qp.end().then(|| self.grave());
        // SAFETY: `self` is being dropped, so this is the last use of `qp`.
        unsafe { ManuallyDrop::drop(&mut self.qp) };
        if let Some(grave) = grave {
            context.inner().kept.defer(grave);
        }
    }
}

impl<T: QueuePairType> QueuePair<T> {
    /// What is in flight at the end. The queue pair is destroyed and closed, so the device completes nothing
    /// more; a poller may still be taking what had completed before.
    fn grave(&mut self) -> Grave {
        let mut slots = Vec::new();
        let mut note = |wr_id: u64| slots.extend(header_of(wr_id));
        let handle = user(&mut self.qp);
        // SAFETY: they are only looked at.
        let (mut send, mut receive) = unsafe { self.qp.queues() };
        send.iter_mut().for_each(|send| send.for_each_outstanding(&mut note));
        receive.iter_mut().for_each(|receive| receive.for_each_outstanding(&mut note));
        slots.extend(std::ptr::NonNull::new(self.sends.pending));
        Grave::new(handle, slots, self.serial)
    }
}
