//! The user index table: from the index in a CQE to the queue it belongs to.
//!
//! The program chooses a 24-bit user index for each QP and XRC SRQ, and the device writes it into
//! every CQE (CQE version 1, `MLX5_CQE_VERSION_V1`). Here it is the index of a flat table that
//! grows by doubling, so finding a queue is one load.
//!
//! A queue that dies may still have CQEs in its CQ. libmlx5 takes both CQs' locks and scrubs them.
//! Here nothing is scrubbed: the block is marked closed, so that the poller drops those CQEs when
//! it meets them, and index and block are reused once every CQ of the queue has been drained of
//! what it held at that time. A QP that is reset keeps its index and gets another block at once;
//! what a CQ still holds of its past is told by its place in the ring. Blocks are never freed while
//! the table lives, so a poller that has just looked one up, or a device that names a wrong index,
//! meets a block in any case.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::completion_queue::CqMonitor;
use crate::format::OpOwn;
use crate::queue_state::{Past, QpState, QueueState, Shape};
use crate::sync::{Arc, AtomicBool, AtomicPtr, AtomicU32, Mutex, Ordering, lock, try_lock};

/// Entries of the first table: 2 KiB.
const FIRST_SIZE: usize = 256;

/// User indices have 24 bits; the highest means "none" to the kernel (`MLX5_IB_DEFAULT_UIDX`).
const MAX_ENTRIES: usize = 1 << 24;

/// The queues of one device context, by user index. Clones are handles to the same table.
#[derive(Clone, Debug)]
pub struct UserIndexTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    control: Mutex<Control>,
    /// The current table, which pollers look at without a lock.
    current: AtomicPtr<Table>,
}

type Table = Box<[AtomicPtr<QueueState>]>;

impl Default for UserIndexTable {
    fn default() -> Self {
        let mut control = Control::new();
        let current = AtomicPtr::new(control.grow());
        Self(Arc::new(Inner { control: Mutex::new(control), current }))
    }
}

#[derive(Debug)]
struct Control {
    /// All tables so far, the current one last. The older ones stay for pollers that have not
    /// noticed yet. Boxed twice: the tables' addresses and lengths are pointed at.
    #[allow(clippy::vec_box, reason = "they are pointed at")]
    tables: Vec<Box<Table>>,
    /// Every block there is. Boxed: they are pointed at.
    blocks: Vec<(Shape, Box<QueueState>)>,
    /// Blocks that no queue uses.
    idle: Vec<(Shape, NonNull<QueueState>)>,
    /// A closed block, to which the indices of no queue lead.
    unused: NonNull<QueueState>,
    free_indices: Vec<u32>,
    next_index: u32,
    dying: Vec<Dying>,
}

// SAFETY: the pointers lead to blocks in `blocks`, which are `Sync` and live as long as the table.
unsafe impl Send for Control {}

#[derive(Debug)]
struct Dying {
    /// `None` if another block has it.
    index: Option<u32>,
    shape: Shape,
    block: NonNull<QueueState>,
    drains: Drains,
    /// Completions that were not polled yet need their places.
    load: Arc<Mutex<Load>>,
    /// That of the SRQ whose receives the queue consumed, and the CQs where it did.
    consumed: Option<(Arc<Mutex<Load>>, Vec<CqMonitor>)>,
}

/// How many completions of a queue its CQs may have to hold.
#[derive(Debug)]
struct Load {
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
    fn set(&mut self, [sends, receives]: [u32; 2]) {
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
    fn remove_consumer(&mut self, cqs: &[CqMonitor]) {
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

/// The sides of a queue, where there is a number for each.
pub(crate) const SENDS: usize = 0;
pub(crate) const RECEIVES: usize = 1;

/// CQs, and the drain of each that has to have happened.
type Drains = Vec<(CqMonitor, u64)>;

fn drained(drains: &Drains) -> bool {
    drains.iter().all(|(cq, request)| cq.has_drained(*request))
}

/// Why a queue could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// All user indices are in use, or wait for a CQ that is not polled.
    #[error(
        "no user index left: 2^24 - 2 queues are in use, or closed ones wait for their CQs to be \
         polled"
    )]
    NoIndexLeft,
}

/// A queue's entry in the table, and so its right to complete anything.
///
/// Clones name the same entry. The entry closes with [`QueueHandle::close`] or with the last clone.
#[derive(Debug)]
pub struct QueueHandle {
    entry: Arc<Entry>,
    block: NonNull<QueueState>,
}

// SAFETY: the block is `Sync`, and lives as long as the table that `entry` keeps.
unsafe impl Send for QueueHandle {}
// SAFETY: as above.
unsafe impl Sync for QueueHandle {}

