//! The raw pointers of the state: from a CQE to its queue's block, from a block to the ids of its
//! requests and to the SRQ that it consumes, and in the tables of an SRQ's free list.

#![allow(unsafe_code)]

use core::mem::offset_of;
use core::ops::Deref;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::QueueState;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use super::side::base_of;
use super::side::{NONE_OUTSTANDING, Side};
use crate::completion_queue::{Completion, CqeView};
use crate::format::Cqe;
use crate::free_list::{ANY, CLOSED, FreeList, NO_INDEX, POSTED, WITH_LISTS};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, lock};
use crate::user_index::UserIndexTable;

// SAFETY: `entries` points into a box of the same block, which is never replaced; everything it
// points at is atomic.
unsafe impl Send for Side {}
// SAFETY: as above.
unsafe impl Sync for Side {}

/// A queue whose sends (if `SENDS`) or receives complete only to the CQ that the current thread
/// polls.
#[derive(Clone, Copy)]
pub(crate) struct Polled<'q, const SENDS: bool>(&'q QueueState);

pub(crate) type PolledSends<'q> = Polled<'q, true>;
pub(crate) type PolledReceives<'q> = Polled<'q, false>;

/// Receives that complete only to the CQ that the current thread polls.
pub(crate) enum Receives<'q> {
    /// The QP's own.
    Own(PolledReceives<'q>),
    /// Those of the SRQ that the QP consumes.
    Shared(&'q Side, &'q FreeList),
}

impl<'q, const SENDS: bool> Polled<'q, SENDS> {
    /// # Safety
    /// The side is [polled by](Side::is_polled_by) the CQ that this thread polls. The value is
    /// dropped before that poll returns.
    #[inline(always)]
    pub(crate) unsafe fn new(queue: &'q QueueState) -> Self {
        Self(queue)
    }

    #[inline(always)]
    pub(super) fn side(self) -> &'q Side {
        if SENDS { &self.0.sends } else { &self.0.receives }
    }

    /// [`Side::base`].
    #[inline(always)]
    pub(super) fn base(self) -> u32 {
        // SAFETY: while `cq` is set, both words are written only by the poller of that CQ, which is
        // this thread. While `cq` is 0, `set_receives` and `reset` may write them. `cq` becomes 0
        // when the queue is closed, and no slow path completes requests of a closed queue. The
        // block is `reset` when another queue takes it. That happens after the CQ was drained, and
        // not during the poll that read `cq`. `expect` is called while no thread polls.
        unsafe { own_word(&self.side().base) }
    }

    /// [`Side::last`].
    #[inline(always)]
    pub(super) fn last(self) -> u32 {
        // SAFETY: as for `base`.
        unsafe { own_word(&self.side().last) }
    }
}

/// [`base_of`](super::side::base_of) a number below 2^16, in one instruction; the compiler takes
/// three.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn fast_base_of(end: u32) -> u32 {
    let base;
    // SAFETY: only multiplies.
    unsafe {
        core::arch::asm!(
            "imul {0:e}, {1:e}, 0xffff",
            out(reg) base,
            in(reg) end,
            options(pure, nomem, nostack),
        );
    }
    base
}

#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn fast_base_of(end: u32) -> u32 {
    base_of(end as u16)
}

impl<const SENDS: bool> Deref for Polled<'_, SENDS> {
    type Target = QueueState;

    #[inline(always)]
    fn deref(&self) -> &QueueState {
        self.0
    }
}

/// A word that no other thread writes. A plain load, because compilers do not fold atomic loads
/// into other instructions.
///
/// # Safety
///
/// No other thread writes the word during the call.
#[inline(always)]
unsafe fn own_word(word: &AtomicU32) -> u32 {
    #[cfg(all(test, loom))]
    return word.load(Ordering::Relaxed);
    #[cfg(not(all(test, loom)))]
    // SAFETY: the pointer is valid and aligned; other threads only read the word, so there is no
    // data race.
    return unsafe { *word.as_ptr() };
}

impl Side {
    /// The work request id of WQE `index`.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> &AtomicU64 {
        // SAFETY: `entries` points to a boxed slice of `mask + 1` entries in the same block.
        unsafe { &*self.entries.add((index & self.mask) as usize) }
    }
}

impl QueueState {
    /// The block whose receives this queue consumes: its own, or its SRQ's.
    #[inline(always)]
    pub(crate) fn receives(&self) -> &QueueState {
        // SAFETY: null, or a block of `consumed`, from which none is removed.
        unsafe { self.fixed.receives.load(Ordering::Relaxed).as_ref() }.unwrap_or(self)
    }

