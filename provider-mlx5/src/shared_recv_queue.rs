//! The shared receive queue: a linked list of entries that many QPs consume, in any order.
//!
//! The device follows the link in each posted entry to the next one, so the link is written when
//! the entry is posted, out of software's own ring of free entries (see `free_list.rs`).
//! Completions give entries back to that ring in the poller's thread; this side takes them.
//!
//! A receive that hit a page fault on memory registered for on-demand paging comes back as an error
//! completion although nothing was wrong with it. The poller puts it aside, and the next call that
//! posts or publishes posts it again, in another entry, so that the faulted one rests meanwhile;
//! libmlx5 does so in the poller (`mlx5_complete_odp_fault`). So is a receive whose completion the
//! poller drops because its QP is closed: the program still counts on it.

#![allow(unsafe_code)]

use crate::doorbell::DoorbellWord;
use crate::format::SrqNextSegment;
use crate::free_list::{ANY, FreeList, NONE, Shortcut};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;
use crate::queue_state::{QpState, QueueState};
use crate::recv_queue::{RecvRequest, check_scatter, terminate, write_scatter};
use crate::request::{ListError, Octoword, PostError, Sge, each};
use crate::shown_ring::Ring;
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::QueueHandle;

/// What a shared receive queue is made of.
#[derive(Debug)]
pub struct SharedRecvQueueConfig {
    /// The ring: as many entries as the handle was registered with, of `stride` bytes.
    pub memory: DmaMemory,
    /// The SRQ's doorbell record, one word.
    pub doorbell: DoorbellWord,
    /// The queue's entry in the user index table, registered with `shared_receive`.
    pub handle: QueueHandle,
    /// Bytes per entry, a power of two from 32 to 512: the link and `stride / 16 - 1` scatter
    /// entries.
    pub stride: u32,
    /// Whether QPs of this SRQ were created to deliver short messages inside the CQE. The poller
    /// copies them to the receive's buffers then, whose addresses must be this process's.
    pub scatter_to_cqe: bool,
}

/// A shared receive queue (basic or XRC).
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedRecvQueue {
    ring: *mut u8,
    entries: *const AtomicU64,
    free: *const FreeList,
    next: Shortcut,
    /// Bytes per entry.
    stride: usize,
    /// The limit of what is taken on the fast path, as far as this side is concerned: [`ANY`] as
    /// long as a list of one SGE needs no terminator written, because all entries have one where a
    /// second SGE would be; then [`NONE`].
    limit: u32,
    max_sge: u8,
    /// The entry that is posted next.
    head: u32,
    /// Receives posted so far; wraps.
    counter: u32,
    doorbell: DoorbellWord,
    handle: QueueHandle,
}

// SAFETY: as for `SendQueue`.
unsafe impl Send for SharedRecvQueue {}

impl SharedRecvQueue {
    /// A shared receive queue with nothing posted.
    ///
    /// # Errors
    /// [`QueueError`] if memory, handle and stride do not fit together.
    pub fn new(config: SharedRecvQueueConfig) -> Result<Self, QueueError> {
        let state = config.handle.state();
        let entries = state.recv_wqes();
        let Some(free) = state.free_list() else { return Err(QueueError::BadLimits) };
        let stride = config.stride;
        let size_fits = (2..=1 << 16).contains(&entries);
        if !size_fits || !config.memory.holds(entries, stride as usize) {
            return Err(QueueError::BadMemory);
        }
        if !stride.is_power_of_two() || !(32..=512).contains(&stride) {
            return Err(QueueError::BadLimits);
        }
        let ring = config.memory.as_ptr();
        let shift = stride.trailing_zeros();
        let shown = Ring { base: ring, mask: entries - 1, shift, head: 16 };
        state.set_recv_ring(config.scatter_to_cqe.then_some(shown));
        let queue = Self {
            ring,
            entries: state.recv_table().0,
            free,
            next: free.shortcut(),
            stride: stride as usize,
            limit: ANY,
            max_sge: (stride / 16 - 1) as u8,
            head: 0,
            counter: 0,
            doorbell: config.doorbell,
            handle: config.handle,
        };
        for index in 0..entries {
            // SAFETY: an entry of the ring, which the device has not been told of.
            unsafe {
                queue.octowords(index).write([0; 2]);
                terminate(queue.octowords(index).add(1), queue.max_sge);
            }
        }
        Ok(queue)
    }

