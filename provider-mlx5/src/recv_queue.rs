//! The receive queue of a QP (or a work queue): a ring of fixed entries, consumed in order.
//!
//! Posting fills entries, publishing tells the device how many; there is no doorbell register, the device reads the
//! record when a message arrives.

use crate::doorbell::DoorbellWord;
use crate::format::DataSegment;
use crate::memory::DmaMemory;
use crate::queue_state::{QueueState, Ring, completed_counter};
use crate::request::{ListError, Octoword, PostError, Sge, octoword};
use crate::send_queue::QueueError;
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::QueueHandle;

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
#[derive(Debug)]
pub struct RecvQueue {
    place: Place,
    state: *const QueueState,
    ring: *mut u8,
    head_octowords: u32,
    /// Entries filled so far; wraps.
    head: u32,
    /// The counter up to which entries may be filled without looking for the tail.
    limit: u32,
    /// Entries known to be retired.
    tail: u32,
    published: u32,
    doorbell: DoorbellWord,
    scatter_to_cqe: bool,
    handle: QueueHandle,
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
        let ring = config.memory.as_ptr();
        let queue = Self {
            place: Place {
                // SAFETY: the head is shorter than an entry, which is within the ring.
                first: unsafe { ring.add(16 * config.head_octowords as usize) },
                entries: state.recv_table().0,
                mask: entries - 1,
                shift: stride.trailing_zeros() as u8,
                max_sge: (octowords - config.head_octowords) as u8,
            },
            state,
            ring,
            head_octowords: config.head_octowords,
            head: 0,
            limit: entries,
            tail: 0,
            published: 0,
            doorbell: config.doorbell,
            scatter_to_cqe: config.scatter_to_cqe,
            handle: config.handle,
        };
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
            return Err(PostError::BadState);
        }
        Ok(RecvBatch { place: self.place, head: self.head, limit: self.limit, queue: self })
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
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        if !self.state().can_receive() {
            return Err(PostError::BadState);
        }
        let head = self.head;
        match data {
            [one] if one.length as i32 > 0 => {
                if head == self.limit {
                    self.attend(head)?;
                }
                // SAFETY: there is room for the entry at `head`.
                unsafe { self.place.write_one(head, wr_id, one) };
            }
            // SAFETY: passed on to the caller.
            _ => unsafe { self.build_list(head, wr_id, data) }?,
        }
        self.head = head.wrapping_add(1);
        Ok(())
    }

    /// Builds receives in order and publishes all that were built.
    ///
    /// # Errors
    /// The first one that cannot be posted, with the reason; those before it are posted and published.
    ///
    /// # Safety
    /// As for [`RecvQueue::post`].
    #[inline]
    pub unsafe fn post_list<'a>(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), ListError> {
        let mut result = Ok(());
        let mut batch = match self.batch() {
            Ok(batch) => batch,
            Err(reason) => return Err(ListError { index: 0, reason }),
        };
        for (index, request) in requests.into_iter().enumerate() {
            // SAFETY: passed on to the caller.
            if let Err(reason) = unsafe { batch.post(request.wr_id, request.data) } {
                result = Err(ListError { index, reason });
                break;
            }
        }
        batch.publish();
        result
    }

    /// Tells the device of everything built so far; does nothing if there is nothing.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.head != self.published {
            self.published = self.head;
            crate::barrier::to_device();
            self.doorbell.store(self.head & 0xffff);
        }
    }

    /// Entries that are free now, as far as completions have been polled.
    pub fn free_entries(&mut self) -> u32 {
        self.place.mask + 1 - self.outstanding()
    }

    /// Receives whose completion was not polled.
    fn outstanding(&mut self) -> u32 {
        let outstanding = self.head.wrapping_sub(self.tail);
        let completed = self.state().completed_recv();
        if let Some(last) = completed_counter(completed, self.head, outstanding) {
            self.tail = last.wrapping_add(1);
        }
        self.head.wrapping_sub(self.tail)
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
        u32::from(self.place.max_sge)
    }

    /// Entries built so far, modulo 2^32.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Puts an unused queue where it would be after `head` receives that have all completed. For the inspector.
    pub(crate) fn continue_at(&mut self, head: u32) {
        self.head = head;
        self.tail = head;
        self.published = head;
        self.limit = head.wrapping_add(self.place.mask + 1);
    }

    /// The handle that the queue was made with.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    /// Starts over, after the QP was reset and its handle reopened. What was not published is lost.
    pub fn reset(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.published = 0;
        self.limit = self.place.mask + 1;
        self.doorbell.store(0);
        self.show_ring();
    }

    fn show_ring(&self) {
        let head = 16 * self.head_octowords;
        let ring = Ring {
            base: self.ring,
            mask: self.place.mask,
            shift: u32::from(self.place.shift),
            head,
            published: self.doorbell.as_ptr(),
        };
        self.state().set_recv_ring(self.scatter_to_cqe.then_some(ring));
    }

    #[inline(always)]
    fn state(&self) -> &QueueState {
        // SAFETY: `handle` keeps the block alive.
        unsafe { &*self.state }
    }

    /// Builds a receive of any list at `head`.
    ///
    /// # Safety
    /// As for [`RecvQueue::post`].
    #[inline(never)]
    unsafe fn build_list(&mut self, head: u32, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        check_scatter(data, self.place.max_sge)?;
        if head == self.limit {
            self.attend(head)?;
        }
        let (entry, id) = self.place.at(head);
        // SAFETY: there is room for the entry, and the data was checked.
        unsafe { write_scatter(entry, data, self.place.max_sge) };
        id.store(wr_id, Ordering::Relaxed);
        Ok(())
    }

    /// The slow path of a receive at `head`: looks for entries that the poller has retired.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, head: u32) -> Result<u32, PostError> {
        self.head = head;
        let limit = head.wrapping_add(self.free_entries());
        if limit == head {
            return Err(PostError::Full);
        }
        self.limit = limit;
        Ok(limit)
    }
}

