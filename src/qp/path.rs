//! The local half of a connection: port, GID and timeouts.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use super::attributes::{AckTimeout, QpAttributes, RnrTimer};
use super::endpoint::Endpoint;
use super::{QpType, State};
use crate::device::address::{AddressVector, GidKind, GlobalRoute, LinkLayer, Mtu};
use crate::device::context::Context;
use crate::device::gid::GidChoice;
use crate::error::{Error, Result};
use crate::memory::AccessFlags;

/// The local half of a connection. The defaults suit a data centre network: port 1, the most widely
/// routable GID, the port's MTU, an ACK timeout of 67 ms, seven retries, as many outstanding READs
/// as the device allows.
#[derive(Debug, Clone, Copy)]
pub struct PathOptions {
    /// The local port, from 1.
    pub port: u8,
    /// Index of the GID; by default the most widely routable one.
    pub gid_index: Option<u32>,
    /// Index into the port's partition table.
    pub pkey_index: u16,
    /// What peers may do through the queue pair.
    pub access: AccessFlags,
    /// Path MTU; by default the port's active MTU. The smaller one of both ends is used.
    pub mtu: Option<Mtu>,
    /// First PSN to send, 24 bits; random by default.
    pub psn: Option<u32>,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// Local ACK timeout.
    pub timeout: AckTimeout,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries, 0 to 7. With 7, the default, a send to a peer that has posted no
    /// receive waits for one for ever.
    pub rnr_retry: u8,
    /// How long the peer has to wait before a retry when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// Outstanding READs and atomics of this end; by default as many as the device allows.
    pub initiator_reads: Option<u8>,
    /// Outstanding READs and atomics of the peer; by default as many as the device allows.
    pub responder_reads: Option<u8>,
    /// InfiniBand service level, or RoCE priority.
    pub service_level: u8,
    /// IPv6 traffic class or IPv4 type of service.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits. RoCE v2 derives the UDP source port from it.
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

/// Whether a port without a usable GID is an error, and when the port is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    /// It is an error; the port is queried at creation.
    Needed,
    /// It is not an error, because the program or the connection manager sets every address. The
    /// port is queried when one of its values is first needed.
    Optional,
}

/// The options, and the queried values of those that the program did not set.
#[derive(Debug, Clone)]
pub(super) struct LocalPath {
    pub(super) options: PathOptions,
    qp_type: QpType,
    requirement: Requirement,
    psn: u32,
    found: OnceLock<Found>,
}

/// Queried values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) link: LinkLayer,
    lid: u16,
    pub(super) gid: Option<GidChoice>,
    mtu: Mtu,
    initiator_reads: u8,
    responder_reads: u8,
}

impl Found {
    /// The values for a port that cannot be queried.
    const NOTHING: Self = Self {
        link: LinkLayer::Unspecified,
        lid: 0,
        gid: None,
        mtu: Mtu::B256,
        initiator_reads: 0,
        responder_reads: 0,
    };
}

impl LocalPath {
    pub(super) fn resolve(
        context: &Context,
        qp_type: QpType,
        options: PathOptions,
        requirement: Requirement,
    ) -> Result<Self> {
        let psn = options.psn.unwrap_or_else(random_psn) & 0xff_ffff;
        let found = OnceLock::new();
        let path = Self { options, qp_type, requirement, psn, found };
        match requirement {
            Requirement::Needed => path.found(context).map(drop)?,
            Requirement::Optional => context.require_port("create_qp", options.port)?,
        }
        Ok(path)
    }

    /// Values of the options that the program did not set. The first call queries the port.
    pub(super) fn found(&self, context: &Context) -> Result<&Found> {
        match self.found.get() {
            Some(found) => Ok(found),
            None => self.look_up(context).map(|found| self.found.get_or_init(|| found)),
        }
    }

    /// As [`found`](Self::found), but logs an error and returns defaults.
    pub(super) fn found_or_nothing(&self, context: &Context) -> &Found {
        self.found(context).unwrap_or_else(|error| {
            tracing::warn!(%error, port = self.options.port, "the port cannot be asked");
            &Found::NOTHING
        })
    }

    fn look_up(&self, context: &Context) -> Result<Found> {
        let options = &self.options;
        let port = context.query_port(options.port)?;
        let device = context.attributes()?;
        let link = port.link_layer();
        // RoCE needs a GID. InfiniBand within a subnet does not, and raw packets have none.
        let optional = link == LinkLayer::InfiniBand
            || self.qp_type == QpType::RawPacket
            || self.requirement == Requirement::Optional;
        let found = match options.gid_index {
            None => context.best_gid(options.port, link),
            index => context.choose_gid(options.port, index),
        };
        let gid = match found {
            Ok(choice) => Some(choice),
            Err(_) if optional && options.gid_index.is_none() => None,
            Err(error) => return Err(error),
        };
        Ok(Found {
            link,
            lid: port.lid(),
            gid,
            mtu: options.mtu.unwrap_or(port.active_mtu()),
            initiator_reads: options.initiator_reads.unwrap_or(device.max_initiator_reads()),
            responder_reads: options.responder_reads.unwrap_or(device.max_responder_reads()),
        })
    }

