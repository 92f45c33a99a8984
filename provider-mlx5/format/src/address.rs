//! Segments that identify the receiver of a message: the address vector of UD and DC, and the XRC
//! segment.

use super::{U16, U32, U64};

wire! {
    /// The address vector of a UD or DC send, 48 bytes (`mlx5_wqe_av`).
    pub struct AddressVector: 48 {
        /// UD: Q_Key in the upper 32 bits, zero below. DC: the 64-bit access key.
        0 => pub key: U64,
        /// [`AddressVector::EXTENDED`] and the remote QP number (UD) or DCT number (DC) in 24 bits.
        8 => pub extended_qpn: U32,
        /// 7:4 static rate, 3:0 service level; on Ethernet 3:1 are the priority.
        12 => pub static_rate_sl: u8,
        /// 7 force loopback, 6:0 source path bits (InfiniBand).
        13 => pub loopback_path_bits: u8,
        /// Remote LID (InfiniBand), or the UDP source port (RoCE v2).
        14 => pub remote_lid_udp_port: U16,
        /// Reserved.
        16 => pub reserved16: [u8; 4],
        /// Remote MAC address (RoCE).
        20 => pub remote_mac: [u8; 6],
        /// Traffic class.
        26 => pub traffic_class: u8,
        /// Hop limit.
        27 => pub hop_limit: u8,
        /// [`AddressVector::GRH`], 27:20 index of the source GID, 19:0 flow label.
        28 => pub grh_gid_flow: U32,
        /// Remote GID.
        32 => pub remote_gid: [u8; 16],
    }
}

impl AddressVector {
    /// Bit of `extended_qpn`: the vector has 48 bytes, not just the first 16
    /// (`MLX5_EXTENDED_UD_AV`).
    pub const EXTENDED: u32 = 1 << 31;
    /// Bit of `grh_gid_flow`: the packet has a global routing header (InfiniBand).
    pub const GRH: u32 = 1 << 30;
    /// Size of the short form (`mlx5_base_av`), without `EXTENDED`.
    pub const BASE_SIZE: usize = 16;

    /// This address for one UD message.
    #[inline(always)]
    #[must_use]
    pub const fn for_datagram(mut self, remote_qpn: u32, remote_qkey: u32) -> Self {
        self.key = U64::new((remote_qkey as u64) << 32);
        self.extended_qpn = U32::new(Self::EXTENDED | remote_qpn & 0xff_ffff);
        self
    }

    /// This address for one DC message: the target's number and its access key.
    #[inline(always)]
    #[must_use]
    pub const fn for_dc(mut self, dct_number: u32, access_key: u64) -> Self {
        self.key = U64::new(access_key);
        self.extended_qpn = U32::new(Self::EXTENDED | dct_number & 0xff_ffff);
        self
    }

    /// The remote QP or DCT number.
    #[inline(always)]
    pub const fn remote_qpn(&self) -> u32 {
        self.extended_qpn.get() & 0xff_ffff
    }

    /// Whether the vector has all 48 bytes.
    #[inline(always)]
    pub const fn is_extended(&self) -> bool {
        self.extended_qpn.get() & Self::EXTENDED != 0
    }

    /// The Q_Key (UD).
    #[inline(always)]
    pub const fn qkey(&self) -> u32 {
        (self.key.get() >> 32) as u32
    }

    /// The index of the source GID.
    #[inline(always)]
    pub const fn source_gid_index(&self) -> u8 {
        (self.grh_gid_flow.get() >> 20) as u8
    }

    /// The flow label.
    #[inline(always)]
    pub const fn flow_label(&self) -> u32 {
        self.grh_gid_flow.get() & 0xf_ffff
    }

    /// Whether the packet gets a global routing header.
    #[inline(always)]
    pub const fn has_grh(&self) -> bool {
        self.grh_gid_flow.get() & Self::GRH != 0
    }
}

wire! {
    /// Identifies the remote shared receive queue of an XRC message.
    pub struct XrcSegment: 16 {
        /// Number of the remote XRC SRQ.
        0 => pub srqn: U32,
        /// Reserved.
        4 => pub reserved4: [u8; 12],
    }
}

impl XrcSegment {
    /// A message to the XRC SRQ with this number.
    #[inline(always)]
    pub const fn new(srqn: u32) -> Self {
        Self { srqn: U32::new(srqn), reserved4: [0; 12] }
    }
}
