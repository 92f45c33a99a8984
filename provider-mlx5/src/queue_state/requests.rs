//! Where each request of a send queue starts and ends, and its kind, for the posting and the
//! polling side.

use std::sync::OnceLock;

use super::{NO_START, QueueState};
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The operation for which a UMR or NOP was posted. The requester's CQE does not name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Neither: the opcode in the CQE is enough.
    Plain = 0,
    /// A memory window bind.
    Bind = 1,
    /// A local invalidate.
    LocalInvalidate = 2,
    /// A change of a memory key that the caller has encoded.
    Key = 3,
}

impl Kind {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Bind,
            2 => Self::LocalInvalidate,
            3 => Self::Key,
            _ => Self::Plain,
        }
    }
}

/// Ids of requests that the caller has encoded. In the table of ids such a request has
/// [`NO_START`], which makes the fast path leave its completion to the slow path.
#[derive(Debug, Default)]
pub(super) struct EncodedIds {
    is_used: AtomicBool,
    /// The id, and the counter of the request, at the index of its first block.
    entries: OnceLock<Box<[[AtomicU64; 2]]>>,
}

impl EncodedIds {
    /// Clears the table for the block's next queue, whose counters start at 0 again.
    pub(super) fn forget(&self) {
        self.is_used.store(false, Ordering::Relaxed);
        let entries = self.entries.get().into_iter().flatten();
        entries.for_each(|[_, start]| start.store(NO_COUNTER, Ordering::Relaxed));
    }
}

/// The counter in an [`EncodedIds`] entry that has no request.
const NO_COUNTER: u64 = u64::MAX;

/// Most blocks that a WQE has after its first one.
const MAX_INNER_BLOCKS: u32 = 15;

/// A [`QueueState::send_end`] entry whose block is not the second one of a request.
pub(super) const NO_END: u64 = u64::MAX;

impl QueueState {
    /// The work request id of the send WQE that starts at counter `index`.
    #[inline(always)]
    pub(crate) fn send_entry(&self, index: u32) -> &AtomicU64 {
        self.sends.entry(index)
    }

    pub(crate) fn set_send_kind(&self, index: u32, kind: u8) {
        self.kind_entry(index).inspect(|entry| entry.store(kind, Ordering::Relaxed));
    }

    /// The kind of the request whose 16-bit index this is, if it has completed no longer ago than
    /// the last poll of its CQ.
    pub(crate) fn send_kind(&self, index: u16) -> Kind {
        let entry = self.kind_entry(u32::from(index));
        Kind::from_bits(entry.map_or(0, |entry| entry.load(Ordering::Relaxed)))
    }

    fn kind_entry(&self, index: u32) -> Option<&AtomicU8> {
        let kinds = &self.fixed.send_kinds;
        kinds.get(index as usize & kinds.len().wrapping_sub(1))
    }

    /// Makes completions find the ids of requests that the caller has encoded, from now on.
    pub(crate) fn tell_encoded(&self) {
        let entry = |_| [AtomicU64::new(0), AtomicU64::new(NO_COUNTER)];
        self.fixed.encoded.entries.get_or_init(|| (0..self.sends.len()).map(entry).collect());
        self.fixed.encoded.is_used.store(true, Ordering::Relaxed);
    }

    /// Whether completions look for requests that the caller has encoded.
    pub(crate) fn tells_encoded(&self) -> bool {
        self.fixed.encoded.is_used.load(Ordering::Relaxed)
    }

    fn encoded_entry(&self, counter: u32) -> Option<&[AtomicU64; 2]> {
        let entries = self.fixed.encoded.entries.get().filter(|_| self.tells_encoded())?;
        entries.get((counter & (self.sends.len() - 1)) as usize)
    }

    /// Records the id of a request that the caller has encoded.
    pub(crate) fn set_encoded(&self, counter: u32, wr_id: u64) {
        if let Some([id, start]) = self.encoded_entry(counter) {
            id.store(wr_id, Ordering::Relaxed);
            start.store(counter.into(), Ordering::Relaxed);
        }
    }

