//! Source and destination of a packet.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A global identifier: 16 bytes in network order, the layout of an IPv6 address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The RoCEv2 GID of an IPv4 address: `::ffff:a.b.c.d`.
    pub fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The IPv4 address of a RoCEv2 GID, if it is one.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The link-local GID of an interface: `fe80::/64` and its 8-byte interface identifier.
    pub fn link_local(interface: [u8; 8]) -> Self {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[0xfe, 0x80]);
        bytes[8..].copy_from_slice(&interface);
        Self(bytes)
    }

    /// Whether it names a multicast group: `ff00::/8`, or a mapped IPv4 address of 224.0.0.0/4.
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.to_ipv4().is_some_and(|v4| v4.is_multicast())
    }

    /// Whether it is of `fe80::/64` (`rdma_link_local_addr` in include/rdma/ib_addr.h).
    pub fn is_link_local(self) -> bool {
        self.0[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
    }

    /// Whether all bytes are zero, the GID of an unused table entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

/// The addressing of one packet, independent of the link.
///
/// On RoCE there is always a global route (`global` true) and the LIDs are 0. On InfiniBand the
/// LIDs determine the route, and the GIDs are used only if `global` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addressing {
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID, or a multicast group's.
    pub destination: Gid,
    /// The sender's LID; 0 on RoCE.
    pub source_lid: u16,
    /// The receiver's LID, or a multicast LID (0xc000..=0xfffe); 0 on RoCE.
    pub destination_lid: u16,
    /// Whether the packet has a global route header (RoCE: always).
    pub global: bool,
    /// Service level, 0..=15.
    pub service_level: u8,
    /// Traffic class; IPv4's type of service.
    pub traffic_class: u8,
    /// Hop limit; IPv4's time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits. Not carried over IPv4, where the UDP source port replaces it.
    pub flow_label: u32,
    /// The receiver's MAC address as the sender's driver resolved it. Used by wires that carry
    /// Ethernet frames; all zero if the driver gave none, and on arrival.
    pub destination_mac: [u8; 6],
    /// The UDP source port that the sender's driver chose; 0 for the one that follows from the flow
    /// label ([`Addressing::source_port`]), and on arrival.
    pub udp_source_port: u16,
}

impl Addressing {
    /// RoCE addressing between two GIDs with hop limit 64.
    pub fn roce(source: Gid, destination: Gid) -> Self {
        Self { source, destination, global: true, hop_limit: 64, ..Self::default() }
    }

    /// Whether the packet is for a multicast group. The wire then gets one copy, and the sending
    /// device itself delivers to its own members of the group.
    pub fn is_multicast(&self) -> bool {
        self.global && self.destination.is_multicast()
    }

    /// The UDP source port of the packet's RoCE v2 frame: the driver's choice, else the one that
    /// Linux derives from the flow label (`rdma_flow_label_to_udp_sport` in
    /// include/rdma/ib_verbs.h).
    pub fn source_port(&self) -> u16 {
        let label = self.flow_label & 0xf_ffff;
        match self.udp_source_port {
            0 => (label & 0x3fff ^ label >> 14) as u16 | 0xc000,
            port => port,
        }
    }

    /// The addressing of an answer: source and destination exchanged.
    pub fn reply(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_lid: self.destination_lid,
            destination_lid: self.source_lid,
            destination_mac: [0; 6],
            udp_source_port: 0,
            ..self
        }
    }
}
