//! Contexts of the firmware objects behind verbs, as `mlx5_ifc.h` has them.

use crate::firmware::bits::structure;

structure! {
    /// Memory key context.
    mkc {
        FREE: 0x1, 1;
        ACCESS_MODE_4_2: 0x3, 3;
        RELAXED_ORDERING_WRITE: 0xd, 1;
        SMALL_FENCE_ON_RDMA_READ_RESPONSE: 0xf, 1;
        UMR_EN: 0x10, 1;
        A: 0x11, 1;
        RW: 0x12, 1;
        RR: 0x13, 1;
        LW: 0x14, 1;
        LR: 0x15, 1;
        ACCESS_MODE_1_0: 0x16, 2;
        MA_TRANSLATION_MODE: 0x1a, 2;
        QPN: 0x20, 24;
        MKEY_7_0: 0x38, 8;
        LENGTH64: 0x60, 1;
        BSF_EN: 0x61, 1;
        SYNC_UMR: 0x62, 1;
        EXPECTED_SIGERR_COUNT: 0x65, 1;
        EN_RINVAL: 0x67, 1;
        PD: 0x68, 24;
        START_ADDR: 0x80, 64;
        LEN: 0xc0, 64;
        BSF_OCTWORD_SIZE: 0x100, 32;
        CROSSING_TARGET_VHCA_ID: 0x180, 16;
        TRANSLATIONS_OCTWORD_SIZE: 0x1a0, 32;
        RELAXED_ORDERING_READ: 0x1d9, 1;
        LOG_PAGE_SIZE: 0x1da, 6;
    }
}

structure! {
    /// Completion queue context.
    cqc {
        STATUS: 0x0, 4;
        DBR_UMEM_VALID: 0x6, 1;
        APU_CQ: 0x7, 1;
        CQE_SZ: 0x8, 3;
        CC: 0xb, 1;
        SCQE_BREAK_MODERATION_EN: 0xd, 1;
        OI: 0xe, 1;
        CQ_PERIOD_MODE: 0xf, 2;
        CQE_COMP_EN: 0x11, 1;
        MINI_CQE_RES_FORMAT: 0x12, 2;
        ST: 0x14, 4;
        CQE_COMPRESSION_LAYOUT: 0x1e, 2;
        DBR_UMEM_ID: 0x20, 32;
        PAGE_OFFSET: 0x54, 6;
        LOG_CQ_SIZE: 0x63, 5;
        UAR_PAGE: 0x68, 24;
        CQ_PERIOD: 0x84, 12;
        CQ_MAX_COUNT: 0x90, 16;
        C_EQN_OR_APU_ELEMENT: 0xa0, 32;
        LOG_PAGE_SIZE: 0xc3, 5;
        LAST_NOTIFIED_INDEX: 0x108, 24;
        LAST_SOLICIT_INDEX: 0x128, 24;
        CONSUMER_COUNTER: 0x148, 24;
        PRODUCER_COUNTER: 0x168, 24;
        DBR_ADDR: 0x1c0, 64;
    }
}

structure! {
    /// Event queue context.
    eqc {
        STATUS: 0x0, 4;
        EC: 0xd, 1;
        OI: 0xe, 1;
        ST: 0x14, 4;
        PAGE_OFFSET: 0x54, 6;
        LOG_EQ_SIZE: 0x63, 5;
        UAR_PAGE: 0x68, 24;
        INTR: 0xb4, 12;
        LOG_PAGE_SIZE: 0xc3, 5;
        CONSUMER_COUNTER: 0x148, 24;
        PRODUCER_COUNTER: 0x168, 24;
    }
}

