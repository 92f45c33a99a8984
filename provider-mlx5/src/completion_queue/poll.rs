//! Polling, from the call to the consumer index: the fast path.
//!
//! A successful completion takes these steps: the last byte of the CQE says that software owns it,
//! and its kind; its user index leads to the queue's block; the block says which requests are
//! outstanding; the id of the request that the CQE names goes to the caller. They touch the CQE,
//! the queue's place in the table of user indices, the line of the block for this direction, and
//! the id. All other CQEs take the slow path (`slow.rs`).
//!
//! [`GoodBatch`](super::GoodBatch) and its like (`take.rs`) are the same for callers with separate
//! code for each direction.

use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of};

use super::completion::{Completion, Raw, WorkCompletion};
use super::ring::{CqeView, OWNER};
use super::{CompletionQueue, PollError, Status};
use crate::format::{Cqe, CqeFormat, CqeOpcode};
use crate::queue_state::{Places, PolledSends, Receives, Side};
use crate::sync::Ordering;

pub(super) const WQE_COUNTER: usize = offset_of!(Cqe, wqe_counter);

/// The bit of `op_own` that says "solicited".
pub(super) const SOLICITED: u8 = 1 << 1;
/// `op_own` of a successful receive, minus this, has none of the bits [`NO_GOOD_RECEIVE`].
pub(super) const FIRST_RECEIVE: u8 = CqeOpcode::RESPONDER_WRITE_IMMEDIATE.0 << 4;
pub(super) const NO_GOOD_RECEIVE: u8 = !(SOLICITED | 3 << 4);
/// The bits that remain if up to 32 bytes of data are inside.
pub(super) const INLINE: u8 = CqeFormat::INLINE_32.0 << 2;
/// The bits that remain if it is the title of a session.
const TITLE: u8 = CqeFormat::COMPRESSED.0 << 2;
/// `op_own` of an error, without the bit that says "solicited".
pub(super) const SEND_ERROR: u8 = CqeOpcode::REQUESTER_ERROR.0 << 4;
pub(super) const RECEIVE_ERROR: u8 = CqeOpcode::RESPONDER_ERROR.0 << 4;

const _: () = {
    /// The two bits of `op_own` that say whether data is inside.
    const FORMAT: u8 = 3 << 2;
    assert!(CqeOpcode::REQUESTER.0 == 0);
    assert!(CqeOpcode::RESPONDER_SEND_INVALIDATE.0 << 4 == FIRST_RECEIVE + (3 << 4));
    assert!(NO_GOOD_RECEIVE & (OWNER | FORMAT) == OWNER | FORMAT);
    assert!(SEND_ERROR < RECEIVE_ERROR && FIRST_RECEIVE + (3 << 4) < SEND_ERROR);
};

/// Why the fast path takes no completion.
pub(super) enum Other {
    Nothing,
    /// The next CQE is for the slow path.
    Slow,
}

/// What a CQE for the slow path looks like.
#[derive(Clone, Copy)]
pub(super) enum Look {
    /// A send that succeeded (0) or a receive, without data inside.
    Good(u8),
    /// The title of a session of receives.
    Title,
    Other,
}

