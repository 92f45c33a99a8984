//! Polling, from the call to the consumer index: the fast path.
//!
//! A completion that went well is looked at once: its last byte says that it is there and of which
//! kind, its user index leads to the queue's block, the block says which requests are outstanding,
//! and the id of the one that the CQE names goes to the caller. That touches the CQE, the queue's
//! place among those that the CQ knows (`user_index.rs`) or the table's entry, the block's line of
//! this direction, and the id. All other CQEs take the slow path (`slow.rs`).

use core::marker::PhantomData;
use core::mem::offset_of;

use super::completion::{Completion, Raw, Status, WorkCompletion};
use super::ring::{CqeView, OWNER};
use super::slow::error_status;
use super::{CompletionQueue, PollError};
use crate::format::{Cqe, CqeFormat, CqeOpcode, Opcode};
use crate::queue_state::{PolledReceives, PolledSends, Side};
use crate::sync::Ordering;

const WQE_COUNTER: usize = offset_of!(Cqe, wqe_counter);

/// Bit of `op_own` that says "solicited".
const SOLICITED: u8 = 1 << 1;
/// `op_own` of a receive that went well, minus this, has none of [`NO_GOOD_RECEIVE`].
const FIRST_RECEIVE: u8 = CqeOpcode::RESPONDER_WRITE_IMMEDIATE.0 << 4;
const NO_GOOD_RECEIVE: u8 = !(SOLICITED | 3 << 4);
/// What is left of it if up to 32 bytes of data are inside.
const INLINE: u8 = CqeFormat::INLINE_32.0 << 2;
/// `op_own` of an error, without the bit that says "solicited".
const SEND_ERROR: u8 = CqeOpcode::REQUESTER_ERROR.0 << 4;
const RECEIVE_ERROR: u8 = CqeOpcode::RESPONDER_ERROR.0 << 4;

const _: () = {
    /// The two bits of `op_own` that say whether data is inside.
    const FORMAT: u8 = 3 << 2;
    assert!(CqeOpcode::REQUESTER.0 == 0);
    assert!(CqeOpcode::RESPONDER_SEND_INVALIDATE.0 << 4 == FIRST_RECEIVE + (3 << 4));
    assert!(NO_GOOD_RECEIVE & (OWNER | FORMAT) == OWNER | FORMAT);
};

/// Why the fast path takes no completion.
pub(super) enum Other {
    Nothing,
    /// The next CQE is for the slow path.
    Slow,
}

