//! Connections: listen, connect, accept, reject and disconnect, and the queue pair's attributes.

use super::{MAX_PRIVATE_DATA, RejectReason};
use crate::enums::EventType;

crate::macros::abi_structs! {
    /// Parameters of a connection: the caller's in a request, the peer's in an event. In an event,
    /// `responder_resources` is the peer's `initiator_depth`, and the reverse.
    struct ConnParam = "struct rdma_ucm_conn_param", 272 {
        /// Queue pair number.
        @0 qp_num: u32,
        /// Q_Key, for UD.
        @4 qkey: u32,
        @8 private_data: [u8; MAX_PRIVATE_DATA],
        /// Bytes of private data. In an event, the size of the field in the CM message: what the
        /// peer sent, padded with zeros.
        @264 private_data_len: u8,
        /// 1 if the queue pair has a shared receive queue.
        @265 srq: u8,
        /// RDMA reads and atomics that the peer may have in flight here.
        @266 responder_resources: u8,
        /// RDMA reads and atomics to have in flight at the peer.
        @267 initiator_depth: u8,
        /// End-to-end flow control; it is sent in the message, and has no effect.
        @268 flow_control: u8,
        /// Retries after a timeout, 0..=7.
        @269 retry_count: u8,
        /// Retries after RNR, 0..=7, 7 for ever.
        @270 rnr_retry_count: u8,
        /// 1 if the other fields are valid.
        @271 valid: u8,
    }

    /// Enhanced connection establishment: a vendor's options.
    struct Ece = "struct rdma_ucm_ece", 8 {
        @0 vendor_id: u32,
        @4 attr_mod: u32,
    }

    /// Connects: REQ for connected types, SIDR_REQ for UD.
    struct Connect = "struct rdma_ucm_connect", 288 {
        /// `valid` must be 1.
        @0 conn_param: ConnParam,
        @272 id: u32,
        @276 reserved: u32,
        @280 ece: Ece,
    }

    /// Listens. The kernel first binds an idle id to any address and a free port.
    struct Listen = "struct rdma_ucm_listen", 8 {
        @0 id: u32,
        /// Requests that may wait to be fetched. 0, or a number above the host's limit, selects
        /// that limit.
        @4 backlog: u32,
    }

    /// Accepts: on the passive side REP or SIDR_REP, on the active side RTU (with `valid` 0).
    struct Accept = "struct rdma_ucm_accept", 296 {
        /// The user's own value, which the id's events carry from now on. With 0 the id has no
        /// events.
        @0 uid: u64,
        @8 conn_param: ConnParam,
        @280 id: u32,
        @284 reserved: u32,
        @288 ece: Ece,
    }

    /// Refuses a request.
    struct Reject = "struct rdma_ucm_reject", 264 {
        @0 id: u32,
        /// Bytes of private data, at most 148 over IP.
        @4 private_data_len: u8,
        /// 0 means [`RejectReason::CONSUMER_DEFINED`].
        @5 reason: RejectReason,
        @6 reserved: [u8; 2],
        @8 private_data: [u8; MAX_PRIVATE_DATA],
    }

    /// Disconnects, or answers the peer's disconnect.
    struct Disconnect = "struct rdma_ucm_disconnect", 4 {
        @0 id: u32,
    }

    /// Queries the attributes for a queue pair's change to a state. The answer is a
    /// [`QpAttr`](crate::write::qp::QpAttr).
    struct InitQpAttr = "struct rdma_ucm_init_qp_attr", 16 {
        @0 response: u64,
        @8 id: u32,
        /// The state: 1 INIT, 2 RTR, 3 RTS.
        @12 qp_state: u32,
    }

    /// Reports an event of a queue pair to the connection manager.
    struct Notify = "struct rdma_ucm_notify", 8 {
        @0 id: u32,
        /// [`EventType::COMM_EST`] or [`EventType::PATH_MIG`].
        @4 event: EventType,
    }
}

impl Connect {
    /// Lengths in use, newest kernel first: the whole struct, then the part before `ece`. The
    /// kernel reads `ece` if [`CmdHdr::input`](super::CmdHdr::input) covers it. A length below both
    /// fails with EINVAL.
    pub const LENGTHS: [usize; 2] = [size_of::<Self>(), core::mem::offset_of!(Self, ece)];
}

impl Accept {
    /// As [`Connect::LENGTHS`].
    pub const LENGTHS: [usize; 2] = [size_of::<Self>(), core::mem::offset_of!(Self, ece)];
}
