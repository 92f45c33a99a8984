//! The state that the posting side and the polling side of a queue share: one block per QP or SRQ.
//!
//! Posting and polling may happen in different threads. The posting thread owns the head of its
//! ring and everything else in its queue structure. The polling thread retires requests and owns
//! the tails. Both use a [`QueueState`], which the poller finds by the user index of a CQE:
//!
//! - the tails, each written only by its poller, on cache lines of their own. The posting side
//!   re-reads them only when its cached copy says that the ring is full, so in the steady state
//!   neither thread writes a line that the other one reads;
//! - the table of work request ids: an entry is written before the doorbell that publishes its WQE
//!   and read after the CQE that retires it. The entries are relaxed atomics; the counters of
//!   published requests order them;
//! - the number of published requests. The poller checks each completion against its own copy of
//!   that number, and reads it again when a completion is beyond the copy;
//! - rarely changed data: the QP's state and number, and the user's context value.
//!
//! A block is never freed while the [`UserIndexTable`](crate::user_index::UserIndexTable) lives; it
//! is reused for later queues of the same shape.

mod pointers;
mod qp_state;
mod requests;
mod side;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::completion_queue::{CqMonitor, is_before};
use crate::free_list::FreeList;
use crate::shown_ring::{LentRing, Ring, ShownRing};
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, lock, lock_unless,
};
use crate::tag_list::TagList;
pub(crate) use pointers::{
    BlockTable, ListTables, NextPlace, PLACES, Places, PolledQueues, PolledReceives, PolledSends,
    Posting, Receives,
};
pub use qp_state::QpState;
pub(crate) use requests::Kind;
use requests::{EncodedIds, NO_END};
pub(crate) use side::{NO_START, Side};

/// The counter of the request that completed last, given `head` and how many requests (or blocks)
/// before it are `outstanding`.
///
/// `completed` comes from the device, so the result is `None` unless it names an outstanding
/// request. Rings have at most 2^15 entries, so 16 bits identify one.
#[inline]
pub(crate) fn completed_counter(completed: u16, head: u32, outstanding: u32) -> Option<u32> {
    let back = u32::from((head as u16).wrapping_sub(completed));
    // Neither 0 nor too many, in one comparison.
    (back.wrapping_sub(1) < outstanding).then(|| head.wrapping_sub(back))
}

/// The block that the two sides of a QP or SRQ share. Opaque: the queues and the poller use it.
#[derive(Debug)]
pub struct QueueState {
    /// Written by the pollers, each side on its own cache lines: sends and receives may complete to
    /// different CQs.
    sends: CachePadded<Side>,
    receives: CachePadded<Side>,
    /// Written by the posting sides: the numbers of blocks and of receives published. Both wrap.
    published_sends: CachePadded<AtomicU32>,
    /// Below 2^16, but kept in 32 bits, so that pollers need not extend it.
    published_receives: CachePadded<AtomicU32>,
    /// Read by both sides, rarely written.
    fixed: CachePadded<Fixed>,
}

/// Of a queue in a model without the check of [`QueueState::completes_to`].
#[cfg(all(test, loom))]
const ANY_CQ: u64 = u64::MAX;

/// A CQ that held CQEs from before a queue's last reset.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) cq: CqMonitor,
    /// The counter after the last of these CQEs.
    pub(crate) end: u32,
    /// The drain after which none of them is left.
    pub(crate) drain: u64,
}

impl Past {
    /// Whether the CQE at counter `at` of `cq` is from before the reset.
    pub(crate) fn is_left(&self, cq: &CqMonitor, at: u32) -> bool {
        self.cq.is_same(cq) && !cq.has_drained(self.drain) && is_before(at, self.end)
    }
}

