//! Address handles.

crate::macros::abi_structs! {
    /// Driver part of an answer (RoCE).
    struct CreateAhResp = "struct mlx5_ib_create_ah_resp", 16 {
        /// Bytes of the answer that the kernel filled in.
        @0 response_length: u32,
        /// Destination MAC address.
        @4 dmac: [u8; 6],
        /// Zero.
        @10 reserved: [u8; 6],
    }
}
