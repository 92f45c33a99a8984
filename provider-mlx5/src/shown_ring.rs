//! A queue's ring as its poller sees it, for copying inline data of a CQE.
//!
//! While a poller reads a ring, another thread may close the queue and free the ring's memory. So
//! the thread that hides the ring waits until no poller reads it, which takes at most one copy of
//! 64 bytes. Pollers never wait.

use crate::format::DataSegment;
use crate::memory::DmaMemory;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, spin};

/// The ring in which the poller finds the scatter entries of a WQE whose data is inside the CQE.
///
/// All entries are within the ring's memory. The queue hides the ring when it is dropped. From then
/// on the memory may be freed.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: DmaMemory,
    /// Entries minus one.
    mask: u32,
    /// log2 of the bytes per entry.
    shift: u32,
    /// Bytes before the first scatter entry of a receive WQE.
    head: u32,
}

impl Ring {
    /// The ring of `entries` entries at the start of `memory`. `None` if it does not fit, or an
    /// entry does not hold its head and a scatter entry.
    pub(crate) fn on(memory: DmaMemory, entries: u32, stride: u32, head: u32) -> Option<Self> {
        let holds_one = head as usize + size_of::<DataSegment>() <= stride as usize;
        let fits = holds_one && stride.is_power_of_two() && memory.holds(entries, stride as usize);
        let (mask, shift) = (entries.wrapping_sub(1), stride.trailing_zeros());
        fits.then_some(Self { memory, mask, shift, head })
    }
}

/// A ring, as long as pollers may read it.
#[derive(Debug)]
pub(crate) struct ShownRing {
    /// The number of pollers that are reading it, and the bits [`GONE`] and [`CHANGING`].
    users: AtomicU32,
    /// The parts of a [`Ring`]. Written only by [`ShownRing::set`], while no thread reads them.
    ///
    /// The ring's start plus `head` bytes: the first scatter entry of the first WQE.
    first: AtomicPtr<u8>,
    mask: AtomicU32,
    shift: AtomicU32,
    head: AtomicU32,
}

/// Pollers must not read the ring.
const GONE: u32 = 1 << 31;
/// A thread is in [`ShownRing::set`]: others wait for it.
const CHANGING: u32 = 1 << 30;

impl ShownRing {
    /// No ring.
    pub(crate) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            users: AtomicU32::new(GONE),
            first: AtomicPtr::new(core::ptr::null_mut()),
            mask: zero(),
            shift: zero(),
            head: zero(),
        }
    }

    /// Hides the ring, and shows another one if one is given. One thread at a time does this;
    /// others wait.
    pub(crate) fn set(&self, ring: Option<&Ring>) {
        // Acquire: the fields that another thread set are visible.
        while self.users.fetch_or(GONE | CHANGING, Ordering::Acquire) & CHANGING != 0 {
            spin();
        }
        // Acquire: all reads of pollers come before the memory is freed.
        while self.users.load(Ordering::Acquire) != GONE | CHANGING {
            spin();
        }
        let mut done = CHANGING;
        if let Some(ring) = ring {
            // The ring is hidden, no thread is reading it, and no other thread is changing it. So
            // no thread sees parts of two rings.
            let first = ring.memory.as_ptr().wrapping_add(ring.head as usize);
            self.first.store(first, Ordering::Relaxed);
            self.mask.store(ring.mask, Ordering::Relaxed);
            self.shift.store(ring.shift, Ordering::Relaxed);
            self.head.store(ring.head, Ordering::Relaxed);
            done |= GONE;
        }
        self.users.fetch_and(!done, Ordering::Release);
    }

    /// Whether there was a ring just now.
    #[inline(always)]
    pub(crate) fn is_shown(&self) -> bool {
        self.users.load(Ordering::Relaxed) & GONE == 0
    }

    /// Runs `use_it` on the ring, unless it is gone.
    #[inline(always)]
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(LentRing<'_>) -> T) -> Option<T> {
        // Spares a queue that shows no ring the two exchanges below.
        if !self.is_shown() {
            return None;
        }
        // Acquire: the fields of the shown ring are visible.
        let before = self.users.fetch_add(1, Ordering::Acquire);
        let result = if before & GONE == 0 {
            // The ring was shown when this thread was counted. So until this thread is no longer
            // counted, `set` neither writes the fields nor returns to a caller that frees the
            // memory.
            Some(use_it(LentRing(self)))
        } else {
            None
        };
        self.users.fetch_sub(1, Ordering::Release);
        result
    }
}

/// The [`Ring`] that is shown, while it cannot be hidden. Each field is loaded where it is used.
#[derive(Clone, Copy)]
pub(crate) struct LentRing<'r>(&'r ShownRing);

impl LentRing<'_> {
    #[inline(always)]
    pub(crate) fn base(self) -> *mut u8 {
        self.first().wrapping_sub(self.head() as usize)
    }

    /// The first scatter entry of the first receive WQE.
    #[inline(always)]
    pub(crate) fn first(self) -> *mut u8 {
        self.0.first.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn mask(self) -> u32 {
        self.0.mask.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn shift(self) -> u32 {
        self.0.shift.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn head(self) -> u32 {
        self.0.head.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_shown_until_it_is_taken_away() {
        let ring = |entries| Ring::on(DmaMemory::leaked(16 * 64), entries, 64, 0);
        let shown = ShownRing::new();
        assert_eq!(shown.with(|ring| ring.mask()), None);
        shown.set(ring(8).as_ref());
        assert_eq!(shown.with(|ring| ring.mask()), Some(7));
        shown.set(ring(16).as_ref());
        assert_eq!(shown.with(|ring| ring.mask()), Some(15));
        shown.set(None);
        assert_eq!(shown.with(|ring| ring.mask()), None);
    }

    #[test]
    fn a_ring_is_within_its_memory_and_its_entries_hold_an_sge() {
        let ring = |entries, stride, head| Ring::on(DmaMemory::leaked(512), entries, stride, head);
        assert!(ring(8, 64, 48).is_some());
        assert!(ring(8, 64, 49).is_none(), "the SGE would be in the next entry");
        assert!(ring(16, 64, 0).is_none(), "the ring would end behind its memory");
        assert!(ring(0, 64, 0).is_none() && ring(3, 64, 0).is_none() && ring(2, 96, 0).is_none());
    }
}
