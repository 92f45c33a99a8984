//! RoCEv2 framing: Ethernet, IPv4 or IPv6, UDP to port 4791, and the invariant CRC (annex A17.3
//! "RoCEv2 Packet Format").

use std::net::{Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Addressing, Bth, Gid, Packet, PacketError, identification};

/// The UDP destination port that IANA assigned to RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Bytes of the invariant CRC after every packet.
pub const ICRC_LEN: usize = 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

wire_struct! {
    /// Ethernet header without VLAN tag.
    struct Ethernet {
        destination: [u8; 6],
        source: [u8; 6],
        ethertype: U16,
    }
}

wire_struct! {
    struct Ipv4 {
        version_ihl: u8,
        type_of_service: u8,
        total_length: U16,
        identification: U16,
        fragment: U16,
        time_to_live: u8,
        protocol: u8,
        checksum: U16,
        source: [u8; 4],
        destination: [u8; 4],
    }
}

wire_struct! {
    struct Ipv6 {
        version_class_flow: U32,
        payload_length: U16,
        next_header: u8,
        hop_limit: u8,
        source: [u8; 16],
        destination: [u8; 16],
    }
}

wire_struct! {
    struct Udp {
        source_port: U16,
        destination_port: U16,
        length: U16,
        checksum: U16,
    }
}

/// Fields of the sender's IPv4 and UDP headers that the CRC covers and [`Addressing`] does not
/// have.
///
/// The Linux UDP socket of the loopback wire sends identification 0 with "don't fragment" set
/// (`ip_select_ident_segs` in `include/net/ip.h`: no identification for an unconnected socket whose
/// packets may not be fragmented), and port 4791, to which it is bound, as source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// UDP source port. A NIC derives it from the flow (0xc000..=0xffff); a socket uses its own
    /// port.
    pub source_port: u16,
    /// IPv4 identification.
    pub identification: u16,
    /// IPv4 "don't fragment".
    pub dont_fragment: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self { source_port: UDP_PORT, identification: 0, dont_fragment: true }
    }
}

impl Framing {
    /// The framing of a NIC that sends to this address.
    pub fn of(route: &Addressing) -> Self {
        Self { source_port: route.source_port(), ..Self::default() }
    }
}

fn udp_len(packet: &[u8]) -> u16 {
    (size_of::<Udp>() + packet.len() + ICRC_LEN) as u16
}

fn udp(packet: &[u8], framing: Framing) -> Udp {
    Udp {
        source_port: framing.source_port.into(),
        destination_port: UDP_PORT.into(),
        length: udp_len(packet).into(),
        checksum: 0.into(),
    }
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, packet: &[u8], framing: Framing) -> Ipv4 {
    Ipv4 {
        version_ihl: 0x45,
        type_of_service: 0,
        total_length: (size_of::<Ipv4>() as u16 + udp_len(packet)).into(),
        identification: framing.identification.into(),
        fragment: if framing.dont_fragment { DONT_FRAGMENT } else { 0 }.into(),
        time_to_live: 0,
        protocol: PROTOCOL_UDP,
        checksum: 0.into(),
        source: source.octets(),
        destination: destination.octets(),
    }
}

/// The CRC-32 that an IPv4 frame of these transport bytes carries (annex A17.3.3 "RoCEv2 ICRC").
///
/// Covered: 8 bytes of ones instead of the local route header, IP header, UDP header,
/// transport bytes. Replaced by ones because they change on the way: type of service, time to
/// live and header checksum of IPv4, the UDP checksum, and the congestion byte of the base
/// transport header.
pub fn icrc_v4(source: Ipv4Addr, destination: Ipv4Addr, packet: &[u8], framing: Framing) -> u32 {
    let masked = Ipv4 {
        type_of_service: 0xff,
        time_to_live: 0xff,
        checksum: 0xffff.into(),
        ..ipv4(source, destination, packet, framing)
    };
    icrc(masked.as_bytes(), packet, framing)
}

/// The framing for which `found` is the CRC of an IPv4 frame of these transport bytes: `guess`, or
/// one with the same source port and any identification and "don't fragment"; `None` if the CRC is
/// wrong for all of them.
pub fn explain_icrc_v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    packet: &[u8],
    guess: Framing,
    found: u32,
) -> Option<Framing> {
    let expected = icrc_v4(source, destination, packet, guess);
    if expected == found {
        return Some(guess);
    }
    identification::explain(expected, found, packet.len(), guess)
}

/// As [`icrc_v4`], for IPv6: traffic class, flow label and hop limit are replaced by ones.
pub fn icrc_v6(source: Ipv6Addr, destination: Ipv6Addr, packet: &[u8], framing: Framing) -> u32 {
    let masked = Ipv6 {
        version_class_flow: 0x6fff_ffff.into(),
        payload_length: udp_len(packet).into(),
        next_header: PROTOCOL_UDP,
        hop_limit: 0xff,
        source: source.octets(),
        destination: destination.octets(),
    };
    icrc(masked.as_bytes(), packet, framing)
}

