//! Ethernet queues, their steering and the virtual port, as `mlx5_ifc.h` has them.

use crate::firmware::bits::structure;

structure! {
    /// Send queue context; a work queue follows at bit 0x180.
    sqc {
        RLKY: 0x0, 1;
        CD_MASTER: 0x1, 1;
        FRE: 0x2, 1;
        FLUSH_IN_ERROR_EN: 0x3, 1;
        ALLOW_MULTI_PKT_SEND_WQE: 0x4, 1;
        MIN_WQE_INLINE_MODE: 0x5, 3;
        STATE: 0x8, 4;
        REG_UMR: 0xc, 1;
        ALLOW_SWP: 0xd, 1;
        HAIRPIN: 0xe, 1;
        NON_WIRE: 0xf, 1;
        TS_FORMAT: 0x1a, 2;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        HAIRPIN_PEER_RQ: 0x68, 24;
        HAIRPIN_PEER_VHCA: 0x90, 16;
        TS_CQE_TO_DEST_CQN: 0xc8, 24;
        PACKET_PACING_RATE_LIMIT_INDEX: 0xf0, 16;
        TIS_LST_SZ: 0x100, 16;
        QOS_QUEUE_GROUP_ID: 0x110, 16;
        TIS_NUM_0: 0x168, 24;
    }
}

structure! {
    /// Receive queue context; a work queue follows at bit 0x180.
    rqc {
        RLKY: 0x0, 1;
        DELAY_DROP_EN: 0x1, 1;
        SCATTER_FCS: 0x2, 1;
        VSD: 0x3, 1;
        MEM_RQ_TYPE: 0x4, 4;
        STATE: 0x8, 4;
        FLUSH_IN_ERROR_EN: 0xd, 1;
        HAIRPIN: 0xe, 1;
        TS_FORMAT: 0x1a, 2;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        COUNTER_SET_ID: 0x60, 8;
        RMPN: 0x88, 24;
        HAIRPIN_PEER_SQ: 0xa8, 24;
        HAIRPIN_PEER_VHCA: 0xd0, 16;
        SHAMPO_NO_MATCH_ALIGNMENT_GRANULARITY: 0x126, 2;
        SHAMPO_MATCH_CRITERIA_TYPE: 0x12e, 2;
        RESERVATION_TIMEOUT: 0x130, 16;
    }
}

structure! {
    /// Transport interface receive context.
    tirc {
        DISP_TYPE: 0x20, 4;
        TLS_EN: 0x24, 1;
        LRO_TIMEOUT_PERIOD_USECS: 0x84, 16;
        PACKET_MERGE_MASK: 0x94, 4;
        LRO_MAX_IP_PAYLOAD_SIZE: 0x98, 8;
        INLINE_RQN: 0xe8, 24;
        RX_HASH_SYMMETRIC: 0x100, 1;
        TUNNELED_OFFLOAD_EN: 0x102, 1;
        INDIRECT_TABLE: 0x108, 24;
        RX_HASH_FN: 0x120, 4;
        SELF_LB_BLOCK: 0x126, 2;
        TRANSPORT_DOMAIN: 0x128, 24;
        // The first of ten words.
        RX_HASH_TOEPLITZ_KEY: 0x140, 32;
        RX_HASH_FIELD_SELECTOR_OUTER: 0x280, 32;
        RX_HASH_FIELD_SELECTOR_INNER: 0x2a0, 32;
    }
}

structure! {
    /// Receive queue table context; the list of queue numbers is at bit 0x780.
    rqtc {
        LIST_Q_TYPE: 0xa5, 3;
        RQT_MAX_SIZE: 0xb0, 16;
        RQ_VHCA_ID_FORMAT: 0xc0, 1;
        RQT_ACTUAL_SIZE: 0xd0, 16;
    }
}

structure! {
    /// MODIFY_SQ input; the context is at bit 0x100.
    modify_sq_in {
        SQ_STATE: 0x40, 4;
        SQN: 0x48, 24;
        MODIFY_BITMASK: 0x80, 64;
    }
}

structure! {
    /// MODIFY_RQ input; the context is at bit 0x100.
    modify_rq_in {
        RQ_STATE: 0x40, 4;
        RQN: 0x48, 24;
        MODIFY_BITMASK: 0x80, 64;
    }
}

structure! {
    /// CREATE_FLOW_TABLE input; the context is at bit 0xc0.
    create_flow_table_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        TABLE_TYPE: 0x80, 8;
    }
}

structure! {
    /// Flow table context.
    flow_table_context {
        TABLE_MISS_ACTION: 0x4, 4;
        LEVEL: 0x8, 8;
        LOG_SIZE: 0x18, 8;
        TABLE_MISS_ID: 0x28, 24;
    }
}

