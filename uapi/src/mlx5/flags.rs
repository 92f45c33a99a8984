//! Flags of the mlx5 driver: `mlx5-abi.h`, `mlx5_user_ioctl_cmds.h`, `mlx5_user_ioctl_verbs.h`.

crate::macros::abi_flags! {
    /// How a queue pair is created.
    flags QpFlags: u32 {
        SIGNATURE = 1 << 0 => MLX5_QP_FLAG_SIGNATURE,
        /// Small received messages may be inside the CQE.
        SCATTER_CQE = 1 << 1 => MLX5_QP_FLAG_SCATTER_CQE,
        TUNNEL_OFFLOADS = 1 << 2 => MLX5_QP_FLAG_TUNNEL_OFFLOADS,
        /// `bfreg_index` of the request names a register.
        BFREG_INDEX = 1 << 3 => MLX5_QP_FLAG_BFREG_INDEX,
        TYPE_DCT = 1 << 4 => MLX5_QP_FLAG_TYPE_DCT,
        TYPE_DCI = 1 << 5 => MLX5_QP_FLAG_TYPE_DCI,
        TIR_ALLOW_SELF_LB_UC = 1 << 6 => MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC,
        TIR_ALLOW_SELF_LB_MC = 1 << 7 => MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC,
        ALLOW_SCATTER_CQE = 1 << 8 => MLX5_QP_FLAG_ALLOW_SCATTER_CQE,
        PACKET_BASED_CREDIT_MODE = 1 << 9 => MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE,
        /// `bfreg_index` of the request is the page id of a UAR object.
        UAR_PAGE_INDEX = 1 << 10 => MLX5_QP_FLAG_UAR_PAGE_INDEX,
        DCI_STREAM = 1 << 11 => MLX5_QP_FLAG_DCI_STREAM,
    }

    /// How a shared receive queue is created.
    flags SrqFlags: u32 {
        SIGNATURE = 1 << 0 => MLX5_SRQ_FLAG_SIGNATURE,
    }

    /// How a work queue is created.
    flags WqFlags: u32 {
        SIGNATURE = 1 << 0 => MLX5_WQ_FLAG_SIGNATURE,
    }

    /// Optional fields of a work queue request.
    flags CreateWqMask: u32 {
        STRIDING_RQ = 1 << 0 => MLX5_IB_CREATE_WQ_STRIDING_RQ,
    }

    /// What the library can do.
    flags LibCaps: u64 {
        /// UAR pages of 4 KiB, whatever the system's page size.
        UAR_4K = 1 << 0 => MLX5_LIB_CAP_4K_UAR,
        /// UAR pages allocated as objects.
        DYN_UAR = 1 << 1 => MLX5_LIB_CAP_DYN_UAR,
    }

    /// How a context is created.
    flags AllocUcontextFlags: u32 {
        DEVX = 1 << 0 => MLX5_IB_ALLOC_UCTX_DEVX,
    }

    /// Which fields of a context's response are valid, and which features exist.
    flags AllocUcontextRespMask: u32 {
        /// `hca_core_clock_offset` is valid.
        CORE_CLOCK_OFFSET = 1 << 0 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET,
        /// `dump_fill_mkey` is valid.
        DUMP_FILL_MKEY = 1 << 1 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY,
        ECE = 1 << 2 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE,
        SQD2RTS = 1 << 3 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS,
        REAL_TIME_TS = 1 << 4 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS,
        MKEY_UPDATE_TAG = 1 << 5 => MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG,
    }

    /// Which commands return driver data.
    flags CmdsSuppUhw: u8 {
        QUERY_DEVICE = 1 << 0 => MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE,
        CREATE_AH = 1 << 1 => MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
    }

    /// What ESP flow actions can do.
    flags FlowActionFlags: u16 {
        ESP_AES_GCM = 1 << 0 => MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM,
        ESP_AES_GCM_REQ_METADATA = 1 << 1
            => MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_REQ_METADATA,
        ESP_AES_GCM_SPI_STEERING = 1 << 2
            => MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_SPI_STEERING,
        ESP_AES_GCM_FULL_OFFLOAD = 1 << 3
            => MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_FULL_OFFLOAD,
        ESP_AES_GCM_TX_IV_IS_ESN = 1 << 4
            => MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_TX_IV_IS_ESN,
    }

    /// Versions of the clock page, one bit each.
    flags ClockInfoVersions: u8 {
        V1 = 1 << 0 => "1 << MLX5_IB_CLOCK_INFO_V1",
    }

    /// The low bit of the clock page's sequence counter.
    flags ClockInfoSign: u32 {
        KERNEL_UPDATING = 1 << 0 => MLX5_IB_CLOCK_INFO_KERNEL_UPDATING,
    }

    /// Formats of compressed CQEs.
    flags CqeCompFormat: u32 {
        HASH = 1 << 0 => MLX5_IB_CQE_RES_FORMAT_HASH,
        CSUM = 1 << 1 => MLX5_IB_CQE_RES_FORMAT_CSUM,
        CSUM_STRIDX = 1 << 2 => MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX,
    }

    /// Packet pacing.
    flags PacketPacingFlags: u8 {
        SUPPORT_BURST = 1 << 0 => MLX5_IB_PP_SUPPORT_BURST,
    }

    /// Multi-packet WQEs.
    flags MpwCaps: u32 {
        RESERVED = 1 << 0 => MPW_RESERVED,
        ALLOW_MPW = 1 << 1 => MLX5_IB_ALLOW_MPW,
        SUPPORT_EMPW = 1 << 2 => MLX5_IB_SUPPORT_EMPW,
    }

    /// Software parsing.
    flags SwParsing: u32 {
        SW_PARSING = 1 << 0 => MLX5_IB_SW_PARSING,
        CSUM = 1 << 1 => MLX5_IB_SW_PARSING_CSUM,
        LSO = 1 << 2 => MLX5_IB_SW_PARSING_LSO,
    }

    /// What else a device can do.
    flags QueryDevRespFlags: u32 {
        CQE_128B_COMP = 1 << 0 => MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP,
        CQE_128B_PAD = 1 << 1 => MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD,
        PACKET_BASED_CREDIT_MODE = 1 << 2 => MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE,
        SCAT2CQE_DCT = 1 << 3 => MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT,
        OOO_DP = 1 << 4 => MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP,
    }

    /// Tunnels whose inner packets are offloaded.
    flags TunnelOffloads: u32 {
        VXLAN = 1 << 0 => MLX5_IB_TUNNELED_OFFLOADS_VXLAN,
        GRE = 1 << 1 => MLX5_IB_TUNNELED_OFFLOADS_GRE,
        GENEVE = 1 << 2 => MLX5_IB_TUNNELED_OFFLOADS_GENEVE,
        MPLS_GRE = 1 << 3 => MLX5_IB_TUNNELED_OFFLOADS_MPLS_GRE,
        MPLS_UDP = 1 << 4 => MLX5_IB_TUNNELED_OFFLOADS_MPLS_UDP,
    }

    /// How a completion queue is created.
    flags CqFlags: u16 {
        CQE_128B_PAD = 1 << 0 => MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD,
        /// `uar_page_index` of the request is the page id of a UAR object.
        UAR_PAGE_INDEX = 1 << 1 => MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX,
        /// Timestamps are real time instead of device ticks.
        REAL_TIME_TS = 1 << 2 => MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS,
    }

    /// Receive hash functions.
    flags RxHashFunctions: u8 {
        TOEPLITZ = 1 << 0 => MLX5_RX_HASH_FUNC_TOEPLITZ,
    }

    /// Packet fields in a receive hash. IPv4 and IPv6, and TCP and UDP, exclude each other on one
    /// QP.
    flags RxHashFields: u64 {
        SRC_IPV4 = 1 << 0 => MLX5_RX_HASH_SRC_IPV4,
        DST_IPV4 = 1 << 1 => MLX5_RX_HASH_DST_IPV4,
        SRC_IPV6 = 1 << 2 => MLX5_RX_HASH_SRC_IPV6,
        DST_IPV6 = 1 << 3 => MLX5_RX_HASH_DST_IPV6,
        SRC_PORT_TCP = 1 << 4 => MLX5_RX_HASH_SRC_PORT_TCP,
        DST_PORT_TCP = 1 << 5 => MLX5_RX_HASH_DST_PORT_TCP,
        SRC_PORT_UDP = 1 << 6 => MLX5_RX_HASH_SRC_PORT_UDP,
        DST_PORT_UDP = 1 << 7 => MLX5_RX_HASH_DST_PORT_UDP,
        IPSEC_SPI = 1 << 8 => MLX5_RX_HASH_IPSEC_SPI,
        INNER = 1 << 31 => MLX5_RX_HASH_INNER,
    }

    /// Which fields of a queue pair's response are valid.
    flags CreateQpRespMask: u32 {
        TIRN = 1 << 0 => MLX5_IB_CREATE_QP_RESP_MASK_TIRN,
        TISN = 1 << 1 => MLX5_IB_CREATE_QP_RESP_MASK_TISN,
        RQN = 1 << 2 => MLX5_IB_CREATE_QP_RESP_MASK_RQN,
        SQN = 1 << 3 => MLX5_IB_CREATE_QP_RESP_MASK_SQN,
        TIR_ICM_ADDR = 1 << 4 => MLX5_IB_CREATE_QP_RESP_MASK_TIR_ICM_ADDR,
    }

    /// Optional changes of a queue pair.
    flags ModifyQpMask: u32 {
        /// Out-of-order data placement.
        OOO_DP = 1 << 0 => MLX5_IB_MODIFY_QP_OOO_DP,
    }

    /// Flags of an ESP action.
    flags FlowActionEspFlags: u32 {
        REQUIRE_METADATA = 1 << 0 => MLX5_IB_UAPI_FLOW_ACTION_FLAGS_REQUIRE_METADATA,
    }

    /// How a dma-buf is registered.
    flags RegDmabufFlags: u32 {
        DATA_DIRECT = 1 << 0 => MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT,
    }

    /// How a firmware event channel is opened.
    flags DevxEventChannelFlags: u32 {
        /// Events carry only their cookie.
        OMIT_DATA = 1 << 0 => MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA,
    }

    /// How a packet pacing entry is allocated.
    flags PpAllocFlags: u32 {
        DEDICATED_INDEX = 1 << 0 => MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX,
    }

    /// How a VirtIO doorbell page is allocated.
    flags VarAllocFlags: u32 {
        TLP = 1 << 0 => MLX5_IB_UAPI_VAR_ALLOC_FLAG_TLP,
    }

    /// Which fields of a vport query are valid.
    flags VportFlags: u64 {
        VPORT = 1 << 0 => MLX5_IB_UAPI_QUERY_PORT_VPORT,
        VPORT_VHCA_ID = 1 << 1 => MLX5_IB_UAPI_QUERY_PORT_VPORT_VHCA_ID,
        VPORT_STEERING_ICM_RX = 1 << 2 => MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_RX,
        VPORT_STEERING_ICM_TX = 1 << 3 => MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_TX,
        VPORT_REG_C0 = 1 << 4 => MLX5_IB_UAPI_QUERY_PORT_VPORT_REG_C0,
        ESW_OWNER_VHCA_ID = 1 << 5 => MLX5_IB_UAPI_QUERY_PORT_ESW_OWNER_VHCA_ID,
    }

    /// Flags of a rule in the device format.
    flags CreateFlowFlags: u32 {
        DEFAULT_MISS = 1 << 0 => MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS,
        DROP = 1 << 1 => MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP,
    }
}
