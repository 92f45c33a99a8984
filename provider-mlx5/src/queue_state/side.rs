//! One direction of a queue, sends or receives, as its poller sees it. This file also has the other
//! unsafe code of a block: the tables of an SRQ's free list, and the pointers to other blocks.

#![allow(unsafe_code)]

use core::ops::Deref;
use core::sync::atomic::AtomicUsize;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::QueueState;
use crate::free_list::{ANY, CLOSED, FreeList, NO_INDEX, POSTED, WITH_LISTS};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The id in the work request id table for a block in which no request starts. A program may use
/// this number as an id, so when the slow path finds it, it checks a second table. It has 32
/// significant bits, sign-extended, so that one instruction compares with it.
pub(crate) const NO_START: u64 = 0xffff_ffff_9d3a_c571;

/// One direction of a queue: everything that the poller reads and writes for a successful
/// completion, on one cache line.
///
/// The poller checks with one subtraction and one comparison that a completion names an outstanding
/// request, and retires the request with one store. It keeps the index that completed last in the
/// form of a [`last_word`].
#[derive(Debug)]
pub(crate) struct Side {
    /// The WQE that completed last, as a [`last_word`]. The posting side computes its tail from it,
    /// because only the posting side knows the length of its WQEs. Not used by an SRQ, whose WQEs
    /// complete in any order.
    last: AtomicU32,
    /// [`base_of`] the index after the last published request that the poller has seen.
    base: AtomicU32,
    /// The CQ whose poller may complete requests on the fast path: its
    /// [identity](crate::completion_queue::CqMonitor). 0, which identifies no CQ, while the queue
    /// is closed or may complete to any CQ.
    cq: AtomicUsize,
    entries: *const AtomicU64,
    /// Entries of the table of work request ids, minus one.
    mask: u32,
    /// Whether inline data of a CQE is copied to the receive's buffers.
    copies_inline: AtomicBool,
    /// The SRQ's entries, if the receives are an SRQ's.
    shared: AtomicPtr<FreeList>,
    /// The value that completions return, see [`QueueState::set_side_contexts`].
    context: AtomicU64,
    /// The block that this side is part of.
    block: AtomicPtr<QueueState>,
}

// SAFETY: `entries` points into a box of the same block, which is never replaced; everything it
// points at is atomic.
unsafe impl Send for Side {}
// SAFETY: as above.
unsafe impl Sync for Side {}

/// A queue whose sends complete to the CQ that the holder polls, and to no other.
#[derive(Clone, Copy)]
pub(crate) struct PolledSends<'q>(&'q QueueState);

/// A queue whose receives complete to the CQ that the holder polls, and to no other.
#[derive(Clone, Copy)]
pub(crate) struct PolledReceives<'q>(&'q QueueState);

impl<'q> PolledSends<'q> {
    /// # Safety
    /// The send side is [polled by](Side::is_polled_by) the CQ that this thread polls. The value is
    /// dropped before that poll returns.
    #[inline(always)]
    pub(crate) unsafe fn new(queue: &'q QueueState) -> Self {
        Self(queue)
    }

    /// [`Side::outstanding_send`].
    #[inline(always)]
    pub(crate) fn outstanding(self, index: u32) -> Option<(u32, u64)> {
        // SAFETY: the contract of `new`.
        unsafe { self.0.sends.outstanding_send(index, &self.0.published_sends) }
    }
}

impl<'q> PolledReceives<'q> {
    /// # Safety
    /// As for [`PolledSends::new`], for the receive side.
    #[inline(always)]
    pub(crate) unsafe fn new(queue: &'q QueueState) -> Self {
        Self(queue)
    }

    /// [`Side::complete_receive`].
    #[inline(always)]
    pub(crate) fn complete(self, index: u32) -> Option<u64> {
        // SAFETY: the contract of `new`.
        unsafe { self.0.receives.complete_receive(index, &self.0.published_receives) }
    }

    /// [`Side::outstanding`].
    #[inline(always)]
    pub(crate) fn outstanding(self, index: u32) -> Option<u32> {
        // SAFETY: the contract of `new`.
        unsafe { self.0.receives.outstanding::<true>(index, &self.0.published_receives) }
    }
}

