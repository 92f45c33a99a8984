//! Receive work queues and their indirection tables.

use crate::enums::{WqState, WqType};
use crate::flags::{WqAttrMask, WqFlags};

crate::macros::abi_structs! {
    /// Creates a work queue.
    struct ExCreateWq = "struct ib_uverbs_ex_create_wq", 40 {
        @0 comp_mask: u32,
        @4 wq_type: WqType,
        @8 user_handle: u64,
        @16 pd_handle: u32,
        @20 cq_handle: u32,
        @24 max_wr: u32,
        @28 max_sge: u32,
        @32 create_flags: WqFlags,
        @36 reserved: u32,
    }

    /// The work queue.
    struct ExCreateWqResp = "struct ib_uverbs_ex_create_wq_resp", 24 {
        @0 comp_mask: u32,
        @4 response_length: u32,
        @8 wq_handle: u32,
        @12 max_wr: u32,
        @16 max_sge: u32,
        /// Queue number.
        @20 wqn: u32,
    }

    /// Destroys a work queue.
    struct ExDestroyWq = "struct ib_uverbs_ex_destroy_wq", 8 {
        @0 comp_mask: u32,
        @4 wq_handle: u32,
    }

    /// The events delivered for the queue.
    struct ExDestroyWqResp = "struct ib_uverbs_ex_destroy_wq_resp", 16 {
        @0 comp_mask: u32,
        @4 response_length: u32,
        /// How many events of the object the kernel delivered.
        @8 events_reported: u32,
        @12 reserved: u32,
    }

    /// Changes a work queue.
    struct ExModifyWq = "struct ib_uverbs_ex_modify_wq", 24 {
        @0 attr_mask: WqAttrMask,
        @4 wq_handle: u32,
        @8 wq_state: WqState,
        @12 curr_wq_state: WqState,
        @16 flags: WqFlags,
        @20 flags_mask: WqFlags,
    }

    /// Head of an indirection table; `1 << log_ind_tbl_size` handles of four bytes follow, padded
    /// to eight bytes if there is only one handle.
    struct ExCreateRwqIndTable = "struct ib_uverbs_ex_create_rwq_ind_table", 8 {
        @0 comp_mask: u32,
        /// At most 13.
        @4 log_ind_tbl_size: u32,
    }

    /// The indirection table.
    struct ExCreateRwqIndTableResp = "struct ib_uverbs_ex_create_rwq_ind_table_resp", 16 {
        @0 comp_mask: u32,
        @4 response_length: u32,
        /// Handle of the indirection table.
        @8 ind_tbl_handle: u32,
        /// Hardware number.
        @12 ind_tbl_num: u32,
    }

    /// Destroys an indirection table.
    struct ExDestroyRwqIndTable = "struct ib_uverbs_ex_destroy_rwq_ind_table", 8 {
        @0 comp_mask: u32,
        /// Handle of the indirection table.
        @4 ind_tbl_handle: u32,
    }
}