structure! {
    /// MODIFY_FLOW_TABLE input; the context is at bit 0xc0.
    modify_flow_table_in {
        MODIFY_FIELD_SELECT: 0x70, 16;
    }
}

structure! {
    /// CREATE_FLOW_GROUP input; the match criteria are at bit 0x200.
    create_flow_group_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        TABLE_TYPE: 0x80, 8;
        GROUP_TYPE: 0x8c, 4;
        TABLE_ID: 0xa8, 24;
        SOURCE_ESWITCH_OWNER_VHCA_ID_VALID: 0xc0, 1;
        START_FLOW_INDEX: 0xe0, 32;
        END_FLOW_INDEX: 0x120, 32;
        MATCH_DEFINER_ID: 0x150, 16;
        MATCH_CRITERIA_ENABLE: 0x1f8, 8;
    }
}

structure! {
    /// DESTROY_FLOW_GROUP input.
    destroy_flow_group_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        TABLE_TYPE: 0x80, 8;
        TABLE_ID: 0xa8, 24;
        GROUP_ID: 0xc0, 32;
    }
}

structure! {
    /// SET_FLOW_TABLE_ENTRY input; the flow context is at bit 0x200.
    set_fte_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        TABLE_TYPE: 0x80, 8;
        TABLE_ID: 0xa8, 24;
        IGNORE_FLOW_LEVEL: 0xc0, 1;
        MODIFY_ENABLE_MASK: 0xd8, 8;
        FLOW_INDEX: 0x100, 32;
    }
}

structure! {
    /// Flow context.
    flow_context {
        GROUP_ID: 0x20, 32;
        FLOW_TAG: 0x48, 24;
        ACTION: 0x70, 16;
        DESTINATION_LIST_SIZE: 0x88, 24;
        FLOW_COUNTER_LIST_SIZE: 0xa8, 24;
    }
}

structure! {
    /// ALLOC_FLOW_COUNTER input (`BULK…`), and `ID` in its output and in DEALLOC_FLOW_COUNTER's
    /// input.
    flow_counter {
        ID: 0x40, 32;
        BULK_LOG_SIZE: 0x73, 5;
        BULK: 0x78, 8;
    }
}

structure! {
    /// QUERY_FLOW_COUNTER input.
    query_flow_counter_in {
        MKEY: 0x60, 32;
        ADDRESS: 0x80, 64;
        CLEAR: 0xc0, 1;
        DUMP_TO_MEMORY: 0xc1, 1;
        NUM_OF_COUNTERS: 0xc2, 30;
        FLOW_COUNTER_ID: 0xe0, 32;
    }
}

structure! {
    /// A counter in QUERY_FLOW_COUNTER's output; the first one is at bit 0x80.
    traffic_counter {
        PACKETS: 0x0, 64;
        OCTETS: 0x40, 64;
    }
}

structure! {
    /// SET_FLOW_TABLE_ROOT input.
    set_flow_table_root_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        TABLE_TYPE: 0x80, 8;
        TABLE_OF_OTHER_VPORT: 0x8f, 1;
        TABLE_VPORT_NUMBER: 0x90, 16;
        TABLE_ID: 0xa8, 24;
        UNDERLAY_QPN: 0xc8, 24;
        TABLE_ESWITCH_OWNER_VHCA_ID_VALID: 0xe0, 1;
        TABLE_ESWITCH_OWNER_VHCA_ID: 0xf0, 16;
    }
}

structure! {
    /// Ethernet offload capabilities.
    ethernet_offloads {
        CSUM_CAP: 0x0, 1;
        VLAN_CAP: 0x1, 1;
        SELF_LB_EN_MODIFIABLE: 0x8, 1;
        MAX_LSO_CAP: 0xb, 5;
        WQE_INLINE_MODE: 0x12, 2;
        RSS_IND_TBL_CAP: 0x14, 4;
    }
}

structure! {
    /// Properties of flow tables; those for reception are at bit 0x200 of the capability block.
    flow_table_properties {
        FT_SUPPORT: 0x0, 1;
        FLOW_COUNTER: 0x2, 1;
        FLOW_MODIFY_EN: 0x3, 1;
        MODIFY_ROOT: 0x4, 1;
        IDENTIFIED_MISS_TABLE_MODE: 0x5, 1;
        FLOW_TABLE_MODIFY: 0x6, 1;
        LOG_MAX_FT_SIZE: 0x22, 6;
        MAX_FT_LEVEL: 0x38, 8;
        LOG_MAX_FT_NUM: 0x78, 8;
        LOG_MAX_FLOW_COUNTER: 0x90, 8;
        LOG_MAX_DESTINATION: 0x98, 8;
        LOG_MAX_FLOW: 0xb8, 8;
    }
}
