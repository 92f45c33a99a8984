//! Memory regions.

use crate::flags::{AccessFlags, ReregMrFlags};

crate::macros::abi_structs! {
    /// Registers memory. The memory must stay mapped until the region is gone.
    struct RegMr = "struct ib_uverbs_reg_mr", 40 {
        @0 response: u64,
        /// Address in the process.
        @8 start: u64,
        /// Bytes.
        @16 length: u64,
        /// Address that work requests use (iova); its offset in a page equals that of `start`.
        @24 hca_va: u64,
        @32 pd_handle: u32,
        @36 access_flags: AccessFlags,
    }

    /// The memory region.
    struct RegMrResp = "struct ib_uverbs_reg_mr_resp", 12 {
        @0 mr_handle: u32,
        @4 lkey: u32,
        @8 rkey: u32,
    }

    /// Changes a region.
    struct ReregMr = "struct ib_uverbs_rereg_mr", 48 {
        @0 response: u64,
        @8 mr_handle: u32,
        @12 flags: ReregMrFlags,
        /// Address in the process.
        @16 start: u64,
        /// Bytes.
        @24 length: u64,
        /// Address that work requests use.
        @32 hca_va: u64,
        @40 pd_handle: u32,
        @44 access_flags: AccessFlags,
    }

    /// The region's new keys.
    struct ReregMrResp = "struct ib_uverbs_rereg_mr_resp", 8 {
        @0 lkey: u32,
        @4 rkey: u32,
    }

    /// Deregisters memory.
    struct DeregMr = "struct ib_uverbs_dereg_mr", 4 {
        @0 mr_handle: u32,
    }

    /// A scatter or gather entry, as [`advise`](crate::objects::mr::advise) takes them.
    struct Sge = "struct ib_uverbs_sge", 16 {
        /// Address.
        @0 addr: u64,
        /// Bytes.
        @8 length: u32,
        @12 lkey: u32,
    }
}
