//! What a queue pair brings into a connection: its port, GID and timings.

use std::hash::{BuildHasher, Hasher};

use super::attributes::{AccessFlags, AckTimeout, QpAttributes, RnrTimer};
use super::endpoint::Endpoint;
use super::{QpType, State};
use crate::device::address::{AddressVector, GidKind, GlobalRoute, LinkLayer, Mtu};
use crate::device::context::Context;
use crate::device::gid::GidChoice;
use crate::error::{Error, Result};

const VERB: &str = "connect";

/// The local half of a connection. The defaults suit a data centre network: port 1, the most widely
/// routable GID, the port's MTU, 67 ms time-out, seven retries, as many READs in flight as the
/// device can.
#[derive(Debug, Clone, Copy)]
pub struct PathOptions {
    /// The local port, from 1.
    pub port: u8,
    /// Index of the GID to use; chosen if not given.
    pub gid_index: Option<u32>,
    /// Index into the port's partition table.
    pub pkey_index: u16,
    /// What remote operations may do.
    pub access: AccessFlags,
    /// Largest payload per packet; the port's active MTU if not given. The smaller of both ends is
    /// used.
    pub mtu: Option<Mtu>,
    /// First PSN to send; random if not given.
    pub psn: Option<u32>,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// Local ACK timeout.
    pub timeout: AckTimeout,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries, 0 to 7. With 7, unless said otherwise, a send to a peer that has
    /// posted no receive waits for one for ever.
    pub rnr_retry: u8,
    /// How long the peer shall wait when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics in flight; as many as the device can if not given.
    pub initiator_reads: Option<u8>,
    /// READs and atomics answered at a time; as many as the device can if not given.
    pub responder_reads: Option<u8>,
    /// InfiniBand service level, or RoCE priority.
    pub service_level: u8,
    /// IP type of service.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// 20 bits; RoCE v2 derives the UDP source port from it.
    pub flow_label: u32,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: None,
            pkey_index: 0,
            access: AccessFlags::empty(),
            mtu: None,
            psn: None,
            qkey: 0x1111_1111,
            timeout: AckTimeout::DEFAULT,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::DEFAULT,
            initiator_reads: None,
            responder_reads: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

/// Whether a port without a usable GID is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    Needed,
    Optional,
}

/// The options with everything looked up that they left open.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalPath {
    pub(super) options: PathOptions,
    pub(super) link: LinkLayer,
    lid: u16,
    gid: Option<GidChoice>,
    mtu: Mtu,
    pub(super) psn: u32,
    initiator_reads: u8,
    responder_reads: u8,
}

impl LocalPath {
    pub(super) fn resolve(
        context: &Context,
        transport: QpType,
        options: PathOptions,
        requirement: Requirement,
    ) -> Result<Self> {
        let port = context.query_port(options.port)?;
        let device = context.attributes()?;
        let link = port.link_layer();
        // InfiniBand within a subnet does without, and frames have no GIDs; RoCE cannot.
        let optional = link == LinkLayer::InfiniBand
            || transport == QpType::RawPacket
            || requirement == Requirement::Optional;
        let found = match options.gid_index {
            None => context.best_gid(options.port, link),
            index => context.choose_gid(options.port, index),
        };
        let gid = match found {
            Ok(choice) => Some(choice),
            Err(_) if optional && options.gid_index.is_none() => None,
            Err(error) => return Err(error),
        };
        let most = device.max_responder_reads();
        Ok(Self {
            options,
            link,
            lid: port.lid(),
            gid,
            mtu: options.mtu.unwrap_or(port.active_mtu()),
            psn: options.psn.unwrap_or_else(random_psn) & 0xff_ffff,
            initiator_reads: options.initiator_reads.unwrap_or(device.max_initiator_reads()),
            responder_reads: options.responder_reads.unwrap_or(most),
        })
    }

    pub(super) fn gid(&self) -> Option<&GidChoice> {
        self.gid.as_ref()
    }

    pub(super) fn endpoint(&self, qpn: u32, transport: QpType) -> Endpoint {
        let datagram = transport == QpType::Ud;
        Endpoint {
            link_layer: self.link,
            lid: self.lid,
            gid: self.gid.map(|choice| choice.entry.gid),
            gid_kind: self.gid.map_or(GidKind::InfiniBand, |choice| choice.entry.kind),
            qpn,
            psn: self.psn,
            mtu: self.mtu,
            responder_reads: self.responder_reads,
            initiator_reads: self.initiator_reads,
            qkey: if datagram { self.options.qkey } else { 0 },
            srqn: 0,
        }
    }

