//! Device queries.

use crate::mlx5::flags::{
    CqeCompFormat, MpwCaps, PacketPacingFlags, QueryDevRespFlags, RxHashFields, RxHashFunctions,
    SwParsing, TunnelOffloads, VportFlags,
};

crate::macros::abi_structs! {
    /// A register value under a mask.
    struct Reg = "struct mlx5_ib_uapi_reg", 8 {
        @0 value: u32,
        /// Valid bits.
        @4 mask: u32,
    }

    /// Segmentation offload.
    struct TsoCaps = "struct mlx5_ib_tso_caps", 8 {
        /// Most bytes of payload.
        @0 max_tso: u32,
        /// Bit N: queue pair type N (`1 << IB_QPT_…`).
        @4 supported_qpts: u32,
    }

    /// Receive-side scaling.
    struct RssCaps = "struct mlx5_ib_rss_caps", 16 {
        @0 rx_hash_fields_mask: RxHashFields,
        @8 rx_hash_function: RxHashFunctions,
        @9 reserved: [u8; 7],
    }

    /// CQE compression.
    struct CqeCompCaps = "struct mlx5_ib_cqe_comp_caps", 8 {
        /// Most CQEs of a compressed session (`cqe_compression_max_num`).
        @0 max_num: u32,
        @4 supported_format: CqeCompFormat,
    }

    /// Packet pacing.
    struct PacketPacingCaps = "struct mlx5_packet_pacing_caps", 16 {
        /// Kbit/s.
        @0 qp_rate_limit_min: u32,
        /// Kbit/s.
        @4 qp_rate_limit_max: u32,
        /// Bit N: queue pair type N (`1 << IB_QPT_…`).
        @8 supported_qpts: u32,
        @12 cap_flags: PacketPacingFlags,
        @13 reserved: [u8; 3],
    }

    /// Software parsing.
    struct SwParsingCaps = "struct mlx5_ib_sw_parsing_caps", 8 {
        @0 sw_parsing_offloads: SwParsing,
        /// Bit N: queue pair type N (`1 << IB_QPT_…`).
        @4 supported_qpts: u32,
    }

    /// Striding receive queues.
    struct StridingRqCaps = "struct mlx5_ib_striding_rq_caps", 24 {
        @0 min_single_stride_log_num_of_bytes: u32,
        @4 max_single_stride_log_num_of_bytes: u32,
        @8 min_single_wqe_log_num_of_strides: u32,
        @12 max_single_wqe_log_num_of_strides: u32,
        /// Bit N: queue pair type N (`1 << IB_QPT_…`).
        @16 supported_qpts: u32,
        @20 reserved: u32,
    }

    /// Streams of DC initiators.
    struct DciStreamsCaps = "struct mlx5_ib_dci_streams_caps", 2 {
        @0 max_log_num_concurent: u8,
        @1 max_log_num_errored: u8,
    }

    /// What the driver adds to the extended device query; see `response_length`.
    struct QueryDeviceResp = "struct mlx5_ib_query_device_resp", 112 {
        @0 comp_mask: u32,
        @4 response_length: u32,
        @8 tso_caps: TsoCaps,
        @16 rss_caps: RssCaps,
        @32 cqe_comp_caps: CqeCompCaps,
        @40 packet_pacing_caps: PacketPacingCaps,
        @56 mlx5_ib_support_multi_pkt_send_wqes: MpwCaps,
        @60 flags: QueryDevRespFlags,
        @64 sw_parsing_caps: SwParsingCaps,
        @72 striding_rq_caps: StridingRqCaps,
        @96 tunnel_offloads_caps: TunnelOffloads,
        @100 dci_streams_caps: DciStreamsCaps,
        @102 reserved: u16,
        @104 reg_c0: Reg,
    }

    /// The vport of a port.
    struct QueryPort = "struct mlx5_ib_uapi_query_port", 40 {
        @0 flags: VportFlags,
        @8 vport: u16,
        @10 vport_vhca_id: u16,
        @12 esw_owner_vhca_id: u16,
        /// Zero.
        @14 rsvd0: u16,
        @16 vport_steering_icm_rx: u64,
        @24 vport_steering_icm_tx: u64,
        @32 reg_c0: Reg,
    }
}
