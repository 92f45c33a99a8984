//! Flags of the generic ABI; unknown bits are preserved.
//!
//! Sources: as for [`crate::enums`].

crate::macros::abi_flags! {
    /// What the kernel's RDMA core supports.
    flags CoreSupport: u64 {
        /// Unknown bits of [`AccessFlags::OPTIONAL_RANGE`] are ignored instead of refused.
        OPTIONAL_MR_ACCESS = 1 << 0 => IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS,
        /// Drivers check the whole of their private request.
        ROBUST_UDATA = 1 << 1 => IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA,
    }

    /// What may be done with a memory region or through a queue pair.
    flags AccessFlags: u32 {
        LOCAL_WRITE = 1 << 0 => IB_UVERBS_ACCESS_LOCAL_WRITE,
        /// Requires [`Self::LOCAL_WRITE`].
        REMOTE_WRITE = 1 << 1 => IB_UVERBS_ACCESS_REMOTE_WRITE,
        REMOTE_READ = 1 << 2 => IB_UVERBS_ACCESS_REMOTE_READ,
        /// Requires [`Self::LOCAL_WRITE`].
        REMOTE_ATOMIC = 1 << 3 => IB_UVERBS_ACCESS_REMOTE_ATOMIC,
        MW_BIND = 1 << 4 => IB_UVERBS_ACCESS_MW_BIND,
        ZERO_BASED = 1 << 5 => IB_UVERBS_ACCESS_ZERO_BASED,
        ON_DEMAND = 1 << 6 => IB_UVERBS_ACCESS_ON_DEMAND,
        HUGETLB = 1 << 7 => IB_UVERBS_ACCESS_HUGETLB,
        FLUSH_GLOBAL = 1 << 8 => IB_UVERBS_ACCESS_FLUSH_GLOBAL,
        FLUSH_PERSISTENT = 1 << 9 => IB_UVERBS_ACCESS_FLUSH_PERSISTENT,
        RELAXED_ORDERING = 1 << 20 => IB_UVERBS_ACCESS_RELAXED_ORDERING,
        /// All bits that a kernel may ignore.
        OPTIONAL_RANGE = 0x3ff0_0000 => IB_UVERBS_ACCESS_OPTIONAL_RANGE,
    }

    /// The attributes that a modify or query of a queue pair covers.
    flags QpAttrMask: u32 {
        STATE = 1 << 0 => IBV_QP_STATE,
        CUR_STATE = 1 << 1 => IBV_QP_CUR_STATE,
        EN_SQD_ASYNC_NOTIFY = 1 << 2 => IBV_QP_EN_SQD_ASYNC_NOTIFY,
        ACCESS_FLAGS = 1 << 3 => IBV_QP_ACCESS_FLAGS,
        PKEY_INDEX = 1 << 4 => IBV_QP_PKEY_INDEX,
        PORT = 1 << 5 => IBV_QP_PORT,
        QKEY = 1 << 6 => IBV_QP_QKEY,
        AV = 1 << 7 => IBV_QP_AV,
        PATH_MTU = 1 << 8 => IBV_QP_PATH_MTU,
        TIMEOUT = 1 << 9 => IBV_QP_TIMEOUT,
        RETRY_CNT = 1 << 10 => IBV_QP_RETRY_CNT,
        RNR_RETRY = 1 << 11 => IBV_QP_RNR_RETRY,
        RQ_PSN = 1 << 12 => IBV_QP_RQ_PSN,
        MAX_QP_RD_ATOMIC = 1 << 13 => IBV_QP_MAX_QP_RD_ATOMIC,
        ALT_PATH = 1 << 14 => IBV_QP_ALT_PATH,
        MIN_RNR_TIMER = 1 << 15 => IBV_QP_MIN_RNR_TIMER,
        SQ_PSN = 1 << 16 => IBV_QP_SQ_PSN,
        MAX_DEST_RD_ATOMIC = 1 << 17 => IBV_QP_MAX_DEST_RD_ATOMIC,
        PATH_MIG_STATE = 1 << 18 => IBV_QP_PATH_MIG_STATE,
        CAP = 1 << 19 => IBV_QP_CAP,
        DEST_QPN = 1 << 20 => IBV_QP_DEST_QPN,
        RATE_LIMIT = 1 << 25 => IBV_QP_RATE_LIMIT,
    }

    /// How a queue pair is created.
    flags QpCreateFlags: u32 {
        BLOCK_MULTICAST_LOOPBACK = 1 << 1 => IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK,
        SCATTER_FCS = 1 << 8 => IB_UVERBS_QP_CREATE_SCATTER_FCS,
        CVLAN_STRIPPING = 1 << 9 => IB_UVERBS_QP_CREATE_CVLAN_STRIPPING,
        SOURCE_QPN = 1 << 10 => IBV_QP_CREATE_SOURCE_QPN,
        PCI_WRITE_END_PADDING = 1 << 11 => IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING,
        /// Every send work request is signaled.
        SQ_SIG_ALL = 1 << 12 => IB_UVERBS_QP_CREATE_SQ_SIG_ALL,
    }

    /// Optional fields of [`ExCreateQp`](crate::write::qp::ExCreateQp).
    flags CreateQpMask: u32 {
        IND_TABLE = 1 << 0 => IB_UVERBS_CREATE_QP_MASK_IND_TABLE,
    }

    /// How a completion queue is created.
    flags CqCreateFlags: u32 {
        TIMESTAMP_COMPLETION = 1 << 0 => IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
        IGNORE_OVERRUN = 1 << 1 => IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN,
    }

    /// The attributes that a modify of a completion queue changes.
    flags CqAttrMask: u32 {
        MODERATE = 1 << 0 => IBV_CQ_ATTR_MODERATE,
    }

    /// The attributes that a modify of a shared receive queue changes.
    flags SrqAttrMask: u32 {
        MAX_WR = 1 << 0 => IBV_SRQ_MAX_WR,
        LIMIT = 1 << 1 => IBV_SRQ_LIMIT,
    }

    /// How a work queue is created.
    flags WqFlags: u32 {
        CVLAN_STRIPPING = 1 << 0 => IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING,
        SCATTER_FCS = 1 << 1 => IB_UVERBS_WQ_FLAGS_SCATTER_FCS,
        DELAY_DROP = 1 << 2 => IB_UVERBS_WQ_FLAGS_DELAY_DROP,
        PCI_WRITE_END_PADDING = 1 << 3 => IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING,
    }

    /// The attributes that a modify of a work queue changes.
    flags WqAttrMask: u32 {
        STATE = 1 << 0 => IBV_WQ_ATTR_STATE,
        CURR_STATE = 1 << 1 => IBV_WQ_ATTR_CURR_STATE,
        FLAGS = 1 << 2 => IBV_WQ_ATTR_FLAGS,
    }

    /// What a re-registration changes.
    flags ReregMrFlags: u32 {
        CHANGE_TRANSLATION = 1 << 0 => IBV_REREG_MR_CHANGE_TRANSLATION,
        CHANGE_PD = 1 << 1 => IBV_REREG_MR_CHANGE_PD,
        CHANGE_ACCESS = 1 << 2 => IBV_REREG_MR_CHANGE_ACCESS,
    }

    /// How an advice is carried out.
    flags AdviseMrFlags: u32 {
        /// The advice is carried out before the call returns.
        FLUSH = 1 << 0 => IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
    }

    /// How counters are read.
    flags ReadCountersFlags: u32 {
        PREFER_CACHED = 1 << 0 => IB_UVERBS_READ_COUNTERS_PREFER_CACHED,
    }

    /// Flags of a flow rule.
    flags FlowFlags: u32 {
        DONT_TRAP = 1 << 1 => IBV_FLOW_ATTR_FLAGS_DONT_TRAP,
        EGRESS = 1 << 2 => IBV_FLOW_ATTR_FLAGS_EGRESS,
    }

    /// What a port is capable of.
    flags PortCapFlags: u32 {
        SM = 1 << 1 => IB_UVERBS_PCF_SM,
        NOTICE_SUP = 1 << 2 => IB_UVERBS_PCF_NOTICE_SUP,
        TRAP_SUP = 1 << 3 => IB_UVERBS_PCF_TRAP_SUP,
        OPT_IPD_SUP = 1 << 4 => IB_UVERBS_PCF_OPT_IPD_SUP,
        AUTO_MIGR_SUP = 1 << 5 => IB_UVERBS_PCF_AUTO_MIGR_SUP,
        SL_MAP_SUP = 1 << 6 => IB_UVERBS_PCF_SL_MAP_SUP,
        MKEY_NVRAM = 1 << 7 => IB_UVERBS_PCF_MKEY_NVRAM,
        PKEY_NVRAM = 1 << 8 => IB_UVERBS_PCF_PKEY_NVRAM,
        LED_INFO_SUP = 1 << 9 => IB_UVERBS_PCF_LED_INFO_SUP,
        SM_DISABLED = 1 << 10 => IB_UVERBS_PCF_SM_DISABLED,
        SYS_IMAGE_GUID_SUP = 1 << 11 => IB_UVERBS_PCF_SYS_IMAGE_GUID_SUP,
        PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12 => IB_UVERBS_PCF_PKEY_SW_EXT_PORT_TRAP_SUP,
        EXTENDED_SPEEDS_SUP = 1 << 14 => IB_UVERBS_PCF_EXTENDED_SPEEDS_SUP,
        CAP_MASK2_SUP = 1 << 15 => IBV_PORT_CAP_MASK2_SUP,
        CM_SUP = 1 << 16 => IB_UVERBS_PCF_CM_SUP,
        SNMP_TUNNEL_SUP = 1 << 17 => IB_UVERBS_PCF_SNMP_TUNNEL_SUP,
        REINIT_SUP = 1 << 18 => IB_UVERBS_PCF_REINIT_SUP,
        DEVICE_MGMT_SUP = 1 << 19 => IB_UVERBS_PCF_DEVICE_MGMT_SUP,
        VENDOR_CLASS_SUP = 1 << 20 => IB_UVERBS_PCF_VENDOR_CLASS_SUP,
        DR_NOTICE_SUP = 1 << 21 => IB_UVERBS_PCF_DR_NOTICE_SUP,
        CAP_MASK_NOTICE_SUP = 1 << 22 => IB_UVERBS_PCF_CAP_MASK_NOTICE_SUP,
        BOOT_MGMT_SUP = 1 << 23 => IB_UVERBS_PCF_BOOT_MGMT_SUP,
        LINK_LATENCY_SUP = 1 << 24 => IB_UVERBS_PCF_LINK_LATENCY_SUP,
        CLIENT_REG_SUP = 1 << 25 => IB_UVERBS_PCF_CLIENT_REG_SUP,
        /// RoCE: GIDs are IP addresses (not a flag of the InfiniBand specification).
        IP_BASED_GIDS = 1 << 26 => IB_UVERBS_PCF_IP_BASED_GIDS,
        LINK_SPEED_WIDTH_TABLE_SUP = 1 << 27 => IB_UVERBS_PCF_LINK_SPEED_WIDTH_TABLE_SUP,
        VENDOR_SPECIFIC_MADS_TABLE_SUP = 1 << 28 => IB_UVERBS_PCF_VENDOR_SPECIFIC_MADS_TABLE_SUP,
        MCAST_PKEY_TRAP_SUPPRESSION_SUP = 1 << 29 => IB_UVERBS_PCF_MCAST_PKEY_TRAP_SUPPRESSION_SUP,
        MCAST_FDB_TOP_SUP = 1 << 30 => IB_UVERBS_PCF_MCAST_FDB_TOP_SUP,
        HIERARCHY_INFO_SUP = 1 << 31 => IB_UVERBS_PCF_HIERARCHY_INFO_SUP,
    }

    /// What a port is capable of, continued (`CapabilityMask2`).
    flags PortCapFlags2: u16 {
        SET_NODE_DESC_SUP = 1 << 0 => IBV_PORT_SET_NODE_DESC_SUP,
        INFO_EXT_SUP = 1 << 1 => IBV_PORT_INFO_EXT_SUP,
        VIRT_SUP = 1 << 2 => IBV_PORT_VIRT_SUP,
        SWITCH_PORT_STATE_TABLE_SUP = 1 << 3 => IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP,
        LINK_WIDTH_2X_SUP = 1 << 4 => IBV_PORT_LINK_WIDTH_2X_SUP,
        LINK_SPEED_HDR_SUP = 1 << 5 => IBV_PORT_LINK_SPEED_HDR_SUP,
        LINK_SPEED_NDR_SUP = 1 << 10 => IBV_PORT_LINK_SPEED_NDR_SUP,
    }

    /// Flags of a port query.
    flags QueryPortFlags: u8 {
        /// Every address vector needs a GRH.
        GRH_REQUIRED = 1 << 0 => IB_UVERBS_QPF_GRH_REQUIRED,
    }

    /// What a device is capable of.
    flags DeviceCapFlags: u64 {
        RESIZE_MAX_WR = 1 << 0 => IB_UVERBS_DEVICE_RESIZE_MAX_WR,
        BAD_PKEY_CNTR = 1 << 1 => IB_UVERBS_DEVICE_BAD_PKEY_CNTR,
        BAD_QKEY_CNTR = 1 << 2 => IB_UVERBS_DEVICE_BAD_QKEY_CNTR,
        RAW_MULTI = 1 << 3 => IB_UVERBS_DEVICE_RAW_MULTI,
        AUTO_PATH_MIG = 1 << 4 => IB_UVERBS_DEVICE_AUTO_PATH_MIG,
        CHANGE_PHY_PORT = 1 << 5 => IB_UVERBS_DEVICE_CHANGE_PHY_PORT,
        UD_AV_PORT_ENFORCE = 1 << 6 => IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE,
        CURR_QP_STATE_MOD = 1 << 7 => IB_UVERBS_DEVICE_CURR_QP_STATE_MOD,
        SHUTDOWN_PORT = 1 << 8 => IB_UVERBS_DEVICE_SHUTDOWN_PORT,
        PORT_ACTIVE_EVENT = 1 << 10 => IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT,
        SYS_IMAGE_GUID = 1 << 11 => IB_UVERBS_DEVICE_SYS_IMAGE_GUID,
        RC_RNR_NAK_GEN = 1 << 12 => IB_UVERBS_DEVICE_RC_RNR_NAK_GEN,
        SRQ_RESIZE = 1 << 13 => IB_UVERBS_DEVICE_SRQ_RESIZE,
        N_NOTIFY_CQ = 1 << 14 => IB_UVERBS_DEVICE_N_NOTIFY_CQ,
        MEM_WINDOW = 1 << 17 => IB_UVERBS_DEVICE_MEM_WINDOW,
        UD_IP_CSUM = 1 << 18 => IB_UVERBS_DEVICE_UD_IP_CSUM,
        XRC = 1 << 20 => IB_UVERBS_DEVICE_XRC,
        MEM_MGT_EXTENSIONS = 1 << 21 => IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS,
        MEM_WINDOW_TYPE_2A = 1 << 23 => IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A,
        MEM_WINDOW_TYPE_2B = 1 << 24 => IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B,
        RC_IP_CSUM = 1 << 25 => IB_UVERBS_DEVICE_RC_IP_CSUM,
        /// Superseded by [`RawPacketCaps::IP_CSUM`].
        RAW_IP_CSUM = 1 << 26 => IB_UVERBS_DEVICE_RAW_IP_CSUM,
        MANAGED_FLOW_STEERING = 1 << 29 => IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING,
        /// Superseded by [`RawPacketCaps::SCATTER_FCS`].
        RAW_SCATTER_FCS = 1 << 34 => IB_UVERBS_DEVICE_RAW_SCATTER_FCS,
        PCI_WRITE_END_PADDING = 1 << 36 => IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING,
        FLUSH_GLOBAL = 1 << 38 => IB_UVERBS_DEVICE_FLUSH_GLOBAL,
        FLUSH_PERSISTENT = 1 << 39 => IB_UVERBS_DEVICE_FLUSH_PERSISTENT,
        ATOMIC_WRITE = 1 << 40 => IB_UVERBS_DEVICE_ATOMIC_WRITE,
        /// A confidential guest whose DMA goes through bounce buffers.
        CC_DMA_BOUNCE = 1 << 41 => IB_UVERBS_DEVICE_CC_DMA_BOUNCE,
    }

    /// What raw packet queues are capable of.
    flags RawPacketCaps: u32 {
        CVLAN_STRIPPING = 1 << 0 => IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING,
        SCATTER_FCS = 1 << 1 => IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS,
        IP_CSUM = 1 << 2 => IB_UVERBS_RAW_PACKET_CAP_IP_CSUM,
        DELAY_DROP = 1 << 3 => IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP,
    }

    /// On-demand paging in general.
    flags OdpGeneralCaps: u64 {
        SUPPORT = 1 << 0 => IB_UVERBS_ODP_SUPPORT,
        SUPPORT_IMPLICIT = 1 << 1 => IB_UVERBS_ODP_SUPPORT_IMPLICIT,
    }

    /// On-demand paging per transport.
    flags OdpTransportCaps: u32 {
        SEND = 1 << 0 => IB_UVERBS_ODP_SUPPORT_SEND,
        RECV = 1 << 1 => IB_UVERBS_ODP_SUPPORT_RECV,
        WRITE = 1 << 2 => IB_UVERBS_ODP_SUPPORT_WRITE,
        READ = 1 << 3 => IB_UVERBS_ODP_SUPPORT_READ,
        ATOMIC = 1 << 4 => IB_UVERBS_ODP_SUPPORT_ATOMIC,
        SRQ_RECV = 1 << 5 => IB_UVERBS_ODP_SUPPORT_SRQ_RECV,
        FLUSH = 1 << 6 => IB_UVERBS_ODP_SUPPORT_FLUSH,
        ATOMIC_WRITE = 1 << 7 => IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE,
    }

    /// Where an RDMA FLUSH puts data (IBA A19.4.1.1).
    flags PlacementType: u32 {
        GLOBAL = 1 << 0 => IB_FLUSH_GLOBAL,
        PERSISTENT = 1 << 1 => IB_FLUSH_PERSISTENT,
    }

    /// Which operations a completion counter counts.
    flags CompCntrOps: u32 {
        SEND = 1 << 0 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND,
        RECV = 1 << 1 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV,
        RDMA_READ = 1 << 2 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        REMOTE_RDMA_READ = 1 << 3 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
        RDMA_WRITE = 1 << 4 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        REMOTE_RDMA_WRITE = 1 << 5 => IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
    }
}
