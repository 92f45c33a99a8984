//! Inputs and outputs of firmware commands, as `mlx5_ifc.h` has them.
//!
//! Every input begins with [`header`], every output with [`result`]; only what follows is listed
//! per command.

use crate::firmware::bits::structure;

structure! {
    /// How every input begins. `UID` is zero for the kernel's own objects.
    header {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
    }
}

structure! {
    /// How every output begins.
    result {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
    }
}

structure! {
    /// The object number that most commands carry, and most creations return.
    object {
        NUMBER: 0x48, 24;
    }
}

structure! {
    /// Commands about general objects, and `ID` in the output of their creation.
    general_object {
        TYPE: 0x30, 16;
        ID: 0x40, 32;
        LOG_RANGE: 0x63, 5;
    }
}

structure! {
    /// QUERY_HCA_CAP input.
    query_hca_cap_in {
        OTHER_FUNCTION: 0x40, 1;
        EC_VF_FUNCTION: 0x41, 1;
        FUNCTION_ID: 0x50, 16;
    }
}

structure! {
    /// TEARDOWN_HCA input.
    teardown_hca_in {
        PROFILE: 0x50, 16;
    }
}

structure! {
    /// QUERY_PAGES output.
    query_pages_out {
        EMBEDDED_CPU_FUNCTION: 0x40, 1;
        FUNCTION_ID: 0x50, 16;
        NUM_PAGES: 0x60, 32;
    }
}

structure! {
    /// MANAGE_PAGES input; addresses follow, 64 bits each.
    manage_pages_in {
        EMBEDDED_CPU_FUNCTION: 0x40, 1;
        FUNCTION_ID: 0x50, 16;
        INPUT_NUM_ENTRIES: 0x60, 32;
    }
}

structure! {
    /// MANAGE_PAGES output; addresses follow, 64 bits each.
    manage_pages_out {
        OUTPUT_NUM_ENTRIES: 0x40, 32;
    }
}

structure! {
    /// QUERY_ISSI output.
    query_issi_out {
        CURRENT_ISSI: 0x50, 16;
        SUPPORTED_ISSI_DW0: 0x360, 32;
    }
}

structure! {
    /// SET_ISSI input.
    set_issi_in {
        CURRENT_ISSI: 0x50, 16;
    }
}

structure! {
    /// QUERY_SPECIAL_CONTEXTS output.
    query_special_contexts_out {
        DUMP_FILL_MKEY: 0x40, 32;
        RESD_LKEY: 0x60, 32;
        NULL_MKEY: 0x80, 32;
        TERMINATE_SCATTER_LIST_MKEY: 0xa0, 32;
        REPEATED_MKEY: 0xc0, 32;
    }
}

structure! {
    /// CREATE_MKEY input; the context is at bit 0x80.
    create_mkey_in {
        PG_ACCESS: 0x60, 1;
        MKEY_UMEM_VALID: 0x61, 1;
        DATA_DIRECT: 0x62, 1;
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x300, 32;
        MKEY_UMEM_ID: 0x320, 32;
        MKEY_UMEM_OFFSET: 0x340, 64;
    }
}

structure! {
    /// QUERY_MKEY input.
    query_mkey_in {
        MKEY_INDEX: 0x48, 24;
        PG_ACCESS: 0x60, 1;
    }
}

structure! {
    /// CREATE_EQ output.
    create_eq_out {
        EQ_NUMBER: 0x58, 8;
    }
}

structure! {
    /// CREATE_CQ input; the context is at bit 0x80.
    create_cq_in {
        CQ_UMEM_OFFSET: 0x280, 64;
        CQ_UMEM_ID: 0x2c0, 32;
        CQ_UMEM_VALID: 0x2e0, 1;
    }
}

structure! {
    /// MODIFY_CQ input; the context is at bit 0x80.
    modify_cq_in {
        CQN: 0x48, 24;
        MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT: 0x60, 32;
        CQ_UMEM_OFFSET: 0x280, 64;
        CQ_UMEM_ID: 0x2c0, 32;
        CQ_UMEM_VALID: 0x2e0, 1;
    }
}

structure! {
    /// The parameters of SET_PP_RATE_LIMIT.
    set_pp_rate_limit_context {
        RATE_LIMIT: 0x0, 32;
        BURST_UPPER_BOUND: 0x20, 32;
        TYPICAL_PACKET_SIZE: 0x50, 16;
    }
}

structure! {
    /// CREATE_XRC_SRQ input; the context is at bit 0x80.
    create_xrc_srq_in {
        XRC_SRQ_UMEM_VALID: 0x2e0, 1;
    }
}

