//! Segments that say where data is, or hold it: remote address, scatter/gather entry, inline data.

use super::{U32, U64};

/// Bit 31 of a data segment's first word: what follows is inline data, not a pointer.
///
/// It is why one scatter/gather entry holds less than 2 GiB: a longer one would be read as inline
/// data.
pub const INLINE_FLAG: u32 = 1 << 31;

/// Bits of an inline segment's first word that hold its length
/// (`MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK`).
pub const INLINE_LENGTH_MASK: u32 = 0x3ff;

/// The lkey that ends a scatter list before its last entry (`MLX5_INVALID_LKEY`).
pub const TERMINATOR_LKEY: u32 = 0x100;

wire! {
    /// A scatter/gather entry.
    pub struct DataSegment: 16 {
        /// Length in bytes, 1 to 2^31 - 1. Zero stands for 2^31 (unconfirmed by a public source;
        /// the reason why no encoder here emits it except in a terminator).
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

    /// An entry of `length` bytes. Bit 31 of the length is cut off, so that it cannot turn into
    /// inline data.
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
    /// The head of an inline data segment; the bytes follow at once, and the whole is padded to 16
    /// bytes.
    pub struct InlineHeader: 4 {
        /// [`INLINE_FLAG`] and the number of bytes that follow.
        0 => pub byte_count: U32,
    }
}

impl InlineHeader {
    /// The head of `length` bytes of inline data, cut to 10 bits.
    #[inline(always)]
    pub const fn new(length: u32) -> Self {
        Self { byte_count: U32::new(INLINE_FLAG | length & INLINE_LENGTH_MASK) }
    }

    /// Length of the data in bytes.
    #[inline(always)]
    pub const fn length(&self) -> u32 {
        self.byte_count.get() & INLINE_LENGTH_MASK
    }

    /// Size of the segment, head and padding included, in units of 16 bytes, for `length` bytes of
    /// data.
    #[inline(always)]
    #[allow(clippy::manual_div_ceil, reason = "one addition: `div_ceil` takes the remainder apart")]
    pub const fn segment_ds(length: u32) -> u32 {
        (length + 4 + 15) / 16
    }
}

wire! {
    /// Where an RDMA operation or atomic goes.
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
