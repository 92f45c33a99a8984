//! The free WQEs of a shared receive queue: a ring of their indices, with many producers and one
//! consumer. An entry is a WQE of the SRQ.
//!
//! The device returns an SRQ's WQEs in any order, through any number of CQs, each polled by its own
//! thread. The posting thread takes them. It always holds one extra entry, the head: the link in a
//! posted WQE must already name the WQE that is posted next. So N entries hold N - 1 receives, and
//! the ring has a place for each returned entry.
//!
//! The posting side counts the places itself, so the processor can load the next place before the
//! load of the last one completes. libmlx5 follows links from one WQE to the next, where each load
//! depends on the one before.

use std::sync::Arc;

use crate::queue_state::{ListTables, NextPlace, Posting};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Content of an empty place of the ring. It is above every limit.
pub(crate) const NO_INDEX: u32 = i32::MAX as u32;
/// State of an entry that the posting side holds, or that is in the ring.
const FREE: u32 = u32::MAX;
/// State of an entry that the device has.
pub(crate) const POSTED: u32 = u32::MAX - 1;
/// State of an entry that the device gave back unused; the other bits are the next such entry.
const UNUSED: u32 = 1 << 30;
/// End of the stack of unused entries.
const NO_ENTRY: u32 = UNUSED - 1;

/// Limit of [`Posting::take_next`] that accepts every index. Limits and indices are compared as
/// signed numbers.
pub(crate) const ANY: u32 = UNUSED;
/// Limit that disables [`Posting::take_next`] and enables [`Posting::next_of_lists`] (several
/// SGEs).
pub(crate) const WITH_LISTS: u32 = -1_i32 as u32;
/// Limit that disables both fast paths: all posts take the slow path.
pub(crate) const CLOSED: u32 = -2_i32 as u32;

/// The free entries, and the states of the others.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Places filled so far; wraps.
    tail: AtomicU32,
    /// Top of the stack of unused entries, which are to be posted again.
    unused: AtomicU32,
    /// Entries that the device may have at a time.
    granted: AtomicU32,
    tables: ListTables,
}

impl FreeList {
    /// A list with an entry for each of `ids`, all of them free, in order. The head is entry 0.
    ///
    /// # Panics
    /// If the number of entries is not a power of two, or below 2.
    pub(crate) fn new(ids: Arc<[AtomicU64]>) -> Self {
        let count = ids.len() as u32;
        assert!(count.is_power_of_two() && count >= 2, "an SRQ has a power of two entries");
        let list = Self {
            tail: AtomicU32::new(0),
            unused: AtomicU32::new(NO_ENTRY),
            granted: AtomicU32::new(count - 1),
            tables: ListTables::new(ids),
        };
        list.reset();
        list
    }

    pub(crate) fn reset(&self) {
        (0..=self.mask()).for_each(|index| self.state(index).store(FREE, Ordering::Relaxed));
        self.unused.store(NO_ENTRY, Ordering::Relaxed);
        self.limit().store(ANY, Ordering::Relaxed);
        let last = self.mask();
        self.granted.store(last, Ordering::Relaxed);
        for position in 0..=last {
            let index = if position < last { position + 1 } else { NO_INDEX };
            self.place(position).store(index, Ordering::Relaxed);
        }
        self.tail.store(last, Ordering::Release);
    }

    /// The entry at `position`, counted from the start of the queue, if it has been given back.
    /// Posting side only.
    pub(crate) fn next(&self, position: u32) -> Option<u32> {
        let next = self.place(position).load(Ordering::Acquire);
        (next < ANY).then_some(next)
    }

    /// Takes the entry that [`FreeList::next`] found out of the ring. It becomes the head; once the
    /// old head is filled, [`Posting::record`] marks it.
    pub(crate) fn take(&self, position: u32) {
        self.place(position).store(NO_INDEX, Ordering::Relaxed);
    }

    /// As [`Posting::record`].
    #[cfg(test)]
    pub(crate) fn mark(&self, entry: u32) {
        self.state(entry).store(POSTED, Ordering::Release);
    }

    /// Pointers for the posting side's fast path.
    pub(crate) fn posting(&self) -> Posting {
        self.tables.posting()
    }

    /// The place at a position, for the posting side's fast path.
    pub(crate) fn at(&self, position: u32) -> NextPlace {
        NextPlace::new(&self.tables, position)
    }

