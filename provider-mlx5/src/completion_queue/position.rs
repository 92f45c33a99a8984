//! The poller's place in the ring, and its fast path.
//!
//! Completions come in runs: of one kind, of one queue. What a queue's user index leads to is looked up when a run begins;
//! the next CQE continues it if its opcode byte and its user index are the same.
//!
//! Runs go on from poll to poll, as long as the user index leads where it did. Within a batch that is not asked again, so
//! there the run ends where the poller may say that the CQ was drained: from then on a closed queue's index may be given
//! to another.

use core::mem::offset_of;

use super::completion::{Completion, Raw, Status};
use super::cqe_view::CqeView;
use super::{CompletionQueue, OWNER, PollError};
use crate::format::{Cqe, CqeFormat, CqeOpcode};
use crate::queue_state::{NO_START, QueueState, Side};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::user_index::{TableView, open_queue};

/// Bit of `op_own` that says "solicited" and matters to nobody here.
const SOLICITED: u8 = 1 << 1;
/// A requester's CQE without inline data, with the right owner bit.
const GOOD_SEND: u8 = CqeOpcode::REQUESTER.0 << 4;

/// The place in the ring and the run that it is in, as copies that the compiler can keep in registers.
#[derive(Clone, Copy, Debug)]
struct Position {
    next: *const u8,
    run: Run,
}

/// Completions of one kind, of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The opcode byte of the CQE that it began with, owner bit included.
    first: u8,
    /// The same without [`SOLICITED`]; [`NOTHING`] if there is no run.
    what: u8,
    /// The user index word of its CQEs, as it lies in memory.
    word: u32,
    /// Where the user index leads, and the entry of the table that says so; if there is no run, it does not.
    state: *const QueueState,
    entry: *const AtomicPtr<QueueState>,
    side: *const Side,
    entries: *const AtomicU64,
    mask: u32,
}

/// Has [`SOLICITED`], so no CQE is like it.
const NOTHING: u8 = SOLICITED;

impl Run {
    /// No run.
    pub(super) fn none(view: TableView) -> Self {
        Self {
            first: 0,
            what: NOTHING,
            word: 0,
            // Nothing leads there.
            state: core::ptr::dangling(),
            entry: view.nobodys(),
            side: core::ptr::null(),
            entries: core::ptr::null(),
            mask: 0,
        }
    }

    /// Whether a CQE belongs to this run, and is ours.
    #[inline(always)]
    fn has(&self, cqe: CqeView) -> bool {
        // The owner bit is part of the byte, and changes where the run is ended.
        if cqe.u8(offset_of!(Cqe, op_own)) & !SOLICITED != self.what {
            return false;
        }
        crate::barrier::from_device();
        cqe.raw_u32(offset_of!(Cqe, srqn_user_index)) == self.word
    }

    /// Whether a CQE that is as the run's first is of its queue, and the user index still leads there. If so, there is a run.
    ///
    /// # Safety
    /// The table that the run was begun with is alive.
    #[inline(always)]
    unsafe fn goes_on_with(&self, cqe: CqeView) -> bool {
        crate::barrier::from_device();
        let word = cqe.raw_u32(offset_of!(Cqe, srqn_user_index));
        // SAFETY: passed on to the caller.
        word == self.word && unsafe { self.is_open() }
    }

    /// Retires the request of a CQE of the run. `None`, and nothing has changed, unless it is known
    /// to be outstanding: then the slow path finds out.
    ///
    /// # Safety
    /// There is a run, the CQ that it was begun on is this thread's alone, and the table is alive.
    #[inline(always)]
    unsafe fn retire(&self, cqe: CqeView) -> Option<Raw> {
        let index = cqe.u16_on_top(offset_of!(Cqe, wqe_counter));
        let slot = (index >> 16) & self.mask;
        // SAFETY: the masked index is below the number of entries; both live as long as the table.
        let (entry, side) = unsafe { (&*self.entries.add(slot as usize), &*self.side) };
        let wr_id = entry.load(Ordering::Relaxed);
        if wr_id == NO_START {
            return None;
        }
        // SAFETY: runs begin on the CQ that the side completes to, which one thread polls at a time.
        unsafe { side.complete_alone(index) }.then(|| good(cqe, side, wr_id))
    }

