//! The ring of a send queue with the table of its work request ids, and the general writer: it
//! writes any request, around the ring's end if need be.

#![allow(unsafe_code)]

use super::encode::{
    Promised, Request, Wqe, first_word, second_word, short_blocks, with_fence, with_flags,
};
use super::payload::{Inline, PREFIX, Payload, segment_octowords};
use super::space::{Counted, Needed, Place};
use super::steps::{Common, Header};
use super::template::control;
use super::wide::{
    Wide, WideBlock, copy_ends, copy_few, copy_request, few_rounds, narrow, or, store_block, wide,
};
use super::{Block, Operation, SendQueue, Template, Transport, place};
use crate::format::{AtomicSegment, ControlSegment, Fence, INLINE_FLAG, MAX_DS, WQEBB_SIZE};
use crate::memory::DmaMemory;
use crate::mmio::Register;
use crate::queue_error::QueueError;
use crate::queue_state::{NO_START, QueueState};
use crate::request::{Octoword, PostError, PostFlags};
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::{QueueHandle, SENDS};

/// The blocks of a send queue, which only this process writes, and the table of their ids.
///
/// All functions mask the counters that they are given, so no access leaves the ring or the table.
#[derive(Debug)]
pub(super) struct SendRing {
    pub(super) base: *mut Block,
    /// The work request ids, one per block of a ring of twice the size; then where requests end,
    /// see [`QueueState::set_send_end`].
    entries: *const AtomicU64,
    /// Number of ids minus one.
    ids: u32,
    /// Blocks minus one.
    pub(super) mask: u32,
    /// Keeps the table.
    handle: QueueHandle,
}

/// Where the fast path writes the next request, and how far it may go. A batch has a copy, to which
/// no reference is passed, so that it can stay in registers.
///
/// The blocks from `at` to `limit` are behind each other, and free: [`SendQueue::next_at`] has
/// found them so, and the place only moves forward over requests that were written. It is a field
/// of the queue whose ring that is, or of a batch, which borrows the queue and has closed the
/// queue's own place. Only files with unsafe code change fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    /// Where a block would be whose counter's 16 bits are 0. It need not be within the ring.
    pub(super) base: *mut Block,
    /// The id of the next request.
    pub(super) entry: *const AtomicU64,
    /// The counter's 16 bits, in bytes of the ring: both the block and what the control segment
    /// says of the counter are one step from it.
    pub(super) at: usize,
    /// Up to here requests can be written: no state or space check is needed, and the ring does not
    /// end. 0 where there is no fast path.
    pub(super) limit: usize,
}

impl Next {
    /// Closes the fast path.
    #[inline(always)]
    pub(super) fn close(&mut self) {
        self.limit = 0;
    }

    /// Goes on at another place of the same queue. Field by field, because copying the struct would
    /// go through memory.
    #[inline(always)]
    pub(super) fn go_on(&mut self, next: Self) {
        self.base = next.base;
        self.entry = next.entry;
        self.at = next.at;
        self.limit = next.limit;
    }

    /// The block.
    #[inline(always)]
    pub(super) fn block(&self) -> *mut Block {
        self.base.wrapping_byte_add(self.at)
    }

