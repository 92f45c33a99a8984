//! User-mode memory registration: binds a memory window, invalidates a key, or sets up an indirect
//! key.

use super::{U16, U32, U64};

wire! {
    /// The UMR control segment, 48 bytes.
    pub struct UmrControlSegment: 48 {
        /// See the `FLAG_` constants.
        0 => pub flags: u8,
        /// Reserved.
        1 => pub reserved1: [u8; 3],
        /// Size of the translation entries in units of 16 bytes, a multiple of 4.
        4 => pub klm_octowords: U16,
        /// With [`UmrControlSegment::FLAG_TRANSLATION_OFFSET`], the position of the entries in the
        /// key's translation; else the size of the signature structure in units of 16 bytes.
        6 => pub translation_offset: U16,
        /// Which fields of the mkey context to update, see the `MASK_` constants.
        8 => pub mkey_mask: U64,
        /// Bits 47:16 of the translation offset.
        16 => pub translation_offset_high: U32,
        /// Reserved.
        20 => pub reserved20: [u8; 28],
    }
}

impl UmrControlSegment {
    /// Fail if the mkey's context has another QP (`CHECK_QPN`).
    pub const FLAG_CHECK_QPN: u8 = 1 << 3;
    /// `translation_offset` is valid.
    pub const FLAG_TRANSLATION_OFFSET: u8 = 1 << 4;
    /// Fail unless the key is free (Linux: `MLX5_UMR_CHECK_NOT_FREE`, with that meaning in
    /// `umr.c`). rdma-core's header calls the same bit `CHECK_FREE` and sets it to bind a type 2
    /// window.
    pub const FLAG_CHECK_NOT_FREE: u8 = 1 << 5;
    /// Fail if the key is free (Linux: `MLX5_UMR_CHECK_FREE`, with that meaning in `umr.c`).
    pub const FLAG_CHECK_FREE: u8 = 2 << 5;
    /// The translation entries follow in the WQE.
    pub const FLAG_INLINE: u8 = 1 << 7;

    /// Update the length.
    pub const MASK_LENGTH: u64 = 1 << 0;
    /// Update the page size.
    pub const MASK_PAGE_SIZE: u64 = 1 << 1;
    /// Update the start address.
    pub const MASK_START_ADDRESS: u64 = 1 << 6;
    /// Update the protection domain.
    pub const MASK_PD: u64 = 1 << 7;
    /// Update the permission of remote invalidation.
    pub const MASK_REMOTE_INVALIDATE: u64 = 1 << 8;
    /// Update the signature error count.
    pub const MASK_SIGNATURE_ERROR: u64 = 1 << 9;
    /// Update the enabling of the signature structure (BSF).
    pub const MASK_BSF_ENABLE: u64 = 1 << 12;
    /// Update the key's low 8 bits.
    pub const MASK_KEY: u64 = 1 << 13;
    /// Update the QP number.
    pub const MASK_QPN: u64 = 1 << 14;
    /// Update the permission of local reads.
    pub const MASK_LOCAL_READ: u64 = 1 << 17;
    /// Update the permission of local writes.
    pub const MASK_LOCAL_WRITE: u64 = 1 << 18;
    /// Update the permission of remote reads.
    pub const MASK_REMOTE_READ: u64 = 1 << 19;
    /// Update the permission of remote writes.
    pub const MASK_REMOTE_WRITE: u64 = 1 << 20;
    /// Update the permission of atomics.
    pub const MASK_ATOMIC: u64 = 1 << 21;
    /// Update whether the key is free.
    pub const MASK_FREE: u64 = 1 << 29;

    /// The size field's value for `entries` translation entries of 16 bytes: whole groups of four.
    #[inline(always)]
    pub const fn octowords_for(entries: u16) -> u16 {
        // As libmlx5 computes it: entries rounded up to a multiple of 8, halved. This is not the
        // number of octowords. For the one entry of a window it is 4.
        (entries.wrapping_add(7) & !7) / 2
    }
}

wire! {
    /// The mkey context segment, 64 bytes: the new values of the fields selected by the mask.
    pub struct MkeyContextSegment: 64 {
        /// [`MkeyContextSegment::FREE`] or zero.
        0 => pub free: u8,
        /// PCIe control bits in Linux's definition, else reserved.
        1 => pub reserved1: u8,
        /// See the `ACCESS_` constants.
        2 => pub access_flags: u8,
        /// Version in Linux's definition, signature flags in rdma-core's.
        3 => pub sf: u8,
        /// 31:8 QP number that may use the key (0xffffff: any), 7:0 the key's low byte.
        4 => pub qpn_mkey: U32,
        /// Reserved.
        8 => pub reserved8: U32,
        /// 31:24 flags, 23:0 protection domain.
        12 => pub flags_pd: U32,
        /// First address of the key's space.
        16 => pub start_address: U64,
        /// Length in bytes.
        24 => pub length: U64,
        /// Size of the signature structure in units of 16 bytes.
        32 => pub bsf_octowords: U32,
        /// Reserved.
        36 => pub reserved36: [u8; 16],
        /// Size of the translation in units of 16 bytes.
        52 => pub translation_octowords: U32,
        /// Reserved.
        56 => pub reserved56: [u8; 3],
        /// log2 of the page size.
        59 => pub log_page_size: u8,
        /// Reserved.
        60 => pub reserved60: U32,
    }
}

impl MkeyContextSegment {
    /// The key is free: it is invalid, and can be bound again.
    pub const FREE: u8 = 1 << 6;
    /// Local reads are allowed.
    pub const ACCESS_LOCAL_READ: u8 = 1 << 2;
    /// Local writes are allowed.
    pub const ACCESS_LOCAL_WRITE: u8 = 1 << 3;
    /// Remote reads are allowed.
    pub const ACCESS_REMOTE_READ: u8 = 1 << 4;
    /// Remote writes are allowed.
    pub const ACCESS_REMOTE_WRITE: u8 = 1 << 5;
    /// Remote atomics are allowed.
    pub const ACCESS_ATOMIC: u8 = 1 << 6;
    /// The QP number that means any QP.
    pub const ANY_QPN: u32 = 0xff_ffff;
}

wire! {
    /// A translation entry: a part of another key's memory (`mlx5_wqe_umr_klm_seg`).
    pub struct Klm: 16 {
        /// Length in bytes, up to 2^31.
        0 => pub byte_count: U32,
        /// The other key.
        4 => pub mkey: U32,
        /// Address in the other key's space.
        8 => pub address: U64,
    }
}

wire! {
    /// The header of an interleaved (strided) translation (`mlx5_wqe_umr_repeat_block_seg`).
    pub struct RepeatBlock: 16 {
        /// Bytes per cycle over all entries.
        0 => pub byte_count: U32,
        /// [`RepeatBlock::OPERATION`].
        4 => pub operation: U32,
        /// Number of cycles.
        8 => pub repeat_count: U32,
        /// Reserved.
        12 => pub reserved12: U16,
        /// Number of [`RepeatEntry`] that follow.
        14 => pub entries: U16,
    }
}

impl RepeatBlock {
    /// The operation that libmlx5 and Linux write (`MLX5_STRIDE_BLOCK_OP`).
    pub const OPERATION: u32 = 0x400;
}

wire! {
    /// One entry of an interleaved translation.
    pub struct RepeatEntry: 16 {
        /// Bytes from one element to the next.
        0 => pub stride: U16,
        /// Bytes of one element.
        2 => pub byte_count: U16,
        /// The key of the elements.
        4 => pub mkey: U32,
        /// Address of the first element.
        8 => pub address: U64,
    }
}
