//! The parameters of a QP at creation, its changeable properties, and the result of a query.

use bitflags::bitflags;

use super::super::ids::ObjectId;
use super::super::{CoreError, Cqn, Mtu, Pdn, Spread, Srqn, Xrcdn};
use super::striding::Striding;
use crate::memory::PageMap;
use crate::packet::Gid;

/// The transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Requester of an XRC connection: has a send queue only.
    XrcInitiator,
    /// Responder of an XRC connection: receives from the XRC SRQs of its XRC domain.
    XrcTarget,
    /// Local operations only (UMR), as the kernel's driver uses it.
    RegUmr,
    /// Sender of a dynamically connected transport: has only a send queue. Each request names its
    /// target.
    DcInitiator,
    /// Receiver of a dynamically connected transport: has an SRQ and a CQ. Any initiator that knows
    /// the access key can send to it.
    DcTarget,
    /// Ethernet frames: sends WQEs with an Ethernet segment, and receives the frames that steering
    /// gives to it. May have only one of the queues.
    RawPacket,
}

impl QpType {
    /// Whether it has one peer, which is set when it is connected.
    pub const fn is_connected(self) -> bool {
        match self {
            Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget => true,
            Self::Ud | Self::RegUmr | Self::RawPacket => false,
            Self::DcInitiator | Self::DcTarget => false,
        }
    }

    /// Whether it has a peer that acknowledges.
    pub const fn is_reliable(self) -> bool {
        match self {
            Self::Rc | Self::XrcInitiator | Self::XrcTarget => true,
            Self::DcInitiator | Self::DcTarget => true,
            Self::Uc | Self::Ud | Self::RegUmr | Self::RawPacket => false,
        }
    }
}

/// States of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created, or reset.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// The send queue is drained or draining: requests that have begun complete, and no other
    /// request begins.
    SendQueueDrain,
    /// The send queue is in error (UC and UD).
    SendQueueError,
    /// All requests are flushed.
    Error,
}

/// Whether and how short data goes into the CQE instead of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScatterToCqe {
    /// Never.
    #[default]
    Off,
    /// Up to 32 bytes.
    B32,
    /// Up to 32 bytes in the CQE, up to 64 before it in 128-byte CQEs.
    B64,
}

impl ScatterToCqe {
    pub(in super::super) const fn max(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::B32 => 32,
            Self::B64 => 64,
        }
    }
}

/// The ring of send WQEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRing {
    /// Where it is; offset 0 is block 0.
    pub buffer: PageMap,
    /// log2 of the number of 64-byte blocks, at most 15.
    pub log_blocks: u8,
}

/// The ring of receive WQEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRing {
    /// Where it is; offset 0 is WQE 0.
    pub buffer: PageMap,
    /// log2 of the number of WQEs, at most 15.
    pub log_wqes: u8,
    /// log2 of a WQE's bytes, 4..=11.
    pub log_stride: u8,
}

/// Where receives come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveSource {
    /// The QP's own ring.
    Ring(ReceiveRing),
    /// A shared receive queue.
    Srq(Srqn),
    /// The receive queues of other raw packet QPs, which share its frames by hash. Such a QP has no
    /// queue and no state of its own.
    Spread(Spread),
    /// The receive queues to which a [flow table](super::super::FrameTables) of this number leads.
    /// Such a QP has no queue and no state of its own either.
    FlowTable(u32),
    /// None: requests that need one are answered with RNR NAKs.
    None,
}

