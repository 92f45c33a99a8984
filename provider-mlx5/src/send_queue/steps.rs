//! Requests that are built step by step, one step per call of the program: first the operation,
//! then its data. And requests in a form of the program's own, which are built in one step.
//!
//! Each step is stored at its place in the ring. The header that the first step stores says that
//! one SGE follows, which is the usual case: a second step that adds an SGE does not write the
//! header again. Where requests name their destination (UD, XRC, DC), that is one more step, before
//! the data or after it; the first step leaves its octowords free. The queue's fast path moves on
//! with each request, its head when the requests are published: what is between is what was built
//! and not published.
//!
//! Requests that this path cannot build are built by a [`Batch`], which continues where the steps
//! end ([`SendQueue::batch_from`]) and gives the position back ([`Batch::pause`]).

#![allow(unsafe_code)]

mod state;
mod whole;

use core::mem::replace;

pub use state::{Common, Header, Named, Steps};
pub use whole::Entries;

use super::payload::{Inline, Payload, segment_octowords};
use super::ring::{Next, write_inline, write_sge};
use super::wide::{Wide, copy_in_pairs, few_rounds, wide};
use super::{Batch, Block, Destination, SendQueue, Transport};
use crate::barrier;
use crate::doorbell::Plain;
use crate::format::{AddressVector, MAX_DS, Opcode, U32, WQEBB_SIZE, XrcSegment};
use crate::mmio::BlueFlame;
use crate::request::{Octoword, PostError, PostFlags, Remote};
use crate::sync::Ordering;

/// Bytes in a control segment: the opcode's, the length's, and that of the flags.
const OPCODE: usize = 3;
const LENGTH: usize = 7;
const FLAGS: usize = 11;

/// Blocks that a register takes at most.
const MAX_COPIED: usize = super::publish::MAX_COPIED as usize / WQEBB_SIZE;

/// Flag of [`Next::at`] while a request was named and has no data yet. It is above every limit, so
/// no other request is named meanwhile. The bits below [`WQEBB_SIZE`] are the length of the header
/// then, in bytes and without the destination, and the rest is the place behind the request's first
/// block.
const NAMED: usize = 1 << 30;
/// Flag of [`Next::at`] while the request that was named last lacks its destination. It is above
/// every limit, too.
const LACKS_DESTINATION: usize = 1 << 29;
/// Flag of [`Next::at`] while the request that was named last is an atomic without a buffer for its
/// result. It stands for [`NAMED`], so that no other data is added, and is above every limit, too.
const LACKS_RESULT: usize = 1 << 28;
/// The length of the header in [`Next::at`].
const HEADER: usize = 3 * 16;
/// The bits of [`Next::at`] that stay when the request is complete.
const PLACE: usize = (LACKS_RESULT - 1) & !(WQEBB_SIZE - 1);

impl Next {
    /// Where the data of the request that was named goes. `at` is [`Next::at`], `header` the bytes
    /// of the header that it has, and `destination` the number of the destination's octowords, a
    /// constant.
    #[inline(always)]
    fn data(&self, at: usize, header: usize, destination: usize) -> *mut Wide {
        if destination == 0 {
            return self.base.wrapping_byte_add(at).wrapping_byte_sub(NAMED + WQEBB_SIZE).cast();
        }
        self.named(at).wrapping_byte_add(header + 16 * destination)
    }

    /// The block of the request that was named, or the block before `at`.
    #[inline(always)]
    fn named(&self, at: usize) -> *mut Wide {
        self.base.wrapping_byte_add(at & PLACE).wrapping_sub(1).cast()
    }
}

/// Sets the length of a request.
///
/// # Safety
/// `block` is of the ring, and begins a request that was built here.
#[inline(always)]
unsafe fn set_length(block: *mut Wide, octowords: usize) {
    // SAFETY: the caller's promise.
    unsafe { block.cast::<u8>().add(LENGTH).write(octowords as u8) };
}

