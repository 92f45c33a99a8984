//! Completion event channels.

crate::macros::abi_structs! {
    /// Opens a channel.
    struct CreateCompChannel = "struct ib_uverbs_create_comp_channel", 8 {
        @0 response: u64,
    }

    /// The channel.
    struct CreateCompChannelResp = "struct ib_uverbs_create_comp_channel_resp", 4 {
        /// File descriptor; the receiver owns it.
        @0 fd: u32,
    }
}
