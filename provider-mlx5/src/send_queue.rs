//! The send queue: requests are built into the ring, then published with one doorbell.
//!
//! ```text
//! batch()  -> post() post() post() ... -> publish()     many requests, one doorbell
//! post()                                              one request, built in registers, stored twice
//! post_list()                                           requests whose opcode is known at run time
//! ```
//!
//! A request is composed block by block (64 bytes, a WQEBB) in registers and stored whole, so the copy to the BlueFlame
//! register need not wait for narrower stores. Every check comes before the first store. Everything that is constant for an
//! operation is folded at compile time. All requests are written by the same code, `encode.rs`, to consecutive blocks; one
//! that would straddle the ring's end is written beside the ring first.
//!
//! The fast path compares with one counter, `limit`: up to there no request needs a look at the QP's state, no space
//! is missing, the ring does not end, nothing built before waits to be published, and the register takes a copy. What
//! decides this is looked at where it changes (`space.rs`).

mod batch;
mod encode;
pub(crate) mod ethernet;
mod operation;
mod payload;
mod run_time;
mod service;
mod space;
mod template;
mod transport;
mod wide;
mod window;

use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// What operations, data and destinations are is this module's to say: their sizes are relied upon.
mod sealed {
    pub trait Sealed {}
}

use batch::Ahead;
pub use batch::Batch;
pub use ethernet::{
    EthernetFrame, EthernetOffload, EthernetSend, EthernetSendHeader, EthernetTso, Segmented,
    framed, segmented,
};
pub use operation::*;
pub use payload::{AtomicResult, Inline, Payload};
pub use run_time::{RunTimeDestination, RunTimeOperation, SendRequest};
pub use template::{Field, Template, template_blocks};
pub use transport::*;
pub use window::{BindWindow, LocalInvalidate, UnbindWindow, WindowAccess, WindowType};

use crate::doorbell::{Doorbell, DoorbellWord};
use crate::format::{ControlSegment, Fence, MAX_DS, OCTOWORD, WQEBB_SHIFT, WQEBB_SIZE};
use crate::memory::DmaMemory;
use crate::mmio::{BlueFlame, Register};
pub use crate::queue_error::QueueError;
use crate::queue_state::QueueState;
use crate::request::{Octoword, PostError, PostFlags};
use crate::shown_ring::Ring;
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::QueueHandle;
pub use encode::RequestId;
use encode::{Request, Wqe, composed, mode_word, short_blocks};
use payload::Limits;
use space::{Counted, Place};
use wide::{Wide, WideBlock, copy_block, narrow, or, store_blocks, wide};

/// One WQEBB, as it is stored.
type Block = [Octoword; 4];

/// What a send queue is made of.
#[derive(Debug)]
pub struct SendQueueConfig<R = BlueFlame> {
    /// The ring: a power of two of 64-byte blocks, as many as the handle was registered with.
    pub memory: DmaMemory,
    /// The send word of the QP's doorbell record.
    pub doorbell: DoorbellWord,
    /// The doorbell register.
    pub register: R,
    /// The queue's entry in the user index table.
    pub handle: QueueHandle,
    /// The QP's number (raw Ethernet: the send queue's).
    pub number: u32,
    /// Most requests that can be outstanding at a time (`max_send_wr`), however small they are: at least 1.
    pub max_requests: u32,
    /// Most scatter/gather entries per request, at least 1.
    pub max_sge: u32,
    /// Most bytes of inline data per request.
    pub max_inline: u32,
    /// Whether every request makes a completion (`sq_sig_all`).
    pub signal_all: bool,
    /// Raw Ethernet: header bytes that the device wants in the WQE, 0 or 18.
    pub min_inline_header: u8,
    /// Whether the QP was created to deliver short results of reads and atomics inside the CQE. The poller copies them to
    /// the request's buffers then, whose addresses must be this process's.
    pub scatter_to_cqe: bool,
}

