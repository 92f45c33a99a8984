//! The user index table: finds the queue of a CQE by the index in it.
//!
//! The program chooses a 24-bit user index for each QP and XRC SRQ, and the device writes it into
//! every CQE (CQE version 1, `MLX5_CQE_VERSION_V1`). The lower 16 bits, as the CQE has them in
//! memory, are a place in the table, so finding a queue is one load. Indices are assigned so that
//! the first places are used first.
//!
//! Two queues share a place only if more than 65,535 are registered. Such a place is empty, and the
//! slow path finds each queue in a second table, of only the indices with its upper 8 bits.
//!
//! A closed queue may still have CQEs in its CQs. libmlx5 takes the locks of both CQs and removes
//! them. This library marks the queue's block as closed, and the poller drops the CQEs when it
//! reaches them. The index and the block are reused once each CQ of the queue has been polled past
//! the CQEs that it held at that time. A QP that is reset keeps its index and gets another block at
//! once; the poller recognises CQEs from before the reset by their position in the CQ. Blocks are
//! never freed while the table exists. So every index leads to a valid block, even a wrong index
//! from the device, and a block stays valid for a poller that has just looked it up.

mod handle;

use core::array;
// Blocks use `std`'s `Arc` under loom too: loom's models need not track references to them.
use std::sync::{Arc as Shared, OnceLock};

use crate::completion_queue::CqMonitor;
use crate::mapped::InChild;
pub use crate::mapped::WasReset;
use crate::queue_state::{BlockTable, PLACES, QueueState, Shape};
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock, lock_unless, try_lock};
use handle::{Drains, Entry, Load, drained};
pub(crate) use handle::{RECEIVES, SENDS};

/// Parts of the user indices: one for each value of their upper 8 bits.
const PARTS: usize = if cfg!(all(test, loom)) { 1 } else { 1 << 8 };

/// Most blocks or entries of a queue. The device counts them in 16 bits.
const MOST_ENTRIES: u32 = 1 << 16;

/// User indices have 24 bits; the highest means "none" to the kernel (`MLX5_IB_DEFAULT_UIDX`).
const LAST_NUMBER: u32 = (PLACES * PARTS) as u32 - 2;

/// The queues of one device context, by user index. Clones are handles to the same table.
#[derive(Clone, Debug)]
pub struct UserIndexTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    control: Mutex<Control>,
    tables: Tables,
    /// This process is a forked child of the one that created the table. If another thread of the
    /// parent held a lock, the lock stays locked here.
    inherited: AtomicBool,
}

/// The blocks by user index, which pollers read without a lock.
#[derive(Debug)]
struct Tables {
    /// The block at each place, if only one index leads there; otherwise `unused`.
    direct: BlockTable,
    /// For each value of an index's upper 8 bits, the blocks of only those indices. Such tables
    /// exist only once two indices may share a place, and only for values that were assigned.
    parts: [OnceLock<BlockTable>; PARTS],
    /// A closed block.
    unused: Shared<QueueState>,
    /// All indices with a number below this have been assigned at least once.
    next_number: AtomicU32,
}

impl Default for UserIndexTable {
    fn default() -> Self {
        let (control, inherited) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Inner { control, tables: Tables::new(), inherited }))
    }
}

/// The `number`th index to be assigned. The places of consecutive numbers are in order.
fn index_of(number: u32) -> u32 {
    number & !0xffff | u32::from(u16::from_be(number as u16))
}

/// The place of a user index: its lower 16 bits as they are in a CQE.
fn place_of(index: u32) -> usize {
    usize::from((index as u16).to_be()) % PLACES
}

#[derive(Debug, Default)]
struct Control {
    /// Blocks that no queue uses.
    idle: Vec<(Shape, Shared<QueueState>)>,
    free_indices: Vec<u32>,
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
        "no user index left: 2^24 - 512 queues are in use, or closed ones wait for their CQs to be \
         polled"
    )]
    NoIndexLeft,
    /// The shape has more entries than the device counts.
    #[error("a queue has at most 65536 blocks of sends and 65536 receives")]
    TooLarge,
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
    /// The block of `entry`, kept here to save following a second pointer.
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
}

