//! Capability blocks, as `mlx5_ifc.h` has them.

use crate::firmware::bits::structure;

structure! {
    /// General capabilities; only fields that this device sets.
    general {
        PAGE_REQUEST_DISABLE: 0x6, 1;
        HCA_CAP_2: 0x20, 1;
        VHCA_ID: 0x30, 16;
        LOG_MAX_SRQ_SZ: 0x80, 8;
        LOG_MAX_QP_SZ: 0x88, 8;
        LOG_MAX_QP: 0x9b, 5;
        LOG_MAX_SRQ: 0xab, 5;
        LOG_MAX_CQ_SZ: 0xc8, 8;
        LOG_MAX_CQ: 0xdb, 5;
        LOG_MAX_EQ_SZ: 0xe0, 8;
        LOG_MAX_MKEY: 0xea, 6;
        LOG_MAX_EQ: 0xfc, 4;
        MAX_INDIRECTION: 0x100, 8;
        FIXED_BUFFER_SIZE: 0x108, 1;
        LOG_MAX_MRW_SZ: 0x109, 7;
        LOG_MAX_BSF_LIST_SIZE: 0x112, 6;
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x118, 1;
        NULL_MKEY: 0x119, 1;
        LOG_MAX_KLM_LIST_SIZE: 0x11a, 6;
        LOG_MAX_RA_REQ_DC: 0x12a, 6;
        LOG_MAX_RA_RES_DC: 0x13a, 6;
        LOG_MAX_RA_REQ_QP: 0x14a, 6;
        LOG_MAX_RA_RES_QP: 0x15a, 6;
        END_PAD: 0x160, 1;
        START_PAD: 0x163, 1;
        GID_TABLE_SIZE: 0x170, 16;
        OUT_OF_SEQ_CNT: 0x180, 1;
        VPORT_COUNTERS: 0x181, 1;
        RETRANSMISSION_Q_COUNTERS: 0x182, 1;
        MAX_QP_CNT: 0x186, 10;
        PKEY_TABLE_SIZE: 0x190, 16;
        VPORT_GROUP_MANAGER: 0x1a0, 1;
        IB_VIRT: 0x1a2, 1;
        ETH_VIRT: 0x1a3, 1;
        ETS: 0x1a5, 1;
        NIC_FLOW_TABLE: 0x1a6, 1;
        LOCAL_CA_ACK_DELAY: 0x1ab, 5;
        PORT_TYPE: 0x1b6, 2;
        NUM_PORTS: 0x1b8, 8;
        LOG_MAX_MSG: 0x1c3, 5;
        MAX_TC: 0x1cc, 4;
        STAT_RATE_SUPPORT: 0x1e0, 16;
        CQE_VERSION: 0x1fc, 4;
        COMPACT_ADDRESS_VECTOR: 0x200, 1;
        STRIDING_RQ: 0x201, 1;
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x207, 1;
        UMR_MODIFY_ATOMIC_DISABLED: 0x208, 1;
        UMR_INDIRECT_MKEY_DISABLED: 0x209, 1;
        UMR_FENCE: 0x20a, 2;
        CMDIF_CHECKSUM: 0x210, 2;
        SIGERR_CQE: 0x212, 1;
        WQ_SIGNATURE: 0x214, 1;
        SCTR_DATA_CQE: 0x215, 1;
        DCT: 0x21a, 1;
        QOS: 0x21b, 1;
        ETH_NET_OFFLOADS: 0x21c, 1;
        ROCE: 0x21d, 1;
        ATOMIC: 0x21e, 1;
        CQ_OI: 0x220, 1;
        CQ_RESIZE: 0x221, 1;
        CQ_MODERATION: 0x222, 1;
        CQ_EQ_REMAP: 0x226, 1;
        PG: 0x227, 1;
        BLOCK_LB_MC: 0x228, 1;
        CD: 0x22c, 1;
        APM: 0x22e, 1;
        UMR_PTR_RLKY: 0x230, 1;
        IMAICL: 0x231, 1;
        QKV: 0x236, 1;
        PKV: 0x237, 1;
        SET_DETH_SQPN: 0x238, 1;
        XRC: 0x23c, 1;
        UD: 0x23d, 1;
        UC: 0x23e, 1;
        RC: 0x23f, 1;
        UAR_4K: 0x240, 1;
        UAR_SZ: 0x24a, 6;
        LOG_PG_SZ: 0x258, 8;
        BF: 0x260, 1;
        DRIVER_VERSION: 0x261, 1;
        LOG_BF_REG_SIZE: 0x26b, 5;
        MAX_WQE_SZ_SQ: 0x290, 16;
        MAX_WQE_SZ_RQ: 0x2b0, 16;
        MAX_WQE_SZ_SQ_DC: 0x2d0, 16;
        MAX_QP_MCG: 0x2e7, 25;
        FLOW_COUNTER_BULK_ALLOC: 0x310, 8;
        LOG_MAX_MCG: 0x318, 8;
        LOG_MAX_TRANSPORT_DOMAIN: 0x323, 5;
        LOG_MAX_PD: 0x32b, 5;
        LOG_MAX_XRCD: 0x33b, 5;
        LOG_MAX_FLOW_COUNTER_BULK: 0x348, 8;
        MAX_FLOW_COUNTER_15_0: 0x350, 16;
        FLOW_COUNTERS_DUMP: 0x361, 1;
        LOG_MAX_RQ: 0x363, 5;
        LOG_MAX_SQ: 0x36b, 5;
        LOG_MAX_TIR: 0x373, 5;
        LOG_MAX_TIS: 0x37b, 5;
        BASIC_CYCLIC_RCV_WQE: 0x380, 1;
        MEM_RQ_RMP: 0x382, 1;
        LOG_MAX_RMP: 0x383, 5;
        LOG_MAX_RQT: 0x38b, 5;
        LOG_MAX_RQT_SIZE: 0x393, 5;
        LOG_MAX_TIS_PER_SQ: 0x39b, 5;
        EXT_STRIDE_NUM_RANGE: 0x3a0, 1;
        LOG_MAX_STRIDE_SZ_RQ: 0x3a3, 5;
        LOG_MIN_STRIDE_SZ_RQ: 0x3ab, 5;
        LOG_MAX_STRIDE_SZ_SQ: 0x3b3, 5;
        LOG_MIN_STRIDE_SZ_SQ: 0x3bb, 5;
        LOG_MAX_WQ_SZ: 0x3db, 5;
        DISABLE_LOCAL_LB_UC: 0x3e1, 1;
        DISABLE_LOCAL_LB_MC: 0x3e2, 1;
        LOG_MAX_VLAN_LIST: 0x3eb, 5;
        LOG_MAX_CURRENT_MC_LIST: 0x3f3, 5;
        LOG_MAX_CURRENT_UC_LIST: 0x3fb, 5;
        GENERAL_OBJ_TYPES: 0x400, 64;
        SQ_TS_FORMAT: 0x440, 2;
        RQ_TS_FORMAT: 0x442, 2;
        LOG_MAX_UCTX: 0x463, 5;
        LOG_MAX_UMEM: 0x46b, 5;
        LOG_MAX_L2_TABLE: 0x483, 5;
        LOG_UAR_PAGE_SZ: 0x490, 16;
        DEVICE_FREQUENCY_MHZ: 0x4c0, 32;
        DEVICE_FREQUENCY_KHZ: 0x4e0, 32;
        NUM_OF_UARS_PER_PAGE: 0x520, 32;
        MINI_CQE_RESP_STRIDE_INDEX: 0x5bc, 1;
        CQE_128_ALWAYS: 0x5bd, 1;
        CQE_COMPRESSION: 0x5bf, 1;
        CQE_COMPRESSION_MAX_NUM: 0x5d0, 16;
        TAG_MATCHING: 0x5f0, 1;
        RNDV_OFFLOAD_RC: 0x5f1, 1;
        RNDV_OFFLOAD_DC: 0x5f2, 1;
        LOG_TAG_MATCHING_LIST_SZ: 0x5f3, 5;
        LOG_MAX_XRQ: 0x5fb, 5;
        NATIVE_PORT_NUM: 0x608, 8;
    }
}

