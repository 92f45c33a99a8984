//! Segments that refer to data or contain it: remote address, scatter/gather entry, inline data.

use super::{U32, U64};

/// Bit 31 of a data segment's first word: inline data follows instead of a pointer.
///
/// So a scatter/gather entry has less than 2 GiB: a longer one would be read as inline data.
pub const INLINE_FLAG: u32 = 1 << 31;

/// Bits of an inline segment's first word that hold its length
/// (`MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK`).
pub const INLINE_LENGTH_MASK: u32 = 0x3ff;

/// The lkey that ends a scatter list before its last entry (`MLX5_INVALID_LKEY`).
pub const TERMINATOR_LKEY: u32 = 0x100;

wire! {
    /// A scatter/gather entry.
    pub struct DataSegment: 16 {
        /// Length in bytes, 1 to 2^31 - 1. Zero means 2^31 (unconfirmed by a public source), so
        /// encoders here write it only in a terminator.
        0 => pub byte_count: U32,
        /// Local key of the memory.
        4 => pub lkey: U32,
        /// Address in the key's space.
        8 => pub address: U64,
    }
}

impl DataSegment {
    /// The entry that ends a receive WQE's scatter list: zero bytes, lkey 0x100, address 0.
    pub const TERMINATOR: Self =
        Self { byte_count: U32::new(0), lkey: U32::new(TERMINATOR_LKEY), address: U64::new(0) };

    /// An entry of `length` bytes. Bit 31 of the length is ignored, because it would turn the entry
    /// into inline data.
    #[inline(always)]
    pub const fn new(address: u64, length: u32, lkey: u32) -> Self {
        Self {
            byte_count: U32::new(length & !INLINE_FLAG),
            lkey: U32::new(lkey),
            address: U64::new(address),
        }
    }

    /// Whether this ends a scatter list.
    pub const fn is_terminator(&self) -> bool {
        self.byte_count.get() == 0 && self.lkey.get() == TERMINATOR_LKEY
    }
}

wire! {
    /// The header of an inline data segment. The data follows immediately, padded so that the
    /// segment is a multiple of 16 bytes.
    pub struct InlineHeader: 4 {
        /// [`INLINE_FLAG`] and the number of bytes that follow.
        0 => pub byte_count: U32,
    }
}

impl InlineHeader {
    /// The header of `length` bytes of inline data; only the low 10 bits are used.
    #[inline(always)]
    pub const fn new(length: u32) -> Self {
        Self { byte_count: U32::new(INLINE_FLAG | length & INLINE_LENGTH_MASK) }
    }

    /// Length of the data in bytes.
    #[inline(always)]
    pub const fn length(&self) -> u32 {
        self.byte_count.get() & INLINE_LENGTH_MASK
    }

    /// Size of the segment for `length` bytes of data, with header and padding, in units of 16
    /// bytes.
    #[inline(always)]
    #[allow(clippy::manual_div_ceil, reason = "one addition: `div_ceil` takes the remainder apart")]
    pub const fn segment_ds(length: u32) -> u32 {
        (length + 4 + 15) / 16
    }
}

wire! {
    /// The remote memory of an RDMA operation or atomic.
    pub struct RemoteAddressSegment: 16 {
        /// Address in the remote key's space.
        0 => pub address: U64,
        /// Remote key.
        8 => pub rkey: U32,
        /// Reserved.
        12 => pub reserved12: U32,
    }
}

impl RemoteAddressSegment {
    /// A remote address under a remote key.
    #[inline(always)]
    pub const fn new(address: u64, rkey: u32) -> Self {
        Self { address: U64::new(address), rkey: U32::new(rkey), reserved12: U32::new(0) }
    }
}
