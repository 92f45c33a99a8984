//! Queue pairs: parameters, state, requester and responder.
//!
//! The requester ([`requester`]) executes send WQEs and handles responses. The responder
//! ([`responder`]) executes incoming requests and answers them. Both use the rest of the device as
//! [`Env`], and never another QP: QPs communicate only by packets.

mod answer;
mod atomic;
mod dc_initiator;
mod dc_target;
mod flush;
mod gather;
mod params;
mod raw;
mod receive;
mod requester;
mod responder;
mod response;
mod state;
mod striding;
mod syndrome;
mod tag;
mod ud;
mod umr;
mod wqe;

pub(super) use ud::MULTICAST_QPN;

pub use raw::Steered;
pub use striding::Striding;
pub use tag::MAX_RENDEZVOUS;

pub use params::{
    AddressPath, MigrationState, QpAttributes, QpInfo, QpParams, QpState, QpType, ReceiveRing,
    ReceiveSource, RemoteRights, ScatterToCqe, SendRing,
};

use super::env::Env;
use super::mkey::Accessor;
use super::timer::{Deadline, Owner};
use super::{AsyncKind, EventObject, LinkLayer, Mtu, Qpn};
use crate::packet::{Addressing, Bth, Opcode, Psn, Transport, View};
use dc_initiator::Initiator;
use dc_target::Target;
use requester::Requester;
use responder::Responder;

/// The properties that modify commands change.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    qkey: u32,
    remote_rights: RemoteRights,
    path: AddressPath,
    alternate_path: AddressPath,
    mtu: Mtu,
    destination_qpn: u32,
    max_read_atomic: u8,
    max_destination_read_atomic: u8,
    min_rnr_timer: u8,
    retry_count: u8,
    rnr_retry: u8,
    migration: MigrationState,
    drained_event: bool,
    /// Kbit/s; 0 is unlimited.
    rate_limit: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) number: Qpn,
    pub(super) params: QpParams,
    /// Number of multicast groups that it is attached to.
    pub(super) groups: u32,
    /// Number of flow rules that name it.
    pub(super) flows: u32,
    state: QpState,
    settings: Settings,
    requester: Requester,
    responder: Responder,
    /// State that only a DC initiator has.
    initiator: Option<Initiator>,
    /// State that only a DC target has.
    target: Option<Box<Target>>,
    deadline: Deadline,
    /// Whether it is in [`Env::ready`].
    scheduled: bool,
    established: bool,
}

impl Qp {
    pub(super) fn new(number: u32, params: QpParams, env: &mut Env) -> Self {
        let initiator = params.qp_type == QpType::DcInitiator;
        let target = params.qp_type == QpType::DcTarget;
        Self {
            initiator: initiator.then(|| Initiator::new(env.connections.draw())),
            target: target.then(|| Box::new(Target::new())),
            number: Qpn(number),
            params,
            groups: 0,
            flows: 0,
            state: QpState::Reset,
            settings: Settings::default(),
            requester: Requester::default(),
            responder: Responder::default(),
            deadline: Deadline::default(),
            scheduled: false,
            established: false,
        }
    }

    /// Schedules the QP, so that one of the next steps runs it.
    fn schedule(&mut self, env: &mut Env) {
        if !std::mem::replace(&mut self.scheduled, true) {
            env.ready.push_back(self.number);
        }
    }

    /// Handles a send doorbell.
    pub(super) fn ring(&mut self, env: &mut Env) {
        self.requester.rung();
        self.schedule(env);
    }

    /// Sends at most `budget` packets and returns how many it sent.
    pub(super) fn run(&mut self, env: &mut Env, budget: u32) -> u32 {
        self.scheduled = false;
        // The QP's own requests do not wait for the end of a long READ of its peer.
        let mut sent = self.run_responder(env, budget.div_ceil(2));
        sent += self.run_requester(env, budget - sent);
        sent += self.run_responder(env, budget - sent);
        if sent >= budget {
            self.schedule(env);
        }
        sent
    }

    /// Handles a packet for this QP.
    pub(super) fn receive(&mut self, env: &mut Env, from: &Addressing, packet: &View<'_>) {
        if !self.accepts(env, from, packet) {
            env.counters.dropped += 1;
            return;
        }
        if self.transport() == Transport::Ud {
            return self.receive_datagram(env, from, packet);
        }
        if self.is_target() {
            return self.receive_for_target(env, from, packet);
        }
        if packet.operation.is_response() {
            if self.is_initiator() && !self.is_of_session(env, packet) {
                env.counters.dropped += 1;
                return;
            }
            return self.receive_response(env, packet);
        }
        self.establish(env);
        self.receive_request(env, from, packet);
    }

    /// Whether the QP accepts a packet. Connected transports accept only packets of their transport
    /// from their peer.
    fn accepts(&self, env: &Env, from: &Addressing, packet: &View<'_>) -> bool {
        let ready = match self.state {
            QpState::Reset | QpState::Init | QpState::Error => false,
            QpState::ReadyToReceive => !packet.operation.is_response(),
            _ => true,
        };
        ready
            && !self.is_raw()
            && packet.transport == self.transport()
            && self.is_of_direction(packet)
            && pkeys_match(packet.bth.pkey(), self.pkey(env))
            && (self.has_no_peer() || self.is_peer(env, from))
    }

