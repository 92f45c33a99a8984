//! The locks of the library. The verbs are thread-safe; a queue that a program declares to be of
//! one thread has no lock.
//!
//! A queue's lock is held while something is posted or polled, and from a program's call to its
//! next one where the verbs say so. A thread that finds it held spins, then yields, then sleeps,
//! because the holder may have a lower priority and need the same processor.
//!
//! A forked child has only the thread that called `fork`. It may take a lock that another thread
//! held at that time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::events::uncancelled;
use crate::fork::{self, Process};

/// How often a thread looks again before it yields.
const SPINS: u32 = 100;
/// How often it yields before it sleeps.
const YIELDS: u32 = 20;
/// How long it sleeps before it looks again.
const SLEEP: Duration = Duration::from_micros(50);

/// No thread has the lock. This is a bit that no thread pointer has, so taking the lock is to clear
/// it: one instruction on x86 (`btr`).
const FREE: usize = 1;

/// A spin lock that may be switched off when it is made.
#[derive(Debug)]
pub(crate) struct Lock {
    /// [`FREE`], 0 during a call of the program, or the thread that keeps the lock from one call to
    /// another.
    holder: AtomicUsize,
    needed: bool,
    /// The process that made it.
    process: Process,
}

impl Lock {
    /// A lock, or none if `needed` is false.
    pub(crate) fn new(needed: bool) -> Self {
        Self { holder: AtomicUsize::new(FREE), needed, process: fork::process() }
    }

    /// Whether it is needed.
    pub(crate) fn is_needed(&self) -> bool {
        self.needed
    }

    /// Takes the lock.
    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    /// Takes the lock if it is free. Callers wait in a function that they call in tail position, so
    /// they save no registers for waiting.
    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> bool {
        !self.needed || self.take()
    }

    #[inline(always)]
    fn take(&self) -> bool {
        self.holder.fetch_and(!FREE, Ordering::Acquire) & FREE != 0
    }

    /// Gives the lock back, kept or not.
    #[inline(always)]
    pub(crate) fn release(&self) {
        // A lock that is not needed is never taken. Testing for that would cost more than the
        // store.
        self.holder.store(FREE, Ordering::Release);
    }

    /// Takes the lock if it is free, and keeps it when the program's call returns. `NEEDED` says
    /// whether it is needed: the caller is one of two functions, of which the creation of the
    /// object has chosen one.
    #[inline(always)]
    pub(crate) fn try_keep<const NEEDED: bool>(&self) -> bool {
        if NEEDED {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            return self.holder.compare_exchange(FREE, this_thread(), acquire, relaxed).is_ok();
        }
        self.keep();
        true
    }

    /// Notes that this thread, which holds the lock, keeps it when the program's call returns.
    #[inline(always)]
    pub(crate) fn keep(&self) {
        self.holder.store(this_thread(), Ordering::Relaxed);
    }

    /// Whether this thread keeps the lock, as it does between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) fn is_kept_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// Takes the lock until the guard goes, unless this thread keeps it already.
    pub(crate) fn guard_unless_kept(&self) -> Option<Guard<'_>> {
        (!self.is_kept_here()).then(|| self.guard())
    }

    /// Takes the lock until the guard goes.
    #[inline(always)]
    pub(crate) fn guard(&self) -> Guard<'_> {
        self.acquire();
        Guard(self)
    }

    /// Takes the lock, which was not free.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait(&self) {
        let mut rounds = 0;
        while !self.spin() {
            if self.process.is_parent() {
                return;
            }
            rounds += 1;
            if rounds <= YIELDS {
                std::thread::yield_now();
            } else {
                // A thread that is cancelled in a post would leave the lock behind.
                uncancelled(|| std::thread::sleep(SLEEP));
            }
        }
    }

    /// Looks for a while whether the lock is free, and takes it then.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            if self.holder.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// The thread pointer: an address that no other live thread has, and that is even. Reading a
/// thread-local variable would take a call in a shared object.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: the ABI has the thread pointer at this place.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer,
            options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// The thread pointer: an address that no other live thread has, and that is even.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: reads the register that the ABI has for it.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer,
            options(nostack, nomem, preserves_flags));
    }
    pointer
}

/// An address that no other live thread has, and that is even.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn this_thread() -> usize {
    thread_local!(static HERE: u64 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A lock that is held.
pub(crate) struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What control verbs share: behind a lock that threads sleep for.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    value: Mutex<T>,
    process: Process,
}

impl<T> Shared<T> {
    /// Shares `value`.
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), process: fork::process() }
    }

    /// Takes the lock until the guard goes. `None` in a forked child of the process that made it,
    /// if a thread held it at the fork.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if self.process.is_parent() => None,
            Err(TryLockError::WouldBlock) => {
                Some(self.value.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four threads add to a counter that is not an atomic: none of the additions is lost.
    #[test]
    fn it_keeps_others_out() {
        struct Counted(Lock, std::cell::UnsafeCell<u64>);
        // SAFETY: the counter is used under the lock only.
        unsafe impl Sync for Counted {}
        let shared = Counted(Lock::new(true), std::cell::UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let shared = &shared;
                    for _ in 0..10_000 {
                        let _guard = shared.0.guard();
                        // SAFETY: the lock is held.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(shared.1.into_inner(), 40_000);
    }
}
