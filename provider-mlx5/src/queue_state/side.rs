//! One direction of a queue, sends or receives, as its poller sees it.

use crossbeam_utils::CachePadded;

use super::QueueState;
use super::pointers::{Polled, PolledReceives, PolledSends, fast_base_of};
use crate::free_list::FreeList;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The id in the work request id table for a block in which no request starts. A program may use
/// this number as an id, so when the slow path finds it, it checks a second table. It is a
/// sign-extended 32-bit number, so that one instruction compares with it.
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
    pub(super) last: AtomicU32,
    /// [`base_of`] the index after the last published request that the poller has seen.
    pub(super) base: AtomicU32,
    /// The CQ whose poller may complete requests on the fast path: its
    /// [identity](crate::completion_queue::CqMonitor), plus [`SHARED`] if the receives are an
    /// SRQ's. Otherwise 0, which identifies no CQ, while the queue is closed or completes nowhere.
    cq: AtomicU64,
    pub(super) entries: *const AtomicU64,
    /// Entries of the table of work request ids, minus one.
    pub(super) mask: u32,
    /// Whether inline data of a CQE is copied to the receive's buffers.
    copies_inline: AtomicBool,
    /// The SRQ's entries, if the receives are an SRQ's.
    pub(super) shared: AtomicPtr<FreeList>,
    /// The value that completions return, see [`QueueState::set_side_contexts`].
    context: AtomicU64,
    /// The block that this side is part of.
    block: AtomicPtr<QueueState>,
}

