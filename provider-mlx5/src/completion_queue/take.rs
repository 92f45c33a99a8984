//! Takes successful completions by direction, for callers that have separate code for sends and
//! receives and test neither opcode nor status again.
//!
//! They see the end of a lap themselves ([`ByLap`]), and give the entries back when they have taken
//! enough. What is not taken here is left to [`CompletionQueue::poll`].

use core::mem::offset_of;

use super::completion::{Completion, Raw};
use super::past::INDEX;
use super::poll::{
    FIRST_RECEIVE, INLINE, NO_GOOD_RECEIVE, SOLICITED, complete_receive, complete_send,
};
use super::ring::{CqeView, OWNER};
use super::{ByLap, CompletionQueue};
use crate::format::{Cqe, CqeOpcode, Opcode};
use crate::queue_state::Places;

/// A completion that the fast path took, by direction. Callers with separate code for each
/// direction need not test opcode and status again.
#[doc(hidden)]
#[derive(Debug)]
pub enum Good<'c, S> {
    /// A successful send, and the value that the caller's function returned for its opcode.
    Sent(Completion<'c>, S),
    /// A successful receive.
    Received(Completion<'c>),
}

impl CompletionQueue {
    /// The next completion, if it is a successful send that `sent` accepts by its opcode; `None`,
    /// with nothing changed, if not. Gives back no entry. If [`CompletionQueue::is_lap_over`]
    /// afterwards, the caller calls [`CompletionQueue::begin_lap`] before anything else.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_sent<S>(
        &mut self,
        _: ByLap,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Completion<'_>, S)> {
        let cqe = self.next;
        if cqe.op_own() != self.owner {
            return None;
        }
        let (raw, sent) = self.good_send(self.queues.places(), cqe, sent)?;
        self.pass(cqe);
        Some((Completion::new(raw), sent))
    }

    /// [`CompletionQueue::take_sent`] for receives. If `PLAIN`, it takes only messages without
    /// immediate data and invalidated keys.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_received<const PLAIN: bool>(&mut self, _: ByLap) -> Option<Completion<'_>> {
        let cqe = self.next;
        let what = cqe.op_own() ^ self.owner;
        let raw = self.good_receive::<PLAIN>(self.queues.places(), cqe, what)?;
        self.pass(cqe);
        Some(Completion::new(raw))
    }

    /// Counts the CQE at `cqe`, which is the next one, as polled.
    #[inline(always)]
    fn pass(&mut self, cqe: CqeView) {
        self.consumed = self.consumed.wrapping_add(1);
        self.next = cqe.after(self.stride);
    }

    /// Whether a poll would find the CQ empty, and no other thread waits for that.
    #[doc(hidden)]
    #[inline(always)]
    pub fn has_nothing(&self) -> bool {
        let what = self.next.op_own() ^ self.owner;
        what & OWNER != 0 && self.monitor.requested() == self.answered
    }

    /// Whether the next CQE is a successful receive without data inside.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_at_receive(&self) -> bool {
        let what = self.next.op_own() ^ self.owner;
        what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == 0
    }

    /// Whether the next CQE is a successful receive with up to 32 bytes of data inside.
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_at_inline(&self) -> bool {
        let what = self.next.op_own() ^ self.owner;
        what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == INLINE
    }

    /// Whether the last CQE taken was at the ring's end. Then nothing can be polled before
    /// [`CompletionQueue::begin_lap`] or [`CompletionQueue::give_back`].
    #[doc(hidden)]
    #[inline(always)]
    pub fn is_lap_over(&self) -> bool {
        self.next == self.end
    }

    /// Continues at the start of the ring, if [`CompletionQueue::is_lap_over`].
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn begin_lap(&mut self) {
        self.note_lent();
        if self.is_lap_over() {
            self.next_lap();
        }
    }

    /// Records how many entries the caller holds that has polled several and given back none.
    #[doc(hidden)]
    pub fn note_lent(&mut self) {
        let published = self.consumer_index.load();
        let lent = self.consumed.wrapping_sub(published) & INDEX;
        if lent > self.lent {
            self.lend_more(lent);
        }
    }

    /// Starts taking several successful completions, at most `most`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn good_batch(&mut self, _: ByLap, most: u32) -> GoodBatch<'_> {
        let stop = self.ring.stop(self.next, most, self.end);
        GoodBatch { next: self.next, stop, places: *self.queues.places(), queue: self }
    }

    /// Gives the entries of the last `count` completions back to the device.
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

    /// Completes the request of the CQE at `cqe`. For a send, `sent` decides by the request's
    /// opcode whether the fast path takes it. If `PLAIN`, the only receives taken are messages
    /// without immediate data and invalidated keys.
    #[inline(always)]
    fn good_at<const PLAIN: bool, S>(
        &self,
        places: &Places,
        cqe: CqeView,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Raw, Option<S>)> {
        let what = cqe.op_own() ^ self.owner;
        if what == 0 {
            let (raw, sent) = self.good_send(places, cqe, sent)?;
            return Some((raw, Some(sent)));
        }
        Some((self.good_receive::<PLAIN>(places, cqe, what)?, None))
    }

    /// [`CompletionQueue::good_at`] for a receive, if `what` says that the CQE is one.
    #[inline(always)]
    pub(super) fn good_receive<const PLAIN: bool>(
        &self,
        places: &Places,
        cqe: CqeView,
        what: u8,
    ) -> Option<Raw> {
        let is_receive = match PLAIN {
            true => what & !SOLICITED == CqeOpcode::RESPONDER_SEND.0 << 4,
            false => what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE == 0,
        };
        if !is_receive {
            return None;
        }
        complete_receive(self.queues.receives_of(places, cqe)?, cqe)
    }

    /// [`CompletionQueue::good_at`] for a send.
    #[inline(always)]
    fn good_send<S>(
        &self,
        places: &Places,
        cqe: CqeView,
        sent: impl FnOnce(Requested) -> Option<S>,
    ) -> Option<(Raw, S)> {
        let queue = self.queues.sends_of(places, cqe)?;
        let sent = sent(Requested(cqe))?;
        Some((complete_send(queue, cqe)?, sent))
    }
}

