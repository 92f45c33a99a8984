//! Requests that are built step by step, one step per call of the program: first the operation,
//! then its data.
//!
//! Each step is stored at its place in the ring. The header that the first step stores has the
//! length of a request without data, so such a request needs no further step. The queue's head
//! moves when the requests are published. Until then [`Steps`] holds the position: a copy of the
//! queue's, up to its fast limit.
//!
//! Requests that this path cannot build are built by a [`Batch`], which continues where the steps
//! end ([`SendQueue::batch_from`]) and gives the position back ([`Batch::pause`]).

#![allow(unsafe_code)]

use core::mem::{replace, take};
use core::ptr::{null, null_mut};

use super::encode::{header, mode_word};
use super::payload::{Inline, Payload, segment_octowords};
use super::post::Next;
use super::wide::{Wide, copy_block, wide};
use super::{Batch, Block, Operation, SendQueue, Transport};
use crate::barrier;
use crate::doorbell::Plain;
use crate::format::{ControlSegment, MAX_READ_SGE, Opcode, U32, WQEBB_SIZE};
use crate::mmio::BlueFlame;
use crate::request::{Octoword, PostError, PostFlags, Remote, Sge};
use crate::sync::Ordering;

/// Bytes in a control segment: the opcode's, the length's, and that of the flags.
const OPCODE: usize = 3;
const LENGTH: usize = 7;
const FLAGS: usize = 11;

/// Blocks that a register takes at most.
const MOST_COPIED: usize = super::publish::MOST_COPIED as usize / WQEBB_SIZE;

/// The parts of control segments that all requests of a queue share. Made by [`SendQueue::common`].
#[derive(Debug)]
pub struct Common {
    /// Second words of control segments, for headers of one and of two octowords.
    words: [u32; 2],
    /// One for no header.
    number: u32,
    max_inline: u32,
    max_sge: u32,
    /// The control segment's second half for each combination of the caller's flags.
    modes: [u64; 8],
}

impl Common {
    /// That of no queue.
    pub const NONE: Self =
        Self { words: [0; 2], number: 0, max_inline: 0, max_sge: 0, modes: [0; 8] };
}

/// Requests of a send queue that are built step by step, from [`SendQueue::begin_steps`] on.
#[derive(Debug)]
#[repr(C)]
pub struct Steps {
    next: Next,
    /// Octowords of the request built last, if it has no data yet; else 0.
    named: u32,
    /// Whether something was built elsewhere, or is to be: see [`Steps::detour`].
    detour: u32,
    /// What the limit was before the steps were closed.
    open: usize,
    is_closed: bool,
    /// Whether a batch has built some of the requests.
    has_batch: bool,
}

// SAFETY: pointers into the ring of a queue and into the table that its handle keeps; they are used
// together with that queue only.
unsafe impl Send for Steps {}

/// The operation of a request: a message, or an access to remote memory. Each part is read where it
/// is stored, so that few of them need a register at a time.
pub trait Header {
    /// Octowords: 1, or 2 with a remote address. No other number is written.
    fn octowords(&self) -> usize;
    /// The device's opcode.
    fn opcode(&self) -> Opcode;
    /// The control segment's last word.
    fn immediate(&self) -> U32;
    /// The remote memory; ignored if the header has one octoword.
    fn remote(&self) -> Remote;
    /// Comes back in the completion.
    fn wr_id(&self) -> u64;
    /// See [`SendQueue::common`].
    fn mode(&self) -> u32;
}

/// A request whose operation was set, and which was then removed from the ring.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the parts of a request")]
pub struct Named {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub flags: PostFlags,
    pub immediate: U32,
    pub remote: Remote,
}

impl Steps {
    /// Those of no queue: closed, and not straight.
    pub const NONE: Self = Self {
        next: Next { base: null_mut(), entry: null(), at: 0, limit: 0 },
        named: 0,
        detour: 1,
        open: 0,
        is_closed: false,
        has_batch: false,
    };

    /// A copy, field by field, to pass to functions out of line. Passing the original would force
    /// it into memory.
    #[inline(always)]
    #[must_use]
    pub fn again(&self) -> Self {
        Self { ..*self }
    }

    /// Whether a request was named and has no data yet.
    #[inline(always)]
    pub fn is_named(&self) -> bool {
        self.named != 0
    }

    /// Whether all requests were built here, so that [`SendQueue::publish_one`] and
    /// [`SendQueue::publish_steps`] know of all.
    #[inline(always)]
    pub fn is_straight(&self) -> bool {
        self.detour == 0
    }

