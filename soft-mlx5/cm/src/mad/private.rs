//! The header that rdma_cm puts in front of the private data of REQ and SIDR_REQ (IBTA annex A11,
//! `struct cma_hdr` of `drivers/infiniband/core/cma_priv.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::big_endian::U16;

/// IP version of the addresses in a [`CmaHdr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// In the last 4 bytes of each address, zeros before.
    V4,
    /// In all 16 bytes.
    V6,
}

uverbs_soft_packet::wire_struct! {
    /// Source and destination address of a request, 36 bytes. The service id contains the
    /// destination's port.
    pub struct CmaHdr {
        version: u8,
        ip_version_byte: u8,
        /// The sender's port.
        pub port: U16,
        source: [u8; 16],
        destination: [u8; 16],
    }
}

const _: () = assert!(size_of::<CmaHdr>() == 36);

impl CmaHdr {
    const VERSION: u8 = 0;

    /// A header with these addresses; `None` unless both have the same version.
    pub fn new(source: IpAddr, port: u16, destination: IpAddr) -> Option<Self> {
        let version = match (source, destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 4,
            (IpAddr::V6(_), IpAddr::V6(_)) => 6,
            _ => return None,
        };
        Some(Self {
            version: Self::VERSION,
            ip_version_byte: version << 4,
            port: port.into(),
            source: to_field(source),
            destination: to_field(destination),
        })
    }

    /// IP version of both addresses; `None` if the bytes are not a header but the private data of a
    /// request between InfiniBand addresses.
    pub fn ip_version(&self) -> Option<IpVersion> {
        match (self.version, self.ip_version_byte >> 4) {
            (Self::VERSION, 4) => Some(IpVersion::V4),
            (Self::VERSION, 6) => Some(IpVersion::V6),
            _ => None,
        }
    }

    /// The sender's address.
    pub fn source(&self) -> Option<IpAddr> {
        Some(from_field(self.ip_version()?, self.source))
    }

    /// The receiver's address.
    pub fn destination(&self) -> Option<IpAddr> {
        Some(from_field(self.ip_version()?, self.destination))
    }
}

fn to_field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn from_field(version: IpVersion, field: [u8; 16]) -> IpAddr {
    match version {
        IpVersion::V4 => Ipv4Addr::from_bits(u128::from_be_bytes(field) as u32).into(),
        IpVersion::V6 => Ipv6Addr::from(field).into(),
    }
}
