//! Queue pairs, typed by their transport.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use uverbs_mlx5::mmio::{BlueFlame, Register};
use uverbs_mlx5::recv_queue::{RecvBatch, RecvQueue};
use uverbs_mlx5::request::{ListError, PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{
    Batch, Carries, Operation, Payload, RequestId, SendQueue, SendRequest, Takes, Template,
};

use super::attributes::QpAttributes;
use super::core::{Core, SteeringRule};
use super::ece::Ece;
use super::endpoint::Endpoint;
use super::modify::QpInfo;
use super::sizes::Capacities;
use super::{Connected, QueuePairType, State, Unconnected};
use crate::device::address::{AddressVector, LinkLayer};
use crate::device::context::Context;
use crate::device::gid::GidChoice;
use crate::error::Result;
use crate::host::events::{Behind, ObjectId, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};

/// A queue pair of kind `T` that rings register `R`.
///
/// Posting takes `&mut self`, which is all the locking there is. Sends and receives may be posted by
/// different threads through [`QueuePair::queues`]; completions are polled from the completion queues, by
/// any thread.
///
/// Dropping it destroys it: outstanding requests complete nothing any more, and the memory that raw requests name
/// is the program's again. Where it cannot be destroyed (a member of a multicast group; the dropping thread holds
/// an event of it; a command that fails) it lives on, with its own memory, until the context is closed: only
/// [`QueuePair::destroy`] tells.
/// A program that uses such memory again at once has to call that. Steering rules that lead to it go with it.
pub struct QueuePair<T: QueuePairType, R: Register = BlueFlame> {
    // Declared before `core`: the queues go before the memory that they post to.
    send: Option<SendQueue<T, R>>,
    receive: Option<RecvQueue>,
    core: Core,
}

impl<T: QueuePairType, R: Register> fmt::Debug for QueuePair<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("transport", &T::TYPE)
            .field("number", &format_args!("{:#x}", self.core.number))
            .field("state", &self.core.known_state())
            .finish_non_exhaustive()
    }
}