    /// The next blocks, for a request whose data ends in the block in which it starts. `None` if
    /// they cannot be written, or the request is longer.
    #[inline(always)]
    pub(super) fn place_short<O: Operation, P: Payload>(
        &mut self,
        request: Promised<Request<O, P>>,
    ) -> Option<Placed<'_, O, P>> {
        let blocks = short_blocks::<O>();
        if request.is_short() && self.has(blocks) {
            Some(Placed { next: self, request: *request, blocks })
        } else {
            None
        }
    }

    /// The next blocks, for any request; `None` if they cannot be written.
    #[inline(always)]
    pub(super) fn place_any<O: Operation, P: Payload>(
        &mut self,
        request: Promised<Request<O, P>>,
    ) -> Option<Placed<'_, O, P>> {
        let blocks = request.blocks();
        if self.has(blocks) { Some(Placed { next: self, request: *request, blocks }) } else { None }
    }

    /// The next blocks, for a template; `None` if the fast path is not for it.
    #[inline(always)]
    pub(super) fn open_for<const N: usize>(&mut self, needed: Needed<N>) -> Option<Slots<'_, N>> {
        let at = self.place_for(needed)?;
        Some(Slots(self, at))
    }

    /// Moves on over so many blocks.
    ///
    /// # Safety
    /// They are before the limit, and were written.
    #[inline(always)]
    pub(super) unsafe fn pass(&mut self, blocks: usize) {
        self.entry = self.entry.wrapping_add(blocks);
        self.at = self.at.wrapping_add(blocks * WQEBB_SIZE);
    }
}

// SAFETY: the ring is the queue's own memory (contract of `DmaMemory::new`); the table is atomic
// and lives as long as `handle`.
unsafe impl Send for SendRing {}
// SAFETY: two places in the `SendRing` of the same queue. The copy in a batch is used with that
// queue only, which the batch borrows exclusively.
unsafe impl Send for Next {}

/// A request, and blocks for all of it that are free and behind each other.
pub(super) struct Placed<'n, O, P> {
    next: &'n mut Next,
    request: Request<O, P>,
    blocks: usize,
}

impl<O: Operation, P: Payload> Placed<'_, O, P> {
    /// Writes the request to the ring, and moves on over it. `base` is the queue's.
    #[inline(always)]
    pub(super) fn write<T: Transport, R: Register>(
        self,
        wr_id: u64,
        base: Wide,
        queue: &SendQueue<T, R>,
    ) {
        let Self { next, request, blocks } = self;
        let own = request.control(next.place());
        let control = if O::IS_OF_WORDS {
            let base = narrow(base);
            wide([own[0] | base[0], own[1] | base[1]])
        } else {
            or(wide(own), base)
        };
        let wqe = request.with_control(control, queue.number);
        // SAFETY: the blocks are free, and as many as the request has.
        unsafe {
            match blocks {
                1 => next.put(wr_id, wqe, 1, queue),
                2 => next.put(wr_id, wqe, 2, queue),
                3 => next.put(wr_id, wqe, 3, queue),
                4 => next.put(wr_id, wqe, 4, queue),
                _ => {
                    crate::hint::cold_path();
                    wqe.store_long(next.block());
                    next.enter_built(wr_id, blocks, queue);
                }
            }
        }
    }
}

/// `N` blocks that are free and behind each other, and their place, which is [`Next::at`]. If they
/// are several, the processor [`copies_pairs`](super::wide::copies_pairs).
pub(super) struct Slots<'n, const N: usize>(&'n mut Next, usize);

impl<const N: usize> Slots<'_, N> {
    /// Stores a template's request, and moves on over it. `base` is the queue's.
    #[inline(always)]
    pub(super) fn put<T: Transport, R: Register, O: Operation>(
        self,
        wr_id: u64,
        template: Promised<&Template<O, N>>,
        flags: PostFlags,
        base: Wide,
        queue: &SendQueue<T, R>,
    ) {
        let Self(next, at) = self;
        next.at = at;
        let image = template.lanes();
        let own = control(&image[..], flags);
        let control = or(or(own, wide([first_word(next.place()), 0])), base);
        // SAFETY: the blocks are free, and behind each other.
        unsafe {
            if N == 1 {
                let [_, second, third, fourth] = image[0];
                store_block(next.block(), &[control, second, third, fourth]);
            } else {
                copy_request(control, &image, (next.base, at + N * WQEBB_SIZE));
            }
            next.enter_built(wr_id, N, queue);
        }
    }
}