#[derive(Debug)]
struct Entry {
    table: UserIndexTable,
    index: u32,
    shape: Shape,
    block: NonNull<QueueState>,
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

// SAFETY: as for `QueueHandle`.
unsafe impl Send for Entry {}
// SAFETY: as for `QueueHandle`.
unsafe impl Sync for Entry {}

impl UserIndexTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a queue a user index and a block.
    ///
    /// `cqs` are the CQs that it completes to: its sends to the first, its receives to the last.
    /// (To any, if there is none.) They outlive the queue. `receives` is its SRQ if it has one, and
    /// `user_context` a value that its completions hand back.
    ///
    /// # Errors
    /// [`RegisterError::NoIndexLeft`].
    pub fn register(
        &self,
        shape: Shape,
        cqs: &[CqMonitor],
        receives: Option<&QueueHandle>,
        user_context: u64,
    ) -> Result<QueueHandle, RegisterError> {
        let mut control = lock(&self.0.control);
        control.reap();
        let (index, grown) = control.take_index()?;
        if let Some(grown) = grown {
            // Release: what is in it was written before.
            self.0.current.store(grown, Ordering::Release);
        }
        let block = control.take_block(shape);
        drop(control);

        // SAFETY: blocks live as long as the table.
        let state = unsafe { block.as_ref() };
        state.reset();
        lock(state.past()).clear();
        state.set_number(0);
        let identity = |cq: Option<&CqMonitor>| cq.map_or(0, CqMonitor::identity);
        let completes_to = [cqs.first(), cqs.last()].map(identity);
        state.start(block.as_ptr(), index, user_context, completes_to);
        // SAFETY: all blocks live as long as the table.
        unsafe { state.set_receives(receives.map_or(block, |srq| srq.block).as_ptr()) };
        state.open();
        let entry = Entry::new(self, index, (shape, block), cqs, receives);
        let handle = QueueHandle { entry: Arc::new(entry), block };
        lock(&self.0.control).set(index, block.as_ptr());
        Ok(handle)
    }

    /// Frees what closed queues leave until their CQs have been drained, unless another thread has
    /// the lock: a poller does not wait.
    pub(crate) fn reap(&self) {
        if let Some(mut control) = try_lock(&self.0.control) {
            control.reap();
        }
    }

    /// In a forked child: the queues are the parent's, and posting to them fails with
    /// [`ForkedChild`](crate::request::PostError::ForkedChild) as soon as it looks at their state.
    /// Takes no lock and allocates nothing, so it may be called before `fork` returns.
    pub fn disown(&self) {
        for entry in self.current() {
            // SAFETY: a block, all of which live as long as the table.
            unsafe { &*entry.load(Ordering::Acquire) }.disown();
        }
    }

    /// Opens a QP that was reset, if the CQE at counter `consumed` of `cq` is of its new life, as
    /// are all that its other CQs hold: it comes behind all that the CQ held of the old one. Says
    /// whether the CQE is.
    pub(crate) fn has_begun_anew(&self, state: &QueueState, cq: &CqMonitor, consumed: u32) -> bool {
        let mut past = lock(state.past());
        if past.is_empty() || past.iter().any(|past| past.is_left(cq, consumed)) {
            return false;
        }
        past.retain(|past| !past.cq.is_same(cq) && !past.cq.is_gone());
        if past.is_empty() {
            state.open();
        }
        true
    }

    /// Whether the CQE at counter `at` of `cq` is of a queue that was closed, or of its life before
    /// a reset.
    pub(crate) fn is_over(&self, state: &QueueState, cq: &CqMonitor, at: u32) -> bool {
        if state.is_open() {
            return false;
        }
        let past = lock(state.past());
        past.is_empty() || past.iter().any(|past| past.is_left(cq, at))
    }

    /// The current table.
    fn current(&self) -> &Table {
        // SAFETY: a table of `control`, all of which live as long as this.
        unsafe { &*self.0.current.load(Ordering::Acquire) }
    }
}

impl Control {
    fn new() -> Self {
        let mut control = Self {
            tables: Vec::new(),
            blocks: Vec::new(),
            idle: Vec::new(),
            unused: NonNull::dangling(),
            free_indices: Vec::new(),
            next_index: 0,
            dying: Vec::new(),
        };
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        control.unused = control.take_block(shape);
        // SAFETY: the block is its own, in `blocks`.
        unsafe { control.unused.as_ref().set_receives(control.unused.as_ptr()) };
        control
    }

    /// An index, and the table that it needed.
    fn take_index(&mut self) -> Result<(u32, Option<*mut Table>), RegisterError> {
        if let Some(index) = self.free_indices.pop() {
            return Ok((index, None));
        }
        // Index 0 is left out: it is what a CQE that was never written would say.
        let index = self.next_index.max(1);
        if index as usize >= MAX_ENTRIES - 1 {
            return Err(RegisterError::NoIndexLeft);
        }
        self.next_index = index + 1;
        let is_full = index as usize >= self.tables.last().map_or(0, |table| table.len());
        let grown = is_full.then(|| self.grow());
        Ok((index, grown))
    }

