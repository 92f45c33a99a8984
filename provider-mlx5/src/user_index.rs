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

mod handle;

use core::array;
use core::cell::Cell;
use core::mem::offset_of;
use core::ptr::NonNull;
// Of blocks, which loom's models need not watch.
use std::sync::Arc as Shared;

use crate::completion_queue::{Completion, CqMonitor, CqeView};
use crate::format::Cqe;
use crate::queue_state::{PolledReceives, PolledSends, QueueState, Shape, Side};
use crate::sync::{Arc, AtomicPtr, Mutex, Ordering, lock, try_lock};
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
    /// Every block there is.
    blocks: Vec<Shared<QueueState>>,
    /// Blocks that no queue uses.
    idle: Vec<(Shape, Shared<QueueState>)>,
    /// A closed block, to which the indices of no queue lead.
    unused: Shared<QueueState>,
    free_indices: Vec<u32>,
    next_index: u32,
    dying: Vec<Dying>,
}

#[derive(Debug)]
struct Dying {
    /// `None` if another block has it.
    index: Option<u32>,
    shape: Shape,
    block: Shared<QueueState>,
    drains: Drains,
    /// Completions that were not polled yet need their places.
    load: Arc<Mutex<Load>>,
    /// That of the SRQ whose receives the queue consumed, and the CQs where it did.
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
}

/// A queue's entry in the table, and so its right to complete anything.
///
/// Clones name the same entry. The entry closes with [`QueueHandle::close`] or with the last clone.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    entry: Arc<Entry>,
    /// The entry's, without the step from one to the other.
    block: NonNull<QueueState>,
}

// SAFETY: the block is `Sync`, and `entry` keeps it.
unsafe impl Send for QueueHandle {}
// SAFETY: as above.
unsafe impl Sync for QueueHandle {}

impl QueueHandle {
    fn new(entry: Entry) -> Self {
        let block = NonNull::from(&*entry.block);
        Self { entry: Arc::new(entry), block }
    }

    /// The shared block.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        // SAFETY: `entry` keeps the block.
        unsafe { self.block.as_ref() }
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
}

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

        block.reset();
        lock(block.past()).clear();
        block.set_number(0);
        let identity = |cq: Option<&CqMonitor>| cq.map_or(0, CqMonitor::identity);
        let completes_to = [cqs.first(), cqs.last()].map(identity);
        block.start(Shared::as_ptr(&block).cast_mut(), index, user_context, completes_to);
        // SAFETY: all blocks live as long as the table.
        unsafe { block.set_receives(&**receives.map_or(&block, |srq| &srq.entry.block)) };
        block.open();
        let entry = Entry::new(self, index, (shape, block.clone()), cqs, receives);
        lock(&self.0.control).set(index, &block);
        Ok(QueueHandle::new(entry))
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
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let unused = QueueState::new(shape);
        // SAFETY: the block's own.
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

    /// Writes an entry in every table that has it, so that a poller with an old one meets no stale
    /// pointer.
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

/// A poller's view of the table, which it keeps alive: a pointer and a length. It may be out of
/// date, then it lacks entries.
#[derive(Debug)]
struct TableView {
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

/// One place for each low byte of a user index.
const PLACES: usize = 1 << 8;
const USER_INDEX: usize = offset_of!(Cqe, srqn_user_index);

/// Where a queue is, or [`KnownQueues::none`].
type Places = [Cell<*const QueueState>; PLACES];

/// The queues that a CQ polls: the table, and a cache of those of its queues whose sends, or whose
/// receives, this CQ's poller found to be its own.
///
/// A queue in the cache needs fewer comparisons than one that is looked up: its key tells at once
/// whether the CQE is its own, and whether the queue is open. Up to 256 queues that were registered
/// one after the other have places of their own.
///
/// A queue is in the place of its own index alone, and closed queues have a key with another low
/// byte. So no CQE whose index leads to a place equals the key of a closed queue there.
#[derive(Debug)]
pub(crate) struct KnownQueues {
    view: TableView,
    /// [`CqMonitor::identity`].
    identity: usize,
    sends: Places,
    receives: Places,
    /// What is in a place without a queue. This CQ's own, since its poller may write to it: its key
    /// is no queue's, and a device can say it all the same. It has no outstanding requests.
    none: Shared<QueueState>,
}

// SAFETY: the places lead to `none`, and to blocks that live as long as the table, which `view`
// keeps. Blocks are `Sync`.
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

