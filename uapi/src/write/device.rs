//! Device and port queries.

use zerocopy::big_endian::U64;

use crate::enums::{
    AtomicCap, GidType, LinkLayer, Mtu, PhysState, PortSpeed, PortState, PortWidth,
};
use crate::flags::{
    DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, PortCapFlags, PortCapFlags2, QueryPortFlags,
    RawPacketCaps,
};

crate::macros::abi_structs! {
    /// Queries the device attributes.
    struct QueryDevice = "struct ib_uverbs_query_device", 8 {
        @0 response: u64,
    }

    /// Device attributes.
    struct QueryDeviceResp = "struct ib_uverbs_query_device_resp", 176 {
        /// Firmware version: major in bits 32 and above, minor in 16 to 31, sub-minor below.
        @0 fw_ver: u64,
        /// GUID of the node.
        @8 node_guid: U64,
        /// GUID of the system.
        @16 sys_image_guid: U64,
        /// Bytes.
        @24 max_mr_size: u64,
        /// One bit per supported page size.
        @32 page_size_cap: u64,
        @40 vendor_id: u32,
        @44 vendor_part_id: u32,
        @48 hw_ver: u32,
        @52 max_qp: u32,
        /// Work requests per queue.
        @56 max_qp_wr: u32,
        /// Low word of [`DeviceCapFlags`].
        @60 device_cap_flags: u32,
        /// Entries per work request.
        @64 max_sge: u32,
        /// Entries per RDMA read.
        @68 max_sge_rd: u32,
        @72 max_cq: u32,
        /// Entries per completion queue.
        @76 max_cqe: u32,
        @80 max_mr: u32,
        @84 max_pd: u32,
        /// RDMA reads and atomics that a queue pair may answer at a time.
        @88 max_qp_rd_atom: u32,
        @92 max_ee_rd_atom: u32,
        /// RDMA reads and atomics that the whole device may answer at a time.
        @96 max_res_rd_atom: u32,
        /// RDMA reads and atomics that a queue pair may have in flight.
        @100 max_qp_init_rd_atom: u32,
        @104 max_ee_init_rd_atom: u32,
        @108 atomic_cap: AtomicCap,
        @112 max_ee: u32,
        @116 max_rdd: u32,
        @120 max_mw: u32,
        @124 max_raw_ipv6_qp: u32,
        @128 max_raw_ethy_qp: u32,
        @132 max_mcast_grp: u32,
        @136 max_mcast_qp_attach: u32,
        @140 max_total_mcast_qp_attach: u32,
        @144 max_ah: u32,
        @148 max_fmr: u32,
        @152 max_map_per_fmr: u32,
        @156 max_srq: u32,
        @160 max_srq_wr: u32,
        @164 max_srq_sge: u32,
        @168 max_pkeys: u16,
        /// 4.096 us << n.
        @170 local_ca_ack_delay: u8,
        /// The number of ports, at most 255.
        @171 phys_port_cnt: u8,
        @172 reserved: [u8; 4],
    }

    /// Queries the extended device attributes.
    struct ExQueryDevice = "struct ib_uverbs_ex_query_device", 8 {
        @0 comp_mask: u32,
        @4 reserved: u32,
    }

    /// On-demand paging.
    struct OdpCaps = "struct ib_uverbs_odp_caps", 24 {
        @0 general_caps: OdpGeneralCaps,
        @8 rc_odp_caps: OdpTransportCaps as "per_transport_caps.rc_odp_caps",
        @12 uc_odp_caps: OdpTransportCaps as "per_transport_caps.uc_odp_caps",
        @16 ud_odp_caps: OdpTransportCaps as "per_transport_caps.ud_odp_caps",
        @20 reserved: u32,
    }

    /// Receive-side scaling.
    struct RssCaps = "struct ib_uverbs_rss_caps", 16 {
        @0 supported_qpts: u32,
        @4 max_rwq_indirection_tables: u32,
        @8 max_rwq_indirection_table_size: u32,
        @12 reserved: u32,
    }

    /// Tag matching.
    struct TmCaps = "struct ib_uverbs_tm_caps", 24 {
        /// Bytes of a rendezvous request.
        @0 max_rndv_hdr_size: u32,
        /// Tags in the list.
        @4 max_num_tags: u32,
        /// Bit 0: on RC queue pairs.
        @8 flags: u32,
        /// List operations in flight.
        @12 max_ops: u32,
        @16 max_sge: u32,
        @20 reserved: u32,
    }

    /// Completion moderation.
    struct CqModerationCaps = "struct ib_uverbs_cq_moderation_caps", 8 {
        @0 max_cq_moderation_count: u16,
        /// Microseconds.
        @2 max_cq_moderation_period: u16,
        @4 reserved: u32,
    }

    /// Extended device attributes. Older kernels answer with less: see `response_length`.
    struct ExQueryDeviceResp = "struct ib_uverbs_ex_query_device_resp", 304 {
        /// The plain attributes.
        @0 base: QueryDeviceResp,
        @176 comp_mask: u32,
        @180 response_length: u32,
        @184 odp_caps: OdpCaps,
        /// The valid bits of a completion timestamp.
        @208 timestamp_mask: u64,
        /// Frequency of the device clock in kHz.
        @216 hca_core_clock: u64,
        @224 device_cap_flags_ex: DeviceCapFlags,
        @232 rss_caps: RssCaps,
        @248 max_wq_type_rq: u32,
        @252 raw_packet_caps: RawPacketCaps,
        @256 tm_caps: TmCaps,
        @280 cq_moderation_caps: CqModerationCaps,
        /// Bytes of device memory.
        @288 max_dm_size: u64,
        @296 xrc_odp_caps: OdpTransportCaps,
        @300 reserved: u32,
    }

    /// Queries the port attributes.
    struct QueryPort = "struct ib_uverbs_query_port", 16 {
        @0 response: u64,
        @8 port_num: u8,
        @9 reserved: [u8; 7],
    }

    /// Port attributes.
    struct QueryPortResp = "struct ib_uverbs_query_port_resp", 40 {
        @0 port_cap_flags: PortCapFlags,
        /// Bytes.
        @4 max_msg_sz: u32,
        @8 bad_pkey_cntr: u32,
        @12 qkey_viol_cntr: u32,
        /// Entries of the GID table.
        @16 gid_tbl_len: u32,
        /// Entries of the P_Key table.
        @20 pkey_tbl_len: u16,
        /// Local identifier, zero for RoCE.
        @22 lid: u16,
        /// LID of the subnet manager.
        @24 sm_lid: u16,
        @26 state: PortState,
        @27 max_mtu: Mtu,
        @28 active_mtu: Mtu,
        /// LMC: how many low bits of the LID select a path.
        @29 lmc: u8,
        @30 max_vl_num: u8,
        @31 sm_sl: u8,
        @32 subnet_timeout: u8,
        @33 init_type_reply: u8,
        @34 active_width: PortWidth,
        /// Low byte of a [`PortSpeed`].
        @35 active_speed: u8,
        @36 phys_state: PhysState,
        @37 link_layer: LinkLayer,
        @38 flags: QueryPortFlags,
        @39 reserved: u8,
    }

    /// Port attributes of the native method.
    struct QueryPortRespEx = "struct ib_uverbs_query_port_resp_ex", 48 {
        /// The plain attributes.
        @0 legacy_resp: QueryPortResp,
        @40 port_cap_flags2: PortCapFlags2,
        @42 reserved: [u8; 2],
        /// The whole speed; zero from kernels that only have the low byte (6.1, not 6.12).
        @44 active_speed_ex: PortSpeed,
    }

    /// An entry of the GID table.
    struct GidEntry = "struct ib_uverbs_gid_entry", 32 {
        /// The GID, in network order.
        @0 gid: [u8; 16],
        /// Index in the port's table.
        @16 gid_index: u32,
        @20 port_num: u32,
        @24 gid_type: GidType,
        /// Interface index of the network device, zero for none.
        @28 netdev_ifindex: u32,
    }
}
