//! Opcodes of send WQEs and of CQEs.

open_values! {
    /// The opcode of a send WQE, in bits 7:0 of the control segment's first word.
    ///
    /// A requester's CQE repeats it in the top byte of `sop_drop_qpn`.
    pub struct Opcode {
        /// Does nothing, and can still complete.
        NOP = 0x00 => "NOP",
        /// Send; the responder invalidates the rkey in the immediate field.
        SEND_INVALIDATE = 0x01 => "SEND_INVAL",
        /// RDMA write.
        RDMA_WRITE = 0x08 => "RDMA_WRITE",
        /// RDMA write that consumes a receive WQE at the responder and delivers the immediate.
        RDMA_WRITE_IMMEDIATE = 0x09 => "RDMA_WRITE_IMM",
        /// Send. On an Ethernet send queue: send one packet.
        SEND = 0x0a => "SEND",
        /// Send with immediate.
        SEND_IMMEDIATE = 0x0b => "SEND_IMM",
        /// Segmentation offload (large send) on an Ethernet send queue.
        TSO = 0x0e => "TSO",
        /// RDMA read.
        RDMA_READ = 0x10 => "RDMA_READ",
        /// 8-byte atomic compare and swap.
        ATOMIC_COMPARE_SWAP = 0x11 => "ATOMIC_CS",
        /// 8-byte atomic fetch and add.
        ATOMIC_FETCH_ADD = 0x12 => "ATOMIC_FA",
        /// Masked compare and swap of 4, 8 or more bytes; the size is in the opcode modifier,
        /// see [`extended_atomic_modifier`](super::extended_atomic_modifier).
        ATOMIC_MASKED_COMPARE_SWAP = 0x14 => "ATOMIC_MASKED_CS",
        /// Masked fetch and add (carries stop at field boundaries).
        ATOMIC_MASKED_FETCH_ADD = 0x15 => "ATOMIC_MASKED_FA",
        /// Bind a memory window, on early devices; ConnectX-IB and later use [`Opcode::UMR`].
        BIND_MW = 0x18 => "BIND_MW",
        /// Fast memory registration, on early devices.
        FMR = 0x19 => "FMR",
        /// Local invalidate, on early devices; ConnectX-IB and later use [`Opcode::UMR`].
        LOCAL_INVALIDATE = 0x1b => "LOCAL_INVAL",
        /// Configuration command (CQ resize on early devices).
        CONFIG_COMMAND = 0x1f => "CONFIG_CMD",
        /// Set a protection signature value (signature offload).
        SET_PSV = 0x20 => "SET_PSV",
        /// Get a protection signature value.
        GET_PSV = 0x21 => "GET_PSV",
        /// Check a protection signature value.
        CHECK_PSV = 0x22 => "CHECK_PSV",
        /// Send memory without counting it as data (TLS resynchronisation).
        DUMP = 0x23 => "DUMP",
        /// User-mode memory registration: binds windows, invalidates, changes memory keys.
        UMR = 0x25 => "UMR",
        /// Get PSV at the responder.
        RGET_PSV = 0x26 => "RGET_PSV",
        /// Check PSV at the responder.
        RCHECK_PSV = 0x27 => "RCHECK_PSV",
        /// Change a tag-matching list.
        TAG_MATCHING = 0x28 => "TAG_MATCHING",
        /// Several packets in one WQE (enhanced multi-packet send).
        ENHANCED_MPSW = 0x29 => "ENHANCED_MPSW",
        /// Write a flow steering entry.
        FLOW_TABLE_ACCESS = 0x2c => "FLOW_TBL_ACCESS",
        /// Access an advanced steering object.
        ACCESS_ASO = 0x2d => "ACCESS_ASO",
        /// Memory-to-memory operation (local DMA copy).
        MMO = 0x2f => "MMO",
    }
}

impl Opcode {
    /// Whether the WQE addresses remote memory, and so has a remote-address segment.
    pub const fn has_remote_address(self) -> bool {
        matches!(self, Self::RDMA_WRITE | Self::RDMA_WRITE_IMMEDIATE | Self::RDMA_READ)
            || self.is_atomic()
    }

    /// Whether this is one of the four atomic operations.
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::ATOMIC_COMPARE_SWAP
                | Self::ATOMIC_FETCH_ADD
                | Self::ATOMIC_MASKED_COMPARE_SWAP
                | Self::ATOMIC_MASKED_FETCH_ADD
        )
    }

    /// Whether the control segment's last word is immediate data, which the responder receives
    /// unchanged.
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::SEND_IMMEDIATE | Self::RDMA_WRITE_IMMEDIATE)
    }

    /// Whether this is one of the send operations, which consume a receive WQE at the responder.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::SEND | Self::SEND_IMMEDIATE | Self::SEND_INVALIDATE)
    }
}

open_values! {
    /// What a CQE reports, in bits 7:4 of its last byte.
    pub struct CqeOpcode {
        /// A send WQE completed with success.
        REQUESTER = 0 => "REQ",
        /// A receive completed: RDMA write with immediate.
        RESPONDER_WRITE_IMMEDIATE = 1 => "RESP_WR_IMM",
        /// A receive completed: send.
        RESPONDER_SEND = 2 => "RESP_SEND",
        /// A receive completed: send with immediate.
        RESPONDER_SEND_IMMEDIATE = 3 => "RESP_SEND_IMM",
        /// A receive completed: send with invalidate.
        RESPONDER_SEND_INVALIDATE = 4 => "RESP_SEND_INV",
        /// The CQ was resized: the CQEs after this one are in the new buffer.
        RESIZE = 5 => "RESIZE_CQ",
        /// A CQE without a packet (tag matching).
        NO_PACKET = 6 => "NO_PACKET",
        /// A signature check failed; layout `SignatureErrorCqe`.
        SIGNATURE_ERROR = 12 => "SIG_ERR",
        /// A send WQE failed; layout `ErrorCqe`.
        REQUESTER_ERROR = 13 => "REQ_ERR",
        /// A receive WQE failed; layout `ErrorCqe`.
        RESPONDER_ERROR = 14 => "RESP_ERR",
        /// The entry was not written yet: the value in a new ring.
        INVALID = 15 => "INVALID",
    }
}

impl CqeOpcode {
    /// Whether this is a requester's CQE, of success or of an error.
    pub const fn is_requester(self) -> bool {
        matches!(self, Self::REQUESTER | Self::REQUESTER_ERROR)
    }

    /// Whether this is a responder's CQE, of success or of an error.
    pub const fn is_responder(self) -> bool {
        matches!(
            self,
            Self::RESPONDER_WRITE_IMMEDIATE
                | Self::RESPONDER_SEND
                | Self::RESPONDER_SEND_IMMEDIATE
                | Self::RESPONDER_SEND_INVALIDATE
                | Self::RESPONDER_ERROR
        )
    }

    /// Whether the CQE can be one of tag matching: it reports a send, or has no packet.
    pub const fn may_match_tags(self) -> bool {
        matches!(
            self,
            Self::RESPONDER_SEND
                | Self::RESPONDER_SEND_IMMEDIATE
                | Self::RESPONDER_SEND_INVALIDATE
                | Self::NO_PACKET
        )
    }

    /// Whether the CQE has the layout of `ErrorCqe`.
    pub const fn is_error(self) -> bool {
        matches!(self, Self::REQUESTER_ERROR | Self::RESPONDER_ERROR)
    }
}