/// A completion that the fast path took, by direction, for callers with code for each that need not
/// test opcode and status again.
#[doc(hidden)]
#[derive(Debug)]
pub enum Good<'c, S> {
    /// A successful send, and the value that the caller's function returned for its opcode and
    /// queue pair.
    Sent(Completion<'c>, S),
    /// A successful receive.
    Received(Completion<'c>),
}

impl CompletionQueue {
    /// [`CompletionQueue::poll`], as far as it is the fast path; nothing has changed otherwise.
    /// What was lent before is given back. If [`CompletionQueue::is_lap_over`] then, the caller
    /// calls [`CompletionQueue::begin_lap`] before anything else.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_good(&mut self) -> Option<Good<'_, ()>> {
        self.publish_up_to(self.consumed);
        let cqe = self.next;
        let (raw, sent) = self.good_at::<false, _>(cqe, |_| Some(()))?;
        self.pass(cqe);
        Some(good_of(raw, sent))
    }

    /// [`CompletionQueue::take_good`] of sends that a [`GoodBatch`] takes, but that nothing is
    /// given back.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_sent<S>(
        &mut self,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Completion<'_>, S)> {
        let cqe = self.next;
        if cqe.op_own() != self.owner {
            return None;
        }
        let (raw, sent) = self.good_send(cqe, sent)?;
        self.pass(cqe);
        Some((Completion::new(raw), sent))
    }

    /// [`CompletionQueue::take_sent`] of receives.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_received(&mut self) -> Option<Completion<'_>> {
        let cqe = self.next;
        let raw = self.good_receive::<true>(cqe, cqe.op_own() ^ self.owner)?;
        self.pass(cqe);
        Some(Completion::new(raw))
    }

    /// Counts the CQE at `cqe`, which is the next, as polled.
    #[inline(always)]
    fn pass(&mut self, cqe: CqeView) {
        self.consumed = self.consumed.wrapping_add(1);
        self.next = cqe.after(self.stride);
    }

    /// Whether a poll would find nothing, and no other thread waits for that.
    #[doc(hidden)]
    #[inline(always)]
    pub fn has_nothing(&self) -> bool {
        let what = self.next.op_own() ^ self.owner;
        what & OWNER != 0 && self.monitor.requested() == self.answered
    }

    /// Whether what was taken last was at the ring's end: nothing can be polled before
    /// [`CompletionQueue::begin_lap`] or [`CompletionQueue::give_back`].
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_lap_over(&self) -> bool {
        self.next == self.end
    }

    /// Goes on at the ring's beginning.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn begin_lap(&mut self) {
        self.next_lap();
    }

    /// Starts taking several completions that went well, at most `most`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn good_batch(&mut self, most: u32) -> GoodBatch<'_> {
        let stop = self.ring.stop(self.next, most, self.end);
        GoodBatch { next: self.next, stop, queue: self }
    }

    /// Gives the places of the last `count` completions back to the device.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn give_back(&mut self, count: u32) {
        if self.is_lap_over() {
            self.next_lap();
        }
        if count > self.lent {
            self.lend_more(count);
        }
        self.publish();
    }

    /// Completes the request of the CQE at `cqe`, if its queue is among those that the CQ knows. Of
    /// sends `sent` says by the request's opcode and the queue pair's number whether they are for
    /// the fast path; of receives only messages are, without immediate data and keys, if they are
    /// to be `PLAIN`.
    #[inline(always)]
    fn good_at<const PLAIN: bool, S>(
        &self,
        cqe: CqeView,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Raw, Option<S>)> {
        let what = cqe.op_own() ^ self.owner;
        if what == 0 {
            let (raw, sent) = self.good_send(cqe, sent)?;
            return Some((raw, Some(sent)));
        }
        Some((self.good_receive::<PLAIN>(cqe, what)?, None))
    }

    /// [`CompletionQueue::good_at`] of a receive, if `what` says that it is one.
    #[inline(always)]
    fn good_receive<const PLAIN: bool>(&self, cqe: CqeView, what: u8) -> Option<Raw> {
        let is_receive = match PLAIN {
            true => what & !SOLICITED == CqeOpcode::RESPONDER_SEND.0 << 4,
            false => what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == 0,
        };
        if !is_receive {
            return None;
        }
        let queue = self.known.known_receives_of(cqe)?;
        complete_receive(queue, cqe)
    }

    /// [`CompletionQueue::good_at`] of a send.
    #[inline(always)]
    fn good_send<S>(
        &self,
        cqe: CqeView,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Raw, S)> {
        let queue = self.known.known_sends_of(cqe)?;
        let sent = sent(Requested(cqe))?;
        Some((complete_send(queue, cqe)?, sent))
    }

    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of
    /// no request; the other errors when there will not be any more.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completion<'_>, PollError> {
        let cqe = self.next;
        let raw = match self.complete::<true>(cqe) {
            Ok(raw) => raw,
            Err(why) => return self.poll_other(why).map(Completion::new),
        };
        // What is lent now is given back by the next call.
        self.publish_up_to(self.consumed);
        self.consumed = self.consumed.wrapping_add(1);
        self.next = cqe.after(self.stride);
        if self.next == self.end {
            self.next_lap();
        }
        Ok(Completion::new(raw))
    }

    /// Completes the request of the CQE at `cqe`, if that is there, went well, and names an
    /// outstanding request of an open queue. Otherwise nothing has changed. Where polls are
    /// `MOSTLY_EMPTY`, a CQE that is not there is told sooner than a receive.
    #[inline(always)]
    pub(super) fn complete<const MOSTLY_EMPTY: bool>(&self, cqe: CqeView) -> Result<Raw, Other> {
        let what = cqe.op_own() ^ self.owner;
        if what == 0 {
            return self.complete_send(cqe).ok_or(Other::Slow);
        }
        if MOSTLY_EMPTY && what & OWNER != 0 {
            return Err(Other::Nothing);
        }
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == 0 {
            return self.complete_receive(cqe).ok_or(Other::Slow);
        }
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == INLINE {
            // Keeps it apart from other receives, which would get longer.
            crate::hint::cold_path();
            return self.complete_left_inline(cqe).ok_or(Other::Slow);
        }
        Err(if what & OWNER != 0 { Other::Nothing } else { Other::Slow })
    }

    #[inline(always)]
    fn complete_send(&self, cqe: CqeView) -> Option<Raw> {
        complete_send(self.known.sends_of(cqe)?, cqe)
    }

    #[inline(always)]
    fn complete_receive(&self, cqe: CqeView) -> Option<Raw> {
        complete_receive(self.known.receives_of(cqe)?, cqe)
    }

    /// The next completion, if it is of a receive of a queue pair's own that went well and whose
    /// data is inside the CQE: brings that to its buffer. Or if it is an error, and not of an SRQ's
    /// receive. `None`, and nothing has changed, for all others.
    #[inline(always)]
    pub(super) fn complete_inline_or_error(&self) -> Option<Raw> {
        let cqe = self.next;
        let what = cqe.op_own() ^ self.owner;
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == INLINE {
            return self.complete_inline(cqe);
        }
        match what & !SOLICITED {
            SEND_ERROR => self.fail_send(cqe),
            RECEIVE_ERROR => self.fail_receive(cqe),
            _ => None,
        }
    }

    /// A receive that went well, of a queue that leaves data in the CQE.
    #[inline(always)]
    fn complete_left_inline(&self, cqe: CqeView) -> Option<Raw> {
        let queue = self.known.receives_of(cqe)?;
        let side = queue.recv_side();
        if side.copies_inline() {
            return None;
        }
        let index = cqe.u16_on_top(WQE_COUNTER);
        let word = queue.outstanding(index)?;
        let wr_id = side.entry(index >> 16).load(Ordering::Relaxed);
        side.retire(word);
        Some(Raw { format: CqeFormat::INLINE_32, ..good(cqe, side, wr_id) })
    }

    #[inline(always)]
    fn complete_inline(&self, cqe: CqeView) -> Option<Raw> {
        let queue = self.known.receives_of(cqe)?;
        let side = queue.recv_side();
        let index = cqe.u16_on_top(WQE_COUNTER);
        let word = self.to_outstanding(queue, index, cqe)?;
        let wr_id = side.entry(index >> 16).load(Ordering::Relaxed);
        side.retire(word);
        Some(Raw { format: CqeFormat::INLINE_32, ..good(cqe, side, wr_id) })
    }

    #[inline(always)]
    fn fail_send(&self, cqe: CqeView) -> Option<Raw> {
        let queue = self.known.sends_of(cqe)?;
        let side = queue.send_side();
        let (word, wr_id) = queue.outstanding(cqe.u16_on_top(WQE_COUNTER))?;
        let status = error_status(cqe);
        queue.send_failed(status == Status::Flushed);
        side.retire(word);
        Some(Raw { status, ..good(cqe, side, wr_id) })
    }

    #[inline(always)]
    fn fail_receive(&self, cqe: CqeView) -> Option<Raw> {
        let queue = self.known.receives_of(cqe)?;
        let side = queue.recv_side();
        let index = cqe.u16_on_top(WQE_COUNTER);
        let word = queue.outstanding(index)?;
        let status = error_status(cqe);
        queue.receive_failed(status == Status::LocalLength);
        let wr_id = side.entry(index >> 16).load(Ordering::Relaxed);
        side.retire(word);
        Some(Raw { status, ..good(cqe, side, wr_id) })
    }

    /// Polls what the fast path leaves, and gives back the places of all before what is lent.
    #[inline(always)]
    fn poll_other(&mut self, other: Other) -> Result<Raw, PollError> {
        match other {
            Other::Nothing => Err(self.nothing()),
            Other::Slow => {
                let raw = self.poll_slow()?;
                // The last that was consumed is what is lent: those before it, if any, were
                // dropped.
                self.publish_up_to(self.consumed.wrapping_sub(1));
                Ok(raw)
            }
        }
    }

    /// Nothing to poll: checks whether another thread waits for the queue to be empty.
    #[inline(always)]
    pub(super) fn nothing(&mut self) -> PollError {
        if self.monitor.requested() == self.answered {
            return PollError::Empty;
        }
        self.answer_requests()
    }

    /// Gives the entries of all completions polled so far back to the device.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.publish_up_to(self.consumed);
    }

    /// Tells the device that all CQEs before `index` are consumed.
    #[inline(always)]
    pub(super) fn publish_up_to(&mut self, index: u32) {
        self.consumer_index.store_release(index & super::past::INDEX);
    }
}