impl Deref for PolledSends<'_> {
    type Target = QueueState;

    #[inline(always)]
    fn deref(&self) -> &QueueState {
        self.0
    }
}

impl Deref for PolledReceives<'_> {
    type Target = QueueState;

    #[inline(always)]
    fn deref(&self) -> &QueueState {
        self.0
    }
}

/// Prepares the index after the last known published request for [`last_word`].
const fn base_of(end: u16) -> u32 {
    ((end as u32) << 16).wrapping_sub(end as u32)
}

/// `index - end` in the upper half, `end` in the lower half. For the same `end`, these words sort
/// in order of completion: indices from `end` on come first, then those completed long ago, then
/// the outstanding ones. So an index is outstanding if its word is greater than that of the index
/// that completed last. (Rings have at most 2^15 entries.) Two words of the same index differ by as
/// much as their bases.
#[inline(always)]
const fn last_word(index: u16, base: u32) -> u32 {
    ((index as u32) << 16).wrapping_sub(base)
}

/// The index in a [`last_word`].
const fn index_of(word: u32) -> u16 {
    ((word >> 16) as u16).wrapping_add(word as u16)
}

/// The greatest word: no index is outstanding.
const NONE_OUTSTANDING: u32 = u32::MAX;

/// Nothing was published or completed yet: the last index is the one before the first.
const UNUSED: u32 = last_word(u16::MAX, base_of(0));

/// A word that no other thread writes. A plain load, because compilers do not fold atomic loads
/// into other instructions.
///
/// # Safety
///
/// No other thread writes the word during the call.
#[inline(always)]
unsafe fn own_word(word: &AtomicU32) -> u32 {
    #[cfg(loom)]
    return word.load(Ordering::Relaxed);
    #[cfg(not(loom))]
    // SAFETY: the pointer is valid and aligned; other threads only read the word, so there is no
    // data race.
    return unsafe { *word.as_ptr() };
}

impl Side {
    /// A side whose work request ids are the first `count` of `entries`.
    pub(super) fn new(entries: &[AtomicU64], count: usize) -> CachePadded<Self> {
        CachePadded::new(Self {
            last: AtomicU32::new(UNUSED),
            base: AtomicU32::new(base_of(0)),
            cq: AtomicUsize::new(0),
            entries: entries.as_ptr(),
            mask: count as u32 - 1,
            copies_inline: AtomicBool::new(false),
            shared: AtomicPtr::new(core::ptr::null_mut()),
            context: AtomicU64::new(0),
            block: AtomicPtr::new(core::ptr::null_mut()),
        })
    }

    /// Whether the poller of this CQ may complete requests on the fast path: the queue is open, and
    /// its requests complete to this CQ only.
    #[inline(always)]
    pub(crate) fn is_polled_by(&self, cq: usize) -> bool {
        self.cq.load(Ordering::Acquire) == cq
    }

    /// [`last_word`] of the send at the 16-bit index in the upper half of `index`, for
    /// [`Side::retire`], and its id. `None` if the send is not outstanding, or its id alone does
    /// not say that a request starts there; then the slow path decides, and no observable state has
    /// changed. `published` is the counter after the last published request.
    ///
    /// # Safety
    ///
    /// The side is [polled by](Side::is_polled_by) the CQ that the caller polls.
    #[inline(always)]
    unsafe fn outstanding_send(&self, index: u32, published: &AtomicU32) -> Option<(u32, u64)> {
        // SAFETY: passed on to the caller.
        let word = unsafe { self.outstanding::<false>(index, published) }?;
        let wr_id = self.entry(index >> 16).load(Ordering::Relaxed);
        (wr_id != NO_START).then_some((word, wr_id))
    }

