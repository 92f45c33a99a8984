//! Ethernet frames: where their headers are, checksums, segmentation.
//!
//! A frame begins with the destination MAC address and has no frame check sequence.

use uverbs_mlx5_format::{CqeChecksum, CqeHeaderTypes, EthChecksum, L3Type, L4Type};

/// Ethernet header without a tag.
pub(super) const HEADER: usize = 14;
/// A VLAN tag.
const TAG: usize = 4;
/// The length to which a port pads short frames (IEEE 802.3 3.2.8, without the check sequence).
const SHORTEST: usize = 60;
/// The longest frame: the largest MTU of an mlx5 network device (9978), Ethernet header and tag.
pub(super) const LONGEST: usize = 9978 + HEADER + TAG;

const ETHERTYPE: usize = 12;
const CUSTOMER_TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HEADER: usize = 40;
const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;
const TCP_ACK: u8 = 0x10;

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}

fn put16(frame: &mut [u8], at: usize, value: u16) {
    if let Some(bytes) = frame.get_mut(at..at + 2) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}

/// Where a frame's headers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Control information of the outermost VLAN tag.
    pub vlan: Option<u16>,
    /// The type after all tags.
    pub ether_type: u16,
    /// Offset of the first byte after the Ethernet header and its tags.
    pub network: usize,
    /// Version of the IP header there: 4, 6, or 0 for none.
    pub ip_version: u8,
    /// The protocol that the IP header names.
    pub protocol: u8,
    /// Offset of the transport header; `None` in later fragments and without IP.
    pub transport: Option<usize>,
    /// End of the IP packet; the rest is padding.
    pub end: usize,
}

impl Layout {
    /// Finds the headers. A frame that ends early has only those that fit.
    pub fn of(frame: &[u8]) -> Self {
        let mut layout = Self { end: frame.len(), ..Self::default() };
        let mut at = ETHERTYPE;
        layout.ether_type = be16(frame, at).unwrap_or(0);
        while matches!(layout.ether_type, CUSTOMER_TAG | SERVICE_TAG) {
            layout.vlan = layout.vlan.or(be16(frame, at + 2));
            at += TAG;
            layout.ether_type = be16(frame, at).unwrap_or(0);
        }
        layout.network = at + 2;
        match layout.ether_type {
            IPV4 => layout.find_ipv4(frame),
            IPV6 => layout.find_ipv6(frame),
            _ => {}
        }
        layout
    }

    fn find_ipv4(&mut self, frame: &[u8]) {
        let header = frame.get(self.network..).unwrap_or_default();
        let Some(&first) = header.first() else { return };
        let size = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || size < 20 || header.len() < size {
            return;
        }
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        self.ip_version = 4;
        self.protocol = header[9];
        self.end = (self.network + total.max(size)).min(frame.len());
        self.transport = (fragment == 0).then_some(self.network + size);
    }

    /// Does not follow extension headers.
    fn find_ipv6(&mut self, frame: &[u8]) {
        let header = frame.get(self.network..).unwrap_or_default();
        if header.len() < IPV6_HEADER || header[0] >> 4 != 6 {
            return;
        }
        let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
        self.ip_version = 6;
        self.protocol = header[6];
        self.transport = Some(self.network + IPV6_HEADER);
        self.end = (self.network + IPV6_HEADER + payload).min(frame.len());
    }

    /// Offset of the transport header, if it is a complete TCP or UDP header.
    pub fn ports(&self, frame: &[u8]) -> Option<usize> {
        let at = self.transport?;
        let size = match self.protocol {
            TCP => 20,
            UDP => 8,
            _ => return None,
        };
        (at + size <= self.end.min(frame.len())).then_some(at)
    }

    /// Offset of the transport checksum.
    fn transport_checksum(&self, frame: &[u8]) -> Option<usize> {
        self.ports(frame).map(|at| at + if self.protocol == TCP { 16 } else { 6 })
    }

    /// The sum over transport header, payload and pseudo header.
    fn transport_sum(&self, frame: &[u8]) -> u16 {
        let Some(at) = self.transport else { return 0 };
        let addresses = match self.ip_version {
            4 => self.network + 12..self.network + 20,
            _ => self.network + 8..self.network + 40,
        };
        let body = frame.get(at..self.end).unwrap_or_default();
        let pseudo = sum(frame.get(addresses).unwrap_or_default());
        fold(pseudo + u64::from(self.protocol) + body.len() as u64 + sum(body))
    }

    fn ip_header<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = self.transport.unwrap_or(self.network + 20);
        frame.get(self.network..end).unwrap_or_default()
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum()
}