    /// Makes the queue consume the receives of `srq`, if there is one; the receive side then has no
    /// outstanding requests of its own. Called before the queue is opened.
    pub(crate) fn set_receives(&self, srq: Option<&Arc<QueueState>>) {
        let block = srq.map_or(core::ptr::null(), Arc::as_ptr);
        let mut consumed = lock(&self.fixed.consumed);
        if !consumed.iter().any(|known| Arc::as_ptr(known) == block) {
            consumed.extend(srq.cloned());
        }
        drop(consumed);
        self.fixed.receives.store(block.cast_mut(), Ordering::Relaxed);
        let list = self.receives().free_list();
        if list.is_some() {
            self.receives.last.store(NONE_OUTSTANDING, Ordering::Relaxed);
        }
        let list = list.map_or(core::ptr::null(), core::ptr::from_ref);
        self.receives.shared.store(list.cast_mut(), Ordering::Relaxed);
    }

    /// Takes over the receives of `before`, the QP's block before its reset: its SRQ, or else this
    /// block's own.
    pub(super) fn follow_receives(&self, before: &Self) {
        let receives = core::ptr::from_ref(before.receives());
        let is_it = |srq: &&Arc<Self>| Arc::as_ptr(srq) == receives;
        let srq = lock(&before.fixed.consumed).iter().find(is_it).cloned();
        self.set_receives(srq.as_ref());
    }

    /// Makes the request that starts at this index outstanding, on both sides. For the inspector,
    /// which decodes completions and has no queues.
    ///
    /// # Safety
    /// The block's handle has no queues, and no other thread polls its CQs.
    #[doc(hidden)]
    pub unsafe fn expect(&self, index: u16) {
        self.sends.expect(index);
        self.receives.expect(index);
        self.publish_sends(u32::from(index) + 1);
        self.publish_receives(u32::from(index) + 1);
    }

    /// Sets a value for the queue's sends and one for its receives, beside the user's context. It
    /// is on a cache line that the poller writes in any case, so reading it from a completion
    /// ([`Completion::side_context`](crate::completion_queue::Completion::side_context)) touches no
    /// other memory.
    ///
    /// # Safety
    /// Only the layer that identifies its requests by these values may call this.
    pub unsafe fn set_side_contexts(&self, sends: u64, receives: u64) {
        self.sends.set_context(sends);
        self.receives.set_context(receives);
    }
}

impl Completion<'_> {
    /// The state that the QP's posting and polling sides share.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        // SAFETY: the side belongs to a registered queue, and is part of that queue's block.
        unsafe { &*self.side().block() }
    }

    #[inline(always)]
    pub(crate) fn side(&self) -> &Side {
        // SAFETY: the block was in a `BlockTable` of the user index table. The CQ keeps the table
        // alive, and the completion borrows the CQ.
        unsafe { &*self.raw_side() }
    }
}

/// Places of a table, which take 512 KiB. The model checker gets few, because it tracks each of
/// them.
pub(crate) const PLACES: usize = if cfg!(all(test, loom)) { 1 << 6 } else { 1 << 16 };

/// Blocks by a part of their user index. Keeps all blocks that were ever in it, because a poller
/// may still use one that has just been replaced.
#[derive(Debug)]
pub(crate) struct BlockTable {
    places: Box<[AtomicPtr<QueueState>]>,
    /// The block that all places had first.
    first: Arc<QueueState>,
    /// The others, by their addresses.
    kept: Mutex<BTreeMap<usize, Arc<QueueState>>>,
}

impl BlockTable {
    /// A table with `block` in all places.
    pub(crate) fn new(block: &Arc<QueueState>) -> Self {
        let address = Arc::as_ptr(block);
        let places = (0..PLACES).map(|_| AtomicPtr::new(address.cast_mut())).collect();
        Self { places, first: block.clone(), kept: Mutex::default() }
    }

    /// A table with the same blocks.
    pub(crate) fn copy(&self) -> Self {
        let copied = |place: &AtomicPtr<_>| AtomicPtr::new(place.load(Ordering::Acquire));
        let places = self.places.iter().map(copied).collect();
        // After the places: a block is kept before it is in one.
        let kept = Mutex::new(lock(&self.kept).clone());
        Self { places, first: self.first.clone(), kept }
    }