impl<T: Transport> SendQueue<T, BlueFlame> {
    /// Octowords of the destination, which is between control segment and operation.
    const DESTINATION: usize = T::SERVICE.address_octowords();
    /// Whether the data always starts behind the first block, and ends behind it.
    const IS_LONG: bool = Self::DESTINATION == 3;
    /// Blocks of the shortest request with data.
    const SHORT: usize = if Self::IS_LONG { 2 } else { 1 };
    /// What a setter of data leaves of [`Next::at`].
    const KEPT: usize = if Self::DESTINATION > 0 { PLACE | LACKS_DESTINATION } else { PLACE };

    /// The bytes of the header in [`Next::at`], without the destination.
    #[inline(always)]
    fn header(at: usize) -> usize {
        if T::SERVICE.has_remote_memory() { at & HEADER } else { 16 }
    }

    /// Whether a request reads, so that it takes no data that is copied.
    ///
    /// # Safety
    /// As for [`set_length`].
    #[inline(always)]
    unsafe fn may_read(block: *const Wide) -> bool {
        // SAFETY: the caller's promise.
        let opcode = || unsafe { block.cast::<u8>().add(OPCODE).read() };
        T::SERVICE.is_reliable() && opcode() == Opcode::RDMA_READ.0
    }

    /// Builds a request whose data follows, and its destination if the service has one, behind
    /// those before. `false`, and nothing has changed, if there is one already that is not complete
    /// ([`SendQueue::end_request`]), or a batch has to do it.
    ///
    /// # Safety
    /// Since the steps began the queue was used as [`SendQueue::batch_from`] says. Its service has
    /// the operation, which demands nothing of its data, and of which the header says all. `common`
    /// is the queue's.
    #[inline(always)]
    pub unsafe fn name(&mut self, steps: &mut Steps, common: &Common, header: impl Header) -> bool {
        if header.operands().is_some() && Self::DESTINATION == 1 {
            // The result's buffer is in another block.
            return false;
        }
        let next = &mut self.next;
        if !next.has(if Self::IS_LONG { 2 } else { 1 }) {
            return false;
        }
        let octowords = header.octowords() & 3;
        // SAFETY: the blocks before the limit are free. The load of the entry is volatile, so that
        // the change before it is one instruction on memory.
        unsafe {
            let half = common.halves[octowords];
            let block = next.write_header::<T>(common, &header, half);
            // Before the queue moves on, because a program's own implementation may panic.
            let wr_id = header.wr_id();
            if Self::DESTINATION > 0 {
                steps.named = block;
            }
            next.entry = next.entry.wrapping_add(1);
            let entry = (&raw const next.entry).read_volatile().wrapping_sub(1);
            (*entry).store(wr_id, Ordering::Relaxed);
        }
        let named = if header.operands().is_some() { LACKS_RESULT } else { NAMED };
        let flags = if Self::DESTINATION > 0 { named | LACKS_DESTINATION } else { named };
        next.at = next.at.wrapping_add(flags + WQEBB_SIZE + 16 * octowords);
        true
    }

    /// Gives the request that was named last its destination, before or after its data. `false`,
    /// and nothing has changed, if it has one already, there is no such request, or the service has
    /// no such destinations.
    ///
    /// # Safety
    /// As for [`SendQueue::name`], which was given `steps`.
    #[inline(always)]
    pub unsafe fn add_destination<D: Destination>(
        &mut self,
        steps: &Steps,
        destination: D,
    ) -> bool {
        let at = self.next.at;
        if D::OCTOWORDS != Self::DESTINATION || at & LACKS_DESTINATION == 0 {
            crate::hint::cold_path();
            return false;
        }
        self.next.at = at & !LACKS_DESTINATION;
        for index in 0..D::OCTOWORDS {
            // SAFETY: a request was named in that block, and has not been published since, because
            // it lacks its destination. The block has space for that behind the control segment.
            let to = unsafe { steps.named.add(1 + index) };
            let octoword = destination.octoword(index);
            // SAFETY: as above.
            unsafe {
                if index > 0 {
                    to.write(wide(octoword));
                    continue;
                }
                // Word by word, because joining what the program gave takes more instructions. The
                // stores are volatile, so the compiler does not join it either.
                for (place, half) in octoword.into_iter().enumerate() {
                    let words = [half.to_le() as u32, (half.to_le() >> 32) as u32];
                    let to = to.cast::<[u32; 2]>().add(place).cast::<u32>();
                    to.write_volatile(u32::from_le(words[0]));
                    to.add(1).write_volatile(u32::from_le(words[1]));
                }
            }
        }
        true
    }

