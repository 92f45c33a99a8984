//! Data that came inside a CQE, brought to where the request wanted it.

use super::ring::CqeView;
use crate::format::{ControlSegment, CqeFormat, DataSegment, Opcode, TERMINATOR_LKEY, WQEBB_SIZE};
use crate::shown_ring::Ring;

/// Bytes of inline data in the two formats.
const SHORT: usize = 32;
const LONG: usize = 64;

/// The data inside a CQE and how long it can be. `None` if there is none.
///
/// 32 bytes stand in the CQE's own first half; 64 bytes in the 64 before it, which only 128-byte CQEs have. The format is
/// the one that was checked, not read again: a device may write the CQE at any time.
///
/// # Safety
/// If the format says 64, the 64 bytes before the CQE are valid for reads.
pub(super) unsafe fn inline_data(cqe: CqeView, format: CqeFormat) -> Option<([u8; LONG], usize)> {
    match format {
        CqeFormat::INLINE_32 => Some((cqe.bytes(), SHORT)),
        CqeFormat::INLINE_64 => {
            // SAFETY: the caller vouches for the bytes before the CQE, aligned like it.
            let before = unsafe { cqe.first_half() };
            Some((before.bytes(), LONG))
        }
        _ => None,
    }
}

/// One scatter entry of a WQE.
struct Piece {
    length: usize,
    lkey: u32,
    address: u64,
}

/// # Safety
/// `entry` is valid for reads of 16 bytes.
unsafe fn piece_at(entry: *const u8) -> Piece {
    // SAFETY: the caller vouches for it.
    let segment = unsafe { entry.cast::<DataSegment>().read() };
    Piece {
        length: segment.byte_count.get() as usize,
        lkey: segment.lkey.get(),
        address: segment.address.get(),
    }
}

/// Copies `data` to the pieces in order. False if they do not hold all of it.
///
/// # Safety
/// The pieces are what the program gave for the device to write to; they are still the device's.
unsafe fn fill(
    pieces: impl Iterator<Item = Piece>,
    mut data: &[u8],
    null_lkey: Option<u32>,
) -> bool {
    for piece in pieces {
        if data.is_empty() || piece.lkey == TERMINATOR_LKEY && piece.length == 0 {
            break;
        }
        let (now, later) = data.split_at(piece.length.min(data.len()));
        // A null region swallows what is written to it; its addresses mean nothing.
        if Some(piece.lkey) != null_lkey {
            let target = core::ptr::with_exposed_provenance_mut::<u8>(piece.address as usize);
            // SAFETY: the piece is memory lent for writing until this completion, and `now` is no longer than it.
            unsafe { target.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        }
        data = later;
    }
    data.is_empty()
}

/// Brings `data` to the buffers of receive WQE `index`.
///
/// # Safety
/// `ring` is a live receive ring whose WQE `index` is posted, and completes with this.
pub(super) unsafe fn to_receive(
    ring: Ring,
    index: u32,
    data: &[u8],
    null_lkey: Option<u32>,
) -> bool {
    let start = ((index & ring.mask) as usize) << ring.shift;
    let pieces = (start + ring.head as usize..start + (1 << ring.shift)).step_by(16);
    // SAFETY: the offsets lie within the masked WQE, and so within the ring.
    let pieces = pieces.map(|offset| unsafe { piece_at(ring.base.add(offset)) });
    // SAFETY: passed on to the caller.
    unsafe { fill(pieces, data, null_lkey) }
}

/// Brings `data` to the buffers of the RDMA read or atomic at `index` of a send queue. False if it is neither.
///
/// # Safety
/// `ring` is a live send ring, and what is posted in it at `index` completes with this.
pub(super) unsafe fn to_send(ring: Ring, index: u16, data: &[u8], null_lkey: Option<u32>) -> bool {
    let start = (u32::from(index) & ring.mask) as usize * WQEBB_SIZE;
    let bytes = (ring.mask as usize + 1) * WQEBB_SIZE;
    // SAFETY: the masked WQE lies within the ring.
    let control = unsafe { ring.base.add(start).cast::<ControlSegment>().read() };
    if control.index() != index {
        // The middle of a request.
        return false;
    }
    let segments = match control.opcode() {
        Opcode::RDMA_READ => 2,
        Opcode::ATOMIC_COMPARE_SWAP
        | Opcode::ATOMIC_FETCH_ADD
        | Opcode::ATOMIC_MASKED_FETCH_ADD => 3,
        Opcode::ATOMIC_MASKED_COMPARE_SWAP => 4,
        _ => return false,
    };
    let first = segments + ring.head as usize / 16;
    // SAFETY: the masked offsets lie within the ring, which is a power of two.
    let pieces = (first..usize::from(control.ds()))
        .map(|octoword| unsafe { piece_at(ring.base.add((start + 16 * octoword) & (bytes - 1))) });
    // SAFETY: passed on to the caller.
    unsafe { fill(pieces, data, null_lkey) }
}
