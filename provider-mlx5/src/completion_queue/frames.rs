//! Frames: a receive queue and the completion queue that only it uses, polled as one.
//!
//! The receives of such a queue complete in the order of the ring, and each buffer is posted again
//! in the same entry. So a poll needs neither the user index table nor the ring of receives. It
//! compares the last byte of the CQE and its WQE counter with those of the next receive. Giving a
//! buffer back increments one counter, which is written to the receives' doorbell record. CQEs that
//! an earlier queue left in the CQ are removed when the two are joined.
//!
//! The consumer index is published at the end of each eighth of the queue. Until then at most as
//! many CQ entries stay occupied as an eighth has receives. The device has at most as many receives
//! as the queue is deep, and the CQ has at least twice as many entries, so it cannot overrun.
//!
//! At the end of each eighth, outside the fast path, the poller also counts the CQEs that wait.
//! From this count and the number of frames polled in a row follows a lower bound of the receives
//! that the device had: see [`FrameCounters::lowest`].

use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::compiler_fence;

use super::past::INDEX;
use super::ring::{CqeView, OWNER, Ring};
use super::{CompletionQueue, CqMonitor, PollError, Status};
use crate::doorbell::DoorbellWord;
use crate::format::{
    CQE_SIZE, Cqe, CqeChecksum, CqeFormat, CqeHeaderTypes, CqeOpcode, ErrorCqe, MiniCqeFormat,
    OpOwn, Syndrome,
};
use crate::queue_error::QueueError;
use crate::recv_queue::{Places, RecvQueue};
use crate::sync::{AtomicU64, Ordering};
use crate::user_index::QueueHandle;

const WQE_COUNTER: usize = offset_of!(Cqe, wqe_counter);
const BYTE_COUNT: usize = offset_of!(Cqe, byte_count);
/// `op_own` of a frame that arrived, without the owner bit.
const FRAME: u8 = CqeOpcode::RESPONDER_SEND.0 << 4;
/// Parts of the queue. At the end of each the poller counts the CQEs that wait.
const PARTS: u32 = 8;

/// The position of the next frame of a [`FrameQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    cqe: CqeView,
    /// The counter of its receive, as [`FrameQueue`] keeps it.
    counter: u32,
    /// Bytes that arrived, at most the length of a buffer.
    length: usize,
}

/// The kind of the next CQE of a [`FrameQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A frame. [`FrameQueue::front`] returns it.
    Frame(Next),
    /// None yet. [`FrameQueue::nothing`] returns the reason.
    Nothing,
    /// Any other CQE. [`FrameQueue::look_slow`] handles it.
    Other,
}

/// Why a poll returns no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// No frame has arrived.
    #[error("no frame")]
    Empty,
    /// A receive failed and the queue is in error: it receives no more frames.
    #[error("the receive queue failed: {}", .0.text())]
    Failed(Status),
    /// An error of [`PollError`] other than `Empty`.
    #[error(transparent)]
    Queue(PollError),
}

impl From<PollError> for FrameError {
    fn from(error: PollError) -> Self {
        if error == PollError::Empty { Self::Empty } else { Self::Queue(error) }
    }
}

/// The counters of a [`FrameQueue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Frames given back, without those that were longer than their buffer.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames that were longer than their buffer; they are skipped.
    pub too_long: u64,
    /// Completions that were not for the next receive, or with more bytes than a buffer has.
    pub refused: u64,
    /// The device had at least this many receives at all times, not counting receives whose
    /// completions it holds back to compress them.
    pub lowest: u32,
    /// Times at which the device may have had no receive, and so have lost frames.
    pub exhausted: u64,
}

/// A receive queue whose receives are one buffer each, and its CQ.
#[derive(Debug)]
#[repr(align(128))]
pub struct FrameQueue {
    /// The CQE of the next frame.
    next: CqeView,
    /// The counter of the next receive: the 16 bits that its CQE has, in the upper half.
    counter: u32,
    /// The end of the fast path: `counter` at the end of a part, or of the ring.
    stop: u32,
    /// The tail when `stop` was last computed.
    start: u32,
    /// `op_own` of a frame in this lap.
    expected: u8,
    /// The work request id of the next receive, which is the address of its buffer.
    entry: *const AtomicU64,
    places: Places,
    /// Bytes of each buffer.
    buffer_bytes: usize,
    /// The number of receives that the device may use, counted from the tail.
    depth: u32,
    /// `depth` in the upper half, to be added to `counter`.
    ahead: u32,
    /// Receives of a part of the queue, a power of two.
    part: u32,
    /// The CQ's consumer index minus the tail.
    offset: u32,
    consumer_index: DoorbellWord,
    bytes: u64,
    /// The number of receives given back minus the tail, which wraps.
    wrapped: u64,
    /// The format of mini-CQEs, if completions may be compressed.
    mini_format: Option<MiniCqeFormat>,
    /// The tail when the queue was last found empty.
    run_start: u32,
    /// `next` when the queue was last found empty.
    emptied: CqeView,
    /// The most receives that the device may have been short of at one time.
    deepest: u32,
    exhausted: u64,
    too_long: u64,
    failed: u64,
    refused: u64,
    ring: Ring,
    monitor: CqMonitor,
    handle: QueueHandle,
    lap_request: u64,
}