    /// Completes the receive at the 16-bit index in the upper half of `index`, and all before it;
    /// for an SRQ, only this entry. Returns its id; `None`, with no observable state changed, if it
    /// is not outstanding.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn complete_receive(&self, index: u32, published: &AtomicU32) -> Option<u64> {
        // SAFETY: passed on to the caller.
        let (mut word, last) = unsafe { self.compared(index) };
        if word <= last {
            crate::hint::cold_path();
            // SAFETY: `set_shared` set the list while the queue was closed and its CQs were
            // drained. The list is part of a block, and blocks live as long as the table.
            if let Some(list) = unsafe { self.shared.load(Ordering::Relaxed).as_ref() } {
                return list.complete(index >> 16);
            }
            // SAFETY: passed on to the caller.
            word = unsafe { self.outstanding_by_now(word, published) }?;
        }
        let wr_id = self.entry(index >> 16).load(Ordering::Relaxed);
        self.retire(word);
        Some(wr_id)
    }

    /// [`last_word`] of the 16-bit index in the upper half of `index`, for [`Side::retire`]; `None`
    /// if it is not outstanding, or the receives are those of an SRQ. The acquire load makes the
    /// request visible, in particular its id.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn outstanding<const MAY_SHARE: bool>(
        &self,
        index: u32,
        published: &AtomicU32,
    ) -> Option<u32> {
        // SAFETY: passed on to the caller.
        let (word, last) = unsafe { self.compared(index) };
        if word > last {
            return Some(word);
        }
        crate::hint::cold_path();
        if MAY_SHARE && !self.shared.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // SAFETY: passed on to the caller.
        unsafe { self.outstanding_by_now(word, published) }
    }

    /// [`last_word`] of the 16-bit index in the upper half of `index`, and the word above which an
    /// index is outstanding.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn compared(&self, index: u32) -> (u32, u32) {
        // SAFETY: while `cq` is set, both words are written only by the poller of that CQ, which is
        // this thread. While `cq` is 0, the slow path of any CQ's poller may write them, and so may
        // `set_shared`, `reset` and `expect`. `cq` becomes 0 when the queue is closed, and no slow
        // path completes requests of a closed queue. The block is `reset` when another queue takes
        // it. That happens after the CQ was drained, and not during the poll that read `cq`.
        // `expect` is for queues without a CQ.
        unsafe { (index.wrapping_sub(own_word(&self.base)), own_word(&self.last)) }
    }

    /// The current [`last_word`] for `word`, if its index was published since the poller last read
    /// the counter; else `None`. Not for receives of an SRQ.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn outstanding_by_now(&self, word: u32, published: &AtomicU32) -> Option<u32> {
        let base = base_of(published.load(Ordering::Acquire) as u16);
        // SAFETY: as in `compared`. Loads both words again, so that the fast path needs no
        // registers for them; the second one only when it is added.
        let difference = unsafe { own_word(&self.base) }.wrapping_sub(base);
        self.base.store(base, Ordering::Relaxed);
        let word = word.wrapping_add(difference);
        // SAFETY: as above.
        let last = difference.wrapping_add(unsafe { own_word(&self.last) });
        self.retire(last);
        (word > last).then_some(word)
    }

    /// Updates the base to `published`, given base and last word. Returns by how much the words
    /// have changed, and the new word of the index that completed last. Poller only.
    #[inline(always)]
    fn look(&self, published: u32, (before, last): (u32, u32)) -> (u32, u32) {
        let base = base_of(published as u16);
        let difference = before.wrapping_sub(base);
        let last = last.wrapping_add(difference);
        self.base.store(base, Ordering::Relaxed);
        self.retire(last);
        (difference, last)
    }

    /// Publishes that the WQE with this [`last_word`] and all earlier ones are complete. Release:
    /// the poller's reads of the WQE and its entry come before the posting side overwrites them.
    /// Poller only.
    #[inline(always)]
    pub(crate) fn retire(&self, word: u32) {
        self.last.store(word, Ordering::Release);
    }

    /// Completes an index that is outstanding according to [`Side::is_outstanding`].
    pub(super) fn complete(&self, index: u16) {
        self.retire(last_word(index, self.base.load(Ordering::Relaxed)));
    }

    /// Whether an index is after the one that completed last and before `published`. Updates the
    /// base to `published`.
    pub(super) fn is_outstanding(&self, index: u16, published: u32) -> bool {
        let words = (self.base.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        let (_, last) = self.look(published, words);
        last_word(index, self.base.load(Ordering::Relaxed)) > last
    }

    /// The work request ids, and their number minus one.
    #[inline(always)]
    pub(super) fn table(&self) -> (*const AtomicU64, u32) {
        (self.entries, self.mask)
    }

    /// Entries of the table of work request ids.
    pub(super) fn len(&self) -> u32 {
        self.mask + 1
    }

    /// The block that this side is part of; null before it was registered.
    #[inline(always)]
    pub(crate) fn block(&self) -> *const QueueState {
        self.block.load(Ordering::Relaxed)
    }

    /// Sets the block that this side is part of.
    pub(super) fn set_block(&self, block: *mut QueueState) {
        self.block.store(block, Ordering::Relaxed);
    }

    /// Whether inline data of a CQE is copied to the receive's buffers, if the receives are the
    /// QP's own.
    #[inline(always)]
    pub(crate) fn copies_inline(&self) -> bool {
        self.copies_inline.load(Ordering::Relaxed)
    }

    pub(super) fn set_copies_inline(&self, copies: bool) {
        self.copies_inline.store(copies, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    pub(super) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    /// Sets the SRQ that the queue consumes, if any; the side then has no outstanding requests of
    /// its own. Called before the queue is opened.
    pub(super) fn set_shared(&self, list: Option<&FreeList>) {
        if list.is_some() {
            self.last.store(NONE_OUTSTANDING, Ordering::Relaxed);
        }
        let list = list.map_or(core::ptr::null(), core::ptr::from_ref);
        self.shared.store(list.cast_mut(), Ordering::Relaxed);
    }

    /// Sets the CQ whose poller may complete requests on its fast path; 0 for none.
    pub(super) fn set_cq(&self, cq: usize) {
        // Release: publishes the other fields to the poller that reads it.
        self.cq.store(cq, Ordering::Release);
    }

    /// The 16-bit index of the WQE that completed last.
    #[inline(always)]
    pub(super) fn completed(&self) -> u16 {
        index_of(self.last.load(Ordering::Acquire))
    }

    /// The work request id of WQE `index`.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> &AtomicU64 {
        // SAFETY: `entries` points to a boxed slice of `mask + 1` entries in the same block.
        unsafe { &*self.entries.add((index & self.mask) as usize) }
    }

    pub(super) fn reset(&self) {
        self.last.store(UNUSED, Ordering::Relaxed);
        self.base.store(base_of(0), Ordering::Relaxed);
    }

    /// Makes the request at this index outstanding.
    pub(super) fn expect(&self, index: u16) {
        self.base.store(base_of(index), Ordering::Relaxed);
        self.last.store(last_word(index.wrapping_sub(1), base_of(index)), Ordering::Relaxed);
    }
}

impl QueueState {
    /// The block whose receives this queue consumes.
    #[inline(always)]
    pub(crate) fn receives(&self) -> &QueueState {
        // SAFETY: null, or the block given to `set_receives`, which lives as long as this one.
        unsafe { self.fixed.receives.load(Ordering::Relaxed).as_ref() }.unwrap_or(self)
    }

    /// Sets the block whose receives this queue consumes: its own, or its SRQ's.
    ///
    /// # Safety
    ///
    /// `block` lives as long as this one.
    pub(crate) unsafe fn set_receives(&self, block: *const QueueState) {
        self.fixed.receives.store(block.cast_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        self.receives.set_shared(unsafe { &*block }.free_list());
    }

    /// Takes over the receives of `before`, the QP's block before its reset: its SRQ, or else this
    /// block's own.
    pub(super) fn follow_receives(&self, before: &Self) {
        let receives = before.receives();
        let receives = if core::ptr::eq(receives, before) { self } else { receives };
        // SAFETY: both blocks belong to one table, which keeps its blocks until it is dropped.
        unsafe { self.set_receives(receives) };
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
    /// Then places and states alternate, so that one pointer leads to all three. Last is one more
    /// place, which is always empty: there the fast path finds the ring's end.
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

/// The place of the ring that the posting side takes next. It may be one past the last place, where
/// nothing is found; [`FreeList::at`] then finds the first one.
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

    /// Takes what [`Posting::next_of_lists`] found, and moves on to the next place.
    ///
    /// # Safety
    /// As for [`Posting::take_next`], and the place is not empty.
    #[inline(always)]
    pub(crate) unsafe fn take(&self, place: &mut NextPlace) {
        // SAFETY: the caller's promise.
        unsafe { &*place.0 }.store(NO_INDEX, Ordering::Relaxed);
        *place = place.after();
    }

    /// Whether posts take the slow path. So it is whenever an entry waits to be posted again.
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
