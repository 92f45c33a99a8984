//! How pollers access the buffers of requests: copying inline data from a CQE to them, reading
//! frames from them, and replacing them.

#![allow(unsafe_code)]

use core::mem::offset_of;
use core::{ptr, slice};

use super::completion::{Completion, Raw};
use super::frames::{Frame, FrameQueue, Next};
use super::ring::CqeView;
use super::slow::error_status;
use super::tags::fail_changes;
use super::{CompletionQueue, ENCODED, PollError, Status};
use crate::format::{
    ControlSegment, Cqe, CqeFormat, DataSegment, ErrorCqe, OpOwn, Opcode, Syndrome,
    TERMINATOR_LKEY, VendorSyndrome, WQEBB_SIZE,
};
use crate::queue_error::QueueError;
use crate::queue_state::{NO_START, PolledReceives, QueueState};
use crate::recv_queue::{Places, RecvQueue};
use crate::request::Sge;
use crate::shown_ring::LentRing;
use crate::sync::Ordering;
use crate::user_index::QueueHandle;

impl CompletionQueue {
    /// Copies the inline data of a CQE of [`CqeFormat::INLINE_32`] to the first buffer of the
    /// receive at the 16-bit index in the upper half of `index`. Returns the receive's word for
    /// [`Side::retire`]; `None`, with no observable state changed, if the receive is not
    /// outstanding, or the data is longer than that buffer or than 32 bytes.
    ///
    /// [`Side::retire`]: crate::queue_state::Side::retire
    #[inline(always)]
    pub(super) fn to_outstanding(
        &self,
        queue: PolledReceives<'_>,
        index: u32,
        cqe: CqeView,
    ) -> Option<u32> {
        let word = queue.outstanding(index)?;
        let filled = queue.with_recv_ring(|ring| {
            // SAFETY: the ring is live while it is lent. The receive was published and has not
            // completed, and only this thread can complete it, since it polls the CQ that the queue
            // completes to. So the ring still holds the receive, and its buffers are lent to the
            // device.
            unsafe { to_first_buffer(ring, index >> 16, cqe, self.null_lkey) }
        });
        (filled != Some(false)).then_some(word)
    }

    /// Completes a receive of an SRQ whose data is inside the CQE, of [`CqeFormat::INLINE_32`], and
    /// copies the data to its buffers. Returns its id and status; `None`, with nothing changed, if
    /// it is not outstanding.
    #[inline(always)]
    pub(super) fn to_shared(&self, srq: &QueueState, cqe: CqeView) -> Option<(u64, Status)> {
        let index = cqe.u16(offset_of!(Cqe, wqe_counter));
        let claimed = srq.claim(index)?;
        let filled = srq.with_recv_ring(|ring| {
            // SAFETY: the ring is live while it is lent. The receive was published and has not
            // completed, and this thread has claimed its entry. So the ring still holds the
            // receive, and its buffers are lent to the device.
            unsafe { to_first_buffer(ring, u32::from(index), cqe, self.null_lkey) }
        });
        let status = match filled {
            Some(false) => self.to_several(srq, index, cqe),
            _ => Status::Success,
        };
        let wr_id = claimed.wr_id();
        claimed.give_back();
        Some((wr_id, status))
    }

    /// Copies data as [`CompletionQueue::to_shared`] does, if the first buffer does not hold it.
    #[cold]
    #[inline(never)]
    fn to_several(&self, srq: &QueueState, index: u16, cqe: CqeView) -> Status {
        self.fill_receive(cqe, CqeFormat::INLINE_32, index, srq)
    }

    /// Completes a request of a send queue that completes to this CQ.
    pub(super) fn finish_send(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        state: &QueueState,
    ) -> Result<Raw, PollError> {
        let index = cqe.u16(offset_of!(Cqe, wqe_counter));
        if !state.has_send(index) {
            return Err(PollError::NotOutstanding);
        }
        let status = if op_own.opcode().is_error() {
            let status = error_status(cqe);
            state.send_failed(status == Status::Flushed);
            fail_changes(state, index);
            status
        } else {
            let fill = |data: &[u8]| {
                state.with_send_ring(|ring| {
                    // SAFETY: the ring is live while it is lent. The request starts there, was
                    // published and has not completed, and only this thread polls the CQ that it
                    // completes to. So the ring still holds the request, and its buffers are lent
                    // to the device.
                    unsafe { to_send(ring, index, data, self.null_lkey) }
                })
            };
            deliver(cqe, op_own.format(), fill)
        };
        let mut wr_id = state.send_entry(u32::from(index)).load(Ordering::Relaxed);
        if wr_id == NO_START {
            if let Some(own) = state.encoded(index) {
                wr_id = own;
                self.ring.set_opcode(self.consumed, ENCODED);
            }
        }
        state.complete_sends(index);
        Ok(Raw { cqe, side: state.send_side(), wr_id, status, format: op_own.format() })
    }