#[derive(Debug)]
struct Fixed {
    state: AtomicU32,
    qpn: AtomicU32,
    /// The user index in the queue's CQEs.
    user_index: AtomicU32,
    /// The block of the SRQ whose receives this queue consumes; null for its own.
    receives: AtomicPtr<QueueState>,
    /// The blocks that were ever in `receives`: pollers may still use them.
    consumed: Mutex<Vec<Arc<QueueState>>>,
    user_context: AtomicU64,
    /// The QP's state after a failed send.
    failed_send: AtomicU32,
    /// Whether this process is a forked child, and the queue belongs to its parent.
    inherited: AtomicBool,
    /// Whether a receive that is too short leaves the QP's state as it is.
    short_receives_fail_alone: AtomicBool,
    free_list: Option<FreeList>,
    /// Of a tag matching SRQ: its list of tags.
    tags: Mutex<Option<TagList>>,
    /// Whether `tags` has a list.
    matches_tags: AtomicBool,
    /// Of a QP that was reset: the CQs that held CQEs from before the reset.
    past: Mutex<Vec<Past>>,
    /// [Identities](CqMonitor::identity) of the CQs that sends and receives complete to; 0 if they
    /// complete nowhere.
    cqs: [AtomicU64; 2],
    /// Whether pollers report completions; otherwise they drop them.
    is_open: AtomicBool,
    // Pollers increment counters here, so these have their own cache lines.
    send_ring: CachePadded<ShownRing>,
    recv_ring: CachePadded<ShownRing>,
    /// The ids of send requests, followed by the [`QueueState::send_end`] entry of each block. Both
    /// are for a ring of twice the size, because the poller does not know where the request that
    /// completed last ends. When the posting side fills its blocks again, the old marks still
    /// exist, so that a completion that names one of these blocks is refused.
    send_entries: Box<[AtomicU64]>,
    _recv_entries: Arc<[AtomicU64]>,
    /// [`Kind`] of each UMR request, at the index of its first block in a ring of twice the size,
    /// because the program may read a completion after its blocks were filled again. A third
    /// request can use the same place only after the one in the next lap has been polled, too.
    send_kinds: Box<[AtomicU8]>,
    /// Ids of requests that the caller has encoded, if completions distinguish them.
    encoded: EncodedIds,
}

/// An SRQ entry whose completion is being polled. Only this poller uses it until it is given back.
#[must_use = "an entry that is not given back is lost"]
pub(crate) struct Claimed<'q> {
    free: &'q FreeList,
    index: u32,
}

impl Claimed<'_> {
    pub(crate) fn wr_id(&self) -> u64 {
        self.free.id(self.index).load(Ordering::Relaxed)
    }

    /// Makes the entry free, so that the posting side may fill it.
    pub(crate) fn give_back(self) {
        self.free.release(self.index);
    }
}

/// The sizes of a block. Blocks are reused for queues of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks (WQEBBs) of the send queue, a power of two; 0 if there is none.
    pub send_wqebbs: u32,
    /// Entries of the receive queue or SRQ, a power of two; 0 if there is none.
    pub recv_wqes: u32,
    /// Whether the receives are those of an SRQ, whose entries complete in any order.
    pub shared_receive: bool,
}

impl QueueState {
    pub(crate) fn new(shape: Shape) -> Arc<Self> {
        let entries = |count: u32| 0..count.next_power_of_two().max(1);
        let table = |count| entries(count).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let blocks = 2 * shape.send_wqebbs.max(1);
        let ends = entries(blocks).map(|_| AtomicU64::new(NO_END));
        let send_entries = table(blocks).into_iter().chain(ends).collect::<Box<[_]>>();
        // An SRQ's list has at least two entries.
        let recv_entries = table(shape.recv_wqes.max(1 + u32::from(shape.shared_receive)));
        let recv_entries: Arc<[_]> = recv_entries.into_vec().into();
        let free_list = shape.shared_receive.then(|| FreeList::new(recv_entries.clone()));
        Arc::new(Self {
            sends: Side::new(&send_entries, send_entries.len() / 2),
            receives: Side::new(&recv_entries, recv_entries.len()),
            published_sends: CachePadded::new(AtomicU32::new(0)),
            published_receives: CachePadded::new(AtomicU32::new(0)),
            fixed: CachePadded::new(Fixed {
                state: AtomicU32::new(QpState::Reset as u32),
                qpn: AtomicU32::new(0),
                user_index: AtomicU32::new(0),
                receives: AtomicPtr::new(core::ptr::null_mut()),
                consumed: Mutex::default(),
                user_context: AtomicU64::new(0),
                failed_send: AtomicU32::new(QpState::Err as u32),
                inherited: AtomicBool::new(false),
                short_receives_fail_alone: AtomicBool::new(false),
                free_list,
                tags: Mutex::default(),
                matches_tags: AtomicBool::new(false),
                past: Mutex::default(),
                cqs: [AtomicU64::new(0), AtomicU64::new(0)],
                is_open: AtomicBool::new(false),
                send_ring: CachePadded::new(ShownRing::new()),
                recv_ring: CachePadded::new(ShownRing::new()),
                send_entries,
                _recv_entries: recv_entries,
                send_kinds: entries(2 * shape.send_wqebbs).map(|_| AtomicU8::new(0)).collect(),
                encoded: EncodedIds::default(),
            }),
        })
    }