impl<T: QueuePairType, R: Register> QueuePair<T, R> {
    pub(super) fn new(
        send: Option<SendQueue<T, R>>,
        receive: Option<RecvQueue>,
        core: Core,
    ) -> Self {
        Self { send, receive, core }
    }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.core.id
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.core.context
    }

    /// Kind of link of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.core.path.link
    }

    /// Own port, from 1.
    pub fn port(&self) -> u8 {
        self.core.path.options.port
    }

    /// A steering rule leads here.
    pub(crate) fn keep_rule(&mut self, rule: Arc<dyn SteeringRule>) {
        self.core.keep_rule(rule);
    }

    pub(super) fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.core.handle
    }

    /// What was granted at creation.
    pub fn capacities(&self) -> Capacities {
        self.core.capacities
    }

    /// The state as far as this process knows: what it asked for, or what an event or a completion told
    /// since. [`QueuePair::query`] asks the device.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// What a peer needs to connect to it, or to send datagrams to it.
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }

    /// The GID in use, and why; `None` where InfiniBand does without.
    pub fn gid(&self) -> Option<&GidChoice> {
        self.core.path.gid()
    }

    /// The address vector that leads from this queue pair's port to `peer`.
    ///
    /// # Errors
    /// `InvalidInput` where the two cannot talk: different kinds of link or of GID.
    pub fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        self.core.path.address_of(peer)
    }

    /// Changes attributes, one step at a time (ibv_modify_qp).
    ///
    /// A change to RESET takes what was posted before: its completions that a completion queue still holds are not reported, unless
    /// another thread is polling them at that moment.
    ///
    /// # Errors
    /// `InvalidInput` naming the attributes that are missing, too many or out of range, before the kernel
    /// is asked; what the kernel says. Nothing has changed then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.core.modify(attributes)?;
        if attributes.state == Some(State::Reset) {
            self.start_over();
        }
        Ok(())
    }

    /// Starts over after a reset.
    fn start_over(&mut self) {
        let Some(queue) = &mut self.core.queue else { return };
        *queue = queue.renew();
        let events = self.core.context.inner().events.gate();
        events.set_behind(self.core.id, Behind::Queue(queue.clone()));
        self.send.iter_mut().for_each(|send| send.reset(queue.clone()));
        self.receive.iter_mut().for_each(|receive| receive.reset(queue.clone()));
    }

    /// Takes it to INIT, where receives may be posted, with the port and the rights of its builder.
    ///
    /// # Errors
    /// `InvalidInput` from another state than RESET or INIT; what the kernel says.
    pub fn to_init(&mut self) -> Result<()> {
        let attributes = self.core.path.to_init(T::TYPE);
        self.modify(&attributes)
    }

    /// Takes it from INIT to RTR, where it receives: from `peer`, or from anyone if it has no peer.
    ///
    /// # Errors
    /// `BadState` from another state; `InvalidInput` where the two ends cannot talk, or without the peer that a
    /// connected queue pair needs; what the kernel says.
    pub fn to_rtr(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.core.move_to_rtr(peer)
    }

    /// Takes it from RTR to RTS, where it sends, with the timeouts and retries of its builder.
    ///
    /// # Errors
    /// `InvalidInput` from another state; what the kernel says.
    pub fn to_rts(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.core.move_to_rts(peer)
    }

    /// Asks the device for all attributes (ibv_query_qp).
    ///
    /// # Errors
    /// What the kernel says.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.core.query()
    }

    /// The options of enhanced connection establishment that the device has, or has granted since
    /// (ibv_query_ece); see [`Ece`](super::Ece).
    ///
    /// # Errors
    /// `Unsupported` where the device has none.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.ece.query(&self.core.context)
    }

    /// Asks for options of enhanced connection establishment, the peer's for instance, with the next change of
    /// attributes (ibv_set_ece).
    ///
    /// # Errors
    /// `Unsupported` where the device has none; `InvalidInput` for those of another vendor.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        self.core.ece.set(&self.core.context, ece)
    }

    /// Takes it to ERR: everything outstanding is flushed.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Err))
    }

    /// Takes it to RESET: what was posted before completes nothing any more. See [`QueuePair::modify`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Reset))
    }

    /// Both posting sides, for two threads, or for everything that this type does not offer.
    ///
    /// # Safety
    /// They stay where they are: neither is exchanged with another queue pair's (by `mem::swap` and the like),
    /// since each posts to memory that this queue pair frees when it goes.
    pub unsafe fn queues(&mut self) -> (Option<&mut SendQueue<T, R>>, Option<&mut RecvQueue>) {
        (self.send.as_mut(), self.receive.as_mut())
    }

    /// The places of both posting sides, for two threads that hold no reference to the queue pair at the time.
    ///
    /// # Safety
    /// `this` points to a queue pair. What is true of [`QueuePair::queues`] is true of what the places hold, and a
    /// place is not used while a method of the queue pair runs.
    pub unsafe fn sides(this: *mut Self) -> (*mut Option<SendQueue<T, R>>, *mut Option<RecvQueue>) {
        // SAFETY: the caller's promise; no reference is made.
        unsafe { (&raw mut (*this).send, &raw mut (*this).receive) }
    }

    /// Starts building sends, to be published together.
    ///
    /// # Errors
    /// [`PostError::BadState`] before RTS; `NoQueue` if it was made without a send queue.
    #[inline(always)]
    #[doc(alias = "ibv_wr_start")]
    pub fn batch(&mut self) -> std::result::Result<Batch<'_, T, R>, PostError> {
        match &mut self.send {
            Some(send) => send.batch(),
            None => Err(PostError::NoQueue),
        }
    }

    /// Builds one send and rings the doorbell for it, and for whatever was built before and not yet
    /// published. What it is ordered with: `docs/ordering.md`.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// The memory that `payload` names stays registered, and is not used against the device's reading (or,
    /// for reads and atomics, writing) it, until the request has completed or the queue pair has been
    /// destroyed. Inline data and `()` demand nothing. The addresses of READs and atomics are this process's
    /// own (not those of a registration with another `iova`) if the queue pair was made with
    /// [`QpBuilder::scatter_reads_to_cqe`](super::QpBuilder::scatter_reads_to_cqe): the poller may write the result.
    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    pub unsafe fn post_send<O, P>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> std::result::Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_send_as(wr_id, operation, payload, flags) }
    }

    /// [`QueuePair::post_send`] with an id that is asked for once nothing can fail any more.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn post_send_as<I, O, P>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> std::result::Result<(), PostError>
    where
        I: RequestId,
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        match &mut self.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.submit_as(wr_id, operation, payload, flags) },
            None => Err(PostError::NoQueue),
        }
    }

    /// Posts requests whose operations are known at run time only, in order, and rings the doorbell once for all that
    /// were posted (`ibv_post_send` with a list).
    ///
    /// # Errors
    /// The first request that cannot be posted, with the reason; those before it are posted and rung.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], for each of them.
    #[doc(alias = "ibv_post_send")]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = impl Borrow<SendRequest<'a>>>,
    ) -> std::result::Result<(), ListError> {
        match &mut self.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.post_list(requests) },
            None => Err(ListError { index: 0, reason: PostError::NoQueue }),
        }
    }

    /// Builds a request of one block (64 bytes) for posting it again and again, with other data or another address
    /// ([`Template`]), by this queue pair or by others of its service.
    ///
    /// # Errors
    /// What posting it would say but `Full` and `BadState`; `NotATemplate` if it takes more than one block (more than one
    /// SGE, more than 44 bytes of inline data, or 28 with a remote address), or has less than 8 bytes of inline data.
    pub fn template<O, P>(
        &mut self,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> std::result::Result<Template<O>, PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        self.send.as_mut().ok_or(PostError::NoQueue)?.template(operation, payload, flags)
    }

    /// Posts a template's request and rings the doorbell. Several share one in a batch: [`Batch::post_template`].
    ///
    /// # Errors
    /// `BadState` before RTS, `Full`, `NoQueue`.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], for the memory that the template names.
    #[inline(always)]
    pub unsafe fn post_template<O: Operation>(
        &mut self,
        wr_id: u64,
        template: &Template<O>,
    ) -> std::result::Result<(), PostError>
    where
        T: Carries<O>,
    {
        match &mut self.send {
            // SAFETY: the caller's promise is the same.
            Some(send) => unsafe { send.submit_template(wr_id, template) },
            None => Err(PostError::NoQueue),
        }
    }

    /// Posts one receive: the device may use it from now on, as it may what was built before and not yet published.
    ///
    /// # Errors
    /// Any [`PostError`], nothing has been stored then: `BadState` in RESET, `NoQueue` if it was made without a receive
    /// queue of its own.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process until the
    /// receive has completed or the queue pair has been destroyed. Addresses as for
    /// [`QueuePair::post_send`]: the poller may write a short message.
    #[inline(always)]
    #[doc(alias = "ibv_post_recv")]
    pub unsafe fn post_receive(
        &mut self,
        wr_id: u64,
        data: &[Sge],
    ) -> std::result::Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.build_receive(wr_id, data) }?;
        self.publish_receives();
        Ok(())
    }

    /// Receives that were posted and whose completion was not polled: 0 without a receive queue of its own. A program whose
    /// receives come back one by one can watch it fall.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.receive.as_mut().map_or(0, RecvQueue::outstanding)
    }

    /// Starts building receives, to be published together.
    ///
    /// # Errors
    /// `BadState` in RESET, `NoQueue` if it was made without a receive queue of its own.
    #[inline(always)]
    pub fn receive_batch(&mut self) -> std::result::Result<RecvBatch<'_>, PostError> {
        match &mut self.receive {
            Some(receive) => receive.batch(),
            None => Err(PostError::NoQueue),
        }
    }

    /// As [`QueuePair::post_receive`], but that the device is not told yet.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn build_receive(
        &mut self,
        wr_id: u64,
        data: &[Sge],
    ) -> std::result::Result<(), PostError> {
        match &mut self.receive {
            // SAFETY: the caller's promise is the same.
            Some(receive) => unsafe { receive.post(wr_id, data) },
            None => Err(PostError::NoQueue),
        }
    }

    /// Tells the device of what was built.
    #[inline(always)]
    pub(crate) fn publish_receives(&mut self) {
        if let Some(receive) = &mut self.receive {
            receive.publish();
        }
    }

    destroy_methods! {
        "`Deadlock` if this thread holds an event of it; `Busy` while steering rules lead to it; what the kernel says. It \
         comes back unharmed."
    }

    /// Destroys it where nobody can be told of a failure; whether it is gone.
    pub(crate) fn end(&mut self) -> bool {
        let Err(error) = self.core.end() else { return true };
        self.core.keep(&error, (self.send.take(), self.receive.take()));
        false
    }
}

impl<T: QueuePairType, R: Register> Destroy for QueuePair<T, R> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}

impl<T: Connected, R: Register> QueuePair<T, R> {
    /// Connects to a peer: takes the queue pair from RESET or INIT to RTS. Both ends do this, each with the
    /// other's endpoint.
    ///
    /// # Errors
    /// `InvalidInput` where the two ends cannot talk (different links, kinds of GID); `BadState` from
    /// another state; what the kernel says, with what it may mean for the path.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        if self.core.state == State::Reset {
            self.to_init()?;
        }
        self.core.connect(Some(peer))
    }
}

impl<T: Unconnected, R: Register> QueuePair<T, R> {
    /// Takes the queue pair from RESET or INIT to RTS.
    ///
    /// # Errors
    /// `BadState` from another state; what the kernel says.
    pub fn activate(&mut self) -> Result<()> {
        if self.core.state == State::Reset {
            self.to_init()?;
        }
        self.core.connect(None)
    }
}

impl<T: QueuePairType, R: Register> Drop for QueuePair<T, R> {
    fn drop(&mut self) {
        self.end();
    }
}