    /// Copies inline data to the buffer of an entry of a list of tags, if the CQE has any: only
    /// CQEs of 128 bytes can, because in others the message's header takes that space.
    pub(super) fn deliver_matched(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        buffer: Option<Sge>,
    ) -> Status {
        if op_own.format() != CqeFormat::INLINE_64 {
            return Status::Success;
        }
        let entry = buffer.map_or(Entry { length: 0, lkey: 0, address: 0 }, |sge| Entry {
            length: sge.length() as usize,
            lkey: sge.lkey(),
            address: sge.address(),
        });
        deliver(cqe, op_own.format(), |data| {
            let fits = data.len() <= entry.length;
            // SAFETY: the device had the entry, so its buffer is lent for writing until the
            // completion is reported, which is after this.
            Some(fits && unsafe { fill([entry].into_iter(), data, self.null_lkey) })
        })
    }

    /// Completes a receive of a QP's own receive queue.
    pub(super) fn finish_receive(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        state: &QueueState,
    ) -> Result<Raw, PollError> {
        let index = cqe.u16(offset_of!(Cqe, wqe_counter));
        if !state.has_receive(index) {
            return Err(PollError::NotOutstanding);
        }
        let status = self.received(cqe, op_own, index, [state, state]);
        let wr_id = state.recv_entry(u32::from(index)).load(Ordering::Relaxed);
        state.complete_receives(index);
        Ok(Raw { cqe, side: state.recv_side(), wr_id, status, format: op_own.format() })
    }

    /// Completes a receive of an SRQ; `None` if it is to be posted again.
    pub(super) fn finish_shared_receive(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        state: &QueueState,
        srq: &QueueState,
    ) -> Result<Option<Raw>, PollError> {
        let index = cqe.u16(offset_of!(Cqe, wqe_counter));
        let is_error = op_own.opcode().is_error();
        if let (true, Some(free)) = (is_error && is_page_fault(cqe), srq.free_list()) {
            let returned = free.return_for_repost(u32::from(index));
            return if returned { Ok(None) } else { Err(PollError::NotOutstanding) };
        }
        let claimed = srq.claim(index).ok_or(PollError::NotOutstanding)?;
        let status = self.received(cqe, op_own, index, [state, srq]);
        let wr_id = claimed.wr_id();
        claimed.give_back();
        Ok(Some(Raw { cqe, side: state.recv_side(), wr_id, status, format: op_own.format() }))
    }

    /// The status of an outstanding receive of the QP `state`. It was posted to `receives`, which
    /// is the QP or its SRQ.
    fn received(
        &self,
        cqe: CqeView,
        op_own: OpOwn,
        index: u16,
        [state, receives]: [&QueueState; 2],
    ) -> Status {
        if op_own.opcode().is_error() {
            let status = error_status(cqe);
            state.receive_failed(status == Status::LocalLength);
            return status;
        }
        self.fill_receive(cqe, op_own.format(), index, receives)
    }

    /// Copies inline data to the buffers of an outstanding receive that was posted to `receives`.
    fn fill_receive(
        &self,
        cqe: CqeView,
        format: CqeFormat,
        index: u16,
        receives: &QueueState,
    ) -> Status {
        let fill = |data: &[u8]| {
            receives.with_recv_ring(|ring| {
                // SAFETY: the ring is live while it is lent. The receive was published and has not
                // completed. Only this thread can complete it: it polls the CQ that the queue
                // completes to, or has claimed the SRQ's entry. So the ring still holds the
                // receive, and its buffers are lent to the device.
                unsafe { to_receive(ring, u32::from(index), data, self.null_lkey) }
            })
        };
        deliver(cqe, format, fill)
    }
}