    pub(super) fn to_init(self, transport: QpType) -> QpAttributes {
        let init = QpAttributes::to(State::Init).port(self.options.port);
        match transport {
            QpType::RawPacket => init,
            QpType::Ud => init.pkey_index(self.options.pkey_index).qkey(self.options.qkey),
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive => {
                init.pkey_index(self.options.pkey_index).access(self.options.access)
            }
            QpType::DcInitiator => init.pkey_index(self.options.pkey_index),
            QpType::DcTarget => {
                init.pkey_index(self.options.pkey_index).access(self.options.access)
            }
        }
    }

    pub(super) fn to_rtr(self, transport: QpType, peer: &Endpoint) -> Result<QpAttributes> {
        let rtr = QpAttributes::to(State::Rtr);
        let connected = || -> Result<QpAttributes> {
            Ok(rtr
                .address(self.address_of(peer)?)
                .path_mtu(self.mtu.min(peer.mtu))
                .remote_qpn(peer.qpn)
                .receive_psn(peer.psn))
        };
        match transport {
            QpType::Ud | QpType::RawPacket => Ok(rtr),
            QpType::Uc | QpType::XrcSend => connected(),
            QpType::DcInitiator => Ok(rtr.path_mtu(self.mtu)),
            // Its answers go from its own address.
            QpType::DcTarget => Ok(rtr
                .address(self.address_of(peer)?)
                .path_mtu(self.mtu)
                .min_rnr_timer(self.options.min_rnr_timer)),
            QpType::Rc | QpType::XrcReceive => Ok(connected()?
                .max_responder_reads(self.responder_reads.min(peer.initiator_reads))
                .min_rnr_timer(self.options.min_rnr_timer)),
        }
    }

    pub(super) fn to_rts(self, transport: QpType, peer: Option<&Endpoint>) -> QpAttributes {
        let rts = QpAttributes::to(State::Rts);
        let reads = peer.map_or(u8::MAX, |peer| peer.responder_reads);
        match transport {
            QpType::RawPacket => rts,
            QpType::Uc | QpType::Ud => rts.send_psn(self.psn),
            QpType::XrcReceive => rts.send_psn(self.psn).timeout(self.options.timeout),
            QpType::DcTarget => rts,
            QpType::Rc | QpType::XrcSend | QpType::DcInitiator => rts
                .send_psn(self.psn)
                .timeout(self.options.timeout)
                .retry_count(self.options.retry_count)
                .rnr_retry(self.options.rnr_retry)
                .max_initiator_reads(self.initiator_reads.min(reads)),
        }
    }

    /// The address vector that leads to `peer`.
    pub(super) fn address_of(&self, peer: &Endpoint) -> Result<AddressVector> {
        if peer.link_layer != self.link {
            let cause = format!("this end is on {}, the peer on {}", self.link, peer.link_layer);
            return Err(Error::invalid(VERB, cause));
        }
        Ok(AddressVector {
            port: self.options.port,
            lid: peer.lid,
            service_level: self.options.service_level,
            source_path_bits: 0,
            static_rate: 0,
            global: self.route_to(peer)?,
        })
    }

    fn route_to(&self, peer: &Endpoint) -> Result<Option<GlobalRoute>> {
        let (Some(own), Some(destination)) = (self.gid, peer.gid) else {
            return match self.link {
                LinkLayer::InfiniBand => Ok(None),
                _ => Err(Error::invalid(VERB, "RoCE needs a GID at both ends")),
            };
        };
        let same_subnet = own.entry.gid.prefix() == destination.prefix();
        if self.link == LinkLayer::InfiniBand && same_subnet && peer.lid != 0 {
            return Ok(None);
        }
        if own.entry.kind != peer.gid_kind {
            let cause = format!("this end uses {}, the peer {}", own.entry.kind, peer.gid_kind);
            return Err(
                Error::invalid(VERB, cause).cure_with("choose a GID index of the same kind")
            );
        }
        Ok(Some(GlobalRoute {
            destination,
            source_index: own.entry.index as u8,
            flow_label: self.options.flow_label,
            hop_limit: self.options.hop_limit,
            traffic_class: self.options.traffic_class,
        }))
    }
}

/// 24 bits that differ from one connection to the next, so that packets of an old one are not taken
/// for the new one's.
fn random_psn() -> u32 {
    let hasher = std::hash::RandomState::new().build_hasher();
    hasher.finish() as u32 & 0xff_ffff
}