impl Next {
    /// Stores a request of `blocks` blocks, a constant, and moves on over it.
    ///
    /// # Safety
    /// It has so many. As for [`Next::enter_built`].
    #[inline(always)]
    unsafe fn put<T: Transport, R: Register, O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        wqe: Wqe<O, P>,
        blocks: usize,
        queue: &SendQueue<T, R>,
    ) {
        // SAFETY: passed on to the caller.
        unsafe {
            wqe.store_blocks(self.block(), blocks);
            self.enter_built(wr_id, blocks, queue);
        }
    }

    /// Enters a request of a batch that was written into `blocks` blocks, and moves on over it.
    ///
    /// # Safety
    /// The blocks are free, and behind each other. The batch is of this queue.
    #[inline(always)]
    unsafe fn enter_built<T: Transport, R: Register>(
        &mut self,
        wr_id: u64,
        blocks: usize,
        queue: &SendQueue<T, R>,
    ) {
        let entry = self.entry;
        // SAFETY: an entry of the table, which the queue's handle keeps alive; the caller vouches
        // for the blocks.
        unsafe {
            self.pass(blocks);
            (*entry).store(wr_id, Ordering::Relaxed);
            queue.ring.note_inner(entry, blocks, queue.counter_at(self.at));
        }
    }
}

/// Requests in a form of the program's own, see [`steps`](super::steps).
impl Next {
    /// Writes the header of a request to the next block, and enters its id. `half` is the first
    /// half of the control segment, but for the first word. Octowords for the destination are left
    /// out. Returns the block.
    ///
    /// # Safety
    /// The block is free, and so is the next one if the header does not end in the first.
    #[inline(always)]
    pub(super) unsafe fn write_header<T: Transport>(
        &self,
        common: &Common,
        header: &impl Header,
        half: u64,
    ) -> *mut Wide {
        let destination = T::SERVICE.address_octowords();
        let has_remote = match destination {
            _ if !T::SERVICE.has_remote_memory() => false,
            // The next block may not be free, if the request has no remote address.
            3 => header.octowords() > 1,
            _ => header.may_have_remote(),
        };
        let block = self.block().cast::<u64>();
        // A sum, because one instruction makes it.
        let word = ControlSegment::first_word(0, 0, header.opcode()).wrapping_add(self.place());
        // SAFETY: the caller's promise. Bytes behind the header are overwritten later.
        unsafe {
            block.write(first_word(word) | half);
            block.add(1).write(common.mode(header));
            if has_remote {
                let remote = block.cast::<Octoword>().add(1 + destination);
                remote.write(header.remote().octoword());
            }
            if let Some(operands) = header.operands() {
                block.cast::<AtomicSegment>().add(2 + destination).write(operands);
            }
        }
        block.cast()
    }

    /// Enters the id of the next request.
    ///
    /// # Safety
    /// Its block is free.
    #[inline(always)]
    pub(super) unsafe fn enter_id(&self, header: &impl Header) {
        // SAFETY: the table has an entry for each block.
        unsafe { (*self.entry).store(header.wr_id(), Ordering::Relaxed) };
    }

    /// Writes a request of one SGE, which has one block. `None`, and nothing has changed, if the
    /// SGE is empty or too long, or there is no block.
    ///
    /// # Safety
    /// As for [`SendQueue::post_sge`].
    #[inline(always)]
    pub(super) unsafe fn write_with_sge<T: Transport>(
        &self,
        common: &Common,
        header: &impl Header,
        length: u32,
        address_and_lkey: impl FnOnce() -> (u64, u32),
    ) -> Option<*mut Wide> {
        // Two branches, because the compiler would first turn both answers into numbers if they
        // were joined.
        if length as i32 <= 0 {
            crate::hint::cold_path();
            return None;
        }
        if !self.has(1) {
            crate::hint::cold_path();
            return None;
        }
        let octowords = header.octowords() & 3;
        // SAFETY: the block is free, and holds two octowords and an SGE.
        unsafe {
            let block = self.write_header::<T>(common, header, common.halves[octowords]);
            self.enter_id(header);
            let (address, lkey) = address_and_lkey();
            write_sge(block.add(octowords), address, length, lkey);
            Some(block)
        }
    }