/// Copies inline data to its buffers with `fill`, which returns whether the data fitted, or `None`
/// if the queue leaves inline data in the CQE.
fn deliver(cqe: CqeView, format: CqeFormat, fill: impl FnOnce(&[u8]) -> Option<bool>) -> Status {
    // SAFETY: `report` checked that this format fits the entry's size; 32 bytes fit all.
    let Some((bytes, most)) = (unsafe { inline_data(cqe, format) }) else {
        return Status::Success;
    };
    let length = cqe.u32(offset_of!(Cqe, byte_count)) as usize;
    let Some(data) = bytes.get(..length.min(most)) else { return Status::Success };
    match fill(data) {
        Some(false) => Status::LocalLength,
        _ => Status::Success,
    }
}

/// Whether a receive of an SRQ failed only because of a page fault (on-demand paging).
fn is_page_fault(cqe: CqeView) -> bool {
    cqe.u8(offset_of!(ErrorCqe, syndrome)) == Syndrome::REMOTE_ABORTED.0
        && cqe.u8(offset_of!(ErrorCqe, vendor_syndrome)) == VendorSyndrome::ODP_PAGE_FAULT.0
}

impl Completion<'_> {
    /// Copies inline data of the CQE into `out`, as much as fits. Returns the length of the data;
    /// `None` if there is none. If the queue was created to deliver inline data, the poller has
    /// already copied it to the receive's buffers.
    pub fn copy_inline(&self, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the CQE is lent, and the poller checked that this format fits its size.
        let (bytes, most) = unsafe { inline_data(self.raw.cqe, self.raw.format)? };
        let length = (self.byte_len() as usize).min(most);
        for (to, from) in out.iter_mut().zip(bytes.iter().take(length)) {
            *to = *from;
        }
        Some(length)
    }
}

/// Bytes of inline data in the two formats.
const SHORT: usize = 32;
const LONG: usize = 64;

/// The inline data of a CQE and the most bytes that it can have. `None` if there is none.
///
/// 32 bytes are in the CQE's own first half; 64 bytes are in the 64 bytes before it, which only
/// 128-byte CQEs have. The caller passes the format that the poller checked. It is not read again,
/// because a broken device may write the CQE at any time.
///
/// # Safety
/// If the format says 64, the 64 bytes before the CQE are valid for reads.
unsafe fn inline_data(cqe: CqeView, format: CqeFormat) -> Option<([u8; LONG], usize)> {
    match format {
        CqeFormat::INLINE_32 => Some((cqe.bytes(), SHORT)),
        CqeFormat::INLINE_64 => {
            // SAFETY: the caller guarantees that the bytes before the CQE are valid, and they are
            // aligned like it.
            let before = unsafe { cqe.first_half() };
            Some((before.bytes(), LONG))
        }
        _ => None,
    }
}

/// One scatter entry of a WQE.
struct Entry {
    length: usize,
    lkey: u32,
    address: u64,
}

/// # Safety
/// `entry` is valid for reads of 16 bytes.
unsafe fn entry_at(entry: *const u8) -> Entry {
    // SAFETY: the caller guarantees it.
    let segment = unsafe { entry.cast::<DataSegment>().read() };
    Entry {
        length: segment.byte_count.get() as usize,
        lkey: segment.lkey.get(),
        address: segment.address.get(),
    }
}

