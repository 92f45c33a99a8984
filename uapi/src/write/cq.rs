//! Completion queues.

use crate::flags::{CqAttrMask, CqCreateFlags};

crate::macros::abi_structs! {
    /// Creates a queue.
    struct CreateCq = "struct ib_uverbs_create_cq", 32 {
        @0 response: u64,
        @8 user_handle: u64,
        /// Entries asked for.
        @16 cqe: u32,
        /// Which completion vector (interrupt) serves the queue.
        @20 comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        @24 comp_channel: i32,
        @28 reserved: u32,
    }

    /// The queue.
    struct CreateCqResp = "struct ib_uverbs_create_cq_resp", 8 {
        @0 cq_handle: u32,
        /// Entries granted.
        @4 cqe: u32,
    }

    /// Creates a queue, with flags.
    struct ExCreateCq = "struct ib_uverbs_ex_create_cq", 32 {
        @0 user_handle: u64,
        /// Entries asked for.
        @8 cqe: u32,
        /// Which completion vector (interrupt) serves the queue.
        @12 comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        @16 comp_channel: i32,
        @20 comp_mask: u32,
        @24 flags: CqCreateFlags,
        @28 reserved: u32,
    }

    /// The queue.
    struct ExCreateCqResp = "struct ib_uverbs_ex_create_cq_resp", 16 {
        /// The plain answer.
        @0 base: CreateCqResp,
        @8 comp_mask: u32,
        @12 response_length: u32,
    }

    /// Changes the number of entries.
    struct ResizeCq = "struct ib_uverbs_resize_cq", 16 {
        @0 response: u64,
        @8 cq_handle: u32,
        /// Entries asked for.
        @12 cqe: u32,
    }

    /// The new size.
    struct ResizeCqResp = "struct ib_uverbs_resize_cq_resp", 8 {
        /// Entries granted.
        @0 cqe: u32,
        @4 reserved: u32,
    }

    /// Arms through the kernel (drivers without user queues).
    struct ReqNotifyCq = "struct ib_uverbs_req_notify_cq", 8 {
        @0 cq_handle: u32,
        /// 1: only solicited completions.
        @4 solicited_only: u32,
    }

    /// Destroys a queue.
    struct DestroyCq = "struct ib_uverbs_destroy_cq", 16 {
        @0 response: u64,
        @8 cq_handle: u32,
        @12 reserved: u32,
    }

    /// The events delivered for the queue. The caller waits until all are acknowledged.
    struct DestroyCqResp = "struct ib_uverbs_destroy_cq_resp", 8 {
        /// Completion events.
        @0 comp_events_reported: u32,
        /// Asynchronous events.
        @4 async_events_reported: u32,
    }

    /// When events are raised.
    struct CqModeration = "struct ib_uverbs_cq_moderation", 4 {
        /// After so many completions.
        @0 cq_count: u16,
        /// After so many microseconds.
        @2 cq_period: u16,
    }

    /// Changes moderation.
    struct ExModifyCq = "struct ib_uverbs_ex_modify_cq", 16 {
        @0 cq_handle: u32,
        @4 attr_mask: CqAttrMask,
        @8 attr: CqModeration,
        @12 reserved: u32,
    }
}
