//! Fields of a template's data: bytes that are set one field at a time.
//!
//! A field is stored as whole lanes of 16 bytes, because posting loads such lanes: a load waits for
//! a narrower store before it.

use core::mem::offset_of;

use super::super::encode::{CopiedBytes, second_word};
use super::super::wide::{self, Wide, load32, load64, narrow, or, wide};
use super::super::{EthernetFrame, Operation};
use super::Template;
use crate::format::{ETH_INLINE_L2, EthSegment, MAX_DS};

/// `N` bytes of a template's inline data or packet, from byte `AT` on. Declare it as a constant,
/// and set it by that name:
///
/// ```
/// use uverbs_mlx5::send_queue::{Field, Operation, Template};
///
/// const PRICE: Field<8, 50> = Field;
/// const QUANTITY: Field<4, 58> = Field;
///
/// fn quote<O: Operation>(order: &mut Template<O, 2>, price: u64, quantity: u32) -> bool {
///     order.set(PRICE, price.to_be_bytes()) && order.set(QUANTITY, quantity.to_be_bytes())
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Field<const N: usize, const AT: usize>;

impl<O: Operation, const BLOCKS: usize> Template<O, BLOCKS> {
    /// Puts other bytes into the template's inline data or packet. False, and nothing changed,
    /// unless it has all of them inside.
    ///
    /// Of inline data byte 0 is its first. Of an [`EthernetFrame`] it is the packet's first, and of
    /// an [`EthernetSendHeader`](crate::send_queue::EthernetSendHeader) the first behind the
    /// header.
    #[inline(always)]
    #[must_use]
    pub fn set<const N: usize, const AT: usize>(
        &mut self,
        _: Field<N, AT>,
        bytes: [u8; N],
    ) -> bool {
        const { assert!(AT <= 1024 && N <= 1024, "no WQE is that long") };
        if AT + N > self.copied.get() {
            return false;
        }
        if N == 0 {
            return true;
        }
        let (start, end) = (O::DATA_START + AT, O::DATA_START + AT + N);
        let (first, last) = (start / 16, end.div_ceil(16));
        // A loop would keep the compiler from knowing which lanes these are.
        self.patch(first, start, &bytes);
        if first + 1 < last {
            self.patch(first + 1, start, &bytes);
        }
        (first + 2..last).for_each(|lane| self.patch(lane, start, &bytes));
        true
    }

    /// The bytes that [`Template::set`] would change. `None` unless the template has all of them
    /// inside.
    #[inline(always)]
    pub fn get<const N: usize, const AT: usize>(&self, _: Field<N, AT>) -> Option<[u8; N]> {
        const { assert!(AT <= 1024 && N <= 1024, "no WQE is that long") };
        if AT + N > self.copied.get() {
            return None;
        }
        let start = O::DATA_START + AT;
        let (first, shift) = (start / 16, 8 * (start % 16) as u32);
        let mut bytes = [0; N];
        for (i, part) in bytes.chunks_mut(16).enumerate() {
            let low = self.lane(first + i) >> shift;
            let high = self.lane(first + i + 1).checked_shl(128 - shift).unwrap_or(0);
            let both = (low | high).to_le_bytes();
            part.copy_from_slice(both.get(..part.len())?);
        }
        Some(bytes)
    }

    /// A lane whose first byte is the number's lowest; 0 behind the last one.
    #[inline(always)]
    fn lane(&self, index: usize) -> u128 {
        let lane = self.image.as_flattened().get(index).copied().map(narrow);
        let [low, high] = lane.unwrap_or_default().map(u64::from_le);
        u128::from(high) << 64 | u128::from(low)
    }

    /// Puts those of the bytes into a lane that are in it if they start at byte `start` of the WQE.
    #[inline(always)]
    fn patch(&mut self, index: usize, start: usize, bytes: &[u8]) {
        let (from, to) = (start.max(16 * index), (start + bytes.len()).min(16 * index + 16));
        let Some(lane) = self.image.as_flattened_mut().get_mut(index) else { return };
        if let Some(bytes) = bytes.get(from.wrapping_sub(start)..to.wrapping_sub(start)) {
            *lane = wide::whole(patched(*lane, bytes, from % 16));
        }
    }
}

