//! The routing header that the device writes before the payload of a datagram.

/// Protocol number of UDP, and that of an InfiniBand transport header (specification 8.3.3).
const UDP: u8 = 17;
const INFINIBAND: u8 = 0x1b;

/// The content of a datagram's routing header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingHeader {
    /// The GID of the sender; the mapped form of an IPv4 address.
    pub source: [u8; 16],
    /// The GID of the receiver.
    pub destination: [u8; 16],
    /// The flow label; 0 for IPv4.
    pub flow_label: u32,
    /// The traffic class, or the type of service.
    pub traffic_class: u8,
    /// The hop limit or the time to live of the packet on arrival.
    pub hop_limit: u8,
    /// Whether the packet is one of RoCE v2.
    pub is_udp: bool,
}

impl RoutingHeader {
    /// Bytes in front of the payload.
    pub const BYTES: usize = 40;

    /// Reads the header: a GRH, which looks like an IPv6 header, or an IPv4 header in the last 20
    /// bytes. `None` if it is neither, or has another protocol.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        if Self::is_ipv4(bytes) {
            let [source, destination] = [32, 36].map(|at| mapped(bytes, at));
            return Some(Self {
                source,
                destination,
                flow_label: 0,
                traffic_class: bytes[21],
                hop_limit: bytes[28],
                is_udp: true,
            });
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if word >> 28 != 6 || !matches!(bytes[6], UDP | INFINIBAND) {
            return None;
        }
        Some(Self {
            source: gid(bytes, 8),
            destination: gid(bytes, 24),
            flow_label: word & 0xf_ffff,
            traffic_class: (word >> 20) as u8,
            hop_limit: bytes[7],
            is_udp: bytes[6] == UDP,
        })
    }

    /// Whether the last 20 bytes are an IPv4 header. The first 20 bytes are then undefined and may
    /// look like the start of a GRH, so the checksum decides, as in libibverbs
    /// (`get_grh_header_version`).
    pub fn is_ipv4(bytes: &[u8; Self::BYTES]) -> bool {
        if bytes[0] >> 4 != 6 {
            return bytes[20] >> 4 == 4;
        }
        bytes[20] == 0x45 && sum(&bytes[20..]) == 0xffff
    }
}

fn gid(bytes: &[u8; RoutingHeader::BYTES], at: usize) -> [u8; 16] {
    core::array::from_fn(|place| bytes[at + place])
}

/// The mapped form of an IPv4 address.
fn mapped(bytes: &[u8; RoutingHeader::BYTES], at: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[10], gid[11]) = (0xff, 0xff);
    gid[12..].copy_from_slice(&bytes[at..at + 4]);
    gid
}

/// The one's complement sum of 16-bit words.
fn sum(header: &[u8]) -> u32 {
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an IPv4 packet from 10.0.0.1 to 10.0.0.2 with a type of service.
    fn ipv4() -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[20..].copy_from_slice(&[
            0x45, 0x68, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        let checksum = !(sum(&bytes[20..]) as u16);
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn grh(protocol: u8) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&0x6680_1234_u32.to_be_bytes());
        (bytes[6], bytes[7], bytes[8], bytes[24]) = (protocol, 9, 0xfe, 0xfd);
        bytes
    }

    #[test]
    fn an_ipv4_header_tells_nothing_but_its_own() {
        let header = RoutingHeader::parse(&ipv4()).expect("an IPv4 header");
        assert_eq!(header.source[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(header.destination[12..], [10, 0, 0, 2]);
        assert_eq!((header.flow_label, header.traffic_class, header.is_udp), (0, 0x68, true));
        assert_eq!(header.hop_limit, 64);
        // The bytes before it are undefined.
        for first in 0..=255 {
            let mut bytes = ipv4();
            bytes[..20].fill(first);
            assert_eq!(RoutingHeader::parse(&bytes), Some(header), "{first:#x}");
        }
    }

    #[test]
    fn a_grh_tells_the_version_of_roce() {
        for (protocol, is_udp) in [(UDP, true), (INFINIBAND, false)] {
            let header = RoutingHeader::parse(&grh(protocol)).expect("a GRH");
            assert_eq!((header.source[0], header.destination[0]), (0xfe, 0xfd));
            assert_eq!((header.flow_label, header.traffic_class), (0x1234, 0x68));
            assert_eq!((header.hop_limit, header.is_udp), (9, is_udp));
        }
        // A GRH with an address that begins like an IPv4 header, but is without a correct checksum.
        let mut bytes = grh(UDP);
        bytes[20..24].copy_from_slice(&[0x45, 0x68, 0, 60]);
        assert_eq!(RoutingHeader::parse(&bytes).map(|header| header.source[0]), Some(0xfe));
    }

    #[test]
    fn other_bytes_are_no_routing_header() {
        for bytes in [[0; 40], [0xff; 40], grh(6)] {
            assert_eq!(RoutingHeader::parse(&bytes), None);
        }
    }
}
