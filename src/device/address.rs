//! Addresses of ports and queue pairs: GIDs, LIDs, MTUs, address vectors.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A 128-bit global identifier of a port; on RoCE v2 it is an IP address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID, which no port has.
    pub const ZERO: Self = Self([0; 16]);

    /// Whether all bits are zero: an empty entry of a GID table.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// The IPv4 address in a RoCE v2 GID of the form `::ffff:a.b.c.d`.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it is link-local (`fe80::/10`), that is, not routable.
    pub fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether it is a multicast GID (`ff00::/8`).
    pub fn is_multicast(&self) -> bool {
        self.0[0] == 0xff
    }

    /// The upper half: subnet prefix.
    pub fn prefix(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half: the port's GUID on InfiniBand.
    pub fn interface_id(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    /// Reads the notation of an IPv6 address, with or without shortening.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(Self::from)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

/// Path MTU, with the numbers of `enum ibv_mtu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Payload bytes per packet.
    pub fn bytes(self) -> usize {
        128 << self as u8
    }

    /// From the verbs encoding, 1 to 5.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }
}

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: ports have LIDs.
    InfiniBand,
    /// Ethernet (RoCE): ports have GIDs only.
    Ethernet,
    /// The device does not report it.
    Unspecified,
}

impl LinkLayer {
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            1 => Self::InfiniBand,
            2 => Self::Ethernet,
            _ => Self::Unspecified,
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unspecified => "unspecified",
        })
    }
}

/// The kind of a GID, which decides the packet headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GidKind {
    /// An InfiniBand GID.
    InfiniBand,
    /// RoCE v1: Ethernet only, not routable.
    RoceV1,
    /// RoCE v2: UDP over IP.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// The global part of an [`AddressVector`], which RoCE always needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GlobalRoute {
    /// GID of the remote port, or a multicast GID.
    pub destination: Gid,
    /// Index of the local GID in the port's table.
    pub source_index: u8,
    /// Flow label, 20 bits. RoCE v2 derives the UDP source port from it; if it is 0, Linux uses
    /// both QP numbers of a connected queue pair.
    pub flow_label: u32,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service (DSCP and ECN).
    pub traffic_class: u8,
}

/// The address of a remote port (`struct ibv_ah_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddressVector {
    /// The local port, from 1.
    pub port: u8,
    /// LID of the remote port; 0 on RoCE.
    pub lid: u16,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Low bits of the source LID, if the port has several.
    pub source_path_bits: u8,
    /// Static rate, with the numbers of `enum ibv_rate`; 0 is the port's rate.
    pub static_rate: u8,
    /// The global route; `None` only within one InfiniBand subnet.
    pub global: Option<GlobalRoute>,
}

#[cfg(test)]
mod tests;
