//! Signature offload: a UMR's segments for signatures and encryption of a key's data, and the
//! segment that sets a protected signature variable (PSV).
//!
//! Sources: `providers/mlx5/wqe.h` and `qp.c` (`mlx5_umr_set_psv`) of rdma-core,
//! `include/linux/mlx5/qp.h` of Linux. They are defined for inspection only; the queues do not post
//! them.

use super::{U16, U32, U64};

wire! {
    /// One half of a [`SignatureSegment`]'s inline section: memory or wire (`mlx5_bsf_inl`).
    pub struct SignatureInline: 16 {
        /// [`SignatureInline::VALID`], [`SignatureInline::REFRESH_DIF`].
        0 => pub valid_refresh: U16,
        /// T10-DIF application tag.
        2 => pub app_tag: U16,
        /// T10-DIF reference tag.
        4 => pub reference_tag: U32,
        /// Kind of guard: 1 CRC, 2 IP checksum.
        8 => pub signature_type: u8,
        /// [`SignatureInline::REPEAT_BLOCK`], inversion and seed.
        9 => pub repeat_invert_seed: u8,
        /// Reserved.
        10 => pub reserved10: [u8; 3],
        /// Increment of the reference tag, check of the guard, escapes.
        13 => pub increment_check: u8,
        /// Bits of the application tag that are checked.
        14 => pub app_tag_mask: U16,
    }
}

impl SignatureInline {
    /// The section is valid (`MLX5_BSF_INL_VALID`).
    pub const VALID: u16 = 1 << 15;
    /// `MLX5_BSF_REFRESH_DIF`.
    pub const REFRESH_DIF: u16 = 1 << 14;
    /// `MLX5_BSF_REPEAT_BLOCK`.
    pub const REPEAT_BLOCK: u8 = 1 << 7;
}

wire! {
    /// The signature structure (BSF) after a UMR's translation entries, 64 bytes (`mlx5_bsf`).
    pub struct SignatureSegment: 64 {
        /// 7:6 size of the structure (0 basic, 1 extended, 2 with inline sections, 3 with
        /// encryption), 4:0 block size.
        0 => pub size_block: u8,
        /// Bytes of a block's tuple that are checked.
        1 => pub check_byte_mask: u8,
        /// Wire: bytes that are copied, or the block size.
        2 => pub wire: u8,
        /// Memory: the block size.
        3 => pub memory: u8,
        /// Bytes of data without signatures.
        4 => pub raw_data_size: U32,
        /// Wire: 31:24 block format, 23:0 PSV.
        8 => pub wire_psv: U32,
        /// Memory: 31:24 block format, 23:0 PSV.
        12 => pub memory_psv: U32,
        /// Size of the transaction's preamble.
        16 => pub transaction_preamble: U32,
        /// Size of its epilogue.
        20 => pub transaction_epilogue: U32,
        /// Wire: the transaction's format and PSV.
        24 => pub wire_transaction_psv: U32,
        /// Memory: the transaction's format and PSV.
        28 => pub memory_transaction_psv: U32,
        /// Wire: inline section.
        32 => pub wire_inline: SignatureInline,
        /// Memory: inline section.
        48 => pub memory_inline: SignatureInline,
    }
}

wire! {
    /// The new value of a PSV, in a WQE of opcode SET_PSV (`mlx5_wqe_set_psv_seg`).
    pub struct SetPsvSegment: 16 {
        /// Number of the PSV.
        0 => pub psv_index: U32,
        /// Its error state.
        4 => pub syndrome: U16,
        /// Reserved.
        6 => pub reserved6: U16,
        /// The signature to continue from: T10-DIF guard, application and reference tag, or a CRC.
        8 => pub transient_signature: U64,
    }
}