/// A send queue of service `T` that rings register `R`.
///
/// One thread posts at a time: posting takes `&mut self`, which is all the locking there is.
#[derive(Debug)]
#[repr(align(128))]
pub struct SendQueue<T: Transport, R: Register = BlueFlame> {
    ring: *mut u8,
    /// The work request ids, one per block; then where requests end, see [`QueueState::set_send_end`].
    entries: *const AtomicU64,
    state: *const QueueState,
    /// Blocks in the ring, minus one.
    mask: u32,
    /// See [`Place`].
    head: u32,
    /// Ring counter up to which requests can be written on the fast path.
    limit: u32,
    /// What all control segments have: the queue's number and `mode`.
    base: Wide,
    limits: Limits,
    doorbell: Doorbell<R>,
    /// Blocks that one request may have to go to BlueFlame now: none while others wait to be published.
    direct: u32,
    /// Blocks filled and not published.
    unpublished: u32,
    /// See [`Place`].
    fence: u8,
    /// Whether the QP's state has to be looked at before the next request.
    stale: bool,
    min_inline_header: u8,
    scatter_to_cqe: bool,
    /// The queue's number.
    number: u32,
    /// Completion mode that every request gets, as the control segment's second word.
    mode: u64,
    /// The first eight bytes of the request built last: what a plain doorbell stores.
    last_control: u64,
    /// Where the batch began, see [`batch::Ahead`].
    ahead: Ahead,
    /// Blocks known to be retired.
    tail: u32,
    /// Requests that can be outstanding now: 0 until the first look for space.
    max_requests: u32,
    /// Requests that were granted.
    granted: u32,
    /// The counter up to which each block may be a request. A request has a block at least, so this
    /// is as many blocks from the tail; requests are counted only where that is reached.
    bound: u32,
    counted: Counted,
    /// The index that had completed last when `tail` was worked out.
    seen: u16,
    handle: QueueHandle,
    transport: PhantomData<T>,
}

/// Bytes that the fast path copies to a register at most.
const MOST_COPIED: u32 = 4 * WQEBB_SIZE as u32;

