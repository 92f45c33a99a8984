//! Memory windows.

use crate::enums::MwType;

crate::macros::abi_structs! {
    /// Allocates a window.
    struct AllocMw = "struct ib_uverbs_alloc_mw", 16 {
        /// Where `write(2)` would put the answer; zero through the ioctl.
        @0 response: u64,
        /// Handle of the protection domain.
        @8 pd_handle: u32,
        @12 mw_type: MwType,
        /// Zero.
        @13 reserved: [u8; 3],
    }

    /// The window.
    struct AllocMwResp = "struct ib_uverbs_alloc_mw_resp", 8 {
        /// Handle of the memory window.
        @0 mw_handle: u32,
        /// Remote key.
        @4 rkey: u32,
    }

    /// Frees a window.
    struct DeallocMw = "struct ib_uverbs_dealloc_mw", 4 {
        /// Handle of the memory window.
        @0 mw_handle: u32,
    }
}
