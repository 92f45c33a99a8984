//! Membership in multicast groups.

use super::JoinFlags;
use super::address::{SockaddrIn6, SockaddrStorage};

crate::macros::abi_structs! {
    /// Joins the group of an IP address, as a full member.
    struct JoinIpMcast = "struct rdma_ucm_join_ip_mcast", 48 {
        @0 response: u64,
        /// A value of the user's choice, returned in the membership's events.
        @8 uid: u64,
        @16 addr: SockaddrIn6,
        @44 id: u32,
    }

    /// Joins a group.
    struct JoinMcast = "struct rdma_ucm_join_mcast", 152 {
        @0 response: u64,
        /// A value of the user's choice, returned in the membership's events.
        @8 uid: u64,
        @16 id: u32,
        /// Length of the family's address.
        @20 addr_size: u16,
        @22 join_flags: JoinFlags,
        @24 addr: SockaddrStorage,
    }

    /// Leaves a group: the struct of [`DestroyId`](super::id::DestroyId).
    struct LeaveMcast = "struct rdma_ucm_destroy_id", 16 {
        @0 response: u64,
        /// The membership's number. Memberships and ids are numbered separately.
        @8 id: u32,
        @12 reserved: u32,
    }
}