    /// Address of the ring, its entries, and the bytes of each; and the entry that is posted next:
    /// for programs that write receives themselves.
    pub fn layout(&self) -> (*mut u8, u32, u32, u32) {
        (self.ring, self.state().recv_wqes(), self.stride as u32, self.head)
    }

    /// Builds one receive behind those built before, to be published with them.
    ///
    /// # Errors
    /// `TooManySge`, `SgeTooLong`, `Full`; `BadState` after an error of the queue was reported.
    /// Nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the SRQ has been destroyed.
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        if unsafe { self.build_usual(wr_id, data) } {
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: passed on to the caller.
        unsafe { self.build_list(wr_id, data) }
    }

    /// Builds a receive of one SGE. False, and nothing stored, if `build_list` has to do it.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(always)]
    unsafe fn build_usual(&mut self, wr_id: u64, data: &[Sge]) -> bool {
        let [one] = data else { return false };
        if !one.is_usual() {
            return false;
        }
        // SAFETY: the free entries are part of the block that `handle` keeps alive.
        let Some(next) = (unsafe { self.next.take_next(self.counter) }) else { return false };
        let (head, entry) = self.moved(next);
        // SAFETY: the entry holds an SGE.
        unsafe { entry.write(one.octoword()) };
        self.record(head, wr_id);
        true
    }