#[inline(always)]
fn complete_send(queue: PolledSends<'_>, cqe: CqeView) -> Option<Raw> {
    let side = queue.send_side();
    let (word, wr_id) = queue.outstanding(cqe.u16_on_top(WQE_COUNTER))?;
    side.retire(word);
    Some(good(cqe, side, wr_id))
}

#[inline(always)]
fn complete_receive(queue: PolledReceives<'_>, cqe: CqeView) -> Option<Raw> {
    let wr_id = queue.complete(cqe.u16_on_top(WQE_COUNTER))?;
    Some(good(cqe, queue.recv_side(), wr_id))
}

#[inline(always)]
fn good(cqe: CqeView, side: &Side, wr_id: u64) -> Raw {
    Raw { cqe, side, wr_id, status: Status::Success, format: CqeFormat::NO_INLINE }
}

#[inline(always)]
fn good_of<'c, S>(raw: Raw, sent: Option<S>) -> Good<'c, S> {
    match sent {
        Some(sent) => Good::Sent(Completion::new(raw), sent),
        None => Good::Received(Completion::new(raw)),
    }
}

/// Takes completions that went well, one after the other, for a caller that takes all others by the
/// other calls. What it took counts as polled with [`GoodBatch::finish`].
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "completions that are taken have to be counted"]
pub struct GoodBatch<'q> {
    queue: &'q mut CompletionQueue,
    /// As in [`PollBatch`].
    next: CqeView,
    /// Where enough were taken, or the lap ends.
    stop: CqeView,
}