    /// The block at a place.
    pub(crate) fn get(&self, place: usize) -> &QueueState {
        // SAFETY: `first`, or a block of `kept`, from which none is removed.
        unsafe { &*self.places[place].load(Ordering::Acquire) }
    }

    /// The block at a place, for an owner of it.
    pub(crate) fn shared(&self, place: usize) -> Arc<QueueState> {
        let address = core::ptr::from_ref(self.get(place)).addr();
        lock(&self.kept).get(&address).unwrap_or(&self.first).clone()
    }

    pub(crate) fn set(&self, place: usize, block: &Arc<QueueState>) {
        let address = Arc::as_ptr(block);
        lock(&self.kept).entry(address.addr()).or_insert_with(|| block.clone());
        self.places[place].store(address.cast_mut(), Ordering::Release);
    }
}

/// The queues that a CQ polls.
#[derive(Debug)]
pub(crate) struct PolledQueues {
    table: UserIndexTable,
    places: Places,
    /// [`CqMonitor::identity`](crate::completion_queue::CqMonitor::identity).
    identity: u64,
}

/// The first place of [`UserIndexTable::direct`], or of a [`UserIndexTable::part`]. A batch copies
/// it, so that it stays in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places(*const AtomicPtr<QueueState>);

// SAFETY: it points at atomics, which threads may share.
unsafe impl Send for Places {}

impl PolledQueues {
    /// The queues of `table` that complete to the CQ with this identity.
    pub(crate) fn new(table: &UserIndexTable, identity: u64) -> Self {
        let places = Places(table.direct().places.as_ptr());
        Self { table: table.clone(), places, identity }
    }

    /// The table.
    pub(crate) fn table(&self) -> &UserIndexTable {
        &self.table
    }

    /// The identity of the CQ.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// The argument for [`PolledQueues::sends_of`] and [`PolledQueues::receives_of`].
    #[inline(always)]
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// The same argument for a CQE whose queue is not found with [`PolledQueues::places`]: the
    /// places of only those indices whose upper 8 bits are the CQE's. `None` if no queues share a
    /// place.
    #[inline(always)]
    pub(crate) fn places_of_part(&self, cqe: CqeView) -> Option<Places> {
        crate::barrier::from_device();
        let upper = cqe.u8(offset_of!(Cqe, srqn_user_index) + 1);
        Some(Places(self.table.part(upper)?.places.as_ptr()))
    }

    /// The open queue of a send CQE that software owns, if its sends complete to this CQ. Also
    /// `None` if another queue has the same place in the table.
    #[inline(always)]
    pub(crate) fn sends_of(&self, places: &Places, cqe: CqeView) -> Option<PolledSends<'_>> {
        let queue = self.find(places, cqe);
        let is_ours = queue.sends.is_polled_by(self.identity);
        // SAFETY: the side was compared, and this thread is the CQ's poller, because only the CQ
        // has this value, which is not `Sync`.
        is_ours.then(|| unsafe { Polled::new(queue) })
    }

    /// [`PolledQueues::sends_of`] for receives.
    #[inline(always)]
    pub(crate) fn receives_of(&self, places: &Places, cqe: CqeView) -> Option<Receives<'_>> {
        let queue = self.find(places, cqe);
        let side = &queue.receives;
        if side.is_polled_by(self.identity) {
            // SAFETY: as for `sends_of`.
            return Some(Receives::Own(unsafe { Polled::new(queue) }));
        }
        crate::hint::cold_path();
        // SAFETY: the field is valid. Loaded again, so that the fast path needs no register for it.
        let identity = unsafe { core::ptr::from_ref(&self.identity).read_volatile() };
        // SAFETY: the side is marked as shared only while there is a list. `set_receives` set it
        // while the queue was closed and its CQs were drained, and keeps the block that the list
        // is part of.
        side.is_shared_and_polled_by(identity)
            .then(|| Receives::Shared(side, unsafe { &*side.shared.load(Ordering::Relaxed) }))
    }

    /// [`PolledQueues::receives_of`], unless the receives are an SRQ's.
    #[inline(always)]
    pub(crate) fn own_receives_of(
        &self,
        places: &Places,
        cqe: CqeView,
    ) -> Option<PolledReceives<'_>> {
        let queue = self.find(places, cqe);
        let is_ours = queue.receives.is_polled_by(self.identity);
        // SAFETY: as for `sends_of`.
        is_ours.then(|| unsafe { Polled::new(queue) })
    }

    /// [`PolledQueues::receives_of`], if the receives are an SRQ's: the QP, and the SRQ.
    #[inline(always)]
    pub(crate) fn shared_receives_of(
        &self,
        places: &Places,
        cqe: CqeView,
    ) -> Option<(&QueueState, &QueueState)> {
        let queue = self.find(places, cqe);
        let is_ours = queue.receives.is_shared_and_polled_by(self.identity);
        is_ours.then(|| (queue, queue.receives()))
    }

    /// The queue at the place of a CQE's user index. The two bytes of the index above the place are
    /// not compared, because that would cost two instructions and prevent nothing: two queues never
    /// share a place here (see [`UserIndexTable::direct`] and [`UserIndexTable::part`]), so a
    /// broken device could name each queue by its right index as well. The upper one counts the
    /// segments of large receive offload.
    #[inline(always)]
    fn find(&self, places: &Places, cqe: CqeView) -> &QueueState {
        debug_assert!(*places == self.places || Some(*places) == self.places_of_part(cqe));
        crate::barrier::from_device();
        let place = usize::from(cqe.place_of_user_index()) % PLACES;
        // SAFETY: `places` are those of `self`, since a CQ passes its own. There are as many, each
        // with a pointer to a block, which lives as long as the table that `self` keeps alive. It
        // is not null, and the compiler may rely on that.
        unsafe {
            let block = (*places.0.add(place)).load(Ordering::Acquire);
            core::hint::assert_unchecked(!block.is_null());
            &*block
        }
    }
}

