//! Requests that are built in one step, of any data and with any destination.

#![allow(unsafe_code)]

use super::super::payload::{Inline, PREFIX, Payload, segment_octowords};
use super::super::ring::{write_inline, write_sge};
use super::super::wide::{Wide, few_rounds, wide};
use super::super::{Block, Destination, SendQueue, Transport};
use super::{Common, Header, MAX_COPIED};
use crate::format::{INLINE_FLAG, MAX_DS, Opcode};
use crate::mmio::BlueFlame;

/// The data of a request that is built in one step, in a form of the program's own.
pub trait Entries {
    /// How many there are.
    fn count(&self) -> usize;
    /// One of them as an SGE: address, length and key.
    fn sge(&self, place: usize) -> (u64, u32, u32);
    /// One of them as a buffer, by its start and length.
    fn buffer(&self, place: usize) -> (*const u8, usize);
}

/// Bytes of buffers that are copied one after the other.
#[inline(always)]
pub(super) fn length_of(count: usize, buffer: impl Fn(usize) -> (*const u8, usize)) -> usize {
    if count == 1 {
        return buffer(0).1;
    }
    let mut length: usize = 0;
    for place in 0..count {
        few_rounds();
        length = length.saturating_add(buffer(place).1);
    }
    length
}

/// Writes a segment of buffers that are copied one after the other.
///
/// # Safety
/// Each buffer is readable, and `length`, which is not 0, is the sum of their lengths. `to` is
/// valid for writes of the segment.
#[inline(always)]
pub(super) unsafe fn write_buffers(
    to: *mut Wide,
    length: usize,
    count: usize,
    buffer: impl Fn(usize) -> (*const u8, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == 1 && (16..=128).contains(&length) {
            return write_inline(to, buffer(0).0, length);
        }
        if count == 1 {
            let data = core::slice::from_raw_parts(buffer(0).0, length);
            return Inline(data).store(to, segment_octowords(length), 1, MAX_DS as usize);
        }
        to.cast::<u32>().write((length as u32).wrapping_add(INLINE_FLAG).to_be());
        let mut to = to.cast::<u8>().add(PREFIX);
        for place in 0..count {
            few_rounds();
            let (start, size) = buffer(place);
            copy_buffer(to, start, size);
            to = to.add(size);
        }
    }
}

/// Copies a buffer. Short ones by loads and stores of which the last two may overlap, because
/// calling `memcpy` would cost more.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, and they do not overlap.
#[inline(always)]
unsafe fn copy_buffer(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: within the bytes of both. A null pointer may come with no bytes.
    unsafe {
        match length {
            8..=16 => copy_both_ends::<u64>(to, from, length),
            17..=32 => copy_both_ends::<u128>(to, from, length),
            0 => {}
            _ => to.copy_from_nonoverlapping(from, length),
        }
    }
}

/// Copies the first and the last bytes that a `U` holds.
///
/// # Safety
/// As for [`copy_buffer`], and the length is one to two times a `U`'s.
#[inline(always)]
unsafe fn copy_both_ends<U: Copy>(to: *mut u8, from: *const u8, length: usize) {
    let last = length - size_of::<U>();
    // SAFETY: both are within the bytes.
    unsafe {
        let ends = (from.cast::<U>().read_unaligned(), from.add(last).cast::<U>().read_unaligned());
        to.cast::<U>().write_unaligned(ends.0);
        to.add(last).cast::<U>().write_unaligned(ends.1);
    }
}

impl<T: Transport> SendQueue<T, BlueFlame> {
    /// Builds a request behind those before, and looks for space where the fast path has none.
    /// Returns the first block and how many there are. `None`, and nothing has changed that counts,
    /// if a batch has to do it: an SGE is empty or too long, there is too much data, or no space.
    ///
    /// # Safety
    /// As for [`SendQueue::build_whole`].
    #[inline(always)]
    unsafe fn write_whole(
        &mut self,
        common: &Common,
        header: impl Header,
        destination: impl Destination,
        inline: bool,
        data: impl Entries,
    ) -> Option<(*const Block, usize)> {
        let start = (header.octowords() & 3) + Self::DESTINATION;
        let (count, mut length) = (data.count(), 0);
        let is_atomic = header.operands().is_some();
        if is_atomic && (inline || count != 1 || header.remote().address % 8 != 0) {
            return None;
        }
        let size = if inline {
            if count > MAX_DS as usize || header.opcode() == Opcode::RDMA_READ {
                return None;
            }
            length = length_of(count, |place| data.buffer(place));
            // Neither empty nor too long, in one comparison.
            if length.wrapping_sub(1) >= common.max_inline {
                return None;
            }
            segment_octowords(length)
        } else {
            if count > common.max_sge as usize {
                return None;
            }
            count
        };
        let octowords = start + size;
        let blocks = octowords.div_ceil(4);
        if !self.next.has_bytes(blocks * size_of::<Block>()) && !self.reopen(blocks as u32) {
            return None;
        }
        // SAFETY: so many blocks are free, and hold all data.
        unsafe {
            let half = common.half(octowords);
            let block = self.next.write_header::<T>(common, &header, half);
            for index in 0..Self::DESTINATION {
                block.add(1 + index).write(wide(destination.octoword(index)));
            }
            let to = block.add(start);
            if inline {
                write_buffers(to, length, count, |place| data.buffer(place));
            } else {
                for place in 0..count {
                    few_rounds();
                    let (address, mut length, lkey) = data.sge(place);
                    if is_atomic {
                        length = 8;
                    }
                    if length as i32 <= 0 {
                        // The path may have been opened for this request only.
                        self.lower_limit();
                        return None;
                    }
                    write_sge(to.add(place), address, length, lkey);
                }
            }
            let entry = self.next.entry;
            self.next.enter_id(&header);
            self.next.pass(blocks);
            self.ring.note_inner(entry, blocks, self.counter_at(self.next.at));
            Some((block.cast(), blocks))
        }
    }

    /// Builds a request behind those before, and looks for space where the fast path has none.
    /// `false`, and nothing has changed that counts, if a batch has to do it. The data is copied if
    /// `inline`.
    ///
    /// # Safety
    /// As for [`SendQueue::name`] and [`SendQueue::post`]; buffers that are copied are readable.
    #[inline(always)]
    pub unsafe fn build_whole<D: Destination>(
        &mut self,
        common: &Common,
        header: impl Header,
        destination: D,
        inline: bool,
        data: impl Entries,
    ) -> bool {
        // SAFETY: the caller's promise.
        D::OCTOWORDS == Self::DESTINATION
            && unsafe { self.write_whole(common, header, destination, inline, data) }.is_some()
    }

    /// [`SendQueue::build_whole`], and rings for the request. Nothing was built before.
    ///
    /// # Safety
    /// As for [`SendQueue::build_whole`].
    #[inline(always)]
    pub unsafe fn post_whole<D: Destination>(
        &mut self,
        common: &Common,
        header: impl Header,
        destination: D,
        inline: bool,
        data: impl Entries,
    ) -> bool {
        if D::OCTOWORDS != Self::DESTINATION {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let written = self.write_whole(common, header, destination, inline, data);
            let Some((block, blocks)) = written else { return false };
            if blocks <= MAX_COPIED {
                self.copy_request::<MAX_COPIED>(block, blocks, self.head);
            } else {
                self.publish_steps();
            }
        }
        true
    }
}
