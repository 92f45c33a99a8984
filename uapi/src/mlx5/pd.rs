//! Protection domains and memory windows.

crate::macros::abi_structs! {
    /// Driver part of a protection domain.
    struct AllocPdResp = "struct mlx5_ib_alloc_pd_resp", 4 {
        /// Hardware number.
        @0 pdn: u32,
    }

    /// Driver part of a memory window request.
    struct AllocMw = "struct mlx5_ib_alloc_mw", 8 {
        @0 comp_mask: u32,
        @4 num_klms: u8,
        @5 reserved1: u8,
        @6 reserved2: u16,
    }
}