/// Words before the first place: the limit, and an unused one.
const FIRST: usize = 2;
/// From a place to the next one, and from a state to the next one.
const STEP: usize = 2;
/// From the place at a position to the state of the entry with the same number.
const STATE: usize = 1;

/// The tables of an SRQ's free list: the limit, the places of the ring, the states, and the work
/// request ids. Indices that were masked or compared once need no comparison with a length.
#[derive(Debug)]
pub(crate) struct ListTables {
    /// First the limit: the posting side takes an index on its fast path if the index is below it.
    /// Then places and states alternate, so that one pointer is enough for all three. Last is an
    /// extra place that is always empty, which sends the fast path to the slow path at the ring's
    /// end.
    words: Box<[AtomicU32]>,
    /// Number of entries, a power of two, minus one.
    mask: u32,
    /// The work request id of each entry. A plain pointer, because a slice would need a load of its
    /// length.
    ids: *const AtomicU64,
    _ids: Arc<[AtomicU64]>,
}

// SAFETY: `ids` points at atomics of `_ids`.
unsafe impl Send for ListTables {}
// SAFETY: as above.
unsafe impl Sync for ListTables {}

impl ListTables {
    /// Tables for as many entries as there are `ids`, with empty places.
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub(crate) fn new(ids: Arc<[AtomicU64]>) -> Self {
        let count = ids.len();
        assert!(count.is_power_of_two(), "an SRQ has a power of two entries");
        let words = (0..FIRST + STEP * count + 1).map(|_| AtomicU32::new(NO_INDEX)).collect();
        Self { words, mask: count as u32 - 1, ids: ids.as_ptr(), _ids: ids }
    }

    /// Entries minus one.
    #[inline(always)]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The entry with this index, if it exists.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> Option<ListEntry<'_>> {
        (index <= self.mask).then_some(ListEntry { tables: self, index: index as usize })
    }

    #[inline(always)]
    pub(crate) fn state(&self, index: u32) -> &AtomicU32 {
        ListEntry { tables: self, index: (index & self.mask) as usize }.state()
    }

    #[inline(always)]
    pub(crate) fn id(&self, index: u32) -> &AtomicU64 {
        ListEntry { tables: self, index: (index & self.mask) as usize }.id()
    }

    #[inline(always)]
    pub(crate) fn limit(&self) -> &AtomicU32 {
        // SAFETY: there is at least the limit.
        unsafe { self.words.get_unchecked(0) }
    }

    #[inline(always)]
    pub(crate) fn place(&self, position: u32) -> &AtomicU32 {
        let at = FIRST + STEP * (position & self.mask) as usize;
        // SAFETY: there is a place for each masked position.
        unsafe { self.words.get_unchecked(at) }
    }

    /// Pointers for the posting side's fast path.
    pub(crate) fn posting(&self) -> Posting {
        Posting { words: self.words.as_ptr(), ids: self.ids }
    }
}

