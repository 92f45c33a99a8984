//! The poller's slow path: all CQEs except successful sends and receives of open queues.

use core::mem::offset_of;

use super::completion::Raw;
use super::past::INDEX;
use super::poll::{
    FIRST_RECEIVE, INLINE, Look, NO_GOOD_RECEIVE, RECEIVE_ERROR, SEND_ERROR, SOLICITED,
    WQE_COUNTER, good,
};
use super::resize::is_mark;
use super::ring::{CqeView, OWNER, marker};
use super::tags::{fail_changes, holds_receive, is_tagged};
use super::{CompletionQueue, CqMonitor, PollError, Status};
use crate::format::{Cqe, CqeFormat, CqeOpcode, ErrorCqe, OpOwn, Syndrome};
use crate::queue_state::{Places, QueueState};
use crate::sync::Ordering;

/// Reads pending events, to find the error of a CQ that overran.
pub(super) struct EventSource {
    look: Box<dyn FnMut() + Send>,
    polls: u32,
}

/// The number of completions from which on no further session is decompressed ahead of its polls.
const DECOMPRESSED: u32 = 64;

/// Empty polls for each read of the events, because a read may be a system call.
const POLLS_PER_LOOK: u32 = 1024;

impl EventSource {
    pub(super) fn new(look: impl FnMut() + Send + 'static) -> Self {
        Self { look: Box::new(look), polls: 0 }
    }

    /// Reads the events if enough polls have passed since the last time. Returns whether it did.
    fn look(&mut self) -> bool {
        self.polls = (self.polls + 1) % POLLS_PER_LOOK;
        if self.polls == 0 {
            (self.look)();
        }
        self.polls == 0
    }
}

