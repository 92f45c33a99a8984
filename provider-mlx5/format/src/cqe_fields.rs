//! Packed fields of a CQE.

use super::{CqeOpcode, U32};

wire! {
    /// The last byte of a CQE: 7:4 opcode, 3:2 format, 1 solicited, 0 owner.
    ///
    /// The device writes it last. Software owns a CQE if its owner bit equals the parity of the lap
    /// and its opcode is not [`CqeOpcode::INVALID`].
    pub struct OpOwn(pub u8);
}

impl OpOwn {
    /// The value in a new ring: opcode invalid, owner 0.
    pub const UNWRITTEN: Self = Self(0xf0);

    /// Packs the four parts: the low 4 bits of the opcode and the low 2 bits of the format.
    #[inline(always)]
    pub const fn new(opcode: CqeOpcode, format: CqeFormat, solicited: bool, owner: bool) -> Self {
        Self(opcode.0 << 4 | (format.0 & 3) << 2 | (solicited as u8) << 1 | owner as u8)
    }

    /// What the CQE reports.
    #[inline(always)]
    pub const fn opcode(self) -> CqeOpcode {
        CqeOpcode(self.0 >> 4)
    }

    /// The location of received data, or that the entry is compressed.
    #[inline(always)]
    pub const fn format(self) -> CqeFormat {
        CqeFormat(self.0 >> 2 & 3)
    }

    /// Whether the requester asked for a solicited event.
    #[inline(always)]
    pub const fn is_solicited(self) -> bool {
        self.0 & 2 != 0
    }

    /// The owner bit.
    #[inline(always)]
    pub const fn owner(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether software may read the CQE: the device has written it, in the lap of
    /// `consumer_index`. `log_entries` is log2 of the number of CQEs in the ring.
    #[inline(always)]
    pub const fn is_software(self, consumer_index: u32, log_entries: u32) -> bool {
        let lap = consumer_index >> (log_entries & 31) & 1 != 0;
        self.owner() == lap && self.0 >> 4 != CqeOpcode::INVALID.0
    }
}

open_values! {
    /// The format of a CQE, in bits 3:2 of its last byte.
    pub struct CqeFormat {
        /// The data is in the buffers of the receive WQE.
        NO_INLINE = 0 => "no inline data",
        /// Up to 32 bytes of data are in the CQE's first half (`MLX5_INLINE_SCATTER_32`).
        INLINE_32 = 1 => "inline data, 32",
        /// Up to 64 bytes of data are in the lower half of a 128-byte CQE
        /// (`MLX5_INLINE_SCATTER_64`).
        INLINE_64 = 2 => "inline data, 64",
        /// The CQE starts a compressed session: mini-CQEs follow.
        COMPRESSED = 3 => "compressed",
    }
}

wire! {
    /// The word `flags_rqpn`: 29:28 GRH kind, 27:24 service level, 23:0 remote QP number.
    ///
    /// On RoCE, Linux's `mlx5_ib` reads bits 25:24 as the packet's [`RoceHeader`] and takes the
    /// service level from the VLAN tag; libmlx5 always reports bits 27:24 as the service level.
    pub struct RemoteQpFlags(pub U32);
}

impl RemoteQpFlags {
    /// Packs GRH bits, service level and remote QP number. Bits beyond each field's width are
    /// ignored.
    #[inline(always)]
    pub const fn new(grh: u8, service_level: u8, remote_qpn: u32) -> Self {
        let sl = (service_level & 0xf) as u32;
        Self(U32::new(((grh & 3) as u32) << 28 | sl << 24 | remote_qpn & 0xff_ffff))
    }

    /// The remote QP number.
    #[inline(always)]
    pub const fn remote_qpn(self) -> u32 {
        self.0.get() & 0xff_ffff
    }

    /// The service level (InfiniBand).
    #[inline(always)]
    pub const fn service_level(self) -> u8 {
        (self.0.get() >> 24) as u8 & 0xf
    }

    /// The two GRH bits; not 0 if a routing header was received (`IBV_WC_GRH`).
    #[inline(always)]
    pub const fn grh(self) -> u8 {
        (self.0.get() >> 28) as u8 & 3
    }
}

open_values! {
    /// The kind of L3 header of a received RoCE packet (`MLX5_CQE_ROCE_L3_HEADER_TYPE_*`).
    pub struct RoceHeader {
        /// GRH: RoCE v1.
        GRH = 0 => "GRH (RoCE v1)",
        /// IPv6: RoCE v2.
        IPV6 = 1 => "IPv6 (RoCE v2)",
        /// IPv4: RoCE v2.
        IPV4 = 2 => "IPv4 (RoCE v2)",
    }
}

wire! {
    /// The byte with the results of checks: 0 L2 good, 1 L3 good, 2 L4 good (`hds_ip_ext`).
    pub struct CqeChecksum(pub u8);
}

impl CqeChecksum {
    /// The Ethernet frame is good.
    pub const L2_OK: u8 = 1 << 0;
    /// The IP header checksum is good.
    pub const L3_OK: u8 = 1 << 1;
    /// The TCP or UDP checksum is good.
    pub const L4_OK: u8 = 1 << 2;

    /// Whether both L3 and L4 were checked and are good.
    #[inline(always)]
    pub const fn l3_l4_ok(self) -> bool {
        self.0 & (Self::L3_OK | Self::L4_OK) == Self::L3_OK | Self::L4_OK
    }
}

wire! {
    /// The byte with header types: 6:4 L4, 3:2 L3, 0 VLAN stripped (`l4_hdr_type_etc`).
    pub struct CqeHeaderTypes(pub u8);
}

impl CqeHeaderTypes {
    /// Packs L3 and L4 type and the VLAN bit. Bits beyond a type's width are ignored.
    #[inline(always)]
    pub const fn new(l3: L3Type, l4: L4Type, vlan_stripped: bool) -> Self {
        Self((l4.0 & 7) << 4 | (l3.0 & 3) << 2 | vlan_stripped as u8)
    }

    /// The L3 header's type.
    #[inline(always)]
    pub const fn l3(self) -> L3Type {
        L3Type(self.0 >> 2 & 3)
    }

    /// The L4 header's type.
    #[inline(always)]
    pub const fn l4(self) -> L4Type {
        L4Type(self.0 >> 4 & 7)
    }

    /// Whether a VLAN tag was stripped and is in the CQE.
    #[inline(always)]
    pub const fn vlan_stripped(self) -> bool {
        self.0 & 1 != 0
    }
}

open_values! {
    /// The type of a received packet's L3 header.
    pub struct L3Type {
        /// Neither IPv4 nor IPv6.
        NONE = 0 => "none",
        /// IPv6.
        IPV6 = 1 => "IPv6",
        /// IPv4.
        IPV4 = 2 => "IPv4",
    }
}

open_values! {
    /// The type of a received packet's L4 header.
    pub struct L4Type {
        /// Neither TCP nor UDP.
        NONE = 0 => "none",
        /// TCP without acknowledgement.
        TCP_NO_ACK = 1 => "TCP, no ACK",
        /// UDP.
        UDP = 2 => "UDP",
        /// TCP acknowledgement without data.
        TCP_ACK_NO_DATA = 3 => "TCP, ACK, no data",
        /// TCP acknowledgement with data.
        TCP_ACK_AND_DATA = 4 => "TCP, ACK, data",
    }
}
