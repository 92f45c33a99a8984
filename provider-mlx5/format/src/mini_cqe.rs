//! Compressed completions: a title CQE followed by arrays of 8-byte mini-CQEs.
//!
//! In the basic layout a CQE of format [`CqeFormat::COMPRESSED`](super::CqeFormat::COMPRESSED)
//! starts a session. It is the title: a template for all completions, whose number is its
//! `byte_count`. The next slot holds an array of eight mini-CQEs, the first of which belongs to the
//! title's own slot, and every eighth slot after it holds another array. Each completion is the
//! title with the byte count and one more field replaced; its WQE counter is one more than that of
//! the completion before, unless the mini-CQE contains it. Source: Linux, `en_rx.c`
//! (`mlx5e_decompress_cqes_start`).

use super::{Opcode, U16, U32};

/// Mini-CQEs in one slot of a completion queue.
pub const MINI_CQES_PER_SLOT: usize = 8;

open_values! {
    /// The content of a responder's mini-CQE besides the byte count, as chosen in the CQ's context
    /// (`mini_cqe_res_format`, with the device's values).
    pub struct MiniCqeFormat {
        /// The receive hash.
        HASH = 0 => "hash",
        /// The checksum.
        CHECKSUM = 1 => "checksum",
        /// The checksum and the stride index (striding receive queue).
        CHECKSUM_STRIDE_INDEX = 3 => "checksum and stride index",
    }
}

wire! {
    /// A mini-CQE: a word and a length. At a responder [`MiniCqeFormat`] determines the meaning of
    /// the word.
    pub struct MiniCqe: 8 {
        /// Hash; or checksum and stride index; or WQE counter, opcode and a reserved byte
        /// (requester).
        0 => pub word: U32,
        /// Bytes received; on a striding queue as [`StrideByteCount`](super::StrideByteCount).
        4 => pub byte_count: U32,
    }
}

impl MiniCqe {
    /// A responder's mini-CQE with the receive hash.
    #[inline(always)]
    pub const fn with_hash(hash: u32, byte_count: u32) -> Self {
        Self { word: U32::new(hash), byte_count: U32::new(byte_count) }
    }

    /// A responder's mini-CQE with the checksum, and the stride index if the format has one (else
    /// 0).
    #[inline(always)]
    pub const fn with_checksum(checksum: u16, stride_index: u16, byte_count: u32) -> Self {
        Self::with_hash((checksum as u32) << 16 | stride_index as u32, byte_count)
    }

    /// A requester's mini-CQE.
    #[inline(always)]
    pub const fn requester(wqe_counter: u16, opcode: Opcode) -> Self {
        Self::with_hash((wqe_counter as u32) << 16 | (opcode.0 as u32) << 8, 0)
    }

    /// The receive hash ([`MiniCqeFormat::HASH`]).
    #[inline(always)]
    pub const fn hash(&self) -> u32 {
        self.word.get()
    }

    /// The checksum ([`MiniCqeFormat::CHECKSUM`], [`MiniCqeFormat::CHECKSUM_STRIDE_INDEX`]).
    #[inline(always)]
    pub const fn checksum(&self) -> u16 {
        (self.word.get() >> 16) as u16
    }

    /// The stride index ([`MiniCqeFormat::CHECKSUM_STRIDE_INDEX`]).
    #[inline(always)]
    pub const fn stride_index(&self) -> u16 {
        self.word.get() as u16
    }

    /// The WQE counter (requester).
    #[inline(always)]
    pub const fn wqe_counter(&self) -> u16 {
        (self.word.get() >> 16) as u16
    }

    /// The WQE's opcode (requester).
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        Opcode((self.word.get() >> 8) as u8)
    }
}

wire! {
    /// One slot of mini-CQEs.
    ///
    /// The owner bit of the slot is in its last byte, as in a CQE. The device does not set the
    /// owner bits of a session's slots; software sets each to the lap's value after it has consumed
    /// the slot.
    pub struct MiniCqeArray: 64 {
        /// The mini-CQEs, in order of completion.
        0 => pub entries: [MiniCqe; MINI_CQES_PER_SLOT],
    }
}

wire! {
    /// The last four bytes of an array in the enhanced layout
    /// (`MLX5_CQE_COMPRESS_LAYOUT_ENHANCED`), which distinguish it from a CQE. `op_own` has the
    /// number of mini-CQEs minus one in place of a CQE's opcode, and the lap replaces the
    /// signature.
    pub struct EnhancedTail: 4 {
        /// Part of the last mini-CQE, at the offset of a CQE's WQE counter.
        0 => pub wqe_counter: U16,
        /// Number of the lap, modulo 256.
        2 => pub validity_iteration: u8,
        /// 7:4 number of mini-CQEs minus one, 3:2 format (compressed).
        3 => pub op_own: u8,
    }
}

impl EnhancedTail {
    /// Number of mini-CQEs in the array.
    #[inline(always)]
    pub const fn count(self) -> usize {
        (self.op_own >> 4) as usize + 1
    }
}
