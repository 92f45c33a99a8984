//! Completion queue entries.

use super::{
    CqeChecksum, CqeHeaderTypes, OpOwn, RemoteQpFlags, Syndrome, U16, U32, U64, VendorSyndrome,
};

/// Size in bytes of a CQE without the lower half that it has in a queue of 128-byte CQEs.
pub const CQE_SIZE: usize = 64;

wire! {
    /// A CQE, version 1 (`srqn_uidx` holds the user index), success and resize layouts
    /// (`mlx5_cqe64`).
    ///
    /// With [`CqeFormat::INLINE_32`](super::CqeFormat::INLINE_32) the first 32 bytes hold received
    /// data instead. In a queue of 128-byte CQEs these 64 bytes are the upper half; the lower half
    /// holds the data with [`CqeFormat::INLINE_64`](super::CqeFormat::INLINE_64), or the GRH.
    pub struct Cqe: 64 {
        /// 0 outer L3 tunneled, 4:3 TLS offload state.
        0 => pub tls_tunneled: u8,
        /// Reserved.
        1 => pub reserved1: u8,
        /// Striding receive queue: index of the WQE.
        2 => pub wqe_id: U16,
        /// Large receive offload: 6 TCP push, further flags.
        4 => pub lro_flags: u8,
        /// Large receive offload: smallest TTL.
        5 => pub lro_min_ttl: u8,
        /// Large receive offload: TCP window.
        6 => pub lro_tcp_window: U16,
        /// Large receive offload: acknowledged sequence number.
        8 => pub lro_ack_sequence: U32,
        /// Receive hash.
        12 => pub rss_hash: U32,
        /// What was hashed: 3:2 IP (1 v4, 2 v6), 7:6 L4 (1 TCP, 2 UDP, 3 IPsec SPI).
        16 => pub rss_hash_type: u8,
        /// 6:0 path bits of the destination LID.
        17 => pub path_bits: u8,
        /// Reserved.
        18 => pub reserved18: [u8; 2],
        /// Checksum over the packet from the L3 header on (Ethernet).
        20 => pub checksum: U16,
        /// Source LID.
        22 => pub slid: U16,
        /// GRH kind, service level and the remote QP's number.
        24 => pub flags_remote_qpn: RemoteQpFlags,
        /// Checks that passed (and header split, options).
        28 => pub checks: CqeChecksum,
        /// L3 and L4 header types, VLAN stripped.
        29 => pub header_types: CqeHeaderTypes,
        /// Control information of the VLAN tag that was stripped.
        30 => pub vlan_info: U16,
        /// 23:0 user index of the QP or SRQ (version 1); 31:24 number of LRO segments.
        32 => pub srqn_user_index: U32,
        /// Immediate data in network byte order, the invalidated rkey, the P_Key index, or metadata
        /// of a steering rule.
        36 => pub immediate: U32,
        /// Application of the CQE (1: tag matching).
        40 => pub app: u8,
        /// Operation of the application.
        41 => pub app_op: u8,
        /// Information of the application.
        42 => pub app_info: U16,
        /// Bytes received, read, or returned by an atomic. On a striding receive queue see
        /// [`StrideByteCount`].
        44 => pub byte_count: U32,
        /// Raw timestamp: device clock ticks, or seconds and nanoseconds in a real-time CQ.
        48 => pub timestamp: U64,
        /// Requester: 31:24 the WQE's opcode; 23:0 QP number. Ethernet responder: 23:0 flow tag.
        56 => pub opcode_qpn_flow_tag: U32,
        /// The WQE's index: send queue counter of its first block, receive index, or stride index.
        60 => pub wqe_counter: U16,
        /// Checksum of the CQE, or the number of the lap in enhanced compression.
        62 => pub signature: u8,
        /// Opcode, format, solicited, owner.
        63 => pub op_own: OpOwn,
    }
}

impl Cqe {
    /// The value of all entries of a new ring: zero except for the last byte.
    pub fn unwritten() -> Self {
        Self { op_own: OpOwn::UNWRITTEN, ..Self::default() }
    }

    /// The user index of the queue that the completion belongs to.
    #[inline(always)]
    pub const fn user_index(&self) -> u32 {
        self.srqn_user_index.get() & 0xff_ffff
    }

    /// The local QP number (not on an Ethernet responder, see [`Cqe::flow_tag`]).
    #[inline(always)]
    pub const fn qpn(&self) -> u32 {
        self.opcode_qpn_flow_tag.get() & 0xff_ffff
    }

    /// The flow tag of the steering rule that delivered the packet (Ethernet responder).
    #[inline(always)]
    pub const fn flow_tag(&self) -> u32 {
        self.qpn()
    }

