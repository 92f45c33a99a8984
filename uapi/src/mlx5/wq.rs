//! Receive work queues.

use crate::mlx5::flags::{CreateWqMask, WqFlags};

crate::macros::abi_structs! {
    /// Driver part of a request.
    struct CreateWq = "struct mlx5_ib_create_wq", 48 {
        @0 buf_addr: u64,
        @8 db_addr: u64,
        /// WQEs in the queue.
        @16 rq_wqe_count: u32,
        /// Binary logarithm of a WQE's bytes.
        @20 rq_wqe_shift: u32,
        @24 user_index: u32,
        @28 flags: WqFlags,
        @32 comp_mask: CreateWqMask,
        @36 single_stride_log_num_of_bytes: u32,
        @40 single_wqe_log_num_of_strides: u32,
        @44 two_byte_shift_en: u32,
    }

    /// Driver part of an answer.
    struct CreateWqResp = "struct mlx5_ib_create_wq_resp", 8 {
        @0 response_length: u32,
        @4 reserved: u32,
    }

    /// Driver part of a modify.
    struct ModifyWq = "struct mlx5_ib_modify_wq", 8 {
        @0 comp_mask: u32,
        @4 reserved: u32,
    }
}