    /// Removes the record of a request that was never published.
    pub(crate) fn forget_encoded(&self, counter: u32) {
        if let Some([_, start]) = self.encoded_entry(counter) {
            start.store(NO_COUNTER, Ordering::Relaxed);
        }
    }

    /// The id of the outstanding request at this 16-bit index, if the caller has encoded it.
    /// Poller only.
    pub(crate) fn encoded(&self, index: u16) -> Option<u64> {
        let published = self.published_sends.load(Ordering::Acquire);
        let back = (published as u16).wrapping_sub(index);
        self.encoded_at(published.wrapping_sub(u32::from(back)))
    }

    /// The id of the request that starts at this counter, if the caller has encoded it.
    pub(crate) fn encoded_at(&self, counter: u32) -> Option<u64> {
        let [id, start] = self.encoded_entry(counter)?;
        // An entry of another counter is left from an earlier lap.
        let is_its = start.load(Ordering::Relaxed) == u64::from(counter);
        is_its.then(|| id.load(Ordering::Relaxed))
    }

    /// Whether a published, not yet completed request starts at this 16-bit index of the send
    /// queue. Poller only.
    pub(crate) fn has_send(&self, index: u16) -> bool {
        // Acquire: the data written before publication is visible.
        let published = self.published_sends.load(Ordering::Acquire);
        self.sends.is_outstanding(index, published as u16) && {
            let back = (published as u16).wrapping_sub(index);
            self.is_start(published.wrapping_sub(u32::from(back)))
        }
    }

    /// Whether a request starts at this counter of the send queue. A block that is recorded as a
    /// later one of a request does not start one.
    fn is_start(&self, counter: u32) -> bool {
        self.send_start(counter) == counter
    }

    /// The counter of the first block of the request that the block at `counter` belongs to.
    #[inline(always)]
    pub(crate) fn send_start(&self, counter: u32) -> u32 {
        if self.send_entry(counter).load(Ordering::Relaxed) != NO_START {
            return counter;
        }
        // A program's id may equal that number, so the second table decides.
        self.noted_start(counter).unwrap_or(counter)
    }

    /// The start of the request that recorded this block as a later one.
    #[cold]
    #[inline(never)]
    fn noted_start(&self, counter: u32) -> Option<u32> {
        let most = (self.send_wqebbs() - 1).min(MAX_INNER_BLOCKS);
        // An end that was recorded in an earlier lap is before `second`, because no request is
        // longer than the ring.
        let has_block = |second: &u32| {
            self.send_end(*second).is_some_and(|end| {
                [*second, counter].iter().all(|at| (1..=most).contains(&end.wrapping_sub(*at)))
            })
        };
        let second = (0..most).map(|back| counter.wrapping_sub(back)).find(has_block)?;
        Some(second.wrapping_sub(1))
    }

    /// The end of the request of several blocks whose second block is at `second`. These entries
    /// follow the ids in the table (see [`QueueState::send_table`]).
    ///
    /// All blocks of a request but the first have the id [`NO_START`]. This entry distinguishes
    /// them from a request whose id happens to be that number.
    fn send_end(&self, second: u32) -> Option<u32> {
        self.send_end_entry(second)?.load(Ordering::Relaxed).try_into().ok()
    }

    fn send_end_entry(&self, second: u32) -> Option<&AtomicU64> {
        let slot = second & (self.sends.len() - 1);
        self.fixed.send_entries.get((self.sends.len() + slot) as usize)
    }

    /// Records the end of the request whose second block is at this counter; `None` if there is no
    /// such request.
    pub(crate) fn set_send_end(&self, second: u32, end: Option<u32>) {
        if let Some(entry) = self.send_end_entry(second) {
            entry.store(end.map_or(NO_END, u64::from), Ordering::Relaxed);
        }
    }
}
