//! The receive queue of a QP (or a work queue): a ring of fixed entries, consumed in order.
//!
//! Posting fills entries, publishing tells the device how many; there is no doorbell register, the device reads the
//! record when a message arrives.

#![allow(unsafe_code)]

use crate::doorbell::DoorbellWord;
use crate::format::DataSegment;
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;
use crate::queue_state::{QueueState, completed_counter};
use crate::request::{ListError, Octoword, PostError, Sge, each, octoword};
use crate::shown_ring::Ring;
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::{QueueHandle, RECEIVES};

/// What a receive queue is made of.
#[derive(Debug)]
pub struct RecvQueueConfig {
    /// The ring: as many entries as the handle was registered with, of `stride` bytes.
    pub memory: DmaMemory,
    /// The receive word of the QP's doorbell record.
    pub doorbell: DoorbellWord,
    /// The queue's entry in the user index table.
    pub handle: QueueHandle,
    /// Bytes per entry, a power of two from 16 to 512: room for `stride / 16` scatter entries.
    pub stride: u32,
    /// Octowords before the first scatter entry: 1 for a linked-list striding queue, else 0.
    pub head_octowords: u32,
    /// Whether the QP was created to deliver short messages inside the CQE. The poller copies them to the receive's buffers
    /// then, whose addresses must be this process's.
    pub scatter_to_cqe: bool,
}

/// A request to receive: where a message goes, and what its completion hands back.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The pieces of memory that the message fills, in order.
    pub data: &'a [Sge],
}

/// The receive queue of a QP.
///
/// A receive of one SGE is written at the front, as long as that is before `limit`; any other list up
/// to `open`. There the slow path looks for space: at the ring's end, in a queue that seems full, and
/// for the first receive after the QP's state may have changed.
#[derive(Debug)]
#[repr(align(128))]
pub struct RecvQueue {
    front: Front,
    /// Entries built so far; wraps.
    head: u32,
    /// The id up to which a list of one SGE needs no end written: `open`, or the front's once there
    /// were other lists.
    limit: *const AtomicU64,
    /// The id up to which entries are free and before the ring's end.
    open: *const AtomicU64,
    /// Bytes per entry.
    stride: u32,
    doorbell: DoorbellWord,
    ring: *mut u8,
    /// log2 of the bytes per entry.
    shift: u8,
    /// Most scatter entries.
    max_sge: u8,
    head_octowords: u32,
    /// Entries minus one.
    mask: u32,
    /// Entries known to be retired.
    tail: u32,
    /// Whether there may have been lists of several SGEs. As long as there were none, all entries have
    /// a terminator where a second SGE would be.
    has_lists: bool,
    scatter_to_cqe: bool,
    handle: QueueHandle,
}

/// Where the next receive goes: its scatter list, and its work request id.
#[derive(Clone, Copy, Debug)]
struct Front {
    entry: *mut Octoword,
    id: *const AtomicU64,
}

impl Front {
    /// Writes a receive of one piece, and moves on by `stride` bytes.
    ///
    /// # Safety
    /// The front is that of a queue that is alive, before its limit.
    #[inline(always)]
    unsafe fn write(&mut self, wr_id: u64, piece: Sge, stride: u32) {
        // SAFETY: entry and id lie in the ring and in the table. Behind the last one they are not used
        // until the slow path has moved them.
        unsafe {
            self.entry.write(piece.octoword());
            self.enter(wr_id, stride);
        }
    }

    /// Enters the request id of the receive that was written, and moves on by `stride` bytes.
    ///
    /// # Safety
    /// As for [`Front::write`].
    #[inline(always)]
    unsafe fn enter(&mut self, wr_id: u64, stride: u32) {
        // SAFETY: the caller's word.
        unsafe { (*self.id).store(wr_id, Ordering::Relaxed) };
        self.pass(stride);
    }

    /// Moves on by an entry of `stride` bytes.
    #[inline(always)]
    fn pass(&mut self, stride: u32) {
        self.entry = self.entry.wrapping_byte_add(stride as usize);
        self.id = self.id.wrapping_add(1);
    }
}

