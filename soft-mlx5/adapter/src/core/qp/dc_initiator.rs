//! A DC initiator: connects to the target of its next request, after all requests to the previous
//! target have completed.
//!
//! CONNECT is a request with a PSN of its own that belongs to no WQE. It is retransmitted and
//! retried like other requests if it is lost or the target is not ready. If the initiator gets no
//! answer, the WQE that waits for the connection fails with that error.

use uverbs_mlx5_format::{AddressVector, Opcode};

use super::super::LinkLayer;
use super::super::env::Env;
use super::syndrome::Failure;
use super::ud::datagram_route;
use super::wqe::SendWqe;
use super::{AddressPath, Qp, QpType};
use crate::packet::{
    Addressing, DcConnectEth, DcEth, Opcode as Wire, Operation, Packet, Psn, Syndrome, View,
};

/// Nanoseconds without a packet from its target after which an initiator connects again. A target
/// keeps a session for at least twice this time.
pub(super) const FRESH: u64 = 500_000_000;

/// The state of an initiator in addition to its send queue.
#[derive(Debug)]
pub(super) struct Initiator {
    /// Number of the last attempt to connect: the upper half is random, the lower half counts.
    attempt: u64,
    link: Option<Link>,
}

/// The target that the initiator talks to.
#[derive(Debug)]
struct Link {
    to: AddressVector,
    /// The session's number, once the target has sent it.
    session: Option<u32>,
    /// When the last packet from the target arrived.
    last_packet: u64,
}

impl Initiator {
    pub(super) fn new(random: u64) -> Self {
        Self { attempt: random << 32, link: None }
    }
}

impl Link {
    /// Whether a WQE with this address goes to the same target.
    fn leads_to(&self, to: &AddressVector) -> bool {
        self.to == *to
    }
}

impl Qp {
    pub(super) fn is_initiator(&self) -> bool {
        self.params.qp_type == QpType::DcInitiator
    }

    /// Whether a WQE must wait until the initiator is connected to its target.
    pub(super) fn needs_connection(&self, env: &Env, wqe: &SendWqe) -> bool {
        if !self.is_initiator() || wqe.outcome.is_some() || wqe.is_local() {
            return false;
        }
        let link = self.initiator.as_ref().and_then(|initiator| initiator.link.as_ref());
        let idle = self.requester.is_drained();
        !link.is_some_and(|link| {
            let fresh = !idle || env.now.saturating_sub(link.last_packet) < FRESH;
            link.leads_to(&wqe.address_vector) && link.session.is_some() && fresh
        })
    }

    /// Begins to connect to the target of `wqe`. No request is outstanding.
    pub(super) fn connect(&mut self, env: &mut Env, wqe: &SendWqe) -> Result<(), Failure> {
        self.disconnect(env);
        let to = wqe.address_vector;
        let route = datagram_route(env, &to)?;
        let Some(initiator) = &mut self.initiator else { return Ok(()) };
        let count = (initiator.attempt as u32).wrapping_add(1);
        initiator.attempt = initiator.attempt >> 32 << 32 | u64::from(count);
        initiator.link = Some(Link { to, session: None, last_packet: env.now });
        self.settings.path = path_of(&self.settings.path, &to, &route);
        self.settings.destination_qpn = to.remote_qpn();
        self.requester.begin_connecting(wqe.index);
        Ok(())
    }

    /// Tells the target that the session ends. The packet may be lost, because a target also ends
    /// unused sessions without it.
    pub(in crate::core) fn disconnect(&mut self, env: &mut Env) {
        let Some(link) = self.initiator.as_mut().and_then(|initiator| initiator.link.take()) else {
            return;
        };
        let Some(session) = link.session else { return };
        let mut packet = env.pool.take();
        packet.start(self.route(env), self.bth(env, Wire::DC_DISCONNECT, Psn::default()));
        packet.push(DcEth::new(link.to.key.get(), self.number.0, session));
        env.send(packet);
    }

    /// The header of this initiator's requests.
    pub(super) fn request_header(&self) -> Option<DcEth> {
        let link = self.initiator.as_ref()?.link.as_ref()?;
        Some(DcEth::new(link.to.key.get(), self.number.0, link.session.unwrap_or(0)))
    }

    /// The packet that asks the target for a session.
    pub(super) fn build_connect(&self, env: &Env, wqe: &SendWqe, packet: &mut Packet) {
        let mut bth = self.bth(env, Wire::DC_CONNECT, wqe.first_psn);
        bth.set_ack_request(true);
        packet.start(self.route(env), bth);
        packet.push(self.request_header().unwrap_or(DcEth::new(0, self.number.0, 0)));
        let attempt = self.initiator.as_ref().map_or(0, |initiator| initiator.attempt);
        packet.push(DcConnectEth::new(attempt));
    }

    /// Whether an answer belongs to the session, or to the attempt to connect. The acknowledgement
    /// of a CONNECT, which is then the only outstanding request, carries the session's number.
    pub(super) fn is_of_session(&mut self, env: &Env, packet: &View<'_>) -> bool {
        let Some(dceth) = packet.dceth else { return false };
        let of_oldest = packet.bth.psn() == self.requester.oldest_psn();
        let Some(initiator) = &mut self.initiator else { return false };
        let Some(link) = &mut initiator.link else { return false };
        let session = dceth.session.get();
        let from_target = dceth.sender() == link.to.remote_qpn();
        let expected = from_target && dceth.key.get() == initiator.attempt;
        if !expected || link.session.is_some_and(|own| own != session) {
            return false;
        }
        let syndrome = packet.aeth.map(|aeth| aeth.syndrome());
        let acknowledges = packet.operation == Operation::Acknowledge
            && matches!(syndrome, Some(Syndrome::Ack { .. }));
        if link.session.is_none() && acknowledges && of_oldest {
            link.session = Some(session);
        }
        link.last_packet = env.now;
        true
    }
}

impl SendWqe {
    /// Adds the CONNECT request for the WQE at `index`.
    pub(super) fn connect(&mut self, index: u16, psn: Psn) {
        self.clear();
        (self.index, self.first_psn) = (index, psn);
        (self.opcode, self.packets, self.connects) = (Opcode::SEND, 1, true);
    }
}

/// The path to a WQE's target; P_Key, port and timeout stay the same.
fn path_of(own: &AddressPath, to: &AddressVector, route: &Addressing) -> AddressPath {
    AddressPath {
        source_gid_index: to.source_gid_index(),
        global: route.global,
        destination_gid: route.destination,
        destination_lid: route.destination_lid,
        source_path_bits: to.loopback_path_bits & 0x7f,
        service_level: route.service_level,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        flow_label: route.flow_label,
        destination_mac: route.destination_mac,
        udp_source_port: route.udp_source_port,
        ..*own
    }
}

/// Whether the port's packets are routed by GID.
pub(super) fn is_routed_by_gid(env: &Env) -> bool {
    env.config.link == LinkLayer::Ethernet
}