/// An entry whose index was checked: it is at most `mask`.
#[derive(Clone, Copy)]
pub(crate) struct ListEntry<'t> {
    tables: &'t ListTables,
    index: usize,
}

impl<'t> ListEntry<'t> {
    #[inline(always)]
    pub(crate) fn state(self) -> &'t AtomicU32 {
        // SAFETY: there are `mask + 1` states.
        unsafe { self.tables.words.get_unchecked(FIRST + STATE + STEP * self.index) }
    }

    #[inline(always)]
    pub(crate) fn id(self) -> &'t AtomicU64 {
        // SAFETY: there is an id for each state, and they live as long as the tables.
        unsafe { &*self.tables.ids.add(self.index) }
    }
}

/// Pointers to a list's tables, which the posting side keeps beside its own fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    words: *const AtomicU32,
    ids: *const AtomicU64,
}

/// The place of the ring that the posting side takes next. It may be one past the last place, which
/// is always empty; [`FreeList::at`](crate::free_list::FreeList::at) then returns the first place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextPlace(*const AtomicU32);

impl NextPlace {
    /// The place at a position.
    pub(crate) fn new(tables: &ListTables, position: u32) -> Self {
        Self(tables.place(position))
    }

    /// How many places were taken since `before`, in the same lap.
    #[inline(always)]
    pub(crate) fn since(self, before: Self) -> u32 {
        (self.0.addr().wrapping_sub(before.0.addr()) / (STEP * size_of::<AtomicU32>())) as u32
    }

    /// The place after this one.
    #[inline(always)]
    fn after(self) -> Self {
        Self(self.0.wrapping_add(STEP))
    }
}

impl Posting {
    /// Takes the index in a place, and moves on to the next place. `None` if the place is empty, or
    /// the limit allows no such index.
    ///
    /// # Safety
    /// The list is alive, and `place` is one of it.
    #[inline(always)]
    pub(crate) unsafe fn take_next(&self, place: &mut NextPlace) -> Option<u32> {
        // SAFETY: the caller's promise; the first word is the limit.
        let (limit, here) = unsafe { (&*self.words, &*place.0) };
        let next = here.load(Ordering::Acquire);
        if next as i32 >= limit.load(Ordering::Relaxed) as i32 {
            return None;
        }
        here.store(NO_INDEX, Ordering::Relaxed);
        *place = place.after();
        Some(next)
    }

    /// The index in a place, if the limit allows lists of any length on the fast path. To be
    /// followed by [`Posting::take`].
    ///
    /// # Safety
    /// As for [`Posting::take_next`].
    #[inline(always)]
    pub(crate) unsafe fn next_of_lists(&self, place: NextPlace) -> Option<u32> {
        // SAFETY: the caller's promise; the first word is the limit.
        let (limit, here) = unsafe { (&*self.words, &*place.0) };
        let next = here.load(Ordering::Acquire);
        (limit.load(Ordering::Relaxed) == WITH_LISTS && next < ANY).then_some(next)
    }

    /// Takes the index that [`Posting::next_of_lists`] found, and moves on to the next place.
    ///
    /// # Safety
    /// As for [`Posting::take_next`], and the place is not empty.
    #[inline(always)]
    pub(crate) unsafe fn take(&self, place: &mut NextPlace) {
        // SAFETY: the caller's promise.
        unsafe { &*place.0 }.store(NO_INDEX, Ordering::Relaxed);
        *place = place.after();
    }

    /// Whether posts take the slow path, as they do while an entry waits to be posted again.
    ///
    /// # Safety
    /// The list is alive.
    #[inline(always)]
    pub(crate) unsafe fn is_closed(&self) -> bool {
        // SAFETY: the caller's promise; the first word is the limit.
        unsafe { &*self.words }.load(Ordering::Relaxed) == CLOSED
    }

    /// Writes the id of a filled entry, and marks the entry as posted to the device.
    ///
    /// # Safety
    /// The list is alive, and `entry` is an index of it: 0, or one that was taken.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, entry: u32, wr_id: u64) {
        let entry = entry as usize;
        // SAFETY: the caller's promise: there is an id and a state for each entry. Release: a
        // poller that sees the mark also sees the entry's contents, and that the index was taken
        // from the ring.
        unsafe {
            (*self.ids.add(entry)).store(wr_id, Ordering::Relaxed);
            let state = &*self.words.add(FIRST + STATE + STEP * entry);
            state.store(POSTED, Ordering::Release);
        }
    }
}
