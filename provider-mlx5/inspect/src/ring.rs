//! A whole send queue, as it stands in memory.

use super::{Finding, Service, Wqe};
use uverbs_mlx5::format::WQEBB_SIZE;

/// One WQE of a ring, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingEntry {
    /// First 64-byte block that it takes.
    pub slot: usize,
    /// The WQE; its `ds` counted from the ring, wrapped where the ring ends.
    pub wqe: Wqe,
    /// What is wrong with it, including its place.
    pub findings: Vec<Finding>,
}

/// Decodes a dump of a send queue: block by block, each WQE as long as it says.
///
/// A block whose WQE index does not belong to its slot is not the start of a WQE posted here: it is
/// reported and the next block is tried. With `blocks` unknown (a dump of a part of a ring) pass
/// `None`, and indices are only checked against each other.
///
/// Bytes beyond whole blocks of 64 are taken as a last, shorter WQE if there are at least 16.
pub fn decode_ring(bytes: &[u8], blocks: Option<usize>, service: Service) -> Vec<RingEntry> {
    let mut entries = Vec::new();
    let mut offset = 0;
    let mut expected: Option<u16> = None;
    while let Some(entry) = entry_at(bytes, offset, blocks, expected, service) {
        expected = Some(entry.wqe.control.index().wrapping_add(entry.wqe.blocks() as u16));
        offset += entry.wqe.blocks() * WQEBB_SIZE;
        entries.push(entry);
    }
    entries
}

fn entry_at(
    bytes: &[u8],
    offset: usize,
    blocks: Option<usize>,
    expected: Option<u16>,
    service: Service,
) -> Option<RingEntry> {
    let ahead = bytes.get(offset..)?;
    // A whole ring continues at its start, a part of one ends where it ends.
    let wrapped = match blocks {
        Some(blocks) if blocks * WQEBB_SIZE == bytes.len() => [ahead, &bytes[..offset]].concat(),
        _ => ahead.to_vec(),
    };
    if ahead.is_empty() {
        return None;
    }
    let wqe = Wqe::decode(&wrapped, service).ok()?;
    let slot = offset / WQEBB_SIZE;
    let mut findings = wqe.findings(service);
    findings.extend(misplaced(&wqe, slot, blocks, expected));
    Some(RingEntry { slot, wqe, findings })
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
         newest and oldest WQEs meet, or this is no WQE"
    );
    Some(Finding::suspicious(1, text))
}