    /// Whether the user index still leads to the queue.
    ///
    /// # Safety
    /// The table that the run was begun with is alive.
    #[inline(always)]
    unsafe fn is_open(&self) -> bool {
        // SAFETY: tables that grew are kept, and queues are written into all of them.
        let entry = unsafe { &*self.entry };
        entry.load(Ordering::Acquire).cast_const() == self.state
    }
}

#[inline(always)]
fn good(cqe: CqeView, side: *const Side, wr_id: u64) -> Raw {
    Raw { cqe, side, wr_id, status: Status::Success, format: CqeFormat::NO_INLINE }
}

/// What begins with a CQE that is ours, and does not belong to the run.
#[derive(Clone, Copy)]
enum Begun {
    /// A run, now the queue's, whose first request has this id and is retired.
    Run(u64),
    /// None: it is a receive that went well, of the SRQ of the queue with this block.
    Shared(&'static QueueState),
    /// None: it is for the slow path.
    Nothing,
}

impl Position {
    /// Consumes one completion.
    #[inline(always)]
    fn advance(&mut self, queue: &mut CompletionQueue) -> Result<Raw, PollError> {
        // SAFETY: `next` points to a CQE of the ring, or to the entry that leads to the slow path.
        let cqe = unsafe { CqeView::new(self.next) };
        if self.run.has(cqe) {
            // SAFETY: a run that was begun; `queue` keeps its table, and this thread polls it.
            if let Some(raw) = unsafe { self.run.retire(cqe) } {
                self.step(queue);
                return Ok(raw);
            }
        }
        self.advance_other(queue, cqe)
    }

    /// [`CompletionQueue::take_other`].
    #[inline(always)]
    fn advance_other(
        &mut self,
        queue: &mut CompletionQueue,
        cqe: CqeView,
    ) -> Result<Raw, PollError> {
        let is_ours = (cqe.u8(offset_of!(Cqe, op_own)) ^ queue.owner) & OWNER == 0;
        let begun = if is_ours { queue.begin_run(cqe) } else { Begun::Nothing };
        if let Begun::Run(wr_id) = begun {
            self.load_run(queue);
            // Before the lap may end, and the run with it.
            let side = self.run.side;
            self.step(queue);
            return Ok(good(cqe, side, wr_id));
        }
        self.store(queue);
        let raw = if is_ours { queue.take_alone(cqe, begun) } else { Err(queue.nothing()) };
        self.next = queue.next;
        self.load_run(queue);
        raw
    }

    #[inline(always)]
    fn step(&mut self, queue: &mut CompletionQueue) {
        self.next = self.next.wrapping_add(queue.stride);
        if self.next == queue.end {
            // Before the lap's end says that what was polled is drained: a batch that is forgotten must not go back to it.
            self.store(queue);
            self.next = queue.next_lap();
            self.run = Run::none(queue.view);
        }
    }

    /// The queue's counter follows from how far its place has moved.
    #[inline(always)]
    fn store(&self, queue: &mut CompletionQueue) {
        let moved = (self.next.addr() - queue.next.addr()) >> queue.ring.shift;
        queue.consumed = queue.consumed.wrapping_add(moved as u32);
        queue.next = self.next;
    }

    /// Field by field: a copy of the whole would be made in vector registers, and taken apart again for each CQE.
    #[inline(always)]
    fn load_run(&mut self, queue: &CompletionQueue) {
        let run = &queue.run;
        self.run.first = run.first;
        self.run.what = run.what;
        self.run.word = run.word;
        self.run.state = run.state;
        self.run.entry = run.entry;
        self.run.side = run.side;
        self.run.entries = run.entries;
        self.run.mask = run.mask;
    }
}

impl CompletionQueue {
    /// Consumes one completion, and gives back the places of those before it: what is lent now is not given back yet.
    #[inline(always)]
    pub(super) fn take_and_publish(&mut self) -> Result<Raw, PollError> {
        // SAFETY: `next` points to a CQE of the ring, or to the entry that leads to the slow path.
        let cqe = unsafe { CqeView::new(self.next) };
        let op_own = cqe.u8(offset_of!(Cqe, op_own));
        let before = self.consumed;
        // SAFETY: `self` keeps the table.
        if op_own == self.run.first && unsafe { self.run.goes_on_with(cqe) } {
            // SAFETY: a run that was begun; `self` keeps its table, and this thread polls it.
            if let Some(raw) = unsafe { self.run.retire(cqe) } {
                self.step_from(cqe);
                self.publish_up_to(before);
                return Ok(raw);
            }
        }
        let raw = self.take_other(cqe, op_own)?;
        // The last that was consumed is what is lent: those before it, if any, were dropped.
        self.publish_up_to(self.consumed.wrapping_sub(1));
        Ok(raw)
    }

