//! Striding receive queues: many frames fill the strides of one WQE. The receive queue and a
//! completion queue used only by it are polled as one.
//!
//! The device fills the strides of a WQE in order, and the WQEs in the order of the ring. So each
//! CQE must name the queue's next stride. A CQE that names another is refused and changes nothing.
//! A filler CQE consumes strides without a frame. A WQE is done when all its strides are consumed.
//! Then another buffer can be posted in its entry ([`PostedRing::post`]).
//!
//! The consumer index is published at the end of each WQE, before its entry is posted again. A CQE
//! consumes at least one stride. So a CQ with more entries than the queue has strides cannot
//! overrun.

use core::mem::offset_of;

use super::buffers::PostedRing;
use super::frames::{FrameError, is_frame};
use super::past::INDEX;
use super::ring::{CqeView, Ring};
use super::{CompletionQueue, CqMonitor, PollError};
use crate::doorbell::DoorbellWord;
use crate::format::{
    CQE_SIZE, Cqe, CqeChecksum, CqeHeaderTypes, CqeOpcode, ErrorCqe, MiniCqeFormat,
    StrideByteCount, Syndrome,
};
use crate::queue_error::QueueError;

/// How the buffers of a queue are divided into strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrideShape {
    /// log2 of a stride's bytes, at most 13.
    pub log_bytes: u8,
    /// log2 of a WQE's strides, at most 16.
    pub log_strides: u8,
    /// Frames begin two bytes after the start of a stride.
    pub two_byte_shift: bool,
}

impl StrideShape {
    /// Strides of a WQE.
    pub const fn strides(self) -> u32 {
        1 << self.log_strides
    }

    /// Bytes of a WQE's buffer.
    pub const fn wqe_bytes(self) -> u32 {
        1 << (self.log_strides + self.log_bytes)
    }

    const fn shift(self) -> u32 {
        if self.two_byte_shift { 2 } else { 0 }
    }
}

/// A frame that has arrived: its position, and the contents of its CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrideFrame {
    /// The index in the ring of its WQE.
    pub place: u32,
    /// The offset in the WQE's buffer at which it begins.
    pub offset: u32,
    /// Its length. The frame is within the buffer.
    pub length: u32,
    /// The device's clock when it arrived, in the format of the CQ.
    pub timestamp: u64,
    /// The tag of the steering rule that delivered it, 24 bits.
    pub flow_tag: u32,
    /// The receive hash, and which fields were hashed.
    pub hash: (u32, u8),
    /// The control information of the VLAN tag, if the device stripped one.
    pub vlan: Option<u16>,
    /// The checks that the device made and that succeeded.
    pub checks: CqeChecksum,
    /// The types of its headers.
    pub header_types: CqeHeaderTypes,
}

impl StrideFrame {
    fn new(cqe: CqeView, place: u32, offset: u32, length: u32) -> Self {
        let header_types = CqeHeaderTypes(cqe.u8(offset_of!(Cqe, header_types)));
        let vlan = header_types.vlan_stripped().then(|| cqe.u16(offset_of!(Cqe, vlan_info)));
        Self {
            place,
            offset,
            length,
            timestamp: cqe.u64(offset_of!(Cqe, timestamp)),
            flow_tag: cqe.u32(offset_of!(Cqe, opcode_qpn_flow_tag)) & 0xff_ffff,
            hash: (cqe.u32(offset_of!(Cqe, rss_hash)), cqe.u8(offset_of!(Cqe, rss_hash_type))),
            vlan,
            checks: CqeChecksum(cqe.u8(offset_of!(Cqe, checks))),
            header_types,
        }
    }
}

/// The counters of a [`StrideQueue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrideCounters {
    /// Frames polled.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Fillers: ends of WQEs that were too small for the next frame.
    pub fillers: u64,
    /// Frames that were longer than a WQE's buffer; they are skipped.
    pub too_long: u64,
    /// Completions for strides other than the next ones, or for another queue.
    pub refused: u64,
    /// Times at which the device had no WQE left when a WQE was done.
    pub exhausted: u64,
}

/// A striding receive queue and its CQ.
#[derive(Debug)]
pub struct StrideQueue {
    shape: StrideShape,
    receives: PostedRing,
    user_index: u32,
    /// The WQE that is being filled; wraps.
    tail: u32,
    /// Strides of it that are consumed.
    used: u32,
    /// CQEs read; wraps.
    consumed: u32,
    consumer_index: DoorbellWord,
    counters: StrideCounters,
    /// The format of mini-CQEs, if completions may be compressed.
    mini_format: Option<MiniCqeFormat>,
    ring: Ring,
    monitor: CqMonitor,
    lap_request: u64,
}

