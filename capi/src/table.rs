//! Process-wide tables behind a lock. A forked child never waits for a thread of its parent.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork::{self, Process};

/// A table behind a lock. It starts with the default value.
#[derive(Debug)]
pub(crate) struct Table<T>(AtomicPtr<OfProcess<T>>);

/// The table of one process. It is never freed, because any thread may have its address.
#[derive(Debug)]
struct OfProcess<T> {
    process: Process,
    value: Mutex<T>,
}

impl<T: Default> Default for OfProcess<T> {
    fn default() -> Self {
        Self { process: fork::process(), value: Mutex::default() }
    }
}

impl<T: Default + 'static> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Takes the lock until the guard goes.
    pub(crate) fn lock(&self) -> MutexGuard<'static, T> {
        let current = self.0.load(Ordering::Acquire);
        // SAFETY: null, or from `begin`.
        let table = match unsafe { current.as_ref() } {
            Some(table) if !table.process.is_parent() => table,
            before => self.begin(current, before),
        };
        table.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the table of this process. A forked child gets a copy of its parent's table. If a
    /// thread held the lock at the fork, no thread of the child will release it, and the child
    /// starts with an empty table.
    fn begin(
        &self,
        current: *mut OfProcess<T>,
        before: Option<&'static OfProcess<T>>,
    ) -> &'static OfProcess<T> {
        let own = Box::leak(Box::<OfProcess<T>>::default());
        let own: &'static OfProcess<T> = own;
        // Threads that find the new table wait until it has the copy.
        let mut value = own.value.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let exchanged =
            self.0.compare_exchange(current, ptr::from_ref(own).cast_mut(), done, failed);
        match exchanged {
            Ok(_) => {
                let copy = before.and_then(|table| table.value.try_lock().ok());
                *value = copy.map(|mut copy| std::mem::take(&mut *copy)).unwrap_or_default();
                own
            }
            // Another thread of this process was first.
            // SAFETY: published by that thread, and never freed.
            Err(other) => unsafe { &*other },
        }
    }
}
