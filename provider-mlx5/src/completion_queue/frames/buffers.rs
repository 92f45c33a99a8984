//! The buffers of receives that a poller gives back at the places that they had: what frames are
//! read from, and how another buffer takes a place.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::{ptr, slice};

use super::{FRAME, Frame, FrameQueue, Next, PARTS};
use crate::completion_queue::CompletionQueue;
use crate::format::CQE_SIZE;
use crate::queue_error::QueueError;
use crate::recv_queue::{Places, RecvQueue};
use crate::request::Sge;
use crate::sync::Ordering;
use crate::user_index::QueueHandle;

// SAFETY: as for the completion queue and the receive queue that it is made of.
unsafe impl Send for FrameQueue {}

impl FrameQueue {
    /// Puts the two queues together; `buffer_bytes` is the length of each buffer.
    ///
    /// # Errors
    /// `BadLimits` unless all receives are posted, or where the CQ does not hold a completion of 64
    /// bytes for each receive.
    ///
    /// # Safety
    /// As long as the result is used:
    /// - both queues live where their memory is, are neither posted to nor polled, but by calls of
    ///   the result, and no other queue completes to the CQ;
    /// - each receive was posted with one SGE of `buffer_bytes` bytes, which is memory of this
    ///   process at the address that is its work request id, initialized, and touched through the
    ///   result alone until [`Frame::replace`] has taken it out.
    pub unsafe fn new(
        cq: &mut CompletionQueue,
        receives: &mut RecvQueue,
        buffer_bytes: u32,
    ) -> Result<Self, QueueError> {
        let places = receives.places();
        let depth = places.mask + 1;
        let fits = cq.entries() > depth && cq.stride == CQE_SIZE;
        if receives.outstanding() != depth || !fits || cq.kept > 0 {
            return Err(QueueError::BadLimits);
        }
        // This queue says from here on what was drained.
        cq.known.clear();
        let tail = receives.head().wrapping_sub(depth);
        let mut queue = Self {
            next: cq.next,
            stop: cq.next,
            tail,
            expected: FRAME,
            entry: places.ids,
            places,
            buffer_bytes: buffer_bytes as usize,
            depth,
            part: (depth / PARTS).max(1),
            offset: cq.consumed.wrapping_sub(tail),
            consumer_index: cq.consumer_index.again(),
            bytes: 0,
            wrapped: 0u64.wrapping_sub(tail.into()),
            mini_format: cq.mini_format,
            run_start: tail,
            emptied: cq.next,
            deepest: 0,
            exhausted: 0,
            too_long: 0,
            failed: 0,
            refused: 0,
            ring: cq.ring,
            monitor: cq.monitor(),
            handle: receives.handle().clone(),
            lap_request: cq.lap_request,
        };
        queue.update_next();
        Ok(queue)
    }

    /// The next frame, which is given back when it is dropped. The device learns of that at once,
    /// or with the next [`FrameQueue::publish`] where the frame `publishes` nothing.
    ///
    /// # Safety
    /// `next` is what [`FrameQueue::look`] or [`FrameQueue::look_slow`] of this queue returned, and
    /// no frame was given back since.
    #[inline(always)]
    pub unsafe fn front(&mut self, next: Next, publishes: bool) -> Frame<'_> {
        Frame { next, publishes, queue: self, thread: PhantomData }
    }
}

impl Frame<'_> {
    /// Its bytes, without the check sequence.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the entry is that of the next receive, which this frame's is until it is dropped:
        // `update_next` takes it from the table at the start of each part, no part goes beyond the
        // table's end, and `advance` moves it with the counter. The table lives as long as the
        // queue's handle. The entry is the address of a buffer of `buffer_bytes` bytes at least
        // (`FrameQueue::new`), which the length does not exceed. The device has completed its
        // receive and is not told of it again before this frame is dropped.
        unsafe {
            let address = (*self.queue.entry).load(Ordering::Relaxed);
            let start = ptr::with_exposed_provenance(address as usize);
            slice::from_raw_parts(start, self.next.length)
        }
    }

    /// Gives the queue another buffer in the place of the frame's, which is the caller's from now
    /// on.
    ///
    /// # Safety
    /// The buffer is as [`FrameQueue::new`] demands.
    pub unsafe fn replace(self, buffer: Sge) {
        let (place, places) = (self.place(), &self.queue.places);
        // SAFETY: an entry of the table and one of the ring, which both have `mask + 1` of them;
        // the device has completed the receive and was not told of it again.
        unsafe {
            (*places.ids.add(place)).store(buffer.address(), Ordering::Relaxed);
            places.first.byte_add(place << places.shift).write(buffer.octoword());
        }
        // Before the record that tells the device of it.
        crate::barrier::to_device();
    }
}

/// A ring whose receives are all posted: a poller of its own gives its places new buffers, in
/// order.
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
