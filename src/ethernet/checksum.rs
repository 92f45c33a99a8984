//! Checksums of whole frames in software, for templates that are patched while the device computes
//! no checksums.

/// Computes the checksums of the IPv4 header and of the TCP or UDP packet in a frame. The frame
/// begins with the destination address and may have VLAN tags. Returns true if it has written the
/// TCP or UDP checksum: the packet must be complete, not a fragment, and without IPv6 extension
/// headers.
///
/// ```
/// use uverbs::ethernet::fill_checksums;
/// let mut frame = [0u8; 60];
/// frame[12..15].copy_from_slice(&[8, 0, 0x45]);
/// frame[16..18].copy_from_slice(&46u16.to_be_bytes());
/// frame[23] = 17;
/// frame[38..40].copy_from_slice(&26u16.to_be_bytes());
/// assert!(fill_checksums(&mut frame));
/// assert_ne!(frame[24..26], [0; 2]);
/// ```
pub fn fill_checksums(frame: &mut [u8]) -> bool {
    let Some((kind, network)) = network_header(frame) else { return false };
    match kind {
        IPV4 => fill_ipv4(frame, network).unwrap_or(false),
        IPV6 => fill_ipv6(frame, network).unwrap_or(false),
        _ => false,
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const CUSTOMER_TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HEADER: usize = 40;

/// The EtherType after all tags, and the offset of the header after it.
fn network_header(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    loop {
        match number(frame, at)? {
            CUSTOMER_TAG | SERVICE_TAG => at += 4,
            kind => return Some((kind, at + 2)),
        }
    }
}

fn fill_ipv4(frame: &mut [u8], at: usize) -> Option<bool> {
    let first = *frame.get(at)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    let end = at + usize::from(number(frame, at + 2)?);
    put(frame, at + 10, 0)?;
    let sum = !folded(words(frame.get(at..at + header)?));
    put(frame, at + 10, sum)?;
    // A fragment does not contain the whole packet.
    if number(frame, at + 6)? & 0x3fff != 0 {
        return None;
    }
    let (protocol, addresses) = (*frame.get(at + 9)?, words(frame.get(at + 12..at + 20)?));
    fill_transport(frame, protocol, addresses, at + header, end)
}

fn fill_ipv6(frame: &mut [u8], at: usize) -> Option<bool> {
    let end = at + IPV6_HEADER + usize::from(number(frame, at + 4)?);
    let (protocol, addresses) = (*frame.get(at + 6)?, words(frame.get(at + 8..at + 40)?));
    fill_transport(frame, protocol, addresses, at + IPV6_HEADER, end)
}

fn fill_transport(
    frame: &mut [u8],
    protocol: u8,
    addresses: u64,
    start: usize,
    end: usize,
) -> Option<bool> {
    let at = match protocol {
        TCP => start + 16,
        UDP => start + 6,
        _ => return None,
    };
    if at + 2 > end {
        return None;
    }
    frame.get(start..end)?;
    put(frame, at, 0)?;
    let packet = frame.get(start..end)?;
    let sum = addresses + u64::from(protocol) + packet.len() as u64 + words(packet);
    let sum = match !folded(sum) {
        // 0 would mean no checksum (RFC 768).
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    put(frame, at, sum)?;
    Some(true)
}

fn number(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

fn put(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

/// The sum of 16-bit words, the last one padded with zero (RFC 1071).
fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| {
        u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
    };
    bytes.chunks(2).map(word).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