/// Prepares the index after the last known published request for [`last_word`].
#[inline(always)]
pub(super) const fn base_of(end: u16) -> u32 {
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
#[inline(always)]
const fn index_of(word: u32) -> u16 {
    ((word >> 16) as u16).wrapping_add(word as u16)
}

/// Set in [`Side::cq`] if the receives are an SRQ's. An identity is an address, which is even.
const SHARED: u64 = 1;

/// The greatest word: no index is outstanding.
pub(super) const NONE_OUTSTANDING: u32 = u32::MAX;

/// Nothing was published or completed yet: the index that completed last is the one before the
/// first.
const UNUSED: u32 = last_word(u16::MAX, base_of(0));

impl Side {
    /// A side whose work request ids are the first `count` of `entries`.
    pub(super) fn new(entries: &[AtomicU64], count: usize) -> CachePadded<Self> {
        CachePadded::new(Self {
            last: AtomicU32::new(UNUSED),
            base: AtomicU32::new(base_of(0)),
            cq: AtomicU64::new(0),
            entries: entries.as_ptr(),
            mask: count as u32 - 1,
            copies_inline: AtomicBool::new(false),
            shared: AtomicPtr::new(core::ptr::null_mut()),
            context: AtomicU64::new(0),
            block: AtomicPtr::new(core::ptr::null_mut()),
        })
    }

    /// Whether the poller of this CQ may complete requests on the fast path: the queue is open, its
    /// requests complete to this CQ only, and if they are receives, they are the QP's own.
    #[inline(always)]
    pub(crate) fn is_polled_by(&self, cq: u64) -> bool {
        self.cq.load(Ordering::Acquire) == cq
    }

    /// [`Side::is_polled_by`] for receives of an SRQ.
    #[inline(always)]
    pub(crate) fn is_shared_and_polled_by(&self, cq: u64) -> bool {
        self.cq.load(Ordering::Acquire) == cq | SHARED
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
    /// base to `published`. Poller only.
    pub(super) fn is_outstanding(&self, index: u16, published: u16) -> bool {
        let base = base_of(published);
        let difference = self.base.load(Ordering::Relaxed).wrapping_sub(base);
        let last = self.last.load(Ordering::Relaxed).wrapping_add(difference);
        self.base.store(base, Ordering::Relaxed);
        self.retire(last);
        last_word(index, base) > last
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

    /// Sets the block that this side is part of. It does not move: it is in an `Arc`.
    pub(super) fn set_block(&self, block: &QueueState) {
        self.block.store(core::ptr::from_ref(block).cast_mut(), Ordering::Relaxed);
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

    /// Sets the CQ whose poller may complete requests on its fast path; 0 for none.
    pub(super) fn set_cq(&self, cq: u64) {
        let is_shared = !self.shared.load(Ordering::Relaxed).is_null();
        let key = if cq != 0 && is_shared { cq | SHARED } else { cq };
        // Release: publishes the other fields to the poller that reads it.
        self.cq.store(key, Ordering::Release);
    }

    /// The 16-bit index of the WQE that completed last.
    #[inline(always)]
    pub(super) fn completed(&self) -> u16 {
        index_of(self.last.load(Ordering::Acquire))
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

impl<const SENDS: bool> Polled<'_, SENDS> {
    /// `last_word` of the 16-bit index in the upper half of `index`, and the word above which an
    /// index is outstanding.
    #[inline(always)]
    fn compared(self, index: u32) -> (u32, u32) {
        (index.wrapping_sub(self.base()), self.last())
    }

    /// `word` and the `last_word` of the index that completed last, recomputed for the current
    /// number of published requests. The caller stores the second word, or that of a request that
    /// it retires.
    #[inline(always)]
    fn by_now(self, word: u32) -> (u32, u32) {
        let base = fast_base_of(match SENDS {
            true => self.published_sends.load(Ordering::Acquire) & 0xffff,
            false => self.published_receives.load(Ordering::Acquire),
        });
        // Loads both words again, so that the fast path needs no registers for them.
        let difference = self.base().wrapping_sub(base);
        self.side().base.store(base, Ordering::Relaxed);
        (word.wrapping_add(difference), difference.wrapping_add(self.last()))
    }
}

impl PolledSends<'_> {
    /// `last_word` of the send at the 16-bit index in the upper half of `index`, and its id. The
    /// caller passes the word to [`Side::retire`] before anything reads the side. `None` if the
    /// send is not outstanding, or its id alone does not say that a request starts there; then the
    /// slow path decides, and no observable state has changed.
    #[inline(always)]
    pub(crate) fn outstanding(self, index: u32) -> Option<(u32, u64)> {
        let (word, last) = self.compared(index);
        if word > last {
            return Some((word, self.id_of_start(index)?));
        }
        crate::hint::cold_path();
        let (word, last) = self.by_now(word);
        let wr_id = if word > last { self.id_of_start(index) } else { None };
        // Otherwise the caller stores `word` there.
        if wr_id.is_none() {
            self.side().retire(last);
        }
        Some((word, wr_id?))
    }

    /// The id of the send at the 16-bit index in the upper half of `index`.
    #[inline(always)]
    fn id_of_start(self, index: u32) -> Option<u64> {
        let wr_id = self.side().entry(index >> 16).load(Ordering::Relaxed);
        (wr_id != NO_START).then_some(wr_id)
    }
}

impl PolledReceives<'_> {
    /// `last_word` of the 16-bit index in the upper half of `index`, for [`Side::retire`]; `None`
    /// if it is not outstanding. The acquire load makes the request visible, in particular its id.
    #[inline(always)]
    pub(crate) fn outstanding(self, index: u32) -> Option<u32> {
        let (word, last) = self.compared(index);
        if word > last {
            return Some(word);
        }
        crate::hint::cold_path();
        let (word, last) = self.by_now(word);
        self.side().retire(last);
        (word > last).then_some(word)
    }

    /// Completes the receive at the 16-bit index in the upper half of `index`, and all before it.
    /// Returns its id; `None`, with no observable state changed, if it is not outstanding.
    #[inline(always)]
    pub(crate) fn complete(self, index: u32) -> Option<u64> {
        let (mut word, last) = self.compared(index);
        if word <= last {
            crate::hint::cold_path();
            let (now, last) = self.by_now(word);
            if now <= last {
                self.side().retire(last);
                return None;
            }
            word = now;
        }
        let wr_id = self.side().entry(index >> 16).load(Ordering::Relaxed);
        self.side().retire(word);
        Some(wr_id)
    }
}
