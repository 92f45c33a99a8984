//! Process-wide values that a forked child creates anew.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::home::Home;

/// A process-wide value for a `static`, made by `T::default` at the first use.
///
/// A forked child gets a new value. Its copy of the parent's value may hold locks of threads that
/// do not exist in the child, and devices whose threads do not run there. The parent's value is
/// never dropped.
///
/// ```
/// use std::sync::Mutex;
/// use uverbs_soft::PerProcess;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
/// NAMES.get().lock().unwrap().push("soft0".into());
/// assert_eq!(NAMES.get().lock().unwrap().len(), 1);
/// ```
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<Owned<T>>,
}

#[derive(Debug)]
struct Owned<T> {
    home: Home,
    value: T,
}

impl<T> PerProcess<T> {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// This process's value, if it has one. Takes no lock and allocates nothing.
    pub fn existing(&'static self) -> Option<&'static T> {
        // SAFETY: null, or a box that `get` has leaked and that is never freed; nothing makes a
        // `&mut` to it. The acquire load sees what was written before the release exchange that
        // stored it.
        let owned: Option<&'static Owned<T>> =
            unsafe { self.current.load(Ordering::Acquire).as_ref() };
        owned.filter(|owned| owned.home.is_here()).map(|owned| &owned.value)
    }
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// This process's value. Takes no lock. If two threads make the first call at the same time,
    /// both may create a value; one of them is dropped unused.
    pub fn get(&'static self) -> &'static T {
        loop {
            // First, so that only a value of another process is replaced.
            let found = self.current.load(Ordering::Relaxed);
            if let Some(value) = self.existing() {
                return value;
            }
            let fresh = Box::into_raw(Box::new(Owned { home: Home::new(), value: T::default() }));
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if self.current.compare_exchange(found, fresh, order.0, order.1).is_err() {
                // SAFETY: created by `Box::into_raw` above, and no other thread has the pointer.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

#[cfg(test)]
mod tests;
