//! The state of a CQ that threads other than its poller read, and the requests that they make of
//! it.

use crossbeam_utils::CachePadded;

use super::PollError;
use super::past::{Left, Place};
use crate::format::OpOwn;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock, lock_unless};

/// A handle to a CQ for threads that do not poll it. Clones refer to the same CQ.
#[derive(Clone, Debug)]
pub struct CqMonitor(Arc<CachePadded<Shared>>);

#[derive(Debug)]
struct Shared {
    /// The number of drains requested. The poller compares it with the last number it saw when the
    /// CQ is empty.
    requested: AtomicU64,
    /// The latest drain that has happened.
    drained: AtomicU64,
    status: AtomicU32,
    /// The capacities of the queues that complete here, minus the entries of the ring, plus the
    /// entries that the program holds. An `i64`: if positive, the CQ can overrun.
    surplus: AtomicU64,
    /// Any counter of the poller's current lap.
    lap: AtomicU32,
    /// `None` after the CQ was dropped.
    place: Mutex<Option<Place>>,
    /// The part of `surplus` that belongs to closed queues.
    closing: AtomicU64,
    /// Closed queues whose CQEs the ring may still hold.
    closed: Mutex<Vec<Closed>>,
}

/// The CQEs of a queue that the CQ held when the queue was closed.
#[derive(Debug)]
struct Closed {
    user_index: u32,
    left: Left,
    /// The drain after which no such CQE is left.
    drain: u64,
}

const HEALTHY: u32 = 0;
const OVERRUN: u32 = 1;
const REMOVED: u32 = 2;

impl CqMonitor {
    pub(super) fn new(place: Place) -> Self {
        Self(Arc::new(CachePadded::new(Shared {
            requested: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            status: AtomicU32::new(HEALTHY),
            surplus: AtomicU64::new(0),
            lap: AtomicU32::new(0),
            place: Mutex::new(Some(place)),
            closing: AtomicU64::new(0),
            closed: Mutex::default(),
        })))
    }

    /// Tells the poller that the device reported an error of this CQ (`IBV_EVENT_CQ_ERR`):
    /// completions were lost. The remaining CQEs can be polled, after which polling returns
    /// [`PollError::Overrun`].
    pub fn set_overrun(&self) {
        self.set_status(OVERRUN);
    }

    /// Tells the poller that the device was removed (`IBV_EVENT_DEVICE_FATAL`). The remaining CQEs
    /// can be polled, after which polling returns [`PollError::DeviceRemoved`].
    pub fn set_device_removed(&self) {
        self.set_status(REMOVED);
    }

    fn set_status(&self, status: u32) {
        self.0.status.fetch_max(status, Ordering::Relaxed);
        self.request_drain();
    }

    pub(super) fn failure(&self) -> Option<PollError> {
        match self.0.status.load(Ordering::Relaxed) {
            OVERRUN => Some(PollError::Overrun),
            REMOVED => Some(PollError::DeviceRemoved),
            _ => None,
        }
    }

