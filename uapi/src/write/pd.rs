//! Protection domains.

crate::macros::abi_structs! {
    /// Allocates a protection domain.
    struct AllocPd = "struct ib_uverbs_alloc_pd", 8 {
        @0 response: u64,
    }

    /// The protection domain.
    struct AllocPdResp = "struct ib_uverbs_alloc_pd_resp", 4 {
        @0 pd_handle: u32,
    }

    /// Frees a protection domain.
    struct DeallocPd = "struct ib_uverbs_dealloc_pd", 4 {
        @0 pd_handle: u32,
    }
}
