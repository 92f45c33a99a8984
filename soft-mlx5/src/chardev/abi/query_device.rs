//! The device's capabilities: QUERY_DEVICE, plain and extended with the driver's part. Kernel:
//! `ib_uverbs_query_device`, `ib_uverbs_ex_query_device`, `mlx5_ib_query_device`.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use nix::errno::Errno;
use uverbs_uapi::enums::{AtomicCap, QpType};
use uverbs_uapi::flags::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};
use uverbs_uapi::mlx5::device::{
    CqeCompCaps, PacketPacingCaps, QueryDeviceResp as DriverResp, RssCaps as HashCaps,
    StridingRqCaps, TsoCaps,
};
use uverbs_uapi::mlx5::flags::{CqeCompFormat, RxHashFields, RxHashFunctions};
use uverbs_uapi::write::device::{
    CqModerationCaps, ExQueryDevice, ExQueryDeviceResp, OdpCaps, QueryDevice, QueryDeviceResp,
    RssCaps, TmCaps,
};
use zerocopy::IntoBytes;

use super::call::{Buffers, Call};
use crate::chardev::device::options::Options;
use crate::chardev::objects::cq::{MAX_COUNT, MAX_PERIOD};
use crate::chardev::objects::work_queue::{LOG_STRIDE_BYTES, LOG_STRIDES};
use crate::core::{MAX_COMPRESSED, MAX_RENDEZVOUS, MAX_TSO};

const VENDOR_MELLANOX: u32 = 0x02c9;
/// Bytes of a send WQE in the computation of `max_qp_wr`: the largest overhead of any type, XRC
/// with UMR, plus an entry, rounded up (`mlx5_ib_calc_max_qp_wr`).
const LARGEST_WQE: u32 = 256;
/// Most requests in a queue.
pub(crate) const MAX_QP_WR: u32 = (64 << Options::LOG_MAX_QP_SIZE) / LARGEST_WQE;
/// Entries of an RDMA READ (`MLX5_MAX_SGE_RD`).
const MAX_SGE_RD: u32 = 30;
/// QPs per multicast group.
const MAX_QP_PER_GROUP: u32 = 240;
/// `IB_TM_CAP_RNDV_RC`.
const TM_RENDEZVOUS_RC: u32 = 1;
const LOG_MAX_GROUPS: u32 = 21;
const LOG_MAX_TABLES: u32 = 16;
/// log2 of the places of an indirection table.
pub(crate) const LOG_MAX_TABLE_SIZE: u32 = 11;
const LOG_MAX_WORK_QUEUES: u32 = 16;
/// Fields of a frame that can be hashed.
pub(crate) const HASHED_FIELDS: RxHashFields = RxHashFields::SRC_IPV4
    .union(RxHashFields::DST_IPV4)
    .union(RxHashFields::SRC_IPV6)
    .union(RxHashFields::DST_IPV6)
    .union(RxHashFields::SRC_PORT_TCP)
    .union(RxHashFields::DST_PORT_TCP)
    .union(RxHashFields::SRC_PORT_UDP)
    .union(RxHashFields::DST_PORT_UDP);

/// `IB_USER_VERBS_CMD_QUERY_DEVICE`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?;
    let _: QueryDevice = call.request()?;
    call.response(&base(call.file.device.options()))
}

/// `IB_USER_VERBS_EX_CMD_QUERY_DEVICE`.
pub(crate) fn query_extended(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?;
    let request: ExQueryDevice = call.request()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let driver = call.driver();
    check_driver(&driver)?;
    let options = call.file.device.options();
    let base = base(options);
    let response = ExQueryDeviceResp {
        base,
        response_length: call.response_length::<ExQueryDeviceResp>(),
        timestamp_mask: u64::MAX >> 1,
        hca_core_clock: Options::CLOCK_KHZ,
        device_cap_flags_ex: capabilities(options),
        cq_moderation_caps: CqModerationCaps {
            max_cq_moderation_count: MAX_COUNT,
            max_cq_moderation_period: MAX_PERIOD,
            ..CqModerationCaps::default()
        },
        max_dm_size: Options::DEVICE_MEMORY,
        odp_caps: on_demand_paging(),
        xrc_odp_caps: reliable_on_demand(),
        rss_caps: spreading(options),
        max_wq_type_rq: if options.is_roce() { 1 << LOG_MAX_WORK_QUEUES } else { 0 },
        raw_packet_caps: raw_packet(options),
        tm_caps: tag_matching(options),
        ..ExQueryDeviceResp::default()
    };
    if driver.output_length() != 0 {
        answer_driver(&driver, options)?;
    }
    call.response(&response)
}

