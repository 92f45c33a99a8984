//! The ring of a send queue, and the path of one request from the call to the doorbell.
//!
//! On the fast path a request is composed in registers and stored twice: to the ring and to the
//! register. Every check comes before the first store. The general writer writes all other
//! requests. The ring comes with a table of work request ids.

#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::encode::{Request, Wqe, composed, fenced_once, header, short_blocks};
use super::payload::Payload;
use super::space::{Counted, Place};
use super::wide::{
    WideBlock, copy_block, few_rounds, narrow, or, store_blocks, store_composed, wide,
};
use super::{Block, Carries, Operation, RequestId, SendQueue, Takes, Transport, place};
use crate::doorbell::Plain;
use crate::format::{Fence, MAX_DS, WQEBB_SIZE};
use crate::memory::DmaMemory;
use crate::mmio::{BlueFlame, Register, Ring};
use crate::queue_error::QueueError;
use crate::queue_state::{NO_START, QueueState};
use crate::request::{PostError, PostFlags};
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::{QueueHandle, SENDS};

/// A request's blocks, for a register that takes copies of up to four blocks, or doorbells only.
/// `COMPOSED` says that they were composed in registers.
pub(super) struct Copied<'b, const N: usize, const COMPOSED: bool>(&'b [WideBlock; N]);

impl<'b, const N: usize> Copied<'b, N, true> {
    #[inline(always)]
    fn composed(blocks: &'b [WideBlock; N]) -> Self {
        Self(blocks)
    }
}

impl<'b, const N: usize> Copied<'b, N, false> {
    #[inline(always)]
    pub(super) fn stored(blocks: &'b [WideBlock; N]) -> Self {
        Self(blocks)
    }
}

