//! Message contents that both ends can compute, so that every byte can be verified.

/// The pattern of message `index` of the client.
pub(crate) fn question(index: u64) -> u64 {
    2 * index
}

/// The pattern of the server's answer to it.
pub(crate) fn answer(index: u64) -> u64 {
    2 * index + 1
}

/// The eight-byte word `index` of message number `message`, computed by SplitMix64.
fn word(message: u64, index: u64) -> [u8; 8] {
    let mut z = message
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(index)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// The last byte of RDMA WRITE number `message`, by which the receiver detects its arrival. It is
/// never 0, and differs from that of the preceding messages.
pub(crate) fn last_byte(message: u64) -> u8 {
    (message % 255) as u8 + 1
}

/// Fills `buffer` with the contents of message number `message`.
pub(crate) fn fill(buffer: &mut [u8], message: u64) {
    for (index, chunk) in (0..).zip(buffer.chunks_mut(8)) {
        chunk.copy_from_slice(&word(message, index)[..chunk.len()]);
    }
}

/// The offset of the first byte that differs from the contents written by [`fill`].
pub(crate) fn first_difference(buffer: &[u8], message: u64) -> Option<usize> {
    (0..).zip(buffer.chunks(8)).find_map(|(index, chunk)| {
        let expected = word(message, index);
        let at = chunk.iter().zip(&expected).position(|(got, want)| got != want)?;
        Some(index as usize * 8 + at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_verifies_at_every_length() {
        for length in [0, 1, 7, 8, 9, 4096, 4099] {
            let mut buffer = vec![0; length];
            fill(&mut buffer, 17);
            assert_eq!(first_difference(&buffer, 17), None, "length {length}");
        }
    }

    #[test]
    fn one_flipped_bit_is_found_where_it_is() {
        let mut buffer = vec![0; 100];
        fill(&mut buffer, 3);
        buffer[77] ^= 0x10;
        assert_eq!(first_difference(&buffer, 3), Some(77));
    }

    #[test]
    fn messages_differ_from_one_another() {
        let (mut one, mut two) = ([0; 64], [0; 64]);
        fill(&mut one, 1);
        fill(&mut two, 2);
        assert_ne!(one, two);
    }
}