structure! {
    /// Further general capabilities. They are not in the kernel's header, but in UCX's
    /// (`uct_ib_mlx5_cmd_hca_cap_2_bits`).
    general_2 {
        LOG_MAX_NUM_RESERVED_QPN: 0x8b, 5;
        LOG_RESERVED_QPN_GRANULARITY: 0x93, 5;
        LOG_RESERVED_QPN_MAX_ALLOC: 0x9b, 5;
    }
}

structure! {
    /// RoCE capabilities.
    roce {
        ROCE_APM: 0x0, 1;
        SW_R_ROCE_SRC_UDP_PORT: 0x4, 1;
        FL_RC_QP_WHEN_ROCE_DISABLED: 0x5, 1;
        FL_RC_QP_WHEN_ROCE_ENABLED: 0x6, 1;
        ROCE_CC_GENERAL: 0x7, 1;
        QP_OOO_TRANSMIT_DEFAULT: 0x8, 1;
        QP_TS_FORMAT: 0x1e, 2;
        L3_TYPE: 0x8c, 4;
        ROCE_VERSION: 0x98, 8;
        R_ROCE_DEST_UDP_PORT: 0xb0, 16;
        R_ROCE_MAX_SRC_UDP_PORT: 0xc0, 16;
        R_ROCE_MIN_SRC_UDP_PORT: 0xd0, 16;
        ROCE_ADDRESS_TABLE_SIZE: 0xf0, 16;
    }
}

structure! {
    /// Atomic capabilities.
    atomic {
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x40, 2;
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x46, 1;
        ATOMIC_OPERATIONS: 0x90, 16;
        ATOMIC_SIZE_QP: 0xb0, 16;
        ATOMIC_SIZE_DC: 0xd0, 16;
    }
}

structure! {
    /// Capabilities of quality of service.
    qos {
        PACKET_PACING: 0x0, 1;
        PACKET_PACING_BURST_BOUND: 0x5, 1;
        PACKET_PACING_TYPICAL_SIZE: 0x6, 1;
        PACKET_PACING_UID: 0xb, 1;
        PACKET_PACING_MAX_RATE: 0x40, 32;
        PACKET_PACING_MIN_RATE: 0x60, 32;
        PACKET_PACING_RATE_TABLE_SIZE: 0x90, 16;
    }
}