structure! {
    /// Shared receive queue context.
    srqc {
        STATE: 0x0, 4;
        LOG_SRQ_SIZE: 0x4, 4;
        WQ_SIGNATURE: 0x20, 1;
        CONT_SRQ: 0x21, 1;
        RLKY: 0x23, 1;
        LOG_RQ_STRIDE: 0x25, 3;
        XRCD: 0x28, 24;
        PAGE_OFFSET: 0x40, 6;
        CQN: 0x48, 24;
        LOG_PAGE_SIZE: 0x82, 6;
        PD: 0xc8, 24;
        LWM: 0xe0, 16;
        WQE_CNT: 0xf0, 16;
        DBR_ADDR: 0x140, 64;
    }
}

structure! {
    /// Context of an XRC shared receive queue.
    xrc_srqc {
        STATE: 0x0, 4;
        LOG_XRC_SRQ_SIZE: 0x4, 4;
        WQ_SIGNATURE: 0x20, 1;
        CONT_SRQ: 0x21, 1;
        RLKY: 0x23, 1;
        BASIC_CYCLIC_RCV_WQE: 0x24, 1;
        LOG_RQ_STRIDE: 0x25, 3;
        XRCD: 0x28, 24;
        PAGE_OFFSET: 0x40, 6;
        DBR_UMEM_VALID: 0x47, 1;
        CQN: 0x48, 24;
        USER_INDEX_EQUAL_XRC_SRQN: 0x80, 1;
        LOG_PAGE_SIZE: 0x82, 6;
        USER_INDEX: 0x88, 24;
        PD: 0xc8, 24;
        LWM: 0xe0, 16;
        WQE_CNT: 0xf0, 16;
        DB_RECORD_ADDR_H: 0x140, 32;
        DB_RECORD_ADDR_L: 0x160, 30;
    }
}

structure! {
    /// Queue pair context.
    qpc {
        STATE: 0x0, 4;
        LAG_TX_PORT_AFFINITY: 0x4, 4;
        ST: 0x8, 8;
        ISOLATE_VL_TC: 0x12, 1;
        PM_STATE: 0x13, 2;
        REQ_E2E_CREDIT_MODE: 0x16, 2;
        OFFLOAD_TYPE: 0x18, 4;
        END_PADDING_MODE: 0x1c, 2;
        WQ_SIGNATURE: 0x20, 1;
        BLOCK_LB_MC: 0x21, 1;
        ATOMIC_LIKE_WRITE_EN: 0x22, 1;
        LATENCY_SENSITIVE: 0x23, 1;
        DRAIN_SIGERR: 0x25, 1;
        PD: 0x28, 24;
        MTU: 0x40, 3;
        LOG_MSG_MAX: 0x43, 5;
        LOG_RQ_SIZE: 0x49, 4;
        LOG_RQ_STRIDE: 0x4d, 3;
        NO_SQ: 0x50, 1;
        LOG_SQ_SIZE: 0x51, 4;
        RETRY_MODE: 0x56, 2;
        TS_FORMAT: 0x58, 2;
        RLKY: 0x5b, 1;
        ULP_STATELESS_OFFLOAD_MODE: 0x5c, 4;
        COUNTER_SET_ID: 0x60, 8;
        UAR_PAGE: 0x68, 24;
        USER_INDEX: 0x88, 24;
        LOG_PAGE_SIZE: 0xa3, 5;
        REMOTE_QPN: 0xa8, 24;
        LOG_ACK_REQ_FREQ: 0x380, 4;
        LOG_SRA_MAX: 0x388, 3;
        RETRY_COUNT: 0x38d, 3;
        RNR_RETRY: 0x390, 3;
        FRE: 0x394, 1;
        CUR_RNR_RETRY: 0x395, 3;
        CUR_RETRY_COUNT: 0x398, 3;
        NEXT_SEND_PSN: 0x3c8, 24;
        LOG_NUM_DCI_STREAM_CHANNELS: 0x3e3, 5;
        CQN_SND: 0x3e8, 24;
        LOG_NUM_DCI_ERRORED_STREAMS: 0x403, 5;
        DETH_SQPN: 0x408, 24;
        LAST_ACKED_PSN: 0x448, 24;
        SSN: 0x468, 24;
        LOG_RRA_MAX: 0x488, 3;
        ATOMIC_MODE: 0x48c, 4;
        RRE: 0x490, 1;
        RWE: 0x491, 1;
        RAE: 0x492, 1;
        PAGE_OFFSET: 0x494, 6;
        CD_SLAVE_RECEIVE: 0x49d, 1;
        CD_SLAVE_SEND: 0x49e, 1;
        CD_MASTER: 0x49f, 1;
        MIN_RNR_NAK: 0x4a3, 5;
        NEXT_RCV_PSN: 0x4a8, 24;
        XRCD: 0x4c8, 24;
        CQN_RCV: 0x4e8, 24;
        DBR_ADDR: 0x500, 64;
        Q_KEY: 0x540, 32;
        RQ_TYPE: 0x565, 3;
        SRQN_RMPN_XRQN: 0x568, 24;
        RMSN: 0x588, 24;
        HW_SQ_WQEBB_COUNTER: 0x5a0, 16;
        SW_SQ_WQEBB_COUNTER: 0x5b0, 16;
        HW_RQ_COUNTER: 0x5c0, 32;
        SW_RQ_COUNTER: 0x5e0, 32;
        CGS: 0x62f, 1;
        CS_REQ: 0x630, 8;
        CS_RES: 0x638, 8;
        DC_ACCESS_KEY: 0x640, 64;
        DBR_UMEM_VALID: 0x683, 1;
        DBR_UMEM_ID: 0x720, 32;
    }
}