    /// Records that requests are built in another way, too. Returns whether this is the first time
    /// since the beginning.
    #[inline(always)]
    pub fn detour(&mut self) -> bool {
        let is_first = replace(&mut self.detour, 1) == 0;
        if is_first {
            (self.is_closed, self.has_batch) = (false, false);
        }
        is_first
    }

    /// Whether a batch has built some of the requests. Of use once there is a detour.
    pub fn has_batch(&self) -> bool {
        self.has_batch
    }

    /// Closes this path until a batch has said where it ended.
    pub fn close(&mut self) {
        if !self.is_closed {
            self.open = self.next.limit;
            self.is_closed = true;
        }
        self.next.limit = 0;
        self.named = 0;
    }

    /// Builds a request without data behind those before. `false`, and nothing has changed, if a
    /// batch has to do it. `mode` is an index of the flags that [`SendQueue::common`] was given.
    ///
    /// # Safety
    /// Since [`SendQueue::begin_steps`] the queue was used as [`SendQueue::batch_from`] says. Its
    /// service has the operation, which demands nothing of its data, and of which the table says
    /// all.
    #[inline(always)]
    pub unsafe fn name<O: Operation>(
        &mut self,
        common: &Common,
        wr_id: u64,
        operation: O,
        mode: u32,
    ) -> bool {
        const { assert!(O::OCTOWORDS < 2 && !O::FENCES_NEXT) };
        if !self.next.has(1) {
            return false;
        }
        let first = ControlSegment::first_word(operation.modifier(), 0, operation.opcode());
        let mode = common.modes[(mode & 7) as usize];
        let block = self.next.block().cast::<u32>();
        // SAFETY: the block before the limit is free.
        unsafe {
            block.write((first | self.next.place()).to_be());
            block.add(1).write(common.words[O::OCTOWORDS]);
            let second = mode | mode_word(0, operation.immediate().get());
            block.cast::<u64>().add(1).write(second);
            for index in 0..O::OCTOWORDS {
                block.cast::<Octoword>().add(1 + index).write(operation.octoword(index, 0));
            }
            (*self.next.entry).store(wr_id, Ordering::Relaxed);
        }
        self.named = header::<O>() as u32;
        self.next.pass(1);
        true
    }

    /// Gives the request that was named one SGE. `false`, and nothing has changed, if there is
    /// none, or a batch has to do it.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn add(&mut self, address: u64, length: u32, lkey: u32) -> bool {
        let size = self.named as usize;
        if size == 0 {
            // Two branches, because the compiler would first turn both answers into numbers if they
            // were joined.
            crate::hint::cold_path();
            return false;
        }
        if length as i32 <= 0 {
            crate::hint::cold_path();
            return false;
        }
        // SAFETY: the block that was named has four octowords, of which two are taken at most.
        unsafe {
            write_sge(self.last().add(size), address, length, lkey);
            self.set_length(self.last(), size + 1);
        }
        self.named = 0;
        true
    }

    /// The block of the request that was named.
    #[inline(always)]
    fn last(&self) -> *mut Wide {
        self.next.block().wrapping_sub(1).cast()
    }

    /// # Safety
    /// `block` is of the ring, and begins a request that was built here.
    #[inline(always)]
    unsafe fn set_length(&self, block: *mut Wide, octowords: usize) {
        // SAFETY: the caller's promise.
        unsafe { block.cast::<u8>().add(LENGTH).write(octowords as u8) };
    }

    /// Removes the request whose operation was set and that has no data yet.
    pub fn take_back(&mut self) -> Option<Named> {
        if take(&mut self.named) == 0 {
            return None;
        }
        let block = self.last().cast::<u8>();
        self.next.entry = self.next.entry.wrapping_sub(1);
        self.next.at -= WQEBB_SIZE;
        // SAFETY: the request was written here, and nothing else writes the ring or the table's
        // entry.
        unsafe {
            let wr_id = (*self.next.entry).load(Ordering::Relaxed);
            let opcode = Opcode(block.add(OPCODE).read());
            let flags = PostFlags::from_bits_retain(block.add(FLAGS).read());
            let immediate = U32::from_bytes(block.add(FLAGS + 1).cast::<[u8; 4]>().read());
            let [address, rkey] = block.add(16).cast::<Octoword>().read();
            let rkey = u32::from_be(rkey.to_le() as u32);
            let remote = Remote::new(u64::from_be(address), rkey);
            Some(Named { wr_id, opcode, flags, immediate, remote })
        }
    }
}

