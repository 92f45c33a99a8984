//! The tasks that wait for a listener's events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The waiting tasks, by the numbers of their calls. An event wakes them all, because a single
/// woken task might have been cancelled, or not accept again.
#[derive(Debug, Default)]
pub(super) struct Accepting {
    last: AtomicU64,
    tasks: Mutex<HashMap<u64, Waker>>,
}

/// A call of `accept`. Dropping it removes its task.
#[derive(Debug)]
pub(super) struct Call<'a> {
    accepting: &'a Accepting,
    pub(super) number: u64,
}

impl Call<'_> {
    /// The common number of all calls of `poll_accept`, of which only the last one's task is kept.
    pub(super) const BY_HAND: u64 = 0;
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let waker = self.accepting.lock().remove(&self.number);
        drop(waker);
    }
}

impl Accepting {
    pub(super) fn call(&self) -> Call<'_> {
        Call { accepting: self, number: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Notes that a call's task waits.
    pub(super) fn set(&self, number: u64, waker: &Waker) {
        let before = self.lock().insert(number, waker.clone());
        // Dropped after the lock is released: it may be the last reference to a task that owns a
        // `Call`, whose drop takes the lock.
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Accepting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let tasks = std::mem::take(&mut *self.lock());
        tasks.into_values().for_each(Waker::wake);
    }
}