/// What a send's CQE says of the request.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Requested(CqeView);

impl Requested {
    /// The request's opcode, and the queue pair's number.
    #[inline(always)]
    pub fn opcode_and_number(self) -> (Opcode, u32) {
        let both = self.0.u32(offset_of!(Cqe, opcode_qpn_flow_tag));
        (Opcode((both >> 24) as u8), both & 0xff_ffff)
    }
}

impl GoodBatch<'_> {
    /// Whether nothing was taken.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next == self.queue.next
    }

    /// Whether nothing more is taken: there were enough, or [`GoodBatch::finish`] tells.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        self.next == self.stop
    }

    /// The next completion, unless [`GoodBatch::is_over`]. Of sends `sent` says whether they are
    /// for the fast path; of receives only messages are, without immediate data and keys. `None` if
    /// the other calls have to be used, after [`GoodBatch::finish`].
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next<S>(&mut self, sent: impl FnOnce(Requested) -> Option<S>) -> Option<Good<'_, S>> {
        let cqe = self.next;
        let (raw, sent) = self.queue.good_at::<true, _>(cqe, sent)?;
        self.next = cqe.after(self.queue.stride);
        Some(good_of(raw, sent))
    }

    /// Gives the places of what was taken back to the device; how many. `Err` if that is left to
    /// [`CompletionQueue::give_back`].
    #[inline(always)]
    pub fn finish(self) -> Result<u32, u32> {
        let queue = self.queue;
        let taken = queue.ring.distance(queue.next, self.next);
        queue.consumed = queue.consumed.wrapping_add(taken);
        queue.next = self.next;
        if queue.is_lap_over() || taken > queue.lent {
            return Err(taken);
        }
        queue.publish();
        Ok(taken)
    }
}