/// The ones' complement sum (RFC 1071).
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The Internet checksum of a header whose checksum field is zero (RFC 1071).
pub(super) fn checksum(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// Computes the checksums that a WQE asks for.
pub(super) fn fill_checksums(frame: &mut [u8], flags: EthChecksum) {
    let layout = Layout::of(frame);
    if flags.contains(EthChecksum::L3) && layout.ip_version == 4 {
        put16(frame, layout.network + 10, 0);
        let value = checksum(layout.ip_header(frame));
        put16(frame, layout.network + 10, value);
    }
    let Some(at) = layout.transport_checksum(frame) else { return };
    if flags.contains(EthChecksum::L4) {
        put16(frame, at, 0);
        // A UDP checksum of 0 would mean "none" (RFC 768).
        let value = match !layout.transport_sum(frame) {
            0 if layout.protocol == UDP => 0xffff,
            value => value,
        };
        put16(frame, at, value);
    }
}

/// Inserts a VLAN tag after the addresses. A frame that ends before them is padded.
pub(super) fn insert_tag(frame: &mut Vec<u8>, service: bool, control: u16) {
    frame.resize(frame.len().max(ETHERTYPE), 0);
    let [a, b] = if service { SERVICE_TAG } else { CUSTOMER_TAG }.to_be_bytes();
    let [c, d] = control.to_be_bytes();
    frame.splice(ETHERTYPE..ETHERTYPE, [a, b, c, d]);
}

/// The frame without its customer tag, and the tag's control information.
pub(super) fn strip_tag(frame: &[u8]) -> Option<(Vec<u8>, u16)> {
    if be16(frame, ETHERTYPE)? != CUSTOMER_TAG {
        return None;
    }
    let control = be16(frame, ETHERTYPE + 2)?;
    Some(([&frame[..ETHERTYPE], &frame[ETHERTYPE + TAG..]].concat(), control))
}

/// Pads a short frame.
pub(super) fn pad(frame: &mut Vec<u8>) {
    frame.resize(frame.len().max(SHORTEST), 0);
}

/// The frame check sequence, in the order in which it follows a frame (IEEE 802.3 3.2.9).
pub(super) fn check_sequence(frame: &[u8]) -> [u8; 4] {
    crc32fast::hash(frame).to_le_bytes()
}

/// Turns a copy of a large send's headers into those of one segment: lengths, identification,
/// sequence number, flags. `offset` is the segment's offset in the whole payload.
pub(super) fn cut_segment(frame: &mut [u8], index: u16, offset: u32, last: bool) {
    let layout = Layout::of(frame);
    let length = frame.len() - layout.network.min(frame.len());
    match layout.ip_version {
        4 => {
            let identification = be16(frame, layout.network + 4).unwrap_or(0);
            put16(frame, layout.network + 2, length as u16);
            put16(frame, layout.network + 4, identification.wrapping_add(index));
        }
        6 => put16(frame, layout.network + 4, length.saturating_sub(IPV6_HEADER) as u16),
        _ => return,
    }
    // The new lengths decide where the transport header ends, so the layout is read again.
    match (layout.protocol, Layout::of(frame).ports(frame)) {
        (TCP, Some(at)) => cut_tcp(&mut frame[at..], offset, last),
        (UDP, Some(at)) => {
            let length = (frame.len() - at) as u16;
            put16(frame, at + 4, length);
        }
        _ => {}
    }
}

fn cut_tcp(header: &mut [u8], offset: u32, last: bool) {
    let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    header[4..8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
    if !last {
        header[13] &= !TCP_FIN_PSH;
    }
    if offset != 0 {
        header[13] &= !TCP_CWR;
    }
}

/// The properties of a received frame that its CQE reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) checks: CqeChecksum,
    pub(super) l3: L3Type,
    pub(super) l4: L4Type,
    /// The sum of everything after the Ethernet header and its tags (`check_sum` of the CQE).
    pub(super) checksum: u16,
}

impl Findings {
    pub(super) fn of(frame: &[u8]) -> Self {
        let layout = Layout::of(frame);
        let mut checks = CqeChecksum::L2_OK;
        let l3 = match layout.ip_version {
            4 => L3Type::IPV4,
            6 => L3Type::IPV6,
            _ => L3Type::NONE,
        };
        let header_ok = l3 == L3Type::IPV6
            || l3 == L3Type::IPV4 && fold(sum(layout.ip_header(frame))) == 0xffff;
        if header_ok {
            checks |= CqeChecksum::L3_OK;
        }
        if transport_ok(&layout, frame) {
            checks |= CqeChecksum::L4_OK;
        }
        let rest = frame.get(layout.network..).unwrap_or_default();
        Self {
            checks: CqeChecksum(checks),
            l3,
            l4: l4_type(&layout, frame),
            checksum: fold(sum(rest)),
        }
    }

    pub(super) fn header_types(&self, stripped: bool) -> CqeHeaderTypes {
        CqeHeaderTypes::new(self.l3, self.l4, stripped)
    }
}

fn transport_ok(layout: &Layout, frame: &[u8]) -> bool {
    let Some(at) = layout.transport_checksum(frame) else { return false };
    let none = layout.protocol == UDP && layout.ip_version == 4 && be16(frame, at) == Some(0);
    none || layout.transport_sum(frame) == 0xffff
}

fn l4_type(layout: &Layout, frame: &[u8]) -> L4Type {
    let Some(at) = layout.ports(frame) else { return L4Type::NONE };
    if layout.protocol == UDP {
        return L4Type::UDP;
    }
    let has_data = at + usize::from(frame[at + 12] >> 4) * 4 < layout.end;
    match (frame[at + 13] & TCP_ACK != 0, has_data) {
        (false, _) => L4Type::TCP_NO_ACK,
        (true, false) => L4Type::TCP_ACK_NO_DATA,
        (true, true) => L4Type::TCP_ACK_AND_DATA,
    }
}
