//! The shared receive queue: a linked list of entries that many QPs consume, in any order.
//!
//! The device follows the link in each posted entry to the next one. The link is written when the
//! entry is posted, and names the next entry of software's own ring of free entries (see
//! `free_list.rs`). The poller's thread returns completed entries to that ring; the posting side
//! takes them.
//!
//! A receive that hits a page fault on memory registered for on-demand paging completes with an
//! error, although the receive is valid. The poller puts it aside, and the next call that posts or
//! publishes posts it again, in another entry, so that the entry that faulted is not reused at
//! once. (libmlx5 posts it in the poller, `mlx5_complete_odp_fault`.) A receive whose completion is
//! dropped because its QP is closed is posted again in the same way, since the program still
//! expects it.
//!
//! `recv_queue/post.rs` writes the entries.

use crate::doorbell::DoorbellWord;
use crate::free_list::{ANY, FreeList, WITH_LISTS};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;
use crate::queue_state::{NextPlace, Posting, QpState, QueueState};
use crate::recv_queue::check_scatter;
use crate::request::{PostError, Sge};
use crate::send_queue::Promised;
use crate::shown_ring::Ring;
use crate::user_index::{QueueHandle, RECEIVES};

/// Configuration of a shared receive queue.
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
    /// then copies them to the receive's buffers, so the buffers' addresses must be valid in this
    /// process.
    pub scatter_to_cqe: bool,
}

/// A shared receive queue (basic or XRC).
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedRecvQueue {
    pub(crate) places: Places,
    pub(crate) front: Front,
    pub(crate) free: *const FreeList,
    /// The posting side's limit for the fast path: [`ANY`] as long as every entry has a terminator
    /// in place of a second SGE, so that a receive of one SGE need not write one; later
    /// [`WITH_LISTS`].
    pub(crate) limit: u32,
    pub(crate) max_sge: u8,
    /// Receives posted so far; wraps.
    pub(crate) counter: u32,
    pub(crate) doorbell: DoorbellWord,
    pub(crate) handle: QueueHandle,
}

/// The entries of an SRQ and their tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) ring: *mut u8,
    /// Bytes per entry.
    pub(crate) stride: usize,
    pub(crate) tables: Posting,
}

/// Where the next receive is written, and where the entry after it is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    /// The entry that is posted next.
    pub(crate) head: u32,
    /// The place of the free list that names the entry after it.
    pub(crate) next: NextPlace,
}

/// Receives that are built into an SRQ and published together. Dropping or leaking the batch leaves
/// them unpublished.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct SharedRecvBatch<'q> {
    pub(crate) queue: &'q mut SharedRecvQueue,
    pub(crate) places: Places,
    pub(crate) front: Front,
}

impl SharedRecvBatch<'_> {
    #[inline(always)]
    pub(crate) fn write_back(&mut self) {
        let built = self.front.next.since(self.queue.front.next);
        self.queue.counter = self.queue.counter.wrapping_add(built);
        self.queue.front.head = self.front.head;
        self.queue.front.next = self.front.next;
    }
}

