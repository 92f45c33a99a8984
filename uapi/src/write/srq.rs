//! Shared receive queues.

use crate::enums::SrqType;
use crate::flags::SrqAttrMask;

crate::macros::abi_structs! {
    /// Creates a queue.
    struct CreateSrq = "struct ib_uverbs_create_srq", 32 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// The user's own value; comes back in events.
        @8 user_handle: u64,
        /// Handle of the protection domain.
        @16 pd_handle: u32,
        /// Work requests.
        @20 max_wr: u32,
        /// Entries per request.
        @24 max_sge: u32,
        /// Raise an event when fewer requests than this remain.
        @28 srq_limit: u32,
    }

    /// Creates a queue of any type.
    struct CreateXsrq = "struct ib_uverbs_create_xsrq", 48 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// The user's own value; comes back in events.
        @8 user_handle: u64,
        @16 srq_type: SrqType,
        /// Handle of the protection domain.
        @20 pd_handle: u32,
        /// Work requests.
        @24 max_wr: u32,
        /// Entries per request.
        @28 max_sge: u32,
        /// Raise an event when fewer requests than this remain.
        @32 srq_limit: u32,
        /// Tags, for tag matching.
        @36 max_num_tags: u32,
        /// Handle of the XRC domain.
        @40 xrcd_handle: u32,
        /// Handle of the completion queue.
        @44 cq_handle: u32,
    }

    /// The queue.
    struct CreateSrqResp = "struct ib_uverbs_create_srq_resp", 16 {
        /// Handle of the shared receive queue.
        @0 srq_handle: u32,
        /// Work requests.
        @4 max_wr: u32,
        /// Entries per request.
        @8 max_sge: u32,
        /// Queue number.
        @12 srqn: u32,
    }

    /// Changes size or limit.
    struct ModifySrq = "struct ib_uverbs_modify_srq", 16 {
        /// Handle of the shared receive queue.
        @0 srq_handle: u32,
        @4 attr_mask: SrqAttrMask,
        /// Work requests.
        @8 max_wr: u32,
        /// Raise an event when fewer requests than this remain.
        @12 srq_limit: u32,
    }

    /// Asks for attributes.
    struct QuerySrq = "struct ib_uverbs_query_srq", 16 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the shared receive queue.
        @8 srq_handle: u32,
        /// Zero.
        @12 reserved: u32,
    }

    /// Attributes.
    struct QuerySrqResp = "struct ib_uverbs_query_srq_resp", 16 {
        /// Work requests.
        @0 max_wr: u32,
        /// Entries per request.
        @4 max_sge: u32,
        /// Raise an event when fewer requests than this remain.
        @8 srq_limit: u32,
        /// Zero.
        @12 reserved: u32,
    }

    /// Destroys a queue.
    struct DestroySrq = "struct ib_uverbs_destroy_srq", 16 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the shared receive queue.
        @8 srq_handle: u32,
        /// Zero.
        @12 reserved: u32,
    }

    /// Events handed out for the queue.
    struct DestroySrqResp = "struct ib_uverbs_destroy_srq_resp", 4 {
        /// How many events the kernel handed out for the object.
        @0 events_reported: u32,
    }
}