/// Polls completions one after the other; their places are given back when it is dropped.
#[derive(Debug)]
pub struct PollBatch<'q> {
    queue: &'q mut CompletionQueue,
    /// The queue's own, kept in a register. The queue's counter follows from how far it has moved.
    next: CqeView,
    /// CQEs consumed before the batch.
    before: u32,
    /// What it lends stays in this thread.
    thread: PhantomData<*const ()>,
}

impl PollBatch<'_> {
    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`].
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Completion<'_>, PollError> {
        let cqe = self.next;
        let raw = match self.queue.complete::<false>(cqe) {
            Ok(raw) => raw,
            Err(Other::Nothing) => return Err(self.nothing()),
            Err(Other::Slow) => return self.poll_slow().map(Completion::new),
        };
        self.next = cqe.after(self.queue.stride);
        if self.next == self.queue.end {
            self.next_lap();
        }
        Ok(Completion::new(raw))
    }

    #[inline(always)]
    fn nothing(&mut self) -> PollError {
        self.store();
        self.queue.nothing()
    }

    #[inline(always)]
    fn poll_slow(&mut self) -> Result<Raw, PollError> {
        self.store();
        let raw = self.queue.poll_slow();
        self.next = self.queue.next;
        raw
    }

    /// What a lap's end reports as drained stays polled, also if the batch is forgotten.
    #[inline(always)]
    fn next_lap(&mut self) {
        self.store();
        self.next = self.queue.next_lap();
    }

    /// Moves the queue to the position of the batch.
    #[inline(always)]
    fn store(&mut self) {
        let moved = self.queue.ring.distance(self.queue.next, self.next);
        self.queue.consumed = self.queue.consumed.wrapping_add(moved);
        self.queue.next = self.next;
    }

    /// Makes a later poll return an error that was found after completions.
    #[doc(hidden)]
    pub fn keep(&mut self, error: PollError) {
        self.store();
        self.queue.keep(error);
        self.next = self.queue.next;
    }
}

impl Drop for PollBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.store();
        let polled = self.queue.consumed.wrapping_sub(self.before);
        if polled > self.queue.lent {
            self.queue.lend_more(polled);
        }
        if polled > 0 {
            self.queue.publish();
        }
    }
}

impl CompletionQueue {
    /// Starts polling several completions, whose places are given back to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        PollBatch { next: self.next, before: self.consumed, queue: self, thread: PhantomData }
    }

    /// Calls `visit` with each completion that is there, at most `most`; returns how many. Their
    /// places are given back to the device together, when the last was shown, so it costs less than
    /// polling one after the other. A program that posts inside `visit` needs a queue that holds
    /// all that is outstanding and `most` besides.
    ///
    /// If `visit` panics the completion that it was shown counts as polled.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
    #[inline(always)]
    pub fn poll_up_to(
        &mut self,
        most: usize,
        mut visit: impl FnMut(Completion<'_>),
    ) -> Result<usize, PollError> {
        let mut batch = self.batch();
        for count in 0..most {
            match batch.next() {
                Ok(completion) => visit(completion),
                Err(PollError::Empty) => return Ok(count),
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    batch.keep(error);
                    return Ok(count);
                }
            }
        }
        Ok(most)
    }

    /// Copies as many completions as there are, up to the length of `out`; returns how many.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`], if there was not a single one; for an empty CQ that is
    /// `Ok(0)`.
    pub fn poll_into(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut places = out.iter_mut();
        self.poll_up_to(places.len(), |completion| {
            if let Some(place) = places.next() {
                *place = completion.to_work_completion();
            }
        })
    }
}