    /// Writes a request with data that is copied, of up to `MOST` blocks. Returns its first block
    /// and how many there are; `None`, and nothing has changed, if it needs more, the data is empty
    /// or too long, or there are no blocks.
    ///
    /// # Safety
    /// As for [`SendQueue::post_inline`].
    #[inline(always)]
    pub(super) unsafe fn write_with_inline<T: Transport, const MOST: usize>(
        &self,
        common: &Common,
        header: &impl Header,
        length: usize,
        start: impl FnOnce() -> *const u8,
    ) -> Option<(*mut Wide, usize)> {
        // Neither empty nor too long, in one comparison.
        let most = if MOST == 1 { common.max_short } else { common.max_inline };
        if length.wrapping_sub(1) >= most {
            return None;
        }
        let size = segment_octowords(length);
        let octowords = header.octowords() + size;
        let blocks = if MOST == 1 { 1 } else { octowords.div_ceil(4) };
        if (MOST > 1 && octowords > 4 * MOST) || !self.has(blocks) {
            return None;
        }
        // SAFETY: so many blocks are free, and hold all data.
        unsafe {
            let half = common.number | second_word(octowords as u32);
            let block = self.write_header::<T>(common, header, half);
            self.enter_id(header);
            let data = core::slice::from_raw_parts(start(), length);
            Inline(data).store(block.add(header.octowords() & 3), size, 1, 4 * MOST);
            Some((block, blocks))
        }
    }

    /// Writes a request with data that is copied, if it has two blocks. Returns the first block;
    /// `None`, and nothing has changed, if it does not, or there are no blocks.
    ///
    /// # Safety
    /// As for [`SendQueue::post_inline`].
    #[inline(always)]
    pub(super) unsafe fn write_two_blocks<T: Transport>(
        &self,
        common: &Common,
        header: &impl Header,
        length: usize,
        start: impl FnOnce() -> *const u8,
    ) -> Option<*mut Wide> {
        let octowords = header.octowords() & 3;
        let all = common.longer(octowords, 0, length)?;
        if !self.has(2) {
            return None;
        }
        // SAFETY: both blocks are free, and hold all data.
        unsafe {
            let half = common.number | second_word(all as u32);
            let block = self.write_header::<T>(common, header, half);
            self.enter_id(header);
            write_inline(block.add(octowords), start(), length);
            Some(block)
        }
    }
}

/// Writes the data segment of an SGE that is neither empty nor too long.
///
/// # Safety
/// `to` is valid for writes, and aligned.
#[inline(always)]
pub(super) unsafe fn write_sge(to: *mut Wide, address: u64, length: u32, lkey: u32) {
    // Not as one octoword, because joining the words would take two instructions. SAFETY: the
    // caller's promise.
    unsafe {
        to.cast::<u32>().write(length.to_be());
        to.cast::<u32>().add(1).write(lkey.to_be());
        to.cast::<u64>().add(1).write(address.to_be());
    }
}

/// Writes a segment of data that is copied.
///
/// # Safety
/// `start` is valid for reads of `length` bytes, which are 16 to 128, and `to` for writes of the
/// segment.
#[inline(always)]
pub(super) unsafe fn write_inline(to: *mut Wide, start: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        to.cast::<u32>().write((length as u32).wrapping_add(INLINE_FLAG).to_be());
        let to = to.cast::<u8>().add(PREFIX);
        match length {
            ..=32 => copy_few(to, start, length),
            33..=64 => copy_ends::<1>(to, start, length),
            _ => copy_ends::<2>(to, start, length),
        }
    }
}

impl SendRing {
    /// The ring of a queue with this handle.
    pub(super) fn new(memory: &DmaMemory, handle: QueueHandle) -> Result<Self, QueueError> {
        let blocks = handle.state().send_wqebbs();
        if blocks > 1 << 15 || !memory.holds(blocks, WQEBB_SIZE) {
            return Err(QueueError::BadMemory);
        }
        let (entries, ids) = handle.state().send_table();
        Ok(Self { base: memory.as_ptr().cast(), entries, ids, mask: blocks - 1, handle })
    }