impl StrideQueue {
    /// Joins the two queues. The contract of [`PostedRing::new`] restricts their use from then on.
    ///
    /// # Errors
    /// `BadLimits` if the CQ cannot hold a 64-byte CQE for each stride, or a resize of it is
    /// pending.
    pub fn new(
        cq: &mut CompletionQueue,
        receives: PostedRing,
        shape: StrideShape,
    ) -> Result<Self, QueueError> {
        let strides = u64::from(receives.depth()) << shape.log_strides.min(32);
        let fits = shape.log_bytes <= 13 && shape.log_strides <= 16;
        let holds = u64::from(cq.entries()) > strides && cq.stride == CQE_SIZE;
        if !fits || !holds || !cq.can_remove() {
            return Err(QueueError::BadLimits);
        }
        cq.remove_closed();
        Ok(Self {
            shape,
            tail: receives.head().wrapping_sub(receives.depth()),
            user_index: receives.user_index(),
            receives,
            used: 0,
            consumed: cq.consumed,
            consumer_index: cq.consumer_index.again(),
            counters: StrideCounters::default(),
            mini_format: cq.mini_format,
            ring: cq.ring,
            monitor: cq.monitor(),
            lap_request: cq.lap_request,
        })
    }

    /// The next frame. The caller may read its bytes until the buffer is posted again.
    ///
    /// # Errors
    /// [`FrameError`]; the next call continues after the CQE that caused it.
    pub fn poll(&mut self, cq: &mut CompletionQueue) -> Result<StrideFrame, FrameError> {
        loop {
            let Some(op_own) = self.ring.written(self.consumed) else {
                return Err(self.nothing(cq));
            };
            if self.ring.opens_session(self.consumed, op_own, self.mini_format) {
                continue;
            }
            let cqe = self.ring.cqe(self.consumed);
            let is_frame = is_frame(op_own);
            let is_error = op_own.opcode() == CqeOpcode::RESPONDER_ERROR;
            let Some(count) = self.next_strides(cqe).filter(|_| is_frame || is_error) else {
                return Err(self.refuse());
            };
            if is_error {
                self.skip_failed(cqe, count)?;
            } else if count.is_filler() {
                self.counters.fillers += 1;
                self.consume(count);
            } else {
                return Ok(self.take(cqe, count));
            }
        }
    }

    /// The strides that a CQE consumes, if they are the next ones of this queue.
    fn next_strides(&self, cqe: CqeView) -> Option<StrideByteCount> {
        if cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX != self.user_index {
            return None;
        }
        let count = StrideByteCount::from_word(cqe.u32(offset_of!(Cqe, byte_count)));
        let wqe = u32::from(cqe.u16(offset_of!(Cqe, wqe_id)));
        let is_next = self.receives.place(wqe) == self.receives.place(self.tail)
            && u32::from(cqe.u16(offset_of!(Cqe, wqe_counter))) == self.used
            && self.receives.head() != self.tail;
        let strides = u32::from(count.strides());
        let fits = strides >= 1 && strides <= self.shape.strides() - self.used;
        let bytes = u32::from(count.byte_count.get()) + self.shape.shift();
        let holds = count.is_filler() || bytes <= strides << self.shape.log_bytes;
        (is_next && fits && holds).then_some(count)
    }

    fn take(&mut self, cqe: CqeView, count: StrideByteCount) -> StrideFrame {
        let length = u32::from(count.byte_count.get());
        let offset = (self.used << self.shape.log_bytes) + self.shape.shift();
        let frame = StrideFrame::new(cqe, self.receives.place(self.tail), offset, length);
        self.counters.frames += 1;
        self.counters.bytes += u64::from(length);
        self.consume(count);
        frame
    }

    /// Moves past the next CQE and its strides.
    fn consume(&mut self, count: StrideByteCount) {
        self.used += u32::from(count.strides());
        self.pass();
        if self.used == self.shape.strides() {
            self.used = 0;
            self.tail = self.tail.wrapping_add(1);
            self.publish_consumed();
            self.counters.exhausted += u64::from(self.is_exhausted());
        }
    }

