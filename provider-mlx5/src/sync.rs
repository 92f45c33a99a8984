//! Atomics and locks for data that threads share, or their model-checked twins in loom's tests.

use std::sync::TryLockError;

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

#[cfg(not(all(test, loom)))]
pub(crate) use {
    core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
    std::sync::{Arc, Mutex},
};

/// Locks, and ignores poisoning: every critical section of this crate keeps its data consistent at
/// each step, even if it panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl core::ops::DerefMut<Target = T> + '_ {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// [`lock`], unless another thread has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<impl core::ops::DerefMut<Target = T> + '_> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// [`lock`]. In a forked child (`inherited`), returns `None` if the lock is held, because its
/// holder is a thread of the parent and never unlocks it in the child.
pub(crate) fn lock_unless<T>(
    mutex: &Mutex<T>,
    inherited: bool,
) -> Option<impl core::ops::DerefMut<Target = T> + '_> {
    let locked = if inherited { mutex.try_lock() } else { mutex.lock().map_err(From::from) };
    match locked {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tells the processor (or the model checker) that this is a waiting loop.
#[inline(always)]
pub(crate) fn spin() {
    #[cfg(all(test, loom))]
    loom::thread::yield_now();
    #[cfg(not(all(test, loom)))]
    core::hint::spin_loop();
}