    /// Goes on with the handle of the queue's next life.
    ///
    /// # Panics
    /// If it is of another queue.
    pub(super) fn renew(&mut self, handle: QueueHandle) {
        handle.claim_after(&self.handle, SENDS);
        self.entries = handle.state().send_table().0;
        self.handle = handle;
    }

    pub(super) fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    #[inline(always)]
    pub(super) fn state(&self) -> &QueueState {
        self.handle.state()
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.cast()
    }

    /// How many blocks there are.
    #[inline(always)]
    pub(super) fn blocks(&self) -> u32 {
        self.mask + 1
    }

    /// The block at counter `index`.
    #[inline(always)]
    pub(super) fn block(&self, index: u32) -> *mut Block {
        self.base.wrapping_add((index & self.mask) as usize)
    }

    /// The fast path from counter `index` on, over `open` blocks that are behind each other.
    #[inline(always)]
    pub(super) fn next(&self, index: u32, open: u32) -> Next {
        let at = usize::from(index as u16) * WQEBB_SIZE;
        let entry = self.entries.wrapping_add((index & self.ids) as usize);
        let base = self.block(index).wrapping_byte_sub(at);
        Next { base, entry, at, limit: at + open as usize * WQEBB_SIZE }
    }

    /// Whether the block of a counter is the ring's first.
    #[inline(always)]
    pub(super) fn is_start(&self, index: u32) -> bool {
        index & self.mask == 0
    }

    /// The fast path that is at [`Next::at`] and has this limit, where the counter is `index`. (At
    /// the end of its lap [`Next::at`] is above the counter's 16 bits.)
    #[inline(always)]
    pub(super) fn next_within(&self, index: u32, at: usize, limit: usize) -> Next {
        let entry = self.entries.wrapping_add((index & self.ids) as usize);
        Next { base: self.block(index).wrapping_byte_sub(at), entry, at, limit }
    }

    /// Blocks from a counter to the ring's end.
    #[inline(always)]
    pub(super) fn before_end(&self, counter: u32) -> u32 {
        self.mask + 1 - (counter & self.mask)
    }

