//! The receive queue of a QP (or a work queue): a ring of fixed entries, consumed in order.
//!
//! Posting fills entries, and publishing writes their number to the doorbell record. There is no
//! doorbell register: the device reads the record when a message arrives. `recv_queue/post.rs`
//! writes the entries.

mod post;
mod scatter;

pub(crate) use scatter::check_scatter;

use crate::doorbell::DoorbellWord;
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;
use crate::queue_state::QueueState;
use crate::request::{Octoword, PostError, Sge};
use crate::send_queue::Promised;
use crate::shown_ring::Ring;
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::{QueueHandle, RECEIVES};

/// Configuration of a receive queue.
#[derive(Debug)]
pub struct RecvQueueConfig {
    /// The ring: as many entries as the handle was registered with, of `stride` bytes.
    pub memory: DmaMemory,
    /// The receive word of the QP's doorbell record.
    pub doorbell: DoorbellWord,
    /// The queue's entry in the user index table.
    pub handle: QueueHandle,
    /// Bytes per entry, a power of two from 16 to 512: space for `stride / 16` scatter entries.
    pub stride: u32,
    /// Octowords before the first scatter entry: 1 for a linked-list striding queue, else 0.
    pub head_octowords: u32,
    /// Whether the QP was created to deliver short messages inside the CQE. The poller then copies
    /// them to the receive's buffers, so the buffers' addresses must be valid in this process.
    pub scatter_to_cqe: bool,
}

/// The receive queue of a QP.
///
/// A receive of one SGE is written at `front` while `front` is before `limit`; any other list while
/// it is before `open`. Otherwise the slow path looks for space: at the ring's end, in a queue that
/// seems full, and for the first receive after the QP's state may have changed.
#[derive(Debug)]
#[repr(align(128))]
pub struct RecvQueue {
    front: Front,
    /// Entries built so far; wraps.
    head: u32,
    /// The address of an id: before it, a list of one SGE needs no terminator written. Equal to
    /// `open` as long as every entry has a terminator in the place of a second SGE;
    /// [`WITH_LISTS`] after a longer list was posted.
    limit: *const AtomicU64,
    /// The address of an id. Entries before it are free, and the ring does not end before it.
    open: *const AtomicU64,
    /// Bytes per entry.
    stride: u32,
    doorbell: DoorbellWord,
    ring: *mut u8,
    /// log2 of the bytes per entry.
    shift: u8,
    /// Most scatter entries of a receive.
    max_sge: u8,
    head_octowords: u32,
    /// Entries minus one.
    mask: u32,
    /// What the poller sees of the ring, if inline data of CQEs may have to be copied to buffers.
    shown: Option<Ring>,
    handle: QueueHandle,
}

/// `limit` after a longer list was posted: no id is before it.
const WITH_LISTS: *const AtomicU64 = core::ptr::null();

/// Where the next receive is written: its scatter list, and its work request id.
#[derive(Clone, Copy, Debug)]
struct Front {
    entry: *mut Octoword,
    id: *const AtomicU64,
}

