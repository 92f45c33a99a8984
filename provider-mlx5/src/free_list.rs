//! The free WQEs of a shared receive queue: a queue with many producers and one consumer, in a table of links.
//!
//! The device returns an SRQ's WQEs in any order, through any number of CQs, each polled by its own thread; the posting
//! thread takes them. The list never becomes empty: its last entry stays, because the link that the device follows out of
//! a posted WQE must already name the next one to be posted. So a ring of N entries holds N - 1 receives.
//!
//! The links are software's own; the device reads those in the WQEs, which the posting side copies from here.

use crate::sync::{AtomicU32, Ordering};

/// The entry is the last of the list, for now.
const LAST: u32 = u32::MAX;
/// The device has the entry.
const POSTED: u32 = u32::MAX - 1;
/// The device gave the entry back unused; the other bits are the next such entry.
const UNUSED: u32 = 1 << 30;
/// No such entry.
const NO_ENTRY: u32 = UNUSED - 1;

/// What every link to a next entry is below, and what none is.
pub(crate) const ANY: u32 = UNUSED;
pub(crate) const NONE: u32 = 0;

/// Links of the free entries, and the list's tail. The head belongs to the posting side.
#[derive(Debug)]
pub(crate) struct FreeList {
    tail: AtomicU32,
    /// Entries to be posted again, as a stack.
    unused: AtomicU32,
    links: Box<[AtomicU32]>,
}

impl FreeList {
    /// All of `entries` (a power of two, at least 2) free, in order, starting at 0.
    pub(crate) fn new(entries: u32) -> Self {
        let count = entries.next_power_of_two().max(2);
        let list = Self {
            tail: AtomicU32::new(0),
            unused: AtomicU32::new(NO_ENTRY),
            links: (0..count).map(|_| AtomicU32::new(LAST)).collect(),
        };
        list.reset();
        list
    }

    pub(crate) fn reset(&self) {
        let last = self.links.len() as u32 - 1;
        for (index, link) in self.links.iter().enumerate() {
            let next = index as u32 + 1;
            link.store(if next <= last { next } else { LAST }, Ordering::Relaxed);
        }
        self.unused.store(NO_ENTRY, Ordering::Relaxed);
        self.tail.store(last, Ordering::Release);
    }

    /// The entry after `head`, if `head` may be taken. Posting side only.
    #[inline(always)]
    pub(crate) fn after(&self, head: u32) -> Option<u32> {
        after(self.link(head), ANY)
    }

    /// Marks `head` as the device's. Posting side only, after [`FreeList::after`] said that it may.
    #[inline(always)]
    pub(crate) fn take(&self, head: u32) {
        self.link(head).store(POSTED, Ordering::Relaxed);
    }

    /// The links, for [`take_next`].
    pub(crate) fn links(&self) -> *const AtomicU32 {
        self.links.as_ptr()
    }

    /// Puts a returned entry at the end of the list. False if the device did not have it, as it claims.
    #[inline(always)]
    pub(crate) fn give_back(&self, index: u32) -> bool {
        let index = index & self.mask();
        let link = self.link(index);
        if link.load(Ordering::Relaxed) != POSTED {
            return false;
        }
        link.store(LAST, Ordering::Relaxed);
        // The exchange decides who follows whom; between it and the store the list ends early for the posting side.
        let before = self.tail.swap(index, Ordering::AcqRel);
        self.link(before).store(index, Ordering::Release);
        true
    }

    /// Whether the device has the entry.
    pub(crate) fn is_posted(&self, index: u32) -> bool {
        self.link(index).load(Ordering::Relaxed) == POSTED
    }

    /// Whether the entry is not free: the device has it, or gave it back unused.
    pub(crate) fn is_taken(&self, index: u32) -> bool {
        (UNUSED..LAST).contains(&self.link(index).load(Ordering::Relaxed))
    }

    /// Puts an entry aside that the device gave back unused, to be posted again.
    pub(crate) fn return_for_repost(&self, index: u32) {
        let index = index & self.mask();
        let mut top = self.unused.load(Ordering::Relaxed);
        loop {
            self.link(index).store(UNUSED | top, Ordering::Relaxed);
            let release = Ordering::Release;
            match self.unused.compare_exchange(top, index, release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Whether entries wait to be posted again.
    #[inline(always)]
    pub(crate) fn has_unused(&self) -> bool {
        self.unused.load(Ordering::Relaxed) != NO_ENTRY
    }

    /// Takes one of the entries to be posted again; it counts as the device's until it is given back. Posting side only:
    /// nobody else takes entries off the stack, so one that is on it stays where it is.
    pub(crate) fn take_unused(&self) -> Option<u32> {
        let mut top = self.unused.load(Ordering::Acquire);
        while top != NO_ENTRY {
            let below = self.link(top).load(Ordering::Relaxed) & !UNUSED;
            let acquire = Ordering::Acquire;
            match self.unused.compare_exchange(top, below, acquire, acquire) {
                Ok(_) => {
                    self.link(top).store(POSTED, Ordering::Relaxed);
                    return Some(top & self.mask());
                }
                Err(now) => top = now,
            }
        }
        None
    }

    #[inline(always)]
    fn mask(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    #[inline(always)]
    fn link(&self, index: u32) -> &AtomicU32 {
        // SAFETY: the length is a power of two, so the masked index is below it.
        unsafe { self.links.get_unchecked((index & self.mask()) as usize) }
    }
}

#[inline(always)]
fn after(link: &AtomicU32, below: u32) -> Option<u32> {
    let next = link.load(Ordering::Acquire);
    (next < below).then_some(next)
}

/// [`FreeList::after`] and [`FreeList::take`] at once, if the link is below `below`, which is at most [`ANY`].
///
/// # Safety
/// `links` are those of a list that is alive, and `head` is an index below their number: what this returned before.
#[inline(always)]
pub(crate) unsafe fn take_next(links: *const AtomicU32, head: u32, below: u32) -> Option<u32> {
    // SAFETY: the caller's promise.
    let link = unsafe { &*links.add(head as usize) };
    let next = after(link, below)?;
    link.store(POSTED, Ordering::Relaxed);
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_all_but_one_and_returns_in_any_order() {
        let list = FreeList::new(4);
        let mut head = 0;
        let mut taken = Vec::new();
        while let Some(next) = list.after(head) {
            list.take(head);
            taken.push(head);
            head = next;
        }
        assert_eq!((taken.as_slice(), head), ([0, 1, 2].as_slice(), 3));
        for index in [1, 0, 2] {
            assert!(list.give_back(index));
        }
        let order: Vec<u32> = core::iter::successors(Some(head), |&at| list.after(at)).collect();
        assert_eq!(order, [3, 1, 0, 2]);
    }

    #[test]
    fn an_entry_comes_back_once() {
        let list = FreeList::new(4);
        assert!(!list.give_back(2), "never posted");
        list.take(0);
        assert!(list.give_back(0) && !list.give_back(0));
    }

    #[test]
    fn an_index_from_the_device_is_masked() {
        let list = FreeList::new(4);
        list.take(1);
        assert!(list.give_back(0xffff_fffd));
    }
}