/// Writes the data segment of an SGE that is neither empty nor too long.
///
/// # Safety
/// `to` is valid for writes, and aligned.
#[inline(always)]
unsafe fn write_sge(to: *mut Wide, address: u64, length: u32, lkey: u32) {
    // Not as one octoword, because joining the words would take two instructions. SAFETY: the
    // caller's promise.
    unsafe {
        to.cast::<u32>().write(length.to_be());
        to.cast::<u32>().add(1).write(lkey.to_be());
        to.cast::<u64>().add(1).write(address.to_be());
    }
}

impl<T: Transport> SendQueue<T, BlueFlame> {
    /// The common part of requests that are built step by step. `flags` are the flags that each
    /// `mode` of [`Steps::name`] selects.
    pub fn common(&self, flags: [PostFlags; 8]) -> Common {
        let word = |octowords| ControlSegment::second_word(self.number, octowords).to_be();
        Common {
            words: [word(1), word(2)],
            number: word(0),
            max_inline: self.limits.max_inline,
            max_sge: self.limits.max_sge.min(MAX_READ_SGE),
            modes: flags.map(|flags| mode_word(flags.bits(), 0) | self.mode),
        }
    }

    /// Begins to build requests where the queue is. There must be no unpublished steps: they would
    /// be forgotten.
    #[inline(always)]
    pub fn begin_steps(&mut self, steps: &mut Steps) {
        if !self.next.has(1) {
            crate::hint::cold_path();
            // Without a fast path it may be somewhere else.
            self.next = self.ring.next(self.head, 0);
        }
        steps.next = self.next;
        steps.named = 0;
        steps.detour = 0;
    }

    /// [`SendQueue::begin_steps`], for requests that are published before anything else happens.
    #[inline(always)]
    pub fn new_steps(&mut self) -> Steps {
        let mut steps = Steps::NONE;
        self.begin_steps(&mut steps);
        steps
    }

    /// How many blocks were built.
    #[inline(always)]
    fn built(&self, steps: &Steps) -> u32 {
        let built = ((steps.next.at / WQEBB_SIZE) as u32).wrapping_sub(self.head) & 0xffff;
        // More blocks than the ring has: two threads of the program use the queue without a lock.
        if built > self.ring.blocks() { 0 } else { built }
    }

    /// Whether nothing was built.
    #[inline(always)]
    pub fn has_no_steps(&self, steps: &Steps) -> bool {
        self.built(steps) == 0
    }

    /// Gives the request that was named data that is copied. `false`, and nothing has changed, if
    /// there is none, a batch has to do it, or it needs more than `MOST` blocks.
    ///
    /// # Safety
    /// As for [`Steps::name`], of this queue. Of `length` bytes at `start` all are readable, if
    /// there are any.
    #[inline(always)]
    pub unsafe fn add_inline<const MOST: usize>(
        &self,
        common: &Common,
        steps: &mut Steps,
        start: *const u8,
        length: usize,
    ) -> bool {
        let (before, last) = (steps.named as usize, steps.last());
        // Neither empty nor too long, in one comparison.
        if before == 0 || length.wrapping_sub(1) >= common.max_inline as usize {
            return false;
        }
        let size = segment_octowords(length);
        // SAFETY: the request was built here; the length was compared, so there are free blocks for
        // all data.
        unsafe {
            if last.cast::<u8>().add(OPCODE).read() == Opcode::RDMA_READ.0
                || before + size > 4 * MOST
                || (MOST > 1 && !self.extend(steps, before + size))
            {
                return false;
            }
            let data = core::slice::from_raw_parts(start, length);
            Inline(data).store(last.add(before), size, 1, 4 * MOST);
            steps.set_length(last, before + size);
        }
        steps.named = 0;
        true
    }

