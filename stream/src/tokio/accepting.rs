//! The tasks that wait for a listener.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The tasks that wait, by the numbers of their calls. An event wakes them all, because the one
/// that would be woken alone may have given up, or not accept again.
#[derive(Debug, Default)]
pub(super) struct Accepting {
    last: AtomicU64,
    tasks: Mutex<HashMap<u64, Waker>>,
}

/// A call that is not [`Call::BY_HAND`] is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Call<'a> {
    accepting: &'a Accepting,
    pub(super) number: u64,
}

impl Call<'_> {
    /// The number of calls that are not futures. Only the task of the last one is kept.
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

    /// Notes that the task of a call waits.
    pub(super) fn set(&self, number: u64, waker: &Waker) {
        let before = self.lock().insert(number, waker.clone());
        // Without the lock: a waker may be the last thing that holds a task, which may have a call.
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