structure! {
    /// Address path of a queue pair: the primary one and the alternate one are in [`qpc`].
    ads {
        FL: 0x0, 1;
        FREE_AR: 0x1, 1;
        PKEY_INDEX: 0x10, 16;
        PLANE_INDEX: 0x20, 8;
        GRH: 0x28, 1;
        MLID: 0x29, 7;
        RLID: 0x30, 16;
        ACK_TIMEOUT: 0x40, 5;
        SRC_ADDR_INDEX: 0x48, 8;
        STAT_RATE: 0x54, 4;
        HOP_LIMIT: 0x58, 8;
        TCLASS: 0x64, 8;
        FLOW_LABEL: 0x6c, 20;
        RGID_RIP: 0x80, 8;
        F_DSCP: 0x104, 1;
        F_ECN: 0x105, 1;
        F_ETH_PRIO: 0x107, 1;
        ECN: 0x108, 2;
        DSCP: 0x10a, 6;
        UDP_SPORT: 0x110, 16;
        DEI_CFI: 0x120, 1;
        ETH_PRIO: 0x121, 3;
        SL: 0x124, 4;
        VHCA_PORT_NUM: 0x128, 8;
        RMAC_47_32: 0x130, 16;
        RMAC_31_0: 0x140, 32;
    }
}

structure! {
    /// Context of a DC target.
    dctc {
        STATE: 0x4, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        COUNTER_SET_ID: 0x60, 8;
        ATOMIC_MODE: 0x68, 4;
        RRE: 0x6c, 1;
        RWE: 0x6d, 1;
        RAE: 0x6e, 1;
        ATOMIC_LIKE_WRITE_EN: 0x6f, 1;
        LATENCY_SENSITIVE: 0x70, 1;
        RLKY: 0x71, 1;
        FREE_AR: 0x72, 1;
        CS_RES: 0x88, 8;
        MIN_RNR_NAK: 0x93, 5;
        SRQN_XRQN: 0xa8, 24;
        PD: 0xc8, 24;
        TCLASS: 0xe0, 8;
        FLOW_LABEL: 0xec, 20;
        DC_ACCESS_KEY: 0x100, 64;
        MTU: 0x145, 3;
        PORT: 0x148, 8;
        PKEY_INDEX: 0x150, 16;
        MY_ADDR_INDEX: 0x168, 8;
        HOP_LIMIT: 0x178, 8;
        DC_ACCESS_KEY_VIOLATION_COUNT: 0x180, 32;
        DEI_CFI: 0x1b4, 1;
        ETH_PRIO: 0x1b5, 3;
        ECN: 0x1b8, 2;
        DSCP: 0x1ba, 6;
        ECE: 0x1e0, 32;
    }
}

