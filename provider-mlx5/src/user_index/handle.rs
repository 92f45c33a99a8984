//! A queue's entry in the table: which requests it may complete, and which CQs still hold its CQEs
//! after it is closed.

#![deny(unsafe_code)]

use std::sync::Arc as Shared;

use super::{Dying, QueueHandle, UserIndexTable, WasReset};
use crate::completion_queue::CqMonitor;
use crate::format::{CqeOpcode, OpOwn};
use crate::queue_error::QueueError;
use crate::queue_state::{Past, QpState, QueueState, Shape};
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock};
use crate::tag_list::TagList;

/// Index of each side of a queue in arrays.
pub(crate) const SENDS: usize = 0;
pub(crate) const RECEIVES: usize = 1;

/// CQs, each with the number of the drain that must have happened.
pub(super) type Drains = Vec<(CqMonitor, u64)>;

pub(super) fn drained(drains: &Drains) -> bool {
    drains.iter().all(|(cq, request)| cq.has_drained(*request))
}

/// How many completions of a queue its CQs must have space for.
#[derive(Debug)]
pub(super) struct Load {
    sends: u32,
    receives: u32,
    /// Whether the queue was closed. Then the load is not raised any more.
    is_closed: bool,
    /// The CQs that the queue was registered with: of its sends the first, of its receives the
    /// last.
    cqs: Vec<CqMonitor>,
    /// Of an SRQ: the CQs of the QPs that consume it, to which its receives complete, each with the
    /// number of times that these QPs name it.
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

    /// All CQs that may hold completions of the queue.
    fn all_cqs(&self) -> impl Iterator<Item = &CqMonitor> {
        self.cqs.iter().chain(self.consumers.iter().map(|(cq, _)| cq))
    }

    /// Marks the queue as closed.
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

    /// Sets the capacities of sends and receives.
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

    /// Adds a QP that consumes this SRQ and completes its receives to `cqs`.
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

    /// Removes a QP that consumed this SRQ, once its completions have been polled.
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
    /// For each side, by how much the requests that may be outstanding are fewer than the granted
    /// capacity: the CQ still holds completions of closed queues, or of this QP from before its
    /// reset.
    held: [AtomicU32; 2],
    closing: Mutex<Option<Drains>>,
    /// Whether a queue of sends, or one of receives, was made with this entry.
    has_queue: [AtomicBool; 2],
    /// The queue was reset, and a new entry has taken the index over.
    succeeded: AtomicBool,
    /// Keeps the SRQ that this queue consumes registered as long as the queue is.
    receives: Option<QueueHandle>,
}

impl QueueHandle {
    /// The index to give to the kernel at creation, below 2^24.
    pub fn user_index(&self) -> u32 {
        self.entry.index
    }

    /// Records a state that the program set or an event reported. Posting checks it only when it
    /// looks for space, in particular for the first request. After a change to a state in which
    /// nothing can be posted, also call
    /// [`SendQueue::recheck_state`](crate::send_queue::SendQueue::recheck_state) and its
    /// counterparts.
    pub fn set_state(&self, state: QpState) {
        self.state().set_state(state);
    }

    /// Records the number that the kernel gave.
    pub fn set_number(&self, number: u32) {
        self.state().set_number(number);
    }

    /// Makes a failed send move the QP to SQE, in which only the send queue has stopped. The device
    /// does so for all services but the reliable ones. Holds until the handle closes.
    pub fn set_sends_fail_alone(&self) {
        self.state().set_sends_fail_alone();
    }

    /// Makes a receive that is too short fail without moving the QP to ERR, as on raw packet QPs.
    /// Holds until the handle closes.
    pub fn set_short_receives_fail_alone(&self) {
        self.state().set_short_receives_fail_alone();
    }

    /// Records that the device reported an error of this SRQ (`IBV_EVENT_SRQ_ERR`): posts fail from
    /// now on.
    pub fn fail_shared_receives(&self) {
        self.state().fail_shared_receives();
    }

    /// Makes this SRQ match tags, with a list of `tags` entries. Called before the kernel's object
    /// is made, and before QPs are registered with it.
    pub fn match_tags(&self, tags: u16) {
        self.state().set_tags(Some(TagList::new(tags)));
        self.state().open();
    }

    /// Makes `command` the QP that posts changes of this SRQ's list of tags. Its sends complete to
    /// the SRQ's CQ, whose poller also completes them when the device confirms a change.
    ///
    /// # Errors
    /// `InUse` if there is or was such a QP; `NoTags` if the SRQ matches no tags, or has another CQ
    /// or table, or none.
    pub fn set_tag_command(&self, command: &Self) -> Result<(), QueueError> {
        let is_here = command.entry.is_in(&self.entry.table);
        if !is_here || !command.state().sends_complete_with(self.state()) {
            return Err(QueueError::NoTags);
        }
        match self.state().with_tags(|list| list.set_command(command.user_index())) {
            Some(true) => Ok(()),
            Some(false) => Err(QueueError::InUse),
            None => Err(QueueError::NoTags),
        }
    }