/// A QP to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpParams {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Pdn,
    /// CQ of the send queue. An XRC target does not use it, but it must exist.
    pub send_cq: Cqn,
    /// CQ of the receive queue. Not used by XRC QPs.
    pub receive_cq: Cqn,
    /// The send queue, if it has one.
    pub send_ring: Option<SendRing>,
    /// Where receives come from.
    pub receive: ReceiveSource,
    /// XRC domain of an XRC target.
    pub xrcd: Option<Xrcdn>,
    /// The key with which initiators reach a DC target.
    pub access_key: u64,
    /// Bus address of the doorbell record, a multiple of 8: receive counter, then send counter.
    pub doorbell_record: u64,
    /// User index for CQEs of version 1, 24 bits.
    pub user_index: u32,
    /// CQE version 1: CQEs carry the user index; version 0: the SRQ number or 0.
    pub cqe_version_1: bool,
    /// Results of RDMA READs and atomics in the requester's CQE.
    pub scatter_requester: ScatterToCqe,
    /// Received data in the responder's CQE.
    pub scatter_responder: ScatterToCqe,
    /// Receive WQEs begin with a signature segment, and send WQEs carry a checksum (not checked).
    pub signatures: bool,
    /// Whether the reserved lkey may be used (privileged owners only).
    pub reserved_lkey: bool,
    /// Multicasts are not looped back to this QP's own host.
    pub block_multicast_loopback: bool,
    /// A UD QP that is QP 0 or 1 of the port (management): it receives the packets for that number,
    /// and its own packets name that number as their source.
    pub special: Option<u8>,
    /// The customer VLAN tag of received frames goes into the CQE instead of memory (raw packet).
    pub strip_vlan: bool,
    /// The receive buffers are divided into strides, which many frames fill (raw packet). The WQEs
    /// begin with a link, like those of a shared receive queue.
    pub striding: Option<Striding>,
    /// Received frames end with their check sequence (raw packet).
    pub scatter_check_sequence: bool,
    /// The device reads the data of rendezvous messages to a tag matching SRQ, and sends the FIN.
    /// Only RC QPs without a send ring have this (`MLX5_QPC_OFFLOAD_TYPE_RNDV` of hw/mlx5/qp.c).
    pub rendezvous: bool,
}

impl QpParams {
    /// A QP of this type with everything else off.
    pub fn new(qp_type: QpType, pd: Pdn, send_cq: Cqn, receive_cq: Cqn) -> Self {
        Self {
            qp_type,
            pd,
            send_cq,
            receive_cq,
            send_ring: None,
            receive: ReceiveSource::None,
            xrcd: None,
            access_key: 0,
            doorbell_record: 0,
            user_index: 0,
            cqe_version_1: true,
            scatter_requester: ScatterToCqe::Off,
            scatter_responder: ScatterToCqe::Off,
            signatures: false,
            reserved_lkey: false,
            block_multicast_loopback: false,
            special: None,
            strip_vlan: false,
            striding: None,
            scatter_check_sequence: false,
            rendezvous: false,
        }
    }

    /// The CQs that the QP completes to. An XRC target completes to those of its SRQs.
    pub(in super::super) fn cqs(&self) -> impl Iterator<Item = Cqn> {
        let (send, receive) = match self.qp_type {
            QpType::XrcTarget => (None, None),
            QpType::XrcInitiator | QpType::RegUmr | QpType::DcInitiator => {
                (Some(self.send_cq), None)
            }
            QpType::DcTarget => (None, Some(self.receive_cq)),
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket => {
                (Some(self.send_cq), Some(self.receive_cq))
            }
        };
        send.into_iter().chain(receive)
    }

    /// The objects that the QP uses.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        let mut objects = vec![self.pd.object()];
        objects.extend(self.cqs().map(Cqn::object));
        if let ReceiveSource::Srq(srqn) = self.receive {
            objects.push(srqn.object());
        }
        objects.extend(self.xrcd.map(Xrcdn::object));
        objects
    }

    pub(in super::super) fn check(&self) -> Result<(), CoreError> {
        let log_blocks = self.send_ring.as_ref().map_or(0, |ring| ring.log_blocks);
        if log_blocks > 15 {
            return Err(CoreError::bad("log2 of send queue size", u64::from(log_blocks)));
        }
        if let ReceiveSource::Ring(ring) = &self.receive {
            if ring.log_wqes > 15 {
                return Err(CoreError::bad("log2 of receive queue size", u64::from(ring.log_wqes)));
            }
            if !(4..=11).contains(&ring.log_stride) {
                return Err(CoreError::bad("log2 of receive stride", u64::from(ring.log_stride)));
            }
        }
        if self.qp_type == QpType::XrcTarget && self.xrcd.is_none() {
            return Err(CoreError::bad("XRC domain of an XRC target", 0));
        }
        if self.qp_type == QpType::DcTarget && !matches!(self.receive, ReceiveSource::Srq(_)) {
            return Err(CoreError::bad("shared receive queue of a DC target", 0));
        }
        if self.user_index > 0xff_ffff {
            return Err(CoreError::bad("user index", u64::from(self.user_index)));
        }
        if self.special.is_some_and(|number| number > 1 || self.qp_type != QpType::Ud) {
            return Err(CoreError::bad("special QP", u64::from(self.special.unwrap_or(0))));
        }
        if self.rendezvous && (self.qp_type != QpType::Rc || self.send_ring.is_some()) {
            return Err(CoreError::bad("rendezvous offload", 1));
        }
        if self.doorbell_record % 8 != 0 {
            return Err(CoreError::bad("doorbell record address", self.doorbell_record));
        }
        Ok(())
    }
}