impl FrameQueue {
    /// [`FrameQueue::new`].
    pub(super) fn of(
        cq: &mut CompletionQueue,
        receives: &mut RecvQueue,
        buffer_bytes: u32,
    ) -> Result<Self, QueueError> {
        let places = receives.places();
        let depth = places.mask + 1;
        let fits = cq.entries() > depth && cq.stride == CQE_SIZE;
        if receives.outstanding() != depth || !fits || !cq.can_remove() {
            return Err(QueueError::BadLimits);
        }
        cq.remove_closed();
        let tail = receives.head().wrapping_sub(depth);
        let mut queue = Self {
            next: cq.next,
            counter: on_top(tail),
            stop: on_top(tail),
            start: tail,
            expected: FRAME,
            entry: places.ids,
            places,
            buffer_bytes: buffer_bytes as usize,
            depth,
            ahead: on_top(depth),
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

    /// The kind of the next CQE.
    #[inline(always)]
    pub fn look(&self) -> Look {
        let cqe = self.next;
        // The lowest bit of the difference, the owner bit, is that of the exclusive or.
        let difference = cqe.op_own().wrapping_sub(self.expected);
        if difference == 0 {
            crate::barrier::from_device();
            let (counter, length) = (cqe.u16_on_top(WQE_COUNTER), cqe.u32(BYTE_COUNT) as usize);
            let is_good = counter == self.counter && length <= self.buffer_bytes;
            return if is_good { Look::Frame(Next { cqe, counter, length }) } else { Look::Other };
        }
        crate::hint::cold_path();
        if difference & OWNER != 0 { Look::Nothing } else { Look::Other }
    }

    /// Tells the device of all buffers that were given back.
    #[inline(always)]
    pub fn publish(&mut self) {
        let head = self.counter.wrapping_add(self.ahead);
        self.places.doorbell.store_release(head >> 16);
    }

    /// Tells the device of the CQEs that were read.
    fn publish_consumed(&self) {
        self.consumer_index.store_release(self.consumed() & INDEX);
    }

    /// Called when there was no frame; returns the reason.
    #[inline(always)]
    pub fn nothing(&mut self, cq: &mut CompletionQueue) -> FrameError {
        // A run with as many frames as the ring has entries ends at the end of a part, and
        // `end_part` has recorded it.
        if self.next != self.emptied {
            self.end_run();
        }
        if self.monitor.requested() == cq.answered {
            return FrameError::Empty;
        }
        self.answer(cq)
    }

    /// Handles requests of other threads, which wait for the CQ to be drained or have reported its
    /// failure.
    #[cold]
    #[inline(never)]
    fn answer(&mut self, cq: &mut CompletionQueue) -> FrameError {
        self.write_back(cq);
        cq.answer_requests().into()
    }

    /// Handles CQEs that the fast path does not: skips frames that were too long, and CQEs that
    /// name no receive.
    ///
    /// # Errors
    /// [`FrameError`]; the next call continues after the CQE that caused it.
    #[cold]
    #[inline(never)]
    pub fn look_slow(&mut self, cq: &mut CompletionQueue) -> Result<Next, FrameError> {
        loop {
            let Some(op_own) = self.ring.written(self.consumed()) else {
                return Err(self.nothing(cq));
            };
            if self.ring.opens_session(self.consumed(), op_own, self.mini_format) {
                continue;
            }
            let is_next = self.next.u16_on_top(WQE_COUNTER) == self.counter;
            if is_next && is_frame(op_own) {
                return self.found();
            }
            if !is_next || op_own.opcode() != CqeOpcode::RESPONDER_ERROR {
                return Err(self.refuse());
            }
            self.skip_failed()?;
        }
    }

    /// The next CQE, which is a frame's. If its length exceeds the buffer, the frame is refused and
    /// its receive given back, because the true length is unknown.
    fn found(&mut self) -> Result<Next, FrameError> {
        let length = self.next.u32(BYTE_COUNT) as usize;
        let next = Next { cqe: self.next, counter: self.counter, length };
        if length <= self.buffer_bytes {
            return Ok(next);
        }
        self.refused += 1;
        self.failed += 1;
        self.advance(Next { length: 0, ..next });
        self.publish();
        Err(FrameError::Queue(PollError::NotOutstanding))
    }

    /// Gives back the receive of an error CQE.
    fn skip_failed(&mut self) -> Result<(), FrameError> {
        let syndrome = Syndrome(self.next.u8(offset_of!(ErrorCqe, syndrome)));
        let too_long = syndrome == Syndrome::LOCAL_LENGTH;
        self.handle.state().receive_failed(too_long);
        *(if too_long { &mut self.too_long } else { &mut self.failed }) += 1;
        self.advance(Next { cqe: self.next, counter: self.counter, length: 0 });
        self.publish();
        if too_long { Ok(()) } else { Err(FrameError::Failed(syndrome.into())) }
    }

    /// Skips a CQE that names no receive.
    fn refuse(&mut self) -> FrameError {
        self.refused += 1;
        self.offset = self.offset.wrapping_add(1);
        self.update_next();
        self.publish();
        self.publish_consumed();
        FrameError::Queue(PollError::NotOutstanding)
    }

    /// Moves past the next CQE and gives its receive back.
    #[inline(always)]
    fn advance(&mut self, next: Next) {
        self.bytes = self.bytes.wrapping_add(next.length as u64);
        // Between the fences, the compiler updates each field with one instruction.
        compiler_fence(Ordering::SeqCst);
        self.entry = self.entry.wrapping_add(1);
        compiler_fence(Ordering::SeqCst);
        self.next = self.next.after(CQE_SIZE);
        self.counter = next.counter.wrapping_add(on_top(1));
        if self.counter == self.stop {
            self.end_part();
        }
    }

    /// Frames given back, which is also the 32-bit counter of the next receive. Wraps.
    fn tail(&self) -> u32 {
        // At most one part was given back since `start`, so 16 bits suffice.
        let since = (self.counter >> 16).wrapping_sub(self.start) & 0xffff;
        self.start.wrapping_add(since)
    }

    fn consumed(&self) -> u32 {
        self.tail().wrapping_add(self.offset)
    }

    /// Handles the end of a part of the queue: counts the CQEs that wait.
    #[cold]
    #[inline(never)]
    fn end_part(&mut self) {
        if self.tail() == 0 {
            // The counter wraps only at the end of a part, since parts are powers of two.
            self.wrapped = self.wrapped.wrapping_add(1 << 32);
        }
        self.update_next();
        self.publish_consumed();
        let backlog = self.parts_waiting();
        let run = self.tail().wrapping_sub(self.run_start).saturating_add(backlog);
        self.note_lacking(run.min(backlog + self.part + self.unpublished()));
    }

    /// A lower bound of the CQEs that wait, less than one part below their number. It is exact if
    /// completions may be compressed.
    fn parts_waiting(&self) -> u32 {
        let consumed = self.consumed();
        if self.mini_format.is_some() {
            return self.ring.waiting(consumed, self.depth);
        }
        let mut backlog = 0;
        while backlog < self.depth && self.ring.written(consumed.wrapping_add(backlog)).is_some() {
            backlog += self.part;
        }
        backlog
    }

    /// Called when the queue was found empty after at least one frame.
    #[inline(never)]
    fn end_run(&mut self) {
        let tail = self.tail();
        let run = tail.wrapping_sub(self.run_start);
        (self.run_start, self.emptied) = (tail, self.next);
        let lacking = run.min(self.part + self.unpublished());
        self.note_lacking(lacking);
    }

    fn note_lacking(&mut self, receives: u32) {
        self.deepest = self.deepest.max(receives);
        self.exhausted += u64::from(receives >= self.depth);
    }

    /// Buffers given back that are not published yet.
    fn unpublished(&self) -> u32 {
        let published = self.places.doorbell.load();
        u32::from((self.tail().wrapping_add(self.depth) as u16).wrapping_sub(published as u16))
    }

    /// Frames that have arrived and were not polled, at most the queue's depth. Found by bisection,
    /// since the device writes CQEs in order; counted one by one if they may be compressed.
    pub fn backlog(&self) -> u32 {
        let consumed = self.consumed();
        if self.mini_format.is_some() {
            return self.ring.waiting(consumed, self.depth);
        }
        let (mut all, mut none) = (0, self.depth + 1);
        while none - all > 1 {
            let middle = all + (none - all) / 2;
            let is_written = self.ring.written(consumed.wrapping_add(middle - 1)).is_some();
            *(if is_written { &mut all } else { &mut none }) = middle;
        }
        all
    }

    /// Computes the fast path's position from the counters.
    fn update_next(&mut self) {
        let (tail, consumed) = (self.tail(), self.consumed());
        if self.ring.starts_lap(consumed) {
            self.monitor.set_lap(consumed);
            self.monitor.set_drained(self.lap_request);
            self.lap_request = self.monitor.requested();
        }
        self.next = self.ring.cqe(consumed);
        self.entry = self.places.ids.wrapping_add((tail & self.places.mask) as usize);
        self.expected = FRAME | self.ring.lap(consumed);
        let left = self.part - (tail & (self.part - 1));
        let before_end = self.ring.entries() - (consumed & (self.ring.entries() - 1));
        self.start = tail;
        self.stop = on_top(tail.wrapping_add(left.min(before_end)));
    }

    /// Moves the CQ to this queue's position. Called before the CQ is armed or reads events. Does
    /// nothing to another CQ, which would poll completions a second time.
    pub fn write_back(&self, cq: &mut CompletionQueue) {
        cq.go_on(&self.monitor, self.consumed(), self.lap_request);
    }

    /// The counters so far.
    pub fn counters(&self) -> FrameCounters {
        let given_back = self.wrapped.wrapping_add(self.tail().into());
        FrameCounters {
            frames: given_back - self.too_long - self.failed,
            bytes: self.bytes,
            too_long: self.too_long,
            refused: self.refused,
            lowest: self.depth.saturating_sub(self.deepest),
            exhausted: self.exhausted,
        }
    }

    /// Receives that the device has while no frame waits.
    pub fn depth(&self) -> u32 {
        self.depth
    }
}

/// A counter's lower 16 bits, moved to the upper half of a word, where they wrap without a mask.
#[inline(always)]
fn on_top(counter: u32) -> u32 {
    counter << 16
}

pub(super) fn is_frame(op_own: OpOwn) -> bool {
    op_own.opcode() == CqeOpcode::RESPONDER_SEND && op_own.format() == CqeFormat::NO_INLINE
}

/// A frame that has arrived. Dropping it gives its buffer back.
///
/// If it is leaked, its buffer is not given back, and the next poll returns the frame again.
#[derive(Debug)]
pub struct Frame<'q> {
    queue: &'q mut FrameQueue,
    next: Next,
    publishes: bool,
    /// The frame stays in this thread.
    thread: PhantomData<*const ()>,
}

impl<'q> Frame<'q> {
    /// [`FrameQueue::front`].
    #[inline(always)]
    pub(super) fn of(queue: &'q mut FrameQueue, next: Next, publishes: bool) -> Self {
        Self { queue, next, publishes, thread: PhantomData }
    }