/// Copies `data` to the buffers of scatter entries, in order. Returns false if they do not hold all
/// of it.
///
/// # Safety
/// The program lent the buffers to the device for writing, with a request that is outstanding.
unsafe fn fill(
    entries: impl Iterator<Item = Entry>,
    mut data: &[u8],
    null_lkey: Option<u32>,
) -> bool {
    for entry in entries {
        if data.is_empty() || entry.lkey == TERMINATOR_LKEY && entry.length == 0 {
            break;
        }
        let (now, later) = data.split_at(entry.length.min(data.len()));
        // The device discards data for the null region; its addresses have no meaning.
        if Some(entry.lkey) != null_lkey {
            let target = ptr::with_exposed_provenance_mut::<u8>(entry.address as usize);
            // SAFETY: the buffer is lent for writing until the request completes, which is after
            // this, and `now` is not longer than the buffer.
            unsafe { target.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        }
        data = later;
    }
    data.is_empty()
}

/// Copies inline data of a CQE of [`CqeFormat::INLINE_32`] to the first buffer of receive WQE
/// `index`. Returns false, with nothing written, if the data is longer than that buffer or than 32
/// bytes.
///
/// # Safety
/// As for [`to_receive`].
#[inline(always)]
unsafe fn to_first_buffer(
    ring: LentRing<'_>,
    index: u32,
    cqe: CqeView,
    null_lkey: Option<u32>,
) -> bool {
    let length = cqe.u32(offset_of!(Cqe, byte_count)) as usize;
    if length > SHORT {
        return false;
    }
    let start = ((index & ring.mask()) as usize) << ring.shift();
    // SAFETY: `shown_ring::Ring::on` checked that entries are within the ring, and hold a head and
    // an SGE. So the first SGE of the masked entry is within both.
    let first = unsafe { entry_at(ring.first().add(start)) };
    if length > first.length || Some(first.lkey) == null_lkey {
        return false;
    }
    let data: [u8; SHORT] = cqe.first_bytes();
    let target = ptr::with_exposed_provenance_mut::<u8>(first.address as usize);
    // SAFETY: the buffer is lent for writing until the request completes, which is after this, and
    // `length` is at most the length of the buffer and of `data`.
    unsafe { target.copy_from_nonoverlapping(data.as_ptr(), length) };
    true
}

/// Copies `data` to the buffers of receive WQE `index`.
///
/// # Safety
/// `ring` is a live receive ring. Its WQE `index` was published, the caller has seen that, and no
/// thread completes it before this returns. So no thread writes the WQE either.
unsafe fn to_receive(ring: LentRing<'_>, index: u32, data: &[u8], null_lkey: Option<u32>) -> bool {
    let start = ((index & ring.mask()) as usize) << ring.shift();
    let entries = (start + ring.head() as usize..start + (1 << ring.shift())).step_by(16);
    // SAFETY: the offsets are within the masked WQE, and so within the ring.
    let entries = entries.map(|offset| unsafe { entry_at(ring.base().add(offset)) });
    // SAFETY: passed on to the caller.
    unsafe { fill(entries, data, null_lkey) }
}

/// Copies `data` to the buffers of the RDMA read or atomic at `index` of a send queue. Returns
/// false if the request is neither.
///
/// # Safety
/// `ring` is a live send ring. A request starts at `index`, it was published, the caller has seen
/// that, and no thread completes it before this returns. So no thread writes its WQE either.
unsafe fn to_send(ring: LentRing<'_>, index: u16, data: &[u8], null_lkey: Option<u32>) -> bool {
    let start = (u32::from(index) & ring.mask()) as usize * WQEBB_SIZE;
    let bytes = (ring.mask() as usize + 1) * WQEBB_SIZE;
    // SAFETY: the masked WQE is within the ring, and no thread writes it now.
    let control = unsafe { ring.base().add(start).cast::<ControlSegment>().read() };
    if control.index() != index {
        // `index` is in the middle of a request.
        return false;
    }
    let segments = match control.opcode() {
        Opcode::RDMA_READ => 2,
        Opcode::ATOMIC_COMPARE_SWAP
        | Opcode::ATOMIC_FETCH_ADD
        | Opcode::ATOMIC_MASKED_FETCH_ADD => 3,
        Opcode::ATOMIC_MASKED_COMPARE_SWAP => 4,
        _ => return false,
    };
    let first = segments + ring.head() as usize / 16;
    // SAFETY: the masked offsets are within the ring, which is a power of two.
    let entries = (first..usize::from(control.ds())).map(|octoword| unsafe {
        entry_at(ring.base().add((start + 16 * octoword) & (bytes - 1)))
    });
    // SAFETY: passed on to the caller.
    unsafe { fill(entries, data, null_lkey) }
}

// SAFETY: as for the completion queue and the receive queue that it consists of.
unsafe impl Send for FrameQueue {}

impl FrameQueue {
    /// Joins the two queues; `buffer_bytes` is the length of each buffer.
    ///
    /// # Errors
    /// `BadLimits` unless all receives are posted, or if the CQ cannot hold a 64-byte CQE for each
    /// receive.
    ///
    /// # Safety
    /// As long as the result is used:
    /// - both queues stay alive with their memory, only the result posts to them or polls them, and
    ///   no other queue completes to the CQ;
    /// - each receive was posted with one SGE of `buffer_bytes` bytes of initialized memory of this
    ///   process, at the address that is its work request id. Only the result accesses that memory
    ///   until [`Frame::replace`] has taken it out.
    pub unsafe fn new(
        cq: &mut CompletionQueue,
        receives: &mut RecvQueue,
        buffer_bytes: u32,
    ) -> Result<Self, QueueError> {
        Self::of(cq, receives, buffer_bytes)
    }

    /// The next frame, whose buffer is given back when the frame is dropped. If `publishes` is
    /// true, the doorbell record is written at once; otherwise by the next [`FrameQueue::publish`].
    ///
    /// # Safety
    /// `next` is the value that the last [`FrameQueue::look`] or [`FrameQueue::look_slow`] of this
    /// queue returned, and no frame was given back since.
    #[inline(always)]
    pub unsafe fn front(&mut self, next: Next, publishes: bool) -> Frame<'_> {
        Frame::of(self, next, publishes)
    }
}

