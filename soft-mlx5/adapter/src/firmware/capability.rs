//! Capabilities that the device has with every front end.

use super::SETS;
use super::bits::Field;
use super::ethernet::LOG_QUEUES;
use super::flow_counter::{BULK_SIZES, LOG_BULK, LOG_COUNTERS};
use super::flow_table::{
    LEVELS, LOG_DESTINATIONS, LOG_ENTRIES, LOG_ENTRY_COUNTERS, LOG_SIZE, LOG_TABLES,
};
use super::general_object::{LOG_ALL_NUMBERS, LOG_NUMBERS, RESERVED_NUMBERS};
use super::layout::capability::{atomic, general, general_2, roce};
use super::layout::ethernet::{ethernet_offloads, flow_table_properties};
use super::record::{LOG_LIST, LOG_RECORDS};
use super::tag_matching::LOG_TAGS;
use crate::core::{LOG_MAX_CQ, MAX_COMPRESSED};

/// Bytes of a block of capabilities.
pub const BLOCK: usize = 4096;
/// Offset of the block in commands, in bits.
pub const BLOCK_AT: usize = 0x80;

/// Types of capabilities, `MLX5_CAP_*` in the kernel's `device.h`: general ones.
pub const GENERAL: u64 = 0;
/// The second group of general capabilities.
pub const GENERAL_2: u64 = 0x20;
/// Offloads of Ethernet.
pub const ETHERNET_OFFLOADS: u64 = 1;
/// Atomic operations.
pub const ATOMIC: u64 = 3;
/// RoCE.
pub const ROCE: u64 = 4;
/// Flow tables.
pub const FLOW_TABLE: u64 = 7;
/// Quality of service.
pub const QOS: u64 = 0xc;

/// Port types, `MLX5_CAP_PORT_TYPE_*`.
const PORT_INFINIBAND: u64 = 0;
const PORT_ETHERNET: u64 = 1;

const SUPPORTED: u64 = 1;

/// Free-running timestamps count nanoseconds.
const FREQUENCY_KHZ: u64 = 1_000_000;

/// A block with these values; all others are zero.
pub fn block(values: &[(Field, u64)]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for (field, value) in values {
        debug_assert!(*value <= field.max());
        field.set(&mut block, *value);
    }
    block
}

/// The fields that both links share. Unset means unsupported.
pub const COMMON_VALUES: &[(Field, u64)] = &[
    (general::PAGE_REQUEST_DISABLE, SUPPORTED),
    (general::LOG_MAX_SRQ_SZ, 15),
    (general::LOG_MAX_QP_SZ, 15),
    (general::LOG_MAX_QP, 17),
    (general::LOG_MAX_SRQ, 16),
    (general::LOG_MAX_CQ_SZ, LOG_MAX_CQ as u64),
    (general::LOG_MAX_CQ, 16),
    (general::LOG_MAX_EQ_SZ, 20),
    (general::LOG_MAX_EQ, 5),
    (general::LOG_MAX_MKEY, 20),
    (general::LOG_MAX_MRW_SZ, 64),
    (general::LOG_MAX_KLM_LIST_SIZE, 16),
    (general::MAX_INDIRECTION, 4),
    (general::FIXED_BUFFER_SIZE, SUPPORTED),
    (general::LOG_MAX_RA_REQ_QP, 4),
    (general::LOG_MAX_RA_RES_QP, 4),
    (general::LOG_MAX_MSG, 30),
    (general::LOCAL_CA_ACK_DELAY, 16),
    (general::MAX_QP_CNT, SETS as u64),
    (general::OUT_OF_SEQ_CNT, SUPPORTED),
    (general::RETRANSMISSION_Q_COUNTERS, SUPPORTED),
    (general::VPORT_COUNTERS, SUPPORTED),
    (general::NUM_PORTS, 1),
    (general::CQE_VERSION, 1),
    (general::SCTR_DATA_CQE, SUPPORTED),
    (general::UMR_EXTENDED_TRANSLATION_OFFSET, SUPPORTED),
    (general::ATOMIC, SUPPORTED),
    (general::CQ_OI, SUPPORTED),
    (general::CQ_RESIZE, SUPPORTED),
    (general::CQ_MODERATION, SUPPORTED),
    (general::IMAICL, SUPPORTED),
    (general::BLOCK_LB_MC, SUPPORTED),
    (general::PKV, SUPPORTED),
    (general::QKV, SUPPORTED),
    (general::XRC, SUPPORTED),
    (general::UD, SUPPORTED),
    (general::UC, SUPPORTED),
    (general::RC, SUPPORTED),
    (general::LOG_PG_SZ, 12),
    (general::BF, SUPPORTED),
    (general::LOG_BF_REG_SIZE, 9),
    (general::DRIVER_VERSION, SUPPORTED),
    (general::MAX_WQE_SZ_SQ, 1024),
    (general::MAX_WQE_SZ_RQ, 512),
    (general::MAX_QP_MCG, 240),
    (general::LOG_MAX_MCG, 14),
    (general::LOG_MAX_TRANSPORT_DOMAIN, 16),
    (general::HCA_CAP_2, SUPPORTED),
    (general::GENERAL_OBJ_TYPES, 1 << RESERVED_NUMBERS),
    (general::LOG_MAX_PD, 16),
    (general::LOG_MAX_UCTX, 16),
    (general::LOG_MAX_UMEM, 24),
    (general::LOG_MAX_XRCD, 16),
    (general::LOG_MAX_RMP, 16),
    (general::LOG_MAX_SQ, LOG_QUEUES as u64),
    (general::NUM_OF_UARS_PER_PAGE, 1),
    (general::CQE_COMPRESSION, SUPPORTED),
    (general::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED as u64),
    (general::MINI_CQE_RESP_STRIDE_INDEX, SUPPORTED),
    (general::DEVICE_FREQUENCY_MHZ, FREQUENCY_KHZ / 1000),
    (general::DEVICE_FREQUENCY_KHZ, FREQUENCY_KHZ),
];

