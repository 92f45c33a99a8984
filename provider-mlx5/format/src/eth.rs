//! The Ethernet segment of raw packet send queues.

use super::{U16, U32};

/// Inline header bytes within the Ethernet segment's 16 bytes. The rest follows in units of 16
/// bytes.
pub const ETH_INLINE_START: usize = 2;

/// The inline header size that devices in minimum-inline mode "L2" need: Ethernet header and a VLAN
/// tag.
pub const ETH_INLINE_L2: usize = 18;

/// Smallest TSO header: an Ethernet header (`MLX5_ETH_L2_MIN_HEADER_SIZE`).
pub const ETH_MIN_HEADER: usize = 14;

wire! {
    /// The Ethernet segment up to and including the first two bytes of inline header (Linux's
    /// `mlx5_wqe_eth_seg`).
    pub struct EthSegment: 16 {
        /// Software parsing: offset of the outer L4 header in units of 2 bytes.
        0 => pub swp_outer_l4_offset: u8,
        /// Software parsing: offset of the outer L3 header in units of 2 bytes.
        1 => pub swp_outer_l3_offset: u8,
        /// Software parsing: offset of the inner L4 header in units of 2 bytes.
        2 => pub swp_inner_l4_offset: u8,
        /// Software parsing: offset of the inner L3 header in units of 2 bytes.
        3 => pub swp_inner_l3_offset: u8,
        /// Checksum offload, see [`EthChecksum`].
        4 => pub checksum_flags: EthChecksum,
        /// Software parsing. Bit 0: inner L3 is IPv6; 1: inner L4 is UDP; 4: outer L3 is IPv6; 5:
        /// outer L4 is UDP.
        5 => pub swp_flags: u8,
        /// TSO: payload bytes per packet; else 0. (The field has 14 bits in the device's manual:
        /// unconfirmed.)
        6 => pub mss: U16,
        /// Metadata that steering rules can match.
        8 => pub flow_table_metadata: U32,
        /// Inline header size in bytes; or, without inline header, [`EthSegment::INSERT_VLAN`] and
        /// the kind of tag.
        12 => pub inline_header_size: U16,
        /// First two bytes of the inline header; or the VLAN tag control information to insert.
        14 => pub inline_header_start: [u8; ETH_INLINE_START],
    }
}

impl EthSegment {
    /// Bit of `inline_header_size`: insert a VLAN tag, whose control information is in
    /// `inline_header_start`.
    pub const INSERT_VLAN: u16 = 1 << 15;
    /// Bit of `inline_header_size`, with `INSERT_VLAN`: a service tag (802.1ad) instead of a
    /// customer tag.
    pub const INSERT_SERVICE_VLAN: u16 = 1;

    /// Whether the device inserts a VLAN tag.
    #[inline(always)]
    pub const fn inserts_vlan(&self) -> bool {
        self.inline_header_size.get() & Self::INSERT_VLAN != 0
    }

    /// The VLAN tag control information to insert (priority, DEI, VLAN number).
    #[inline(always)]
    pub const fn vlan_tci(&self) -> u16 {
        u16::from_be_bytes(self.inline_header_start)
    }

    /// Bytes of inline header; 0 if the field specifies a VLAN tag instead.
    #[inline(always)]
    pub const fn inline_length(&self) -> usize {
        if self.inserts_vlan() { 0 } else { self.inline_header_size.get() as usize }
    }

    /// Size of the segment with `header` bytes of inline header, in units of 16 bytes.
    #[inline(always)]
    pub const fn segment_ds(header: usize) -> usize {
        1 + header.saturating_sub(ETH_INLINE_START).div_ceil(16)
    }
}

wire! {
    /// Checksum offload flags of the Ethernet segment.
    pub struct EthChecksum(pub u8);
}

impl EthChecksum {
    /// No offload.
    pub const NONE: Self = Self(0);
    /// Compute the inner L3 header's checksum.
    pub const L3_INNER: Self = Self(1 << 4);
    /// Compute the inner L4 header's checksum.
    pub const L4_INNER: Self = Self(1 << 5);
    /// Compute the (outer) IP header's checksum.
    pub const L3: Self = Self(1 << 6);
    /// Compute the (outer) TCP or UDP checksum.
    pub const L4: Self = Self(1 << 7);
    /// IP and TCP/UDP, as for `IBV_SEND_IP_CSUM`.
    pub const IP_CSUM: Self = Self(Self::L3.0 | Self::L4.0);

    /// Whether all of `other`'s flags are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