    /// Requests a drain: everything now in the CQ must be polled. Returns the number of the
    /// request.
    pub(crate) fn request_drain(&self) -> u64 {
        self.0.requested.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether drain `request` has happened.
    pub(crate) fn has_drained(&self, request: u64) -> bool {
        self.0.drained.load(Ordering::Acquire) >= request
    }

    /// Replaces `before` by `now` in the number of completions that can be outstanding.
    pub(crate) fn change_load(&self, before: u32, now: u32) {
        self.change_surplus(i64::from(now) - i64::from(before));
    }

    /// Replaces `before` by `now` in the number of completions that the ring holds. Poller only.
    pub(super) fn change_capacity(&self, before: u32, now: u32) {
        self.change_surplus(i64::from(before) - i64::from(now));
    }

    fn change_surplus(&self, change: i64) {
        let before = self.0.surplus.fetch_add(change as u64, Ordering::Relaxed) as i64;
        if before + change > 0 {
            // Sends empty polls to the slow path, which then looks for the event.
            self.request_drain();
        }
    }

    /// Replaces `before` by `now` in the number of completions that can be outstanding of closed
    /// queues.
    pub(crate) fn change_closing(&self, before: u32, now: u32) {
        let change = i64::from(now) - i64::from(before);
        self.0.closing.fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Notes the CQEs that the CQ holds of a closed queue, after the device has written its last
    /// one. Counts only the CQEs whose opcode `counts` accepts. None is left after `drain`.
    pub(crate) fn note_closed(&self, user_index: u32, drain: u64, counts: impl Fn(OpOwn) -> bool) {
        let place = lock(&self.0.place);
        let left = place.as_ref().and_then(|p| p.left_of(user_index, &self.0.lap, counts));
        drop(place);
        let mut closed = self.closed();
        // The new count includes CQEs from before an earlier reset of the same queue.
        closed.retain(|closed| closed.user_index != user_index);
        closed.extend(left.map(|left| Closed { user_index, left, drain }));
    }

    /// The closed queues that have CQEs left.
    fn closed(&self) -> impl core::ops::DerefMut<Target = Vec<Closed>> + '_ {
        let mut closed = lock(&self.0.closed);
        closed.retain(|closed| !self.has_drained(closed.drain));
        closed
    }

    /// CQEs of closed queues in entries that the open queues need. A new queue may have that many
    /// fewer requests outstanding.
    pub(crate) fn excess(&self) -> u32 {
        let left: u32 = self.closed().iter().map(|closed| closed.left.count).sum();
        let open = self.surplus().wrapping_sub(self.0.closing.load(Ordering::Relaxed) as i64);
        open.saturating_add(left.into()).clamp(0, left.into()) as u32
    }

    fn surplus(&self) -> i64 {
        self.0.surplus.load(Ordering::Relaxed) as i64
    }

    /// Whether more completions can be outstanding than the ring holds.
    pub(crate) fn can_overrun(&self) -> bool {
        self.surplus() > 0
    }

    /// Changes the rings and the consumer index that other threads see; `None` for a CQ that was
    /// dropped. Poller only. Called before a ring is freed. Does nothing in a forked child
    /// (`inherited`) if a thread of the parent held the lock.
    pub(super) fn set_place(&self, inherited: bool, change: impl FnOnce(&mut Option<Place>)) {
        if let Some(mut place) = lock_unless(&self.0.place, inherited) {
            change(&mut place);
        }
    }

    /// Locks what [`CqMonitor::set_place`] changes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lock_place(&self) -> impl Sized + '_ {
        lock(&self.0.place)
    }

    /// Publishes the poller's lap. Poller only.
    pub(super) fn set_lap(&self, consumed: u32) {
        self.0.lap.store(consumed, Ordering::Release);
    }

    /// The counter after the last CQE left of a closed queue; `None` if there is none.
    pub(crate) fn end_of(&self, user_index: u32) -> Option<u32> {
        let closed = self.closed();
        closed.iter().find(|closed| closed.user_index == user_index).map(|closed| closed.left.end)
    }

    /// Whether the CQ was dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.has_drained(u64::MAX)
    }

    /// Whether both handles refer to the same CQ.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An even number that no other CQ has while this handle or a clone of it exists; never 0.
    pub(crate) fn identity(&self) -> u64 {
        core::ptr::from_ref::<Shared>(&self.0).addr() as u64
    }

    #[inline(always)]
    pub(super) fn requested(&self) -> u64 {
        self.0.requested.load(Ordering::Acquire)
    }

    /// Records that everything that was in the CQ at the time of `request` has been polled. Poller
    /// only.
    pub(super) fn set_drained(&self, request: u64) {
        if self.0.drained.load(Ordering::Relaxed) < request {
            self.0.drained.store(request, Ordering::Release);
        }
    }
}
