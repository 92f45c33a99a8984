//! Flow rules and their counters.

crate::macros::abi_structs! {
    /// One counter of a rule and its position in the counters object.
    struct FlowCountersDesc = "struct mlx5_ib_flow_counters_desc", 8 {
        /// What is counted.
        @0 description: u32,
        /// Index in the array that a read of the counters object returns.
        @4 index: u32,
    }

    /// Counters of one counters object.
    struct FlowCountersData = "struct mlx5_ib_flow_counters_data", 16 {
        /// Address of an array of [`FlowCountersDesc`].
        @0 counters_data: u64,
        /// Length of the array.
        @8 ncounters: u32,
        @12 reserved: u32,
    }

    /// Driver part of a rule; [`FlowCountersData`] entries follow.
    struct CreateFlow = "struct mlx5_ib_create_flow", 8 {
        /// Number of entries that follow.
        @0 ncounters_data: u32,
        @4 reserved: u32,
    }
}
