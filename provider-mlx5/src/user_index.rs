//! The user index table: from the index in a CQE to the queue it belongs to.
//!
//! The program chooses a 24-bit user index for each QP and XRC SRQ, and the device writes it into
//! every CQE (CQE version 1, `MLX5_CQE_VERSION_V1`). Here it is the index of a flat table that
//! grows by doubling, so finding a queue is one load.
//!
//! A closed queue may still have CQEs in its CQs. libmlx5 takes the locks of both CQs and removes
//! them. This library marks the queue's block as closed, and the poller drops the CQEs when it
//! reaches them. The index and the block are reused once each CQ of the queue has been polled past
//! the CQEs that it held at that time. A QP that is reset keeps its index and gets another block at
//! once; the poller recognises CQEs from before the reset by their position in the CQ. Blocks are
//! never freed while the table exists. So every index leads to a valid block, also for a poller
//! that has just looked one up, and for an index that the device got wrong.

#![allow(unsafe_code)]

mod handle;

use core::array;
use core::cell::Cell;
use core::mem::offset_of;
// Blocks use `std`'s `Arc` under loom too: loom's models need not track references to them.
use std::sync::Arc as Shared;

use crate::completion_queue::{Completion, CqMonitor, CqeView};
use crate::format::Cqe;
use crate::queue_state::{PolledReceives, PolledSends, QueueState, Shape, Side};
use crate::sync::{Arc, AtomicBool, AtomicPtr, Mutex, Ordering, lock, try_lock};
use handle::{Drains, Entry, Load, drained};
pub(crate) use handle::{RECEIVES, SENDS};

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
    /// The current table. Pollers read it without a lock.
    current: AtomicPtr<Table>,
    /// This process is a forked child of the one that made the table. Another thread of the parent
    /// may have held any of the locks, which then stays locked here.
    inherited: AtomicBool,
}

type Table = Box<[AtomicPtr<QueueState>]>;

impl Default for UserIndexTable {
    fn default() -> Self {
        let mut control = Control::new();
        let current = AtomicPtr::new(control.grow());
        let (control, inherited) = (Mutex::new(control), AtomicBool::new(false));
        Self(Arc::new(Inner { control, current, inherited }))
    }
}

#[derive(Debug)]
struct Control {
    /// All tables so far, the current one last. Old tables are kept, because pollers may still use
    /// them. Boxed, because `current` points at a table, that is at an address and a length.
    #[allow(clippy::vec_box, reason = "they are pointed at")]
    tables: Vec<Box<Table>>,
    /// All blocks, used and idle.
    blocks: Vec<Shared<QueueState>>,
    /// Blocks that no queue uses.
    idle: Vec<(Shape, Shared<QueueState>)>,
    /// A closed block: the entries of unused indices point to it.
    unused: Shared<QueueState>,
    free_indices: Vec<u32>,
    next_index: u32,
    dying: Vec<Dying>,
}

#[derive(Debug)]
struct Dying {
    /// `None` if the queue was reset and its new block has taken the index over.
    index: Option<u32>,
    shape: Shape,
    block: Shared<QueueState>,
    drains: Drains,
    /// The queue's completions that may still be in its CQs.
    load: Arc<Mutex<Load>>,
    /// The load of the SRQ that the queue consumed, and the CQs to which those receives completed.
    consumed: Option<(Arc<Mutex<Load>>, Vec<CqMonitor>)>,
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
    /// The SRQ is registered in another table, which may be freed before this one.
    #[error("the shared receive queue is registered in another table, of another context")]
    OtherTable,
}

/// A queue's entry in the table. Only a queue with an entry can complete requests.
///
/// Clones name the same entry. The entry closes with [`QueueHandle::close`] or with the last clone.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    entry: Arc<Entry>,
    /// The block of `entry`, so that reading it costs no second pointer.
    block: Shared<QueueState>,
}

impl QueueHandle {
    fn new(entry: Entry) -> Self {
        let block = entry.block.clone();
        Self { entry: Arc::new(entry), block }
    }

    /// The shared block.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        &self.block
    }

    /// Makes the request at this index outstanding on both sides. For the inspector, which decodes
    /// completions and has no queues.
    ///
    /// # Safety
    /// The handle has no queues.
    #[doc(hidden)]
    pub unsafe fn expect(&self, index: u16) {
        self.state().expect(index);
    }
}