/// Offset in the base transport header of the byte with FECN, BECN and reserved bits ("Resv8a").
const CONGESTION_BYTE: usize = 4;

/// Bytes that the CRC covers before the payload at most: the local route header's, IPv6, UDP and
/// the base transport header.
const MAX_MASKED: usize = 8 + size_of::<Ipv6>() + size_of::<Udp>() + size_of::<Bth>();

/// The invariant CRC. The masked headers are copied into one array first, because a CRC over a few
/// bytes takes as long as one over many.
fn icrc(masked_ip: &[u8], packet: &[u8], framing: Framing) -> u32 {
    let masked_udp = Udp { checksum: 0xffff.into(), ..udp(packet, framing) };
    let (head, rest) = packet.split_at(size_of::<Bth>().min(packet.len()));
    let mut masked = [0xff; MAX_MASKED];
    let mut end = 8;
    for part in [masked_ip, masked_udp.as_bytes(), head] {
        masked[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    if let Some(byte) = masked[..end][end - head.len()..].get_mut(CONGESTION_BYTE) {
        *byte = 0xff;
    }
    let mut crc = Hasher::new();
    crc.update(&masked[..end]);
    crc.update(rest);
    crc.finalize()
}

/// Appends the frame of a packet from the IP header on: IPv4 if both GIDs are mapped IPv4
/// addresses, else IPv6.
///
/// The UDP checksum is 0 (none) over IPv4, as NICs send it. Over IPv6 it is computed, because RFC
/// 8200 requires it.
pub fn write_ip(packet: &Packet, framing: Framing, out: &mut Vec<u8>) {
    let route = &packet.addressing;
    match (route.source.to_ipv4(), route.destination.to_ipv4()) {
        (Some(source), Some(destination)) => {
            let crc = icrc_v4(source, destination, packet.bytes(), framing);
            let mut ip = ipv4(source, destination, packet.bytes(), framing);
            ip.type_of_service = route.traffic_class;
            ip.time_to_live = route.hop_limit;
            ip.checksum = checksum(&[ip.as_bytes()]).into();
            out.extend_from_slice(ip.as_bytes());
            write_udp(packet.bytes(), framing, crc, out);
        }
        _ => {
            let [source, destination] = [route.source, route.destination].map(|gid| gid.0.into());
            let crc = icrc_v6(source, destination, packet.bytes(), framing);
            out.extend_from_slice(ipv6(route, packet.bytes()).as_bytes());
            let start = out.len();
            write_udp(packet.bytes(), framing, crc, out);
            let sum = checksum_v6(route, &out[start..]);
            out[start + UDP_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Offset of the checksum in the UDP header.
const UDP_CHECKSUM: usize = 6;

fn write_udp(packet: &[u8], framing: Framing, crc: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(udp(packet, framing).as_bytes());
    out.extend_from_slice(packet);
    // The CRC is transmitted least significant byte first, like Ethernet's.
    out.extend_from_slice(&crc.to_le_bytes());
}

/// The checksum of a UDP datagram over IPv6, whose field is still 0 (RFC 8200 section 8.1).
fn checksum_v6(route: &Addressing, datagram: &[u8]) -> u16 {
    let [source, destination] = [&route.source.0[..], &route.destination.0[..]];
    let len = (datagram.len() as u16).to_be_bytes();
    match checksum(&[source, destination, &len, &[0, PROTOCOL_UDP], datagram]) {
        0 => 0xffff,
        sum => sum,
    }
}

fn ipv6(route: &Addressing, packet: &[u8]) -> Ipv6 {
    let class = u32::from(route.traffic_class) << 20;
    Ipv6 {
        version_class_flow: (6 << 28 | class | route.flow_label & 0xf_ffff).into(),
        payload_length: udp_len(packet).into(),
        next_header: PROTOCOL_UDP,
        hop_limit: route.hop_limit,
        source: route.source.0,
        destination: route.destination.0,
    }
}

/// The Internet checksum over parts of even length whose checksum field is 0 (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Appends the frame of a packet from the Ethernet header on.
pub fn write_ethernet(packet: &Packet, macs: [[u8; 6]; 2], framing: Framing, out: &mut Vec<u8>) {
    let v4 = packet.addressing.source.to_ipv4().is_some()
        && packet.addressing.destination.to_ipv4().is_some();
    let [source, destination] = macs;
    let ethertype = if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }.into();
    out.extend_from_slice(Ethernet { destination, source, ethertype }.as_bytes());
    write_ip(packet, framing, out);
}

/// Reads a frame that begins with the Ethernet header.
pub fn read_ethernet(frame: &[u8]) -> Result<Packet, PacketError> {
    let (ethernet, ip) = take::<Ethernet>(frame)?;
    match (ethernet.ethertype.get(), ip.first().map(|byte| byte >> 4)) {
        (ETHERTYPE_IPV4, Some(4)) | (ETHERTYPE_IPV6, Some(6)) => read_ip(ip),
        _ => Err(PacketError::NotRoceV2("Ethernet type and IP version")),
    }
}

/// Reads a frame that begins with the IP header, checks the CRC and removes it. Bytes after the IP
/// length (Ethernet's minimum frame) are ignored.
pub fn read_ip(frame: &[u8]) -> Result<Packet, PacketError> {
    match frame.first().map(|byte| byte >> 4) {
        Some(4) => read_ipv4(frame),
        Some(6) => read_ipv6(frame),
        _ => Err(PacketError::NotRoceV2("IP version")),
    }
}

fn read_ipv4(frame: &[u8]) -> Result<Packet, PacketError> {
    let (ip, _) = take::<Ipv4>(frame)?;
    if ip.version_ihl != 0x45 || ip.protocol != PROTOCOL_UDP {
        return Err(PacketError::NotRoceV2("IPv4 options or protocol"));
    }
    if ip.fragment.get() & 0x3fff != 0 {
        return Err(PacketError::NotRoceV2("fragmented"));
    }
    let datagram = bounded(frame, size_of::<Ipv4>(), usize::from(ip.total_length.get()))?;
    let (bytes, found, source_port) = read_udp(datagram)?;
    let framing = Framing {
        source_port,
        identification: ip.identification.get(),
        dont_fragment: ip.fragment.get() & DONT_FRAGMENT != 0,
    };
    let (source, destination) = (ip.source.into(), ip.destination.into());
    check(icrc_v4(source, destination, bytes, framing), found)?;
    let addressing = Addressing {
        traffic_class: ip.type_of_service,
        hop_limit: ip.time_to_live,
        ..Addressing::roce(Gid::from_ipv4(source), Gid::from_ipv4(destination))
    };
    Ok(Packet::from_bytes(addressing, bytes))
}

fn read_ipv6(frame: &[u8]) -> Result<Packet, PacketError> {
    let (ip, _) = take::<Ipv6>(frame)?;
    if ip.next_header != PROTOCOL_UDP {
        return Err(PacketError::NotRoceV2("IPv6 next header"));
    }
    let end = size_of::<Ipv6>() + usize::from(ip.payload_length.get());
    let (bytes, found, source_port) = read_udp(bounded(frame, size_of::<Ipv6>(), end)?)?;
    let framing = Framing { source_port, ..Framing::default() };
    check(icrc_v6(ip.source.into(), ip.destination.into(), bytes, framing), found)?;
    let bits = ip.version_class_flow.get();
    let addressing = Addressing {
        traffic_class: (bits >> 20) as u8,
        flow_label: bits & 0xf_ffff,
        hop_limit: ip.hop_limit,
        ..Addressing::roce(Gid(ip.source), Gid(ip.destination))
    };
    Ok(Packet::from_bytes(addressing, bytes))
}

/// The transport bytes, the CRC after them and the source port of a UDP datagram.
fn read_udp(datagram: &[u8]) -> Result<(&[u8], u32, u16), PacketError> {
    let (udp, _) = take::<Udp>(datagram)?;
    if udp.destination_port.get() != UDP_PORT {
        return Err(PacketError::NotRoceV2("UDP destination port"));
    }
    if usize::from(udp.length.get()) != datagram.len() {
        return Err(PacketError::NotRoceV2("UDP length"));
    }
    let (bytes, crc) = split_icrc(&datagram[size_of::<Udp>()..])?;
    Ok((bytes, crc, udp.source_port.get()))
}

/// Splits a UDP payload into transport bytes and the CRC after them.
pub fn split_icrc(payload: &[u8]) -> Result<(&[u8], u32), PacketError> {
    match payload.split_last_chunk::<ICRC_LEN>() {
        Some((bytes, crc)) => Ok((bytes, u32::from_le_bytes(*crc))),
        None => Err(PacketError::TooShort { have: payload.len(), need: ICRC_LEN }),
    }
}

/// Compares a computed CRC with the one found.
pub fn check(expected: u32, found: u32) -> Result<(), PacketError> {
    if expected == found { Ok(()) } else { Err(PacketError::BadIcrc { expected, found }) }
}

fn take<H>(bytes: &[u8]) -> Result<(&H, &[u8]), PacketError>
where
    H: FromBytes + KnownLayout + Immutable + Unaligned,
{
    H::ref_from_prefix(bytes)
        .map_err(|_| PacketError::TooShort { have: bytes.len(), need: size_of::<H>() })
}

fn bounded(frame: &[u8], start: usize, end: usize) -> Result<&[u8], PacketError> {
    frame.get(start..end).ok_or(PacketError::TooShort { have: frame.len(), need: end.max(start) })
}