bitflags! {
    /// The rights of a QP's peers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RemoteRights: u8 {
        /// RDMA READ.
        const READ = 1;
        /// RDMA WRITE.
        const WRITE = 2;
        /// Atomics.
        const ATOMIC = 4;
    }
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressPath {
    /// Index of the source GID.
    pub source_gid_index: u8,
    /// A global route is used (RoCE: always).
    pub global: bool,
    /// The peer's GID.
    pub destination_gid: Gid,
    /// The peer's LID (InfiniBand).
    pub destination_lid: u16,
    /// Which of the port's LIDs is the source, 0..1 << lmc (InfiniBand).
    pub source_path_bits: u8,
    /// Service level, 0..=15.
    pub service_level: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The peer's MAC address (RoCE).
    pub destination_mac: [u8; 6],
    /// UDP source port (RoCE v2); 0 for the one that follows from the flow label.
    pub udp_source_port: u16,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Port, from 1.
    pub port: u8,
    /// Local ACK timeout code, 0..=31: 4.096 us * 2^code, 0 for no limit.
    pub ack_timeout: u8,
    /// Static rate code; kept for queries.
    pub static_rate: u8,
}

/// Path migration states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MigrationState {
    /// The alternate path may be used.
    Armed,
    /// Waits until the peer is ready as well.
    Rearm,
    /// The primary path is the only one, or the alternate one has become it.
    #[default]
    Migrated,
}

/// The changes of a modify command. `None` leaves a property as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// Q_Key (UD).
    pub qkey: Option<u32>,
    /// The rights of peers (RC, UC, XRC).
    pub remote_rights: Option<RemoteRights>,
    /// Index into the P_Key table, of the primary path.
    pub pkey_index: Option<u16>,
    /// The path to the peer, except for its P_Key index and ACK timeout, which have fields of their
    /// own.
    pub path: Option<AddressPath>,
    /// The alternate path.
    pub alternate_path: Option<AddressPath>,
    /// Path MTU.
    pub mtu: Option<Mtu>,
    /// The peer's QP number.
    pub destination_qpn: Option<u32>,
    /// First PSN expected from the peer.
    pub receive_psn: Option<u32>,
    /// First PSN to send.
    pub send_psn: Option<u32>,
    /// RDMA READs and atomics that may be outstanding as requester.
    pub max_read_atomic: Option<u8>,
    /// RDMA READs and atomics that the peer may have outstanding here.
    pub max_destination_read_atomic: Option<u8>,
    /// RNR NAK timer code, 0..=31.
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout code of the primary path, 0..=31.
    pub ack_timeout: Option<u8>,
    /// Retries after timeouts and sequence errors, 0..=7.
    pub retry_count: Option<u8>,
    /// Retries after RNR NAKs, 0..=6; 7 for no limit.
    pub rnr_retry: Option<u8>,
    /// Path migration state.
    pub migration: Option<MigrationState>,
    /// Whether an event reports that the send queue is drained.
    pub drained_event: Option<bool>,
    /// Rate limit of outgoing frames (raw packet), in kbit/s; 0 is unlimited.
    pub rate_limit: Option<u32>,
}

/// The state of a QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// As created.
    pub params: QpParams,
    /// State.
    pub state: QpState,
    /// In SQD, whether requests that had begun are not yet complete.
    pub draining: bool,
    /// All changeable properties, all `Some`; `send_psn` and `receive_psn` are the next ones.
    pub attributes: QpAttributes,
    /// Send queue counter of the next WQE to begin.
    pub send_counter: u16,
    /// Receive WQEs taken.
    pub receive_counter: u16,
}
