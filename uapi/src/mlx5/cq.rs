//! Completion queues.

use crate::mlx5::flags::CqFlags;

crate::macros::abi_structs! {
    /// Driver part of a request.
    struct CreateCq = "struct mlx5_ib_create_cq", 32 {
        @0 buf_addr: u64,
        @8 db_addr: u64,
        /// Bytes of a CQE: 64 or 128.
        @16 cqe_size: u32,
        /// 1: compress CQEs.
        @20 cqe_comp_en: u8,
        /// One [`CqeCompFormat`](crate::mlx5::flags::CqeCompFormat) bit.
        @21 cqe_comp_res_format: u8,
        @22 flags: CqFlags,
        /// Page id of a UAR object.
        @24 uar_page_index: u16,
        @26 reserved0: u16,
        @28 reserved1: u32,
    }

    /// Driver part of an answer.
    struct CreateCqResp = "struct mlx5_ib_create_cq_resp", 8 {
        /// Queue number.
        @0 cqn: u32,
        @4 reserved: u32,
    }

    /// Driver part of a resize.
    struct ResizeCq = "struct mlx5_ib_resize_cq", 16 {
        @0 buf_addr: u64,
        /// Bytes of a CQE.
        @8 cqe_size: u16,
        @10 reserved0: u16,
        @12 reserved1: u32,
    }
}
