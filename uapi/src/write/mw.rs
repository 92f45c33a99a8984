//! Memory windows.

use crate::enums::MwType;

crate::macros::abi_structs! {
    /// Allocates a window.
    struct AllocMw = "struct ib_uverbs_alloc_mw", 16 {
        @0 response: u64,
        @8 pd_handle: u32,
        @12 mw_type: MwType,
        @13 reserved: [u8; 3],
    }

    /// The window.
    struct AllocMwResp = "struct ib_uverbs_alloc_mw_resp", 8 {
        /// Handle of the memory window.
        @0 mw_handle: u32,
        @4 rkey: u32,
    }

    /// Frees a window.
    struct DeallocMw = "struct ib_uverbs_dealloc_mw", 4 {
        /// Handle of the memory window.
        @0 mw_handle: u32,
    }
}