    pub(super) fn endpoint(&self, context: &Context, qpn: u32) -> Endpoint {
        let found = self.found_or_nothing(context);
        let datagram = self.qp_type == QpType::Ud;
        Endpoint {
            link_layer: found.link,
            lid: found.lid,
            gid: found.gid.map(|choice| choice.entry.gid),
            gid_kind: found.gid.map_or(GidKind::InfiniBand, |choice| choice.entry.kind),
            qpn,
            psn: self.psn,
            mtu: found.mtu,
            responder_reads: found.responder_reads,
            initiator_reads: found.initiator_reads,
            qkey: if datagram { self.options.qkey } else { 0 },
            srqn: 0,
        }
    }

    pub(super) fn to_init(&self) -> QpAttributes {
        let init = QpAttributes::to(State::Init).port(self.options.port);
        match self.qp_type {
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

    pub(super) fn to_rtr(&self, context: &Context, peer: &Endpoint) -> Result<QpAttributes> {
        let rtr = QpAttributes::to(State::Rtr);
        let found = self.found(context)?;
        let connected = || -> Result<QpAttributes> {
            Ok(rtr
                .address(self.address_of("connect", context, peer)?)
                .path_mtu(found.mtu.min(peer.mtu))
                .remote_qpn(peer.qpn)
                .receive_psn(peer.psn))
        };
        match self.qp_type {
            QpType::Ud | QpType::RawPacket => Ok(rtr),
            QpType::Uc | QpType::XrcSend => connected(),
            QpType::DcInitiator => Ok(rtr.path_mtu(found.mtu)),
            // The peer answers from its own address.
            QpType::DcTarget => Ok(rtr
                .address(self.address_of("connect", context, peer)?)
                .path_mtu(found.mtu)
                .min_rnr_timer(self.options.min_rnr_timer)),
            QpType::Rc | QpType::XrcReceive => Ok(connected()?
                .max_responder_reads(found.responder_reads.min(peer.initiator_reads))
                .min_rnr_timer(self.options.min_rnr_timer)),
        }
    }

    pub(super) fn to_rts(
        &self,
        context: &Context,
        peer: Option<&Endpoint>,
    ) -> Result<QpAttributes> {
        let rts = QpAttributes::to(State::Rts);
        let reads = peer.map_or(u8::MAX, |peer| peer.responder_reads);
        Ok(match self.qp_type {
            QpType::RawPacket => rts,
            QpType::Uc | QpType::Ud => rts.send_psn(self.psn),
            QpType::XrcReceive => rts.send_psn(self.psn).timeout(self.options.timeout),
            QpType::DcTarget => rts,
            QpType::Rc | QpType::XrcSend | QpType::DcInitiator => rts
                .send_psn(self.psn)
                .timeout(self.options.timeout)
                .retry_count(self.options.retry_count)
                .rnr_retry(self.options.rnr_retry)
                .max_initiator_reads(self.found(context)?.initiator_reads.min(reads)),
        })
    }

    /// The address vector that leads to `peer`, for `verb`.
    pub(super) fn address_of(
        &self,
        verb: &'static str,
        context: &Context,
        peer: &Endpoint,
    ) -> Result<AddressVector> {
        let found = self.found(context)?;
        if peer.link_layer != found.link {
            let cause = format!("this end is on {}, the peer on {}", found.link, peer.link_layer);
            return Err(Error::invalid(verb, cause));
        }
        Ok(AddressVector {
            port: self.options.port,
            lid: peer.lid,
            service_level: self.options.service_level,
            source_path_bits: 0,
            static_rate: 0,
            global: self.route_to(verb, found, peer)?,
        })
    }

    fn route_to(
        &self,
        verb: &'static str,
        found: &Found,
        peer: &Endpoint,
    ) -> Result<Option<GlobalRoute>> {
        let (Some(own), Some(destination)) = (found.gid, peer.gid) else {
            return match found.link {
                LinkLayer::InfiniBand => Ok(None),
                _ => Err(Error::invalid(verb, "RoCE needs a GID at both ends")),
            };
        };
        let same_subnet = own.entry.gid.prefix() == destination.prefix();
        if found.link == LinkLayer::InfiniBand && same_subnet && peer.lid != 0 {
            return Ok(None);
        }
        if own.entry.kind != peer.gid_kind {
            let cause = format!("this end uses {}, the peer {}", own.entry.kind, peer.gid_kind);
            return Err(
                Error::invalid(verb, cause).cure_with("choose a GID index of the same kind")
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

/// 24 random bits, so that a new queue pair does not accept late packets of an old one.
fn random_psn() -> u32 {
    let hasher = std::hash::RandomState::new().build_hasher();
    hasher.finish() as u32 & 0xff_ffff
}
