//! Enumerations of the mlx5 driver: `mlx5-abi.h`, `mlx5_user_ioctl_cmds.h`,
//! `mlx5_user_ioctl_verbs.h`.

crate::macros::abi_enums! {
    /// What to map: the command in bits 8 and above of the page offset given to `mmap`.
    enum MmapCommand: u32 {
        REGULAR_PAGE = 0 MLX5_IB_MMAP_REGULAR_PAGE,
        GET_CONTIGUOUS_PAGES = 1 MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES,
        WC_PAGE = 2 MLX5_IB_MMAP_WC_PAGE,
        NC_PAGE = 3 MLX5_IB_MMAP_NC_PAGE,
        /// The page with the device's free-running clock.
        CORE_CLOCK = 5 MLX5_IB_MMAP_CORE_CLOCK,
        ALLOC_WC = 6 MLX5_IB_MMAP_ALLOC_WC,
        /// The page with [`ClockInfo`](crate::clock::ClockInfo).
        CLOCK_INFO = 7 MLX5_IB_MMAP_CLOCK_INFO,
        DEVICE_MEM = 8 MLX5_IB_MMAP_DEVICE_MEM,
    }

    /// Which headers a WQE must have inline; one more than the firmware's value.
    enum InlineMode: u8 {
        /// The kernel does not report it.
        NA = 0 MLX5_USER_INLINE_MODE_NA,
        NONE = 1 MLX5_USER_INLINE_MODE_NONE,
        L2 = 2 MLX5_USER_INLINE_MODE_L2,
        IP = 3 MLX5_USER_INLINE_MODE_IP,
        TCP_UDP = 4 MLX5_USER_INLINE_MODE_TCP_UDP,
    }

    /// How a doorbell page is mapped.
    enum UarAllocType: u32 {
        /// Write-combining, with BlueFlame registers.
        BF = 0 MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF,
        /// Non-cached.
        NC = 1 MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC,
    }

    /// Kind of device memory.
    enum DmType: u32 {
        MEMIC = 0 MLX5_IB_UAPI_DM_TYPE_MEMIC,
        STEERING_SW_ICM = 1 MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM,
        HEADER_MODIFY_SW_ICM = 2 MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_SW_ICM,
        HEADER_MODIFY_PATTERN_SW_ICM = 3 MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM,
        ENCAP_SW_ICM = 4 MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM,
    }

    /// Table of steering rules in the device's form.
    enum FlowTableType: u32 {
        /// Frames that the port receives.
        NIC_RX = 0 MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX,
        /// Frames that the port sends.
        NIC_TX = 1 MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX,
        /// The embedded switch.
        FDB = 2 MLX5_IB_UAPI_FLOW_TABLE_TYPE_FDB,
        /// RoCE packets that are received.
        RDMA_RX = 3 MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_RX,
        /// RoCE packets that are sent.
        RDMA_TX = 4 MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX,
    }

    /// How a flow action changes a frame's headers.
    enum PacketReformatType: u32 {
        L2_TUNNEL_TO_L2 = 0 MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2,
        L2_TO_L2_TUNNEL = 1 MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL,
        L3_TUNNEL_TO_L2 = 2 MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2,
        L2_TO_L3_TUNNEL = 3 MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL,
    }
}

impl MmapCommand {
    /// The offset for `mmap`, in bytes. The command is in bits 8 to 15 of the page number, the low
    /// byte of `index` is below it, and the rest of `index` begins at bit 16 (`mlx5_ib_mmap` in
    /// `hw/mlx5/main.c`).
    pub const fn offset(self, index: u16, page_size: u64) -> u64 {
        let low = index as u64 & 0xff;
        let high = (index as u64 >> 8) << 16;
        (high | (self.0 as u64) << 8 | low) * page_size
    }
}
