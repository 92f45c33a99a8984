//! Operands of atomic operations.
//!
//! The plain 8-byte operations use [`AtomicSegment`]. Masked operations have operands of 4 or 8
//! bytes (on some devices more); the opcode modifier encodes the size. Sources of their layouts:
//! UCX (`uct_ib_mlx5_atomic_masked_*_seg`) and, for 8 bytes, Linux's `mlx5_wqe_masked_atomic_seg`.

use super::{U32, U64};

/// The opcode modifier of a masked atomic with operands of `2^log_size` bytes (`log_size` 2 to 9).
///
/// Source: UCX, `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`.
pub const fn extended_atomic_modifier(log_size: u8) -> u8 {
    8 | log_size.wrapping_sub(2) & 7
}

/// The operand size in bytes that a masked atomic's opcode modifier encodes; `None` if it encodes
/// none.
pub const fn extended_atomic_size(modifier: u8) -> Option<usize> {
    match modifier & !7 {
        8 => Some(4 << (modifier & 7)),
        _ => None,
    }
}

wire! {
    /// Operands of an 8-byte compare-and-swap or fetch-and-add.
    pub struct AtomicSegment: 16 {
        /// The value to swap in, or the addend.
        0 => pub swap_add: U64,
        /// The value to compare with; zero for fetch-and-add.
        8 => pub compare: U64,
    }
}

impl AtomicSegment {
    /// Operands of a compare and swap.
    #[inline(always)]
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self { swap_add: U64::new(swap), compare: U64::new(compare) }
    }

    /// Operands of a fetch and add.
    #[inline(always)]
    pub const fn fetch_add(addend: u64) -> Self {
        Self { swap_add: U64::new(addend), compare: U64::new(0) }
    }
}

wire! {
    /// Operands of a masked 4-byte compare and swap.
    pub struct MaskedCompareSwap32: 16 {
        /// The value to swap in.
        0 => pub swap: U32,
        /// The value to compare with.
        4 => pub compare: U32,
        /// Bits to swap.
        8 => pub swap_mask: U32,
        /// Bits to compare.
        12 => pub compare_mask: U32,
    }
}

wire! {
    /// Operands of a masked 8-byte compare and swap: two units of 16 bytes.
    pub struct MaskedCompareSwap64: 32 {
        /// The value to swap in.
        0 => pub swap: U64,
        /// The value to compare with.
        8 => pub compare: U64,
        /// Bits to swap.
        16 => pub swap_mask: U64,
        /// Bits to compare.
        24 => pub compare_mask: U64,
    }
}

wire! {
    /// Operands of a masked 4-byte fetch and add.
    pub struct MaskedFetchAdd32: 16 {
        /// The addend.
        0 => pub add: U32,
        /// A set bit is the top bit of a field: no carry leaves it.
        4 => pub field_boundary: U32,
        /// Reserved.
        8 => pub reserved8: [u8; 8],
    }
}

wire! {
    /// Operands of a masked 8-byte fetch and add.
    pub struct MaskedFetchAdd64: 16 {
        /// The addend.
        0 => pub add: U64,
        /// A set bit is the top bit of a field: no carry leaves it.
        8 => pub field_boundary: U64,
    }
}
