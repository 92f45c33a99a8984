//! Receive side scaling: the hash that chooses one of several receive queues for a frame.

use std::sync::Arc;

use super::Qpn;
use super::frame::Layout;

/// Bytes of a key.
pub const RSS_KEY: usize = 40;

/// Fields of the selector: protocol types in its top bits, and the hashed fields below.
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

/// A Toeplitz hash over some of a frame's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssHash {
    /// The key.
    pub key: [u8; RSS_KEY],
    /// What is hashed, as in `struct mlx5_ifc_rx_hash_field_select_bits`: bit 31 IPv6 instead of
    /// IPv4, bit 30 UDP instead of TCP, then from bit 0 source address, destination address, source
    /// port and destination port.
    pub select: u32,
}

impl RssHash {
    /// The hash of a frame and its type for the CQE; `None` for a frame of another protocol, which
    /// is not hashed.
    pub fn of(&self, frame: &[u8]) -> Option<(u32, u8)> {
        let layout = Layout::of(frame);
        let (addresses, mut kind) = self.addresses(&layout, frame)?;
        let mut input = self.chosen(addresses, [SOURCE_ADDRESS, DESTINATION_ADDRESS]);
        if self.select & (SOURCE_PORT | DESTINATION_PORT) != 0 {
            let (protocol, bits) =
                if self.select & L4_UDP != 0 { (UDP, HASHED_UDP) } else { (TCP, HASHED_TCP) };
            let at = layout.ports(frame).filter(|_| layout.protocol == protocol)?;
            let ports = [&frame[at..at + 2], &frame[at + 2..at + 4]];
            input.extend(self.chosen(ports, [SOURCE_PORT, DESTINATION_PORT]));
            kind |= bits;
        }
        Some((toeplitz(&self.key, &input), kind))
    }

    fn addresses<'a>(&self, layout: &Layout, frame: &'a [u8]) -> Option<([&'a [u8]; 2], u8)> {
        let (offset, size, kind) = match (layout.ip_version, self.select & L3_IPV6 != 0) {
            (4, false) => (12, 4, HASHED_IPV4),
            (6, true) => (8, 16, HASHED_IPV6),
            _ => return None,
        };
        let at = layout.network + offset;
        Some(([frame.get(at..at + size)?, frame.get(at + size..at + 2 * size)?], kind))
    }

    fn chosen(&self, parts: [&[u8]; 2], bits: [u32; 2]) -> Vec<u8> {
        let parts = parts.into_iter().zip(bits).filter(|(_, bit)| self.select & bit != 0);
        parts.flat_map(|(part, _)| part.iter().copied()).collect()
    }
}

/// The XOR of the key's 32 bits from the position of each bit that is set in the input.
fn toeplitz(key: &[u8; RSS_KEY], input: &[u8]) -> u32 {
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

/// Receive queues that share the frames of one flow rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The raw packet QPs that own the receive queues, one for each index of the table.
    pub table: Arc<[Qpn]>,
    /// The hash that selects the index; without it every frame goes to the first queue.
    pub hash: Option<RssHash>,
}

impl Spread {
    /// The queue for a frame, and its hash. Frames that are not hashed go to the first queue of the
    /// table.
    pub fn choose(&self, frame: &[u8]) -> Option<(Qpn, Option<(u32, u8)>)> {
        let (place, hash) = place(self.hash.as_ref(), frame, self.table.len());
        self.table.get(place).map(|qpn| (*qpn, hash))
    }
}

/// A frame's index in a table of this number of queues, and its hash.
pub(crate) fn place(
    hash: Option<&RssHash>,
    frame: &[u8],
    queues: usize,
) -> (usize, Option<(u32, u8)>) {
    let hash = hash.and_then(|hash| hash.of(frame));
    (hash.map_or(0, |(hash, _)| hash as usize) % queues.max(1), hash)
}

#[cfg(test)]
mod tests;