impl core::fmt::Debug for EventSource {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EventSource").field("polls", &self.polls).finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// Polls the CQEs that the fast path does not. Errors, titles of sessions, queues that share a
    /// place in the table, and inline data that is copied to buffers are tried first, in code that
    /// uses few registers. So they cost little more than other completions.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_slow(&mut self) -> Result<Raw, PollError> {
        match self.look() {
            Look::Good(what) => match self.poll_by_index(what) {
                Some(raw) => Ok(raw),
                None => self.poll_any(),
            },
            Look::Title => self.poll_title(),
            Look::Other => self.poll_inline_or_error(),
        }
    }

    /// Polls a successful send or receive of a queue that shares its place with another one. In a
    /// context with very many queues, most completions may take this path. Returns `None`, with
    /// nothing changed, for other CQEs and for the last of a lap, so that this function calls no
    /// other.
    #[inline(always)]
    fn poll_by_index(&mut self, what: u8) -> Option<Raw> {
        let cqe = self.next;
        let after = cqe.after(self.stride);
        if after == self.end {
            return None;
        }
        let raw = self.complete_good(&self.queues.places_of_part(cqe)?, cqe, what)?;
        self.consumed = self.consumed.wrapping_add(1);
        self.next = after;
        Some(raw)
    }

    /// Decompresses the session whose title is the next CQE, a receive's, and polls its first
    /// completion. Sessions that follow it are decompressed at the same time, because reaching this
    /// code costs as much as decompressing several completions. The [`marker`] is not a receive's
    /// CQE.
    #[inline(never)]
    fn poll_title(&mut self) -> Result<Raw, PollError> {
        let Some(format) = self.mini_format else { return self.poll_any() };
        let mut ahead = 0;
        loop {
            crate::barrier::from_device();
            let at = self.consumed.wrapping_add(ahead);
            let count = self.ring.decompress(at, format);
            ahead = ahead.saturating_add(count);
            if count == 0 || ahead >= DECOMPRESSED || !self.is_title_of_session(ahead) {
                break;
            }
        }
        let what = self.next.op_own() ^ self.owner;
        match self.good_receive::<false>(self.queues.places(), self.next, what) {
            Some(raw) => Ok(self.passed(raw)),
            None => self.poll_rest_by_index(),
        }
    }

    /// Whether the CQE `ahead` entries after the next one is the title of a session of receives
    /// that fits into the rest of the ring.
    #[inline(always)]
    fn is_title_of_session(&self, ahead: u32) -> bool {
        let at = self.consumed.wrapping_add(ahead);
        let left = self.ring.entries().saturating_sub(ahead);
        if !self.is_title(at) {
            return false;
        }
        crate::barrier::from_device();
        self.ring.session_length(at) <= left
    }

    #[inline(never)]
    fn poll_inline_or_error(&mut self) -> Result<Raw, PollError> {
        match self.complete_inline_or_error(self.queues.places()) {
            Some(raw) => Ok(self.passed(raw)),
            None => self.poll_rest_by_index(),
        }
    }

    /// [`CompletionQueue::poll_by_index`] for inline data, errors, and decompressed titles. All
    /// others go to `poll_any`.
    #[inline(never)]
    fn poll_rest_by_index(&mut self) -> Result<Raw, PollError> {
        match self.queues.places_of_part(self.next).and_then(|places| self.complete_any(&places)) {
            Some(raw) => Ok(self.passed(raw)),
            None => self.poll_any(),
        }
    }

    /// Counts the next CQE, which was completed, as polled.
    #[inline(always)]
    fn passed(&mut self, raw: Raw) -> Raw {
        self.consumed = self.consumed.wrapping_add(1);
        self.next = self.next.after(self.stride);
        if self.next == self.end {
            self.next_lap();
        }
        raw
    }

    /// Consumes CQEs until one is a completion to report.
    #[inline(never)]
    fn poll_any(&mut self) -> Result<Raw, PollError> {
        if self.kept > 0 {
            self.kept -= 1;
            self.update_next();
            return Err(PollError::NotOutstanding);
        }
        let result = loop {
            let Some(op_own) = self.ring.written(self.consumed) else {
                break Err(self.found_nothing());
            };
            if is_mark(op_own) {
                if self.pass_mark() {
                    continue;
                }
                break Err(self.found_nothing());
            }
            if self.ring.opens_session(self.consumed, op_own, self.mini_format) {
                continue;
            }
            let raw = self.report(self.ring.cqe(self.consumed), op_own);
            self.consume();
            if let Some(result) = raw {
                break result;
            }
            self.dropped += 1;
        };
        if matches!(result, Err(PollError::NotOutstanding)) {
            self.refused += 1;
            // As above: the program holds no completion.
            self.publish_up_to(self.consumed);
        }
        self.update_next();
        result
    }

    /// Called when the program holds no completion. Gives back the entries of dropped CQEs now, not
    /// only with the next completion.
    fn found_nothing(&mut self) -> PollError {
        self.publish_up_to(self.consumed);
        self.nothing()
    }

    pub(super) fn consume(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
        if self.ring.starts_lap(self.consumed) {
            self.next_lap();
        }
    }

    /// Computes the fast path's position from the counter.
    pub(super) fn update_next(&mut self) {
        if self.kept > 0 {
            self.next = marker();
            self.owner = 0;
        } else {
            self.next = self.ring.cqe(self.consumed);
            self.owner = self.ring.lap(self.consumed);
        }
        self.end = self.ring.end();
        self.stride = self.ring.stride();
    }

    /// Moves to the position of a frame queue that polls this CQ. Does nothing if that queue polls
    /// another CQ.
    pub(super) fn go_on(&mut self, taken: &CqMonitor, consumed: u32, lap_request: u64) {
        if taken.is_same(&self.monitor) {
            self.consumed = consumed;
            self.lap_request = lap_request;
            self.update_next();
        }
    }

    /// Starts the next lap: everything that was in the ring when the last lap began has been
    /// polled. Returns the first CQE of the ring.
    #[cold]
    #[inline(never)]
    pub(super) fn next_lap(&mut self) -> CqeView {
        self.next = self.ring.cqe(0);
        self.monitor.set_lap(self.consumed);
        self.report_drained(self.lap_request);
        self.lap_request = self.monitor.requested();
        self.owner ^= OWNER;
        self.next
    }

    /// Records that everything that was in the ring at the time of this request has been polled.
    pub(super) fn report_drained(&mut self, request: u64) {
        self.monitor.set_drained(request);
    }

    /// Handles requests of other threads when the CQ is empty: they wait for it to be drained, or
    /// have reported its failure. Also checks for an overrun, if one is possible.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_requests(&mut self) -> PollError {
        let requested = self.monitor.requested();
        // The CQ was found empty before the request was read, so look again.
        if self.has_next() {
            return PollError::Empty;
        }
        self.report_drained(requested);
        let watches = self.look_for_overrun();
        if let Some(failure) = self.monitor.failure() {
            // The request stays unanswered, so that every later poll comes here.
            return failure;
        }
        if !watches {
            self.answered = requested;
        }
        PollError::Empty
    }

    /// Records that a batch held this many entries, more than any before it. If the program posts
    /// during a batch, the ring can hold that many fewer completions.
    #[cold]
    #[inline(never)]
    pub(super) fn lend_more(&mut self, lent: u32) {
        self.monitor.change_load(self.lent, lent);
        self.lent = lent;
    }

    /// Checks for the overrun event from time to time. Returns whether the CQ can overrun.
    fn look_for_overrun(&mut self) -> bool {
        let Some(events) = &mut self.events else { return false };
        if !self.monitor.can_overrun() {
            return false;
        }
        if events.look() {
            // The CQ holds no more completions of closed queues.
            self.queues.table().reap();
        }
        true
    }

    /// Finds the queue of a CQE and completes its request. `None` if the CQE is to be dropped.
    fn report(&mut self, cqe: CqeView, op_own: OpOwn) -> Option<Result<Raw, PollError>> {
        let long_data_in_short_entry =
            op_own.format() == CqeFormat::INLINE_64 && !self.ring.is_wide();
        if long_data_in_short_entry {
            return None;
        }
        let opcode = op_own.opcode();
        let is_known = opcode.is_requester() || opcode.is_responder();
        if !is_known && opcode != CqeOpcode::NO_PACKET {
            return None;
        }
        let state = self.find(cqe, op_own)?;
        let is_send = opcode.is_requester();
        if !state.completes_to(self.queues.identity(), is_send) {
            return Some(Err(PollError::NotOutstanding));
        }
        let receives = state.receives();
        if receives.matches_tags() && is_tagged(cqe, op_own) {
            return self.finish_tagged(cqe, op_own, state, receives);
        }
        if !is_known {
            return None;
        }
        match (is_send, receives.is_shared()) {
            (true, _) => Some(self.finish_send(cqe, op_own, state)),
            (false, false) => Some(self.finish_receive(cqe, op_own, state)),
            (false, true) => self.finish_shared_receive(cqe, op_own, state, receives).transpose(),
        }
    }

    /// The open queue of a CQE. A QP that was reset counts as open if the CQE is from after the
    /// reset. If the queue was closed, a receive of an SRQ in the CQE is posted again, because its
    /// completion is not reported.
    fn find(&self, cqe: CqeView, op_own: OpOwn) -> Option<&QueueState> {
        let index = cqe.u32(offset_of!(Cqe, srqn_user_index)) & INDEX;
        let state = self.queues.table().block(index);
        let table = self.queues.table();
        if state.is_open() || table.has_begun_anew(state, &self.monitor, self.consumed) {
            return Some(state);
        }
        put_aside(cqe, op_own, state);
        None
    }
}