impl Frame<'_> {
    /// The frame's bytes, without the check sequence.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `entry` is the id of the next receive, which belongs to this frame until it is
        // dropped. `update_next` sets `entry` from the table at the start of each part, no part
        // goes beyond the table's end, and `advance` moves it with the counter. The table lives as
        // long as the queue's handle. The id is the address of a buffer of at least `buffer_bytes`
        // bytes (`FrameQueue::new`), and the length does not exceed that. The device has completed
        // the receive and gets it back only after this frame is dropped.
        unsafe {
            let address = (*self.entry()).load(Ordering::Relaxed);
            let start = ptr::with_exposed_provenance(address as usize);
            slice::from_raw_parts(start, self.length())
        }
    }

    /// Replaces the frame's buffer by another one. The caller owns the frame's buffer from now on.
    ///
    /// # Safety
    /// The buffer meets the requirements of [`FrameQueue::new`].
    pub unsafe fn replace(self, buffer: Sge) {
        let (place, places) = (self.place(), self.places());
        // SAFETY: the table and the ring have `mask + 1` entries each. The device has completed the
        // receive and has not got it back.
        unsafe {
            (*places.ids.add(place)).store(buffer.address(), Ordering::Relaxed);
            places.first.byte_add(place << places.shift).write(buffer.octoword());
        }
        // Before the doorbell record that publishes the entry.
        crate::barrier::to_device();
    }
}

/// A ring whose receives are all posted. A special poller posts new buffers to its entries in
/// order.
#[derive(Debug)]
pub struct PostedRing {
    places: Places,
    head: u32,
    handle: QueueHandle,
}

// SAFETY: as for the receive queue that it was made from.
unsafe impl Send for PostedRing {}

impl PostedRing {
    /// The ring of `receives`, in which each receive was posted with one SGE.
    ///
    /// # Errors
    /// `BadLimits` unless all receives are posted.
    ///
    /// # Safety
    /// As long as the result is used, or a [`StrideQueue`](crate::completion_queue::StrideQueue)
    /// that was made from it: this queue and the CQ that it completes to stay alive with their
    /// memory, only the result posts to them or polls them, and no other queue completes to the CQ.
    /// The `StrideQueue` is made with that CQ. The receives meet the requirements of
    /// [`PostedRing::post`].
    pub unsafe fn new(receives: &mut RecvQueue) -> Result<Self, QueueError> {
        let places = receives.places();
        if receives.outstanding() != places.mask + 1 {
            return Err(QueueError::BadLimits);
        }
        Ok(Self { places, head: receives.head(), handle: receives.handle().clone() })
    }

    /// Writes a buffer of one SGE to the next entry. [`PostedRing::publish`] tells the device.
    ///
    /// # Safety
    /// The device has completed the receive that was in the entry. The buffer stays registered, and
    /// none of its bytes is read or written before the device has completed it or the queue is
    /// destroyed.
    pub unsafe fn post(&mut self, buffer: Sge) {
        let place = self.place(self.head) as usize;
        // SAFETY: the ring has `mask + 1` entries, and the device does not read this one before it
        // is published.
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

    /// The index in the ring of the receive with this counter.
    pub fn place(&self, counter: u32) -> u32 {
        counter & self.places.mask
    }

    /// The user index in the CQEs of its receives.
    pub(crate) fn user_index(&self) -> u32 {
        self.handle.user_index()
    }

    /// Records that the device failed a receive.
    pub(crate) fn failed(&self, too_long: bool) {
        self.handle.state().receive_failed(too_long);
    }
}
