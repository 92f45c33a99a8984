//! Contexts by write command: [`WriteCmd::GET_CONTEXT`](super::WriteCmd::GET_CONTEXT), and the
//! heads that `write(2)` needs. The ioctl has its own method,
//! [`get_context`](crate::objects::device::get_context).

crate::macros::abi_structs! {
    /// Head of a `write(2)` command; not used with the ioctl.
    struct CmdHdr = "struct ib_uverbs_cmd_hdr", 8 {
        /// The command, with the extended flag in bit 31.
        @0 command: u32,
        /// Request length in words of four bytes.
        @4 in_words: u16,
        /// Answer length in words of four bytes.
        @6 out_words: u16,
    }

    /// Creates the user context.
    struct GetContext = "struct ib_uverbs_get_context", 8 {
        @0 response: u64,
    }

    /// The context.
    struct GetContextResp = "struct ib_uverbs_get_context_resp", 8 {
        /// File descriptor of asynchronous events.
        @0 async_fd: u32,
        /// How many completion vectors there are.
        @4 num_comp_vectors: u32,
    }
}
