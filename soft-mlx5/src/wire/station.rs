//! The addresses of devices on the loopback network.

use std::fmt;
use std::net::Ipv4Addr;

use crate::packet::{Addressing, Gid};

/// The link layer of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Link {
    /// RoCE: packets are routed by GID.
    #[default]
    Ethernet,
    /// InfiniBand: packets are routed by LID, the GIDs only count with a global route header.
    InfiniBand,
}

/// A device's address on the loopback network: an IPv4 address of 127.0.0.0/8. All its other
/// addresses are derived from this one, so no directory is needed to translate between them.
///
/// | name | made of 127.x.y.z |
/// |---|---|
/// | RoCEv2 GID | `::ffff:127.x.y.z` |
/// | MAC | `02:00:7f:x:y:z` |
/// | GUID, interface identifier | EUI-64 of that MAC: `0000:7fff:fexx:yyzz` |
/// | link-local GID, InfiniBand GID | `fe80::` and the GUID |
/// | LID | `y.z` as 16 bits, for stations of 127.18.0.0/16 |
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Station(Ipv4Addr);

/// The network from which devices choose their stations, and the only one with LIDs.
const NETWORK: [u8; 2] = [127, 18];

/// Highest third byte of a station: LIDs from 0xc000 on are multicast.
const MAX_THIRD: u32 = 0xbf;

impl Station {
    /// Number of different stations of [`Station::candidate`].
    pub const CANDIDATES: u32 = (MAX_THIRD + 1) * 254;

    /// The station of a loopback address; `None` outside 127.0.0.0/8.
    pub fn new(address: Ipv4Addr) -> Option<Self> {
        address.is_loopback().then_some(Self(address))
    }

    /// The `n`th station (modulo their number) of 127.18.0.0/16 without .0 and .255 in the last
    /// byte.
    pub fn candidate(n: u32) -> Self {
        let n = n % Self::CANDIDATES;
        Self(Ipv4Addr::new(NETWORK[0], NETWORK[1], (n / 254) as u8, (n % 254 + 1) as u8))
    }

    /// The IPv4 address.
    pub fn address(self) -> Ipv4Addr {
        self.0
    }

    /// The MAC address of the Ethernet port.
    pub fn mac(self) -> [u8; 6] {
        let [a, b, c, d] = self.0.octets();
        [0x02, 0x00, a, b, c, d]
    }

    /// The globally unique identifier of device and port, in network order.
    pub fn guid(self) -> [u8; 8] {
        let [a, b, c, d] = self.0.octets();
        [0x00, 0x00, a, 0xff, 0xfe, b, c, d]
    }

    /// The RoCEv2 GID of the IPv4 address.
    pub fn gid(self) -> Gid {
        Gid::from_ipv4(self.0)
    }

    /// The link-local GID; on InfiniBand the port's only one.
    pub fn link_local_gid(self) -> Gid {
        Gid::link_local(self.guid())
    }

    /// The LID on an InfiniBand link; `None` outside 127.18.0.0/16.
    pub fn lid(self) -> Option<u16> {
        let [a, b, c, d] = self.0.octets();
        ([a, b] == NETWORK).then(|| u16::from_be_bytes([c, d]))
    }

    /// The station that a unicast LID names.
    pub fn from_lid(lid: u16) -> Option<Self> {
        let [c, d] = lid.to_be_bytes();
        (lid != 0 && u32::from(c) <= MAX_THIRD)
            .then(|| Self(Ipv4Addr::new(NETWORK[0], NETWORK[1], c, d)))
    }

    /// The station that a GID names: a mapped loopback address or the link-local GID of one.
    pub fn from_gid(gid: Gid) -> Option<Self> {
        if let Some(v4) = gid.to_ipv4() {
            return Self::new(v4);
        }
        let [.., a, _, _, b, c, d] = gid.0;
        Self::new(Ipv4Addr::new(a, b, c, d)).filter(|station| station.link_local_gid() == gid)
    }

    /// The source GID in packets of the device that has `gid`: the station's IPv4 GID.
    pub fn gid_on_wire(gid: Gid) -> Gid {
        Self::from_gid(gid).map_or(gid, Self::gid)
    }

    /// The destination station of a unicast packet: by its LID if there is one, else by its GID.
    pub fn destination(route: &Addressing) -> Option<Self> {
        match route.destination_lid {
            0 => Self::from_gid(route.destination),
            lid => Self::from_lid(lid),
        }
    }

    /// The station that sent a packet.
    pub(super) fn source(route: &Addressing) -> Option<Self> {
        match route.source_lid {
            0 => Self::from_gid(route.source),
            lid => Self::from_lid(lid),
        }
    }

    /// The addressing of a packet that arrived at this station over IPv4 from `source`.
    ///
    /// RoCE: both GIDs are mapped IPv4 addresses, as in the packet's own IP header. InfiniBand:
    /// LIDs and GIDs of both stations; time to live 1 means that there was no global route header
    /// (such a packet cannot leave its subnet), and then the type of service holds the service
    /// level.
    pub(super) fn arrival(self, source: Self, link: Link, class: u8, hop_limit: u8) -> Addressing {
        match link {
            Link::Ethernet => Addressing {
                traffic_class: class,
                hop_limit,
                ..Addressing::roce(source.gid(), self.gid())
            },
            Link::InfiniBand => self.infiniband_arrival(source, class, hop_limit),
        }
    }

    fn infiniband_arrival(self, source: Self, class: u8, hop_limit: u8) -> Addressing {
        let global = hop_limit > 1;
        Addressing {
            source: source.link_local_gid(),
            destination: self.link_local_gid(),
            source_lid: source.lid().unwrap_or(0),
            destination_lid: self.lid().unwrap_or(0),
            global,
            service_level: if global { 0 } else { class >> 4 },
            traffic_class: if global { class } else { 0 },
            hop_limit: if global { hop_limit } else { 0 },
            ..Addressing::default()
        }
    }
}

/// Type of service and time to live that encode a packet's addressing on IPv4; the reverse of
/// [`Station::arrival`].
pub(super) fn class_and_ttl(route: &Addressing) -> (u8, u8) {
    if route.destination_lid == 0 {
        (route.traffic_class, route.hop_limit.max(1))
    } else if route.global {
        (route.traffic_class, route.hop_limit.max(2))
    } else {
        (route.service_level << 4, 1)
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