/// Where a queue's receives are, for a poller that gives them back at the places that they had.
#[derive(Debug)]
pub(crate) struct Places {
    /// The scatter list of the first entry of the ring.
    pub(crate) first: *mut Octoword,
    /// log2 of the bytes per entry.
    pub(crate) shift: u8,
    /// Entries minus one.
    pub(crate) mask: u32,
    pub(crate) doorbell: DoorbellWord,
    /// The table of work request ids.
    pub(crate) ids: *const AtomicU64,
}

/// A ring whose receives are all posted: a poller of its own gives its places new buffers, in order.
#[derive(Debug)]
pub struct PostedRing {
    places: Places,
    head: u32,
    handle: QueueHandle,
}

// SAFETY: as for the receive queue that it is of.
unsafe impl Send for PostedRing {}

impl PostedRing {
    /// The ring of `receives`, in which each receive was posted with one SGE.
    ///
    /// # Errors
    /// `BadLimits` unless all receives are posted.
    ///
    /// # Safety
    /// As long as the result is used, or a [`StrideQueue`](crate::completion_queue::StrideQueue)
    /// that was made of it: this queue and the CQ that it completes to live where their memory is,
    /// are neither posted to nor polled but by calls of the result, and no other queue completes to
    /// the CQ, which is the one that the `StrideQueue` is made of. The receives are as
    /// [`PostedRing::post`] demands.
    pub unsafe fn new(receives: &mut RecvQueue) -> Result<Self, QueueError> {
        let places = receives.places();
        if receives.outstanding() != places.mask + 1 {
            return Err(QueueError::BadLimits);
        }
        Ok(Self { places, head: receives.head(), handle: receives.handle().clone() })
    }

    /// Posts a buffer of one SGE at the next place. The device learns of it with
    /// [`PostedRing::publish`].
    ///
    /// # Safety
    /// The device has completed the receive that was there. The buffer is memory that stays
    /// registered, and of which no byte is read or written before the device has completed it, or
    /// until the queue is gone.
    pub unsafe fn post(&mut self, buffer: Sge) {
        let place = self.place(self.head) as usize;
        // SAFETY: an entry of the ring, which has `mask + 1` of them, and which the device does not
        // read before it is told of it.
        unsafe {
            let entry = self.places.first.byte_add(place << self.places.shift);
            entry.write(buffer.octoword());
        }
        self.head = self.head.wrapping_add(1);
    }

    /// Tells the device of all buffers that were posted.
    pub fn publish(&mut self) {
        crate::barrier::to_device();
        self.places.doorbell.store_release(self.head & 0xffff);
    }

    /// Receives posted so far; wraps.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Receives that the ring holds.
    pub fn depth(&self) -> u32 {
        self.places.mask + 1
    }

    /// The place of a receive by its counter.
    pub fn place(&self, counter: u32) -> u32 {
        counter & self.places.mask
    }

    /// The device failed a receive.
    pub(crate) fn failed(&self, too_long: bool) {
        self.handle.state().receive_failed(too_long);
    }
}

/// The piece of a list of one, unless it is empty or too long.
#[inline(always)]
fn only_piece(data: &[Sge]) -> Option<Sge> {
    match data {
        [piece] if piece.is_usual() => Some(*piece),
        _ => None,
    }
}

// SAFETY: as for `SendQueue`.
unsafe impl Send for RecvQueue {}

impl RecvQueue {
    /// A receive queue on an empty ring.
    ///
    /// # Errors
    /// [`QueueError`] if memory, handle and stride do not fit together.
    pub fn new(config: RecvQueueConfig) -> Result<Self, QueueError> {
        let state = config.handle.state();
        let entries = state.recv_wqes();
        let stride = config.stride;
        if entries > 1 << 15 || !config.memory.holds(entries, stride as usize) {
            return Err(QueueError::BadMemory);
        }
        let octowords = stride / 16;
        let stride_fits = stride.is_power_of_two() && (16..=512).contains(&stride);
        if !stride_fits || config.head_octowords >= octowords {
            return Err(QueueError::BadLimits);
        }
        let queue = Self {
            front: Front { entry: core::ptr::null_mut(), id: core::ptr::null() },
            head: 0,
            limit: core::ptr::null(),
            open: core::ptr::null(),
            stride,
            doorbell: config.doorbell,
            ring: config.memory.as_ptr(),
            shift: stride.trailing_zeros() as u8,
            max_sge: (octowords - config.head_octowords) as u8,
            head_octowords: config.head_octowords,
            mask: entries - 1,
            tail: 0,
            has_lists: false,
            scatter_to_cqe: config.scatter_to_cqe,
            handle: config.handle,
        };
        for index in 0..entries {
            // SAFETY: an entry of the ring, which the device has not been told of.
            unsafe { terminate(queue.scatter_list(index), queue.max_sge) };
        }
        queue.show_ring();
        Ok(queue)
    }