/// The second group of general fields, which both front ends have.
pub const GENERAL_2_VALUES: &[(Field, u64)] = &[
    (general_2::LOG_MAX_NUM_RESERVED_QPN, LOG_ALL_NUMBERS as u64),
    (general_2::LOG_RESERVED_QPN_GRANULARITY, LOG_NUMBERS as u64),
    (general_2::LOG_RESERVED_QPN_MAX_ALLOC, LOG_NUMBERS as u64),
];

/// The fields that both front ends have for an Ethernet port.
pub const ETHERNET_VALUES: &[(Field, u64)] = &[
    (general::PORT_TYPE, PORT_ETHERNET),
    (general::ROCE, SUPPORTED),
    (general::ETH_NET_OFFLOADS, SUPPORTED),
    (general::MAX_FLOW_COUNTER_15_0, (1 << LOG_COUNTERS) - 1),
    (general::FLOW_COUNTERS_DUMP, SUPPORTED),
    (general::LOG_MAX_FLOW_COUNTER_BULK, LOG_BULK as u64),
    (general::FLOW_COUNTER_BULK_ALLOC, BULK_SIZES),
    (general::LOG_MAX_RQ, LOG_QUEUES as u64),
    (general::BASIC_CYCLIC_RCV_WQE, SUPPORTED),
    (general::MEM_RQ_RMP, SUPPORTED),
    (general::NIC_FLOW_TABLE, SUPPORTED),
    (general::LOG_MAX_TIR, LOG_RECORDS as u64),
    (general::LOG_MAX_TIS, LOG_RECORDS as u64),
    (general::LOG_MAX_RQT, LOG_RECORDS as u64),
    (general::LOG_MAX_RQT_SIZE, LOG_LIST as u64),
    (general::LOG_MAX_TIS_PER_SQ, 3),
    (general::LOG_MAX_STRIDE_SZ_RQ, 11),
    (general::LOG_MIN_STRIDE_SZ_RQ, 4),
    (general::LOG_MAX_STRIDE_SZ_SQ, 6),
    (general::LOG_MIN_STRIDE_SZ_SQ, 6),
    (general::LOG_MAX_WQ_SZ, 15),
    (general::STRIDING_RQ, SUPPORTED),
    (general::EXT_STRIDE_NUM_RANGE, SUPPORTED),
];

/// Entries of an Ethernet port's table of RoCE addresses.
pub const ROCE_ADDRESSES: usize = 256;

