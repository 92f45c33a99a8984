//! The communication management protocol engine, ib_cm: IBTA volume 1, chapter 12, as implemented
//! in Linux's `drivers/infiniband/core/cm.c`.
//!
//! An [`IbCm`] belongs to one device. It has ids ([`CmId`]), each with a [`State`], and takes three
//! kinds of input: calls of its user, datagrams ([`IbCm::receive`]) and the time ([`IbCm::step`]).
//! It has two kinds of output: datagrams ([`IbCm::take_mad`]) and events ([`IbCm::take_event`]).
//! Times are nanoseconds of a monotonic clock.
//!
//! It differs from the kernel in three points:
//! - a datagram about an id is ignored unless it comes from the peer's GID, because its ids can be
//!   guessed; and a stale connection is ended only by a request of its own peer;
//! - the times that a peer asks for in REQ and MRA are bounded, so that it cannot hold an id for
//!   days;
//! - the answer to REQ goes to the GID that the REQ came from, not to the one that it names.
//!
//! Retries are sent exactly on time here. The kernel's timers are late by about 5 % for periods of
//! seconds.

mod active;
mod attributes;
mod counters;
mod disconnect;
mod event;
mod id;
mod listeners;
mod lost;
mod param;
mod passive;
mod refuse;
mod sidr;
mod timer;

pub use attributes::{InitAttr, Requester, RtrAttr, RtsAttr};
pub use counters::{Counters, MessageCounts};
pub use event::{Event, Origin};
pub use id::{CmId, State};
pub use param::{Ece, MraTiming, Path, RepParam, ReqParam, SidrRepParam, SidrReqParam};

use std::collections::{HashMap, VecDeque};

use self::id::Id;
use self::listeners::{Listener, Listeners};
use self::timer::Timers;
use crate::mad::{
    Attribute, Body, CommId, Drep, Dreq, Mad, Mra, Rej, RejReason, Rejected, Rep, Req, Rtu,
    SidrRep, SidrReq,
};
use uverbs_soft_packet::prng::RandomSource;
use uverbs_soft_packet::{Addressing, Gid};

/// Configuration of an engine.
#[derive(Clone, Debug, Default)]
pub struct IbCmConfig {
    /// GUID of the device.
    pub node_guid: u64,
    /// The time in which the device acknowledges a packet: `4.096 us << n` (`local_ca_ack_delay`).
    pub ack_delay: u8,
    /// Seed of the communication ids; `None` makes them unpredictable.
    pub seed: Option<u64>,
    /// Maps the GID of a device to the source GID in its packets; `None` if they are the same.
    pub gid_on_wire: Option<fn(Gid) -> Gid>,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// No such id.
    #[error("no such id")]
    NoSuchId,
    /// The id's state does not allow the call.
    #[error("not in state {0:?}")]
    State(State),
    /// More private data, or additional information, than the message holds.
    #[error("more private data than the message can hold")]
    TooLong,
    /// Another id listens to the service id.
    #[error("another id listens to the service id")]
    Busy,
    /// The connection is established already.
    #[error("the connection is established already")]
    IsConnected,
    /// Not a connected transport service type.
    #[error("not a transport service type that is connected")]
    Transport,
}

impl CmError {
    /// The kernel's errno.
    pub fn errno(self) -> i32 {
        match self {
            Self::NoSuchId => libc::ENOENT,
            Self::Busy => libc::EBUSY,
            Self::IsConnected => libc::EISCONN,
            Self::State(_) | Self::TooLong | Self::Transport => libc::EINVAL,
        }
    }
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Addressing of its packet.
    pub addressing: Addressing,
    /// The datagram, from QP1 to QP1.
    pub mad: Mad,
}

/// The engine of one device.
#[derive(Debug)]
pub struct IbCm {
    config: IbCmConfig,
    ids: HashMap<CmId, Id>,
    next: u32,
    /// Communication ids are an id's number XORed with this word.
    operand: u32,
    listeners: Listeners,
    /// Ids by the peer's CA GUID and communication id, from REQ or REP until timewait.
    remote_ids: HashMap<(u64, CommId), CmId>,
    /// Ids by the peer's CA GUID and queue pair, from REQ or REP until timewait.
    remote_qpns: HashMap<(u64, u32), CmId>,
    /// Ids of resolution requests by the peer's GID and request id.
    remote_sidr: HashMap<(Gid, CommId), CmId>,
    timers: Timers,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<(CmId, Event)>,
    counters: Counters,
    /// The upper half of the transaction ids, which the kernel uses for the MAD agent.
    agent: u32,
}