    /// Records that the device reported an error of this SRQ: later posts fail.
    pub(crate) fn fail_shared_receives(&self) {
        self.set_state(QpState::Err);
        self.free_list().inspect(|free| free.close_fast_path());
    }

    /// Sets how many receives of an SRQ may be outstanding, if that is fewer than its ring holds.
    /// No effect on other queues.
    pub(crate) fn set_granted_receives(&self, receives: u32) {
        self.free_list().inspect(|free| free.set_granted(receives));
    }

    /// Resets the block for the next queue of its shape.
    pub(crate) fn reset(&self) {
        self.sends.reset();
        self.receives.reset();
        (0..self.sends.len()).for_each(|slot| self.set_send_end(slot, None));
        self.published_sends.store(0, Ordering::Relaxed);
        self.published_receives.store(0, Ordering::Relaxed);
        self.set_state(QpState::Reset);
        self.fixed.encoded.forget();
        if let Some(list) = &self.fixed.free_list {
            list.reset();
        }
        self.set_tags(None);
    }

    /// Makes an SRQ one that matches tags, or one that does not. Called before it has QPs.
    pub(crate) fn set_tags(&self, list: Option<TagList>) {
        self.fixed.matches_tags.store(list.is_some(), Ordering::Relaxed);
        *lock(&self.fixed.tags) = list;
    }

    /// Whether this is an SRQ that matches tags.
    #[inline(always)]
    pub(crate) fn matches_tags(&self) -> bool {
        self.fixed.matches_tags.load(Ordering::Relaxed)
    }

    /// Runs `call` on the list of tags. `None` if the queue has no list, or if this is a forked
    /// child and a thread of the parent held the list's lock.
    pub(crate) fn with_tags<X>(&self, call: impl FnOnce(&mut TagList) -> X) -> Option<X> {
        lock_unless(&self.fixed.tags, self.is_inherited())?.as_mut().map(call)
    }

    pub(crate) fn past(&self) -> &Mutex<Vec<Past>> {
        &self.fixed.past
    }

    /// Copies a QP's settings from its old block `before`.
    pub(crate) fn succeed(&self, before: &Self) {
        let cqs = before.fixed.cqs.each_ref().map(|cq| cq.load(Ordering::Relaxed));
        self.start(before.user_index(), before.user_context(), cqs);
        self.set_number(before.number());
        let failed_send = before.fixed.failed_send.load(Ordering::Relaxed);
        self.fixed.failed_send.store(failed_send, Ordering::Relaxed);
        let short = before.fixed.short_receives_fail_alone.load(Ordering::Relaxed);
        self.fixed.short_receives_fail_alone.store(short, Ordering::Relaxed);
        if before.tells_encoded() {
            self.tell_encoded();
        }
        self.sends.set_context(before.sends.context());
        self.receives.set_context(before.receives.context());
        self.follow_receives(before);
    }

    /// Blocks of the send queue's ring.
    pub(crate) fn send_wqebbs(&self) -> u32 {
        self.sends.len() / 2
    }

    /// Entries of the receive side.
    pub(crate) fn recv_wqes(&self) -> u32 {
        self.receives.len()
    }

    /// The work request id of receive WQE `index`.
    #[inline(always)]
    pub(crate) fn recv_entry(&self, index: u32) -> &AtomicU64 {
        self.receives.entry(index)
    }

    /// Publishes that the send WQE with this 16-bit index and all earlier ones are complete.
    /// [`QueueState::has_send`] must have returned true for it. Poller only.
    pub(crate) fn complete_sends(&self, index: u16) {
        self.sends.complete(index);
    }

    /// Publishes all requests before this counter to pollers. Called before the doorbell that
    /// publishes them to the device.
    #[inline(always)]
    pub(crate) fn publish_sends(&self, head: u32) {
        self.published_sends.store(head, Ordering::Release);
    }

    /// [`QueueState::publish_sends`] for receives.
    #[inline(always)]
    pub(crate) fn publish_receives(&self, head: u32) {
        self.published_receives.store(head & 0xffff, Ordering::Release);
    }

    /// Sets the counter of the next send, as if all before it had completed. Only before the first
    /// post.
    pub(crate) fn continue_sends(&self, head: u32) {
        self.sends.expect(head as u16);
        self.publish_sends(head);
    }

    /// [`QueueState::continue_sends`] for receives.
    pub(crate) fn continue_receives(&self, head: u32) {
        self.receives.expect(head as u16);
        self.publish_receives(head);
    }

    #[inline(always)]
    pub(crate) fn completed_send(&self) -> u16 {
        self.sends.completed()
    }