impl<const BLOCKS: usize> Template<EthernetFrame<'static>, BLOCKS> {
    /// Makes the packet `bytes` bytes long: what it had beyond its old end is whatever it had there
    /// when it was longer, zeros at first. False, and nothing changed, if it takes more than
    /// `BLOCKS` blocks then or more than a request can have, is shorter than a header of 18 bytes,
    /// or has an SGE. Posting is fastest while it takes all blocks.
    #[inline(always)]
    #[must_use]
    pub fn set_length(&mut self, bytes: usize) -> bool {
        let most = (4 * BLOCKS).min(MAX_DS as usize);
        let longest = (16 * most).saturating_sub(EthernetFrame::DATA_START);
        if self.sge != 0 || bytes < ETH_INLINE_L2 || bytes > longest {
            return false;
        }
        let octowords = (EthernetFrame::DATA_START + bytes).div_ceil(16);
        if let [[control, ..], ..] = &mut self.image[..] {
            let [first, mode] = narrow(*control);
            let size = second_word(octowords as u32);
            *control = wide([first & !second_word(0xff) | size, mode]);
        }
        let length = (bytes as u16).to_be_bytes();
        self.patch(INLINE_SIZE / 16, INLINE_SIZE, &length);
        let blocks = octowords.div_ceil(4);
        self.blocks = blocks as u32;
        self.needed = self.full.of(blocks);
        self.copied = CopiedBytes::new(bytes);
        true
    }
}

/// Where the Ethernet segment, which follows the control segment, says how many bytes of the packet
/// are in it.
const INLINE_SIZE: usize = 16 + offset_of!(EthSegment, inline_header_size);

/// A lane with other bytes from `offset` on, at most up to its end.
#[inline(always)]
fn patched(lane: Wide, bytes: &[u8], offset: usize) -> Wide {
    let shift = 8 * offset;
    match (bytes.len(), offset) {
        (16.., _) => return wide::from_number(number(bytes)),
        (8, 0) => return wide::with_low(lane, load64(bytes, 0).to_le()),
        (8, 8) => return wide::with_high(lane, load64(bytes, 0).to_le()),
        (2, _) if offset % 2 == 0 => {
            return wide::with_half_word(lane, offset / 2, (number(bytes) as u16).to_le());
        }
        (4, 0 | 4 | 8 | 12) => {
            return wide::with_word(lane, offset / 4, load32(bytes, 0).to_le());
        }
        _ => {}
    }
    if offset / 8 == (offset + bytes.len() - 1) / 8 {
        // Inside one half, which an integer register takes.
        let shift = 8 * (offset % 8);
        let mask = (((1_u128 << (8 * bytes.len())) - 1) as u64) << shift;
        let change =
            |was: u64| (u64::from_le(was) & !mask | (number(bytes) as u64) << shift).to_le();
        let [low, high] = narrow(lane);
        return if offset < 8 {
            wide::with_low(lane, change(low))
        } else {
            wide::with_high(lane, change(high))
        };
    }
    let mask = ((1_u128 << (8 * bytes.len())) - 1) << shift;
    or(wide::and(lane, wide::from_number(!mask)), wide::from_number(number(bytes) << shift))
}

/// One to sixteen bytes as a number, the first one the lowest: of a constant length this is a load
/// or two. Bytes that are loaded twice come to the same place.
#[inline(always)]
fn number(bytes: &[u8]) -> u128 {
    let length = bytes.len();
    match length {
        8.. => {
            let end = length.min(16) - 8;
            u128::from(load64(bytes, 0)) | u128::from(load64(bytes, end)) << (8 * end)
        }
        4.. => {
            let end = length - 4;
            u128::from(load32(bytes, 0)) | u128::from(load32(bytes, end)) << (8 * end)
        }
        _ => bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte)),
    }
}