    /// Builds one receive, and tells the device of everything built so far.
    ///
    /// # Errors
    /// As for [`SharedRecvQueue::build`]; what was built before is the device's all the same.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        if unsafe { self.build_usual(wr_id, data) } {
            // The fast path is open only while nothing waits to be posted again.
            self.ring();
            return Ok(());
        }
        crate::hint::seldom();
        // SAFETY: passed on to the caller.
        unsafe { self.post_any(wr_id, data) }
    }

    /// [`SharedRecvQueue::post`] off the fast path. It rings here, so that the fast path does not
    /// jump to a doorbell that both share.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[cold]
    #[inline(never)]
    unsafe fn post_any(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.build_list(wr_id, data) };
        self.publish();
        posted
    }

    /// Builds a receive of any list.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline(never)]
    unsafe fn build_list(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if self.state().state() == QpState::Err {
            return Err(PostError::BadState);
        }
        check_scatter(data, self.max_sge)?;
        if data.len() > 1 {
            self.limit = NONE;
        }
        if self.free().has_unused() || self.free().limit_is_not(self.limit) {
            self.repost();
        }
        if !self.free().has_grant(self.counter) {
            return Err(PostError::Full);
        }
        let next = self.free().next(self.counter).ok_or(PostError::Full)?;
        self.free().take(self.counter);
        let (head, entry) = self.moved(next);
        // SAFETY: the entry holds `max_sge` SGEs, and the data was checked.
        unsafe { write_scatter(entry, data, self.max_sge) };
        self.record(head, wr_id);
        Ok(())
    }

    /// Makes `next` the head, and links the one that was it to it; returns that one's index and
    /// scatter list.
    #[inline(always)]
    fn moved(&mut self, next: u32) -> (u32, *mut Octoword) {
        let head = self.head;
        self.head = next;
        self.counter = self.counter.wrapping_add(1);
        let entry = self.octowords(head);
        // SAFETY: the link and at least one SGE are in the entry.
        unsafe {
            write_link(entry, next);
            (head, entry.add(1))
        }
    }

    /// Notes the id of a receive that has been written, and makes the entry the device's.
    #[inline(always)]
    fn record(&self, index: u32, wr_id: u64) {
        // SAFETY: table and free list have as many entries as the ring; indices are below that.
        unsafe {
            (*self.entries.add(index as usize)).store(wr_id, Ordering::Relaxed);
            self.next.mark(index);
        }
    }

    /// Builds receives in order and publishes all that were built.
    ///
    /// # Errors
    /// The first one that cannot be posted, with the reason; those before it are posted and
    /// published.
    ///
    /// # Safety
    /// As for [`SharedRecvQueue::build`].
    #[inline]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), ListError> {
        // SAFETY: passed on to the caller.
        let result = each(requests, |request| unsafe { self.build(request.wr_id, request.data) });
        self.publish();
        result
    }

    /// Tells the device of everything built so far, and of what it gave back unused.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.free().has_unused() {
            crate::hint::seldom();
            self.repost();
        }
        self.ring();
    }

    #[inline(always)]
    fn ring(&mut self) {
        crate::barrier::to_device();
        self.doorbell.store(self.counter & 0xffff);
    }

    /// Posts again what the device gave back unused. Each such entry joins the free ones before its
    /// content goes to the next one to be posted, so that there is one even if all others are the
    /// device's; only this side takes free entries, so the content stays meanwhile.
    #[inline(never)]
    fn repost(&mut self) {
        // In this order: see there.
        self.free().set_limit(self.limit);
        // What makes posts go the slow way was recorded before the limit was lowered, and the limit
        // is raised here.
        if self.state().state() == QpState::Err || !self.free().grants_all() {
            self.free().post_slowly();
        }
        while let Some(unused) = self.free().take_unused() {
            self.free().release(unused);
            let next = self.next_free();
            self.free().take(self.counter);
            let (head, to) = self.moved(next);
            let from = self.octowords(unused).wrapping_add(1);
            // SAFETY: entries of the ring, behind the link; the same one at most if the device
            // lies.
            unsafe { to.copy_from(from, self.max_sge as usize) };
            let wr_id = self.state().recv_entry(unused).load(Ordering::Relaxed);
            self.record(head, wr_id);
        }
    }

    /// The entry behind the head, where one has been given back: at most a poller that was faster
    /// has yet to fill its place.
    fn next_free(&self) -> u32 {
        loop {
            match self.free().next(self.counter) {
                Some(next) => return next,
                None => core::hint::spin_loop(),
            }
        }
    }

    #[inline(always)]
    fn octowords(&self, index: u32) -> *mut Octoword {
        // SAFETY: indices of the free list are below the ring's size.
        unsafe { self.ring.add(index as usize * self.stride).cast() }
    }

    /// The ids of receives that the device has, in no order. For cleaning up after
    /// [`QueueHandle::close`].
    pub fn for_each_outstanding(&self, visit: impl FnMut(u64)) {
        self.state().for_each_shared_receive(visit);
    }

    /// Most scatter entries of a receive.
    pub fn max_sge(&self) -> u32 {
        u32::from(self.max_sge)
    }

    /// Most receives that can be posted at a time.
    pub fn capacity(&self) -> u32 {
        self.state().recv_wqes() - 1
    }

    /// The handle that the queue was made with.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        self.handle.state()
    }

    #[inline(always)]
    fn free(&self) -> &FreeList {
        // SAFETY: the list is part of the block that `handle` keeps alive.
        unsafe { &*self.free }
    }
}

/// Writes the link to the entry that is posted next; the rest of the link's segment is zero since
/// the beginning.
///
/// # Safety
/// `entry` is valid for writes, and belongs to this side.
#[inline(always)]
unsafe fn write_link(entry: *mut Octoword, next: u32) {
    const OFFSET: usize = core::mem::offset_of!(SrqNextSegment, next_wqe_index);
    // SAFETY: within the segment, whose fields are aligned.
    unsafe { entry.cast::<u8>().add(OFFSET).cast::<u16>().write((next as u16).to_be()) };
}

impl Drop for SharedRecvQueue {
    fn drop(&mut self) {
        self.state().set_recv_ring(None);
    }
}