    /// Publishes that the receive with this index and all earlier ones are complete.
    /// [`QueueState::has_receive`] must have returned true for it. Poller only; not for an SRQ.
    pub(crate) fn complete_receives(&self, index: u16) {
        self.receives.complete(index);
    }

    /// Whether the receive with this index was published and has not completed. Poller only; not
    /// for an SRQ.
    pub(crate) fn has_receive(&self, index: u16) -> bool {
        let published = self.published_receives.load(Ordering::Acquire);
        self.receives.is_outstanding(index, published as u16)
    }

    #[inline(always)]
    pub(crate) fn completed_recv(&self) -> u16 {
        self.receives.completed()
    }

    /// The poller's view of the sends.
    #[inline(always)]
    pub(crate) fn send_side(&self) -> &Side {
        &self.sends
    }

    /// The poller's view of the receives.
    #[inline(always)]
    pub(crate) fn recv_side(&self) -> &Side {
        &self.receives
    }

    /// Whether the receives are those of an SRQ.
    #[inline(always)]
    pub(crate) fn is_shared(&self) -> bool {
        self.fixed.free_list.is_some()
    }

    /// Takes an SRQ entry back from the device. `None` if the entry is not posted, or the queue is
    /// not an SRQ: then the completion names no request. If several pollers claim an entry, one
    /// gets it.
    #[inline(always)]
    pub(crate) fn claim(&self, index: u16) -> Option<Claimed<'_>> {
        let free = self.free_list()?;
        let index = u32::from(index);
        free.claim(index).then_some(Claimed { free, index })
    }

    /// The send side's work request ids, and their number minus one.
    #[inline(always)]
    pub(crate) fn send_table(&self) -> (*const AtomicU64, u32) {
        self.sends.table()
    }

    /// The receive side's work request ids, and their number minus one.
    #[inline(always)]
    pub(crate) fn recv_table(&self) -> (*const AtomicU64, u32) {
        self.receives.table()
    }

    /// The list of free WQEs, if the receives are an SRQ.
    #[inline(always)]
    pub(crate) fn free_list(&self) -> Option<&FreeList> {
        self.fixed.free_list.as_ref()
    }

    /// Makes pollers report the queue's completions.
    pub(crate) fn open(&self) {
        let [sends, receives] = self.fixed.cqs.each_ref().map(|cq| cq.load(Ordering::Relaxed));
        // Release: publishes the contents of the block to pollers.
        self.fixed.is_open.store(true, Ordering::Release);
        self.sends.set_cq(sends);
        // Only the slow path handles completions of tag matching.
        self.receives.set_cq(if self.receives().matches_tags() { 0 } else { receives });
    }

    /// Makes pollers drop the queue's completions.
    pub(crate) fn shut(&self) {
        self.fixed.is_open.store(false, Ordering::Release);
        self.sends.set_cq(0);
        self.receives.set_cq(0);
    }

    /// Whether completions are reported.
    pub(crate) fn is_open(&self) -> bool {
        self.fixed.is_open.load(Ordering::Acquire)
    }

    /// Whether the queue's sends, or its receives, complete to the CQ with this identity.
    pub(crate) fn completes_to(&self, cq: u64, is_send: bool) -> bool {
        let [sends, receives] = self.fixed.cqs.each_ref().map(|cq| cq.load(Ordering::Relaxed));
        let own = if is_send { sends } else { receives };
        #[cfg(all(test, loom))]
        if own == ANY_CQ {
            return true;
        }
        own == cq
    }

    /// Allows the poller of any CQ to complete the queue's requests, for models of a weakened
    /// queue.
    #[cfg(all(test, loom))]
    pub(crate) fn complete_anywhere(&self) {
        self.fixed.cqs.iter().for_each(|cq| cq.store(ANY_CQ, Ordering::Relaxed));
    }

    /// Whether the sends complete to the same CQ as the receives of `other`. False if both complete
    /// nowhere.
    pub(crate) fn sends_complete_with(&self, other: &Self) -> bool {
        let [sends, receives] =
            [&self.fixed.cqs[0], &other.fixed.cqs[1]].map(|cq| cq.load(Ordering::Relaxed));
        sends != 0 && sends == receives
    }

    /// The QP's (or SRQ's) number, 0 until it was set.
    pub fn number(&self) -> u32 {
        self.fixed.qpn.load(Ordering::Relaxed)
    }

    /// Records the number that the kernel assigned.
    pub(crate) fn set_number(&self, number: u32) {
        self.fixed.qpn.store(number, Ordering::Relaxed);
    }

    /// The user index in the queue's CQEs.
    pub(crate) fn user_index(&self) -> u32 {
        self.fixed.user_index.load(Ordering::Relaxed)
    }

    /// The value that the queue was registered with.
    #[inline(always)]
    pub fn user_context(&self) -> u64 {
        self.fixed.user_context.load(Ordering::Relaxed)
    }

    /// The user context of the SRQ that this queue receives through (an SRQ's block: its own);
    /// `None` for a queue with receives of its own.
    #[inline(always)]
    pub fn shared_receive_context(&self) -> Option<u64> {
        let receives = self.receives();
        receives.is_shared().then(|| receives.user_context())
    }

    /// Visits the ids of an SRQ's posted receives, in no particular order; none for other queues.
    /// For cleaning up after [`QueueHandle::close`](crate::user_index::QueueHandle::close).
    pub fn for_each_shared_receive(&self, mut visit: impl FnMut(u64)) {
        let Some(free) = self.free_list() else { return };
        for index in (0..self.recv_wqes()).filter(|&index| free.is_taken(index)) {
            visit(self.recv_entry(index).load(Ordering::Relaxed));
        }
    }

    /// Prepares the block for a new queue with this user index whose sends and receives complete to
    /// `cqs`. It stays closed until [`QueueState::open`].
    pub(crate) fn start(&self, user_index: u32, context: u64, cqs: [u64; 2]) {
        self.fixed.user_index.store(user_index, Ordering::Relaxed);
        self.shut();
        for (own, cq) in self.fixed.cqs.iter().zip(cqs) {
            own.store(cq, Ordering::Relaxed);
        }
        self.sends.set_block(self);
        self.receives.set_block(self);
        self.sends.set_context(context);
        self.receives.set_context(context);
        self.fixed.user_context.store(context, Ordering::Relaxed);
        self.fixed.inherited.store(false, Ordering::Relaxed);
        self.fixed.failed_send.store(QpState::Err as u32, Ordering::Relaxed);
        self.fixed.short_receives_fail_alone.store(false, Ordering::Relaxed);
    }

    pub(crate) fn set_send_ring(&self, ring: Option<&Ring>) {
        if !self.is_inherited() {
            self.fixed.send_ring.set(ring);
        }
    }

    pub(crate) fn set_recv_ring(&self, ring: Option<&Ring>) {
        if self.is_inherited() {
            return;
        }
        // `true` as long as there is a ring.
        if ring.is_some() {
            self.receives.set_copies_inline(true);
        }
        self.fixed.recv_ring.set(ring);
        if ring.is_none() {
            self.receives.set_copies_inline(false);
        }
    }

    /// Runs `use_it` on the send ring. Other threads cannot free its memory meanwhile.
    pub(crate) fn with_send_ring<R>(&self, use_it: impl FnOnce(LentRing<'_>) -> R) -> Option<R> {
        self.fixed.send_ring.with(use_it)
    }

    /// Runs `use_it` on the receive ring. Other threads cannot free its memory meanwhile.
    pub(crate) fn with_recv_ring<R>(&self, use_it: impl FnOnce(LentRing<'_>) -> R) -> Option<R> {
        self.fixed.recv_ring.with(use_it)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;
    use crate::completion_queue::CompletionQueue;
    use crate::recv_queue::RecvQueue;
    use crate::send_queue::{Rc, SendQueue};
    use crate::shared_recv_queue::SharedRecvQueue;

    /// Processors prefetch lines of 64 bytes in pairs.
    const LINES: usize = 128;

    /// A thread that uses its own queues writes no cache line of another thread's queues, wherever
    /// in memory the queues are.
    #[test]
    fn queues_share_no_cache_line() {
        assert_eq!(align_of::<SendQueue<Rc>>() % LINES, 0);
        assert_eq!(align_of::<RecvQueue>() % LINES, 0);
        assert_eq!(align_of::<SharedRecvQueue>() % LINES, 0);
        assert_eq!(align_of::<CompletionQueue>() % LINES, 0);
        assert_eq!(align_of::<QueueState>() % LINES, 0);
    }

    /// The two pollers of a queue write different lines, and neither writes a line that the posting
    /// side reads on its fast path.
    #[test]
    fn each_poller_writes_lines_of_its_own() {
        let sends = offset_of!(QueueState, sends) / LINES;
        let receives = offset_of!(QueueState, receives) / LINES;
        let fixed = offset_of!(QueueState, fixed) / LINES;
        assert!(sends != receives && sends != fixed && receives != fixed);
        assert!(core::mem::size_of::<Side>() <= LINES);
    }
}
