//! Decodes a whole send queue.

use super::{Finding, Service, Wqe};
use uverbs_mlx5::format::{OCTOWORD, WQEBB_SIZE};

/// One WQE of a ring, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingEntry {
    /// Its first 64-byte block.
    pub slot: usize,
    /// The WQE. If it wraps at the ring's end, its segments are contiguous here.
    pub wqe: Wqe,
    /// Findings about the WQE and about its position.
    pub findings: Vec<Finding>,
}

/// Decodes a dump of a send queue. The `ds` of each WQE determines where the next one starts.
///
/// A block whose WQE index does not match its slot is not the start of a WQE: it is reported, and
/// decoding continues at the next block. `blocks` is the size of the ring; pass `None` if it is
/// unknown, as for a dump of a part of a ring. Indices are then only checked against each other.
///
/// Bytes after the last whole block of 64 are decoded as a shorter WQE if there are at least 16.
pub fn decode_ring(bytes: &[u8], blocks: Option<usize>, service: Service) -> Vec<RingEntry> {
    let mut walk = RingWalk::new(blocks, service);
    // The last WQE of a whole ring may continue at its start.
    let is_whole = blocks.is_some_and(|blocks| blocks * WQEBB_SIZE == bytes.len());
    let start = if is_whole { &bytes[..bytes.len().min(LONGEST_WQE)] } else { &[] };
    let mut entries = Vec::new();
    while let Some(ahead) = bytes.get(walk.offset()..).filter(|ahead| !ahead.is_empty()) {
        let entry = match ahead.get(..LONGEST_WQE) {
            Some(ahead) => walk.entry(ahead),
            None => walk.entry(&[ahead, &start[..start.len().min(walk.offset())]].concat()),
        };
        let Some(entry) = entry else { break };
        entries.push(entry);
    }
    entries
}

/// Bytes of the longest WQE, in whole blocks: `ds` has six bits.
pub const LONGEST_WQE: usize = (0x3f * OCTOWORD).next_multiple_of(WQEBB_SIZE);

/// Decodes a send queue that is read in parts. [`decode_ring`] describes the result.
#[derive(Clone, Debug)]
pub struct RingWalk {
    blocks: Option<usize>,
    service: Service,
    offset: usize,
    expected: Option<u16>,
}

impl RingWalk {
    /// A walk that starts at the first byte.
    pub fn new(blocks: Option<usize>, service: Service) -> Self {
        Self { blocks, service, offset: 0, expected: None }
    }

    /// Where the next WQE begins, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The next WQE, given the bytes from [`RingWalk::offset`] on: [`LONGEST_WQE`] of them, or as
    /// many as there are. Further bytes are ignored.
    ///
    /// `None` if there are too few for a WQE.
    pub fn entry(&mut self, ahead: &[u8]) -> Option<RingEntry> {
        let ahead = &ahead[..ahead.len().min(LONGEST_WQE)];
        let wqe = Wqe::decode(ahead, self.service).ok()?;
        let slot = self.offset / WQEBB_SIZE;
        let mut findings = wqe.findings(self.service);
        let misplaced = misplaced(&wqe, slot, self.blocks, self.expected);
        let is_start = self.blocks.is_none() || misplaced.is_none();
        findings.extend(misplaced);
        self.expected = Some(wqe.control.index().wrapping_add(wqe.blocks() as u16));
        self.offset += if is_start { wqe.blocks() } else { 1 } * WQEBB_SIZE;
        Some(RingEntry { slot, wqe, findings })
    }
}

fn misplaced(
    wqe: &Wqe,
    slot: usize,
    blocks: Option<usize>,
    expected: Option<u16>,
) -> Option<Finding> {
    let index = usize::from(wqe.control.index());
    if let Some(blocks) = blocks.filter(|blocks| *blocks > 0) {
        return (index % blocks != slot).then(|| {
            let text = format!(
                "WQE index {index} belongs into slot {}, not {slot}: never posted, stale, or the \
                 middle of a WQE",
                index % blocks
            );
            Finding::illegal(1, text)
        });
    }
    let expected = expected.filter(|expected| usize::from(*expected) != index)?;
    let text = format!(
        "WQE index {index} does not continue the WQE before, {expected} would: here the ring's \
         newest and oldest WQEs meet, or these bytes are not a WQE"
    );
    Some(Finding::suspicious(1, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_mlx5::format::Opcode;

    fn ring(blocks: usize) -> Vec<u8> {
        let nop = |index| Wqe::new(Opcode::NOP, index as u16, 7).encode_blocks();
        (0..blocks).flat_map(nop).collect()
    }

    #[test]
    fn a_walk_sees_what_decoding_the_whole_ring_does() {
        let bytes = ring(70_000);
        let mut walk = RingWalk::new(None, Service::Rc);
        let mut looked_at = 0;
        for entry in decode_ring(&bytes, None, Service::Rc) {
            let ahead = &bytes[walk.offset()..];
            let ahead = &ahead[..ahead.len().min(LONGEST_WQE)];
            looked_at += ahead.len();
            assert_eq!(walk.entry(ahead), Some(entry));
        }
        assert_eq!(walk.offset(), bytes.len());
        assert!(looked_at <= 70_000 * LONGEST_WQE, "work grows with the length alone");
    }

    /// A ring of four blocks whose last WQE has two blocks, the second with bytes of `filling`.
    fn wrapped_ring(filling: u8) -> Vec<u8> {
        let mut bytes = ring(4);
        let raw = crate::Segment::Raw([filling; 16]);
        let long = Wqe::new(Opcode::NOP, 3, 7);
        let long = (0..7).fold(long, |wqe, _| wqe.with(raw.clone())).sealed();
        assert!(long.encode_into_ring(&mut bytes));
        bytes
    }

    #[test]
    fn the_last_wqe_of_a_whole_ring_goes_on_at_its_start() {
        // As a control segment, bytes of 0xab mean a WQE as large as the ring, and bytes of 0xc1 a
        // WQE of 16 bytes.
        for filling in [0xab, 0xc1] {
            let entries = decode_ring(&wrapped_ring(filling), Some(4), Service::Rc);
            let last = entries.last().expect("entries");
            assert_eq!((last.slot, last.wqe.octowords()), (3, 8));
        }
        let cut = decode_ring(&wrapped_ring(0xc1), None, Service::Rc);
        assert_eq!(cut.last().expect("entries").wqe.octowords(), 4);
    }
}