    /// Skips a frame that was longer than a WQE; any other failure fails the queue.
    fn skip_failed(&mut self, cqe: CqeView, count: StrideByteCount) -> Result<(), FrameError> {
        let syndrome = Syndrome(cqe.u8(offset_of!(ErrorCqe, syndrome)));
        let too_long = syndrome == Syndrome::LOCAL_LENGTH;
        self.receives.failed(too_long);
        self.counters.too_long += u64::from(too_long);
        self.consume(count);
        if too_long { Ok(()) } else { Err(FrameError::Failed(syndrome.into())) }
    }

    /// Skips a CQE that does not name the next strides.
    fn refuse(&mut self) -> FrameError {
        self.counters.refused += 1;
        self.pass();
        self.publish_consumed();
        FrameError::Queue(PollError::NotOutstanding)
    }

    fn pass(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
        if self.ring.starts_lap(self.consumed) {
            self.monitor.set_lap(self.consumed);
            self.monitor.set_drained(self.lap_request);
            self.lap_request = self.monitor.requested();
        }
    }

    fn publish_consumed(&self) {
        self.consumer_index.store_release(self.consumed & INDEX);
    }

    /// Whether the device has consumed all published WQEs, according to the last CQE that it wrote.
    fn is_exhausted(&mut self) -> bool {
        let waiting = self.expand_waiting();
        if waiting == 0 {
            return self.receives.head() == self.tail;
        }
        let last = self.ring.cqe(self.consumed.wrapping_add(waiting - 1));
        let count = StrideByteCount::from_word(last.u32(offset_of!(Cqe, byte_count)));
        let end = u32::from(last.u16(offset_of!(Cqe, wqe_counter))) + u32::from(count.strides());
        let wqe = u32::from(last.u16(offset_of!(Cqe, wqe_id)));
        let last = self.receives.head().wrapping_sub(1);
        let is_last = self.receives.place(wqe) == self.receives.place(last);
        is_last && end == self.shape.strides()
    }

    /// [`StrideQueue::backlog`], which also decompresses these CQEs.
    fn expand_waiting(&mut self) -> u32 {
        if self.mini_format.is_none() {
            return self.backlog();
        }
        self.ring.expand_waiting(self.consumed, self.mini_format, |_| true)
    }

    /// CQEs that have arrived and were not polled, including fillers. Found by bisection, since the
    /// device writes CQEs in order; counted one by one if they may be compressed.
    pub fn backlog(&self) -> u32 {
        if self.mini_format.is_some() {
            return self.ring.waiting(self.consumed, self.ring.entries());
        }
        let (mut all, mut none) = (0, self.ring.entries() + 1);
        while none - all > 1 {
            let middle = all + (none - all) / 2;
            let is_written = self.ring.written(self.consumed.wrapping_add(middle - 1)).is_some();
            *(if is_written { &mut all } else { &mut none }) = middle;
        }
        all
    }

    /// Called when there was no frame; returns the reason.
    pub fn nothing(&mut self, cq: &mut CompletionQueue) -> FrameError {
        self.publish_consumed();
        if self.monitor.requested() == cq.answered {
            return FrameError::Empty;
        }
        self.write_back(cq);
        cq.answer_requests().into()
    }

    /// Whether a CQE waits to be polled.
    pub fn has_something(&self) -> bool {
        self.ring.written(self.consumed).is_some()
    }

    /// Moves the CQ to this queue's position. Called before the CQ is armed or reads events. Has no
    /// effect on another CQ, which would otherwise repeat or lose completions.
    pub fn write_back(&self, cq: &mut CompletionQueue) {
        cq.go_on(&self.monitor, self.consumed, self.lap_request);
    }

    /// WQEs whose strides are all consumed, modulo 2^32. The index of WQE `n` in the ring is `n`
    /// modulo the depth.
    pub fn done(&self) -> u32 {
        self.tail
    }

    /// Entries without a posted buffer.
    pub fn missing(&self) -> u32 {
        self.receives.depth() - self.receives.head().wrapping_sub(self.tail)
    }

    /// The index of the entry that [`PostedRing::post`] fills next; `None` if all are posted.
    pub fn free_place(&self) -> Option<u32> {
        (self.missing() > 0).then(|| self.receives.place(self.receives.head()))
    }

    /// The ring of receives.
    pub fn receives(&mut self) -> &mut PostedRing {
        &mut self.receives
    }

    /// The counters so far.
    pub fn counters(&self) -> StrideCounters {
        self.counters
    }
}