    /// Gives the request that was named one SGE. `false`, and nothing has changed, if there is
    /// none, or a batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn add(&mut self, address: u64, length: u32, lkey: u32) -> bool {
        if length as i32 <= 0 {
            // Two branches, see `write_with_sge`.
            crate::hint::cold_path();
            return false;
        }
        let at = self.next.at;
        if at & NAMED == 0 {
            crate::hint::cold_path();
            return false;
        }
        // SAFETY: the block that was named, or the next one, which is free, too, has an octoword
        // for the SGE.
        unsafe {
            write_sge(
                self.next.data(at, Self::header(at), Self::DESTINATION),
                address,
                length,
                lkey,
            );
            if Self::IS_LONG {
                self.end_after(at, 2);
                return true;
            }
        }
        self.next.at = at & Self::KEPT;
        true
    }

    /// Gives the atomic that was named the buffer of its result, of 8 bytes. `false`, and nothing
    /// has changed, if there is none.
    ///
    /// # Safety
    /// As for [`SendQueue::add`].
    #[inline(always)]
    pub unsafe fn add_result(&mut self, address: u64, lkey: u32) -> bool {
        let at = self.next.at;
        if at & LACKS_RESULT == 0 {
            return false;
        }
        // SAFETY: as in `add`.
        unsafe {
            let to = self.next.named(at).byte_add(HEADER + 16 * Self::DESTINATION);
            write_sge(to, address, 8, lkey);
            if Self::IS_LONG {
                self.end_after(at, 2);
                return true;
            }
        }
        self.next.at = at & Self::KEPT;
        true
    }

    /// Ends the request that was named after `blocks` blocks, a constant above 1. `at` is
    /// [`Next::at`].
    ///
    /// # Safety
    /// The last of them is before the limit.
    #[inline(always)]
    unsafe fn end_after(&mut self, at: usize, blocks: usize) {
        let behind = (at & Self::KEPT) + (blocks - 1) * WQEBB_SIZE;
        self.next.at = behind;
        self.next.entry = self.next.entry.wrapping_add(blocks - 1);
        // SAFETY: before the limit, so within ring and table. The load is volatile for the reason
        // that `name` gives.
        unsafe {
            let entry = (&raw const self.next.entry).read_volatile().wrapping_sub(blocks);
            self.ring.note_inner(entry, blocks, self.counter_after(behind));
        }
    }

    /// Gives the request that was named data that is copied, if it then has as few blocks as a
    /// request with data can have. `false`, and nothing has changed, if there is none, or another
    /// function has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::name`]. Of `length` bytes at `start` all are readable, if there are any.
    #[inline(always)]
    pub unsafe fn add_short(&mut self, common: &Common, start: *const u8, length: usize) -> bool {
        // Neither empty nor too long, in one comparison.
        if length.wrapping_sub(1) >= common.max_short {
            return false;
        }
        let at = self.next.at;
        if at & NAMED == 0 {
            return false;
        }
        let octowords = Self::DESTINATION + segment_octowords(Self::header(at) + length);
        // SAFETY: the blocks have space for all data. If they are two, they were free when the
        // request was named.
        unsafe {
            let block = self.next.named(at);
            if Self::may_read(block) {
                return false;
            }
            let to = self.next.data(at, Self::header(at), Self::DESTINATION);
            if Self::IS_LONG {
                self.end_after(at, 2);
            } else {
                self.next.at = at & Self::KEPT;
            }
            if Self::IS_LONG && length >= 16 {
                write_inline(to, start, length);
            } else {
                let (data, size) =
                    (core::slice::from_raw_parts(start, length), segment_octowords(length));
                core::hint::assert_unchecked(size > 0);
                Inline(data).store(to, size, 1, 2);
            }
            set_length(block, octowords);
        }
        true
    }

    /// [`SendQueue::add_short`] of data with which the request has a block more.
    ///
    /// # Safety
    /// As for [`SendQueue::add_short`].
    #[inline(always)]
    pub unsafe fn add_longer(&mut self, common: &Common, start: *const u8, length: usize) -> bool {
        let at = self.next.at;
        let (header, behind) = (Self::header(at), (at & PLACE) + Self::SHORT * WQEBB_SIZE);
        if at & NAMED == 0 || behind > self.next.limit {
            return false;
        }
        let octowords = common.longer(header / 16, Self::DESTINATION, length);
        let Some(octowords) = octowords else { return false };
        let block = self.next.named(at);
        // SAFETY: the request was built here, and its blocks are free. They hold all data.
        unsafe {
            if Self::may_read(block) {
                return false;
            }
            // Behind an address vector, as just compared.
            core::hint::assert_unchecked(!Self::IS_LONG || length > 32);
            self.end_after(at, Self::SHORT + 1);
            let to = block.byte_add(header + 16 * Self::DESTINATION);
            if Self::DESTINATION == 1 && length < 16 {
                let data = core::slice::from_raw_parts(start, length);
                Inline(data).store(to, segment_octowords(length), 1, 2);
            } else {
                write_inline(to, start, length);
            }
            set_length(block, octowords);
        }
        true
    }

    /// Gives the request that was named the data of buffers that are copied, of any length.
    /// `false`, and nothing has changed, if there is none, or a batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::name`]; the buffers are readable.
    #[inline(always)]
    pub unsafe fn add_copied(&mut self, common: &Common, data: impl Entries) -> bool {
        let (at, count) = (self.next.at, data.count());
        if at & NAMED == 0 || count > MAX_DS as usize {
            return false;
        }
        let length = whole::length_of(count, |place| data.buffer(place));
        // Neither empty nor too long, in one comparison.
        if length.wrapping_sub(1) >= common.max_inline {
            return false;
        }
        let header = Self::header(at) + 16 * Self::DESTINATION;
        let (block, octowords) = (self.next.named(at), segment_octowords(header + length));
        // SAFETY: the request was built here; the length was compared, so there are free blocks for
        // all data.
        unsafe {
            if Self::may_read(block) || !self.extend(octowords) {
                return false;
            }
            let to = block.byte_add(header);
            whole::write_buffers(to, length, count, |place| data.buffer(place));
            set_length(block, octowords);
        }
        true
    }

    /// Gives the request that was named a list of SGEs. `false`, and nothing has changed that
    /// counts, if there is none, or a batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::name`], and as for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn add_list(&mut self, common: &Common, data: impl Entries) -> bool {
        let (at, count) = (self.next.at, data.count());
        if at & NAMED == 0 || count.wrapping_sub(1) >= common.max_sge as usize {
            return false;
        }
        if !(0..count).all(|place| data.sge(place).1 as i32 > 0) {
            return false;
        }
        let (block, before) = (self.next.named(at), Self::DESTINATION + Self::header(at) / 16);
        // SAFETY: the request was built here; so there are free blocks for all SGEs.
        unsafe {
            if !self.extend(before + count) {
                return false;
            }
            for place in 0..count {
                few_rounds();
                let (address, length, lkey) = data.sge(place);
                write_sge(block.add(before + place), address, length, lkey);
            }
            set_length(block, before + count);
        }
        true
    }

    /// Raises the fast limit to `behind`, where the request that was named ends, if its blocks are
    /// free: whatever their number, it is one request, and for one there was space. Returns whether
    /// it did.
    #[inline(never)]
    fn raise_limit(&mut self, behind: usize) -> bool {
        let start = (self.next.at & PLACE) - WQEBB_SIZE;
        self.open(self.counter_at(start), start, ((behind - start) / WQEBB_SIZE) as u32)
    }

    /// Lowers the fast limit to what the requests so far leave: the request that was named last,
    /// for which [`SendQueue::reopen`] had opened two blocks, has one, or is gone.
    #[inline(always)]
    fn lower_limit(&mut self) {
        let at = self.next.at & PLACE;
        let open = self.blocks_open(self.counter_at(at)) as usize;
        self.next.limit = self.next.limit.min(at + open * WQEBB_SIZE);
    }

    /// Ends the request that was named, which has one block, at `octowords` octowords. `false`, and
    /// nothing has changed, if there are no free blocks for it.
    ///
    /// # Safety
    /// As for [`SendQueue::add_short`].
    #[inline(always)]
    unsafe fn extend(&mut self, octowords: usize) -> bool {
        let at = self.next.at & Self::KEPT;
        if octowords <= 4 {
            self.next.at = at;
            return true;
        }
        let blocks = octowords.div_ceil(4);
        let behind = at + (blocks - 1) * WQEBB_SIZE;
        if behind & PLACE > self.next.limit && !self.raise_limit(behind & PLACE) {
            return false;
        }
        let entry = self.next.entry.wrapping_sub(1);
        self.next.entry = entry.wrapping_add(blocks);
        self.next.at = behind;
        // SAFETY: before the limit, so within ring and table.
        unsafe { self.ring.note_inner(entry, blocks, self.counter_after(behind)) };
        true
    }

    /// The counter after a request that has its data. `behind` is [`Next::at`] then, which can
    /// have a flag only if requests have destinations.
    #[inline(always)]
    fn counter_after(&self, behind: usize) -> u32 {
        self.counter_at(if Self::DESTINATION > 0 { behind & PLACE } else { behind })
    }

    /// Makes the request that was named one without data; whether there was one.
    #[inline(never)]
    fn end_named(&mut self) -> bool {
        let at = self.next.at;
        if at & NAMED == 0 {
            return false;
        }
        let octowords = Self::DESTINATION + Self::header(at) / 16;
        self.next.at = at & Self::KEPT;
        // SAFETY: the request was named in that block; if its header does not end there, the next
        // one is before the limit.
        unsafe {
            set_length(self.next.named(at), octowords);
            if Self::IS_LONG && octowords > 4 {
                self.end_after(at, 2);
            } else if Self::IS_LONG {
                self.lower_limit();
            }
        }
        true
    }

    /// Removes the request that was named and has no data yet.
    pub fn take_back(&mut self) -> Option<Named> {
        let at = self.next.at;
        if at & NAMED == 0 {
            return None;
        }
        let block = self.next.named(at);
        self.next.entry = self.next.entry.wrapping_sub(1);
        self.next.at = (at & PLACE) - WQEBB_SIZE;
        if Self::IS_LONG {
            self.lower_limit();
        }
        // SAFETY: the request was written here, and nothing else writes the ring or the table's
        // entry. Of a request without remote address these are other bytes of free blocks.
        unsafe {
            let wr_id = (*self.next.entry).load(Ordering::Relaxed);
            let control = block.cast::<u8>();
            let opcode = Opcode(control.add(OPCODE).read());
            let flags = PostFlags::from_bits_retain(control.add(FLAGS).read());
            let immediate = U32::from_bytes(control.add(FLAGS + 1).cast::<[u8; 4]>().read());
            let [address, rkey] = block.add(1 + Self::DESTINATION).cast::<Octoword>().read();
            let rkey = u32::from_be(rkey.to_le() as u32);
            let remote = Remote::new(u64::from_be(address), rkey);
            let destination = block.wrapping_add(1);
            let has = |octowords| Self::DESTINATION == octowords && at & LACKS_DESTINATION == 0;
            let address = has(3).then(|| destination.cast::<AddressVector>().read());
            let srqn = has(1).then(|| destination.cast::<XrcSegment>().read().srqn.get());
            Some(Named { wr_id, opcode, flags, immediate, remote, address, srqn })
        }
    }

    /// Builds a request of one SGE behind those before. `false`, and nothing has changed, if a
    /// batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::name`] and [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn build_sge(
        &mut self,
        common: &Common,
        header: impl Header,
        length: u32,
        address_and_lkey: impl FnOnce() -> (u64, u32),
    ) -> bool {
        // SAFETY: the caller's promise.
        let written =
            unsafe { self.next.write_with_sge::<T>(common, &header, length, address_and_lkey) };
        if written.is_none() {
            return false;
        }
        // SAFETY: one block was written.
        unsafe { self.next.pass(1) };
        true
    }

    /// Builds a request with data that is copied behind those before. `false`, and nothing has
    /// changed, if a batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::name`]. Of `length` bytes at `start` all are readable, if there are any.
    #[inline(always)]
    pub unsafe fn build_inline(
        &mut self,
        common: &Common,
        header: impl Header,
        length: usize,
        start: impl FnOnce() -> *const u8,
    ) -> bool {
        const MOST: usize = MAX_DS as usize / 4;
        // SAFETY: the caller's promise.
        let written =
            unsafe { self.next.write_with_inline::<T, MOST>(common, &header, length, start) };
        let Some((_, blocks)) = written else { return false };
        let entry = self.next.entry;
        // SAFETY: so many blocks were written.
        unsafe { self.next.pass(blocks) };
        if blocks > 1 {
            // SAFETY: before the limit, so within ring and table.
            unsafe { self.ring.note_inner(entry, blocks, self.counter_at(self.next.at)) };
        }
        true
    }

    /// Publishes what was built, if it is one request of as few blocks as one with data can have:
    /// from the ring to the register. Otherwise nothing has changed, and the error is for
    /// [`SendQueue::publish_longer`]: where the first request starts, in bytes, and its counter.
    ///
    /// # Safety
    /// As for [`SendQueue::name`]; [`Steps::is_straight`].
    #[inline(always)]
    pub unsafe fn publish_short(&mut self) -> Result<(), (usize, u32)> {
        // The counter's 16 bits, as `Next::at` has them. Where they overflow between the two, the
        // caller goes on by `publish_long`.
        let (start, head) = (usize::from(self.head as u16) * WQEBB_SIZE, self.head);
        // SAFETY: the caller's promise.
        let is_published = unsafe {
            match Self::SHORT {
                1 => self.publish_only::<1>(start, head),
                _ => self.publish_only::<2>(start, head),
            }
        };
        if is_published { Ok(()) } else { Err((start, head)) }
    }

    /// Publishes what was built, if it is one request with a block more. `false`, and nothing has
    /// changed, otherwise.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_short`], which has just returned `start` and `head`.
    #[inline(always)]
    pub unsafe fn publish_longer(&mut self, start: usize, head: u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match Self::SHORT {
                1 => self.publish_only::<2>(start, head),
                _ => self.publish_only::<3>(start, head),
            }
        }
    }

    /// Publishes what was built, if it is one request of `N` blocks.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_longer`].
    #[inline(always)]
    unsafe fn publish_only<const N: usize>(&mut self, start: usize, head: u32) -> bool {
        if self.next.at != start + N * WQEBB_SIZE {
            return false;
        }
        let block = self.next.base.wrapping_byte_add(start);
        // SAFETY: `N` blocks were built, and the first begins a request.
        unsafe {
            let fewer = ((N - 1) * WQEBB_SIZE / 16) as u8;
            if N > 1 && block.cast::<u8>().add(LENGTH).read() <= fewer {
                return false;
            }
            self.copy_request::<N>(block, N, head);
        }
        true
    }

    /// Posts a request of one SGE by way of the ring. `false`, and nothing has changed, if the
    /// queue is not open for it.
    ///
    /// # Safety
    /// As for [`SendQueue::post`]; the queue's service has the operation, and `common` is the
    /// queue's.
    #[inline(always)]
    pub unsafe fn post_sge(
        &mut self,
        common: &Common,
        header: impl Header,
        length: u32,
        address_and_lkey: impl FnOnce() -> (u64, u32),
    ) -> bool {
        // SAFETY: the caller's promise; a block was written.
        unsafe {
            let written = self.next.write_with_sge::<T>(common, &header, length, address_and_lkey);
            let Some(block) = written else { return false };
            self.publish_next::<1>(block.cast(), 1);
        }
        true
    }

    /// Posts a request with data that is copied, by way of the ring. `false`, and nothing has
    /// changed, if the queue is not open for it, or it is longer than `MOST` blocks, at most
    /// four.
    ///
    /// # Safety
    /// The queue's service has the operation, and `common` is the queue's. Of `length` bytes at
    /// `start` all are readable, if there are any.
    #[inline(always)]
    pub unsafe fn post_inline<const MOST: usize>(
        &mut self,
        common: &Common,
        header: impl Header,
        length: usize,
        start: impl FnOnce() -> *const u8,
    ) -> bool {
        const { assert!(MOST <= MAX_COPIED) };
        // SAFETY: the caller's promise; so many blocks were written.
        unsafe {
            let written = self.next.write_with_inline::<T, MOST>(common, &header, length, start);
            let Some((block, blocks)) = written else { return false };
            if MOST > 1 {
                let end = self.head.wrapping_add(blocks as u32);
                self.ring.note_inner(self.next.entry, blocks, end);
            }
            self.publish_next::<MOST>(block.cast(), blocks);
        }
        true
    }

    /// Posts a request with data that is copied, by way of the ring, if it has two blocks. `false`,
    /// and nothing has changed, if it does not, or the queue is not open for it.
    ///
    /// # Safety
    /// As for [`SendQueue::post_inline`].
    #[inline(always)]
    pub unsafe fn post_two_blocks(
        &mut self,
        common: &Common,
        header: impl Header,
        length: usize,
        start: impl FnOnce() -> *const u8,
    ) -> bool {
        // SAFETY: the caller's promise; two blocks were written.
        unsafe {
            let written = self.next.write_two_blocks::<T>(common, &header, length, start);
            let Some(block) = written else { return false };
            self.ring.note_inner(self.next.entry, 2, self.head.wrapping_add(2));
            self.publish_next::<2>(block.cast(), 2);
        }
        true
    }

    /// Publishes the request of `blocks` blocks at the head, at most `MOST`.
    ///
    /// # Safety
    /// It was written, from `from` on.
    #[inline(always)]
    unsafe fn publish_next<const MOST: usize>(&mut self, from: *const Block, blocks: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.copy_request::<MOST>(from, blocks, self.head);
            self.next.pass(blocks);
        }
    }

    /// Publishes the request of `blocks` blocks at `head`, at most `MOST`: its blocks go to the
    /// register, or a doorbell, if the register takes no copies. Not by
    /// [`Doorbell::ring`](crate::doorbell::Doorbell::ring), whose closure the compiler would call.
    ///
    /// # Safety
    /// It was written, from `from` on. A half of the register takes `MOST` blocks.
    #[inline(always)]
    unsafe fn copy_request<const MOST: usize>(
        &mut self,
        from: *const Block,
        blocks: usize,
        head: u32,
    ) {
        let head = head.wrapping_add(blocks as u32);
        self.head = head;
        self.state().publish_sends(head);
        barrier::to_device();
        self.doorbell.record.store(head & 0xffff);
        barrier::before_doorbell();
        let register = &mut self.doorbell.register;
        // SAFETY: the caller's promise.
        unsafe {
            let Some(half) = register.take_half() else {
                crate::hint::cold_path();
                register.only_doorbell(from.cast::<u64>().read());
                return barrier::flush_doorbell();
            };
            let half = half.as_ptr().cast::<Block>();
            for block in 0..MOST {
                if block >= blocks {
                    break;
                }
                copy_in_pairs(half.add(block), from.add(block));
            }
        }
        barrier::flush_doorbell();
    }

    /// Publishes what was built, if it is one request that the register takes, if it takes any.
    /// `false`, and nothing is published, otherwise. A request that was named has no data then,
    /// unless it is not complete.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_short`].
    #[inline(always)]
    pub unsafe fn publish_long(&mut self) -> bool {
        if self.is_incomplete() {
            return false;
        }
        if self.next.at & NAMED != 0 {
            self.end_named();
        }
        let blocks = self.built() as usize;
        if blocks.wrapping_sub(1) >= MAX_COPIED {
            return false;
        }
        let block = self.next.block().wrapping_sub(blocks);
        // SAFETY: it was built here.
        let octowords = unsafe { block.cast::<u8>().add(LENGTH).read() };
        if usize::from(octowords).div_ceil(4) != blocks {
            return false;
        }
        // SAFETY: as compared.
        unsafe { self.copy_request::<MAX_COPIED>(block, blocks, self.head) };
        true
    }

    /// Publishes what was built. `false` if that is nothing, or the last request is not complete.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_short`]; no request was named that has no data yet.
    #[inline(always)]
    pub unsafe fn publish_steps(&mut self) -> bool {
        let built = self.built();
        if built == 0 || self.is_incomplete() {
            return false;
        }
        // By the first bytes of the last request.
        let head = self.head.wrapping_add(built);
        let control = self.ring.control_at(self.state().send_start(head.wrapping_sub(1)));
        self.head = head;
        self.state().publish_sends(head);
        self.doorbell.ring(head, Plain(control));
        true
    }

    /// Opens this path again where [`SendQueue::close_steps`] closed it, if nothing was built
    /// since.
    ///
    /// # Safety
    /// As for [`SendQueue::batch_from`].
    pub unsafe fn reopen_steps(&mut self, steps: &mut Steps) {
        if replace(&mut steps.is_closed, false) {
            self.next.limit = steps.open;
        }
    }

    /// A batch behind what was built, of whatever form its requests are. [`Batch::pause`] gives the
    /// place back.
    ///
    /// # Errors
    /// As for [`SendQueue::batch`], if nothing was built. As for [`SendQueue::end_request`].
    ///
    /// # Safety
    /// The steps were begun with this queue, and since then nothing was built, published or reset
    /// but by such steps and batches.
    pub unsafe fn batch_from(
        &mut self,
        steps: &mut Steps,
    ) -> Result<Batch<'_, T, BlueFlame>, PostError> {
        self.end_request()?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.reopen_steps(steps) };
        if self.has_no_steps() && !steps.has_batch {
            return self.batch();
        }
        Ok(Batch::after_steps(self, self.next, steps.has_batch))
    }
}

impl<T: Transport> Batch<'_, T, BlueFlame> {
    /// Goes on step by step where this batch is.
    ///
    /// # Safety
    /// The batch is one of [`SendQueue::batch_from`], which was given `steps`. What was built is
    /// published by [`SendQueue::publish_steps`] or another batch, or the queue is reset, before
    /// the queue is used in another way.
    pub unsafe fn pause(self, steps: &mut Steps) {
        self.suspend();
        (steps.is_closed, steps.has_batch) = (false, true);
        steps.detour = 1;
    }
}
