//! The IPv4 identification of a packet, found from its invariant CRC.
//!
//! The CRC covers the identification, and a UDP socket does not report it. Packets from the sockets
//! of this crate have 0, but adapters and the kernel's software RoCE send increasing numbers. A CRC
//! is linear: the difference between the CRC found and the one computed for identification 0 is a
//! function of the identification and of the number of bytes after it, and can be inverted.
//!
//! So a packet is accepted if its CRC is correct for some identification, with or without "don't
//! fragment". This leaves 15 of the CRC's 32 bits to detect damage: one of 32,768 damaged packets
//! passes, unless Ethernet's own CRC or a UDP checksum detects it.

#![forbid(unsafe_code)]

use super::{MAX_PACKET, rocev2::Framing};

/// The polynomial of CRC-32 with its bits reversed, as Ethernet and the invariant CRC use it.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x to the power 0. The highest bit is the coefficient of the lowest power.
const ONE: u32 = 1 << 31;

/// Bytes covered by the CRC after the 4 bytes of identification, flags and fragment offset: the
/// rest of the IPv4 header and the UDP header.
const HEADER_BYTES_AFTER: usize = 12 + 8;

/// x to the power -8n, by n. Multiplying by it undoes `n` zero bytes.
static BACK: [u32; HEADER_BYTES_AFTER + MAX_PACKET + 5] = powers();

const fn powers<const N: usize>() -> [u32; N] {
    let mut table = [ONE; N];
    let mut n = 1;
    while n < N {
        let mut value = table[n - 1];
        let mut bit = 0;
        while bit < 8 {
            value = divided_by_x(value);
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
}

const fn divided_by_x(value: u32) -> u32 {
    if value & ONE != 0 { (value ^ POLYNOMIAL) << 1 | 1 } else { value << 1 }
}

/// The product of two polynomials modulo that of the CRC.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for bit in (0..32).rev() {
        if a >> bit & 1 != 0 {
            sum ^= b;
        }
        b = if b & 1 != 0 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    sum
}

/// The framing for which `found` is the CRC of a packet of `len` transport bytes, with the source
/// port of `guess`; `None` if there is none. `expected` is the packet's CRC with the framing
/// `guess`.
pub(super) fn explain(expected: u32, found: u32, len: usize, guess: Framing) -> Option<Framing> {
    // How the four bytes differ from those of the guess; the first byte is the lowest.
    let difference = product(*BACK.get(HEADER_BYTES_AFTER + len + 4)?, expected ^ found);
    let [high, low, flags, offset] = difference.to_le_bytes();
    // Bit 6 of the flags is "don't fragment".
    if offset != 0 || flags & !0x40 != 0 {
        return None;
    }
    let identification = guess.identification ^ u16::from_be_bytes([high, low]);
    let dont_fragment = guess.dont_fragment ^ (flags != 0);
    Some(Framing { identification, dont_fragment, ..guess })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::rocev2::{explain_icrc_v4, icrc_v4};

    const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

    const GUESS: Framing = Framing { source_port: 49_152, identification: 0, dont_fragment: true };

    /// The byte of the transport header that the CRC does not cover.
    const CONGESTION: usize = 4;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 % 251) as u8).collect()
    }

    #[test]
    fn every_identification_is_found_from_the_crc() {
        for len in [12, 16, 28, 1036, MAX_PACKET] {
            let packet = bytes(len);
            for identification in [0, 1, 2, 0x0100, 0x8000, 0xabcd, 0xffff] {
                for dont_fragment in [true, false] {
                    let framing = Framing { source_port: 49_152, identification, dont_fragment };
                    let crc = icrc_v4(ENDS[0], ENDS[1], &packet, framing);
                    for guessed in [0, 3, identification] {
                        let guess = Framing { identification: guessed, ..GUESS };
                        let explained = explain_icrc_v4(ENDS[0], ENDS[1], &packet, guess, crc);
                        assert_eq!(explained, Some(framing), "{len}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_damaged_packet_is_refused() {
        let mut packet = bytes(300);
        let framing = Framing { source_port: 49_152, identification: 77, dont_fragment: true };
        let crc = icrc_v4(ENDS[0], ENDS[1], &packet, framing);
        let explain = |packet: &[u8], crc| explain_icrc_v4(ENDS[0], ENDS[1], packet, GUESS, crc);
        let mut passed = 0;
        for bit in (0..300 * 8).filter(|bit| bit / 8 != CONGESTION) {
            packet[bit / 8] ^= 1 << (bit % 8);
            passed += usize::from(explain(&packet, crc).is_some());
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(passed <= 1, "{passed} of 2,392 single bits, where 0.07 are expected");
        let passing = (0..20_000u32).filter(|n| {
            let wrong = crc ^ n.wrapping_mul(0x9e37_79b9) ^ 0x5a5a_5a5a;
            explain(&packet, wrong).is_some()
        });
        let passing = passing.count();
        assert!(passing < 10, "{passing} of 20,000 wrong CRCs, where 0.6 are expected");
    }
}
