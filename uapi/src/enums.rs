//! Enumerations of the generic ABI, as open newtypes.
//!
//! Sources: `ib_user_verbs.h` and `ib_user_ioctl_verbs.h`; values of commands that only the
//! kernel's internal `include/rdma/ib_verbs.h` defines have their names from
//! `<infiniband/verbs.h>`.

crate::macros::abi_enums! {
    /// The kernel driver of a device.
    enum DriverId: u32 {
        UNKNOWN = 0 RDMA_DRIVER_UNKNOWN,
        MLX5 = 1 RDMA_DRIVER_MLX5,
        MLX4 = 2 RDMA_DRIVER_MLX4,
        CXGB3 = 3 RDMA_DRIVER_CXGB3,
        CXGB4 = 4 RDMA_DRIVER_CXGB4,
        MTHCA = 5 RDMA_DRIVER_MTHCA,
        BNXT_RE = 6 RDMA_DRIVER_BNXT_RE,
        OCRDMA = 7 RDMA_DRIVER_OCRDMA,
        NES = 8 RDMA_DRIVER_NES,
        IRDMA = 9 RDMA_DRIVER_IRDMA,
        VMW_PVRDMA = 10 RDMA_DRIVER_VMW_PVRDMA,
        QEDR = 11 RDMA_DRIVER_QEDR,
        HNS = 12 RDMA_DRIVER_HNS,
        USNIC = 13 RDMA_DRIVER_USNIC,
        RXE = 14 RDMA_DRIVER_RXE,
        HFI1 = 15 RDMA_DRIVER_HFI1,
        QIB = 16 RDMA_DRIVER_QIB,
        EFA = 17 RDMA_DRIVER_EFA,
        SIW = 18 RDMA_DRIVER_SIW,
        ERDMA = 19 RDMA_DRIVER_ERDMA,
        MANA = 20 RDMA_DRIVER_MANA,
        IONIC = 21 RDMA_DRIVER_IONIC,
    }

    /// What a GID table entry is for.
    enum GidType: u32 {
        /// InfiniBand.
        IB = 0 IB_UVERBS_GID_TYPE_IB,
        /// RoCE version 1: its own Ethernet type.
        ROCE_V1 = 1 IB_UVERBS_GID_TYPE_ROCE_V1,
        /// RoCE version 2: UDP port 4791.
        ROCE_V2 = 2 IB_UVERBS_GID_TYPE_ROCE_V2,
    }

    /// Logical state of a port.
    enum PortState: u8 {
        NOP = 0 IBV_PORT_NOP,
        DOWN = 1 IBV_PORT_DOWN,
        INIT = 2 IBV_PORT_INIT,
        ARMED = 3 IBV_PORT_ARMED,
        ACTIVE = 4 IBV_PORT_ACTIVE,
        ACTIVE_DEFER = 5 IBV_PORT_ACTIVE_DEFER,
    }

    /// Physical state of a port (`enum ib_port_phys_state`).
    enum PhysState: u8 {
        SLEEP = 1 _,
        POLLING = 2 _,
        DISABLED = 3 _,
        PORT_CONFIGURATION_TRAINING = 4 _,
        LINK_UP = 5 _,
        LINK_ERROR_RECOVERY = 6 _,
        PHY_TEST = 7 _,
    }

    /// Path MTU: code `n` means `128 << n` bytes.
    enum Mtu: u8 {
        MTU_256 = 1 IBV_MTU_256,
        MTU_512 = 2 IBV_MTU_512,
        MTU_1024 = 3 IBV_MTU_1024,
        MTU_2048 = 4 IBV_MTU_2048,
        MTU_4096 = 5 IBV_MTU_4096,
    }

    /// Link layer of a port.
    enum LinkLayer: u8 {
        UNSPECIFIED = 0 IBV_LINK_LAYER_UNSPECIFIED,
        INFINIBAND = 1 IBV_LINK_LAYER_INFINIBAND,
        ETHERNET = 2 IBV_LINK_LAYER_ETHERNET,
    }

    /// Number of lanes (`enum ib_port_width`), as a code.
    enum PortWidth: u8 {
        X1 = 1 _,
        X2 = 16 _,
        X4 = 2 _,
        X8 = 4 _,
        X12 = 8 _,
    }

    /// Speed of one lane (`enum ib_port_speed`; the two fastest only fit `active_speed_ex`).
    enum PortSpeed: u32 {
        /// 2.5 Gbit/s.
        SDR = 1 _,
        /// 5 Gbit/s.
        DDR = 2 _,
        /// 10 Gbit/s.
        QDR = 4 _,
        /// 10.3125 Gbit/s.
        FDR10 = 8 _,
        /// 14.0625 Gbit/s.
        FDR = 16 _,
        /// 25.78125 Gbit/s.
        EDR = 32 _,
        /// 50 Gbit/s.
        HDR = 64 _,
        /// 100 Gbit/s.
        NDR = 128 _,
        /// 200 Gbit/s.
        XDR = 256 _,
    }

    /// Type of a queue pair.
    enum QpType: u8 {
        /// Reliable connected.
        RC = 2 IB_UVERBS_QPT_RC,
        /// Unreliable connected.
        UC = 3 IB_UVERBS_QPT_UC,
        /// Unreliable datagram.
        UD = 4 IB_UVERBS_QPT_UD,
        /// Ethernet frames.
        RAW_PACKET = 8 IB_UVERBS_QPT_RAW_PACKET,
        /// XRC, sending half.
        XRC_INI = 9 IB_UVERBS_QPT_XRC_INI,
        /// XRC, receiving half.
        XRC_TGT = 10 IB_UVERBS_QPT_XRC_TGT,
        /// A type that the driver defines (DC for mlx5).
        DRIVER = 0xff IB_UVERBS_QPT_DRIVER,
    }

    /// State of a queue pair.
    enum QpState: u8 {
        RESET = 0 IBV_QPS_RESET,
        INIT = 1 IBV_QPS_INIT,
        /// Ready to receive.
        RTR = 2 IBV_QPS_RTR,
        /// Ready to send.
        RTS = 3 IBV_QPS_RTS,
        /// Send queue drained.
        SQD = 4 IBV_QPS_SQD,
        /// Send queue error.
        SQE = 5 IBV_QPS_SQE,
        ERR = 6 IBV_QPS_ERR,
    }

    /// State of path migration.
    enum MigState: u8 {
        MIGRATED = 0 IBV_MIG_MIGRATED,
        REARM = 1 IBV_MIG_REARM,
        ARMED = 2 IBV_MIG_ARMED,
    }

    /// Kind of shared receive queue.
    enum SrqType: u32 {
        BASIC = 0 IB_UVERBS_SRQT_BASIC,
        XRC = 1 IB_UVERBS_SRQT_XRC,
        /// Tag matching.
        TM = 2 IB_UVERBS_SRQT_TM,
    }

    /// Kind of work queue.
    enum WqType: u32 {
        RQ = 0 IB_UVERBS_WQT_RQ,
    }

    /// State of a work queue.
    enum WqState: u32 {
        RESET = 0 IBV_WQS_RESET,
        RDY = 1 IBV_WQS_RDY,
        ERR = 2 IBV_WQS_ERR,
    }

    /// Kind of memory window.
    enum MwType: u8 {
        TYPE_1 = 1 IBV_MW_TYPE_1,
        TYPE_2 = 2 IBV_MW_TYPE_2,
    }

    /// Where atomics are atomic.
    enum AtomicCap: u32 {
        NONE = 0 IBV_ATOMIC_NONE,
        /// Among operations of this device.
        HCA = 1 IBV_ATOMIC_HCA,
        /// Also against the CPU and other devices.
        GLOB = 2 IBV_ATOMIC_GLOB,
    }

    /// Asynchronous event.
    enum EventType: u32 {
        CQ_ERR = 0 IBV_EVENT_CQ_ERR,
        QP_FATAL = 1 IBV_EVENT_QP_FATAL,
        QP_REQ_ERR = 2 IBV_EVENT_QP_REQ_ERR,
        QP_ACCESS_ERR = 3 IBV_EVENT_QP_ACCESS_ERR,
        COMM_EST = 4 IBV_EVENT_COMM_EST,
        SQ_DRAINED = 5 IBV_EVENT_SQ_DRAINED,
        PATH_MIG = 6 IBV_EVENT_PATH_MIG,
        PATH_MIG_ERR = 7 IBV_EVENT_PATH_MIG_ERR,
        DEVICE_FATAL = 8 IBV_EVENT_DEVICE_FATAL,
        PORT_ACTIVE = 9 IBV_EVENT_PORT_ACTIVE,
        PORT_ERR = 10 IBV_EVENT_PORT_ERR,
        LID_CHANGE = 11 IBV_EVENT_LID_CHANGE,
        PKEY_CHANGE = 12 IBV_EVENT_PKEY_CHANGE,
        SM_CHANGE = 13 IBV_EVENT_SM_CHANGE,
        SRQ_ERR = 14 IBV_EVENT_SRQ_ERR,
        SRQ_LIMIT_REACHED = 15 IBV_EVENT_SRQ_LIMIT_REACHED,
        QP_LAST_WQE_REACHED = 16 IBV_EVENT_QP_LAST_WQE_REACHED,
        CLIENT_REREGISTER = 17 IBV_EVENT_CLIENT_REREGISTER,
        GID_CHANGE = 18 IBV_EVENT_GID_CHANGE,
        WQ_FATAL = 19 IBV_EVENT_WQ_FATAL,
    }

    /// Static rate of an address vector, in Gbit/s.
    enum Rate: u8 {
        MAX = 0 IBV_RATE_MAX,
        GBPS_2_5 = 2 IBV_RATE_2_5_GBPS,
        GBPS_10 = 3 IBV_RATE_10_GBPS,
        GBPS_30 = 4 IBV_RATE_30_GBPS,
        GBPS_5 = 5 IBV_RATE_5_GBPS,
        GBPS_20 = 6 IBV_RATE_20_GBPS,
        GBPS_40 = 7 IBV_RATE_40_GBPS,
        GBPS_60 = 8 IBV_RATE_60_GBPS,
        GBPS_80 = 9 IBV_RATE_80_GBPS,
        GBPS_120 = 10 IBV_RATE_120_GBPS,
        GBPS_14 = 11 IBV_RATE_14_GBPS,
        GBPS_56 = 12 IBV_RATE_56_GBPS,
        GBPS_112 = 13 IBV_RATE_112_GBPS,
        GBPS_168 = 14 IBV_RATE_168_GBPS,
        GBPS_25 = 15 IBV_RATE_25_GBPS,
        GBPS_100 = 16 IBV_RATE_100_GBPS,
        GBPS_200 = 17 IBV_RATE_200_GBPS,
        GBPS_300 = 18 IBV_RATE_300_GBPS,
        GBPS_28 = 19 IBV_RATE_28_GBPS,
        GBPS_50 = 20 IBV_RATE_50_GBPS,
        GBPS_400 = 21 IBV_RATE_400_GBPS,
        GBPS_600 = 22 IBV_RATE_600_GBPS,
        GBPS_800 = 23 IBV_RATE_800_GBPS,
        GBPS_1200 = 24 IBV_RATE_1200_GBPS,
    }

    /// What to do with pages of an on-demand-paging region.
    enum AdviseMrAdvice: u32 {
        PREFETCH = 0 IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        PREFETCH_WRITE = 1 IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        PREFETCH_NO_FAULT = 2 IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    }

    /// Kind of flow rule.
    enum FlowAttrType: u32 {
        NORMAL = 0 IBV_FLOW_ATTR_NORMAL,
        ALL_DEFAULT = 1 IBV_FLOW_ATTR_ALL_DEFAULT,
        MC_DEFAULT = 2 IBV_FLOW_ATTR_MC_DEFAULT,
        SNIFFER = 3 IBV_FLOW_ATTR_SNIFFER,
    }

    /// The header that a specification of a flow rule matches, or the action that it takes.
    /// [`Self::INNER`] is added for the inner header of a tunnel.
    enum FlowSpecType: u32 {
        ETH = 0x20 IBV_FLOW_SPEC_ETH,
        IPV4 = 0x30 IBV_FLOW_SPEC_IPV4,
        IPV6 = 0x31 IBV_FLOW_SPEC_IPV6,
        IPV4_EXT = 0x32 IBV_FLOW_SPEC_IPV4_EXT,
        ESP = 0x34 IBV_FLOW_SPEC_ESP,
        TCP = 0x40 IBV_FLOW_SPEC_TCP,
        UDP = 0x41 IBV_FLOW_SPEC_UDP,
        VXLAN_TUNNEL = 0x50 IBV_FLOW_SPEC_VXLAN_TUNNEL,
        GRE = 0x51 IBV_FLOW_SPEC_GRE,
        MPLS = 0x60 IBV_FLOW_SPEC_MPLS,
        INNER = 0x100 IBV_FLOW_SPEC_INNER,
        ACTION_TAG = 0x1000 IBV_FLOW_SPEC_ACTION_TAG,
        ACTION_DROP = 0x1001 IBV_FLOW_SPEC_ACTION_DROP,
        ACTION_HANDLE = 0x1002 IBV_FLOW_SPEC_ACTION_HANDLE,
        ACTION_COUNT = 0x1003 IBV_FLOW_SPEC_ACTION_COUNT,
    }
}

impl Mtu {
    /// Length in bytes; `None` for an unknown code.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}