impl IbCm {
    /// An engine without ids.
    pub fn new(config: IbCmConfig) -> Self {
        let mut random = RandomSource::new(config.seed);
        let (operand, agent) = (random.draw() as u32, 1);
        let (ids, next, listeners) = (HashMap::new(), 0, Listeners::default());
        let (remote_ids, remote_qpns, remote_sidr) = Default::default();
        let (timers, outgoing, events, counters) = Default::default();
        Self {
            config,
            ids,
            next,
            operand,
            listeners,
            remote_ids,
            remote_qpns,
            remote_sidr,
            timers,
            outgoing,
            events,
            counters,
            agent,
        }
    }

    /// A new idle id.
    pub fn create(&mut self) -> CmId {
        let id = self.free_id();
        self.ids.insert(id, Id::default());
        id
    }

    /// The next number. Numbers increase and wrap, so that none is reused soon. 0 is skipped,
    /// because it means an unknown communication id.
    fn free_id(&mut self) -> CmId {
        loop {
            let id = CmId(self.next);
            self.next = self.next.wrapping_add(1);
            if !self.ids.contains_key(&id) && self.comm_id(id) != CommId::UNKNOWN {
                return id;
            }
        }
    }

    /// State of an id; `None` if there is no such id.
    pub fn state(&self, id: CmId) -> Option<State> {
        self.ids.get(&id).map(|id| id.state)
    }

    /// How many ids there are.
    pub fn id_count(&self) -> usize {
        self.ids.len()
    }