impl UserIndexTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a queue a user index and a block.
    ///
    /// `cqs` are the CQs that the queue completes to: its sends to the first, its receives to the
    /// last. If `cqs` is empty, none of its own requests completes; receives of an SRQ complete to
    /// the CQs of its QPs. The CQs outlive the queue. `receives` is its SRQ if it has one, and
    /// `user_context` a value that its completions return.
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
        if shape.send_wqebbs.max(shape.recv_wqes) > MOST_ENTRIES {
            return Err(RegisterError::TooLarge);
        }
        let tables = &self.0.tables;
        let mut control = lock(&self.0.control);
        control.reap(tables);
        let index = control.take_index(tables)?;
        let block = control.take_block(shape);
        drop(control);

        block.reset();
        lock(block.past()).clear();
        block.set_number(0);
        let identity = |cq: Option<&CqMonitor>| cq.map_or(0, CqMonitor::identity);
        let completes_to = [cqs.first(), cqs.last()].map(identity);
        block.start(index, user_context, completes_to);
        block.set_receives(receives.map(|srq| &srq.entry.block));
        block.open();
        let entry = Entry::new(self, index, (shape, block.clone()), cqs, receives);
        self.set(index, &block);
        Ok(QueueHandle::new(entry))
    }

    /// Frees the indices and blocks of closed queues whose CQs have been drained. Does nothing if
    /// another thread holds the lock, because a poller does not wait, and in a forked child.
    pub(crate) fn reap(&self) {
        if self.is_inherited() {
            return;
        }
        if let Some(mut control) = try_lock(&self.0.control) {
            control.reap(&self.0.tables);
        }
    }

    /// Makes CQEs with this user index lead to `block`.
    fn set(&self, index: u32, block: &Shared<QueueState>) {
        let _control = lock(&self.0.control);
        self.0.tables.set(index, block);
    }

    /// Called in a forked child, whose queues belong to the parent. From now on, posting fails with
    /// [`ForkedChild`](crate::request::PostError::ForkedChild) at its next check of the state,
    /// closing a handle does nothing, and a poll waits for no lock: it may drop completions of
    /// queues that were reset. Takes no lock and allocates nothing, so it may be called before
    /// `fork` returns.
    pub fn disown(&self, _: InChild) {
        self.0.inherited.store(true, Ordering::Relaxed);
        let tables = &self.0.tables;
        (1..tables.next_number.load(Ordering::Acquire))
            .for_each(|number| tables.block(index_of(number)).disown());
    }

    /// Opens a QP that was reset, if no CQ holds CQEs from before the reset any more. `consumed` is
    /// the counter of the CQE of `cq` that is being polled. Returns whether that CQE is from after
    /// the reset.
    pub(crate) fn has_begun_anew(&self, state: &QueueState, cq: &CqMonitor, consumed: u32) -> bool {
        let Some(mut past) = lock_unless(state.past(), self.is_inherited()) else { return false };
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
        let Some(past) = lock_unless(state.past(), self.is_inherited()) else { return true };
        past.is_empty() || past.iter().any(|past| past.is_left(cq, at))
    }

    /// The queue with this user index, open or not. If there is none, a closed block.
    pub(crate) fn block(&self, index: u32) -> &QueueState {
        self.0.tables.block(index)
    }

    /// The block at each place, if only one index leads there; otherwise a closed block.
    pub(crate) fn direct(&self) -> &BlockTable {
        &self.0.tables.direct
    }

    /// The block at each place, of only the indices with these upper 8 bits. `None` if no queues
    /// share a place, or no such index was given out. For a poller that has found no queue in
    /// [`UserIndexTable::direct`].
    #[inline(always)]
    pub(crate) fn part(&self, upper: u8) -> Option<&BlockTable> {
        self.0.tables.part(upper)
    }

    /// Whether it is the parent's ([`disown`](Self::disown)).
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.inherited.load(Ordering::Relaxed)
    }
}

