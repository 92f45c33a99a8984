//! Posting receives to shared receive queues on both layers.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::shared_recv_queue::{SharedRecvBatch, SharedRecvQueue};

use super::SharedReceiveQueue;
use crate::device::layer::{Layer, Raw, Safe};
use crate::host::lifetime::{Destroy, destroy_in_place_method};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::memory::posting::{Admission, Refused};
use crate::memory::slot::{Abandoned, Chain, Slot};
use crate::mlx5::RingLayout;

impl SharedReceiveQueue<Raw> {
    /// Posts one receive: the device may use it from now on, as it may what was built before and
    /// not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process
    /// until the receive has completed or the queue has been destroyed. No [`PollBatch`] with
    /// completions of this queue is leaked: the completions would be polled again, and would
    /// complete a receive that was posted later.
    ///
    /// [`PollBatch`]: crate::raw::PollBatch
    #[inline(always)]
    #[doc(alias = "ibv_post_srq_recv")]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.post(wr_id, data) }
    }

    /// The fast path of [`SharedReceiveQueue::post`], for one SGE. If it is not possible, returns
    /// `false` and changes nothing; the caller then calls `post`. `request` returns the id and the
    /// SGE.
    ///
    /// # Safety
    /// As for [`SharedReceiveQueue::post`]. The SGE is neither empty nor too long.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn post_fast(&mut self, request: impl FnOnce() -> (u64, Sge)) -> bool {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.post_fast(request) }
    }

    /// Starts building receives, to be published together.
    #[inline(always)]
    pub fn batch(&mut self) -> RawSharedReceiveBatch<'_> {
        RawSharedReceiveBatch(self.queue.batch())
    }

    /// Its ring, its doorbell record and the index of the next entry to post, for programs that
    /// write receives themselves.
    pub fn layout(&self) -> (RingLayout, *mut u8, u32) {
        let (start, entries, stride, head) = self.queue.layout();
        let record = self.handle.0.memory.record_address();
        let record = std::ptr::with_exposed_provenance_mut(record as usize);
        (RingLayout { start, entries, stride }, record, head)
    }

    destroy_in_place_method! {
        "`Busy` while queue pairs or other handles hold it; errors of the kernel."
    }

    /// The provider's own queue.
    ///
    /// # Safety
    /// The caller does not exchange it with another queue (by `mem::swap`, for instance): it uses
    /// memory that `self` frees when dropped.
    pub unsafe fn provider(&mut self) -> &mut SharedRecvQueue {
        &mut self.queue
    }
}

/// Receives being built into a shared receive queue, published together.
///
/// Dropping it leaves the built receives in the queue, unpublished; the next post publishes them.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct RawSharedReceiveBatch<'q>(SharedRecvBatch<'q>);

impl RawSharedReceiveBatch<'_> {
    /// Builds one receive after those built before.
    ///
    /// # Errors
    /// Any [`PostError`]; nothing has been stored then.
    ///
    /// # Safety
    /// As for [`SharedReceiveQueue::post`].
    #[inline(always)]
    pub unsafe fn build(&mut self, wr_id: u64, data: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.build(wr_id, data) }
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        self.0.publish();
    }
}

/// The safe layer's part of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SlotReceives {
    serial: Serial,
    admission: Admission,
}

impl SlotReceives {
    pub(super) fn new(serial: Serial, pd: &ProtectionDomain) -> Self {
        let (domain, flight) = (pd.identity(), serial.shared_receives());
        Self { serial, admission: Admission { domain, flight } }
    }
}

impl SharedReceiveQueue<Safe> {
    /// Posts a receive that may fill all of `slot`: the device may use it from now on.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline(always)]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self, slot: Slot) -> Result<(), Refused> {
        let (slot, launch) = self.slots.admission.launch(slot)?;
        // SAFETY: as for `build` of a batch; the slot is launched before the device sees it.
        if unsafe { self.queue.post_fast(|| launch.receive()) } {
            return Refused::unless(Ok(()), slot);
        }
        self.post_slow(slot)
    }

    #[cold]
    #[inline(never)]
    fn post_slow(&mut self, slot: Slot) -> Result<(), Refused> {
        self.batch().build(slot)
    }

    /// Starts building several receives, to be published together.
    #[inline(always)]
    pub fn batch(&mut self) -> SharedReceiveBatch<'_> {
        let batch = ManuallyDrop::new(self.queue.batch());
        SharedReceiveBatch { batch, admission: self.slots.admission }
    }
}

/// Receives that the device sees together, when the batch is published or dropped: from
/// [`SharedReceiveQueue::batch`]. If it is leaked, the next post publishes them.
#[derive(Debug)]
pub struct SharedReceiveBatch<'q> {
    batch: ManuallyDrop<SharedRecvBatch<'q>>,
    admission: Admission,
}

impl SharedReceiveBatch<'_> {
    /// Builds a receive that may fill all of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason. What was built before stays built.
    #[inline(always)]
    pub fn build(&mut self, slot: Slot) -> Result<(), Refused> {
        let (slot, launch) = self.admission.launch(slot)?;
        // SAFETY: the slot is launched then, and nothing accesses its memory until the completion
        // or the end of the queue; it keeps the registration. The device sees it only when it is
        // published. No slot is empty or too long.
        if unsafe { self.batch.build_fast(|| launch.receive()) } {
            return Refused::unless(Ok(()), slot);
        }
        // SAFETY: the same.
        let built = unsafe { self.batch.build(launch.id(), &[slot.whole()]) };
        Refused::unless(launch.started(built), slot)
    }

    /// Tells the device of everything built so far, as dropping it does.
    #[inline(always)]
    pub fn publish(self) {}
}

impl Drop for SharedReceiveBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, so this is the last use of the batch.
        unsafe { ManuallyDrop::take(&mut self.batch) }.publish();
    }
}

impl<L: Layer> Drop for SharedReceiveQueue<L> {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of `queue`.
        self.handle.0.take_over(unsafe { ManuallyDrop::take(&mut self.queue) });
        if let Some(slots) = L::get(&mut self.slots) {
            let handle = Some(self.handle.user().clone());
            // SAFETY: the remaining receives are found by the handle, so they are of this queue.
            // They are released when the queue is closed, that is, destroyed.
            let left = unsafe { Abandoned::new(handle, Vec::new(), Chain::EMPTY, slots.serial) };
            self.handle.context().inner().kept.defer(left);
        }
    }
}