impl<const N: usize, const COMPOSED: bool> Ring for Copied<'_, N, COMPOSED> {
    #[inline(always)]
    fn ring(self, register: &mut BlueFlame) {
        let Some(half) = register.take_half() else {
            crate::hint::cold_path();
            return register.only_doorbell(narrow(self.0[0][0])[0]);
        };
        let half = half.as_ptr().cast();
        // SAFETY: the half takes four blocks, or the queue would not be open.
        unsafe { if COMPOSED { store_composed(half, self.0) } else { store_blocks(half, self.0) } };
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds one request and rings the doorbell for it, and for all requests that were built
    /// before and are unpublished.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// Until the request has completed or the QP has been destroyed, the memory that `payload`
    /// names stays registered; no code writes it meanwhile, nor, for reads and atomics, accesses it
    /// at all. Inline data and `()` demand nothing.
    #[inline(always)]
    pub unsafe fn post<O, P>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_as(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::post`] with an id that is only taken when the request can no longer fail.
    ///
    /// # Errors
    /// As for [`SendQueue::post`]; then the id has not been taken.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(always)]
    pub unsafe fn post_as<I, O, P>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError>
    where
        I: RequestId,
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_any(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::post_as`] without the promise that the queue's service has the operation.
    ///
    /// # Errors
    /// As for [`SendQueue::post_as`].
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[doc(hidden)]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post_any<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.check(operation)?;
        let Some(octowords) = payload.usual(&self.limits, header::<O>()) else {
            crate::hint::cold_path();
            // SAFETY: the caller's promise is the same.
            return unsafe { self.post_unusual(wr_id, operation, payload.any(), flags) };
        };
        // Does not call `try_direct`, because testing its result costs two instructions here.
        let request = Request { operation, payload, octowords, flags };
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, request, short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, request, request.blocks()) };
            return Ok(());
        }
        crate::hint::cold_path();
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload.again(), octowords, flags) }
    }

    /// [`SendQueue::post_any`], as far as it is the fast path. `false`, and nothing has changed, if
    /// that has to be called.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[doc(hidden)]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post_fast<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        let octowords = payload.usual(&self.limits, header::<O>());
        let (Some(octowords), Ok(())) = (octowords, self.check(operation)) else { return false };
        // SAFETY: the caller's promise is the same.
        unsafe { self.try_direct(wr_id, Request { operation, payload, octowords, flags }) }
    }

    /// Posts the request if the fast path can; returns whether it did.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn try_direct<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        request: Request<O, P>,
    ) -> bool {
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.next.has(short_blocks::<O>()) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, request, short_blocks::<O>()) };
                return true;
            }
        } else if is_direct && self.next.has(request.blocks()) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, request, request.blocks()) };
            return true;
        }
        false
    }

    /// Builds a request of `blocks` blocks and rings for it. One to four are composed in registers
    /// and stored twice, to the ring and to BlueFlame; more go to the ring alone. What is not
    /// composed goes to the ring, and is copied from there.
    ///
    /// # Safety
    /// The queue is open so far.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post_direct<I, O, P>(&mut self, wr_id: I, request: Request<O, P>, blocks: usize)
    where
        I: RequestId,
        O: Operation,
        P: Payload,
    {
        let control = or(wide(request.control(self.next.place())), self.base);
        let wqe = request.with_control(control, self.number);
        // SAFETY: each block is asked for as what it is; the queue is open so far.
        unsafe {
            let to = self.next.block();
            if !P::IS_COMPOSED {
                wqe.store(to);
                let head = self.enter(wr_id, blocks);
                self.ring_blocks(head, blocks as u32, |i| to.wrapping_add(i as usize));
                return self.pass(blocks);
            }
            composed!(
                wqe,
                blocks,
                to,
                |composed| self.ring_copied(wr_id, Copied::composed(&composed)),
                {
                    wqe.store_long(to);
                    self.enter(wr_id, blocks);
                    let control = narrow(control)[0];
                    self.doorbell.ring(self.head, Plain(control));
                    self.pass(blocks);
                }
            );
        }
    }

    /// Rings for a request whose blocks are in the ring, at the head: with a copy, if the register
    /// takes any.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    pub(super) unsafe fn ring_copied<I: RequestId, const N: usize, const COMPOSED: bool>(
        &mut self,
        wr_id: I,
        blocks: Copied<'_, N, COMPOSED>,
    ) {
        // SAFETY: open so far.
        let head = unsafe { self.enter(wr_id, N) };
        self.doorbell.ring(head, blocks);
        self.pass(N);
    }

    /// Advances past a request of `blocks` blocks whose doorbell was rung. After the doorbell's
    /// barrier the compiler does this by one instruction on memory.
    #[inline(always)]
    pub(super) fn pass(&mut self, blocks: usize) {
        self.next.at = self.next.at.wrapping_add(blocks * WQEBB_SIZE);
    }

    /// Enters a request of `blocks` blocks that was written at the head, and lets pollers know of
    /// it; returns the new head.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    pub(super) unsafe fn enter<I: RequestId>(&mut self, wr_id: I, blocks: usize) -> u32 {
        // Before the queue moves on, because a program's own implementation may panic.
        let wr_id = wr_id.take();
        self.head = self.head.wrapping_add(blocks as u32);
        self.next.entry = self.next.entry.wrapping_add(blocks);
        // SAFETY: the table has an id for each block of the ring; `handle` keeps it. The request
        // does not straddle the ring's end. Volatile: loads of their own, which let each change be
        // one instruction on memory.
        unsafe {
            let head = (&raw const self.head).read_volatile();
            let entry = (&raw const self.next.entry).read_volatile().wrapping_sub(blocks);
            (*entry).store(wr_id, Ordering::Relaxed);
            self.ring.note_inner(entry, blocks, head);
            self.state().publish_sends(head);
            head
        }
    }

    /// [`SendQueue::post`] of data that may be empty, have empty SGEs, or be refused.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cold]
    #[inline(never)]
    unsafe fn post_unusual<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        let octowords = header::<O>() + payload.octowords(&self.limits)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload, octowords, flags) }
    }

    /// [`SendQueue::post`] of requests that do not go to BlueFlame from registers, and of all
    /// requests while the fast path has no space.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(never)]
    unsafe fn post_general<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        octowords: usize,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.end_batch();
        let (start, request) = (self.head, Request { operation, payload, octowords, flags });
        // SAFETY: the caller's promise is the same.
        let next = unsafe { self.build(self.place(), wr_id, request) }?;
        self.move_to(next);
        self.ring_from_ring(start);
        Ok(())
    }

    /// Publishes the request from `start` to the head, which is in the ring. It is copied to
    /// BlueFlame, unless others are unpublished or the register does not take so many blocks.
    #[inline(always)]
    pub(super) fn ring_from_ring(&mut self, start: u32) {
        let (head, base, mask) = (self.head, self.ring.base, self.ring.mask);
        self.state().publish_sends(head);
        self.ring_blocks(head, head.wrapping_sub(start), |i| {
            base.wrapping_add((start.wrapping_add(i) & mask) as usize)
        });
        self.note_published();
        self.recompute_fast_limit();
    }

    /// Rings for a request of `blocks` blocks before counter `head`. They are in the ring, each
    /// where `block` says.
    #[inline(always)]
    fn ring_blocks(&mut self, head: u32, blocks: u32, block: impl Fn(u32) -> *mut Block) {
        let copies = blocks <= self.direct;
        self.doorbell.ring(head, |register: &mut BlueFlame| {
            // SAFETY: blocks of the ring, which this queue alone writes; the half takes so many.
            unsafe {
                let half = if copies { register.take_half() } else { None };
                let Some(half) = half else {
                    return register.doorbell(block(0).cast::<u64>().read());
                };
                let half = half.as_ptr().cast::<Block>();
                for i in 0..blocks {
                    few_rounds();
                    copy_block(half.add(i as usize), block(i));
                }
            }
        });
    }
}