    /// The work request id of its receive, which is the address of its buffer.
    #[inline(always)]
    pub(super) fn entry(&self) -> *const AtomicU64 {
        self.queue.entry
    }

    pub(super) fn places(&self) -> &Places {
        &self.queue.places
    }

    #[inline(always)]
    fn cqe(&self) -> CqeView {
        self.next.cqe
    }

    /// Bytes that arrived.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.next.length
    }

    /// Bytes of the queue's buffers.
    #[inline(always)]
    pub fn buffer_bytes(&self) -> u32 {
        self.queue.buffer_bytes as u32
    }

    /// The device's clock when the frame arrived, in the format of the CQ.
    #[inline(always)]
    pub fn timestamp(&self) -> u64 {
        self.cqe().u64(offset_of!(Cqe, timestamp))
    }

    /// The tag of the steering rule that delivered the frame, 24 bits.
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.cqe().u32(offset_of!(Cqe, opcode_qpn_flow_tag)) & 0xff_ffff
    }

    /// The checks that the device made and that succeeded.
    #[inline(always)]
    pub fn checks(&self) -> CqeChecksum {
        CqeChecksum(self.cqe().u8(offset_of!(Cqe, checks)))
    }

    /// The types of the frame's headers, and whether a VLAN tag was stripped.
    #[inline(always)]
    pub fn header_types(&self) -> CqeHeaderTypes {
        CqeHeaderTypes(self.cqe().u8(offset_of!(Cqe, header_types)))
    }

    /// The control information of the VLAN tag that the device stripped.
    #[inline(always)]
    pub fn vlan(&self) -> Option<u16> {
        self.header_types().vlan_stripped().then(|| self.cqe().u16(offset_of!(Cqe, vlan_info)))
    }

    /// The receive hash, and which fields were hashed.
    #[inline(always)]
    pub fn hash(&self) -> (u32, u8) {
        let cqe = self.cqe();
        (cqe.u32(offset_of!(Cqe, rss_hash)), cqe.u8(offset_of!(Cqe, rss_hash_type)))
    }

    /// The index of the frame's buffer, counted from 0 in the order in which the queue's buffers
    /// were first posted.
    #[inline(always)]
    pub fn place(&self) -> usize {
        (self.next.counter >> 16 & self.queue.places.mask) as usize
    }
}

impl Drop for Frame<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.advance(self.next);
        if self.publishes {
            self.queue.publish();
        }
    }
}