impl CompletionQueue {
    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for a CQE that
    /// names no outstanding request. After any other error no completion will follow.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completion<'_>, PollError> {
        let cqe = self.next;
        let raw = match self.complete::<true>(self.queues.places(), cqe) {
            Ok(raw) => raw,
            Err(why) => return self.poll_other(why).map(Completion::new),
        };
        // The next call gives back the entry that is lent now.
        self.publish_up_to(self.consumed);
        self.consumed = self.consumed.wrapping_add(1);
        self.next = cqe.after(self.stride);
        if self.next == self.end {
            self.next_lap();
        }
        Ok(Completion::new(raw))
    }

    /// Completes the request of the CQE at `cqe`, if software owns the CQE, it succeeded, and it
    /// names an outstanding request of an open queue. Otherwise nothing has changed. If polls are
    /// `MOSTLY_EMPTY`, the code is laid out so that an empty CQ is found sooner than a receive.
    #[inline(always)]
    pub(super) fn complete<const MOSTLY_EMPTY: bool>(
        &self,
        places: &Places,
        cqe: CqeView,
    ) -> Result<Raw, Other> {
        let what = cqe.op_own() ^ self.owner;
        if what == 0 {
            return self.complete_send(places, cqe).ok_or(Other::Slow);
        }
        if MOSTLY_EMPTY && what & OWNER != 0 {
            return Err(Other::Nothing);
        }
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == 0 {
            return self.complete_receive(places, cqe).ok_or(Other::Slow);
        }
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == INLINE {
            // Keeps this separate from other receives, whose code would become longer.
            crate::hint::cold_path();
            return self.complete_left_inline(places, cqe).ok_or(Other::Slow);
        }
        Err(if what & OWNER != 0 { Other::Nothing } else { Other::Slow })
    }

    #[inline(always)]
    fn complete_send(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        complete_send(self.queues.sends_of(places, cqe)?, cqe)
    }

    #[inline(always)]
    fn complete_receive(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        complete_receive(self.queues.receives_of(places, cqe)?, cqe)
    }

    /// What the next CQE looks like, if software owns it.
    #[inline(always)]
    pub(super) fn look(&self) -> Look {
        let what = self.next.op_own() ^ self.owner;
        let receive = what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE;
        // First, so that errors pay for one comparison only.
        if what >= SEND_ERROR {
            Look::Other
        } else if what == 0 || receive == 0 {
            Look::Good(what)
        } else if receive == TITLE {
            Look::Title
        } else {
            Look::Other
        }
    }

    /// The completion at `cqe`, which looks like [`Look::Good`] with this value, if it can be
    /// completed.
    #[inline(always)]
    pub(super) fn complete_good(&self, places: &Places, cqe: CqeView, what: u8) -> Option<Raw> {
        match what {
            0 => self.complete_send(places, cqe),
            _ => complete_receive(self.queues.receives_of(places, cqe)?, cqe),
        }
    }

    /// The next completion, if it is one that the fast path takes, or that
    /// [`CompletionQueue::complete_inline_or_error`] does.
    #[inline(always)]
    pub(super) fn complete_any(&self, places: &Places) -> Option<Raw> {
        let raw = self.complete::<false>(places, self.next).ok();
        raw.or_else(|| self.complete_inline_or_error(places))
    }

    /// Whether the CQE at a counter looks like the title of a session of receives.
    #[inline(always)]
    pub(super) fn is_title(&self, at: u32) -> bool {
        let what = self.ring.cqe(at).op_own() ^ self.ring.lap(at);
        what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == TITLE
    }

    /// Completes a successful receive of a queue that leaves data in the CQE.
    #[inline(always)]
    fn complete_left_inline(&self, places: &Places, cqe: CqeView) -> Option<Raw> {
        let queue = self.queues.own_receives_of(places, cqe)?;
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

    /// Polls a CQE that the fast path leaves, and gives back all entries before the one that is
    /// lent.
    #[inline(always)]
    fn poll_other(&mut self, other: Other) -> Result<Raw, PollError> {
        match other {
            Other::Nothing => Err(self.nothing()),
            Other::Slow => {
                let raw = self.poll_slow()?;
                // The last CQE consumed is the one that is lent. If there were others before it,
                // they were dropped.
                self.publish_up_to(self.consumed.wrapping_sub(1));
                Ok(raw)
            }
        }
    }

    /// Called when the CQ is empty: checks whether another thread waits for that.
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
pub(super) fn complete_send(queue: PolledSends<'_>, cqe: CqeView) -> Option<Raw> {
    let side = queue.send_side();
    let (word, wr_id) = queue.outstanding(cqe.u16_on_top(WQE_COUNTER))?;
    side.retire(word);
    Some(good(cqe, side, wr_id))
}

#[inline(always)]
pub(super) fn complete_receive(receives: Receives<'_>, cqe: CqeView) -> Option<Raw> {
    let index = cqe.u16_on_top(WQE_COUNTER);
    Some(match receives {
        Receives::Own(queue) => {
            let wr_id = queue.complete(index)?;
            good(cqe, queue.recv_side(), wr_id)
        }
        Receives::Shared(side, list) => good(cqe, side, list.complete(index >> 16)?),
    })
}

#[inline(always)]
pub(super) fn good(cqe: CqeView, side: &Side, wr_id: u64) -> Raw {
    Raw { cqe, side, wr_id, status: Status::Success, format: CqeFormat::NO_INLINE }
}

/// Polls completions one after the other. Dropping it gives their entries back to the device.
///
/// If it is leaked, the next poll finds the same completions again, except those of a lap that it
/// has ended. They complete nothing a second time, except receives of SRQs that were posted since:
/// see [`SharedRecvQueue::build`](crate::shared_recv_queue::SharedRecvQueue::build).
#[derive(Debug)]
pub struct PollBatch<'q> {
    queue: &'q mut CompletionQueue,
    places: Places,
    /// The queue's `next`, kept in a register. The queue's counter is computed from the distance.
    next: CqeView,
    /// CQEs consumed before the batch.
    before: u32,
    /// Completions that it lends stay in this thread.
    thread: PhantomData<*const ()>,
}