structure! {
    /// CREATE_QP input.
    create_qp_in {
        QPC_EXT: 0x40, 1;
        INPUT_QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        WQ_UMEM_OFFSET: 0x800, 64;
        WQ_UMEM_ID: 0x840, 32;
        WQ_UMEM_VALID: 0x860, 1;
    }
}

structure! {
    /// Input of the commands that move a queue pair from state to state.
    modify_qp_in {
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
    }
}

structure! {
    /// ARM_RQ, ARM_XRC_SRQ and ARM_XRQ input.
    arm_rq_in {
        SRQ_NUMBER: 0x48, 24;
        LWM: 0x70, 16;
    }
}

structure! {
    /// MODIFY_RMP input; the context is at bit 0x100.
    modify_rmp_in {
        RMP_STATE: 0x40, 4;
        RMPN: 0x48, 24;
        BITMASK: 0x80, 64;
    }
}

structure! {
    /// Which fields MODIFY_RMP changes.
    rmp_bitmask {
        LWM: 0x3f, 1;
    }
}

structure! {
    /// ACCESS_REG input; the register follows.
    access_register_in {
        REGISTER_ID: 0x50, 16;
        ARGUMENT: 0x60, 32;
    }
}

structure! {
    /// QUERY_VPORT_STATE output.
    query_vport_state_out {
        ADMIN_STATE: 0x78, 4;
        STATE: 0x7c, 4;
    }
}

structure! {
    /// QUERY_NIC_VPORT_CONTEXT input.
    query_nic_vport_context_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        ALLOWED_LIST_TYPE: 0x65, 3;
    }
}

structure! {
    /// MODIFY_NIC_VPORT_CONTEXT input; the context is at bit 0x800.
    modify_nic_vport_context_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        FIELD_SELECT: 0x60, 32;
    }
}

structure! {
    /// QUERY_HCA_VPORT_GID input.
    query_hca_vport_gid_in {
        OTHER_VPORT: 0x40, 1;
        PORT_NUM: 0x4c, 4;
        VPORT_NUMBER: 0x50, 16;
        GID_INDEX: 0x70, 16;
    }
}

structure! {
    /// QUERY_HCA_VPORT_GID output; the GIDs follow at bit 0x80.
    query_hca_vport_gid_out {
        GIDS_NUM: 0x60, 16;
    }
}

structure! {
    /// QUERY_HCA_VPORT_PKEY input.
    query_hca_vport_pkey_in {
        OTHER_VPORT: 0x40, 1;
        PORT_NUM: 0x4c, 4;
        VPORT_NUMBER: 0x50, 16;
        PKEY_INDEX: 0x70, 16;
    }
}

structure! {
    /// SET_ROCE_ADDRESS input; the address is at bit 0x80.
    set_roce_address_in {
        ROCE_ADDRESS_INDEX: 0x40, 16;
        VHCA_PORT_NUM: 0x5c, 4;
    }
}

structure! {
    /// QUERY_ROCE_ADDRESS input.
    query_roce_address_in {
        ROCE_ADDRESS_INDEX: 0x40, 16;
        VHCA_PORT_NUM: 0x5c, 4;
    }
}

structure! {
    /// A RoCE address; its 128-bit GID (or IPv4 address) is at bit 0.
    roce_addr_layout {
        SOURCE_L3_ADDRESS: 0x0, 8;
        VLAN_VALID: 0x83, 1;
        VLAN_ID: 0x84, 12;
        SOURCE_MAC_47_32: 0x90, 16;
        SOURCE_MAC_31_0: 0xa0, 32;
        ROCE_L3_TYPE: 0xd4, 4;
        ROCE_VERSION: 0xd8, 8;
    }
}

structure! {
    /// ALLOC_Q_COUNTER output.
    alloc_q_counter_out {
        COUNTER_SET_ID: 0x58, 8;
    }
}

structure! {
    /// QUERY_Q_COUNTER input.
    query_q_counter_in {
        OTHER_VPORT: 0x40, 1;
        VPORT_NUMBER: 0x50, 16;
        CLEAR: 0xc0, 1;
        AGGREGATE: 0xc1, 1;
        COUNTER_SET_ID: 0xf8, 8;
    }
}

structure! {
    /// QUERY_Q_COUNTER output: the counters that this device has.
    query_q_counter_out {
        OUT_OF_BUFFER: 0x180, 32;
        OUT_OF_SEQUENCE: 0x1c0, 32;
        DUPLICATE_REQUEST: 0x200, 32;
        LOCAL_ACK_TIMEOUT_ERR: 0x300, 32;
        RESP_LOCAL_LENGTH_ERROR: 0x3c0, 32;
    }
}

structure! {
    /// CREATE_PSV input.
    create_psv_in {
        NUM_PSV: 0x40, 4;
        PD: 0x48, 24;
    }
}