    /// Sets the limit of [`Posting::take_next`]. The caller then checks for unused entries: a
    /// thread that adds one later closes the fast path after this call.
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit().swap(limit, Ordering::AcqRel);
    }

    /// Closes the fast path. The next post takes the slow path, which recomputes the limit.
    pub(crate) fn close_fast_path(&self) {
        self.limit().swap(CLOSED, Ordering::AcqRel);
    }

    /// Sets how many entries the device may have from now on, at most all but the head.
    pub(crate) fn set_granted(&self, entries: u32) {
        self.granted.store(entries.min(self.mask()), Ordering::Relaxed);
        self.close_fast_path();
    }

    /// Whether the device may have all entries but the head, so that the ring itself is the bound.
    pub(crate) fn grants_all(&self) -> bool {
        self.granted.load(Ordering::Relaxed) >= self.mask()
    }

    /// Whether the device may have another entry after `taken` were taken in total. Posting side
    /// only.
    pub(crate) fn has_grant(&self, taken: u32) -> bool {
        let returned = self.tail.load(Ordering::Relaxed).wrapping_sub(self.mask());
        taken.wrapping_sub(returned) < self.granted.load(Ordering::Relaxed)
    }

    /// Whether the limit of [`Posting::take_next`] differs from `limit`.
    pub(crate) fn limit_is_not(&self, limit: u32) -> bool {
        self.limit().load(Ordering::Relaxed) != limit
    }

    /// Takes an entry from the device. False if the device names an entry that it did not have, or
    /// that does not exist. If a faulty device gives several pollers the same completion, only one
    /// of them gets the entry.
    #[inline(always)]
    pub(crate) fn claim(&self, index: u32) -> bool {
        self.tables.entry(index).is_some_and(|entry| claim(entry.state()))
    }

    /// Puts a claimed entry at the end of the ring.
    #[inline(always)]
    pub(crate) fn release(&self, index: u32) {
        // Each call gets its own place. Until the place is filled, the ring ends there for the
        // posting side.
        let position = self.tail.fetch_add(1, Ordering::AcqRel);
        self.place(position).store(index, Ordering::Release);
    }

    /// Claims and releases an entry; returns the id of the receive that was in it. `None` if the
    /// device did not have it.
    #[inline(always)]
    pub(crate) fn complete(&self, index: u32) -> Option<u64> {
        let entry = self.tables.entry(index)?;
        if !claim(entry.state()) {
            return None;
        }
        let wr_id = entry.id().load(Ordering::Relaxed);
        self.release(index);
        Some(wr_id)
    }

    /// The work request id of an entry.
    #[inline(always)]
    pub(crate) fn id(&self, index: u32) -> &AtomicU64 {
        self.tables.id(index)
    }

    /// Claims and releases an entry.
    #[cfg(test)]
    pub(crate) fn give_back(&self, index: u32) -> bool {
        let claimed = self.claim(index);
        if claimed {
            self.release(index);
        }
        claimed
    }

    /// Whether the device has the entry, or will have it with the next doorbell.
    #[cfg(test)]
    pub(crate) fn is_posted(&self, index: u32) -> bool {
        self.state(index).load(Ordering::Acquire) == POSTED
    }

    /// Whether the entry is not free: the device has it, or gave it back unused.
    pub(crate) fn is_taken(&self, index: u32) -> bool {
        self.state(index).load(Ordering::Relaxed) != FREE
    }

    /// Whether a faulty device has returned the head, which a leaked batch built but never
    /// published. Only then is the head in the ring. `position` is the next place, which the batch
    /// has emptied. Posting side only.
    pub(crate) fn is_back(&self, head: u32, position: u32) -> bool {
        let is_filled_later = self.tail.load(Ordering::Relaxed) != position;
        let is_in_ring = || (0..=self.mask()).any(|at| self.next(at) == Some(head));
        self.next(position).is_none() && is_filled_later && is_in_ring()
    }

    /// Puts an entry that the device gave back unused on the stack, to be posted again. Returns
    /// false, with nothing changed, if the device did not have the entry: an entry that is on the
    /// stack twice would never come off it.
    pub(crate) fn return_for_repost(&self, index: u32) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if index > self.mask()
            || self.state(index).compare_exchange(POSTED, UNUSED, acquire, relaxed).is_err()
        {
            return false;
        }
        let mut top = self.unused.load(Ordering::Relaxed);
        loop {
            self.state(index).store(UNUSED | top, Ordering::Relaxed);
            let release = Ordering::Release;
            match self.unused.compare_exchange(top, index, release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        // An exchange, as in `set_limit`, so that one of the two calls sees the other's change.
        self.limit().swap(CLOSED, Ordering::AcqRel);
        true
    }

    /// Whether entries wait to be posted again.
    #[inline(always)]
    pub(crate) fn has_unused(&self) -> bool {
        self.unused.load(Ordering::Relaxed) != NO_ENTRY
    }

    /// Takes one of the entries to be posted again. Only the caller uses it until it is
    /// [released](FreeList::release), and no completion can name it. Posting side only: no other
    /// thread takes entries off the stack.
    pub(crate) fn take_unused(&self) -> Option<u32> {
        let mut top = self.unused.load(Ordering::Acquire);
        while top != NO_ENTRY {
            let below = self.state(top).load(Ordering::Relaxed) & !UNUSED;
            let acquire = Ordering::Acquire;
            match self.unused.compare_exchange(top, below, acquire, acquire) {
                Ok(_) => {
                    self.state(top).store(FREE, Ordering::Relaxed);
                    return Some(top & self.mask());
                }
                Err(now) => top = now,
            }
        }
        None
    }

    #[inline(always)]
    fn state(&self, index: u32) -> &AtomicU32 {
        self.tables.state(index)
    }

    #[inline(always)]
    fn limit(&self) -> &AtomicU32 {
        self.tables.limit()
    }

    #[inline(always)]
    fn place(&self, position: u32) -> &AtomicU32 {
        self.tables.place(position)
    }

    /// Entries minus one.
    #[inline(always)]
    fn mask(&self) -> u32 {
        self.tables.mask()
    }
}