    /// Starts building receives, to be published together.
    ///
    /// # Errors
    /// [`PostError::BadState`] in RESET.
    #[inline(always)]
    pub fn batch(&mut self) -> Result<RecvBatch<'_>, PostError> {
        if !self.state().can_receive() {
            return Err(self.state().refusal());
        }
        Ok(RecvBatch { front: self.front, limit: self.limit, stride: self.stride, queue: self })
    }

    /// Builds one receive behind those built before, to be published with them.
    ///
    /// # Errors
    /// [`PostError::BadState`] in RESET; `TooManySge`, `SgeTooLong`, `Full`. Nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process until the receive
    /// has completed or the QP has been destroyed.
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if let Some(piece) = only_piece(data) {
            if self.front.id != self.limit {
                // SAFETY: the queue's own; before the limit.
                unsafe { self.front.write(wr_id, piece, self.stride) };
                self.head = self.head.wrapping_add(1);
                return Ok(());
            }
        }
        // SAFETY: passed on to the caller.
        unsafe { self.build_list(wr_id, data) }
    }

    /// Builds a receive of any list. Out of line, so that posts of one SGE do not get longer.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline(never)]
    unsafe fn build_list(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if self.front.id == self.open || data.len() > usize::from(self.max_sge) {
            // SAFETY: passed on to the caller.
            return unsafe { self.build_slow(wr_id, data) };
        }
        // SAFETY: a free entry, with room for the list.
        if !unsafe { write_list(self.front.entry, data, self.max_sge) } {
            // SAFETY: passed on to the caller.
            return unsafe { self.build_slow(wr_id, data) };
        }
        // SAFETY: just written.
        unsafe { self.front.enter(wr_id, self.stride) };
        self.head = self.head.wrapping_add(1);
        // A list of one came here because there had been others.
        self.has_lists = true;
        self.limit = self.front.id;
        Ok(())
    }

    /// Builds one receive and publishes it, with what was built before.
    ///
    /// # Errors
    /// As for [`RecvQueue::build`]; nothing has been published then.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.build(wr_id, data) }?;
        self.publish();
        Ok(())
    }

    /// Builds receives in order and publishes all that were built.
    ///
    /// # Errors
    /// The first one that cannot be posted, with the reason; those before it are posted and published.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), ListError> {
        let mut batch = self.batch().map_err(ListError::first)?;
        // SAFETY: passed on to the caller.
        let result = each(requests, |request| unsafe { batch.build(request.wr_id, request.data) });
        batch.publish();
        result
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.state().publish_receives(self.head);
        crate::barrier::to_device();
        self.doorbell.store(self.head & 0xffff);
    }

    /// Entries that are free now, as far as completions have been polled.
    pub fn free_entries(&mut self) -> u32 {
        let outstanding = self.outstanding();
        // As long as the CQ holds completions of closed queues in their place, some stay empty.
        (self.mask + 1 - outstanding).saturating_sub(self.handle.held(RECEIVES))
    }

    /// Receives that were built and whose completion was not polled.
    pub fn outstanding(&mut self) -> u32 {
        let head = self.head;
        let outstanding = head.wrapping_sub(self.tail);
        let completed = self.state().completed_recv();
        if let Some(last) = completed_counter(completed, head, outstanding) {
            self.tail = last.wrapping_add(1);
        }
        head.wrapping_sub(self.tail)
    }

    /// The ids of receives whose completion was not polled, oldest first. For cleaning up after
    /// [`QueueHandle::close`].
    pub fn for_each_outstanding(&mut self, mut visit: impl FnMut(u64)) {
        for back in (1..=self.outstanding()).rev() {
            let index = self.head.wrapping_sub(back);
            visit(self.state().recv_entry(index).load(Ordering::Relaxed));
        }
    }

    /// Most scatter entries of a receive.
    pub fn max_sge(&self) -> u32 {
        u32::from(self.max_sge)
    }

    /// Entries built so far, modulo 2^32.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Puts an unused queue where it would be after `head` receives that have all completed. For
    /// tools that encode receives of a queue in the middle of its life.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no device reads its ring.
    #[doc(hidden)]
    pub unsafe fn continue_at(&mut self, head: u32) {
        self.tail = head;
        self.head = head;
        self.recheck_state();
    }

    /// Address of the ring, its entries, and the bytes of each: for programs that write receives
    /// themselves.
    pub fn ring(&self) -> (*mut u8, u32, u32) {
        (self.ring, self.mask + 1, 1 << self.shift)
    }

    /// Where its receives are. They live as long as this queue's memory and its handle.
    pub(crate) fn places(&self) -> Places {
        Places {
            first: self.scatter_list(0),
            shift: self.shift,
            mask: self.mask,
            doorbell: self.doorbell.again(),
            ids: self.state().recv_table().0,
        }
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
        self.handle = handle;
        self.tail = 0;
        self.head = 0;
        self.recheck_state();
        self.doorbell.store(0);
        self.show_ring();
    }

    /// Makes the next receive look at the QP's state. To be called when that goes back to one in which nothing can be
    /// posted, unless [`RecvQueue::reset`] comes before the next receive: otherwise it may be noticed a lap later only.
    pub fn recheck_state(&mut self) {
        self.limit = self.front.id;
        self.open = self.front.id;
    }

    fn show_ring(&self) {
        let head = 16 * self.head_octowords;
        let ring = Ring { base: self.ring, mask: self.mask, shift: u32::from(self.shift), head };
        self.state().set_recv_ring(self.scatter_to_cqe.then_some(ring));
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        self.handle.state()
    }

    /// Builds a receive of any list, wherever the head is.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[cold]
    #[inline(never)]
    unsafe fn build_slow(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // Before anything is refused: SGEs may have been written over a terminator.
        if data.len() > 1 {
            self.has_lists = true;
            self.limit = self.front.id;
        }
        if self.front.id == self.open && !self.state().can_receive() {
            return Err(self.state().refusal());
        }
        check_scatter(data, self.max_sge)?;
        if self.front.id == self.open {
            self.find_space()?;
        }
        // SAFETY: there is a free entry, it holds `max_sge` SGEs, and the data was checked.
        unsafe {
            write_scatter(self.front.entry, data, self.max_sge);
            self.front.enter(wr_id, self.stride);
        }
        self.head = self.head.wrapping_add(1);
        self.limit = if self.has_lists { self.front.id } else { self.open };
        Ok(())
    }

    /// Looks for free entries.
    fn find_space(&mut self) -> Result<(), PostError> {
        let free = self.free_entries();
        if free == 0 {
            return Err(PostError::Full);
        }
        let (slot, entries) = (self.head & self.mask, self.mask + 1);
        self.front.entry = self.scatter_list(slot);
        self.front.id = self.state().recv_table().0.wrapping_add(slot as usize);
        self.open = self.front.id.wrapping_add(free.min(entries - slot) as usize);
        self.limit = self.front.id;
        Ok(())
    }

    /// The scatter list of entry `index`.
    fn scatter_list(&self, index: u32) -> *mut Octoword {
        let offset = ((index & self.mask) as usize) << self.shift;
        // SAFETY: the masked entry lies within the ring, and the head is shorter than an entry.
        unsafe { self.ring.add(offset).cast::<Octoword>().add(self.head_octowords as usize) }
    }
}