impl Tables {
    fn new() -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let unused = QueueState::new(shape);
        unused.set_receives(None);
        // Number 0 is never given out, because a CQE that was never written has index 0. Nor is
        // another number of the first or the last place (`Control::take_index`).
        let next_number = AtomicU32::new(1);
        let parts = array::from_fn(|_| OnceLock::new());
        let direct = BlockTable::new(&unused);
        Self { direct, parts, unused, next_number }
    }

    /// The block of an index, open or not.
    fn block(&self, index: u32) -> &QueueState {
        let place = place_of(index);
        let found = self.direct.get(place);
        if found.user_index() == index {
            return found;
        }
        // Read after the place. If two indices share it, it was emptied after this was written.
        self.part((index >> 16) as u8).map_or(&self.unused, |part| part.get(place))
    }

    /// The table of the indices with these upper 8 bits.
    #[inline(always)]
    fn part(&self, upper: u8) -> Option<&BlockTable> {
        self.parts.get(usize::from(upper))?.get()
    }

    /// Makes a user index lead to `block`. Called with the lock of [`Inner::control`].
    fn set(&self, index: u32, block: &Shared<QueueState>) {
        let place = place_of(index);
        match self.part((index >> 16) as u8) {
            None => self.direct.set(place, block),
            Some(part) => {
                part.set(place, block);
                self.direct.set(place, &self.only_one_at(place));
            }
        }
    }

    /// The block at this place of the [`Tables::parts`], if only one of them has one there.
    fn only_one_at(&self, place: usize) -> Shared<QueueState> {
        let parts = self.parts.iter().filter_map(OnceLock::get);
        let blocks = parts.map(|part| part.shared(place));
        let mut used = blocks.filter(|block| !Shared::ptr_eq(block, &self.unused));
        match (used.next(), used.next()) {
            (Some(only), None) => only,
            _ => self.unused.clone(),
        }
    }

    /// Adds a table of the indices that have these upper 8 bits, which is not 0. With the first
    /// one, indices with upper bits 0 also get a table of their own.
    fn add_part(&self, part: usize) {
        self.parts[0].get_or_init(|| self.direct.copy());
        self.parts[part].get_or_init(|| BlockTable::new(&self.unused));
    }
}

impl Control {
    /// Takes an unused index.
    fn take_index(&mut self, tables: &Tables) -> Result<u32, RegisterError> {
        if let Some(index) = self.free_indices.pop() {
            return Ok(index);
        }
        let mut number = tables.next_number.load(Ordering::Relaxed);
        // Pollers compare the place only, and CQEs of queues without user index have 0 or 0xffffff.
        if number as usize % PLACES == PLACES - 1 {
            number += 1;
        }
        if number > LAST_NUMBER {
            return Err(RegisterError::NoIndexLeft);
        }
        if number as usize % PLACES == 0 {
            tables.add_part(number as usize / PLACES);
            number += 1;
        }
        tables.next_number.store(number + 1, Ordering::Release);
        Ok(index_of(number))
    }

    fn take_block(&mut self, shape: Shape) -> Shared<QueueState> {
        if let Some(at) = self.idle.iter().position(|(idle, _)| *idle == shape) {
            return self.idle.swap_remove(at).1;
        }
        QueueState::new(shape)
    }

    /// Frees the indices and blocks of closed queues whose CQs have been drained.
    fn reap(&mut self, tables: &Tables) {
        let (done, dying) = core::mem::take(&mut self.dying)
            .into_iter()
            .partition::<Vec<_>, _>(|dead| drained(&dead.drains));
        self.dying = dying;
        for dead in done {
            if let Some(index) = dead.index {
                tables.set(index, &tables.unused);
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