impl PollBatch<'_> {
    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// As for `poll`.
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Completion<'_>, PollError> {
        let cqe = self.next;
        let raw = match self.queue.complete::<false>(&self.places, cqe) {
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

    /// A drain that is reported at a lap's end stays valid, even if the batch is leaked.
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

    /// What dropping it does.
    #[inline(always)]
    fn finish(self) {
        let mut this = ManuallyDrop::new(self);
        let (next, before) = (this.next, this.before);
        this.queue.finish_batch(next, before);
    }

    /// Saves an error that was found after completions, so that a later poll returns it.
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
        self.queue.end_batch(self.next, self.before);
    }
}

impl CompletionQueue {
    /// [`CompletionQueue::finish_batch`], out of line: dropping a batch is so short that compilers
    /// keep its fields in registers.
    #[inline(never)]
    fn end_batch(&mut self, next: CqeView, before: u32) {
        self.finish_batch(next, before);
    }

    /// Moves to the position of a batch, and gives back what was polled since `before`.
    #[inline(always)]
    fn finish_batch(&mut self, next: CqeView, before: u32) {
        let moved = self.ring.distance(self.next, next);
        self.consumed = self.consumed.wrapping_add(moved);
        self.next = next;
        let polled = self.consumed.wrapping_sub(before);
        if polled > self.lent {
            self.lend_more(polled);
        }
        if polled > 0 {
            self.publish();
        }
    }

    /// Starts polling several completions, whose entries are given back to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        let (next, places, before) = (self.next, *self.queues.places(), self.consumed);
        PollBatch { queue: self, places, next, before, thread: PhantomData }
    }

    /// Calls `visit` with each completion that is there, at most `most`; returns how many. Their
    /// entries are given back to the device together after the last one, so it costs less than
    /// single polls. A program that posts inside `visit` needs a CQ that holds all outstanding
    /// completions and `most` more.
    ///
    /// If `visit` panics, its completion counts as polled.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was no completion.
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
                Err(PollError::Empty) => {
                    batch.finish();
                    return Ok(count);
                }
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    batch.keep(error);
                    return Ok(count);
                }
            }
        }
        batch.finish();
        Ok(most)
    }

    /// Copies the completions that are there, up to the length of `out`; returns how many.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`], if there was no completion; an empty CQ returns `Ok(0)`.
    pub fn poll_into(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut places = out.iter_mut();
        self.poll_up_to(places.len(), |completion| {
            if let Some(place) = places.next() {
                *place = completion.to_work_completion();
            }
        })
    }
}
