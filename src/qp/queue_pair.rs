//! Queue pairs, typed by what they carry and by their layer.

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

/// A queue pair of kind `T` that rings register `R`.
///
/// Posting takes `&mut self`, which is all the locking there is. Where one thread sends and another
/// one receives, the receiver has a shared receive queue (`ProtectionDomain::create_srq`) and a
/// completion queue of its own. The raw layer also lends both sides ([`QueuePair::queues`]).
///
/// Dropping it destroys it: outstanding requests complete nothing any more, and the memory that raw
/// requests name is the program's again. If it cannot be destroyed (it is a member of a multicast
/// group; the dropping thread holds an event of it; the command fails), it and its own memory stay
/// until the context is closed, and slots that it holds keep the context open. Only
/// [`QueuePair::destroy`] reports that, so a program that reuses such memory at once has to call
/// it. Steering rules to the queue pair are destroyed with it.
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

/// The posting sides that a queue pair has.
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

    /// Kind of link of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.core.found().link
    }

    /// The local port, from 1.
    pub fn port(&self) -> u8 {
        self.core.path.options.port
    }

    /// What steering rules lead to.
    pub(crate) fn steering_target(&mut self) -> &mut dyn SteeringTarget {
        &mut self.core
    }

    /// Destroys it as its `Drop` does, steering rules first. Does nothing the second time.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.core.end()
    }

    /// What was granted at creation.
    pub fn capacities(&self) -> Capacities {
        self.core.capacities
    }

    /// The state as far as this process knows: what it asked for, or what an event or a completion
    /// told since. [`QueuePair::query`] asks the device.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// What a peer needs to connect to it, or to send datagrams to it.
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }

    /// The GID in use, and why; `None` where InfiniBand does without.
    pub fn gid(&self) -> Option<&GidChoice> {
        self.core.found().gid.as_ref()
    }

    /// The address vector that leads from this queue pair's port to `peer`.
    ///
    /// # Errors
    /// `InvalidInput` where the two cannot talk: different kinds of link or of GID.
    pub fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        self.core.path.address_of("address_of", &self.core.context, peer)
    }

    /// Changes attributes, one step at a time (ibv_modify_qp).
    ///
    /// A change to RESET discards everything posted before: completions of it that are still in a
    /// completion queue are not reported, unless another thread is polling them at that moment.
    ///
    /// # Errors
    /// `InvalidInput` naming the attributes that are missing, too many or out of range, before the
    /// kernel is asked; errors of the kernel. Nothing has changed then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.modify_or_reset(attributes)
    }

    /// Takes it to INIT, where receives may be posted, with the port and the rights of its builder.
    ///
    /// # Errors
    /// `InvalidInput` from another state than RESET or INIT; errors of the kernel.
    pub fn to_init(&mut self) -> Result<()> {
        let attributes = self.core.path.to_init();
        self.modify(&attributes)
    }

    /// Takes it from INIT to RTR, where it receives: from `peer`, or from anyone if it has no peer.
    ///
    /// # Errors
    /// `BadState` from another state; `InvalidInput` where the two ends cannot talk, or without the
    /// peer that a connected queue pair needs; errors of the kernel.
    pub fn to_rtr(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.core.move_to_rtr(peer)
    }

    /// Takes it from RTR to RTS, where it sends, with the timeouts and retries of its builder.
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

    /// The options of enhanced connection establishment that the device has, or has granted since
    /// (ibv_query_ece); see [`Ece`].
    ///
    /// # Errors
    /// `Unsupported` where the device has none.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.ece.query(&self.core.context)
    }

    /// Asks for options of enhanced connection establishment, the peer's for instance, with the
    /// next change of attributes (ibv_set_ece).
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
    /// Errors of the kernel.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Err))
    }

    /// Takes it to RESET: requests posted before complete nothing any more. Their completions that
    /// are already in a completion queue occupy entries there until the next poll drops them. If
    /// the other entries are fewer than the requests that were granted, posts are `Full` that much
    /// earlier, so that the completion queue never overruns. See [`QueuePair::modify`].
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttributes::to(State::Reset))
    }

    /// Receives that were posted and whose completion was not polled yet; 0 without a receive queue
    /// of its own.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.queues.receive.as_mut().map_or(0, RecvQueue::outstanding)
    }

    destroy_methods! {
        "ibv_destroy_qp",
        "`Deadlock` if this thread holds an event of it; `Busy` while steering rules lead to it; errors of the kernel. It \
         is returned unchanged."
    }
}

impl<T: QueuePairType, L: Layer, R: Register> Destroy for QueuePair<T, L, R> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}

impl<T: Connected, L: Layer, R: Register> QueuePair<T, L, R> {
    /// Connects to a peer: takes the queue pair from RESET or INIT to RTS. Both ends do this, each
    /// with the other's endpoint.
    ///
    /// # Errors
    /// `InvalidInput` where the two ends cannot talk (different links or kinds of GID, a datagram
    /// queue pair); `BadState` from another state; errors of the kernel, with what it may mean for
    /// the path.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        if self.core.state == State::Reset {
            self.to_init()?;
        }
        self.core.connect("connect", Some(peer))
    }
}

impl<T: Unconnected, L: Layer, R: Register> QueuePair<T, L, R> {
    /// Takes the queue pair from RESET or INIT to RTS.
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
