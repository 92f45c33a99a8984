//! Flow rules, counters and firmware events.

crate::macros::abi_structs! {
    /// Which counter goes where.
    struct FlowCountersDesc = "struct mlx5_ib_flow_counters_desc", 8 {
        @0 description: u32,
        @4 index: u32,
    }

    /// Counters of one counters object.
    struct FlowCountersData = "struct mlx5_ib_flow_counters_data", 16 {
        /// Address of the descriptions.
        @0 counters_data: u64,
        /// How many.
        @8 ncounters: u32,
        /// Zero.
        @12 reserved: u32,
    }

    /// Driver part of a rule; [`FlowCountersData`] entries follow.
    struct CreateFlow = "struct mlx5_ib_create_flow", 8 {
        /// How many.
        @0 ncounters_data: u32,
        /// Zero.
        @4 reserved: u32,
    }
}