    /// Gives the request that was named a list of SGEs: as many as `count` says, which `sge`
    /// gives by their places. `false`, and nothing has changed that counts, if there is none, or a
    /// batch has to do it.
    ///
    /// # Safety
    /// As for [`Steps::name`], of this queue, and as for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn add_list(
        &self,
        common: &Common,
        steps: &mut Steps,
        count: usize,
        sge: impl Fn(usize) -> Sge,
    ) -> bool {
        let (before, last) = (steps.named as usize, steps.last());
        if before == 0 || count.wrapping_sub(1) >= common.max_sge as usize {
            return false;
        }
        if !(0..count).all(|place| sge(place).is_usual()) {
            return false;
        }
        // SAFETY: the request was built here; so there are free blocks for all SGEs.
        unsafe {
            if !self.extend(steps, before + count) {
                return false;
            }
            for place in 0..count {
                last.add(before + place).write(wide(sge(place).octoword()));
            }
            steps.set_length(last, before + count);
        }
        steps.named = 0;
        true
    }

    /// Extends the request that was built last, which has one block, to `octowords` octowords.
    /// `false`, and nothing has changed, if that is beyond the fast limit.
    ///
    /// # Safety
    /// As for [`SendQueue::add_inline`].
    #[inline(always)]
    unsafe fn extend(&self, steps: &mut Steps, octowords: usize) -> bool {
        if octowords <= 4 {
            return true;
        }
        let blocks = octowords.div_ceil(4);
        if !steps.next.has_bytes((blocks - 1) * WQEBB_SIZE) {
            return false;
        }
        let entry = steps.next.entry.wrapping_sub(1);
        steps.next.pass(blocks - 1);
        let end = self.head.wrapping_add(self.built(steps));
        // SAFETY: before the limit, so within ring and table.
        unsafe { self.ring.note_inner(entry, blocks, end) };
        true
    }

    /// Publishes what was built, if it is one request of one block: from the ring to the register.
    /// `false`, and nothing has changed, otherwise.
    ///
    /// # Safety
    /// As for [`Steps::name`], of this queue; [`Steps::is_straight`].
    #[inline(always)]
    pub unsafe fn publish_one(&mut self, steps: &Steps) -> bool {
        if steps.next.at != self.next.at + WQEBB_SIZE {
            return false;
        }
        // SAFETY: one block was built.
        unsafe { self.publish_alone::<1>(steps, 1) };
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
        if length as i32 <= 0 {
            crate::hint::cold_path();
            return false;
        }
        if !self.next.has(1) {
            crate::hint::cold_path();
            return false;
        }
        // SAFETY: the block at the head is free, and holds two octowords and an SGE.
        unsafe {
            let block = self.write_header(common, &header, header.octowords() + 1);
            let (address, lkey) = address_and_lkey();
            write_sge(block.add(header.octowords() & 3), address, length, lkey);
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
        const { assert!(MOST <= MOST_COPIED) };
        // Neither empty nor too long, in one comparison.
        if length.wrapping_sub(1) >= common.max_inline as usize {
            return false;
        }
        let size = segment_octowords(length);
        let octowords = header.octowords() + size;
        let blocks = if MOST == 1 { 1 } else { octowords.div_ceil(4) };
        if octowords > 4 * MOST || !self.next.has(blocks) {
            return false;
        }
        // SAFETY: so many blocks at the head are free, and hold all data.
        unsafe {
            let block = self.write_header(common, &header, octowords);
            let data = core::slice::from_raw_parts(start(), length);
            Inline(data).store(block.add(header.octowords() & 3), size, 1, 4 * MOST);
            if MOST > 1 {
                let end = self.head.wrapping_add(blocks as u32);
                self.ring.note_inner(self.next.entry, blocks, end);
            }
            self.publish_next::<MOST>(block.cast(), blocks);
        }
        true
    }

    /// Writes the header of a request of `octowords` octowords to the block at the head, and enters
    /// its id. Returns the block.
    ///
    /// # Safety
    /// The block is free.
    #[inline(always)]
    unsafe fn write_header(
        &mut self,
        common: &Common,
        header: &impl Header,
        octowords: usize,
    ) -> *mut Wide {
        let block = self.next.block().cast::<u32>();
        // SAFETY: the caller's promise. What is no part of the header is written over.
        unsafe {
            let first = ControlSegment::first_word(0, 0, header.opcode());
            block.write((first | self.next.place()).to_be());
            let second = ControlSegment::second_word(0, octowords as u8).to_be() | common.number;
            block.add(1).write(second);
            let mode = common.modes[(header.mode() & 7) as usize];
            let mode = mode | mode_word(0, header.immediate().get());
            block.cast::<u64>().add(1).write(mode);
            block.cast::<Octoword>().add(1).write(header.remote().octoword());
            (*self.next.entry).store(header.wr_id(), Ordering::Relaxed);
        }
        block.cast()
    }

    /// Publishes the request of `blocks` blocks at the head, at most `MOST`.
    ///
    /// # Safety
    /// It was written, from `from` on.
    #[inline(always)]
    unsafe fn publish_next<const MOST: usize>(&mut self, from: *const Block, blocks: usize) {
        // SAFETY: passed on to the caller.
        unsafe { self.copy_request::<MOST>(from, blocks) };
        self.next.pass(blocks);
    }

    /// Publishes the request of `blocks` blocks at the head, at most `MOST`: its blocks go to the
    /// register, or a doorbell, if the register takes no copies. Not by
    /// [`Doorbell::ring`](crate::doorbell::Doorbell::ring), whose closure the compiler would call.
    ///
    /// # Safety
    /// It was written, from `from` on. A half of the register takes `MOST` blocks.
    #[inline(always)]
    unsafe fn copy_request<const MOST: usize>(&mut self, from: *const Block, blocks: usize) {
        let head = self.head.wrapping_add(blocks as u32);
        self.head = head;
        self.state().publish_sends(head);
        barrier::to_device();
        self.doorbell.record.store(head & 0xffff);
        barrier::before_doorbell();
        let register = &mut self.doorbell.register;
        // SAFETY: the caller's promise.
        unsafe {
            if !register.takes_copies() {
                crate::hint::cold_path();
                register.doorbell(from.cast::<u64>().read());
                return barrier::flush_doorbell();
            }
            let half = register.take_half().cast::<Block>();
            for block in 0..MOST {
                if block >= blocks {
                    break;
                }
                copy_block(half.add(block), from.add(block));
            }
        }
        barrier::flush_doorbell();
    }

    /// Publishes what was built, if it is one request that the register takes, if it takes any.
    /// `false`, and nothing has changed, otherwise.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_one`].
    #[inline(always)]
    pub unsafe fn publish_long(&mut self, steps: &Steps) -> bool {
        let blocks = steps.next.at.wrapping_sub(self.next.at) / WQEBB_SIZE;
        if blocks.wrapping_sub(1) >= MOST_COPIED {
            return false;
        }
        // SAFETY: it was built here.
        let octowords = unsafe { self.next.block().cast::<u8>().add(LENGTH).read() };
        if usize::from(octowords).div_ceil(4) != blocks {
            return false;
        }
        // SAFETY: as compared.
        unsafe { self.publish_alone::<MOST_COPIED>(steps, blocks) };
        true
    }

    /// Publishes what was built. `false` if that is nothing.
    ///
    /// # Safety
    /// As for [`SendQueue::publish_one`].
    #[inline(always)]
    pub unsafe fn publish_steps(&mut self, steps: &Steps) -> bool {
        let built = self.built(steps);
        if built == 0 {
            return false;
        }
        self.publish_by_doorbell(steps, built);
        true
    }

    /// Publishes what was built, `built` blocks, by the first bytes of the last request.
    #[inline(always)]
    fn publish_by_doorbell(&mut self, steps: &Steps, built: u32) {
        let head = self.head.wrapping_add(built);
        let control = self.ring.control_at(self.state().send_start(head.wrapping_sub(1)));
        self.head = head;
        self.state().publish_sends(head);
        self.doorbell.ring(head, Plain(control));
        self.next = steps.next;
    }

    /// Publishes one request of `blocks` blocks, from the ring to the register.
    ///
    /// # Safety
    /// It was built, and a half of the register takes it, if it takes any.
    #[inline(always)]
    unsafe fn publish_alone<const MOST: usize>(&mut self, steps: &Steps, blocks: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_request::<MOST>(self.next.block(), blocks) };
        self.next = steps.next;
    }

    /// A batch behind what was built, of whatever form its requests are. [`Batch::pause`] gives the
    /// place back.
    ///
    /// # Errors
    /// As for [`SendQueue::batch`], if nothing was built.
    ///
    /// # Safety
    /// The steps were begun with this queue, and since then nothing was built, published or reset
    /// but by such steps and batches.
    pub unsafe fn batch_from(
        &mut self,
        steps: &Steps,
    ) -> Result<Batch<'_, T, BlueFlame>, PostError> {
        let built = self.built(steps);
        if built == 0 && !steps.has_batch {
            return self.batch();
        }
        let mut next = steps.next;
        if steps.is_closed {
            next.limit = steps.open;
        }
        Ok(Batch::after_steps(self, next, steps.has_batch))
    }
}

impl<T: Transport> Batch<'_, T, BlueFlame> {
    /// Goes on step by step where this batch is.
    pub fn pause(self, steps: &mut Steps) {
        steps.next = self.position();
        core::mem::forget(self);
        (steps.is_closed, steps.has_batch) = (false, true);
        steps.detour = 1;
    }
}
