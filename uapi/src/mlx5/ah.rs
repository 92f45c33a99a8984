//! Address handles.

crate::macros::abi_structs! {
    /// Driver part of an answer (RoCE).
    struct CreateAhResp = "struct mlx5_ib_create_ah_resp", 16 {
        @0 response_length: u32,
        /// Destination MAC address.
        @4 dmac: [u8; 6],
        @10 reserved: [u8; 6],
    }
}
