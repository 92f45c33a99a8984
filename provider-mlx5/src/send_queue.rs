//! The send queue: requests are built into the ring, then published with one doorbell.
//!
//! ```text
//! batch()  -> post() post() post() ... -> publish()     many requests, one doorbell
//! submit()                                              one request, built in registers, stored twice
//! post_list()                                           requests whose opcode is known at run time
//! ```
//!
//! A request is composed block by block (64 bytes, a WQEBB) in registers and stored whole, so a block never straddles
//! the ring's end and the copy to the BlueFlame register need not wait for narrower stores. Every check comes before the
//! first store. Everything that is constant for an operation is folded at compile time.
//!
//! Who may fill how much: a queue's `room` has the counter up to which blocks may be filled without a thought. When
//! it is reached the slow path looks for something to do first: it looks at the QP's state, works out the tail from what
//! the poller published, and hands over the fence that a change of memory keys leaves for the next request.
//!
//! A single request is rung at once: `quick` has the counter up to which that needs no thought either, in one
//! comparison. Up to there is room, the ring does not end, nothing built before waits to be published, and the
//! register takes what is written. So what decides this is looked at where it changes, and not at each post.

mod batch;
mod encode;
pub(crate) mod ethernet;
mod operation;
mod payload;
mod run_time;
mod service;
mod template;
mod transport;
mod wide;
mod window;

use core::marker::PhantomData;

/// What operations, data and destinations are is this module's to say: their sizes are relied upon.
mod sealed {
    pub trait Sealed {}
}

use batch::Ahead;
pub use batch::Batch;
pub use ethernet::{
    EthernetOffload, EthernetSend, EthernetSendHeader, EthernetTso, Segmented, segmented,
};
pub use operation::*;
pub use payload::{AtomicResult, Inline, Payload};
pub use run_time::{RunTimeDestination, RunTimeOperation, SendRequest};
pub use template::Template;
pub use transport::*;
pub use window::{BindWindow, LocalInvalidate, UnbindWindow, WindowAccess, WindowType};