impl CompletionQueue {
    /// The next completion, if it is one of two kinds: a successful receive whose data is inside
    /// the CQE, which is copied to its buffer; or an error, unless it is of an SRQ's receive.
    /// `None`, with nothing changed, for all others.
    #[inline(always)]
    pub(super) fn complete_inline_or_error(&self, places: &Places) -> Option<Raw> {
        let cqe = self.next;
        let what = cqe.op_own() ^ self.owner;
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == INLINE {
            return self.complete_inline(places, cqe);
        }
        match what & !SOLICITED {
            SEND_ERROR => self.fail_send(places, cqe),
            RECEIVE_ERROR => self.fail_receive(places, cqe),
            _ => None,
        }
    }

    /// Completes a successful receive with data in the CQE, which is copied to its buffer.
    #[inline(always)]
    pub(super) fn complete_inline(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        let Some(queue) = self.queues.own_receives_of(places, cqe) else {
            return self.complete_shared_inline(places, cqe);
        };
        let side = queue.recv_side();
        let index = cqe.u16_on_top(WQE_COUNTER);
        let word = self.to_outstanding(queue, index, cqe)?;
        let wr_id = side.entry(index >> 16).load(Ordering::Relaxed);
        side.retire(word);
        Some(Raw { format: CqeFormat::INLINE_32, ..good(cqe, side, wr_id) })
    }

    /// [`CompletionQueue::complete_inline`] for a receive of an SRQ. If the data does not fit, the
    /// completion says so.
    #[inline(always)]
    fn complete_shared_inline(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        let (queue, srq) = self.queues.shared_receives_of(places, cqe)?;
        let (wr_id, status) = self.to_shared(srq, cqe)?;
        let format = CqeFormat::INLINE_32;
        Some(Raw { status, format, ..good(cqe, queue.recv_side(), wr_id) })
    }

    #[inline(always)]
    fn fail_send(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        let queue = self.queues.sends_of(places, cqe)?;
        let side = queue.send_side();
        let (word, wr_id) = queue.outstanding(cqe.u16_on_top(WQE_COUNTER))?;
        let status = error_status(cqe);
        queue.send_failed(status == Status::Flushed);
        fail_changes(&queue, cqe.u16(WQE_COUNTER));
        side.retire(word);
        Some(Raw { status, ..good(cqe, side, wr_id) })
    }

    #[inline(always)]
    fn fail_receive(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        let queue = self.queues.own_receives_of(places, cqe)?;
        let side = queue.recv_side();
        let index = cqe.u16_on_top(WQE_COUNTER);
        let word = queue.outstanding(index)?;
        let status = error_status(cqe);
        queue.receive_failed(status == Status::LocalLength);
        let wr_id = side.entry(index >> 16).load(Ordering::Relaxed);
        side.retire(word);
        Some(Raw { status, ..good(cqe, side, wr_id) })
    }
}

/// Has the SRQ's receive of a dropped completion posted again. `state` is the QP that consumed it.
pub(super) fn put_aside(cqe: CqeView, op_own: OpOwn, state: &QueueState) {
    let receives = state.receives();
    let of_entry = receives.matches_tags() && is_tagged(cqe, op_own) && !holds_receive(cqe);
    if let (true, Some(free)) = (op_own.opcode().is_responder(), receives.free_list()) {
        if !of_entry {
            free.return_for_repost(cqe.u16(offset_of!(Cqe, wqe_counter)).into());
        }
    }
}

pub(super) fn error_status(cqe: CqeView) -> Status {
    Syndrome(cqe.u8(offset_of!(ErrorCqe, syndrome))).into()
}