    fn grow(&mut self) -> *mut Table {
        let old = self.tables.last().map_or(&[][..], |table| table);
        let len = (old.len() * 2).max(FIRST_SIZE);
        let value = |i: usize| match old.get(i) {
            Some(entry) => entry.load(Ordering::Relaxed),
            None => self.unused.as_ptr(),
        };
        let table: Table = (0..len).map(|i| AtomicPtr::new(value(i))).collect();
        self.tables.push(Box::new(table));
        self.tables.last_mut().map_or(core::ptr::null_mut(), |table| &raw mut **table)
    }

    fn take_block(&mut self, shape: Shape) -> NonNull<QueueState> {
        if let Some(at) = self.idle.iter().position(|(idle, _)| *idle == shape) {
            return self.idle.swap_remove(at).1;
        }
        let block = QueueState::new(shape);
        let pointer = NonNull::from(&*block);
        self.blocks.push((shape, block));
        pointer
    }

    /// Writes an entry in every table that has it, so that a poller with an old one meets no stale
    /// pointer.
    fn set(&mut self, index: u32, value: *mut QueueState) {
        for table in &self.tables {
            if let Some(entry) = table.get(index as usize) {
                entry.store(value, Ordering::Release);
            }
        }
    }

    /// Frees the indices and blocks of closed queues whose CQs have been drained.
    fn reap(&mut self) {
        let (done, dying) = core::mem::take(&mut self.dying)
            .into_iter()
            .partition::<Vec<_>, _>(|dead| drained(&dead.drains));
        self.dying = dying;
        for dead in done {
            if let Some(index) = dead.index {
                self.set(index, self.unused.as_ptr());
                self.free_indices.push(index);
            }
            lock(&dead.load).set([0; 2]);
            if let Some((srq, cqs)) = &dead.consumed {
                lock(srq).remove_consumer(cqs);
            }
            self.idle.push((dead.shape, dead.block));
        }
    }
}

impl QueueHandle {
    /// The index to give to the kernel at creation, below 2^24.
    pub fn user_index(&self) -> u32 {
        self.entry.index
    }

    /// The shared block.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        // SAFETY: blocks live as long as the table, which `entry` keeps alive.
        unsafe { self.block.as_ref() }
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

    /// Makes one request outstanding on either side, at this index. For the inspector, which has
    /// completions and no queues.
    ///
    /// # Safety
    /// The handle has no queues.
    #[doc(hidden)]
    pub unsafe fn expect(&self, index: u16) {
        self.state().expect(index);
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
        // SAFETY: blocks live as long as the table.
        let state = unsafe { block.as_ref() };
        state.reset();
        state.succeed(self.state(), block.as_ptr());
        let (cqs, capacity) = {
            let load = lock(&self.entry.load);
            (load.cqs.clone(), [load.sends, load.receives])
        };
        let entry = Entry::new(table, *index, (*shape, block), &cqs, receives.as_ref());
        entry.set_capacity(capacity);
        self.entry.succeeded.store(true, Ordering::Release);
        let mut past = lock(state.past());
        *past = past_of(&drains, *index);
        if past.is_empty() {
            state.open();
        }
        lock(&table.0.control).set(*index, block.as_ptr());
        drop(past);
        Self { entry: Arc::new(entry), block }
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

impl Clone for QueueHandle {
    fn clone(&self) -> Self {
        Self { entry: self.entry.clone(), block: self.block }
    }
}

impl Entry {
    fn new(
        table: &UserIndexTable,
        index: u32,
        (shape, block): (Shape, NonNull<QueueState>),
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
        // SAFETY: blocks live as long as the table.
        let state = unsafe { self.block.as_ref() };
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
        let dead = Dying { index, shape: self.shape, block: self.block, drains, load, consumed };
        lock(&self.table.0.control).dying.push(dead);
    }
}

/// A poller's view of the table, which it keeps alive: a pointer and a length. It may be out of
/// date, then it lacks entries.
#[derive(Debug)]
pub(crate) struct TableView {
    table: UserIndexTable,
    entries: *const AtomicPtr<QueueState>,
    len: usize,
}

// SAFETY: it points at atomics that live as long as the table, which is in it.
unsafe impl Send for TableView {}

impl TableView {
    pub(crate) fn new(table: &UserIndexTable) -> Self {
        let current = table.current();
        Self { entries: current.as_ptr(), len: current.len(), table: table.clone() }
    }

    pub(crate) fn table(&self) -> &UserIndexTable {
        &self.table
    }

    /// Follows the table, which may have grown.
    pub(crate) fn refresh(&mut self) {
        let current = self.table.current();
        (self.entries, self.len) = (current.as_ptr(), current.len());
    }

    /// The block that an index leads to, open or not; `None` if the view does not have the index.
    #[inline(always)]
    pub(crate) fn block(&self, index: u32) -> Option<&QueueState> {
        let index = index as usize;
        if index >= self.len {
            return None;
        }
        // SAFETY: `index` is below the length of a table of `table`, which keeps it and the blocks
        // that it leads to. The compiler is told that there is one, so that it does not look.
        unsafe {
            let block = (*self.entries.add(index)).load(Ordering::Acquire);
            core::hint::assert_unchecked(!block.is_null());
            Some(&*block)
        }
    }
}
