//! The device object: contexts, ports, GIDs, and write commands in an ioctl.

use super::macros::objects;

objects! {
    /// The device as seen by one open file; no instances of it are created.
    device = 0 UVERBS_OBJECT_DEVICE {
        /// Runs a write command (see [`crate::write`]) through the ioctl.
        invoke_write = 0 UVERBS_METHOD_INVOKE_WRITE {
            CORE_IN: optional In = 0 UVERBS_ATTR_CORE_IN,
            CORE_OUT: optional Out = 1 UVERBS_ATTR_CORE_OUT,
            WRITE_CMD: required Const = 2 UVERBS_ATTR_WRITE_CMD,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Lists the handles of one kind of object.
        info_handles = 1 UVERBS_METHOD_INFO_HANDLES {
            OBJECT_ID: required Const = 0 UVERBS_ATTR_INFO_OBJECT_ID,
            TOTAL_HANDLES: optional Out = 1 UVERBS_ATTR_INFO_TOTAL_HANDLES,
            HANDLES_LIST: optional Out = 2 UVERBS_ATTR_INFO_HANDLES_LIST,
        }
        /// Port attributes.
        query_port = 2 UVERBS_METHOD_QUERY_PORT {
            PORT_NUM: required Const = 0 UVERBS_ATTR_QUERY_PORT_PORT_NUM,
            RESP: required Out = 1 UVERBS_ATTR_QUERY_PORT_RESP,
        }
        /// Creates the user context; once per open file, before anything else.
        get_context = 3 UVERBS_METHOD_GET_CONTEXT {
            NUM_COMP_VECTORS: optional Out = 0 UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
            CORE_SUPPORT: optional Out = 1 UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
            FD_ARR: optional In = 2 UVERBS_ATTR_GET_CONTEXT_FD_ARR,
            UHW_IN: optional In = 0x1000 UVERBS_ATTR_UHW_IN,
            UHW_OUT: optional Out = 0x1001 UVERBS_ATTR_UHW_OUT,
        }
        /// Reads back what the context was created with (for imported contexts).
        query_context = 4 UVERBS_METHOD_QUERY_CONTEXT {
            NUM_COMP_VECTORS: optional Out = 0 UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS,
            CORE_SUPPORT: optional Out = 1 UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT,
        }
        /// All valid GID table entries of all ports.
        query_gid_table = 5 UVERBS_METHOD_QUERY_GID_TABLE {
            ENTRY_SIZE: required Const = 0 UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE,
            FLAGS: optional Flags = 1 UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
            RESP_ENTRIES: required Out = 2 UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
            RESP_NUM_ENTRIES: required Out = 3 UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
        }
        /// One GID table entry.
        query_gid_entry = 6 UVERBS_METHOD_QUERY_GID_ENTRY {
            PORT: required Const = 0 UVERBS_ATTR_QUERY_GID_ENTRY_PORT,
            GID_INDEX: required Const = 1 UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
            FLAGS: required Flags = 2 UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS,
            RESP_ENTRY: required Out = 3 UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
        }
        /// Effective port speed in units of 100 Mbit/s.
        query_port_speed = 7 UVERBS_METHOD_QUERY_PORT_SPEED {
            PORT_NUM: required Const = 0 UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM,
            RESP: required Out = 1 UVERBS_ATTR_QUERY_PORT_SPEED_RESP,
        }
        /// Capabilities of completion counters.
        query_comp_cntr_caps = 8 UVERBS_METHOD_QUERY_COMP_CNTR_CAPS {
            MAX_COUNTERS: required Out = 0 UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS,
            MAX_VALUE: required Out = 1 UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE,
            SUPPORTED_QP_ATTACH_OPS: required Out = 2 UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS,
        }
    }
}