    /// The next datagram to send.
    pub fn take_mad(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The next event, with its id.
    pub fn take_event(&mut self) -> Option<(CmId, Event)> {
        self.events.pop_front()
    }

    /// Messages sent, retried and received so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Listens to all service ids that equal `service_id` in the bits of `mask`; 0 for all bits.
    ///
    /// # Errors
    /// [`CmError::Busy`] if another id listens to one of them, [`CmError::State`] unless the id is
    /// idle.
    pub fn listen(&mut self, id: CmId, service_id: u64, mask: u64) -> Result<(), CmError> {
        self.expect_state(id, &[State::Idle])?;
        let mask = if mask == 0 { u64::MAX } else { mask };
        let listener = Listener { id, service_id: service_id & mask, mask };
        if !self.listeners.add(listener) {
            return Err(CmError::Busy);
        }
        self.id_mut(id)?.state = State::Listen;
        Ok(())
    }

    fn listener(&self, service_id: u64) -> Option<CmId> {
        self.listeners.find(service_id)
    }

    /// Handles a datagram with the addressing of its packet. Ignores datagrams of other management
    /// classes.
    pub fn receive(&mut self, now: u64, addressing: &Addressing, bytes: &[u8]) {
        let Ok(mad) = Mad::parse(bytes) else {
            return;
        };
        let Ok(attribute) = mad.attribute() else {
            return;
        };
        self.counters.received.count(attribute);
        self.dispatch(now, addressing, mad, attribute);
    }

    fn dispatch(&mut self, now: u64, from: &Addressing, mad: &Mad, attribute: Attribute) {
        match attribute {
            // A multicast GID is never a port's, so the kernel has no source address for an answer
            // (`ib_init_ah_attr_from_wc` in core/verbs.c), and drops the request.
            Attribute::Req | Attribute::SidrReq if from.is_multicast() => {}
            Attribute::Req => self.with(mad, |cm, body: &Req| cm.on_req(now, from, mad, body)),
            Attribute::Mra => self.with(mad, |cm, body: &Mra| cm.on_mra(now, from, body)),
            Attribute::Rej => self.with(mad, |cm, body: &Rej| cm.on_rej(now, from, body)),
            Attribute::Rep => self.with(mad, |cm, body: &Rep| cm.on_rep(now, from, mad, body)),
            Attribute::Rtu => self.with(mad, |cm, body: &Rtu| cm.on_rtu(from, body)),
            Attribute::Dreq => self.with(mad, |cm, body: &Dreq| cm.on_dreq(from, mad, body)),
            Attribute::Drep => self.with(mad, |cm, body: &Drep| cm.on_drep(now, from, body)),
            Attribute::SidrReq => {
                self.with(mad, |cm, body: &SidrReq| cm.on_sidr_req(from, mad, body))
            }
            Attribute::SidrRep => {
                self.with(mad, |cm, body: &SidrRep| cm.on_sidr_rep(from, mad, body))
            }
            // LAP is refused on RoCE; on InfiniBand the kernel's rdma_cm ignores both.
            Attribute::Lap | Attribute::Apr => {}
        }
    }

    fn with<B: Body>(&mut self, mad: &Mad, handler: impl FnOnce(&mut Self, &B)) {
        if let Some(body) = mad.body::<B>() {
            handler(self, body);
        }
    }

    /// Destroys an id. The peer gets the message that the id's state requires. Pending events of
    /// the id are dropped.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`].
    pub fn destroy(&mut self, now: u64, id: CmId) -> Result<(), CmError> {
        self.end_state(now, id)?;
        self.remove(id);
        Ok(())
    }

    /// Destroys an id without a message to its peer, which then retries its request. The kernel
    /// does so when it is out of memory, and rdma_cm when the backlog is full.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`].
    pub fn forget(&mut self, id: CmId) -> Result<(), CmError> {
        self.id_mut(id)?;
        self.remove(id);
        Ok(())
    }

    /// Ends what the id's state has in progress, and sends the peer the message that the state
    /// requires.
    fn end_state(&mut self, now: u64, id: CmId) -> Result<(), CmError> {
        match self.id(id)?.state {
            State::Listen => self.listeners.remove(id),
            State::SidrReqReceived => self.refuse_sidr(id),
            State::ReqSent | State::MraReqReceived => {
                let guid = self.config.node_guid.to_be_bytes();
                self.send_rej(now, id, RejReason::TIMEOUT, &guid, &[])?;
            }
            State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent
            | State::RepSent
            | State::MraRepReceived => {
                self.send_rej(now, id, RejReason::CONSUMER_DEFINED, &[], &[])?;
            }
            State::Established => {
                self.send_dreq(now, id, &[])?;
                self.enter_timewait(now, id);
            }
            State::DreqSent => self.enter_timewait(now, id),
            State::DreqReceived => self.send_drep(now, id, &[])?,
            State::Idle | State::SidrReqSent | State::TimeWait => {}
        }
        Ok(())
    }

    fn remove(&mut self, id: CmId) {
        self.forget_remote(id);
        self.listeners.remove(id);
        self.forget_sidr(id);
        self.events.retain(|(entry, _)| *entry != id);
        self.ids.remove(&id);
    }

    /// Handles everything that is due at `now`: retries, failures after the last retry, ends of
    /// timewait. Returns the addressing of the messages that were sent again, so that the caller
    /// can check whether those peers still exist.
    pub fn step(&mut self, now: u64) -> Vec<Addressing> {
        let mut repeated = Vec::new();
        while let Some(due) = self.timers.pop_due(now) {
            match due {
                timer::Due::Retry(id) => repeated.extend(self.retry(now, id)),
                timer::Due::TimeWait(wait) => self.end_timewait(wait),
            }
        }
        repeated
    }

    /// When [`step`](Self::step) is due next; `None` until there is an input.
    pub fn next_wake(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Establishes the connection, because the queue pair received data before RTU arrived
    /// (`ib_cm_notify` with `IB_EVENT_COMM_EST`).
    ///
    /// # Errors
    /// [`CmError::IsConnected`] if it is established already, [`CmError::State`] unless REP was
    /// sent.
    pub fn establish(&mut self, id: CmId) -> Result<(), CmError> {
        match self.id(id)?.state {
            State::RepSent | State::MraRepReceived => {}
            State::Established => return Err(CmError::IsConnected),
            state => return Err(CmError::State(state)),
        }
        let entry = self.id_mut(id)?;
        entry.state = State::Established;
        entry.pending = None;
        self.events.push_back((id, Event::UserEstablished));
        Ok(())
    }

    fn post(&mut self, addressing: Addressing, mad: Mad) {
        if let Ok(attribute) = mad.attribute() {
            self.counters.sent.count(attribute);
        }
        self.outgoing.push_back(Outgoing { addressing, mad });
    }

    /// Answers a datagram that matches no id with REJ. Reads the ids from its first words, as the
    /// kernel does, whatever the message.
    fn refuse(&mut self, from: &Addressing, mad: &Mad, rejected: Rejected, reason: RejReason) {
        let (local, remote) = mad.first_words();
        let rej = Rej::new(remote, local, rejected, reason);
        self.post(from.reply(), Mad::new(mad.header.tid.get(), 0, rej));
    }

    /// Whether a datagram comes from the GID of an id's peer. Always true without a global route.
    fn is_from_peer(&self, from: &Addressing, id: &Id) -> bool {
        let peer = &id.path.addressing;
        let on_wire = |gid| self.config.gid_on_wire.map_or(gid, |on_wire| on_wire(gid));
        !(from.global && peer.global) || on_wire(from.source) == on_wire(peer.destination)
    }

    fn comm_id(&self, id: CmId) -> CommId {
        CommId(id.0 ^ self.operand)
    }

    /// Transaction id of a request: the agent, and the bytes of the communication id as on a
    /// little-endian kernel.
    fn new_tid(&self, id: CmId) -> u64 {
        u64::from(self.agent) << 32 | u64::from(self.comm_id(id).0.swap_bytes())
    }
}

/// `body`, or [`CmError::TooLong`] unless its private data `fits`.
fn private<B>(fits: bool, body: B) -> Result<B, CmError> {
    if fits { Ok(body) } else { Err(CmError::TooLong) }
}

#[cfg(test)]
mod tests;
