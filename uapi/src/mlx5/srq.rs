//! Shared receive queues.

use crate::mlx5::flags::SrqFlags;

crate::macros::abi_structs! {
    /// Driver part of a request.
    struct CreateSrq = "struct mlx5_ib_create_srq", 32 {
        @0 buf_addr: u64,
        @8 db_addr: u64,
        @16 flags: SrqFlags,
        @20 reserved0: u32,
        /// User index, returned in version 1 CQEs; 24 bits.
        @24 uidx: u32,
        @28 reserved1: u32,
    }

    /// Driver part of an answer.
    struct CreateSrqResp = "struct mlx5_ib_create_srq_resp", 8 {
        /// Queue number.
        @0 srqn: u32,
        @4 reserved: u32,
    }
}
