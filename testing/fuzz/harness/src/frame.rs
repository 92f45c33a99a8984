//! Generates Ethernet frames in which at most a few bytes are invalid.

use arbitrary::{Result, Unstructured};

/// MAC addresses of this station, of the one at the other end of the wire, and of no station (see
/// `frame_destination`).
const STATIONS: [[u8; 6]; 3] =
    [[2, 0, 127, 0, 0, 1], [2, 0, 127, 0, 0, 2], [0x24, 0x8a, 7, 1, 2, 3]];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The headers of a frame, with or without VLAN tags, IP, TCP and UDP. Up to two bytes are replaced
/// by arbitrary ones.
pub(crate) fn headers(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut frame = u.choose(&STATIONS)?.to_vec();
    frame.extend([2, 0, 127, 0, 0, 9]);
    for _ in 0..u.int_in_range(0..=2)? {
        frame.extend(*u.choose(&[[0x81, 0], [0x88, 0xa8]])?);
        frame.extend(u.arbitrary::<[u8; 2]>()?);
    }
    match u.int_in_range(0..=4)? {
        0 | 1 => ipv4(u, &mut frame)?,
        2 | 3 => ipv6(u, &mut frame)?,
        _ => frame.extend(u.arbitrary::<[u8; 2]>()?),
    }
    for _ in 0..u.int_in_range(0..=2)? {
        let at = u.choose_index(frame.len())?;
        frame[at] = u.arbitrary()?;
    }
    Ok(frame)
}

fn protocol(u: &mut Unstructured<'_>) -> Result<u8> {
    if u.ratio(1, 8)? { u.arbitrary() } else { Ok(*u.choose(&[TCP, UDP])?) }
}

/// A length field: a small number, or an arbitrary one.
fn length(u: &mut Unstructured<'_>) -> Result<[u8; 2]> {
    let length: u16 = if u.arbitrary()? { u.int_in_range(0..=300)? } else { u.arbitrary()? };
    Ok(length.to_be_bytes())
}

fn ipv4(u: &mut Unstructured<'_>, frame: &mut Vec<u8>) -> Result<()> {
    let words = if u.ratio(1, 4)? { u.int_in_range(0..=15)? } else { 5u8 };
    let protocol = protocol(u)?;
    frame.extend([8, 0, 0x40 | words, u.arbitrary()?]);
    frame.extend(length(u)?);
    frame.extend([0, 7]);
    // Fragments are rare.
    frame.extend(if u.ratio(1, 8)? { u.arbitrary()? } else { [0x40, 0] });
    frame.extend([64, protocol, 0xaa, 0xaa, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.resize(frame.len() + usize::from(words.saturating_sub(5)) * 4, 1);
    transport(u, protocol, frame)
}

fn ipv6(u: &mut Unstructured<'_>, frame: &mut Vec<u8>) -> Result<()> {
    let protocol = protocol(u)?;
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(length(u)?);
    frame.extend([protocol, 64]);
    frame.extend([0xfd; 32]);
    transport(u, protocol, frame)
}

fn transport(u: &mut Unstructured<'_>, protocol: u8, frame: &mut Vec<u8>) -> Result<()> {
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    match protocol {
        TCP => {
            let words = if u.ratio(1, 4)? { u.arbitrary()? } else { 0x50 };
            frame.extend([0, 0, 1, 0, 0, 0, 0, 0, words, u.arbitrary()?, 1, 0, 0xbb, 0xbb, 0, 0]);
        }
        UDP => {
            frame.extend(length(u)?);
            frame.extend([0xbb, 0xbb]);
        }
        _ => {}
    }
    Ok(())
}