    /// Empties the cache. To be called before the CQ says that it was drained: then blocks of
    /// closed queues may become those of queues that complete to other CQs.
    pub(crate) fn clear(&self) {
        let places = self.sends.iter().chain(&self.receives);
        places.for_each(|place| place.set(Shared::as_ptr(&self.none)));
    }

    /// The table.
    pub(crate) fn table(&self) -> &UserIndexTable {
        self.view.table()
    }

    /// Has [`KnownQueues::any`] know all queues that are registered by now.
    pub(crate) fn refresh(&mut self) {
        self.view.refresh();
    }

    /// The queue that a user index leads to, open or not.
    pub(crate) fn any(&self, index: u32) -> Option<&QueueState> {
        self.view.block(index)
    }

    /// The identity of the CQ.
    pub(crate) fn identity(&self) -> usize {
        self.identity
    }

    /// The open queue that a CQE, which is ours, is of, if this CQ polls its sends.
    #[inline(always)]
    pub(crate) fn sends_of(&self, cqe: CqeView) -> Option<PolledSends<'_>> {
        let queue = self.find(cqe, &self.sends, QueueState::send_side)?;
        // SAFETY: as `find` says; the CQ's poller is this thread, since only its CQ has this value,
        // which is not `Sync`.
        Some(unsafe { PolledSends::new(queue) })
    }

    /// The open queue that a CQE, which is ours, is of, if this CQ polls its receives.
    #[inline(always)]
    pub(crate) fn receives_of(&self, cqe: CqeView) -> Option<PolledReceives<'_>> {
        let queue = self.find(cqe, &self.receives, QueueState::recv_side)?;
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledReceives::new(queue) })
    }

    /// [`KnownQueues::sends_of`] of a queue that is in its place.
    #[inline(always)]
    pub(crate) fn known_sends_of(&self, cqe: CqeView) -> Option<PolledSends<'_>> {
        let (queue, is_known) = self.in_place(cqe, &self.sends, QueueState::send_side);
        if !is_known {
            return None;
        }
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledSends::new(queue) })
    }

    /// [`KnownQueues::receives_of`] of a queue that is in its place.
    #[inline(always)]
    pub(crate) fn known_receives_of(&self, cqe: CqeView) -> Option<PolledReceives<'_>> {
        let (queue, is_known) = self.in_place(cqe, &self.receives, QueueState::recv_side);
        if !is_known {
            return None;
        }
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledReceives::new(queue) })
    }

    /// What is in the place of the queue that a CQE is of, and whether it is that queue.
    #[inline(always)]
    fn in_place<'q>(
        &'q self,
        cqe: CqeView,
        known: &'q Places,
        side: fn(&QueueState) -> &Side,
    ) -> (&'q QueueState, bool) {
        crate::barrier::from_device();
        let place = &known[usize::from(cqe.u8(USER_INDEX + 3))];
        // SAFETY: `none`, or a block of the table that `view` keeps.
        let queue = unsafe { &*place.get() };
        // The key first: so the load of the index is an operand of the comparison.
        let key = side(queue).key();
        (queue, key == cqe.u32_in_memory(USER_INDEX))
    }

    /// The open queue that the user index of a CQE leads to, if this CQ polls that `side` of it; or
    /// `none`. The byte above the index counts segments of large receive offload; CQEs in which it
    /// is not 0 find their queue on the slow path.
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
        // SAFETY: the side is that of a registered queue, whose block lives as long as it does.
        unsafe { &*self.side().block() }
    }

    #[inline(always)]
    pub(crate) fn side(&self) -> &Side {
        // SAFETY: blocks live as long as the user index table, which the CQ keeps alive, and the CQ
        // is borrowed.
        unsafe { &*self.raw_side() }
    }
}