    /// Records that `command` was destroyed: no more changes of this SRQ's list of tags are posted.
    pub fn clear_tag_command(&self, command: &Self) {
        self.state().with_tags(|list| list.clear_command(command.user_index()));
    }

    /// Sets how many receives of this SRQ may be outstanding, after a resize; at most the entries
    /// of its ring.
    pub fn set_granted_receives(&self, receives: u32) {
        self.state().set_granted_receives(receives);
    }

    /// Sets how many sends, and how many receives of its own, the queue may have outstanding. If
    /// the capacities of a CQ's queues exceed its ring, the CQ can overrun, and its polls watch for
    /// that (see [`CompletionQueue::watch_events`]).
    ///
    /// [`CompletionQueue::watch_events`]: crate::completion_queue::CompletionQueue::watch_events
    pub fn set_capacity(&self, sends: u32, receives: u32) {
        self.entry.set_capacity([sends, receives]);
    }

    /// By how much a side's outstanding requests must stay below the granted capacity for now, so
    /// that completions of closed queues in its CQ cannot make the CQ overrun. 0 once those have
    /// been polled.
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

    /// Whether [`QueueHandle::held`] may be more than 0.
    #[inline(always)]
    pub(crate) fn may_hold(&self, side: usize) -> bool {
        self.entry.held[side].load(Ordering::Relaxed) != 0
    }

    /// Stops all completions of the queue: the poller drops its CQEs that are still in a CQ, and
    /// copies none of their data. Call it after the kernel has destroyed or reset the queue, and
    /// before the memory of its rings is freed. The second call has no effect.
    pub fn close(&self) {
        self.entry.close();
    }

    /// Whether the queue was closed, and each of its CQs has since been polled past the CQEs that
    /// it held at that time. A CQ that was dropped counts as polled. Always false in a forked
    /// child.
    pub fn has_drained(&self) -> bool {
        let is_here = !self.entry.table.is_inherited();
        is_here && lock(&self.entry.closing).as_ref().is_some_and(drained)
    }

    /// Records that a queue uses the handle's sends or receives. Only one queue may, because the
    /// poller assumes that all requests of the handle are in that queue's ring, even after the
    /// queue was dropped.
    pub(crate) fn claim(&self, side: usize) -> Result<(), QueueError> {
        match self.entry.has_queue[side].swap(true, Ordering::Acquire) {
            true => Err(QueueError::InUse),
            false => Ok(()),
        }
    }

    /// Moves a queue from its handle `before` to this one, which has the same index and tables of
    /// the same lengths.
    ///
    /// # Panics
    /// If this is another queue's handle.
    pub(crate) fn claim_after(&self, before: &Self, side: usize) {
        let of = |handle: &Self| (handle.entry.index, handle.entry.shape);
        let follows = self.entry.is_in(&before.entry.table) && of(self) == of(before);
        assert!(follows && self.claim(side).is_ok(), "another queue's handle");
    }

    /// The handle for the QP after a reset: it keeps index and user context, and its counters start
    /// at zero. Closes this handle; `reset` of the send and receive queue takes the new one.
    ///
    /// It does not wait for a poller. The poller drops CQEs from before the reset when it reaches
    /// them.
    ///
    /// # Panics
    /// If called a second time, because the first new handle has the index.
    #[must_use]
    pub fn renew(&self, _: WasReset) -> Self {
        let is_first = !self.entry.succeeded.swap(true, Ordering::AcqRel);
        assert!(is_first, "the handle was renewed before");
        let drains = self.entry.close();
        let Entry { table, index, shape, receives, .. } = &*self.entry;
        let block = {
            let mut control = lock(&table.0.control);
            control.reap(&table.0.tables);
            control.take_block(*shape)
        };
        block.reset();
        block.succeed(self.state());
        let (cqs, capacity) = {
            let load = lock(&self.entry.load);
            (load.cqs.clone(), [load.sends, load.receives])
        };
        let entry = Entry::new(table, *index, (*shape, block.clone()), &cqs, receives.as_ref());
        entry.set_capacity(capacity);
        let mut past = lock(block.past());
        *past = past_of(&drains, *index);
        if past.is_empty() {
            block.open();
        }
        table.set(*index, &block);
        drop(past);
        Self::new(entry)
    }
}

