//! Events.

use core::mem::offset_of;

use zerocopy::{FromBytes, IntoBytes};

use super::MAX_PRIVATE_DATA;
use super::connect::{ConnParam, Ece};
use crate::write::ah::AhAttr;

crate::macros::abi_enums! {
    /// What happened (`enum rdma_cm_event_type`, in `<rdma/rdma_cma.h>`).
    enum EventType: u32 {
        ADDR_RESOLVED = 0 RDMA_CM_EVENT_ADDR_RESOLVED,
        ADDR_ERROR = 1 RDMA_CM_EVENT_ADDR_ERROR,
        ROUTE_RESOLVED = 2 RDMA_CM_EVENT_ROUTE_RESOLVED,
        ROUTE_ERROR = 3 RDMA_CM_EVENT_ROUTE_ERROR,
        /// A peer wants to connect; the event has a new id for the connection.
        CONNECT_REQUEST = 4 RDMA_CM_EVENT_CONNECT_REQUEST,
        /// The peer accepted: move the queue pair to RTS, then accept.
        CONNECT_RESPONSE = 5 RDMA_CM_EVENT_CONNECT_RESPONSE,
        CONNECT_ERROR = 6 RDMA_CM_EVENT_CONNECT_ERROR,
        /// The peer did not answer, or refused a UD request.
        UNREACHABLE = 7 RDMA_CM_EVENT_UNREACHABLE,
        REJECTED = 8 RDMA_CM_EVENT_REJECTED,
        ESTABLISHED = 9 RDMA_CM_EVENT_ESTABLISHED,
        DISCONNECTED = 10 RDMA_CM_EVENT_DISCONNECTED,
        /// The device is being removed: destroy the id.
        DEVICE_REMOVAL = 11 RDMA_CM_EVENT_DEVICE_REMOVAL,
        MULTICAST_JOIN = 12 RDMA_CM_EVENT_MULTICAST_JOIN,
        MULTICAST_ERROR = 13 RDMA_CM_EVENT_MULTICAST_ERROR,
        /// The hardware address of the local interface changed.
        ADDR_CHANGE = 14 RDMA_CM_EVENT_ADDR_CHANGE,
        /// The queue pair may be used again.
        TIMEWAIT_EXIT = 15 RDMA_CM_EVENT_TIMEWAIT_EXIT,
        ADDRINFO_RESOLVED = 16 RDMA_CM_EVENT_ADDRINFO_RESOLVED,
        ADDRINFO_ERROR = 17 RDMA_CM_EVENT_ADDRINFO_ERROR,
        /// Queued by a program, with [`WriteCmEvent`].
        USER = 18 RDMA_CM_EVENT_USER,
        /// Queued by a library, with [`WriteCmEvent`].
        INTERNAL = 19 RDMA_CM_EVENT_INTERNAL,
    }
}

/// Bytes of an event's parameters: the size of the larger of the two structs.
pub const PARAM_LEN: usize = size_of::<UdParam>();

crate::macros::abi_structs! {
    /// Parameters of UD: how to reach the peer or the group.
    struct UdParam = "struct rdma_ucm_ud_param", 304 {
        /// Queue pair number; 0xffffff for a group.
        @0 qp_num: u32,
        @4 qkey: u32,
        @8 ah_attr: AhAttr,
        @40 private_data: [u8; MAX_PRIVATE_DATA],
        /// The size of the field in the CM message: what the peer sent, padded with zeros.
        @296 private_data_len: u8,
        @297 reserved: [u8; 7],
    }

    /// Fetches the next event. If there is none, waits for it; a non-blocking file fails with
    /// EAGAIN.
    struct GetEvent = "struct rdma_ucm_get_event", 8 {
        @0 response: u64,
    }

    /// An event.
    struct EventResp = "struct rdma_ucm_event_resp", 336 {
        /// The user's value for the id, or for the membership of a group.
        @0 uid: u64,
        /// The id, or the membership.
        @8 id: u32,
        @12 event: EventType,
        /// Zero, a negative errno, or a positive reason: see [`EventResp::status`].
        @16 raw_status: u32 as "status",
        /// A [`ConnParam`], or a [`UdParam`] if the id's queue pair type is UD.
        @20 param: [u8; PARAM_LEN],
        @324 reserved: u32,
        @328 ece: Ece,
    }

    /// Queues an event that the caller describes. Kernels newer than Linux 6.12 have it.
    struct WriteCmEvent = "struct rdma_ucm_write_cm_event", 320 {
        @0 id: u32,
        @4 reserved: u32,
        /// [`EventType::USER`] or [`EventType::INTERNAL`].
        @8 event: EventType,
        @12 status: u32,
        /// A [`ConnParam`], a [`UdParam`] or a u64.
        @16 param: [u8; PARAM_LEN],
    }
}

impl EventResp {
    /// Lengths in use, newest kernel first: the whole struct, then the part before `reserved`. A
    /// buffer shorter than the second fails with ENOSPC.
    pub const LENGTHS: [usize; 2] = [size_of::<Self>(), offset_of!(Self, reserved)];

    /// The status with its sign: a negative errno for [`EventType::ADDR_ERROR`],
    /// [`EventType::ROUTE_ERROR`], [`EventType::UNREACHABLE`] and [`EventType::DISCONNECTED`], the
    /// REJ message's reason for [`EventType::REJECTED`], the SIDR_REP message's status for
    /// [`EventType::UNREACHABLE`] of UD.
    pub const fn status(&self) -> i32 {
        self.raw_status as i32
    }

    /// Parameters of a connected id.
    pub fn conn(&self) -> ConnParam {
        ConnParam::read_from_prefix(&self.param).map(|(conn, _)| conn).unwrap_or_default()
    }

    /// Parameters of a UD id.
    pub fn ud(&self) -> UdParam {
        UdParam::read_from_bytes(&self.param).unwrap_or_default()
    }

    /// Sets the parameters of a connected id.
    pub fn set_conn(&mut self, conn: &ConnParam) {
        self.param = [0; PARAM_LEN];
        self.param[..size_of::<ConnParam>()].copy_from_slice(conn.as_bytes());
    }

    /// Sets the parameters of a UD id.
    pub fn set_ud(&mut self, ud: &UdParam) {
        self.param.copy_from_slice(ud.as_bytes());
    }
}