impl Drop for SharedRecvBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.write_back();
    }
}

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
        config.handle.claim(RECEIVES)?;
        let ring = config.memory.as_ptr();
        let shown = Ring::on(config.memory, entries, stride, 16);
        state.set_recv_ring(shown.as_ref().filter(|_| config.scatter_to_cqe));
        let queue = Self {
            places: Places { ring, stride: stride as usize, tables: free.posting() },
            front: Front { head: 0, next: free.at(0) },
            free,
            limit: ANY,
            max_sge: (stride / 16 - 1) as u8,
            counter: 0,
            doorbell: config.doorbell,
            handle: config.handle,
        };
        queue.clear_ring();
        Ok(queue)
    }

    /// Address of the ring, number of entries, bytes of each, and the entry that is posted next:
    /// for programs that write receives themselves.
    pub fn layout(&self) -> (*mut u8, u32, u32, u32) {
        let Places { ring, stride, .. } = self.places;
        (ring, self.state().recv_wqes(), stride as u32, self.front.head)
    }

    /// Starts building receives, to be published together.
    #[inline(always)]
    pub fn batch(&mut self) -> SharedRecvBatch<'_> {
        SharedRecvBatch { places: self.places, front: self.front, queue: self }
    }

    /// The slow path of [`SharedRecvQueue::post`]. It writes the doorbell record itself, so that
    /// the fast path needs no jump to a shared doorbell.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_any(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> Result<(), PostError> {
        let posted = self.build_slow(wr_id, data);
        self.publish();
        posted
    }

    /// Builds a receive off the fast path: an empty list as fast as others, as programs post them
    /// that only want immediate data.
    #[cold]
    #[inline(never)]
    pub(crate) fn build_slow(
        &mut self,
        wr_id: u64,
        data: Promised<&[Sge]>,
    ) -> Result<(), PostError> {
        if data.is_empty() && self.build_empty(wr_id) {
            return Ok(());
        }
        self.build_any(wr_id, data)
    }

    /// Builds a receive of any list at any position, or says why not.
    #[cold]
    #[inline(never)]
    fn build_any(&mut self, wr_id: u64, data: Promised<&[Sge]>) -> Result<(), PostError> {
        if self.state().state() == QpState::Err || self.state().is_inherited() {
            return Err(self.state().refusal());
        }
        check_scatter(&data, self.max_sge)?;
        if data.len() > 1 {
            self.limit = WITH_LISTS;
        }
        self.adopt_leaked();
        if self.free().has_unused() || self.free().limit_is_not(self.limit) {
            self.repost();
        }
        if !self.free().has_grant(self.counter) {
            return Err(PostError::Full);
        }
        let next = self.free().next(self.counter).ok_or(PostError::Full)?;
        self.free().take(self.counter);
        self.scatter(self.front.head).write_filled(&data);
        self.finish(next, wr_id);
        Ok(())
    }

    /// Publishes everything built so far, and posts again the receives that were put aside.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.is_closed() {
            crate::hint::cold_path();
            self.repost_unused();
        }
        self.ring();
    }

    #[cold]
    #[inline(never)]
    fn repost_unused(&mut self) {
        // A forked child waits for no poller of its parent (`next_free`).
        if self.free().has_unused() && !self.state().is_inherited() {
            self.adopt_leaked();
            self.repost();
        }
    }

    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        crate::barrier::to_device();
        self.doorbell.store(self.counter & 0xffff);
    }

    /// Posts again the receives that were put aside. Each entry is freed before its content is
    /// copied to the entry that is posted next, so that such an entry exists even if the device has
    /// all others. Only this side takes free entries, so the content stays intact until it is
    /// copied.
    pub(crate) fn repost(&mut self) {
        // First, before the checks below: see `FreeList::set_limit`.
        self.free().set_limit(self.limit);
        // Another thread records the reason for the slow path before it lowers the limit, and this
        // function raises the limit before it checks the reasons. So if a reason is missed here,
        // that thread lowers the limit afterwards.
        if self.state().state() == QpState::Err || !self.free().grants_all() {
            self.free().close_fast_path();
        }
        while let Some(unused) = self.free().take_unused() {
            self.free().release(unused);
            let next = self.next_free();
            self.free().take(self.counter);
            self.post_copy(unused, next);
        }
    }

    /// Moves past the receives that a leaked batch has built. They are linked from the head on, and
    /// will be posted. Their places in the free list are empty, so the fast path takes none of
    /// them.
    pub(crate) fn adopt_leaked(&mut self) {
        let last = self.state().recv_wqes() - 1;
        for _ in 0..last {
            let head = self.front.head;
            // A broken device may have given one back that was never published.
            if !self.free().is_taken(head) && !self.free().is_back(head, self.counter) {
                return;
            }
            let next = self.linked(head) & last;
            self.pass(next);
        }
    }

    /// Makes `next` the head, once the old head is built.
    pub(crate) fn pass(&mut self, next: u32) {
        self.front.head = next;
        self.counter = self.counter.wrapping_add(1);
        self.front.next = self.free().at(self.counter);
    }

    /// The entry after the head, which has been given back. Its position in the ring may be empty
    /// for a moment, while another poller is filling it.
    fn next_free(&mut self) -> u32 {
        loop {
            match self.free().next(self.counter) {
                Some(next) => return next,
                None => core::hint::spin_loop(),
            }
            // The other poller may be giving the head back.
            self.adopt_leaked();
        }
    }

    /// Visits the ids of posted receives, in no order. For cleaning up after
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
    pub(crate) fn state(&self) -> &QueueState {
        self.handle.state()
    }
}

impl Drop for SharedRecvQueue {
    fn drop(&mut self) {
        self.state().set_recv_ring(None);
    }
}