impl UserIndexTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a queue a user index and a block.
    ///
    /// `cqs` are the CQs that the queue completes to: its sends to the first, its receives to the
    /// last. If `cqs` is empty, any CQ may report them. The CQs outlive the queue. `receives` is
    /// its SRQ if it has one, and `user_context` a value that its completions return.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(
        &self,
        shape: Shape,
        cqs: &[CqMonitor],
        receives: Option<&QueueHandle>,
        user_context: u64,
    ) -> Result<QueueHandle, RegisterError> {
        if receives.is_some_and(|srq| !srq.entry.is_in(self)) {
            return Err(RegisterError::OtherTable);
        }
        let mut control = lock(&self.0.control);
        control.reap();
        let (index, grown) = control.take_index()?;
        if let Some(grown) = grown {
            // Release: publishes the contents of the new table.
            self.0.current.store(grown, Ordering::Release);
        }
        let block = control.take_block(shape);
        drop(control);

        block.reset();
        lock(block.past()).clear();
        block.set_number(0);
        let identity = |cq: Option<&CqMonitor>| cq.map_or(0, CqMonitor::identity);
        let completes_to = [cqs.first(), cqs.last()].map(identity);
        block.start(Shared::as_ptr(&block).cast_mut(), index, user_context, completes_to);
        // SAFETY: both blocks are of this table, which keeps its blocks until it is dropped.
        unsafe { block.set_receives(&**receives.map_or(&block, |srq| &srq.entry.block)) };
        block.open();
        let entry = Entry::new(self, index, (shape, block.clone()), cqs, receives);
        lock(&self.0.control).set(index, &block);
        Ok(QueueHandle::new(entry))
    }

    /// Frees the indices and blocks of closed queues whose CQs have been drained. Does nothing if
    /// another thread holds the lock: a poller does not wait.
    pub(crate) fn reap(&self) {
        if let Some(mut control) = try_lock(&self.0.control) {
            control.reap();
        }
    }

    /// Called in a forked child, whose queues belong to the parent: posting fails with
    /// [`ForkedChild`](crate::request::PostError::ForkedChild) the next time that it checks the
    /// state, and closing a handle does nothing. Takes no lock and allocates nothing, so it may be
    /// called before `fork` returns.
    pub fn disown(&self) {
        self.0.inherited.store(true, Ordering::Relaxed);
        for entry in self.current() {
            // SAFETY: a block, all of which live as long as the table.
            unsafe { &*entry.load(Ordering::Acquire) }.disown();
        }
    }

    /// Opens a QP that was reset, if no CQ holds CQEs from before the reset any more. `consumed` is
    /// the counter of the CQE of `cq` that is being polled. Returns whether that CQE is from after
    /// the reset.
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

    /// Whether the CQE at counter `at` of `cq` belongs to a closed queue, or is from before the
    /// reset of its queue.
    pub(crate) fn is_over(&self, state: &QueueState, cq: &CqMonitor, at: u32) -> bool {
        if state.is_open() {
            return false;
        }
        let past = lock(state.past());
        past.is_empty() || past.iter().any(|past| past.is_left(cq, at))
    }

    /// Whether it is the parent's ([`disown`](Self::disown)).
    fn is_inherited(&self) -> bool {
        self.0.inherited.load(Ordering::Relaxed)
    }

    /// The current table.
    fn current(&self) -> &Table {
        // SAFETY: `current` points to a table of `control`, whose tables live as long as `self`.
        unsafe { &*self.0.current.load(Ordering::Acquire) }
    }
}

