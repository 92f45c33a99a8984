//! The control segment: the first 16 bytes of every send WQE.

use super::{Opcode, U16, U32};

wire! {
    /// The first segment of a send WQE. A plain doorbell stores its first 8 bytes to the UAR.
    pub struct ControlSegment: 16 {
        /// 31:24 opcode modifier, 23:8 WQE index (the send queue's counter, wrapping at 2^16), 7:0
        /// [`Opcode`].
        0 => pub opmod_index_opcode: U32,
        /// 31:8 QP (or SQ) number, 5:0 size of the WQE in units of 16 bytes.
        4 => pub qpn_ds: U32,
        /// Checksum of the WQE if the QP was created with signatures, else 0.
        8 => pub signature: u8,
        /// DCI stream channel, for DC initiators created with streams, else 0.
        9 => pub dci_stream_channel_id: U16,
        /// Fence, completion and solicited-event modes.
        11 => pub flags: ControlFlags,
        /// Immediate data as on the wire, the rkey to invalidate, or the mkey that a UMR changes.
        12 => pub immediate: U32,
    }
}

impl ControlSegment {
    /// A control segment without opcode modifier, signature or stream.
    ///
    /// `qpn` has 24 bits and `ds` 6. Higher bits are ignored.
    #[inline(always)]
    pub const fn new(
        opcode: Opcode,
        index: u16,
        qpn: u32,
        ds: u8,
        flags: ControlFlags,
        immediate: U32,
    ) -> Self {
        Self {
            opmod_index_opcode: U32::new(Self::first_word(0, index, opcode)),
            qpn_ds: U32::new(Self::second_word(qpn, ds)),
            signature: 0,
            dci_stream_channel_id: U16::new(0),
            flags,
            immediate,
        }
    }

    /// The first word's value, in the processor's byte order.
    #[inline(always)]
    pub const fn first_word(modifier: u8, index: u16, opcode: Opcode) -> u32 {
        (modifier as u32) << 24 | (index as u32) << 8 | opcode.0 as u32
    }

    /// The second word's value, in the processor's byte order.
    #[inline(always)]
    pub const fn second_word(qpn: u32, ds: u8) -> u32 {
        qpn << 8 | (ds & 0x3f) as u32
    }

    /// The opcode.
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.opmod_index_opcode.get() as u8)
    }

    /// The opcode modifier.
    #[inline(always)]
    pub const fn opcode_modifier(&self) -> u8 {
        (self.opmod_index_opcode.get() >> 24) as u8
    }

    /// The send queue's counter, modulo 2^16, at this WQE's first block.
    #[inline(always)]
    pub const fn index(&self) -> u16 {
        (self.opmod_index_opcode.get() >> 8) as u16
    }

    /// The QP number.
    #[inline(always)]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// The WQE's size in units of 16 bytes, 0 to 63.
    #[inline(always)]
    pub const fn ds(&self) -> u8 {
        self.qpn_ds.get() as u8 & 0x3f
    }
}

wire! {
    /// The control segment's mode byte (`fm_ce_se`): fence mode in bits 7:5, completion mode in
    /// 3:2, solicited in 1.
    pub struct ControlFlags(pub u8);
}

impl ControlFlags {
    /// No fence, completion only in error, not solicited.
    pub const NONE: Self = Self(0);
    /// The responder raises a solicited event.
    pub const SOLICITED: Self = Self(1 << 1);
    /// Write a CQE when the WQE completes.
    pub const COMPLETION: Self = Self(2 << 2);
    /// Write a CQE and an EQE when the WQE completes.
    pub const COMPLETION_AND_EVENT: Self = Self(3 << 2);
    /// Bits without a public definition.
    pub const RESERVED: Self = Self(1 << 4 | 1);

    /// The union of both sets of bits.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags with a fence mode.
    #[inline(always)]
    #[must_use]
    pub const fn with_fence(self, fence: Fence) -> Self {
        Self(self.0 & !Fence::MASK | fence.0)
    }

    /// The fence mode.
    #[inline(always)]
    pub const fn fence(self) -> Fence {
        Fence(self.0 & Fence::MASK)
    }

    /// The completion mode, 0 to 3; 2 and 3 write a CQE in any case, 0 and 1 in error only.
    #[inline(always)]
    pub const fn completion_mode(self) -> u8 {
        self.0 >> 2 & 3
    }

    /// Whether a successful WQE writes a CQE.
    #[inline(always)]
    pub const fn is_signaled(self) -> bool {
        self.0 & Self::COMPLETION.0 != 0
    }

    /// Whether the responder raises a solicited event.
    #[inline(always)]
    pub const fn is_solicited(self) -> bool {
        self.0 & Self::SOLICITED.0 != 0
    }
}

open_values! {
    /// The fence mode, in place (bits 7:5 of the mode byte).
    ///
    /// Names and values: `MLX5_FENCE_MODE_*` in Linux's `qp.h`. libmlx5 writes 0x80 for a fence
    /// that the user requests, and 0x20 in the request after a local invalidate or a bind.
    pub struct Fence {
        /// No fence.
        NONE = 0 << 5 => "none",
        /// Waits for earlier local operations (UMR) of this queue.
        SMALL = 1 << 5 => "initiator small",
        /// Waits for earlier RDMA reads and atomics of this queue.
        FENCE = 2 << 5 => "fence",
        /// Strong ordering.
        STRONG_ORDERING = 3 << 5 => "strong ordering",
        /// Waits for both: what libmlx5 writes for `IBV_SEND_FENCE`.
        SMALL_AND_FENCE = 4 << 5 => "small and fence",
    }
}

impl Fence {
    /// The bits of the mode byte that hold the fence mode.
    pub const MASK: u8 = 7 << 5;
}