/// The CQs that hold CQEs from before a queue's reset, and the counter after the last one in each.
/// `drains` were requested after the reset.
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
        // CQEs of a closed QP return entries to its SRQ. So the SRQ's block is not reused before
        // the CQs of the QPs that consume it have been drained.
        receives.inspect(|srq| lock(&srq.entry.load).add_consumer(cqs));
        Self {
            table: table.clone(),
            index,
            shape,
            block,
            load: Load::new(cqs),
            held: [AtomicU32::new(0), AtomicU32::new(0)],
            closing: Mutex::new(None),
            has_queue: [AtomicBool::new(false), AtomicBool::new(false)],
            succeeded: AtomicBool::new(false),
            receives: receives.cloned(),
        }
    }

    pub(super) fn is_in(&self, table: &UserIndexTable) -> bool {
        Arc::ptr_eq(&self.table.0, &table.0)
    }

    fn set_capacity(&self, capacity: [u32; 2]) {
        let mut load = lock(&self.load);
        load.set(capacity);
        let excess = |side| load.cq_of(side).map_or(0, CqMonitor::excess);
        let sends = excess(SENDS).min(capacity[SENDS]);
        let is_one = load.cqs.first().zip(load.cqs.last()).is_some_and(|(a, b)| a.is_same(b));
        // If both sides complete to one CQ, together they leave the needed entries free.
        let rest = if is_one { sends } else { 0 };
        let receives = excess(RECEIVES).saturating_sub(rest).min(capacity[RECEIVES]);
        self.held[SENDS].store(sends, Ordering::Relaxed);
        self.held[RECEIVES].store(receives, Ordering::Relaxed);
    }

    fn close(&self) -> Drains {
        if self.table.is_inherited() {
            return Drains::new();
        }
        let mut closing = lock(&self.closing);
        if let Some(drains) = &*closing {
            return drains.clone();
        }
        let state = &self.block;
        // The lock is held until the block is closed: otherwise a poller that finds no older CQEs
        // would open it again.
        let mut past = lock(state.past());
        past.clear();
        state.shut();
        drop(past);
        state.set_send_ring(None);
        state.set_recv_ring(None);
        let mut load = lock(&self.load);
        let drains: Drains = load.all_cqs().map(|cq| (cq.clone(), cq.request_drain())).collect();
        load.close();
        // A receive of an SRQ is not posted again before its completion is polled.
        let has_receives = self.receives.is_none();
        for (cq, drain) in &drains {
            let counts = |op_own: OpOwn| {
                let opcode = op_own.opcode();
                has_receives || opcode.is_requester() || opcode == CqeOpcode::NO_PACKET
            };
            cq.note_closed(self.index, *drain, counts);
        }
        *closing = Some(drains.clone());
        drains
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.table.is_inherited() {
            return;
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::completion_queue::{CompletionQueue, CompletionQueueConfig};
    use crate::doorbell::DoorbellWord;
    use crate::memory::DmaMemory;
    use crate::mmio::{ArmRegister, InChild};
    use crate::shown_ring::Ring;

    fn completion_queue(table: &UserIndexTable) -> CompletionQueue {
        let config = CompletionQueueConfig {
            memory: DmaMemory::leaked(4 * 64),
            entries: 4,
            cqe_size: 64,
            doorbell: (DoorbellWord::leaked(), DoorbellWord::leaked()),
            arm: ArmRegister::leaked(),
            number: 1,
            table,
            mini_format: None,
            null_lkey: None,
        };
        CompletionQueue::new(config).expect("a CQ")
    }

    /// In a forked child, locks of the parent's other threads stay locked forever. Here this thread
    /// holds them instead.
    #[test]
    fn a_forked_child_drops_its_handles_without_a_lock() {
        let table = UserIndexTable::new();
        let shape = Shape { send_wqebbs: 4, recv_wqes: 4, shared_receive: false };
        let handle = table.register(shape, &[], None, 0).unwrap();
        table.disown(InChild::pretended());
        let (load, block) = (handle.entry.load.clone(), handle.block.clone());
        let _held = (lock(&table.0.control), lock(&load), lock(block.past()));
        let (dropped, waiting) = mpsc::channel();
        std::thread::spawn(move || {
            handle.close();
            let has_drained = handle.has_drained();
            drop(handle);
            dropped.send(has_drained)
        });
        let has_drained = waiting.recv_timeout(Duration::from_secs(60));
        assert_eq!(has_drained, Ok(false), "the memory of its rings stays");
    }

    /// A poll that finds a CQE of a closed or reset queue, or an empty CQ, and dropping a CQ or a
    /// queue while another thread reads the queue's ring.
    #[test]
    fn polls_and_drops_of_a_forked_child_wait_for_no_lock() {
        let table = UserIndexTable::new();
        let cq = completion_queue(&table);
        let shape = Shape { send_wqebbs: 4, recv_wqes: 4, shared_receive: false };
        let handle = table.register(shape, &[cq.monitor()], None, 0).unwrap();
        let ring = Ring::on(DmaMemory::leaked(4 * 64), 4, 64, 0);
        handle.state().set_send_ring(ring.as_ref());
        handle.close();
        table.disown(InChild::pretended());
        let block = handle.block.clone();
        let (monitor, child) = (cq.monitor(), table.clone());
        let _held = (lock(&table.0.control), lock(block.past()), monitor.lock_place());
        block.with_send_ring(|_| {
            let (done, waiting) = mpsc::channel();
            std::thread::spawn(move || {
                let state = handle.state();
                let begun = child.has_begun_anew(state, &cq.monitor(), 0);
                let is_over = child.is_over(state, &cq.monitor(), 0);
                child.reap();
                drop(cq);
                state.set_send_ring(None);
                state.set_recv_ring(None);
                done.send((begun, is_over))
            });
            let polled = waiting.recv_timeout(Duration::from_secs(60));
            assert_eq!(polled, Ok((false, true)), "its completions are dropped");
        });
    }
}