/// What is constant in a queue, copied so that the compiler need not read it again after each store to the ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The first scatter entry of the first WQE.
    first: *mut u8,
    entries: *const AtomicU64,
    mask: u32,
    /// log2 of the WQE's size.
    shift: u8,
    /// Most scatter entries.
    max_sge: u8,
}

impl Place {
    /// Where the scatter list and the work request id of WQE `index` are.
    #[inline(always)]
    fn at(&self, index: u32) -> (*mut Octoword, &AtomicU64) {
        let slot = (index & self.mask) as usize;
        // SAFETY: the masked slot lies within the ring, and the table has as many entries as the ring.
        unsafe { (self.first.add(slot << self.shift).cast(), &*self.entries.add(slot)) }
    }

    /// Writes a receive of one piece.
    ///
    /// # Safety
    /// The entry at `index` is free; the piece is neither empty nor too long.
    #[inline(always)]
    unsafe fn write_one(&self, index: u32, wr_id: u64, piece: &Sge) {
        let (entry, id) = self.at(index);
        // SAFETY: there is room for `max_sge` octowords.
        unsafe { write_one(entry, piece, self.max_sge) };
        id.store(wr_id, Ordering::Relaxed);
    }
}

/// Receives being built into a queue, published together. Dropping it leaves what was built unpublished.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct RecvBatch<'q> {
    queue: &'q mut RecvQueue,
    place: Place,
    head: u32,
    limit: u32,
}

impl RecvBatch<'_> {
    /// Builds one receive behind those built before.
    ///
    /// # Errors
    /// `TooManySge`, `SgeTooLong`, `Full`. Nothing has been stored then.
    ///
    /// # Safety
    /// As for [`RecvQueue::post`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        match data {
            [one] if one.length as i32 > 0 => {
                if self.head == self.limit {
                    self.limit = self.queue.attend(self.head)?;
                }
                // SAFETY: there is room for the entry at `head`.
                unsafe { self.place.write_one(self.head, wr_id, one) };
            }
            _ => {
                // SAFETY: passed on to the caller.
                unsafe { self.queue.build_list(self.head, wr_id, data) }?;
                self.limit = self.queue.limit;
            }
        }
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        self.queue.head = self.head;
        self.queue.publish();
    }
}

impl Drop for RecvBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.head = self.head;
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
    match data.iter().any(|sge| (sge.length as i32) < 0) {
        true => Err(PostError::SgeTooLong),
        false => Ok(()),
    }
}

/// Writes a scatter list of one piece.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords.
#[inline(always)]
pub(crate) unsafe fn write_one(entry: *mut Octoword, piece: &Sge, max_sge: u8) {
    // SAFETY: there is room for one, and if more are allowed for two.
    unsafe {
        entry.write(piece.octoword());
        if max_sge > 1 {
            entry.add(1).write(octoword(DataSegment::TERMINATOR));
        }
    }
}

/// Writes a scatter list: the pieces that are not empty, and the entry that ends a list shorter than `max_sge`. An empty
/// piece would mean 2 GiB to the device, so it is left out.
///
/// # Safety
/// `entry` is valid for `max_sge` octowords; `data` was checked.
pub(crate) unsafe fn write_scatter(entry: *mut Octoword, data: &[Sge], max_sge: u8) {
    let mut count = 0;
    for sge in data.iter().filter(|sge| sge.length != 0) {
        // SAFETY: at most `max_sge` pieces.
        unsafe { entry.add(count).write(sge.octoword()) };
        count += 1;
    }
    if count < usize::from(max_sge) {
        // SAFETY: below `max_sge`.
        unsafe { entry.add(count).write(octoword(DataSegment::TERMINATOR)) };
    }
}