    /// The opcode of the send WQE (requester).
    #[inline(always)]
    pub const fn wqe_opcode(&self) -> super::Opcode {
        super::Opcode((self.opcode_qpn_flow_tag.get() >> 24) as u8)
    }
}

wire! {
    /// A CQE of an error, requester's or responder's (`mlx5_err_cqe`).
    pub struct ErrorCqe: 64 {
        /// Reserved.
        0 => pub reserved0: [u8; 32],
        /// 23:0 user index (version 1) or SRQ number.
        32 => pub srqn_user_index: U32,
        /// Reserved.
        36 => pub reserved36: [u8; 16],
        /// Hardware syndrome; name from UCX and SPDK (`hw_err_synd`), reserved in rdma-core.
        52 => pub hardware_syndrome: u8,
        /// Type of the hardware syndrome; name from UCX (`hw_synd_type`), reserved in rdma-core.
        53 => pub hardware_syndrome_type: u8,
        /// Vendor syndrome.
        54 => pub vendor_syndrome: VendorSyndrome,
        /// Syndrome.
        55 => pub syndrome: Syndrome,
        /// 31:24 opcode of the send WQE (requester), 23:0 QP number.
        56 => pub opcode_qpn: U32,
        /// The WQE's index.
        60 => pub wqe_counter: U16,
        /// Checksum of the CQE.
        62 => pub signature: u8,
        /// Opcode, format, solicited, owner.
        63 => pub op_own: OpOwn,
    }
}

impl ErrorCqe {
    /// The user index of the queue that the completion belongs to.
    #[inline(always)]
    pub const fn user_index(&self) -> u32 {
        self.srqn_user_index.get() & 0xff_ffff
    }

    /// The local QP number.
    #[inline(always)]
    pub const fn qpn(&self) -> u32 {
        self.opcode_qpn.get() & 0xff_ffff
    }

    /// The opcode of the send WQE (requester).
    #[inline(always)]
    pub const fn wqe_opcode(&self) -> super::Opcode {
        super::Opcode((self.opcode_qpn.get() >> 24) as u8)
    }
}

wire! {
    /// A CQE of a failed signature check (`mlx5_sigerr_cqe`).
    pub struct SignatureErrorCqe: 64 {
        /// Reserved.
        0 => pub reserved0: [u8; 16],
        /// The signature that was computed.
        16 => pub expected_signature: U32,
        /// The signature that was found.
        20 => pub actual_signature: U32,
        /// The reference tag that was expected.
        24 => pub expected_reference_tag: U32,
        /// The reference tag that was found.
        28 => pub actual_reference_tag: U32,
        /// Which check failed.
        32 => pub syndrome: U16,
        /// Kind of signature.
        34 => pub signature_type: u8,
        /// Whether the signature was on the wire or in memory.
        35 => pub domain: u8,
        /// The memory key with the signature.
        36 => pub mkey: U32,
        /// Offset of the block in bytes.
        40 => pub error_offset: U64,
        /// Reserved; Linux's definition has the QP number at byte 56.
        48 => pub reserved48: [u8; 14],
        /// Checksum of the CQE.
        62 => pub signature: u8,
        /// Opcode, format, solicited, owner.
        63 => pub op_own: OpOwn,
    }
}

wire! {
    /// The byte count of a striding receive queue's CQE.
    pub struct StrideByteCount: 4 {
        /// 15 filler (the strides contain no packet), 14:0 strides consumed.
        0 => pub filler_strides: U16,
        /// Bytes of the packet.
        2 => pub byte_count: U16,
    }
}

impl StrideByteCount {
    /// Splits the `byte_count` of a striding receive queue's CQE.
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self { filler_strides: U16::new((word >> 16) as u16), byte_count: U16::new(word as u16) }
    }

    /// The value of a CQE that consumes `strides` strides (15 bits).
    #[inline]
    pub const fn new(strides: u16, byte_count: u16, filler: bool) -> Self {
        let filler = if filler { 0x8000 } else { 0 };
        let filler_strides = U16::new(strides & 0x7fff | filler);
        Self { filler_strides, byte_count: U16::new(byte_count) }
    }

    /// The CQE's `byte_count`.
    #[inline]
    pub const fn word(self) -> u32 {
        (self.filler_strides.get() as u32) << 16 | self.byte_count.get() as u32
    }

    /// Whether the strides are only filler at the end of the WQE.
    #[inline(always)]
    pub const fn is_filler(self) -> bool {
        self.filler_strides.get() & 0x8000 != 0
    }

    /// Strides consumed.
    #[inline(always)]
    pub const fn strides(self) -> u16 {
        self.filler_strides.get() & 0x7fff
    }
}
