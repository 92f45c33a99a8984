//! Shared receive queues.

use crate::enums::SrqType;
use crate::flags::SrqAttrMask;

crate::macros::abi_structs! {
    /// Creates a queue.
    struct CreateSrq = "struct ib_uverbs_create_srq", 32 {
        @0 response: u64,
        @8 user_handle: u64,
        @16 pd_handle: u32,
        @20 max_wr: u32,
        @24 max_sge: u32,
        @28 srq_limit: u32,
    }

    /// Creates a queue of any type.
    struct CreateXsrq = "struct ib_uverbs_create_xsrq", 48 {
        @0 response: u64,
        @8 user_handle: u64,
        @16 srq_type: SrqType,
        @20 pd_handle: u32,
        @24 max_wr: u32,
        @28 max_sge: u32,
        @32 srq_limit: u32,
        /// Most entries of the list of tags, for tag matching.
        @36 max_num_tags: u32,
        @40 xrcd_handle: u32,
        @44 cq_handle: u32,
    }

    /// The queue, and what was granted.
    struct CreateSrqResp = "struct ib_uverbs_create_srq_resp", 16 {
        @0 srq_handle: u32,
        @4 max_wr: u32,
        @8 max_sge: u32,
        /// Queue number.
        @12 srqn: u32,
    }

    /// Changes size or limit.
    struct ModifySrq = "struct ib_uverbs_modify_srq", 16 {
        @0 srq_handle: u32,
        @4 attr_mask: SrqAttrMask,
        @8 max_wr: u32,
        @12 srq_limit: u32,
    }

    /// Queries attributes.
    struct QuerySrq = "struct ib_uverbs_query_srq", 16 {
        @0 response: u64,
        @8 srq_handle: u32,
        @12 reserved: u32,
    }

    /// Attributes.
    struct QuerySrqResp = "struct ib_uverbs_query_srq_resp", 16 {
        @0 max_wr: u32,
        @4 max_sge: u32,
        @8 srq_limit: u32,
        @12 reserved: u32,
    }

    /// Destroys a queue.
    struct DestroySrq = "struct ib_uverbs_destroy_srq", 16 {
        @0 response: u64,
        @8 srq_handle: u32,
        @12 reserved: u32,
    }

    /// The events delivered for the queue.
    struct DestroySrqResp = "struct ib_uverbs_destroy_srq_resp", 4 {
        /// How many events of the object the kernel delivered.
        @0 events_reported: u32,
    }
}