    /// The first eight bytes of the request at counter `index`, which was built there.
    #[inline(always)]
    pub(super) fn control_at(&self, index: u32) -> u64 {
        // SAFETY: the masked block lies within the ring, which only this queue writes.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    /// Length in blocks of the request at counter `index`, from its control segment.
    #[inline(always)]
    pub(super) fn blocks_at(&self, index: u32) -> u32 {
        // SAFETY: as in `control_at`.
        let ds = unsafe { self.block(index).cast::<u8>().add(7).read() };
        (u32::from(ds) & u32::from(MAX_DS)).div_ceil(4)
    }

    /// Enters the id of the request of `blocks` blocks at counter `start`, and marks its other
    /// blocks, so that no other request is taken to start there.
    #[inline(always)]
    fn note(&self, start: u32, blocks: u32, wr_id: u64) {
        let end = start.wrapping_add(blocks);
        // SAFETY: the table has an id for each block, and then an end for each.
        let entry = |counter: u32, behind: u32| unsafe {
            &*self.entries.add(((counter & self.ids) + behind) as usize)
        };
        entry(start, 0).store(wr_id, Ordering::Relaxed);
        for counter in (1..blocks).map(|block| start.wrapping_add(block)) {
            few_rounds();
            entry(counter, 0).store(NO_START, Ordering::Relaxed);
        }
        if blocks > 1 {
            entry(start.wrapping_add(1), self.ids + 1).store(end.into(), Ordering::Relaxed);
        }
    }

    /// The marks of [`SendRing::note`] for a request that does not straddle the ring's end, and
    /// whose id is at `entry`; it ends at counter `end`.
    ///
    /// # Safety
    /// The entries of the request's blocks are in this queue's table.
    #[inline(always)]
    pub(super) unsafe fn note_inner(&self, entry: *const AtomicU64, blocks: usize, end: u32) {
        for i in 1..blocks {
            few_rounds();
            // SAFETY: the caller vouches for it.
            unsafe { (*entry.add(i)).store(NO_START, Ordering::Relaxed) };
        }
        if blocks > 1 {
            // SAFETY: the table has the ends behind the ids; this is the second block's.
            let second = unsafe { &*entry.add(self.ids as usize + 2) };
            second.store(end.into(), Ordering::Relaxed);
        }
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Posts a request that was encoded before, wherever space has to be looked for.
    #[inline(never)]
    pub(super) fn post_image(
        &mut self,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.end_batch();
        self.claim(self.head, image.len() as u32)?;
        // SAFETY: just claimed.
        unsafe { self.post_claimed(wr_id, image, flags, None) };
        Ok(())
    }

    /// [`SendQueue::post_image`] of a request for which there is space. `fences` is
    /// [`Request::fences`].
    ///
    /// # Safety
    /// So many blocks from the head on are free.
    #[inline(never)]
    pub(super) unsafe fn post_claimed(
        &mut self,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
        fences: Option<u8>,
    ) {
        let start = self.head;
        // SAFETY: passed on to the caller.
        let next = unsafe { self.write_image(self.place(), wr_id, image, flags, fences) };
        self.move_to(next);
        self.ring_from_ring(start);
    }

    /// Builds a request that was encoded before at `at`, around the ring's end if need be, and
    /// returns the place after it. The queue's head does not move: the caller moves it.
    #[inline(never)]
    pub(super) fn build_image(
        &mut self,
        at: Place,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
        fences: Option<u8>,
    ) -> Result<Place, PostError> {
        self.claim(at.head, image.len() as u32)?;
        // SAFETY: just claimed.
        Ok(unsafe { self.write_image(at, wr_id, image, flags, fences) })
    }

    /// [`SendQueue::build_image`] of a request for which there is space.
    ///
    /// # Safety
    /// So many blocks from `at` on are free.
    #[inline(always)]
    unsafe fn write_image(
        &self,
        at: Place,
        wr_id: u64,
        image: Promised<&[WideBlock]>,
        flags: PostFlags,
        fences: Option<u8>,
    ) -> Place {
        let blocks = image.len() as u32;
        for (counter, block) in (0..blocks).map(|i| at.head.wrapping_add(i)).zip(*image) {
            few_rounds();
            let mut block = *block;
            if counter == at.head {
                let own = with_fence(with_flags(block[0], flags), at.fence);
                block[0] = self.stamp(place(at.head), own);
            }
            // SAFETY: passed on to the caller; the counter is masked.
            unsafe { store_block(self.ring.block(counter), &block) };
        }
        self.ring.note(at.head, blocks, wr_id);
        let fence = fences.map_or(0, |kind| {
            self.state().set_send_kind(at.head, kind);
            Fence::SMALL.0
        });
        Place { head: at.head.wrapping_add(blocks), fence }
    }

    /// Puts an unused queue where it would be after `head` blocks that have all completed, the last
    /// request a change of memory keys if `small_fence`. For tools that encode requests of a queue
    /// in the middle of its life.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no device reads its ring.
    #[doc(hidden)]
    pub unsafe fn continue_at(&mut self, head: u32, small_fence: bool) {
        self.head = head;
        self.tail = head;
        self.state().continue_sends(head);
        self.seen = self.state().completed_send();
        self.counted = Counted::up_to(head);
        self.max_requests = self.granted;
        self.bound = head.wrapping_add(self.granted.min(self.ring.blocks()));
        self.stale = false;
        self.fence = if small_fence { Fence::SMALL.0 } else { 0 };
        self.recompute_fast_limit();
    }
}