    /// Consumes one completion.
    #[inline(always)]
    fn take(&mut self) -> Result<Raw, PollError> {
        // SAFETY: `next` points to a CQE of the ring, or to the entry that leads to the slow path.
        let cqe = unsafe { CqeView::new(self.next) };
        if self.run.has(cqe) {
            // SAFETY: as above.
            if let Some(raw) = unsafe { self.run.retire(cqe) } {
                self.step();
                return Ok(raw);
            }
        }
        self.take_other(cqe, cqe.u8(offset_of!(Cqe, op_own)))
    }

    /// Consumes the completion at `cqe`, if there is one, which does not belong to the run or whose
    /// request is not known to be outstanding. Begins a run with it if it can.
    #[inline(always)]
    fn take_other(&mut self, cqe: CqeView, op_own: u8) -> Result<Raw, PollError> {
        if (op_own ^ self.owner) & OWNER != 0 {
            return Err(self.nothing());
        }
        match self.begin_run(cqe) {
            Begun::Run(wr_id) => {
                let side = self.run.side;
                self.step();
                Ok(good(cqe, side, wr_id))
            }
            begun => self.take_alone(cqe, begun),
        }
    }

    /// Begins a run with the completion at `cqe`, which is ours, if it can, and retires its request.
    #[inline(never)]
    fn begin_run(&mut self, cqe: CqeView) -> Begun {
        let op_own = cqe.u8(offset_of!(Cqe, op_own));
        // Opcode and format.
        let what = (op_own & !SOLICITED) ^ self.owner;
        if what != GOOD_SEND && !matches!(what, 0x10 | 0x20 | 0x30 | 0x40) {
            return Begun::Nothing;
        }
        crate::barrier::from_device();
        let word = cqe.raw_u32(offset_of!(Cqe, srqn_user_index));
        // SAFETY: `self` keeps the table alive.
        let Some(entry) = (unsafe { self.view.entry(u32::from_be(word)) }) else {
            return Begun::Nothing;
        };
        let Some(of_queue) = open_queue(entry) else { return Begun::Nothing };
        let side = if what == GOOD_SEND {
            of_queue.send_side()
        } else {
            // SAFETY: blocks live as long as the table, which `self` keeps.
            let receives = unsafe { &*of_queue.receives() };
            if receives.is_shared() {
                return Begun::Shared(of_queue);
            }
            receives.recv_side()
        };
        // Not a queue that completes to any CQ: the fast path counts on being the only poller.
        if !side.completes_to_none_but(self.monitor.identity()) {
            return Begun::Nothing;
        }
        let ((entries, mask), state) = (side.table(), &raw const *of_queue);
        let (first, what) = (op_own, op_own & !SOLICITED);
        self.run = Run { first, what, word, state, entry, side, entries, mask };
        // SAFETY: the side completes to this CQ alone; `self` keeps the table.
        match unsafe { self.run.retire(cqe) } {
            Some(raw) => Begun::Run(raw.wr_id),
            None => self.begin_unknown(cqe),
        }
    }

    /// Ends the run that was begun with a completion, unless its request turns out to be
    /// outstanding and is retired.
    #[cold]
    #[inline(never)]
    fn begin_unknown(&mut self, cqe: CqeView) -> Begun {
        let Run { state, side, what, .. } = self.run;
        let index = cqe.u16(offset_of!(Cqe, wqe_counter));
        // SAFETY: the run's block, and that of its receives, are alive.
        let (state, side) = unsafe { (&*state, &*side) };
        let is_retired = match what & !OWNER {
            GOOD_SEND => state.complete_sends(index),
            _ => state.complete_receives(index),
        };
        if is_retired {
            return Begun::Run(side.entry(u32::from(index)).load(Ordering::Relaxed));
        }
        self.run = Run::none(self.view);
        Begun::Nothing
    }