/// EINVAL if the driver's input is not zero, or if the buffer for its answer is too short for the
/// length.
fn check_driver(driver: &Buffers) -> Result<(), Errno> {
    let has_length = matches!(driver.output_length(), 0 | 8..);
    if has_length && driver.is_clear_from(0)? { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Operations of reliable connections that may use on-demand memory. All of these are in
/// `internal_fill_odp_caps`; which of them each ConnectX reports is unconfirmed.
fn reliable_on_demand() -> OdpTransportCaps {
    OdpTransportCaps::SEND
        | OdpTransportCaps::RECV
        | OdpTransportCaps::WRITE
        | OdpTransportCaps::READ
        | OdpTransportCaps::ATOMIC
        | OdpTransportCaps::SRQ_RECV
}

/// On-demand paging per transport; mlx5 has none for UC.
fn on_demand_paging() -> OdpCaps {
    OdpCaps {
        general_caps: OdpGeneralCaps::SUPPORT | OdpGeneralCaps::SUPPORT_IMPLICIT,
        rc_odp_caps: reliable_on_demand(),
        ud_odp_caps: OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV,
        ..OdpCaps::default()
    }
}

/// Tag matching with rendezvous, on RC queue pairs.
fn tag_matching(options: &Options) -> TmCaps {
    if !options.matches_tags() {
        return TmCaps::default();
    }
    TmCaps {
        max_rndv_hdr_size: MAX_RENDEZVOUS as u32,
        max_num_tags: (1 << Options::LOG_MAX_TAGS) - 1,
        flags: TM_RENDEZVOUS_RC,
        max_ops: 1 << Options::LOG_MAX_QP_SIZE,
        max_sge: 1,
        ..TmCaps::default()
    }
}

/// Raw packet QPs are for Ethernet ports (`mlx5_ib_query_device`).
fn raw_packet(options: &Options) -> RawPacketCaps {
    if !options.is_roce() {
        return RawPacketCaps::empty();
    }
    RawPacketCaps::CVLAN_STRIPPING | RawPacketCaps::SCATTER_FCS | RawPacketCaps::IP_CSUM
}

/// Indirection tables of raw packet QPs, with the limits of the PCI front end.
fn spreading(options: &Options) -> RssCaps {
    if !options.is_roce() {
        return RssCaps::default();
    }
    RssCaps {
        supported_qpts: 1 << QpType::RAW_PACKET.0,
        max_rwq_indirection_tables: 1 << LOG_MAX_TABLES,
        max_rwq_indirection_table_size: 1 << LOG_MAX_TABLE_SIZE,
        ..RssCaps::default()
    }
}

/// The driver's capabilities for raw packet QPs: segmentation, hashing of addresses and ports of
/// the outer headers, pacing, striding receive queues.
fn driver_raw_packet(options: &Options) -> DriverResp {
    if !options.is_roce() {
        return DriverResp::default();
    }
    let supported_qpts = 1 << QpType::RAW_PACKET.0;
    let pacing = |rates: RangeInclusive<u32>| PacketPacingCaps {
        qp_rate_limit_min: *rates.start(),
        qp_rate_limit_max: *rates.end(),
        supported_qpts,
        ..PacketPacingCaps::default()
    };
    DriverResp {
        tso_caps: TsoCaps { max_tso: MAX_TSO, supported_qpts },
        rss_caps: HashCaps {
            rx_hash_fields_mask: HASHED_FIELDS,
            rx_hash_function: RxHashFunctions::TOEPLITZ,
            ..HashCaps::default()
        },
        packet_pacing_caps: options.rates().map_or_else(PacketPacingCaps::default, pacing),
        striding_rq_caps: StridingRqCaps {
            min_single_stride_log_num_of_bytes: *LOG_STRIDE_BYTES.start(),
            max_single_stride_log_num_of_bytes: *LOG_STRIDE_BYTES.end(),
            min_single_wqe_log_num_of_strides: *LOG_STRIDES.start(),
            max_single_wqe_log_num_of_strides: *LOG_STRIDES.end(),
            supported_qpts,
            ..StridingRqCaps::default()
        },
        ..DriverResp::default()
    }
}

/// Compressed completions.
fn compression() -> CqeCompCaps {
    CqeCompCaps { max_num: MAX_COMPRESSED as u32, supported_format: CqeCompFormat::all() }
}

/// Answers the driver's part, cut to whole members. Capabilities that the device does not model are
/// zero.
fn answer_driver(driver: &Buffers, options: &Options) -> Result<(), Errno> {
    let members = [8, 16, 32, 40, 56, 60, 64, 72, 96, 100, 104, 112];
    let fitting = members.into_iter().rev().find(|end| *end <= driver.output_length());
    let response_length = fitting.unwrap_or(8);
    let response = DriverResp {
        response_length: response_length as u32,
        cqe_comp_caps: compression(),
        ..driver_raw_packet(options)
    };
    driver.write(&response.as_bytes()[..response_length])
}

fn capabilities(options: &Options) -> DeviceCapFlags {
    let mut capabilities = DeviceCapFlags::BAD_PKEY_CNTR
        | DeviceCapFlags::BAD_QKEY_CNTR
        | DeviceCapFlags::CHANGE_PHY_PORT
        | DeviceCapFlags::PORT_ACTIVE_EVENT
        | DeviceCapFlags::SYS_IMAGE_GUID
        | DeviceCapFlags::AUTO_PATH_MIG
        | DeviceCapFlags::RC_RNR_NAK_GEN
        | DeviceCapFlags::MEM_WINDOW
        | DeviceCapFlags::XRC
        | DeviceCapFlags::MEM_MGT_EXTENSIONS
        | DeviceCapFlags::MEM_WINDOW_TYPE_2B;
    capabilities.set(DeviceCapFlags::SRQ_RESIZE, options.srq_resize);
    let raw = DeviceCapFlags::RAW_IP_CSUM
        | DeviceCapFlags::RAW_SCATTER_FCS
        | DeviceCapFlags::MANAGED_FLOW_STEERING;
    capabilities.set(raw, options.is_roce());
    capabilities
}

/// The answer to the plain command.
fn base(options: &Options) -> QueryDeviceResp {
    let (major, minor, sub) = options.model.firmware();
    let guid = options.node_guid();
    let receive_sge = u32::from(Options::MAX_RECV_WQE) / 16;
    // The kernel counts at most 512 bytes of a WQE, and control and remote address segment take 32
    // of them.
    let send_sge = (512 - 32) / 16;
    let read_atomic = u32::from(Options::MAX_READ_ATOMIC);
    QueryDeviceResp {
        fw_ver: u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(sub),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: VENDOR_MELLANOX,
        vendor_part_id: options.model.part_id(),
        max_qp: 1 << Options::LOG_MAX_QP,
        max_qp_wr: MAX_QP_WR,
        device_cap_flags: capabilities(options).bits() as u32,
        max_sge: receive_sge.min(send_sge),
        max_sge_rd: MAX_SGE_RD,
        max_cq: 1 << 24,
        max_cqe: (1 << Options::LOG_MAX_CQ_SIZE) - 1,
        max_mr: 1 << 24,
        max_pd: 1 << 23,
        max_qp_rd_atom: read_atomic,
        max_res_rd_atom: read_atomic << Options::LOG_MAX_QP,
        max_qp_init_rd_atom: read_atomic,
        atomic_cap: AtomicCap::HCA,
        max_mw: 1 << 24,
        max_mcast_grp: 1 << LOG_MAX_GROUPS,
        max_mcast_qp_attach: MAX_QP_PER_GROUP,
        max_total_mcast_qp_attach: MAX_QP_PER_GROUP << LOG_MAX_GROUPS,
        max_ah: i32::MAX as u32,
        max_srq: 1 << 23,
        max_srq_wr: (1 << Options::LOG_MAX_SRQ_SIZE) - 1,
        max_srq_sge: receive_sge - 1,
        max_pkeys: options.pkeys.len() as u16,
        local_ca_ack_delay: 16,
        phys_port_cnt: 1,
        ..QueryDeviceResp::default()
    }
}
