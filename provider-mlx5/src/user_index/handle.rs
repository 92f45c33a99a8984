//! A queue's place in the table: what it may complete, and what its CQs hold of it once it is
//! closed.

#![deny(unsafe_code)]

use std::sync::Arc as Shared;

use super::{Dying, QueueHandle, UserIndexTable};
use crate::completion_queue::CqMonitor;
use crate::format::OpOwn;
use crate::queue_state::{Past, QpState, QueueState, Shape};
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// The sides of a queue, where there is a number for each.
pub(crate) const SENDS: usize = 0;
pub(crate) const RECEIVES: usize = 1;

/// CQs, and the drain of each that has to have happened.
pub(super) type Drains = Vec<(CqMonitor, u64)>;

pub(super) fn drained(drains: &Drains) -> bool {
    drains.iter().all(|(cq, request)| cq.has_drained(*request))
}

/// How many completions of a queue its CQs may have to hold.
#[derive(Debug)]
pub(super) struct Load {
    sends: u32,
    receives: u32,
    /// The queue was closed: nothing is added to what the CQs hold of it.
    is_closed: bool,
    /// The CQs that it was registered with: of its sends the first, of its receives the last.
    cqs: Vec<CqMonitor>,
    /// Of an SRQ: the CQs of the queues that consume it, where its receives complete, and by how
    /// many of these queues each was named.
    consumers: Vec<(CqMonitor, u32)>,
}