/// Receives being built into a queue, published together. Dropping it leaves what was built unpublished.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct RecvBatch<'q> {
    queue: &'q mut RecvQueue,
    front: Front,
    limit: *const AtomicU64,
    stride: u32,
}

impl RecvBatch<'_> {
    /// Builds one receive behind those built before.
    ///
    /// # Errors
    /// `TooManySge`, `SgeTooLong`, `Full`. Nothing has been stored then.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // Kept as two branches: joined, the compiler stores the answer in a register first.
        if self.front.id == self.limit {
            // SAFETY: passed on to the caller.
            return unsafe { self.build_list(wr_id, data) };
        }
        let Some(piece) = only_piece(data) else {
            // SAFETY: passed on to the caller.
            return unsafe { self.build_list(wr_id, data) };
        };
        // SAFETY: the queue's own; before the limit.
        unsafe { self.front.write(wr_id, piece, self.stride) };
        Ok(())
    }

    /// [`RecvQueue::build_list`], and on from where that leaves the queue.
    ///
    /// # Safety
    /// As for [`RecvQueue::build`].
    #[inline(always)]
    unsafe fn build_list(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        self.write_back();
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.queue.build_list(wr_id, data) };
        // Field by field: a copy of the whole would go by way of memory.
        self.front.entry = self.queue.front.entry;
        self.front.id = self.queue.front.id;
        self.limit = self.queue.limit;
        posted
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(mut self) {
        self.write_back();
        let queue = core::mem::ManuallyDrop::new(self);
        // SAFETY: the borrow is moved out of a value that is not used or dropped again.
        unsafe { core::ptr::read(&queue.queue) }.publish();
    }

    #[inline(always)]
    fn write_back(&mut self) {
        let bytes = self.front.id.addr().wrapping_sub(self.queue.front.id.addr());
        let built = bytes / size_of::<AtomicU64>();
        self.queue.head = self.queue.head.wrapping_add(built as u32);
        self.queue.front.entry = self.front.entry;
        self.queue.front.id = self.front.id;
        self.queue.limit = self.limit;
    }
}

