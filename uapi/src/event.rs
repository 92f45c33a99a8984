//! What is read from event file descriptors (`ib_user_verbs.h`).
//!
//! Reads return whole records; a read too short for one fails with EINVAL.

use crate::enums::EventType;

crate::macros::abi_structs! {
    /// An asynchronous event.
    struct AsyncEventDesc = "struct ib_uverbs_async_event_desc", 16 {
        /// User handle of the object, or the port number for port events.
        @0 element: u64,
        @8 event_type: EventType,
        @12 reserved: u32,
    }

    /// A completion event.
    struct CompEventDesc = "struct ib_uverbs_comp_event_desc", 8 {
        /// User handle of the completion queue.
        @0 cq_handle: u64,
    }
}
