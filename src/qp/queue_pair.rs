//! Queue pairs, with their type and layer as parameters.

use std::fmt;
use std::sync::Arc;

use uverbs_mlx5::mmio::{BlueFlame, Register};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::send_queue::SendQueue;

use super::attributes::QpAttributes;
use super::core::{Core, SteeringTarget};
use super::ece::Ece;
use super::endpoint::Endpoint;
use super::modify::QpInfo;
use super::safe::Slots;
use super::sizes::Capacities;
use super::{Connected, QueuePairType, State, Unconnected};
use crate::device::address::{AddressVector, LinkLayer};
use crate::device::gid::GidChoice;
use crate::device::identity::identity_methods;
use crate::device::layer::{Layer, Safe};
use crate::error::Result;
use crate::host::events::Wait;
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::mlx5::queues::{Anchored, RingMemory};
use crate::mlx5::uar::Register as Page;

/// A queue pair of type `T`, with a doorbell register of type `R`.
///
/// Posting takes `&mut self`; there is no other lock. To send in one thread and receive in another,
/// give the receiver a shared receive queue (`ProtectionDomain::create_srq`) and its own completion
/// queue. The raw layer can also borrow both sides separately ([`QueuePair::queues`]).
///
/// Dropping it destroys it: outstanding requests produce no more completions, and the program may
/// reuse the memory that raw requests name. The destruction can fail (the queue pair is a member of
/// a multicast group; the dropping thread holds an event of it; the command fails). Then the queue
/// pair and its own memory stay until the context is closed, and slots in flight keep the context
/// open. Only [`QueuePair::destroy`] reports the failure, so a program that reuses such memory has
/// to call it. Dropping also destroys steering rules that lead to the queue pair. A receive of a
/// shared queue that it has begun to fill is lost, unless `to_error` was called before.
///
/// ```no_run
/// use uverbs::qp_type::Rc;
/// let context = uverbs::open_default()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(256).build()?);
/// let mut a = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
/// let mut b = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
/// a.connect(&b.endpoint())?;
/// b.connect(&a.endpoint())?;
/// # Ok::<(), uverbs::Error>(())
/// ```
pub struct QueuePair<T: QueuePairType, L: Layer = Safe, R: Register = BlueFlame> {
    pub(super) queues: Anchored<Queues<T, R>, (Arc<RingMemory>, Arc<Page>)>,
    pub(super) core: Core,
    pub(super) slots: L::IfSafe<Slots>,
}

/// The send queue and the receive queue, if the queue pair has them.
#[derive(Debug)]
pub(super) struct Queues<T: QueuePairType, R: Register> {
    pub(super) send: Option<SendQueue<T, R>>,
    pub(super) receive: Option<RecvQueue>,
}

impl<T: QueuePairType, L: Layer, R: Register> fmt::Debug for QueuePair<T, L, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_type", &T::TYPE)
            .field("number", &format_args!("{:#x}", self.core.number))
            .field("state", &self.core.known_state())
            .finish_non_exhaustive()
    }
}

impl<T: QueuePairType, L: Layer, R: Register> QueuePair<T, L, R> {
    pub(super) fn new(
        queues: Anchored<Queues<T, R>, (Arc<RingMemory>, Arc<Page>)>,
        core: Core,
        slots: L::IfSafe<Slots>,
    ) -> Self {
        Self { queues, core, slots }
    }

