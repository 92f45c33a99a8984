//! One direction of a queue, sends or receives, as the poller of its completions sees it. Also what
//! else of a block has to be unsafe: the tables of a list of free entries, and the links to other
//! blocks.

#![allow(unsafe_code)]

use core::ops::Deref;
use core::sync::atomic::AtomicUsize;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::QueueState;
use crate::free_list::{ANY, FreeList, NO_INDEX, POSTED, WITH_LISTS};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// In the table of work request ids: the place of a block in which no request starts. A program may
/// use this number as an id all the same, so the slow path looks into another table before it
/// believes it. It has 32 significant bits, sign-extended, so that a comparison with it takes one
/// instruction.
pub(crate) const NO_START: u64 = 0xffff_ffff_9d3a_c571;

/// One direction of a queue: all that the poller reads and writes for a completion that went well,
/// on one cache line.
///
/// The poller compares each completion with the range of outstanding requests, and retires it, with
/// one subtraction, one comparison and one store. It keeps the index that completed last in the
/// form that [`last_word`] describes.
#[derive(Debug)]
pub(crate) struct Side {
    /// The WQE that completed last, as [`last_word`]. From it the posting side works out its tail
    /// when it needs to know: it alone knows how long its WQEs are. Not used by an SRQ, whose WQEs
    /// come back in any order.
    last: AtomicU32,
    /// [`base_of`] the index behind the last published request that the poller knows of.
    base: AtomicU32,
    /// What the user index in a CQE of this side is in memory, while `cq` is not 0: see
    /// [`Side::key`].
    key: AtomicU32,
    /// The CQ whose poller may complete requests on the fast path: its
    /// [identity](crate::completion_queue::CqMonitor). 0, the identity of no CQ, while the queue is
    /// closed or may complete to any CQ.
    cq: AtomicUsize,
    entries: *const AtomicU64,
    /// Entries of the table of work request ids, minus one.
    mask: u32,
    /// Whether data that comes inside a CQE goes to the receive's buffers.
    copies_inline: AtomicBool,
    /// The SRQ's entries, if the receives are an SRQ's.
    shared: AtomicPtr<FreeList>,
    /// What completions hand back, see [`QueueState::set_side_contexts`].
    context: AtomicU64,
    /// The block that this is a part of.
    block: AtomicPtr<QueueState>,
}

// SAFETY: `entries` points into a box of the same block, which is never replaced; all that it
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
    /// The send side is [polled by](Side::is_polled_by) the CQ that this thread polls. This value
    /// is gone before that poll returns.
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
    /// As for [`PolledSends::new`], the receive side.
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

/// The index behind the requests that the poller knows of, prepared for [`last_word`].
const fn base_of(end: u16) -> u32 {
    ((end as u32) << 16).wrapping_sub(end as u32)
}

/// `index - end` in the upper half, `end` in the lower one. With the same `end` these words have
/// the order of completion: indices from `end` on are the smallest, then those completed long ago,
/// then those that are outstanding. So an index is outstanding if its word is greater than that of
/// the index that completed last. (Rings have at most 2^15 entries.) With another base the words of
/// an index differ by as much as the bases.
#[inline(always)]
const fn last_word(index: u16, base: u32) -> u32 {
    ((index as u32) << 16).wrapping_sub(base)
}

/// The index that a [`last_word`] was made of.
const fn index_of(word: u32) -> u16 {
    ((word >> 16) as u16).wrapping_add(word as u16)
}

/// The greatest word: no index is outstanding.
const NONE_OUTSTANDING: u32 = u32::MAX;

/// A key that is in no CQE: the index is none that a queue has.
const NO_KEY: u32 = u32::MAX;

/// Nothing has been published or completed: the last index is the one before the first.
const UNUSED: u32 = last_word(u16::MAX, base_of(0));

/// A word that no other thread writes. Compilers fold an atomic load into no other instruction.
///
/// # Safety
/// No other thread writes it meanwhile.
#[inline(always)]
unsafe fn own_word(word: &AtomicU32) -> u32 {
    #[cfg(loom)]
    return word.load(Ordering::Relaxed);
    #[cfg(not(loom))]
    // SAFETY: valid and aligned; others only read it, so this races with nothing.
    return unsafe { *word.as_ptr() };
}

