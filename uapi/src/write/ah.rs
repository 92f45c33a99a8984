//! Address handles.

crate::macros::abi_structs! {
    /// The GRH part of an address.
    struct GlobalRoute = "struct ib_uverbs_global_route", 24 {
        /// Destination GID.
        @0 dgid: [u8; 16],
        @16 flow_label: u32,
        /// Index into the GID table.
        @20 sgid_index: u8,
        @21 hop_limit: u8,
        @22 traffic_class: u8,
        @23 reserved: u8,
    }

    /// An address.
    struct AhAttr = "struct ib_uverbs_ah_attr", 32 {
        /// Global route.
        @0 grh: GlobalRoute,
        /// Destination LID, zero for RoCE.
        @24 dlid: u16,
        /// Service level.
        @26 sl: u8,
        /// Low bits of the source LID.
        @27 src_path_bits: u8,
        /// A [`Rate`](crate::enums::Rate) code.
        @28 static_rate: u8,
        /// 1 if there is a GRH.
        @29 is_global: u8,
        @30 port_num: u8,
        @31 reserved: u8,
    }

    /// Creates an address handle.
    struct CreateAh = "struct ib_uverbs_create_ah", 56 {
        @0 response: u64,
        @8 user_handle: u64,
        @16 pd_handle: u32,
        @20 reserved: u32,
        /// The address.
        @24 attr: AhAttr,
    }

    /// The address handle.
    struct CreateAhResp = "struct ib_uverbs_create_ah_resp", 4 {
        /// Handle of the address handle.
        @0 ah_handle: u32,
    }

    /// Destroys an address handle.
    struct DestroyAh = "struct ib_uverbs_destroy_ah", 4 {
        /// Handle of the address handle.
        @0 ah_handle: u32,
    }
}