/// Where a queue's receives are, for a poller that posts each buffer again in the same entry.
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
        config.handle.claim(RECEIVES)?;
        // Nothing is open yet, so that the first receive looks at the state.
        let id = state.recv_table().0;
        let ring = config.memory.as_ptr();
        let shown = Ring::on(config.memory, entries, stride, 16 * config.head_octowords);
        let queue = Self {
            front: Front { entry: core::ptr::null_mut(), id },
            head: 0,
            limit: id,
            open: id,
            stride,
            doorbell: config.doorbell,
            ring,
            shift: stride.trailing_zeros() as u8,
            max_sge: (octowords - config.head_octowords) as u8,
            head_octowords: config.head_octowords,
            mask: entries - 1,
            shown: shown.filter(|_| config.scatter_to_cqe),
            handle: config.handle,
        };
        queue.clear_ring();
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
        Ok(RecvBatch { front: self.front, stride: self.stride, queue: self })
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.publish_up_to(self.head);
    }

    /// [`RecvQueue::publish`], for a caller that has just loaded `head`.
    #[inline(always)]
    fn publish_up_to(&mut self, head: u32) {
        self.state().publish_receives(head);
        crate::barrier::to_device();
        self.doorbell.store(head & 0xffff);
    }

    /// Free entries, as far as completions have been polled.
    pub fn free_entries(&mut self) -> u32 {
        let outstanding = self.outstanding();
        // Completions of closed queues that are still in the CQ take space there from new receives.
        (self.mask + 1 - outstanding).saturating_sub(self.handle.held(RECEIVES))
    }

    /// Receives that were built and whose completions were not polled.
    pub fn outstanding(&mut self) -> u32 {
        // A closed queue's block may count another queue's receives by now.
        u32::from(self.not_completed()).min(self.mask + 1)
    }

    /// Receives that were built and have not completed. 16 bits tell, because rings have at most
    /// 2^15 entries. The poller takes completions of outstanding receives only.
    #[inline(always)]
    fn not_completed(&self) -> u16 {
        (self.head as u16).wrapping_sub(self.state().completed_recv()).wrapping_sub(1)
    }

    /// Visits the ids of receives whose completions were not polled, oldest first. For cleaning up
    /// after [`QueueHandle::close`].
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

    /// Address of the ring, number of entries, and bytes of each: for programs that write receives
    /// themselves.
    pub fn ring(&self) -> (*mut u8, u32, u32) {
        (self.ring, self.mask + 1, 1 << self.shift)
    }

    /// Where the receives are. The pointers are valid as long as the queue's memory and its handle.
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

    /// Starts over after a reset of the QP. `handle` is the one that [`QueueHandle::renew`]
    /// returned. Receives that were not published are lost.
    ///
    /// # Panics
    ///
    /// If the handle is another queue's.
    pub fn reset(&mut self, handle: QueueHandle) {
        handle.claim_after(&self.handle, RECEIVES);
        self.handle = handle;
        self.head = 0;
        self.recheck_state();
        self.doorbell.store(0);
        self.show_ring();
    }

    /// Makes the next receive check the QP's state. Call it when the QP returns to a state in which
    /// nothing can be posted, unless [`RecvQueue::reset`] follows before the next receive.
    /// Otherwise the change may go unnoticed for a lap of the ring.
    pub fn recheck_state(&mut self) {
        self.open = self.front.id;
        if !self.has_lists() {
            self.limit = self.open;
        }
    }

    /// Whether there may have been lists of several SGEs.
    fn has_lists(&self) -> bool {
        self.limit == WITH_LISTS
    }

    fn show_ring(&self) {
        self.state().set_recv_ring(self.shown.as_ref());
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        self.handle.state()
    }

    /// Builds a receive off the fast path. A queue that is kept full comes here for each receive,
    /// so this needs few registers: it calls nothing but the function that it ends with.
    #[cold]
    #[inline(never)]
    fn build_slow(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> Result<(), PostError> {
        if self.front.id >= self.open {
            self.open_usual();
        }
        if self.front.id < self.open {
            if data.len() > 1 {
                self.limit = WITH_LISTS;
            }
            if self.build_list(wr_id, data) {
                return Ok(());
            }
        }
        self.build_any(wr_id, data)
    }

    /// Builds a receive of any list at any position, or says why not.
    #[cold]
    #[inline(never)]
    fn build_any(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> Result<(), PostError> {
        check_scatter(&data, self.max_sge)?;
        if self.front.id >= self.open {
            self.find_space()?;
        }
        self.scatter(self.head).write_filled(&data);
        self.enter(wr_id);
        if data.len() > 1 {
            self.limit = WITH_LISTS;
        }
        Ok(())
    }

    /// Writes a terminator after the first SGE of every entry. The device knows of no entry yet.
    fn clear_ring(&self) {
        (0..=self.mask).for_each(|index| self.scatter(index).terminate());
    }

    /// The scatter list of entry `index`.
    fn scatter_list(&self, index: u32) -> *mut Octoword {
        let offset = ((index & self.mask) as usize) << self.shift;
        let entry = self.ring.wrapping_add(offset).cast::<Octoword>();
        entry.wrapping_add(self.head_octowords as usize)
    }

    /// Opens the fast path where entries are free now. Returns whether it is open for a receive of
    /// one SGE.
    #[doc(hidden)]
    #[inline(never)]
    pub fn reopen(&mut self) -> bool {
        if self.front.id >= self.open {
            self.open_usual();
        }
        self.front.id < self.limit
    }

    /// Opens the fast path as far as entries are free now. A queue that is kept full does so for
    /// each receive. Does nothing if it needs more than a few instructions to know.
    #[inline(always)]
    fn open_usual(&mut self) {
        if !self.handle.may_hold(RECEIVES) && self.state().can_receive() {
            let free = (self.mask as u16 + 1).saturating_sub(self.not_completed());
            self.open(free.into());
        }
    }

    /// Opens the fast path as far as entries are free now.
    fn find_space(&mut self) -> Result<(), PostError> {
        if !self.state().can_receive() {
            return Err(self.state().refusal());
        }
        match self.free_entries() {
            0 => Err(PostError::Full),
            free => {
                self.open(free);
                Ok(())
            }
        }
    }

    /// Opens the fast path for so many entries, or up to the ring's end.
    #[inline(always)]
    fn open(&mut self, free: u32) {
        let (slot, entries) = (self.head & self.mask, self.mask + 1);
        if slot == 0 {
            self.move_front();
        }
        self.open = self.front.id.wrapping_add(free.min(entries - slot) as usize);
        if !self.has_lists() {
            self.limit = self.open;
        }
    }

    /// Moves the front to the entry of the next receive. Both fast paths have to be closed.
    #[inline(always)]
    fn move_front(&mut self) {
        let slot = (self.head & self.mask) as usize;
        self.front.entry = self.scatter_list(self.head);
        self.front.id = self.state().recv_table().0.wrapping_add(slot);
    }
}

/// Receives that are built into a queue and published together. Dropping the batch leaves them
/// unpublished.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct RecvBatch<'q> {
    queue: &'q mut RecvQueue,
    front: Front,
    stride: u32,
}

impl RecvBatch<'_> {
    /// [`RecvQueue::build_slow`], after which the batch continues at the queue's new front.
    #[inline(always)]
    fn build_slow(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> Result<(), PostError> {
        self.write_back();
        let built = self.queue.build_slow(wr_id, data);
        // Field by field, because a copy of the whole struct would go through memory.
        self.front.entry = self.queue.front.entry;
        self.front.id = self.queue.front.id;
        built
    }

    #[inline(always)]
    fn write_back(&mut self) {
        let bytes = self.front.id.addr().wrapping_sub(self.queue.front.id.addr());
        let built = bytes / size_of::<AtomicU64>();
        self.queue.head = self.queue.head.wrapping_add(built as u32);
        self.queue.front.entry = self.front.entry;
        self.queue.front.id = self.front.id;
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