/// Takes the entry with this state from the device, if the device has it.
#[inline(always)]
fn claim(state: &AtomicU32) -> bool {
    // Acquire: see `Posting::record`.
    state.compare_exchange(POSTED, FREE, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// A list that is not part of a queue, for tests.
#[cfg(test)]
pub(crate) fn list_of(entries: u32) -> FreeList {
    FreeList::new((0..entries).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Takes all free entries, from `position` and `head` on. Returns the next position and head.
    fn take_all(
        list: &FreeList,
        mut position: u32,
        mut head: u32,
        taken: &mut Vec<u32>,
    ) -> (u32, u32) {
        while let Some(next) = list.next(position) {
            list.take(position);
            list.mark(head);
            taken.push(head);
            (position, head) = (position.wrapping_add(1), next);
        }
        (position, head)
    }

    #[test]
    fn holds_all_but_one_and_returns_in_any_order() {
        let list = list_of(4);
        let mut taken = Vec::new();
        let (position, head) = take_all(&list, 0, 0, &mut taken);
        assert_eq!((taken.as_slice(), head), ([0, 1, 2].as_slice(), 3));
        for index in [1, 0, 2] {
            assert!(list.give_back(index));
        }
        taken.clear();
        let (_, head) = take_all(&list, position, head, &mut taken);
        assert_eq!((taken.as_slice(), head), ([3, 1, 0].as_slice(), 2));
    }

    /// The position of the ring that is filled next, and the number of receives posted, wrap.
    #[test]
    fn grants_the_same_over_the_counters_wrap() {
        let list = list_of(4);
        let (mut position, mut head) = (0u32.wrapping_sub(8), 0);
        list.tail.store(position.wrapping_add(3), Ordering::Relaxed);
        list.set_granted(2);
        for _ in 0..16 {
            let mut taken = Vec::new();
            while let Some(next) = list.next(position).filter(|_| list.has_grant(position)) {
                list.take(position);
                list.mark(head);
                taken.push(head);
                (position, head) = (position.wrapping_add(1), next);
            }
            assert_eq!(taken.len(), 2, "at {position:#x}");
            assert!(taken.into_iter().rev().all(|index| list.give_back(index)));
        }
    }

    #[test]
    fn an_entry_comes_back_once() {
        let list = list_of(4);
        assert!(!list.give_back(2), "never posted");
        list.take(0);
        list.mark(0);
        assert!(list.give_back(0) && !list.give_back(0));
    }

    #[test]
    fn an_index_beyond_the_ring_names_no_entry() {
        let list = list_of(4);
        list.take(0);
        list.mark(1);
        assert!(!list.give_back(0xfffd) && !list.return_for_repost(0xfffd));
        assert!(list.give_back(1));
    }

    /// A second completion of an entry that the device gave back unused is refused, even while the
    /// posting side is posting the entry again.
    #[test]
    fn an_entry_that_is_being_posted_again_completes_nothing() {
        let list = list_of(4);
        list.take(0);
        list.mark(0);
        assert!(list.return_for_repost(0));
        assert!(!list.claim(0) && !list.return_for_repost(0));
        assert_eq!(list.take_unused(), Some(0));
        assert!(!list.claim(0) && !list.return_for_repost(0));
        list.release(0);
        assert!(!list.claim(0) && !list.return_for_repost(0));
    }

    #[test]
    #[allow(unsafe_code, reason = "the pointers are used as the posting side does")]
    fn the_fast_path_takes_the_same_up_to_the_limit() {
        let list = list_of(4);
        let posting = list.posting();
        // SAFETY: the list is alive, and these are its indices.
        let take = |position, head| unsafe {
            let mut place = list.at(position);
            let next = posting.take_next(&mut place);
            next.inspect(|_| {
                assert_eq!(place.since(list.at(position)), 1);
                posting.record(head, 7);
            })
        };
        assert_eq!(take(0, 0), Some(1));
        assert!(list.is_posted(0));
        list.set_limit(CLOSED);
        assert_eq!(take(1, 1), None);
        list.set_limit(ANY);
        assert_eq!((take(1, 1), take(2, 2)), (Some(2), Some(3)));
        assert_eq!(take(3, 3), None, "the last one stays");
        // While an unused entry waits to be posted again, the fast path is closed.
        assert!(list.give_back(1));
        list.return_for_repost(0);
        assert_eq!(take(3, 3), None);
        // A faulty device returns the same entry again.
        list.return_for_repost(0);
        list.set_limit(ANY);
        assert_eq!((list.take_unused(), list.take_unused()), (Some(0), None));
        assert_eq!(take(3, 3), Some(1));
    }
}