impl Drop for RecvBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.write_back();
    }
}

impl Drop for RecvQueue {
    fn drop(&mut self) {
        self.state().set_recv_ring(None);
    }
}

/// Whether a scatter list can be posted: not too many pieces, and none too long.
pub(crate) fn check_scatter(data: &[Sge], max_sge: u8) -> Result<(), PostError> {
    if data.len() > usize::from(max_sge) {
        return Err(PostError::TooManySge);
    }
    match data.iter().any(Sge::is_too_long) {
        true => Err(PostError::SgeTooLong),
        false => Ok(()),
    }
}

/// Writes the terminator that a list of one piece needs, if there is room for a second one.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords.
pub(crate) unsafe fn terminate(entry: *mut Octoword, max_sge: u8) {
    if max_sge > 1 {
        // SAFETY: there is room for two.
        unsafe { entry.add(1).write(octoword(DataSegment::TERMINATOR)) };
    }
}

/// Writes a list whose SGEs are neither empty nor too long, and the end behind it; false if one of
/// them is.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords; `data` has no more SGEs.
#[inline(always)]
unsafe fn write_list(entry: *mut Octoword, data: &[Sge], max_sge: u8) -> bool {
    let mut place = entry;
    for sge in data {
        if !sge.is_usual() {
            return false;
        }
        // SAFETY: at most `max_sge` SGEs.
        place = unsafe {
            place.write(sge.octoword());
            place.add(1)
        };
    }
    if data.len() < usize::from(max_sge) {
        // SAFETY: there is room for one more.
        unsafe { place.write(octoword(DataSegment::TERMINATOR)) };
    }
    true
}

/// Writes a scatter list: the SGEs that are not empty, and the end behind them. An empty SGE would
/// mean 2 GiB to the device, so it is left out.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords; `data` was checked.
pub(crate) unsafe fn write_scatter(entry: *mut Octoword, data: &[Sge], max_sge: u8) {
    let mut count = 0;
    for sge in data.iter().filter(|sge| !sge.is_empty()) {
        // SAFETY: at most `max_sge` SGEs.
        unsafe { entry.add(count).write(sge.octoword()) };
        count += 1;
    }
    if count < usize::from(max_sge) {
        // SAFETY: below `max_sge`.
        unsafe { entry.add(count).write(octoword(DataSegment::TERMINATOR)) };
    }
}
