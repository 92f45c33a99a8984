//! Queue pairs.

use crate::mlx5::flags::{CreateQpRespMask, ModifyQpMask, QpFlags, RxHashFields, RxHashFunctions};

crate::macros::abi_structs! {
    /// Streams of a DC initiator.
    struct DciStreams = "struct mlx5_ib_create_qp_dci_streams", 2 {
        @0 log_num_concurent: u8,
        @1 log_num_errored: u8,
    }

    /// Driver part of a request. Kernels also accept fewer bytes (libmlx5 44 sends 56 bytes).
    struct CreateQp = "struct mlx5_ib_create_qp", 56 {
        @0 buf_addr: u64,
        @8 db_addr: u64,
        /// Blocks of 64 bytes in the send queue.
        @16 sq_wqe_count: u32,
        /// WQEs in the receive queue.
        @20 rq_wqe_count: u32,
        /// Binary logarithm of a receive WQE's bytes.
        @24 rq_wqe_shift: u32,
        @28 flags: QpFlags,
        /// User index, returned in version 1 CQEs; 24 bits.
        @32 uidx: u32,
        /// BlueFlame register, or page id of a UAR object.
        @36 bfreg_index: u32,
        /// Raw packet: address of the send queue. DC target: the access key.
        @40 sq_buf_addr: u64,
        /// Enhanced connection establishment.
        @48 ece_options: u32,
        @52 dci_streams: DciStreams,
        @54 reserved: u16,
    }

    /// Driver part of an answer.
    struct CreateQpResp = "struct mlx5_ib_create_qp_resp", 40 {
        /// BlueFlame register assigned.
        @0 bfreg_index: u32,
        @4 ece_options: u32,
        @8 comp_mask: CreateQpRespMask,
        /// Number of the transport interface receive object.
        @12 tirn: u32,
        /// Number of the transport interface send object.
        @16 tisn: u32,
        /// Number of the receive queue.
        @20 rqn: u32,
        /// Number of the send queue.
        @24 sqn: u32,
        @28 reserved1: u32,
        @32 tir_icm_addr: u64,
    }

    /// Driver part of a request with receive-side scaling.
    struct CreateQpRss = "struct mlx5_ib_create_qp_rss", 152 {
        @0 rx_hash_fields_mask: RxHashFields,
        @8 rx_hash_function: RxHashFunctions,
        /// Bytes of the key.
        @9 rx_key_len: u8,
        @10 reserved: [u8; 6],
        @16 rx_hash_key: [u8; 128],
        @144 comp_mask: u32,
        @148 flags: QpFlags,
    }

    /// Shape of paced traffic.
    struct BurstInfo = "struct mlx5_ib_burst_info", 8 {
        /// Bytes.
        @0 max_burst_sz: u32,
        /// Bytes.
        @4 typical_pkt_sz: u16,
        @6 reserved: u16,
    }

    /// Driver part of a modify.
    struct ModifyQp = "struct mlx5_ib_modify_qp", 16 {
        @0 comp_mask: ModifyQpMask,
        @4 burst_info: BurstInfo,
        @12 ece_options: u32,
    }

    /// Driver part of its answer.
    struct ModifyQpResp = "struct mlx5_ib_modify_qp_resp", 16 {
        @0 response_length: u32,
        /// DC target number, when the target becomes ready.
        @4 dctn: u32,
        @8 ece_options: u32,
        @12 reserved: u32,
    }
}