impl Side {
    /// A side of `count` entries, the first ones of a table.
    pub(super) fn new(entries: &[AtomicU64], count: usize) -> CachePadded<Self> {
        CachePadded::new(Self {
            last: AtomicU32::new(UNUSED),
            base: AtomicU32::new(base_of(0)),
            key: AtomicU32::new(NO_KEY),
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
    /// its requests complete to this CQ and to no other.
    #[inline(always)]
    pub(crate) fn is_polled_by(&self, cq: usize) -> bool {
        self.cq.load(Ordering::Acquire) == cq
    }

    /// The user index in the CQEs of this side as it is in memory, while the side is
    /// [polled by](Side::is_polled_by) a CQ; otherwise an index with another low byte.
    #[inline(always)]
    pub(crate) fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// [`last_word`] of the send at the 16-bit index in the upper half of `index`, to be given to
    /// [`Side::retire`], and its id. `None`, and nothing that counts has changed, unless it is
    /// outstanding and a request starts there for sure: the slow path finds out. `published` is the
    /// counter behind the requests that were published.
    ///
    /// # Safety
    /// It is [polled by](Side::is_polled_by) the CQ that the caller polls.
    #[inline(always)]
    unsafe fn outstanding_send(&self, index: u32, published: &AtomicU32) -> Option<(u32, u64)> {
        // SAFETY: passed on to the caller.
        let word = unsafe { self.outstanding::<false>(index, published) }?;
        let wr_id = self.entry(index >> 16).load(Ordering::Relaxed);
        (wr_id != NO_START).then_some((word, wr_id))
    }

    /// Completes the receive at the 16-bit index in the upper half of `index`, and all before it;
    /// of an SRQ's, that of this entry alone. Returns its id; `None`, and nothing that counts has
    /// changed, if it is not outstanding.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn complete_receive(&self, index: u32, published: &AtomicU32) -> Option<u64> {
        // SAFETY: passed on to the caller.
        let (mut word, last) = unsafe { self.compared(index) };
        if word <= last {
            crate::hint::cold_path();
            // SAFETY: `set_shared` named the list while the queue was closed and its CQs were
            // drained. It is in a block, and those live as long as the table.
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

    /// [`last_word`] of the 16-bit index in the upper half of `index`, to be given to
    /// [`Side::retire`]; `None` if it is not outstanding, or an SRQ's. What was written before it
    /// was published is seen from here on, above all its id.
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

    /// [`last_word`] of the 16-bit index in the upper half of `index`, and the greatest one that is
    /// not known to be outstanding.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn compared(&self, index: u32) -> (u32, u32) {
        // SAFETY: both words are written by pollers of the CQ that this side completes to, of which
        // there is one, this thread; by the slow path of pollers of any CQ where `cq` is 0; and by
        // `set_shared`, `reset` and `expect`. `cq` becomes 0 when the queue is closed, which no
        // slow path completes for, and the block is `reset` when it is taken for another queue,
        // which is after the CQ was drained, and not within the poll that found the CQ to be its
        // own. `expect` is for a queue without a CQ.
        unsafe { (index.wrapping_sub(own_word(&self.base)), own_word(&self.last)) }
    }

    /// What has become of a word of an index that was not outstanding when the poller last looked
    /// at what was published, if it is outstanding now. Not of an SRQ's receives.
    ///
    /// # Safety
    /// As for [`Side::outstanding_send`].
    #[inline(always)]
    unsafe fn outstanding_by_now(&self, word: u32, published: &AtomicU32) -> Option<u32> {
        let published = published.load(Ordering::Acquire);
        // SAFETY: as in `compared`. Loaded again, so that the fast path needs no registers for
        // them.
        let known = unsafe { (own_word(&self.base), own_word(&self.last)) };
        let (difference, last) = self.look(published, known);
        let word = word.wrapping_add(difference);
        (word > last).then_some(word)
    }

    /// Takes note of what was published, given base and last word; returns by how much the words
    /// have changed, and the one of the index that completed last. Poller only.
    #[inline(always)]
    fn look(&self, published: u32, (before, last): (u32, u32)) -> (u32, u32) {
        let base = base_of(published as u16);
        let difference = before.wrapping_sub(base);
        let last = last.wrapping_add(difference);
        self.base.store(base, Ordering::Relaxed);
        self.retire(last);
        (difference, last)
    }

    /// Publishes that the WQE with this [`last_word`], and all before it, are complete. Release:
    /// what the poller read of the WQE and its entry comes before the posting side overwrites them.
    /// Poller only.
    #[inline(always)]
    pub(crate) fn retire(&self, word: u32) {
        self.last.store(word, Ordering::Release);
    }

    /// Completes the index that [`Side::is_outstanding`] has found so.
    pub(super) fn complete(&self, index: u16) {
        self.retire(last_word(index, self.base.load(Ordering::Relaxed)));
    }

    /// Whether an index is behind the one that completed last, and before `published`, which it
    /// takes note of.
    pub(super) fn is_outstanding(&self, index: u16, published: u32) -> bool {
        let known = (self.base.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        let (_, last) = self.look(published, known);
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

    /// The block that this is a part of, once that was registered.
    #[inline(always)]
    pub(crate) fn block(&self) -> *const QueueState {
        self.block.load(Ordering::Relaxed)
    }

    /// Says what this is a part of.
    pub(super) fn set_block(&self, block: *mut QueueState) {
        self.block.store(block, Ordering::Relaxed);
    }

    /// Whether data that comes inside a CQE goes to the receive's buffers, as far as those are a
    /// queue pair's own.
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

    /// Names the SRQ whose receives are consumed, if there is one: then the side has no outstanding
    /// requests of its own. Before the queue is opened.
    pub(super) fn set_shared(&self, list: Option<&FreeList>) {
        if list.is_some() {
            self.last.store(NONE_OUTSTANDING, Ordering::Relaxed);
        }
        let list = list.map_or(core::ptr::null(), core::ptr::from_ref);
        self.shared.store(list.cast_mut(), Ordering::Relaxed);
    }

    /// Lets the poller of a CQ complete requests on its fast path, those of CQEs with this user
    /// index; 0 for none.
    pub(super) fn set_cq(&self, cq: usize, user_index: u32) {
        let index = if cq == 0 { user_index ^ 0xff } else { user_index };
        // Release: what the poller finds by these was written before.
        self.cq.store(cq, Ordering::Release);
        self.key.store(index.to_be(), Ordering::Release);
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

    /// Makes one request outstanding, at this index.
    pub(super) fn expect(&self, index: u16) {
        self.base.store(base_of(index), Ordering::Relaxed);
        self.last.store(last_word(index.wrapping_sub(1), base_of(index)), Ordering::Relaxed);
    }
}

impl QueueState {
    /// The block whose receives this queue consumes.
    #[inline(always)]
    pub(crate) fn receives(&self) -> &QueueState {
        // SAFETY: null, or what `set_receives` was given, which lives as long as this block.
        unsafe { self.fixed.receives.load(Ordering::Relaxed).as_ref() }.unwrap_or(self)
    }

    /// Names the block whose receives this queue consumes: its own, or its SRQ's.
    ///
    /// # Safety
    /// It lives as long as this one.
    pub(crate) unsafe fn set_receives(&self, block: *const QueueState) {
        self.fixed.receives.store(block.cast_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        self.receives.set_shared(unsafe { &*block }.free_list());
    }

    /// Names what `before` does, which is the queue's life before this one: its SRQ, or this block.
    pub(super) fn follow_receives(&self, before: &Self) {
        let receives = before.receives();
        let receives = if core::ptr::eq(receives, before) { self } else { receives };
        // SAFETY: all blocks of the table that both are in live as long as it.
        unsafe { self.set_receives(receives) };
    }

    /// Gives the queue's sends and its receives a value each beside the user's context. It is
    /// beside what a poller writes in any case, so asking a completion for it
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

/// The tables of a list of free entries. Masked indices need no comparison with a length.
#[derive(Debug)]
pub(crate) struct ListTables {
    /// What has become of each entry.
    states: Box<[AtomicU32]>,
    /// Entries minus one; they are a power of two.
    mask: u32,
    /// The work request id of each entry. A plain pointer, because a slice's length would be loaded
    /// too.
    ids: *const AtomicU64,
    _ids: Arc<[AtomicU64]>,
    /// First the limit: the posting side takes an index on its fast path if that is below it. Then
    /// the ring, next to it, because the posting side reads both.
    places: Box<[AtomicU32]>,
}

// SAFETY: `ids` points at atomics of `_ids`.
unsafe impl Send for ListTables {}
// SAFETY: as above.
unsafe impl Sync for ListTables {}

impl ListTables {
    /// Tables for an entry for each of `ids`, all zero.
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub(crate) fn new(ids: Arc<[AtomicU64]>) -> Self {
        let count = ids.len() as u32;
        assert!(count.is_power_of_two(), "an SRQ has a power of two entries");
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let (states, places) = (zeros(count), zeros(count + 1));
        Self { states, mask: count - 1, ids: ids.as_ptr(), _ids: ids, places }
    }

    /// Entries minus one.
    #[inline(always)]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// An entry, if there is one with this index.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> Option<ListEntry<'_>> {
        (index <= self.mask).then_some(ListEntry { tables: self, index: index as usize })
    }

    #[inline(always)]
    pub(crate) fn state(&self, index: u32) -> &AtomicU32 {
        // SAFETY: there are `mask + 1`.
        unsafe { self.states.get_unchecked((index & self.mask) as usize) }
    }

    #[inline(always)]
    pub(crate) fn id(&self, index: u32) -> &AtomicU64 {
        // SAFETY: there are `mask + 1`, which live as long as this.
        unsafe { &*self.ids.add((index & self.mask) as usize) }
    }

    #[inline(always)]
    pub(crate) fn limit(&self) -> &AtomicU32 {
        // SAFETY: the limit is there before the ring.
        unsafe { self.places.get_unchecked(0) }
    }

    #[inline(always)]
    pub(crate) fn place(&self, position: u32) -> &AtomicU32 {
        // SAFETY: there is one place more than entries, so one for each masked position behind the
        // limit.
        unsafe { self.places.get_unchecked(1 + (position & self.mask) as usize) }
    }

    /// The posting side's way in.
    pub(crate) fn shortcut(&self) -> Shortcut {
        Shortcut { places: self.places.as_ptr(), states: self.states.as_ptr(), mask: self.mask }
    }
}

/// An entry that there is.
#[derive(Clone, Copy)]
pub(crate) struct ListEntry<'t> {
    tables: &'t ListTables,
    index: usize,
}

impl<'t> ListEntry<'t> {
    #[inline(always)]
    pub(crate) fn state(self) -> &'t AtomicU32 {
        // SAFETY: the index is at most `mask`, and there are `mask + 1` states.
        unsafe { self.tables.states.get_unchecked(self.index) }
    }

    #[inline(always)]
    pub(crate) fn id(self) -> &'t AtomicU64 {
        // SAFETY: there is one for each state, and they live as long as the tables.
        unsafe { &*self.tables.ids.add(self.index) }
    }
}

/// Where a list's ring and states are, for the posting side to keep beside its own fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortcut {
    places: *const AtomicU32,
    states: *const AtomicU32,
    mask: u32,
}

impl Shortcut {
    /// [`FreeList::next`] and [`FreeList::take`] at once, if the next index is below the limit.
    ///
    /// # Safety
    /// The list is alive.
    #[inline(always)]
    pub(crate) unsafe fn take_next(&self, position: u32) -> Option<u32> {
        // SAFETY: the limit and as many places as there are entries.
        let (limit, place) = unsafe { (&*self.places, &*self.places.add(self.place(position))) };
        let next = place.load(Ordering::Acquire);
        if next as i32 >= limit.load(Ordering::Relaxed) as i32 {
            return None;
        }
        place.store(NO_INDEX, Ordering::Relaxed);
        Some(next)
    }

    /// The next index, if the limit says that lists of any length are posted on the fast path. To
    /// be followed by [`Shortcut::take`].
    ///
    /// # Safety
    /// The list is alive.
    #[inline(always)]
    pub(crate) unsafe fn next_of_lists(&self, position: u32) -> Option<u32> {
        // SAFETY: the limit and as many places as there are entries.
        let (limit, place) = unsafe { (&*self.places, &*self.places.add(self.place(position))) };
        let next = place.load(Ordering::Acquire);
        (limit.load(Ordering::Relaxed) == WITH_LISTS && next < ANY).then_some(next)
    }

    /// [`FreeList::take`].
    ///
    /// # Safety
    /// The list is alive.
    #[inline(always)]
    pub(crate) unsafe fn take(&self, position: u32) {
        // SAFETY: as many places as there are entries, behind the limit.
        unsafe { &*self.places.add(self.place(position)) }.store(NO_INDEX, Ordering::Relaxed);
    }

    #[inline(always)]
    fn place(&self, position: u32) -> usize {
        1 + (position & self.mask) as usize
    }

    /// Marks a filled entry as the device's.
    ///
    /// # Safety
    /// The list is alive, and `entry` is an index of it: 0, or what was taken.
    #[inline(always)]
    pub(crate) unsafe fn mark(&self, entry: u32) {
        // SAFETY: the caller's promise. Release: a poller that finds it so finds what is in the
        // entry, and the place empty that the entry came from.
        unsafe { &*self.states.add(entry as usize) }.store(POSTED, Ordering::Release);
    }
}