#[inline(always)]
fn good_of<'c, S>(raw: Raw, sent: Option<S>) -> Good<'c, S> {
    match sent {
        Some(sent) => Good::Sent(Completion::new(raw), sent),
        None => Good::Received(Completion::new(raw)),
    }
}

/// Takes successful completions one after the other, for a caller that uses other calls for all
/// others. The completions count as polled with [`GoodBatch::finish`].
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "completions that are taken have to be counted"]
pub struct GoodBatch<'q> {
    queue: &'q mut CompletionQueue,
    places: Places,
    /// As in [`PollBatch`](super::PollBatch).
    next: CqeView,
    /// The position at which enough were taken, or the lap ends.
    stop: CqeView,
}

/// A send's CQE, from which the request is identified.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Requested(CqeView);

impl Requested {
    /// The request's opcode.
    #[inline(always)]
    pub fn opcode(self) -> Opcode {
        Opcode(self.0.u8(offset_of!(Cqe, opcode_qpn_flow_tag)))
    }
}

impl GoodBatch<'_> {
    /// Whether nothing was taken.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next == self.queue.next
    }

    /// Whether nothing more is taken, because enough were, or the lap is over; see
    /// [`GoodBatch::finish`].
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        self.next == self.stop
    }

    /// The next completion, unless [`GoodBatch::is_over`]. For a send, `sent` decides whether the
    /// fast path takes it; the only receives taken are messages without immediate data and
    /// invalidated keys. After `None` the caller calls [`GoodBatch::next_received`] or
    /// [`GoodBatch::finish`], and then the other calls.
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next<S>(&mut self, sent: impl FnOnce(Requested) -> Option<S>) -> Option<Good<'_, S>> {
        let cqe = self.next;
        let (raw, sent) = self.queue.good_at::<true, _>(&self.places, cqe, sent)?;
        self.next = cqe.after(self.queue.stride);
        Some(good_of(raw, sent))
    }

    /// The next completion, which [`GoodBatch::next`] did not take, if it is a receive with
    /// immediate data or an invalidated key.
    #[inline(always)]
    pub fn next_received(&mut self) -> Option<Completion<'_>> {
        let cqe = self.next;
        let what = cqe.op_own() ^ self.queue.owner;
        let raw = self.queue.good_receive::<false>(&self.places, cqe, what)?;
        self.next = cqe.after(self.queue.stride);
        Some(Completion::new(raw))
    }

    /// The next completion, unless [`GoodBatch::is_over`], if it is a receive with up to 32 bytes
    /// of data inside the CQE. If they do not fit into the receive's buffers, its status says so.
    #[inline(always)]
    pub fn next_inline(&mut self) -> Option<Completion<'_>> {
        let cqe = self.next;
        let what = cqe.op_own() ^ self.queue.owner;
        if what.wrapping_sub(FIRST_RECEIVE) & NO_GOOD_RECEIVE != INLINE {
            return None;
        }
        let raw = self.queue.complete_inline(&self.places, cqe)?;
        self.next = cqe.after(self.queue.stride);
        Some(Completion::new(raw))
    }

    /// Gives the entries of the completions back to the device, and returns their number. Returns
    /// `Err` with the number if the caller has to call [`CompletionQueue::give_back`].
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
