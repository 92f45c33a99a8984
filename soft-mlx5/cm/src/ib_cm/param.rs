//! Parameters of the user's calls.

use crate::mad::{SidrStatus, TransportService};
use uverbs_soft_packet::Addressing;

/// The path to the peer, for management datagrams and for the connection's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// GIDs or LIDs, from here to the peer.
    pub addressing: Addressing,
    /// P_Key.
    pub pkey: u16,
    /// Path MTU as a code.
    pub mtu: u8,
    /// Rate as a code; 0 on RoCE.
    pub rate: u8,
    /// Lifetime of a packet as a code `n`: 4.096 us << n.
    pub life: u8,
}

/// A vendor's options for enhanced connection establishment. All zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor.
    pub vendor_id: u32,
    /// The options, in the vendor's own encoding.
    pub attr_mod: u32,
}

/// A request (`struct ib_cm_req_param`).
#[derive(Clone, Debug)]
pub struct ReqParam<'a> {
    /// The service that it is for.
    pub service_id: u64,
    /// The path to the peer.
    pub path: Path,
    /// Type of the queue pair.
    pub transport: TransportService,
    /// The local queue pair.
    pub qpn: u32,
    /// First PSN that the local queue pair expects.
    pub starting_psn: u32,
    /// RDMA reads and atomics that the peer may have in flight here.
    pub responder_resources: u8,
    /// RDMA reads and atomics to have in flight at the peer.
    pub initiator_depth: u8,
    /// The time that the peer may take to answer, as a code.
    pub remote_cm_response_timeout: u8,
    /// The time that this side may take to answer, as a code.
    pub local_cm_response_timeout: u8,
    /// End-to-end flow control; sent, but without effect.
    pub flow_control: bool,
    /// Retries after a timeout, 0..=7.
    pub retry_count: u8,
    /// Retries after RNR, 0..=7.
    pub rnr_retry_count: u8,
    /// Most retries of a message, 0..=15.
    pub max_cm_retries: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// At most 92 bytes.
    pub private_data: &'a [u8],
}

/// An acceptance (`struct ib_cm_rep_param`).
#[derive(Clone, Copy, Debug, Default)]
pub struct RepParam<'a> {
    /// The local queue pair.
    pub qpn: u32,
    /// First PSN that the local queue pair expects.
    pub starting_psn: u32,
    /// RDMA reads and atomics that the peer may have in flight here.
    pub responder_resources: u8,
    /// RDMA reads and atomics to have in flight at the peer.
    pub initiator_depth: u8,
    /// Whether the alternate path is accepted: 0 yes, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// End-to-end flow control; sent, but without effect.
    pub flow_control: bool,
    /// Retries after RNR that the peer should make, 0..=7.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

/// When MRA is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MraTiming {
    /// Now.
    Now,
    /// Only in answer to a retry, as rdma_cm does (`IB_CM_MRA_FLAG_DELAY`).
    OnDuplicate,
}

/// A service id resolution request (`struct ib_cm_sidr_req_param`).
#[derive(Clone, Debug)]
pub struct SidrReqParam<'a> {
    /// The service that it is for.
    pub service_id: u64,
    /// The path to the peer.
    pub path: Path,
    /// The time to wait for an answer, in nanoseconds.
    pub timeout: u64,
    /// Most retries of the request.
    pub max_cm_retries: u8,
    /// At most 216 bytes.
    pub private_data: &'a [u8],
}

/// The answer to a resolution request (`struct ib_cm_sidr_rep_param`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrRepParam<'a> {
    /// The result.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// At most 72 bytes.
    pub info: &'a [u8],
    /// Options of enhanced connection establishment; 16 bits of the vendor id are sent.
    pub ece: Ece,
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}
