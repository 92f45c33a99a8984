//! Tag matching: the WQE by which an SRQ's command QP (`cmd_qp` of libmlx5) changes the list of
//! tags, the headers of messages with tags, and the fields of a CQE for both.
//!
//! Sources: `providers/mlx5/{wqe.h,mlx5dv.h,qp.c,cq.c}` (`set_tm_seg`, `handle_tag_matching`) and
//! `libibverbs/tm_types.h` of rdma-core.

use super::{Cqe, U16, U32, U64};

wire! {
    /// A change of an SRQ's tag list, in a WQE of opcode TAG_MATCHING (`mlx5_wqe_tm_seg`).
    pub struct TagMatchingSegment: 32 {
        /// 7:4 operation, see the `OPERATION_` constants.
        0 => pub operation: u8,
        /// See the `FLAG_` constants.
        1 => pub flags: u8,
        /// Index of the entry in the tag list.
        2 => pub index: U16,
        /// Reserved.
        4 => pub reserved4: U16,
        /// Unexpected messages that software has seen.
        6 => pub software_count: U16,
        /// Reserved.
        8 => pub reserved8: U64,
        /// The tag to match.
        16 => pub tag: U64,
        /// Bits of the tag that are compared.
        24 => pub mask: U64,
    }
}

impl TagMatchingSegment {
    /// Change nothing, report the count (`MLX5_TM_OPCODE_NOP`).
    pub const OPERATION_NOP: u8 = 0x00;
    /// Append an entry; its buffer follows as a data segment (`MLX5_TM_OPCODE_APPEND`).
    pub const OPERATION_APPEND: u8 = 0x10;
    /// Remove an entry (`MLX5_TM_OPCODE_REMOVE`).
    pub const OPERATION_REMOVE: u8 = 0x20;
    /// Write a CQE (`MLX5_SRQ_FLAG_TM_CQE_REQ`).
    pub const FLAG_COMPLETION: u8 = 1 << 7;
    /// `software_count` is valid (`MLX5_SRQ_FLAG_TM_SW_CNT`).
    pub const FLAG_SOFTWARE_COUNT: u8 = 1 << 6;
}

wire! {
    /// The header with which a message for tag matching begins (`struct ibv_tmh`). If the message
    /// matches an entry of the list, the header is in bytes 0 to 15 of its CQE.
    pub struct TagHeader: 16 {
        /// Kind of message, see the constants.
        0 => pub operation: u8,
        /// Zero.
        1 => pub reserved1: [u8; 3],
        /// A value of the sending program.
        4 => pub context: U32,
        /// The tag.
        8 => pub tag: U64,
    }
}

impl TagHeader {
    /// A message without a tag, which takes a receive of the SRQ (`IBV_TMH_NO_TAG`).
    pub const NO_TAG: u8 = 0;
    /// A rendezvous: [`RendezvousHeader`] follows (`IBV_TMH_RNDV`).
    pub const RENDEZVOUS: u8 = 1;
    /// The answer to a rendezvous whose data was read (`IBV_TMH_FIN`).
    pub const FIN: u8 = 2;
    /// The data follows (`IBV_TMH_EAGER`).
    pub const EAGER: u8 = 3;
}

wire! {
    /// The data of a rendezvous, which the receiver reads from the sender's memory (`struct
    /// ibv_rvh`).
    pub struct RendezvousHeader: 16 {
        /// Address in the sender's memory.
        0 => pub address: U64,
        /// The sender's key.
        8 => pub rkey: U32,
        /// Bytes.
        12 => pub length: U32,
    }
}

wire! {
    /// The first bytes of a CQE for a change of the list (`mlx5_tm_cqe`).
    pub struct TagReport: 16 {
        /// [`TagReport::SUCCESS`], or 0 if an entry to be removed is no longer in the list.
        0 => pub success: U32,
        /// Unexpected messages that the device has counted.
        4 => pub hardware_phase: U16,
        /// Reserved.
        6 => pub reserved6: [u8; 10],
    }
}

impl TagReport {
    /// The change was made (`MLX5_TMC_SUCCESS`).
    pub const SUCCESS: u32 = 1 << 31;
}

impl Cqe {
    /// [`Cqe::app`] of a completion of a tag matching SRQ (`MLX5_CQE_APP_TAG_MATCHING`).
    pub const TAG_MATCHING: u8 = 1;
}

open_values! {
    /// What a CQE with [`Cqe::TAG_MATCHING`] reports, in [`Cqe::app_op`] (`MLX5_CQE_APP_OP_TM_*`).
    pub struct TagEvent {
        /// A message matched an entry. Its data will follow.
        CONSUMED = 0x1 => "consumed",
        /// The data of a message that matched an entry has arrived.
        EXPECTED = 0x2 => "expected",
        /// The message matched no entry. It is in a receive of the SRQ, with its header.
        UNEXPECTED = 0x3 => "unexpected",
        /// A message without a tag arrived. It is in a receive of the SRQ, with its header.
        NO_TAG = 0x4 => "no tag",
        /// An entry was appended.
        APPEND = 0x5 => "append",
        /// The command to remove an entry was executed.
        REMOVE = 0x6 => "remove",
        /// The device was told the number of unexpected messages.
        NOOP = 0x7 => "noop",
        /// A rendezvous that software must continue matched an entry. Its end will follow.
        CONSUMED_SOFTWARE_RENDEZVOUS = 0x9 => "consumed, software rendezvous",
        /// A message matched an entry, and its data has arrived.
        CONSUMED_MESSAGE = 0xa => "consumed with message",
        /// A rendezvous that software must continue matched an entry, and its header has arrived.
        CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS = 0xb => "consumed with message, software rendezvous",
        /// The data of a message that matched an entry will not arrive.
        CANCELED = 0xc => "message completion canceled",
    }
}

impl TagEvent {
    /// Whether the event is about an entry of the list: a message matched, or the message's data
    /// has arrived or will not arrive. The entry is in [`Cqe::app_info`].
    pub const fn is_of_entry(self) -> bool {
        self.is_first_of_two() || self.is_last_of_entry()
    }

    /// Whether another event of the same entry follows (not `mlx5_cqe_app_op_tm_is_complete`).
    pub const fn is_first_of_two(self) -> bool {
        matches!(self, Self::CONSUMED | Self::CONSUMED_SOFTWARE_RENDEZVOUS)
    }

    /// Whether the entry is free afterwards.
    pub const fn is_last_of_entry(self) -> bool {
        matches!(
            self,
            Self::EXPECTED
                | Self::CONSUMED_MESSAGE
                | Self::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS
                | Self::CANCELED
        )
    }

    /// Whether software must continue a rendezvous, or its data will not arrive.
    pub const fn is_rendezvous_incomplete(self) -> bool {
        matches!(
            self,
            Self::CONSUMED_SOFTWARE_RENDEZVOUS
                | Self::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS
                | Self::CANCELED
        )
    }

    /// Whether the event reports a change of the list by the command QP.
    pub const fn is_of_change(self) -> bool {
        matches!(self, Self::APPEND | Self::REMOVE | Self::NOOP)
    }
}