    /// Initiators accept only responses, targets only requests.
    fn is_of_direction(&self, packet: &View<'_>) -> bool {
        let answers = packet.operation.is_response();
        !(self.is_initiator() && !answers || self.is_target() && answers)
    }

    /// Whether any port may send to it. (A target recognises initiators by its access key.)
    fn has_no_peer(&self) -> bool {
        self.transport() == Transport::Ud || self.is_target()
    }

    /// Whether a packet comes from the other end of the connection's path, or of its alternate path
    /// if that may be used (specification 9.6.1.5).
    fn is_peer(&self, env: &Env, from: &Addressing) -> bool {
        let fits = |path: &AddressPath| match env.config.link {
            LinkLayer::Ethernet => env.is_same_port(from.source, path.destination_gid),
            LinkLayer::InfiniBand => from.source_lid == path.destination_lid,
        };
        let has_alternate = self.settings.migration != MigrationState::Migrated;
        fits(&self.settings.path) || has_alternate && fits(&self.settings.alternate_path)
    }

    /// Whether the QP is connected to itself.
    fn is_own_peer(&self, env: &Env) -> bool {
        self.settings.destination_qpn == self.number.0 && env.is_own(&self.route(env))
    }

    fn establish(&mut self, env: &mut Env) {
        if self.state == QpState::ReadyToReceive && !std::mem::replace(&mut self.established, true)
        {
            env.raise(AsyncKind::CommunicationEstablished, EventObject::Qp(self.number));
        }
    }

    /// The transport of the QP's packets. A QP for local operations has none. RC is returned for
    /// it, which has no effect, because it never sends or receives a packet.
    fn transport(&self) -> Transport {
        match self.params.qp_type {
            QpType::Rc | QpType::RegUmr => Transport::Rc,
            QpType::Uc => Transport::Uc,
            // No transport packet reaches a raw packet QP, and its frames are not acknowledged.
            QpType::Ud | QpType::RawPacket => Transport::Ud,
            QpType::XrcInitiator | QpType::XrcTarget => Transport::Xrc,
            QpType::DcInitiator | QpType::DcTarget => Transport::Dc,
        }
    }

    /// Whether the transport has acknowledgements.
    fn is_reliable(&self) -> bool {
        matches!(self.transport(), Transport::Rc | Transport::Xrc | Transport::Dc)
    }

    fn accessor(&self) -> Accessor {
        Accessor {
            pd: self.params.pd,
            qpn: self.number.0,
            reserved_lkey: self.params.reserved_lkey,
        }
    }

    fn pkey(&self, env: &Env) -> u16 {
        let index = usize::from(self.settings.path.pkey_index);
        env.config.pkeys.get(index).copied().unwrap_or(0)
    }

    /// Payload bytes per packet.
    fn mtu(&self, env: &Env) -> u32 {
        self.settings.mtu.min(env.config.active_mtu).bytes()
    }

    /// Addressing of packets to the peer.
    fn route(&self, env: &Env) -> Addressing {
        let path = &self.settings.path;
        let source = env.config.gids.get(usize::from(path.source_gid_index));
        let mut route = Addressing {
            source: source.copied().unwrap_or_default(),
            destination: path.destination_gid,
            global: true,
            service_level: path.service_level,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            ..Addressing::default()
        };
        if env.config.link == LinkLayer::InfiniBand {
            route.global = path.global;
            route.source_lid = env.config.lid | u16::from(path.source_path_bits);
            route.destination_lid = path.destination_lid;
        } else {
            route.destination_mac = path.destination_mac;
            route.udp_source_port = path.udp_source_port;
        }
        route
    }

    /// A base transport header for the peer.
    fn bth(&self, env: &Env, opcode: Opcode, psn: Psn) -> Bth {
        let mut bth = Bth::new(opcode, self.pkey(env), self.settings.destination_qpn, psn);
        bth.set_migrated(self.settings.migration == MigrationState::Migrated);
        bth
    }

    fn timer(&self) -> Owner {
        Owner::Qp(self.number)
    }

    /// Whether this timer entry will retransmit a request, because its answer is late.
    pub(super) fn is_answer_late(&self, entry: u64, now: u64) -> bool {
        let requester = &self.requester;
        let waits = !self.is_raw() && !requester.rnr_wait && requester.is_outstanding();
        waits && self.deadline.is_over(entry, now)
    }

    /// Handles a timer entry of the QP's deadline.
    pub(super) fn timer_due(&mut self, env: &mut Env, entry: u64) {
        let owner = self.timer();
        if self.deadline.expired(entry, env.now, owner, &mut env.timers) {
            self.time_out(env);
        }
    }
}

/// P_Keys match if their low 15 bits do and not both are limited members (specification 10.9.3).
pub(in crate::core) fn pkeys_match(a: u16, b: u16) -> bool {
    const FULL: u16 = 0x8000;
    a & !FULL == b & !FULL && (a | b) & FULL != 0
}