/// The longest WQE.
#[repr(align(64))]
struct Aside(#[allow(dead_code, reason = "only its size is used")] [Block; 16]);

/// The blocks of a send queue, which only this process writes, and the table of their ids.
///
/// All functions mask the counters that they are given, so no access leaves the ring or the table.
#[derive(Debug)]
pub(super) struct SendRing {
    base: *mut Block,
    /// The work request ids, one per block; then where requests end, see
    /// [`QueueState::set_send_end`].
    entries: *const AtomicU64,
    /// Blocks minus one.
    mask: u32,
    /// Keeps the table.
    handle: QueueHandle,
}

/// Where the fast path writes the next request, and how far it may go. A batch has a copy, to which
/// no reference is passed, so that it can stay in registers.
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
    /// The block.
    #[inline(always)]
    pub(super) fn block(&self) -> *mut Block {
        self.base.wrapping_byte_add(self.at)
    }

    /// The counter, where a control segment's first word has it. Within the limit it does not
    /// overflow.
    #[inline(always)]
    pub(super) fn place(&self) -> u32 {
        (self.at as u32).wrapping_mul(place(1) / WQEBB_SIZE as u32)
    }

    /// Whether requests of so many bytes can be written.
    #[inline(always)]
    pub(super) fn has_bytes(&self, bytes: usize) -> bool {
        self.at + bytes <= self.limit
    }

    /// Whether so many blocks can be written.
    #[inline(always)]
    pub(super) fn has(&self, blocks: usize) -> bool {
        // Both are whole blocks, and for one block this takes an instruction less.
        if blocks == 1 { self.at < self.limit } else { self.has_bytes(blocks * WQEBB_SIZE) }
    }

    /// Moves on over so many blocks.
    #[inline(always)]
    pub(super) fn pass(&mut self, blocks: usize) {
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

impl SendRing {
    /// The ring of a queue with this handle.
    pub(super) fn new(memory: &DmaMemory, handle: QueueHandle) -> Result<Self, QueueError> {
        let blocks = handle.state().send_wqebbs();
        if blocks > 1 << 15 || !memory.holds(blocks, WQEBB_SIZE) {
            return Err(QueueError::BadMemory);
        }
        let (base, entries) = (memory.as_ptr().cast(), handle.state().send_table().0);
        Ok(Self { base, entries, mask: blocks - 1, handle })
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
        let entry = self.entries.wrapping_add((index & self.mask) as usize);
        let base = self.block(index).wrapping_byte_sub(at);
        Next { base, entry, at, limit: at + open as usize * WQEBB_SIZE }
    }

    /// Blocks from a counter to the ring's end.
    #[inline(always)]
    pub(super) fn before_end(&self, counter: u32) -> u32 {
        self.mask + 1 - (counter & self.mask)
    }

    /// The first eight bytes of the request at counter `index`, which was built there.
    #[inline(always)]
    pub(super) fn control_at(&self, index: u32) -> u64 {
        // SAFETY: the masked block lies within the ring, which this queue alone writes.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    /// Length in blocks of the request at counter `index`, from its control segment.
    pub(super) fn blocks_at(&self, index: u32) -> u32 {
        // SAFETY: as in `control_at`.
        let ds = unsafe { self.block(index).cast::<u8>().add(7).read() } & MAX_DS;
        u32::from(ds).div_ceil(4)
    }

    /// [`SendQueue::note_blocks`] of a request that does not straddle the ring's end, and whose id
    /// is at `entry`; it ends at counter `end`.
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
            let second = unsafe { &*entry.add(self.mask as usize + 2) };
            second.store(end.into(), Ordering::Relaxed);
        }
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// Builds any request at `at`, and returns the place after it. The queue's head does not move:
    /// the caller moves it.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn build<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        at: Place,
        wr_id: I,
        request: Request<O, P>,
    ) -> Result<Place, PostError> {
        if request.is_too_long() {
            return Err(PostError::TooManySge);
        }
        let blocks = request.blocks() as u32;
        let own = request.control(place(at.head));
        let mode = fenced_once(own, self.claim(at, blocks)?);
        let control = or(wide(own), or(self.base, wide([0, mode])));
        let wqe = request.with_control(control, self.number);
        // SAFETY: the blocks are free.
        unsafe { self.store(at.head, &wqe, blocks) };
        self.state().send_entry(at.head).store(wr_id.take(), Ordering::Relaxed);
        self.note_blocks(at.head, blocks);
        if O::FENCES_NEXT {
            self.state().set_send_kind(at.head, request.operation.kind());
        }
        let fence = if O::FENCES_NEXT { Fence::SMALL.0 } else { 0 };
        Ok(Place { head: at.head.wrapping_add(blocks), fence })
    }

    /// Stores a request of `blocks` blocks at counter `start`, around the ring's end if need be.
    ///
    /// # Safety
    /// The blocks are free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn store<O: Operation, P: Payload>(&self, start: u32, wqe: &Wqe<O, P>, blocks: u32) {
        if blocks <= self.ring.before_end(start) {
            // SAFETY: the blocks are free, and behind each other.
            return unsafe { wqe.store(self.ring.block(start)) };
        }
        let mut aside = MaybeUninit::<Aside>::zeroed();
        let from = aside.as_mut_ptr().cast::<Block>();
        // SAFETY: as many blocks as a WQE has at most; all of them were written, at least by zeros.
        unsafe {
            wqe.store(from);
            for i in 0..blocks {
                copy_block(self.ring.block(start.wrapping_add(i)), from.add(i as usize));
            }
        }
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
