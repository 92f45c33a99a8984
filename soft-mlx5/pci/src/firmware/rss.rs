//! Receive side scaling: the hash that chooses one of a table's receive queues.

use super::match_value::MatchValue;
use crate::bits::Field;
use crate::layout::ethernet::tirc;

/// Hash functions, `MLX5_RX_HASH_FN_*`.
const TOEPLITZ: u64 = 2;

/// Fields of the selector (`rx_hash_field_select`): protocol types in its top bits, what is hashed
/// below.
const L3_IPV6: u32 = 1 << 31;
const L4_UDP: u32 = 1 << 30;
const SOURCE_ADDRESS: u32 = 1;
const DESTINATION_ADDRESS: u32 = 2;
const SOURCE_PORT: u32 = 4;
const DESTINATION_PORT: u32 = 8;

/// What was hashed, as the CQE has it (`CQE_RSS_HTYPE_*`).
const HASHED_IPV4: u8 = 1 << 2;
const HASHED_IPV6: u8 = 2 << 2;
const HASHED_TCP: u8 = 1 << 6;
const HASHED_UDP: u8 = 2 << 6;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The hash of a frame and its type; `None` if the interface does not hash it.
pub(super) fn hash(tir: &[u8], frame: &MatchValue) -> Option<(u32, u8)> {
    if tirc::RX_HASH_FN.get(tir) != TOEPLITZ {
        return None;
    }
    let select = tirc::RX_HASH_FIELD_SELECTOR_OUTER.get32(tir);
    let mut kind = match (frame.ip_version(), select & L3_IPV6 != 0) {
        (4, false) => HASHED_IPV4,
        (6, true) => HASHED_IPV6,
        _ => return None,
    };
    let first = if kind == HASHED_IPV4 { 12 } else { 0 };
    let addresses = frame.addresses().map(|address| &address[first..]);
    let mut input = chosen(addresses, select, [SOURCE_ADDRESS, DESTINATION_ADDRESS]);
    if select & (SOURCE_PORT | DESTINATION_PORT) != 0 {
        let (protocol, bits) =
            if select & L4_UDP != 0 { (UDP, HASHED_UDP) } else { (TCP, HASHED_TCP) };
        let ports = frame.ports(protocol)?;
        input.extend(chosen(ports, select, [SOURCE_PORT, DESTINATION_PORT]));
        kind |= bits;
    }
    Some((toeplitz(&key(tir), &input), kind))
}

fn chosen(parts: [&[u8]; 2], select: u32, bits: [u32; 2]) -> Vec<u8> {
    let parts = parts.into_iter().zip(bits).filter(|(_, bit)| select & bit != 0);
    parts.flat_map(|(part, _)| part.iter().copied()).collect()
}

const KEY: usize = 40;

fn key(tir: &[u8]) -> [u8; KEY] {
    let mut key = [0; KEY];
    for (index, word) in key.chunks_mut(4).enumerate() {
        let field: Field = tirc::RX_HASH_TOEPLITZ_KEY.element(index, 32);
        word.copy_from_slice(&field.get32(tir).to_be_bytes());
    }
    key
}

/// The XOR of the key's 32 bits from the position of each bit that is set in the input.
fn toeplitz(key: &[u8; KEY], input: &[u8]) -> u32 {
    let mut hash = 0;
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    for (index, byte) in input.iter().enumerate() {
        let next = key.get(index + 4).copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and two of the cases of Microsoft's "Verifying the RSS Hash Calculation".
    const EXAMPLE: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn hashes_are_those_of_the_specification() {
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&EXAMPLE, &addresses), 0x323e_8fc2);
        let mut all = addresses.to_vec();
        all.extend(2794u16.to_be_bytes());
        all.extend(1766u16.to_be_bytes());
        assert_eq!(toeplitz(&EXAMPLE, &all), 0x51cc_c178);
    }

    #[test]
    fn an_interface_hashes_its_own_kind_of_frames() {
        let mut tir = vec![0; 240];
        tirc::RX_HASH_FN.set(&mut tir, TOEPLITZ);
        for (index, word) in EXAMPLE.chunks(4).enumerate() {
            let word = u32::from_be_bytes(word.try_into().unwrap());
            tirc::RX_HASH_TOEPLITZ_KEY.element(index, 32).set(&mut tir, word.into());
        }
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame
            .extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80]);
        frame.extend([0x0a, 0xea, 0x06, 0xe6, 0, 8, 0, 0]);
        let frame = MatchValue::of(&frame);
        let select = |tir: &mut Vec<u8>, bits: u32| {
            tirc::RX_HASH_FIELD_SELECTOR_OUTER.set(tir, bits.into());
            hash(tir, &frame)
        };
        assert_eq!(select(&mut tir, 3), Some((0x323e_8fc2, HASHED_IPV4)));
        assert_eq!(select(&mut tir, L4_UDP | 15), Some((0x51cc_c178, HASHED_IPV4 | HASHED_UDP)));
        assert_eq!(select(&mut tir, 15), None, "not TCP");
        assert_eq!(select(&mut tir, L3_IPV6 | 3), None);
    }
}