impl Load {
    fn new(cqs: &[CqMonitor]) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            sends: 0,
            receives: 0,
            is_closed: false,
            cqs: cqs.to_vec(),
            consumers: Vec::new(),
        }))
    }

    /// All CQs where completions of the queue may be.
    fn all_cqs(&self) -> impl Iterator<Item = &CqMonitor> {
        self.cqs.iter().chain(self.consumers.iter().map(|(cq, _)| cq))
    }

    /// Notes that the queue was closed.
    fn close(&mut self) {
        self.is_closed = true;
        self.change_closing([0; 2], [self.sends, self.receives]);
    }

    fn change_closing(&self, before: [u32; 2], now: [u32; 2]) {
        for side in [SENDS, RECEIVES] {
            self.cq_of(side).inspect(|cq| cq.change_closing(before[side], now[side]));
        }
    }

    /// The CQ that a side was registered with.
    fn cq_of(&self, side: usize) -> Option<&CqMonitor> {
        if side == SENDS { self.cqs.first() } else { self.cqs.last() }
    }

    /// Makes it so many sends and receives.
    pub(super) fn set(&mut self, [sends, receives]: [u32; 2]) {
        if self.is_closed {
            self.change_closing([self.sends, self.receives], [sends, receives]);
        }
        self.cqs.first().inspect(|cq| cq.change_load(self.sends, sends));
        let of_receives =
            self.cqs.last().into_iter().chain(self.consumers.iter().map(|(cq, _)| cq));
        of_receives.for_each(|cq| cq.change_load(self.receives, receives));
        (self.sends, self.receives) = (sends, receives);
    }

    /// Another queue consumes this SRQ, and completes receives to these CQs.
    fn add_consumer(&mut self, cqs: &[CqMonitor]) {
        self.consumers.retain(|(cq, _)| !cq.is_gone());
        for cq in cqs {
            match self.consumers.iter_mut().find(|(known, _)| known.is_same(cq)) {
                Some((_, queues)) => *queues += 1,
                None => {
                    cq.change_load(0, self.receives);
                    self.consumers.push((cq.clone(), 1));
                }
            }
        }
    }

    /// A queue that consumed this SRQ is gone, and its completions have been polled.
    pub(super) fn remove_consumer(&mut self, cqs: &[CqMonitor]) {
        for cq in cqs {
            let known = self.consumers.iter().position(|(known, _)| known.is_same(cq));
            let Some(at) = known else { continue };
            self.consumers[at].1 -= 1;
            if self.consumers[at].1 == 0 {
                self.consumers.swap_remove(at);
                cq.change_load(self.receives, 0);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    table: UserIndexTable,
    index: u32,
    shape: Shape,
    pub(super) block: Shared<QueueState>,
    load: Arc<Mutex<Load>>,
    /// How many fewer requests than were granted may be outstanding of each side, because its CQ
    /// holds completions of queues that were closed, or of this one's earlier lives.
    held: [AtomicU32; 2],
    closing: Mutex<Option<Drains>>,
    /// The index is that of the queue's next life.
    succeeded: AtomicBool,
    /// The SRQ whose receives this queue consumes stays registered as long as the queue is.
    receives: Option<QueueHandle>,
}

impl QueueHandle {
    /// The index to give to the kernel at creation, below 2^24.
    pub fn user_index(&self) -> u32 {
        self.entry.index
    }

    /// Records a state that the program set, or that an event told of. Posting looks at it where
    /// space has to be looked for, the first time above all. For a state in which nothing can be
    /// posted see [`SendQueue::recheck_state`](crate::send_queue::SendQueue::recheck_state) and its
    /// like.
    pub fn set_state(&self, state: QpState) {
        self.state().set_state(state);
    }

    /// Records the number that the kernel gave.
    pub fn set_number(&self, number: u32) {
        self.state().set_number(number);
    }

    /// A failed send stops the sends alone (SQE), as on all services but the reliable ones. Holds
    /// until the handle closes.
    pub fn set_sends_fail_alone(&self) {
        self.state().set_sends_fail_alone();
    }

    /// A receive that is too short fails alone, as on raw packet queue pairs. Holds until the
    /// handle closes.
    pub fn set_short_receives_fail_alone(&self) {
        self.state().set_short_receives_fail_alone();
    }

    /// Records that the device reported an error of this SRQ (`IBV_EVENT_SRQ_ERR`): posts fail from
    /// now on.
    pub fn fail_shared_receives(&self) {
        self.state().fail_shared_receives();
    }

    /// How many receives of this SRQ may be outstanding, after a resize; at most what its ring
    /// holds.
    pub fn set_granted_receives(&self, receives: u32) {
        self.state().set_granted_receives(receives);
    }

    /// Says how many requests, and how many receives of its own, the queue may have outstanding. A
    /// CQ to whose queues more are granted than it holds can overrun, and its polls look out for
    /// that (see [`CompletionQueue::watch_events`]).
    ///
    /// [`CompletionQueue::watch_events`]: crate::completion_queue::CompletionQueue::watch_events
    pub fn set_capacity(&self, sends: u32, receives: u32) {
        self.entry.set_capacity([sends, receives]);
    }

    /// How many fewer requests than were granted may be outstanding of a side now: so completions
    /// of closed queues that wait in its CQ never make that overrun. 0 once they were polled.
    pub(crate) fn held(&self, side: usize) -> u32 {
        let held = &self.entry.held[side];
        let before = held.load(Ordering::Relaxed);
        if before == 0 {
            return 0;
        }
        let now = before.min(lock(&self.entry.load).cq_of(side).map_or(0, CqMonitor::excess));
        held.store(now, Ordering::Relaxed);
        now
    }

    /// Makes the queue complete nothing any more: CQEs that are still in a CQ are dropped when the
    /// poller meets them, and no data of theirs is written anywhere. To be called once the kernel
    /// has destroyed or reset the queue, and before the memory of its rings is freed. Does nothing
    /// the second time.
    pub fn close(&self) {
        self.entry.close();
    }

    /// Whether the queue was closed, and every CQ of it has since been polled past all that it held
    /// then. A CQ that was dropped counts as polled.
    pub fn has_drained(&self) -> bool {
        lock(&self.entry.closing).as_ref().is_some_and(drained)
    }

    /// The queue's next life, to be called once the kernel has reset it: it has the same index and
    /// user context, and counts from zero. Closes this handle; the posting sides go on with the new
    /// one (`reset` of send and receive queue).
    ///
    /// It waits for no poller. CQEs from before that a CQ still holds are dropped when the poller
    /// meets them.
    #[must_use]
    pub fn renew(&self) -> Self {
        let drains = self.entry.close();
        let Entry { table, index, shape, receives, .. } = &*self.entry;
        let block = {
            let mut control = lock(&table.0.control);
            control.reap();
            control.take_block(*shape)
        };
        block.reset();
        block.succeed(self.state(), Shared::as_ptr(&block).cast_mut());
        let (cqs, capacity) = {
            let load = lock(&self.entry.load);
            (load.cqs.clone(), [load.sends, load.receives])
        };
        let entry = Entry::new(table, *index, (*shape, block.clone()), &cqs, receives.as_ref());
        entry.set_capacity(capacity);
        self.entry.succeeded.store(true, Ordering::Release);
        let mut past = lock(block.past());
        *past = past_of(&drains, *index);
        if past.is_empty() {
            block.open();
        }
        lock(&table.0.control).set(*index, &block);
        drop(past);
        Self::new(entry)
    }
}

/// Which CQs hold CQEs of a queue that was reset, and up to where. The drains were asked for after
/// the reset.
fn past_of(drains: &Drains, index: u32) -> Vec<Past> {
    let mut past = Vec::<Past>::new();
    for (cq, drain) in drains {
        if past.iter().all(|other| !other.cq.is_same(cq)) {
            let end = cq.end_of(index);
            past.extend(end.map(|end| Past { cq: cq.clone(), end, drain: *drain }));
        }
    }
    past
}

impl Entry {
    pub(super) fn new(
        table: &UserIndexTable,
        index: u32,
        (shape, block): (Shape, Shared<QueueState>),
        cqs: &[CqMonitor],
        receives: Option<&QueueHandle>,
    ) -> Self {
        // CQEs of a closed queue give entries of its SRQ back, so the SRQ's block is not reused
        // before its consumers' CQs have been drained either.
        receives.inspect(|srq| lock(&srq.entry.load).add_consumer(cqs));
        Self {
            table: table.clone(),
            index,
            shape,
            block,
            load: Load::new(cqs),
            held: [AtomicU32::new(0), AtomicU32::new(0)],
            closing: Mutex::new(None),
            succeeded: AtomicBool::new(false),
            receives: receives.cloned(),
        }
    }

    fn set_capacity(&self, capacity: [u32; 2]) {
        let mut load = lock(&self.load);
        load.set(capacity);
        let excess = |side| load.cq_of(side).map_or(0, CqMonitor::excess);
        let sends = excess(SENDS).min(capacity[SENDS]);
        let is_one = load.cqs.first().zip(load.cqs.last()).is_some_and(|(a, b)| a.is_same(b));
        // In one CQ both sides together leave the places free that are needed.
        let rest = if is_one { sends } else { 0 };
        let receives = excess(RECEIVES).saturating_sub(rest).min(capacity[RECEIVES]);
        self.held[SENDS].store(sends, Ordering::Relaxed);
        self.held[RECEIVES].store(receives, Ordering::Relaxed);
    }

    fn close(&self) -> Drains {
        let mut closing = lock(&self.closing);
        if let Some(drains) = &*closing {
            return drains.clone();
        }
        let state = &self.block;
        // Held until the block is closed: a poller that finds no past to wait for would open it
        // again.
        let mut past = lock(state.past());
        past.clear();
        state.shut();
        drop(past);
        state.set_send_ring(None);
        state.set_recv_ring(None);
        let mut load = lock(&self.load);
        let drains: Drains = load.all_cqs().map(|cq| (cq.clone(), cq.request_drain())).collect();
        load.close();
        // A receive of an SRQ is not posted again before its completion was polled.
        let has_receives = self.receives.is_none();
        for (cq, drain) in &drains {
            let counts = |op_own: OpOwn| has_receives || op_own.opcode().is_requester();
            cq.note_closed(self.index, *drain, counts);
        }
        *closing = Some(drains.clone());
        drains
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let drains = self.close();
        let index = (!self.succeeded.load(Ordering::Acquire)).then_some(self.index);
        let load = self.load.clone();
        let cqs = lock(&load).cqs.clone();
        let consumed = self.receives.as_ref().map(|srq| (srq.entry.load.clone(), cqs));
        let dead =
            Dying { index, shape: self.shape, block: self.block.clone(), drains, load, consumed };
        lock(&self.table.0.control).dying.push(dead);
    }
}