/// RoCE v2 over IPv4 and IPv6.
pub const ROCE_VALUES: &[(Field, u64)] = &[
    (roce::L3_TYPE, 0b110),
    (roce::ROCE_VERSION, 1 << 2),
    (roce::R_ROCE_DEST_UDP_PORT, 4791),
    (roce::R_ROCE_MIN_SRC_UDP_PORT, 0xc000),
    (roce::R_ROCE_MAX_SRC_UDP_PORT, 0xffff),
    (roce::ROCE_ADDRESS_TABLE_SIZE, ROCE_ADDRESSES as u64),
];

/// The capabilities that mlx5e needs to make a network device.
pub const OFFLOAD_VALUES: &[(Field, u64)] = &[
    (ethernet_offloads::CSUM_CAP, SUPPORTED),
    (ethernet_offloads::VLAN_CAP, SUPPORTED),
    (ethernet_offloads::MAX_LSO_CAP, 16),
    (ethernet_offloads::WQE_INLINE_MODE, INLINE_NOT_REQUIRED),
    (ethernet_offloads::RSS_IND_TBL_CAP, 8),
    (ethernet_offloads::SELF_LB_EN_MODIFIABLE, SUPPORTED),
];

/// The beginning of a frame need not be inline in its WQE.
const INLINE_NOT_REQUIRED: u64 = 2;

/// Offset in bits of the properties of receive tables in the flow table block.
const RECEIVE_TABLES: usize = 0x200;

/// The fields about flow tables that both front ends have.
pub fn flow_table_values() -> Vec<(Field, u64)> {
    let values = [
        (flow_table_properties::FT_SUPPORT, SUPPORTED),
        (flow_table_properties::FLOW_COUNTER, SUPPORTED),
        (flow_table_properties::FLOW_MODIFY_EN, SUPPORTED),
        (flow_table_properties::MODIFY_ROOT, SUPPORTED),
        (flow_table_properties::IDENTIFIED_MISS_TABLE_MODE, SUPPORTED),
        (flow_table_properties::FLOW_TABLE_MODIFY, SUPPORTED),
        (flow_table_properties::LOG_MAX_FT_SIZE, LOG_SIZE.into()),
        (flow_table_properties::MAX_FT_LEVEL, LEVELS),
        (flow_table_properties::LOG_MAX_FT_NUM, LOG_TABLES.into()),
        (flow_table_properties::LOG_MAX_FLOW_COUNTER, LOG_ENTRY_COUNTERS.into()),
        (flow_table_properties::LOG_MAX_DESTINATION, LOG_DESTINATIONS.into()),
        (flow_table_properties::LOG_MAX_FLOW, LOG_ENTRIES.into()),
    ];
    values.map(|(field, value)| (field.at(RECEIVE_TABLES), value)).to_vec()
}

/// The fields that both front ends have for an InfiniBand port. Tag matching is announced there
/// only: on RoCE libmlx5 could not use it, because it connects the command QP by LID
/// (`create_cmd_qp`), which the kernel refuses (`rdma_check_ah_attr`).
pub const INFINIBAND_VALUES: &[(Field, u64)] = &[
    (general::PORT_TYPE, PORT_INFINIBAND),
    (general::TAG_MATCHING, SUPPORTED),
    (general::RNDV_OFFLOAD_RC, SUPPORTED),
    (general::LOG_TAG_MATCHING_LIST_SZ, LOG_TAGS as u64),
    (general::LOG_MAX_XRQ, 16),
];

/// Compare and swap, fetch and add; 8 bytes; results in the host's byte order if the driver asks
/// for it.
pub const ATOMIC_VALUES: &[(Field, u64)] = &[
    (atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, SUPPORTED),
    (atomic::ATOMIC_OPERATIONS, 0b11),
    (atomic::ATOMIC_SIZE_QP, 1 << 3),
    (atomic::ATOMIC_SIZE_DC, 1 << 3),
];

/// Dynamic connections, with 16 READs and atomics outstanding.
pub const DYNAMIC_CONNECTION_VALUES: &[(Field, u64)] =
    &[(general::DCT, SUPPORTED), (general::LOG_MAX_RA_REQ_DC, 4), (general::LOG_MAX_RA_RES_DC, 4)];
