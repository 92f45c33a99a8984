//! The lock of a queue. The verbs are thread-safe; a queue that a program declares to be of one
//! thread has none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How often a thread looks again before it lets others run.
const SPINS: u32 = 100;

/// A spin lock that may be switched off when it is made.
#[derive(Debug)]
pub(crate) struct Lock {
    taken: AtomicBool,
    needed: bool,
    /// The thread that keeps the lock from one call of the program to another, or 0.
    keeper: AtomicUsize,
}

impl Lock {
    /// A lock, or none if `needed` is false.
    pub(crate) fn new(needed: bool) -> Self {
        Self { taken: AtomicBool::new(false), needed, keeper: AtomicUsize::new(0) }
    }

    /// Takes the lock.
    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if self.needed && self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    /// Gives the lock back.
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.needed {
            self.taken.store(false, Ordering::Release);
        }
    }

    /// Notes that this thread, which holds the lock, keeps it when the program's call returns.
    #[inline(always)]
    pub(crate) fn keep(&self) {
        self.keeper.store(this_thread(), Ordering::Relaxed);
    }

    /// Gives back a lock that was kept.
    #[inline(always)]
    pub(crate) fn release_kept(&self) {
        self.keeper.store(0, Ordering::Relaxed);
        self.release();
    }

    /// Whether this thread keeps the lock, as it does between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) fn is_kept_here(&self) -> bool {
        self.keeper.load(Ordering::Relaxed) == this_thread()
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

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire)
                {
                    return;
                }
                std::hint::spin_loop();
            }
            // The holder may be in a system call, or have no processor.
            std::thread::yield_now();
        }
    }
}

/// An address that no other live thread has.
#[inline(always)]
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Four threads add to a counter that is no atomic: none of the additions is lost.
    #[test]
    fn it_keeps_others_out() {
        struct Shared(Lock, std::cell::UnsafeCell<u64>);
        // SAFETY: the counter is used under the lock only.
        unsafe impl Sync for Shared {}
        let shared = Shared(Lock::new(true), std::cell::UnsafeCell::new(0));
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
