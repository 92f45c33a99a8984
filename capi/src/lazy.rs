//! Values that are computed at their first use.
//!
//! Unlike with `OnceLock`, no thread waits for another one: threads that call at the same time each
//! compute a value, and the first published value stays. So a forked child never waits for a thread
//! that exists only in its parent.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value, or none yet. It owns the value that it points to.
#[derive(Debug)]
pub(crate) struct Lazy<T>(AtomicPtr<T>, PhantomData<T>);

impl<T> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// The value. If there is none yet, `compute` makes it.
    pub(crate) fn get_or(&self, compute: impl FnOnce() -> T) -> &T {
        // SAFETY: null, or published below. Only `drop` frees a published value.
        match unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            Some(value) => value,
            None => self.publish(Box::into_raw(Box::new(compute()))),
        }
    }

    /// Publishes a value, unless another thread has published one.
    fn publish(&self, own: *mut T) -> &T {
        let none = ptr::null_mut();
        match self.0.compare_exchange(none, own, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `own` is from `Box::into_raw`, and only `drop` frees it now.
            Ok(_) => unsafe { &*own },
            Err(other) => {
                // SAFETY: no other thread has seen `own`.
                drop(unsafe { Box::from_raw(own) });
                // SAFETY: published by the other thread; only `drop` frees it.
                unsafe { &*other }
            }
        }
    }
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Lazy<T> {
    fn drop(&mut self) {
        let value = *self.0.get_mut();
        if !value.is_null() {
            // SAFETY: from `Box::into_raw`, and nothing borrows it.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

// SAFETY: threads that share it get `&T`, and any of them may make or drop the value.
unsafe impl<T: Send + Sync> Sync for Lazy<T> {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::fork::tests::a_child_returns;

    #[test]
    fn all_threads_get_one_value() {
        let lazy = Lazy::new();
        let values: Vec<usize> = thread::scope(|scope| {
            let get = |n: u64| ptr::from_ref(lazy.get_or(move || n)).addr();
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || get(n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
        });
        assert!(values.iter().all(|value| *value == values[0]));
    }

    #[test]
    fn a_child_waits_for_no_thread_that_was_computing() {
        static LAZY: Lazy<u32> = Lazy::new();
        let ((computing, at_work), (go_on, may_go_on)) = (channel(), channel::<()>());
        let other = thread::spawn(move || {
            *LAZY.get_or(|| {
                computing.send(()).expect("main thread");
                let _ = may_go_on.recv();
                1
            })
        });
        at_work.recv().expect("thread");
        assert!(a_child_returns(|| assert_eq!(*LAZY.get_or(|| 2), 2)));
        assert_eq!(*LAZY.get_or(|| 3), 3);
        drop(go_on);
        assert_eq!(other.join().expect("thread"), 3);
    }
}
