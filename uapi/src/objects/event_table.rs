//! Event channels and counters.

use super::macros::objects;

objects! {
    /// Completion event channel, a file descriptor; created by a write command.
    comp_channel = 2 UVERBS_OBJECT_COMP_CHANNEL {
    }

    /// Asynchronous event channel, a file descriptor.
    async_event = 16 UVERBS_OBJECT_ASYNC_EVENT {
        /// Opens an asynchronous event channel.
        alloc = 0 UVERBS_METHOD_ASYNC_EVENT_ALLOC {
            HANDLE: required NewFd = 0 UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE,
        }
    }

    /// Set of counters that flow rules feed.
    counters = 15 UVERBS_OBJECT_COUNTERS {
        /// Creates a counter set.
        create = 0 UVERBS_METHOD_COUNTERS_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_COUNTERS_HANDLE,
        }
        /// Destroys a counter set.
        destroy = 1 UVERBS_METHOD_COUNTERS_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
        }
        /// Reads a counter set, as an array of `u64`.
        read = 2 UVERBS_METHOD_COUNTERS_READ {
            HANDLE: required Handle = 0 UVERBS_ATTR_READ_COUNTERS_HANDLE,
            BUFF: required Out = 1 UVERBS_ATTR_READ_COUNTERS_BUFF,
            FLAGS: optional Flags = 2 UVERBS_ATTR_READ_COUNTERS_FLAGS,
        }
    }

    /// Completion counter.
    comp_cntr = 19 UVERBS_OBJECT_COMP_CNTR {
        /// Creates a completion counter.
        create = 0 UVERBS_METHOD_COMP_CNTR_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE,
        }
        /// Destroys a completion counter.
        destroy = 1 UVERBS_METHOD_COMP_CNTR_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE,
        }
        /// Sets or increments a completion counter.
        modify = 2 UVERBS_METHOD_COMP_CNTR_MODIFY {
            HANDLE: required Handle = 0 UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE,
            ENTRY: required Const = 1 UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY,
            OP: required Const = 2 UVERBS_ATTR_MODIFY_COMP_CNTR_OP,
            VALUE: required In = 3 UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE,
        }
        /// Reads a completion counter.
        read = 3 UVERBS_METHOD_COMP_CNTR_READ {
            HANDLE: required Handle = 0 UVERBS_ATTR_READ_COMP_CNTR_HANDLE,
            ENTRY: required Const = 1 UVERBS_ATTR_READ_COMP_CNTR_ENTRY,
            RESP_VALUE: required Out = 2 UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE,
        }
    }
}