use crate::doorbell::{Doorbell, DoorbellWord};
use crate::format::{ControlSegment, MAX_DS, OCTOWORD, WQEBB_SHIFT, WQEBB_SIZE};
use crate::memory::DmaMemory;
use crate::mmio::{BlueFlame, Register};
pub use crate::queue_error::QueueError;
use crate::queue_state::{NO_START, QueueState, completed_counter};
use crate::request::{Octoword, PostError};
use crate::shown_ring::Ring;
use crate::sync::AtomicU64;
use crate::user_index::QueueHandle;
pub use encode::RequestId;
use encode::{Built, Room, Wish, full_blocks, is_quick, mode_word, room};
use payload::{Limits, quick_inline};
use wide::{Wide, WideBlock};

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
    /// The work request ids, one per block.
    entries: *const AtomicU64,
    /// See [`QueueState::marks`].
    marks: *const AtomicU64,
    state: *const QueueState,
    /// Blocks in the ring, minus one.
    mask: u32,
    /// Blocks filled so far. All counters wrap.
    head: u32,
    /// Up to where single requests are rung without a thought, see the module's documentation. Never before the head.
    quick: u32,
    /// What all control segments have: the queue's number and `mode`.
    base: Wide,
    /// See the module's documentation.
    room: Room,
    /// Blocks filled and not published.
    unpublished: u32,
    /// Blocks that one request may have to go to BlueFlame now: none while others wait to be published. `quick` needs two.
    direct: u32,
    /// The queue's number where the control segment's first eight bytes have it.
    number: u64,
    limits: Limits,
    quick_inline: [u32; 5],
    /// Completion mode that every request gets, as the control segment's second word.
    mode: u64,
    min_inline_header: u8,
    doorbell: Doorbell<R>,
    /// The first eight bytes of the request built last: what a plain doorbell stores.
    last_control: u64,
    /// What the batch has found, see [`batch::Ahead`].
    ahead: Ahead,
    /// Blocks known to be retired.
    tail: u32,
    /// Requests that can be outstanding.
    max_requests: u32,
    /// What [`Room::extra`] is at the tail.
    tail_extra: u32,
    /// The index that had completed last when `tail` was worked out.
    seen: u16,
    scatter_to_cqe: bool,
    handle: QueueHandle,
    transport: PhantomData<T>,
}

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
        let signaled = crate::request::PostFlags::SIGNALED.bits();
        let number = u64::from(ControlSegment::second_word(config.number, 0));
        let mode = if config.signal_all { mode_word(signaled, 0) } else { 0 };
        let queue = Self {
            ring: config.memory.as_ptr(),
            entries: state.send_table().0,
            marks: state.marks(),
            state,
            mask: blocks - 1,
            head: 0,
            quick: 0,
            base: wide::wide([number.to_be(), mode]),
            // The first post looks at the state.
            room: Room::default(),
            unpublished: 0,
            direct: config.register.copy_limit() / WQEBB_SIZE as u32,
            number,
            limits,
            quick_inline: quick_inline(limits.max_inline),
            mode,
            min_inline_header: config.min_inline_header,
            doorbell: Doorbell { record: config.doorbell, register: config.register },
            last_control: 0,
            ahead: Ahead::default(),
            tail: 0,
            max_requests: config.max_requests,
            tail_extra: 0,
            seen: u16::MAX,
            scatter_to_cqe: config.scatter_to_cqe,
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
        if !self.state().can_send() {
            return Err(self.state().refusal());
        }
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
    pub unsafe fn submit<O, P>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: crate::request::PostFlags,
    ) -> Result<(), PostError>
    where
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.submit_as(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::submit`] with an id that is asked for once nothing can fail any more.
    ///
    /// # Errors
    /// As for [`SendQueue::submit`]; the id has not been asked for then.
    ///
    /// # Safety
    /// As for [`SendQueue::submit`].
    #[inline(always)]
    pub unsafe fn submit_as<I, O, P>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: crate::request::PostFlags,
    ) -> Result<(), PostError>
    where
        I: RequestId,
        T: Carries<O>,
        O: Takes<P>,
        P: Payload,
    {
        // SAFETY: the caller's promise is the same.
        unsafe { self.submit_any(wr_id, operation, payload, flags) }
    }

    /// [`SendQueue::submit_as`] without the promise that the queue's service has the operation.
    ///
    /// # Safety
    /// As for [`SendQueue::submit`].
    #[inline(always)]
    pub(crate) unsafe fn submit_any<I: RequestId, O: Operation, P: Payload>(
        &mut self,
        wr_id: I,
        operation: O,
        payload: P,
        flags: crate::request::PostFlags,
    ) -> Result<(), PostError> {
        self.check(operation)?;
        let wish = Wish { wr_id, flags };
        if is_quick::<O, P>(payload, &self.quick_inline) {
            let blocks = full_blocks::<O>() + 1;
            if self.is_open(blocks as u32) {
                // SAFETY: open so far.
                let built = unsafe { self.slot(self.head).write_twice(operation, payload, wish) };
                self.ring_at_once(built.get(..blocks).unwrap_or(&built));
                return Ok(());
            }
        } else if full_blocks::<O>() == 0
            && payload.is_double(room::<O>(), self.limits.max_inline)
            && self.is_open(2)
        {
            // SAFETY: open so far; it was asked whether the data is double.
            let built = unsafe { self.slot(self.head).write_double(operation, payload, wish) };
            self.ring_at_once(&built);
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: the caller's promise is the same.
        unsafe { self.submit_general(operation, payload.again(), wish) }
    }

    /// Whether `blocks` blocks, one or two, can be written and rung at once.
    #[inline(always)]
    fn is_open(&self, blocks: u32) -> bool {
        self.quick.wrapping_sub(self.head) >= blocks
    }

    /// [`SendQueue::submit`] for all other requests, and wherever a thought is needed.
    ///
    /// # Safety
    /// As for [`SendQueue::submit`].
    #[inline(never)]
    unsafe fn submit_general<O: Operation, P: Payload, I: RequestId>(
        &mut self,
        operation: O,
        payload: P,
        wish: Wish<I>,
    ) -> Result<(), PostError> {
        let start = self.head;
        // SAFETY: the caller's promise is the same.
        let Built { head, room, control } =
            unsafe { self.build(start, self.room, operation, payload, wish) }?;
        self.room = room;
        self.ring_from_ring(head, control);
        Ok(())
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
        self.max_requests - self.requests_before(self.head, self.room)
    }

    /// Most requests that can be outstanding at a time.
    pub fn max_requests(&self) -> u32 {
        self.max_requests
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
            visit(self.state().send_entry(index).load(crate::sync::Ordering::Relaxed));
            // What is in the ring was built here, and so has at least one block; a foreign writer's may lie.
            index = index.wrapping_add(self.blocks_at(index).max(1));
        }
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
        self.marks = handle.state().marks();
        self.handle = handle;
        self.head = 0;
        self.tail = 0;
        self.tail_extra = 0;
        self.room = Room::default();
        self.seen = u16::MAX;
        self.published();
        self.doorbell.record.store(0);
        self.show_ring();
    }

    /// Makes the next post look at the QP's state. To be called when that goes back to one in which nothing can be
    /// posted, unless [`SendQueue::reset`] comes before the next post: otherwise it may be noticed a lap later only.
    pub fn recheck_state(&mut self) {
        if self.room.limit != self.head {
            self.room = Room { limit: self.head, fence: 0, extra: self.room.extra };
        }
        self.settle();
    }

    /// Works out `quick` anew.
    fn settle(&mut self) {
        let before_end = self.mask + 1 - (self.head & self.mask);
        let free = self.room.limit.wrapping_sub(self.head).min(before_end);
        self.quick = self.head.wrapping_add(if self.direct < 2 { 0 } else { free });
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
        let most = self.max_requests.min(self.mask + 1);
        let empty = Room { limit: head.wrapping_add(most), fence: 0, extra: 0 };
        self.room = if small_fence { empty.fenced(head) } else { empty };
        self.settle();
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        // SAFETY: `handle` keeps the block alive.
        unsafe { &*self.state }
    }

    /// The slow path of a request of `blocks` blocks at `head`: finds room, and hands over what waits for the next
    /// request, together with the mode of all. It waits until the caller has moved the queue: a batch may be forgotten.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, head: u32, room: Room, blocks: u32) -> Result<(Room, u64), PostError> {
        if !self.state().can_send() {
            return Err(self.state().refusal());
        }
        self.retire();
        let free = self.tail.wrapping_add(self.mask + 1).wrapping_sub(head);
        let requests = self.max_requests - self.requests_before(head, room);
        if free < blocks || requests == 0 {
            return Err(PostError::Full);
        }
        // Each block beyond this request's may be a request.
        let limit = head.wrapping_add(free.min(requests - 1 + blocks));
        Ok((Room { limit, fence: 0, ..room }, self.mode | mode_word(room.fence, 0)))
    }

    /// Requests between the tail and `head`, where `room` is what it is there.
    fn requests_before(&self, head: u32, room: Room) -> u32 {
        let extra = room.extra.wrapping_sub(self.tail_extra);
        head.wrapping_sub(self.tail).wrapping_sub(extra)
    }

    /// Notes that the request at counter `start` has `blocks` blocks, so that no other request starts
    /// within it. Given what [`Room::extra`] is before it, returns what it is behind it.
    #[inline(always)]
    fn note_blocks(&self, start: u32, blocks: u32, extra: u32) -> u32 {
        let behind = extra.wrapping_add(blocks - 1);
        for block in 1..blocks {
            let counter = start.wrapping_add(block);
            let slot = (counter & self.mask) as usize;
            let mark = u64::from(counter) << 32 | u64::from(behind);
            // SAFETY: both tables have an entry for each block of the ring; `handle` keeps them.
            unsafe {
                (*self.entries.add(slot)).store(NO_START, crate::sync::Ordering::Relaxed);
                (*self.marks.add(slot)).store(mark, crate::sync::Ordering::Relaxed);
            }
        }
        behind
    }

    /// What [`Room::extra`] is behind the request from `start` to `end`, between tail and head.
    fn extra_behind(&self, start: u32, end: u32) -> u32 {
        if self.tail_extra == self.room.extra {
            return self.tail_extra;
        }
        if end.wrapping_sub(start) > 1 {
            let second = (start.wrapping_add(1) & self.mask) as usize;
            // SAFETY: as in `note_blocks`.
            let mark = unsafe { &*self.marks.add(second) };
            return mark.load(crate::sync::Ordering::Relaxed) as u32;
        }
        let (mut at, mut extra) = (self.tail, self.tail_extra);
        while at != end {
            let blocks = self.blocks_at(at).clamp(1, end.wrapping_sub(at));
            extra = extra.wrapping_add(blocks - 1);
            at = at.wrapping_add(blocks);
        }
        extra
    }

    /// Works out the tail from what the poller published. Of what a batch has built behind the head nothing can have
    /// completed, whatever the device says.
    fn retire(&mut self) {
        let completed = self.state().completed_send();
        if completed == self.seen {
            return;
        }
        self.seen = completed;
        let outstanding = self.head.wrapping_sub(self.tail);
        // The ring still holds what is outstanding as it was built, so the length can be read there.
        let Some(start) = completed_counter(completed, self.head, outstanding) else { return };
        let end = start.wrapping_add(self.blocks_at(start));
        if end.wrapping_sub(self.tail) <= outstanding {
            self.tail_extra = self.extra_behind(start, end);
            self.tail = end;
        }
    }

    /// Length in blocks of the request at counter `index`, from its control segment.
    fn blocks_at(&self, index: u32) -> u32 {
        let offset = (index & self.mask) as usize * WQEBB_SIZE;
        // SAFETY: the masked index lies within the ring, which this queue alone writes.
        let ds = unsafe { self.ring.add(offset + 7).read() } & MAX_DS;
        u32::from(ds).div_ceil(4)
    }

    /// Publishes up to `head`, with an 8-byte doorbell.
    fn ring_doorbell(&mut self) {
        let control = self.last_control;
        self.state().publish_sends(self.head);
        self.doorbell.ring(self.head, |register| register.doorbell(control));
        self.published();
    }

    /// Publishes the request at the head, whose blocks are in registers: to BlueFlame, which is open for it.
    #[inline(always)]
    fn ring_at_once(&mut self, blocks: &[WideBlock]) {
        if blocks.len() > 1 {
            self.room.extra = self.note_blocks(self.head, blocks.len() as u32, self.room.extra);
        }
        self.head = self.head.wrapping_add(blocks.len() as u32);
        self.state().publish_sends(self.head);
        self.doorbell.ring(self.head, |register| {
            let half = register.take_half().cast::<Block>();
            for (i, block) in blocks.iter().enumerate() {
                // SAFETY: the half takes two blocks.
                unsafe { wide::store_block(half.add(i), block) };
            }
        });
    }

    /// Publishes the request between head and `head`, whose blocks are in the ring: to BlueFlame, unless others wait to be
    /// published or the register does not take so much.
    fn ring_from_ring(&mut self, head: u32, control: u64) {
        let (start, blocks) = (self.head, head.wrapping_sub(self.head));
        if blocks > self.direct {
            self.ring_behind(head, control);
            return;
        }
        self.head = head;
        let (ring, mask) = (self.ring.cast::<Block>(), self.mask);
        self.state().publish_sends(head);
        self.doorbell.ring(head, |register| {
            let half = register.take_half().cast::<Block>();
            for i in 0..blocks {
                // SAFETY: the half takes `blocks` blocks, all of which lie in the ring.
                unsafe {
                    let block = ring.add((start.wrapping_add(i) & mask) as usize);
                    wide::copy_block_to_device(half.add(i as usize), block);
                }
            }
        });
        self.settle();
    }

    /// Publishes requests up to `head`, some of which were built before, or do not fit the register.
    #[cold]
    #[inline(never)]
    fn ring_behind(&mut self, head: u32, control: u64) {
        self.note_unpublished(head, control);
        self.ring_doorbell();
    }

    /// Notes that requests up to `head` were built and not published.
    #[inline(always)]
    fn note_unpublished(&mut self, head: u32, last_control: u64) {
        self.unpublished = self.unpublished.wrapping_add(head.wrapping_sub(self.head));
        self.head = head;
        self.last_control = last_control;
        self.direct = 0;
        self.quick = head;
    }

    fn published(&mut self) {
        self.unpublished = 0;
        self.direct = self.doorbell.register.copy_limit() / WQEBB_SIZE as u32;
        self.settle();
    }
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