    /// Consumes the completion at `cqe`, which is ours, and with which no run begins.
    #[inline(never)]
    fn take_alone(&mut self, cqe: CqeView, begun: Begun) -> Result<Raw, PollError> {
        match begun {
            Begun::Shared(state) => {
                // SAFETY: blocks live as long as the table, which `self` keeps.
                self.shared_receive(cqe, state, unsafe { &*state.receives() })
            }
            _ => self.poll_slow(),
        }
    }

    /// A receive that went well, of an SRQ: that must have had the entry posted.
    #[inline(always)]
    fn shared_receive(
        &mut self,
        cqe: CqeView,
        state: &QueueState,
        receives: &QueueState,
    ) -> Result<Raw, PollError> {
        let (side, index) = (state.recv_side(), cqe.u16(offset_of!(Cqe, wqe_counter)));
        if !side.completes_to(self.monitor.identity()) {
            return self.poll_slow();
        }
        let Some(claimed) = receives.claim(index) else { return self.poll_slow() };
        let wr_id = claimed.wr_id();
        claimed.give_back();
        self.step();
        Ok(good(cqe, side, wr_id))
    }

    /// Ends the run if its queue was closed.
    #[inline(always)]
    fn check_run(&mut self) {
        // SAFETY: `self` keeps the table.
        if !unsafe { self.run.is_open() } {
            self.run = Run::none(self.view);
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        // SAFETY: `next` points to a CQE of the ring.
        self.step_from(unsafe { CqeView::new(self.next) });
    }

    /// Moves on from the CQE that `next` points to.
    #[inline(always)]
    fn step_from(&mut self, cqe: CqeView) {
        self.consumed = self.consumed.wrapping_add(1);
        self.next = cqe.as_ptr().wrapping_add(self.stride);
        if self.next == self.end {
            crate::hint::seldom();
            self.next_lap();
        }
    }
}

impl CompletionQueue {
    /// Shows `visit` as many completions as there are, `most` of them if there are more; returns how many. Their places are
    /// given back to the device together, so it costs less than polling one after the other: all of
    /// them when the last was shown, so a program that posts inside `visit` needs a queue with room for all that is outstanding
    /// and `most` besides.
    ///
    /// If `visit` panics the completion that it was shown counts as polled.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
    #[inline(always)]
    pub fn poll_up_to(
        &mut self,
        most: usize,
        visit: impl FnMut(Completion<'_>),
    ) -> Result<usize, PollError> {
        let before = self.consumed;
        let report = Report { queue: self, before };
        report.queue.show_up_to(most, visit)
    }

    #[inline(always)]
    fn show_up_to(
        &mut self,
        most: usize,
        mut visit: impl FnMut(Completion<'_>),
    ) -> Result<usize, PollError> {
        self.check_run();
        for count in 0..most {
            match self.take() {
                Ok(raw) => visit(Completion::new(raw)),
                Err(error) if count == 0 && error != PollError::Empty => return Err(error),
                Err(error) => {
                    self.keep(error);
                    return Ok(count);
                }
            }
        }
        Ok(most)
    }
}

/// Gives back the places of what was consumed, also where the program panics.
struct Report<'q> {
    queue: &'q mut CompletionQueue,
    /// CQEs consumed before.
    before: u32,
}

impl Drop for Report<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.queue.consumed != self.before {
            self.queue.publish();
        }
    }
}

/// Polls completions one after the other; their places are given back when it is dropped.
#[derive(Debug)]
pub struct PollBatch<'q> {
    queue: &'q mut CompletionQueue,
    position: Position,
    /// CQEs consumed before the batch.
    before: u32,
}

impl<'q> PollBatch<'q> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut CompletionQueue) -> Self {
        queue.check_run();
        let mut position = Position { next: queue.next, run: queue.run };
        position.load_run(queue);
        Self { position, before: queue.consumed, queue }
    }

    /// The next completion, lent until the next call.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`].
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Completion<'_>, PollError> {
        self.position.advance(self.queue).map(Completion::new)
    }
}

impl PollBatch<'_> {
    /// [`CompletionQueue::keep`].
    pub(super) fn keep(&mut self, error: PollError) {
        self.position.store(self.queue);
        self.queue.keep(error);
        self.position.next = self.queue.next;
        self.position.load_run(self.queue);
    }
}

impl Drop for PollBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.position.store(self.queue);
        if self.queue.consumed != self.before {
            self.queue.publish();
        }
    }
}
