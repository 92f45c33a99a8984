//! XRC domains.

crate::macros::abi_structs! {
    /// Opens a domain.
    struct OpenXrcd = "struct ib_uverbs_open_xrcd", 16 {
        @0 response: u64,
        /// File whose inode identifies the domain; all ones for a private domain.
        @8 fd: u32,
        /// `O_CREAT` and `O_EXCL`.
        @12 oflags: u32,
    }

    /// The domain.
    struct OpenXrcdResp = "struct ib_uverbs_open_xrcd_resp", 4 {
        @0 xrcd_handle: u32,
    }

    /// Closes a domain.
    struct CloseXrcd = "struct ib_uverbs_close_xrcd", 4 {
        @0 xrcd_handle: u32,
    }
}