// SAFETY: `ring` is this queue's own memory (contract of `DmaMemory::new`); `entries` and `state` lead to the block that
// `handle` keeps alive, all of it atomic.
unsafe impl<T: Transport, R: Register + core::marker::Send> core::marker::Send for SendQueue<T, R> {}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// A send queue on an empty ring.
    ///
    /// # Errors
    /// [`QueueError`] if memory, handle and limits do not fit together.
    pub fn new(config: SendQueueConfig<R>) -> Result<Self, QueueError> {
        let state = config.handle.state();
        let blocks = state.send_wqebbs();
        if blocks > 1 << 15 || !config.memory.holds(blocks, WQEBB_SIZE) {
            return Err(QueueError::BadMemory);
        }
        let limits = Limits { max_sge: config.max_sge, max_inline: config.max_inline };
        check_limits(T::SERVICE, limits)?;
        if config.max_requests == 0 {
            return Err(QueueError::BadLimits);
        }
        let signaled = PostFlags::SIGNALED.bits();
        let number = u64::from(ControlSegment::second_word(config.number, 0));
        let mode = if config.signal_all { mode_word(signaled, 0) } else { 0 };
        let queue = Self {
            ring: config.memory.as_ptr(),
            entries: state.send_table().0,
            state,
            mask: blocks - 1,
            head: 0,
            limit: 0,
            base: wide([number.to_be(), mode]),
            limits,
            direct: config.register.copy_limit() / WQEBB_SIZE as u32,
            doorbell: Doorbell { record: config.doorbell, register: config.register },
            unpublished: 0,
            fence: 0,
            stale: true,
            min_inline_header: config.min_inline_header,
            scatter_to_cqe: config.scatter_to_cqe,
            number: config.number & 0xff_ffff,
            mode,
            last_control: 0,
            ahead: Ahead::default(),
            tail: 0,
            max_requests: 0,
            granted: config.max_requests,
            bound: 0,
            counted: Counted::default(),
            seen: u16::MAX,
            handle: config.handle,
            transport: PhantomData,
        };
        queue.show_ring();
        Ok(queue)
    }

    /// Starts building requests, to be published together.
    ///
    /// # Errors
    /// [`PostError::BadState`] before RTS. In ERR and SQE requests are taken, and the device flushes them.
    #[inline(always)]
    pub fn batch(&mut self) -> Result<Batch<'_, T, R>, PostError> {
        self.look_at_state()?;
        Ok(Batch::new(self))
    }

    /// Builds one request and rings the doorbell for it, and for whatever was built before and not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; then nothing has been stored and nothing rung.
    ///
    /// # Safety
    /// The memory that `payload` names stays registered, and is not used against the device's reading (or, for reads and
    /// atomics, writing) it, until the request has completed or the QP has been destroyed. Inline data and `()` demand
    /// nothing.
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

    /// [`SendQueue::post`] with an id that is asked for once nothing can fail any more.
    ///
    /// # Errors
    /// As for [`SendQueue::post`]; the id has not been asked for then.
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
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn post_any<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.check(operation)?;
        let Some(size) = payload.usual(&self.limits) else {
            crate::hint::seldom();
            // SAFETY: the caller's promise is the same.
            return unsafe { self.post_unusual(wr_id, operation, payload.any(), flags) };
        };
        let request = Request { operation, payload, size, flags };
        let is_direct = !O::FENCES_NEXT && !request.reads_too_much();
        if request.is_short() {
            if is_direct && self.is_open(short_blocks::<O>() as u32) {
                // SAFETY: open so far.
                unsafe { self.post_direct(wr_id, request, short_blocks::<O>()) };
                return Ok(());
            }
        } else if is_direct && self.is_open(request.blocks() as u32) {
            // SAFETY: open so far.
            unsafe { self.post_direct(wr_id, request, request.blocks()) };
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload.again(), size, flags) }
    }

    /// Whether `blocks` blocks can be written and rung at once.
    #[inline(always)]
    fn is_open(&self, blocks: u32) -> bool {
        self.limit.wrapping_sub(self.head) >= blocks
    }

    /// Builds a request of `blocks` blocks and rings for it. One to four are composed in registers
    /// and stored twice, to the ring and to BlueFlame; more go to the ring alone.
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
        let start = self.head;
        let control = or(wide(request.control(place(start))), self.base);
        let wqe = request.with_control(control, self.number);
        // SAFETY: each block is asked for as what it is; the queue is open so far.
        unsafe {
            composed!(wqe, blocks, |composed| self.ring_at_once(wr_id, composed), {
                wqe.store(self.block(start), blocks);
                self.enter(wr_id, start, blocks);
                let control = narrow(control)[0];
                self.doorbell.ring(self.head, |register| register.doorbell(control));
            });
        }
    }

    /// Stores a request's blocks at the head, and publishes it: to BlueFlame, if the register takes copies.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    unsafe fn ring_at_once<I: RequestId, const N: usize>(
        &mut self,
        wr_id: I,
        blocks: [WideBlock; N],
    ) {
        let start = self.head;
        let slot = self.block(start);
        // SAFETY: open so far.
        let head = unsafe {
            store_blocks(slot, &blocks);
            self.enter(wr_id, start, N)
        };
        self.doorbell.ring(head, |register| {
            if !register.takes_copies() {
                crate::hint::seldom();
                return register.doorbell(narrow(blocks[0][0])[0]);
            }
            // SAFETY: the half takes four blocks, or the queue would not be open.
            unsafe { store_blocks(register.take_half().cast(), &blocks) };
        });
    }

    /// Enters a request of `blocks` blocks that was written at `start`, the head, and lets pollers know of it; returns the
    /// new head.
    ///
    /// # Safety
    /// The queue is open so far.
    #[inline(always)]
    unsafe fn enter<I: RequestId>(&mut self, wr_id: I, start: u32, blocks: usize) -> u32 {
        let head = start.wrapping_add(blocks as u32);
        // SAFETY: the table has an id for each block of the ring; `handle` keeps it. The request
        // does not straddle the ring's end.
        unsafe {
            let entry = self.entries.add((start & self.mask) as usize);
            (*entry).store(wr_id.take(), Ordering::Relaxed);
            self.note_inner(entry, blocks, head);
        }
        self.head = head;
        self.state().publish_sends(head);
        head
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
        let size = payload.octowords(&self.limits)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_general(wr_id, operation, payload, size, flags) }
    }

    /// [`SendQueue::post`] of requests that do not go to BlueFlame from registers, and wherever space has to be looked for.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[inline(never)]
    unsafe fn post_general<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        size: usize,
        flags: PostFlags,
    ) -> Result<(), PostError> {
        self.end_batch();
        let (start, request) = (self.head, Request { operation, payload, size, flags });
        // SAFETY: the caller's promise is the same.
        let next = unsafe { self.build(self.place(), wr_id, request) }?;
        self.move_to(next);
        self.ring_from_ring(start);
        Ok(())
    }

    /// Builds any request at `at`, and returns what follows it. The queue itself stays where it is: nothing of this counts
    /// before the caller moves it there.
    ///
    /// # Safety
    /// As for [`SendQueue::post`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn build<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        at: Place,
        wr_id: I,
        request: Request<O, P>,
    ) -> Result<Place, PostError> {
        if request.is_too_long() {
            return Err(PostError::TooManySge);
        }
        let blocks = request.blocks() as u32;
        let mode = self.claim(at, blocks)?;
        // A fence that was asked for is the stronger one, and is the only one.
        let asks = request.flags.contains(PostFlags::FENCE);
        let mode = if asks { mode & !mode_word(Fence::MASK, 0) } else { mode };
        let control = or(wide(request.control(place(at.head))), or(self.base, wide([0, mode])));
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
        if blocks <= self.before_end(start) {
            // SAFETY: the blocks are free, and behind each other.
            return unsafe { wqe.store(self.block(start), blocks as usize) };
        }
        let mut aside = MaybeUninit::<Aside>::uninit();
        let from = aside.as_mut_ptr().cast::<Block>();
        // SAFETY: as many blocks as a WQE has at most; then as many as were written.
        unsafe {
            wqe.store(from, blocks as usize);
            for i in 0..blocks {
                copy_block(self.block(start.wrapping_add(i)), from.add(i as usize));
            }
        }
    }

    /// Makes a batch's or a request's end the queue's own.
    #[inline(always)]
    fn move_to(&mut self, next: Place) {
        self.head = next.head;
        self.fence = next.fence;
    }

    /// Where the next request goes.
    #[inline(always)]
    fn place(&self) -> Place {
        Place { head: self.head, fence: self.fence }
    }

    /// What can be wrong with an operation, other than its data.
    #[inline(always)]
    fn check<O: Operation>(&self, operation: O) -> Result<(), PostError> {
        operation.check()?;
        match operation.inline_header() {
            Some(header) if header < usize::from(self.min_inline_header) => {
                Err(PostError::BadHeader)
            }
            _ => Ok(()),
        }
    }

    /// The block at counter `index`.
    #[inline(always)]
    fn block(&self, index: u32) -> *mut Block {
        // SAFETY: the masked index lies within the ring.
        unsafe { self.ring.cast::<Block>().add((index & self.mask) as usize) }
    }

    /// Rings the doorbell for everything built and not yet published; does nothing if there is nothing.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.unpublished != 0 {
            self.ring_doorbell();
        }
    }

    /// Blocks (64 bytes) that are free now, as far as completions have been polled.
    pub fn free_blocks(&mut self) -> u32 {
        self.retire();
        self.mask + 1 - self.head.wrapping_sub(self.tail)
    }

    /// Requests that can be posted now, as far as completions have been polled and if they are small enough for the blocks
    /// that are free.
    pub fn free_requests(&mut self) -> u32 {
        self.retire();
        self.follow_grant();
        self.requests_left(self.head)
    }

    /// Most requests that can be outstanding at a time.
    #[allow(clippy::misnamed_getters, reason = "the field says how many now")]
    pub fn max_requests(&self) -> u32 {
        self.granted
    }

    /// Blocks that were built and not published.
    pub fn unpublished_blocks(&self) -> u32 {
        self.unpublished
    }

    /// The ids of requests that are not known to be retired, oldest first: those whose completion was not polled, and
    /// unsignaled ones behind the last that was. For cleaning up after [`QueueHandle::close`].
    pub fn for_each_outstanding(&mut self, mut visit: impl FnMut(u64)) {
        self.retire();
        let mut index = self.tail;
        while (self.head.wrapping_sub(index) as i32) > 0 {
            visit(self.state().send_entry(index).load(Ordering::Relaxed));
            // What is in the ring was built here, and so has at least one block; a foreign writer's may lie.
            index = index.wrapping_add(self.blocks_at(index).max(1));
        }
    }

    /// Address of the ring, and its blocks of 64 bytes: for programs that write requests
    /// themselves.
    pub fn ring(&self) -> (*mut u8, u32) {
        (self.ring, self.mask + 1)
    }

    /// Most bytes of inline data per request.
    pub fn max_inline(&self) -> u32 {
        self.limits.max_inline
    }

    /// Most scatter/gather entries per request.
    pub fn max_sge(&self) -> u32 {
        self.limits.max_sge
    }

    /// The queue's counter: blocks filled so far, modulo 2^32.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The handle that the queue was made with.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    /// Starts over, after the QP was reset: `handle` is the renewed one ([`QueueHandle::renew`]). What was not published is lost.
    ///
    /// # Panics
    /// If it is not of this queue.
    pub fn reset(&mut self, handle: QueueHandle) {
        assert_eq!(handle.user_index(), self.handle.user_index(), "another queue's handle");
        self.state = handle.state();
        self.entries = handle.state().send_table().0;
        self.handle = handle;
        self.head = 0;
        self.tail = 0;
        self.counted = Counted::default();
        self.bound = 0;
        self.fence = 0;
        self.stale = true;
        self.max_requests = 0;
        self.ahead.is_open = false;
        self.seen = u16::MAX;
        self.published();
        self.doorbell.record.store(0);
        self.show_ring();
    }

    /// Makes the next post look at the QP's state. To be called when that goes back to one in which nothing can be
    /// posted, unless [`SendQueue::reset`] comes before the next post: otherwise it may be noticed a lap later only.
    pub fn recheck_state(&mut self) {
        self.stale = true;
        self.settle();
    }

    /// Works out anew how far the fast path may go.
    #[inline(always)]
    fn settle(&mut self) {
        let copies = self.doorbell.register.copy_limit();
        self.limit = self.head;
        if self.unpublished == 0 && (copies == 0 || copies >= MOST_COPIED) {
            self.limit = self.open_until(self.place());
        }
    }

    /// Lets the poller look into the ring, if it may have to.
    fn show_ring(&self) {
        let head = OCTOWORD as u32 * T::SERVICE.address_octowords() as u32;
        let ring = Ring { base: self.ring, mask: self.mask, shift: WQEBB_SHIFT, head };
        self.state().set_send_ring(self.scatter_to_cqe.then_some(ring));
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
        self.counted = Counted::up_to(head);
        self.max_requests = self.granted;
        self.bound = head.wrapping_add(self.granted.min(self.mask + 1));
        self.stale = false;
        self.fence = if small_fence { Fence::SMALL.0 } else { 0 };
        self.settle();
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        // SAFETY: `handle` keeps the block alive.
        unsafe { &*self.state }
    }

    /// Publishes up to `head`, with an 8-byte doorbell.
    fn ring_doorbell(&mut self) {
        let control = self.last_control;
        self.state().publish_sends(self.head);
        self.doorbell.ring(self.head, |register| register.doorbell(control));
        self.published();
    }

    /// Publishes the request from `start` to the head, which is in the ring: to BlueFlame, unless others wait to be
    /// published or the register does not take so much.
    #[inline(always)]
    fn ring_from_ring(&mut self, start: u32) {
        let (ring, mask, head) = (self.ring.cast::<Block>(), self.mask, self.head);
        let (blocks, control) = (head.wrapping_sub(start), self.control_at(start));
        let copies = blocks <= self.direct;
        self.state().publish_sends(head);
        self.doorbell.ring(head, |register| {
            if !copies {
                return register.doorbell(control);
            }
            let half = register.take_half().cast::<Block>();
            for i in 0..blocks {
                // SAFETY: the half takes `blocks` blocks, all of which lie in the ring.
                unsafe {
                    let block = ring.add((start.wrapping_add(i) & mask) as usize);
                    copy_block(half.add(i as usize), block);
                }
            }
        });
        self.published();
    }

    /// Notes that the requests from `start` to the head were built and not published.
    #[inline(always)]
    fn note_unpublished(&mut self, start: u32) {
        self.unpublished = self.unpublished.wrapping_add(self.head.wrapping_sub(start));
        self.last_control = self.control_at(self.state().send_start(self.head.wrapping_sub(1)));
        self.direct = 0;
        self.limit = self.head;
    }

    /// The first eight bytes of the request at counter `index`.
    #[inline(always)]
    fn control_at(&self, index: u32) -> u64 {
        // SAFETY: within the ring, which this queue alone writes.
        unsafe { self.block(index).cast::<u64>().read() }
    }

    #[inline(always)]
    fn published(&mut self) {
        self.unpublished = 0;
        self.direct = self.doorbell.register.copy_limit() / WQEBB_SIZE as u32;
        self.settle();
    }
}

/// The longest WQE.
#[repr(align(64))]
struct Aside(#[allow(dead_code, reason = "only its size is used")] [Block; 16]);

/// The counter's 16 bits, where the control segment's first word has them.
#[inline(always)]
fn place(index: u32) -> u32 {
    u32::from(index as u16) << 8
}

impl<T: Transport, R: Register> Drop for SendQueue<T, R> {
    fn drop(&mut self) {
        // The ring's memory is about to go: no poller may look into it any more.
        self.state().set_send_ring(None);
    }
}

fn check_limits(service: Service, limits: Limits) -> Result<(), QueueError> {
    let inline = (limits.max_inline as usize + 4).div_ceil(16);
    let data = inline.max(limits.max_sge as usize);
    let octowords = 1 + service.data_overhead() + data;
    let inline_fits = limits.max_inline <= crate::format::INLINE_LENGTH_MASK;
    let fits = octowords <= MAX_DS as usize;
    if limits.max_sge >= 1 && inline_fits && fits { Ok(()) } else { Err(QueueError::BadLimits) }
}