    identity_methods! { core }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// The link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.core.found().link
    }

    /// The local port, from 1.
    pub fn port(&self) -> u8 {
        self.core.path.options.port
    }

    /// The queue pair as the destination of steering rules.
    pub(crate) fn steering_target(&mut self) -> &mut dyn SteeringTarget {
        &mut self.core
    }

    /// Destroys it as `Drop` does, steering rules first. Does nothing the second time.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.core.end()
    }

    /// The capacities granted at creation.
    pub fn capacities(&self) -> Capacities {
        self.core.capacities
    }

    /// The state as this process knows it, from its own changes and from events and completions.
    /// [`QueuePair::query`] asks the device.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// The data that a peer needs to connect to it, or to send datagrams to it.
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }

    /// The GID in use and the reason for the choice; `None` if an InfiniBand port uses none.
    pub fn gid(&self) -> Option<&GidChoice> {
        self.core.found().gid.as_ref()
    }

    /// The address vector that leads from this queue pair's port to `peer`.
    ///
    /// # Errors
    /// `InvalidInput` if the two have different link layers or kinds of GID.
    pub fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        self.core.path.address_of("address_of", &self.core.context, peer)
    }

    /// Changes attributes, one step at a time (ibv_modify_qp).
    ///
    /// A change to RESET discards all posted requests. Their completions that are still in a
    /// completion queue are not reported, unless another thread is polling them at that moment.
    ///
    /// # Errors
    /// `InvalidInput`, without asking the kernel, with the attributes that are missing, not allowed
    /// or out of range; errors of the kernel. On an error nothing has changed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.modify_or_reset(attributes)
    }

    /// Moves it to INIT, where receives may be posted, with the builder's port and access rights.
    ///
    /// # Errors
    /// `InvalidInput` from another state than RESET or INIT; errors of the kernel.
    pub fn to_init(&mut self) -> Result<()> {
        let attributes = self.core.path.to_init();
        self.modify(&attributes)
    }

    /// Moves it from INIT to RTR, where it receives from `peer`, or from any sender if its type has
    /// no peer.
    ///
    /// # Errors
    /// `InvalidInput` from another state, if the two ends do not match, or if a connected queue
    /// pair is given no peer; errors of the kernel.
    pub fn to_rtr(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.core.move_to_rtr(peer)
    }

    /// Moves it from RTR to RTS, where it sends, with the builder's timeouts and retries.
    ///
    /// # Errors
    /// `InvalidInput` from another state; errors of the kernel.
    pub fn to_rts(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.core.move_to_rts(peer)
    }

    /// Asks the device for all attributes (ibv_query_qp).
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.core.query()
    }

    /// The options of enhanced connection establishment (ECE) that the device granted last: at
    /// creation, or in a later change (ibv_query_ece). See [`Ece`].
    ///
    /// # Errors
    /// `Unsupported` if the device has no ECE.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.ece.query(&self.core.context)
    }

    /// Sets the ECE options, for example the peer's, to request in the next change of attributes
    /// (ibv_set_ece).
    ///
    /// # Errors
    /// `Unsupported` if the device has no ECE; `InvalidInput` for options of another vendor.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        self.core.ece.set(&self.core.context, ece)
    }

    /// Moves it to ERR: all outstanding requests complete with a flush error.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Err))
    }

    /// Moves it to RESET: requests posted before produce no more completions. Completions that are
    /// already in a completion queue occupy entries there until the next poll drops them. If fewer
    /// entries are left than requests were granted, posts return `Full` earlier, so that the
    /// completion queue never overruns. The endpoint keeps its PSN, so the next connection accepts
    /// late packets of the last one; a new queue pair does not. See [`QueuePair::modify`].
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Reset))
    }

    /// The number of posted receives whose completions have not been polled; 0 without a receive
    /// queue.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.queues.receive.as_mut().map_or(0, RecvQueue::outstanding)
    }

    destroy_methods! {
        "ibv_destroy_qp",
        "`Deadlock` if this thread holds an event of it; `Busy` while steering rules lead to it; errors of the kernel. The \
         error contains it unchanged."
    }
}

impl<T: QueuePairType, L: Layer, R: Register> Destroy for QueuePair<T, L, R> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}

impl<T: Connected, L: Layer, R: Register> QueuePair<T, L, R> {
    /// Connects to a peer: moves the queue pair from RESET or INIT to RTS. Both ends call it, each
    /// with the other's endpoint.
    ///
    /// # Errors
    /// `InvalidInput` if the two ends do not match (different link layers or kinds of GID, a
    /// datagram queue pair); `BadState` from another state; errors of the kernel, with a likely
    /// cause on the path.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        if self.core.state == State::Reset {
            self.to_init()?;
        }
        self.core.connect("connect", Some(peer))
    }
}

impl<T: Unconnected, L: Layer, R: Register> QueuePair<T, L, R> {
    /// Moves the queue pair from RESET or INIT to RTS.
    ///
    /// # Errors
    /// `BadState` from another state; errors of the kernel.
    pub fn activate(&mut self) -> Result<()> {
        if self.core.state == State::Reset {
            self.to_init()?;
        }
        self.core.connect("activate", None)
    }
}

impl<T: QueuePairType, L: Layer, R: Register> Drop for QueuePair<T, L, R> {
    fn drop(&mut self) {
        match self.core.end() {
            Ok(()) => {
                if let Some(slots) = L::get(&mut self.slots) {
                    let left = slots.abandoned(self.core.queue.clone(), &mut self.queues);
                    self.core.context.inner().kept.defer(left);
                }
            }
            Err(error) => {
                let queues = (self.queues.send.take(), self.queues.receive.take());
                self.core.keep(&error, queues);
            }
        }
    }
}
