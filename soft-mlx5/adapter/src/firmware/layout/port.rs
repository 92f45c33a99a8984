//! Ports, virtual ports and access registers, as `mlx5_ifc.h` has them.

use crate::firmware::bits::structure;

structure! {
    /// InfiniBand virtual port.
    hca_vport_context {
        FIELD_SELECT: 0x0, 32;
        SM_VIRT_AWARE: 0x100, 1;
        HAS_SMI: 0x101, 1;
        HAS_RAW: 0x102, 1;
        GRH_REQUIRED: 0x103, 1;
        NUM_PORT_PLANE: 0x108, 8;
        PORT_PHYSICAL_STATE: 0x110, 4;
        VPORT_STATE_POLICY: 0x114, 4;
        PORT_STATE: 0x118, 4;
        VPORT_STATE: 0x11c, 4;
        SYSTEM_IMAGE_GUID: 0x140, 64;
        PORT_GUID: 0x180, 64;
        NODE_GUID: 0x1c0, 64;
        CAP_MASK1: 0x200, 32;
        CAP_MASK1_FIELD_SELECT: 0x220, 32;
        CAP_MASK2: 0x240, 32;
        CAP_MASK2_FIELD_SELECT: 0x260, 32;
        LID: 0x300, 16;
        INIT_TYPE_REPLY: 0x314, 4;
        LMC: 0x318, 3;
        SUBNET_TIMEOUT: 0x31b, 5;
        SM_LID: 0x320, 16;
        SM_SL: 0x330, 4;
        QKEY_VIOLATION_COUNTER: 0x340, 16;
        PKEY_VIOLATION_COUNTER: 0x350, 16;
    }
}

structure! {
    /// Ethernet virtual port; lists follow at bit 0x800, 64 bits each.
    nic_vport_context {
        MIN_WQE_INLINE_MODE: 0x5, 3;
        DISABLE_MC_LOCAL_LB: 0x1d, 1;
        DISABLE_UC_LOCAL_LB: 0x1e, 1;
        ROCE_EN: 0x1f, 1;
        ARM_CHANGE_EVENT: 0x20, 1;
        EVENT_ON_MTU: 0x3b, 1;
        EVENT_ON_PROMISC_CHANGE: 0x3c, 1;
        EVENT_ON_VLAN_CHANGE: 0x3d, 1;
        EVENT_ON_MC_ADDRESS_CHANGE: 0x3e, 1;
        EVENT_ON_UC_ADDRESS_CHANGE: 0x3f, 1;
        VHCA_ID_TYPE: 0x40, 1;
        AFFILIATION_CRITERIA: 0x4c, 4;
        AFFILIATED_VHCA_ID: 0x50, 16;
        SD_GROUP: 0x101, 3;
        MTU: 0x130, 16;
        SYSTEM_IMAGE_GUID: 0x140, 64;
        PORT_GUID: 0x180, 64;
        NODE_GUID: 0x1c0, 64;
        QKEY_VIOLATION_COUNTER: 0x340, 16;
        PROMISC_UC: 0x780, 1;
        PROMISC_MC: 0x781, 1;
        PROMISC_ALL: 0x782, 1;
        ALLOWED_LIST_TYPE: 0x785, 3;
        ALLOWED_LIST_SIZE: 0x794, 12;
        PERMANENT_ADDRESS: 0x7a0, 64;
    }
}

structure! {
    /// Port type and speed.
    ptys_reg {
        AN_DISABLE_ADMIN: 0x1, 1;
        AN_DISABLE_CAP: 0x2, 1;
        LOCAL_PORT: 0x8, 8;
        PLANE_IND: 0x18, 4;
        PROTO_MASK: 0x1d, 3;
        AN_STATUS: 0x20, 4;
        DATA_RATE_OPER: 0x30, 16;
        EXT_ETH_PROTO_CAPABILITY: 0x40, 32;
        ETH_PROTO_CAPABILITY: 0x60, 32;
        IB_LINK_WIDTH_CAPABILITY: 0x80, 16;
        IB_PROTO_CAPABILITY: 0x90, 16;
        EXT_ETH_PROTO_ADMIN: 0xa0, 32;
        ETH_PROTO_ADMIN: 0xc0, 32;
        IB_LINK_WIDTH_ADMIN: 0xe0, 16;
        IB_PROTO_ADMIN: 0xf0, 16;
        EXT_ETH_PROTO_OPER: 0x100, 32;
        ETH_PROTO_OPER: 0x120, 32;
        IB_LINK_WIDTH_OPER: 0x140, 16;
        IB_PROTO_OPER: 0x150, 16;
        CONNECTOR_TYPE: 0x17c, 4;
        ETH_PROTO_LP_ADVERTISE: 0x180, 32;
    }
}

structure! {
    /// Port MTU.
    pmtu_reg {
        LOCAL_PORT: 0x8, 8;
        MAX_MTU: 0x20, 16;
        ADMIN_MTU: 0x40, 16;
        OPER_MTU: 0x60, 16;
    }
}

structure! {
    /// Port virtual lanes.
    pvlc_reg {
        LOCAL_PORT: 0x8, 8;
        VL_HW_CAP: 0x3c, 4;
        VL_ADMIN: 0x5c, 4;
        VL_OPERATIONAL: 0x7c, 4;
    }
}

structure! {
    /// Port administrative and operational status.
    paos_reg {
        SWID: 0x0, 8;
        LOCAL_PORT: 0x8, 8;
        ADMIN_STATUS: 0x14, 4;
        OPER_STATUS: 0x1c, 4;
        ASE: 0x20, 1;
        EE: 0x21, 1;
        E: 0x3e, 2;
    }
}