impl Control {
    fn new() -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let unused = QueueState::new(shape);
        // SAFETY: the block is its own receive block, so it lives long enough.
        unsafe { unused.set_receives(&*unused) };
        Self {
            tables: Vec::new(),
            blocks: Vec::new(),
            idle: Vec::new(),
            unused,
            free_indices: Vec::new(),
            next_index: 0,
            dying: Vec::new(),
        }
    }

    /// Takes an unused index. Also returns the new table, if the old one was too small for it.
    fn take_index(&mut self) -> Result<(u32, Option<*mut Table>), RegisterError> {
        if let Some(index) = self.free_indices.pop() {
            return Ok((index, None));
        }
        // Index 0 is never used, because a CQE that was never written has index 0.
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
            None => Shared::as_ptr(&self.unused).cast_mut(),
        };
        let table: Table = (0..len).map(|i| AtomicPtr::new(value(i))).collect();
        self.tables.push(Box::new(table));
        self.tables.last_mut().map_or(core::ptr::null_mut(), |table| &raw mut **table)
    }

    fn take_block(&mut self, shape: Shape) -> Shared<QueueState> {
        if let Some(at) = self.idle.iter().position(|(idle, _)| *idle == shape) {
            return self.idle.swap_remove(at).1;
        }
        let block = QueueState::new(shape);
        self.blocks.push(block.clone());
        block
    }

    /// Writes an entry in every table that is large enough, so that pollers with an old table find
    /// the current block as well.
    fn set(&mut self, index: u32, block: &Shared<QueueState>) {
        for table in &self.tables {
            if let Some(entry) = table.get(index as usize) {
                entry.store(Shared::as_ptr(block).cast_mut(), Ordering::Release);
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
                self.set(index, &self.unused.clone());
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

/// A poller's pointer into the current table, which it keeps alive. If the table has grown since,
/// the newest indices are missing.
#[derive(Debug)]
struct TableView {
    table: UserIndexTable,
    entries: *const AtomicPtr<QueueState>,
    len: usize,
}

// SAFETY: `entries` points at atomics that live as long as the table, and `table` keeps it alive.
unsafe impl Send for TableView {}

impl TableView {
    pub(crate) fn new(table: &UserIndexTable) -> Self {
        let current = table.current();
        Self { entries: current.as_ptr(), len: current.len(), table: table.clone() }
    }

    pub(crate) fn table(&self) -> &UserIndexTable {
        &self.table
    }

    /// Switches to the current table, which may be larger.
    pub(crate) fn refresh(&mut self) {
        let current = self.table.current();
        (self.entries, self.len) = (current.as_ptr(), current.len());
    }

    /// The block of an index, open or not; `None` if the index is beyond the view's length.
    #[inline(always)]
    pub(crate) fn block(&self, index: u32) -> Option<&QueueState> {
        let index = index as usize;
        if index >= self.len {
            return None;
        }
        // SAFETY: `index` is below the length of one of `table`'s tables, which keeps its blocks
        // alive. The entry is never null, and the compiler may rely on that.
        unsafe {
            let block = (*self.entries.add(index)).load(Ordering::Acquire);
            core::hint::assert_unchecked(!block.is_null());
            Some(&*block)
        }
    }
}

/// One cache slot for each low byte of a user index.
const PLACES: usize = 1 << 8;
const USER_INDEX: usize = offset_of!(Cqe, srqn_user_index);

/// The block in each slot, or [`KnownQueues::none`].
type Places = [Cell<*const QueueState>; PLACES];

/// The queues that a CQ polls: the table, and a cache of the queues whose sends or receives
/// complete to this CQ.
///
/// A cached queue is found with fewer comparisons: its key says at once whether the CQE belongs to
/// it and whether the queue is open. Up to 256 queues with consecutive user indices have slots of
/// their own.
///
/// A queue is only ever in the slot of its own index, and the key of a closed queue has another low
/// byte. So the key of a closed queue equals the index of no CQE that leads to its slot.
#[derive(Debug)]
pub(crate) struct KnownQueues {
    view: TableView,
    /// [`CqMonitor::identity`].
    identity: usize,
    sends: Places,
    receives: Places,
    /// The block in an empty slot. Each CQ has its own, because its poller may write to it. It has
    /// no outstanding requests, so it completes nothing even if a broken device writes its key into
    /// a CQE.
    none: Shared<QueueState>,
}

// SAFETY: the slots point to `none`, and to blocks that live as long as the table, which `view`
// keeps alive. Blocks are `Sync`.
unsafe impl Send for KnownQueues {}

impl KnownQueues {
    /// The queues of `table` that complete to the CQ with this identity.
    pub(crate) fn new(table: &UserIndexTable, identity: usize) -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let none = QueueState::new(shape);
        let places = || array::from_fn(|_| Cell::new(Shared::as_ptr(&none)));
        let view = TableView::new(table);
        Self { view, identity, sends: places(), receives: places(), none }
    }

    /// Empties the cache. Called before the CQ reports that it was drained, because from then on
    /// the blocks of closed queues may be reused for queues that complete to other CQs.
    pub(crate) fn clear(&self) {
        let places = self.sends.iter().chain(&self.receives);
        places.for_each(|place| place.set(Shared::as_ptr(&self.none)));
    }

    /// The table.
    pub(crate) fn table(&self) -> &UserIndexTable {
        self.view.table()
    }

    /// Makes [`KnownQueues::any`] find all queues that are registered by now.
    pub(crate) fn refresh(&mut self) {
        self.view.refresh();
    }

    /// The queue with this user index, open or not.
    pub(crate) fn any(&self, index: u32) -> Option<&QueueState> {
        self.view.block(index)
    }

    /// The identity of the CQ.
    pub(crate) fn identity(&self) -> usize {
        self.identity
    }

    /// The open queue of a send CQE that software owns, if its sends complete to this CQ.
    #[inline(always)]
    pub(crate) fn sends_of(&self, cqe: CqeView) -> Option<PolledSends<'_>> {
        let queue = self.find(cqe, &self.sends, QueueState::send_side)?;
        // SAFETY: `find` checked the side; this thread is the CQ's poller, because only the CQ has
        // this value, which is not `Sync`.
        Some(unsafe { PolledSends::new(queue) })
    }

    /// The open queue of a receive CQE that software owns, if its receives complete to this CQ.
    #[inline(always)]
    pub(crate) fn receives_of(&self, cqe: CqeView) -> Option<PolledReceives<'_>> {
        let queue = self.find(cqe, &self.receives, QueueState::recv_side)?;
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledReceives::new(queue) })
    }

    /// [`KnownQueues::sends_of`], only from the cache.
    #[inline(always)]
    pub(crate) fn known_sends_of(&self, cqe: CqeView) -> Option<PolledSends<'_>> {
        let (queue, is_known) = self.in_place(cqe, &self.sends, QueueState::send_side);
        if !is_known {
            return None;
        }
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledSends::new(queue) })
    }

    /// [`KnownQueues::receives_of`], only from the cache.
    #[inline(always)]
    pub(crate) fn known_receives_of(&self, cqe: CqeView) -> Option<PolledReceives<'_>> {
        let (queue, is_known) = self.in_place(cqe, &self.receives, QueueState::recv_side);
        if !is_known {
            return None;
        }
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledReceives::new(queue) })
    }

    /// The block in the slot of a CQE's user index, and whether it is the queue that the CQE names.
    #[inline(always)]
    fn in_place<'q>(
        &'q self,
        cqe: CqeView,
        known: &'q Places,
        side: fn(&QueueState) -> &Side,
    ) -> (&'q QueueState, bool) {
        crate::barrier::from_device();
        let place = &known[usize::from(cqe.u8(USER_INDEX + 3))];
        // SAFETY: slots point to `none`, or to a block of the table that `view` keeps alive.
        let queue = unsafe { &*place.get() };
        // Loads the key first, so that the load of the index becomes an operand of the comparison.
        let key = side(queue).key();
        (queue, key == cqe.u32_in_memory(USER_INDEX))
    }

    /// The open queue with the user index of a CQE, if this CQ polls that `side` of it; otherwise
    /// `none`. The byte above the index counts the segments of large receive offload. If it is not
    /// 0, the slow path finds the queue.
    #[inline(always)]
    fn find<'q>(
        &'q self,
        cqe: CqeView,
        known: &'q Places,
        side: fn(&QueueState) -> &Side,
    ) -> Option<&'q QueueState> {
        let (queue, is_known) = self.in_place(cqe, known, side);
        if is_known {
            return Some(queue);
        }
        crate::hint::cold_path();
        let index = cqe.u32(USER_INDEX);
        let queue = self.view.block(index)?;
        if !side(queue).is_polled_by(self.identity) {
            return None;
        }
        known[usize::from(index as u8)].set(queue);
        Some(queue)
    }
}

impl Completion<'_> {
    /// What the QP's posting and polling sides share.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        // SAFETY: the side belongs to a registered queue, and is part of that queue's block.
        unsafe { &*self.side().block() }
    }

    #[inline(always)]
    pub(crate) fn side(&self) -> &Side {
        // SAFETY: blocks live as long as the user index table. The CQ keeps the table alive, and
        // the completion borrows the CQ.
        unsafe { &*self.raw_side() }
    }
}