structure! {
    /// Work queue context, inside those of receive memory pools, receive and send queues.
    wq {
        WQ_TYPE: 0x0, 4;
        WQ_SIGNATURE: 0x4, 1;
        END_PADDING_MODE: 0x5, 2;
        CD_SLAVE: 0x7, 1;
        HDS_SKIP_FIRST_SGE: 0x20, 1;
        LOG2_HDS_BUF_SIZE: 0x21, 3;
        PAGE_OFFSET: 0x2b, 5;
        LWM: 0x30, 16;
        PD: 0x48, 24;
        UAR_PAGE: 0x68, 24;
        DBR_ADDR: 0x80, 64;
        HW_COUNTER: 0xc0, 32;
        SW_COUNTER: 0xe0, 32;
        LOG_WQ_STRIDE: 0x10c, 4;
        LOG_WQ_PG_SZ: 0x113, 5;
        LOG_WQ_SZ: 0x11b, 5;
        DBR_UMEM_VALID: 0x120, 1;
        WQ_UMEM_VALID: 0x121, 1;
        LOG_HAIRPIN_NUM_PACKETS: 0x123, 5;
        LOG_HAIRPIN_DATA_SZ: 0x12b, 5;
        LOG_WQE_NUM_OF_STRIDES: 0x134, 4;
        TWO_BYTE_SHIFT_EN: 0x138, 1;
        LOG_WQE_STRIDE_SIZE: 0x13d, 3;
        DBR_UMEM_ID: 0x140, 32;
        WQ_UMEM_ID: 0x160, 32;
        WQ_UMEM_OFFSET: 0x180, 64;
        HEADERS_MKEY: 0x1c0, 32;
        SHAMPO_ENABLE: 0x1e0, 1;
        LOG_RESERVATION_SIZE: 0x1e5, 3;
        LOG_MAX_NUM_OF_PACKETS_PER_RESERVATION: 0x1ed, 3;
        LOG_HEADERS_ENTRY_SIZE: 0x1f6, 2;
        LOG_HEADERS_BUFFER_ENTRY_NUM: 0x1fc, 4;
    }
}

structure! {
    /// Receive memory pool context; a [`wq`] follows at bit 0x180.
    rmpc {
        STATE: 0x8, 4;
        BASIC_CYCLIC_RCV_WQE: 0x20, 1;
    }
}

structure! {
    /// Context of an extended receive queue (XRQ); a [`tag_matching_topology`] follows at bit
    /// 0x100, a [`wq`] at bit 0x400. The kernel's header lacks DC, which UCX's has
    /// (`uct_ib_mlx5_xrqc_bits`).
    xrqc {
        STATE: 0x0, 4;
        RLKEY: 0x4, 1;
        TOPOLOGY: 0x14, 4;
        OFFLOAD: 0x1c, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        DC: 0x7f, 1;
    }
}

structure! {
    /// The tag matching part of an XRQ context.
    tag_matching_topology {
        LOG_MATCHING_LIST_SZ: 0x0, 4;
        APPEND_NEXT_INDEX: 0x10, 16;
        SW_PHASE_CNT: 0x20, 16;
        HW_PHASE_CNT: 0x30, 16;
    }
}

structure! {
    /// Transport interface send context.
    tisc {
        STRICT_LAG_TX_PORT_AFFINITY: 0x0, 1;
        TLS_EN: 0x1, 1;
        LAG_TX_PORT_AFFINITY: 0x4, 4;
        PRIO: 0xc, 4;
        TRANSPORT_DOMAIN: 0x128, 24;
        UNDERLAY_QPN: 0x148, 24;
        PD: 0x168, 24;
    }
}
