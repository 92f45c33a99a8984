//! Contexts.
//!
//! A kernel refuses a request that is longer than its own struct, unless the rest is zero. A client
//! therefore tries the [`LENGTHS`](AllocUcontextReqV2::LENGTHS) in turn.

use crate::mlx5::enums::InlineMode;
use crate::mlx5::flags::{
    AllocUcontextFlags, AllocUcontextRespMask, ClockInfoVersions, CmdsSuppUhw, FlowActionFlags,
    LibCaps,
};

crate::macros::abi_structs! {
    /// The request for kernels without flags.
    struct AllocUcontextReq = "struct mlx5_ib_alloc_ucontext_req", 8 {
        /// BlueFlame registers asked for.
        @0 total_num_bfregs: u32,
        /// How many of them are dedicated to one queue each.
        @4 num_low_latency_bfregs: u32,
    }

    /// The request for newer kernels, each of which accepts one of the
    /// [`LENGTHS`](AllocUcontextReqV2::LENGTHS).
    struct AllocUcontextReqV2 = "struct mlx5_ib_alloc_ucontext_req_v2", 32 {
        /// BlueFlame registers asked for.
        @0 total_num_bfregs: u32,
        /// How many of them are dedicated to one queue each.
        @4 num_low_latency_bfregs: u32,
        @8 flags: AllocUcontextFlags,
        @12 comp_mask: u32,
        /// Highest CQE version that the library knows.
        @16 max_cqe_version: u8,
        @17 reserved0: u8,
        @18 reserved1: u16,
        @20 reserved2: u32,
        @24 lib_caps: LibCaps,
    }

    /// The driver's answer. Older kernels return less: see `response_length`.
    struct AllocUcontextResp = "struct mlx5_ib_alloc_ucontext_resp", 72 {
        /// Most queue pairs.
        @0 qp_tab_size: u32,
        /// Bytes of a BlueFlame register, both halves.
        @4 bf_reg_size: u32,
        /// BlueFlame registers granted; with 0 there are only UAR objects.
        @8 tot_bfregs: u32,
        @12 cache_line_size: u32,
        /// Most bytes of a send WQE.
        @16 max_sq_desc_sz: u16,
        /// Most bytes of a receive WQE.
        @18 max_rq_desc_sz: u16,
        /// Most WQE basic blocks (64 bytes) of a send queue.
        @20 max_send_wqebb: u32,
        /// Most receives of a receive queue.
        @24 max_recv_wr: u32,
        /// Most receives of a shared receive queue.
        @28 max_srq_recv_wr: u32,
        @32 num_ports: u16,
        @34 flow_action_flags: FlowActionFlags,
        @36 comp_mask: AllocUcontextRespMask,
        @40 response_length: u32,
        /// CQE version in use.
        @44 cqe_version: u8,
        @45 cmds_supp_uhw: CmdsSuppUhw,
        @46 eth_min_inline: InlineMode,
        @47 clock_info_versions: ClockInfoVersions,
        /// Offset of the clock in its page.
        @48 hca_core_clock_offset: u64,
        /// Binary logarithm of a UAR page's bytes.
        @56 log_uar_size: u32,
        /// UAR pages in a system page.
        @60 num_uars_per_page: u32,
        /// BlueFlame registers that may be allocated later.
        @64 num_dyn_bfregs: u32,
        /// Key of the null region (libmlx5's `ibv_alloc_null_mr`), in the machine's byte order.
        @68 dump_fill_mkey: u32,
    }
}

impl AllocUcontextReqV2 {
    /// Lengths in bytes to try, as libmlx5 does, newest kernel first: the whole struct, the part
    /// before `lib_caps`, the part before `max_cqe_version`.
    pub const LENGTHS: [usize; 3] = [
        size_of::<Self>(),
        core::mem::offset_of!(Self, lib_caps),
        core::mem::offset_of!(Self, max_cqe_version),
    ];
}
