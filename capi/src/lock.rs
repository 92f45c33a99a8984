//! The locks of the library. The verbs are thread-safe, except on a queue that the program declares
//! to be used by one thread: it has no lock.
//!
//! A queue's lock is held during a post or poll, and across calls where the verbs require it
//! (between `ibv_wr_start` and `ibv_wr_complete`, for example). A thread that finds it held spins,
//! then yields, then sleeps, because the holder may have a lower priority and need the same
//! processor.
//!
//! Most queues are used by one thread for a long time, and an atomic instruction costs more than a
//! whole post. So a lock is biased: it belongs to the first thread that takes it, which then takes
//! and releases it by plain stores. The next thread that wants the lock takes it away from the
//! owner permanently (see [`Lock::revoke`]) and becomes the new owner, until a third thread wants
//! it. After [`OWNERS`] threads, every thread takes the lock by an atomic instruction.
//!
//! A forked child has only the thread that called `fork`. In the child, a lock that another thread
//! held at the fork would never be released, so the child may take it.

mod membarrier;

use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::events::uncancelled;
use crate::fork::{self, Process};
pub(crate) use membarrier::register;

/// How often a thread checks the lock again before it yields.
const SPINS: u32 = 100;
/// How often it yields before it sleeps.
const YIELDS: u32 = 20;
/// How long it sleeps before it checks again.
const SLEEP: Duration = Duration::from_micros(50);

/// Value of [`Slot::held`]: no thread has the lock. No thread pointer is odd.
const FREE: usize = 1;
/// Value of [`Slot::held`]: a thread has the lock during a call of the program.
const HELD: usize = 0;

/// Value of [`Slot::owner`]: every thread takes the lock by an atomic instruction.
const NONE: usize = 0;
/// Value of [`Slot::owner`]: the next thread that takes the lock becomes the owner.
const UNCLAIMED: usize = 2;
/// Bit of [`Slot::owner`]: another thread is taking the lock away from the owner.
const REVOKED: usize = 1;

/// How many threads own a lock, one after another, before it permanently has no owner.
const OWNERS: usize = 7;

/// The state of a lock while it has one owner, or none.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    /// The thread that takes the lock by plain stores, or one of the constants.
    owner: AtomicUsize,
    /// [`FREE`], [`HELD`], or the thread that keeps the lock from one call to another. If there is
    /// an owner, only the owner writes it: late stores of an earlier owner go to an earlier slot.
    held: AtomicUsize,
}

/// A spin lock that can be disabled at creation.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lock {
    /// The slot in use, in bytes from the first one.
    at: AtomicUsize,
    needed: bool,
    /// The process that made it.
    process: Process,
    /// One slot for each owner, and the last for a lock without an owner.
    slots: [Slot; OWNERS + 1],
}

/// [`Lock::at`] of the slot without an owner.
const LAST: usize = OWNERS * size_of::<Slot>();

impl Lock {
    /// A lock, which does nothing if `needed` is false.
    pub(crate) fn new(needed: bool) -> Self {
        // A lock that is not needed is never taken away: each thread that takes it just becomes the
        // owner.
        Self::with_owners(needed, !needed || register())
    }

    fn with_owners(needed: bool, has_owners: bool) -> Self {
        let slots = std::array::from_fn(|place| Slot {
            owner: AtomicUsize::new(if place == OWNERS { NONE } else { UNCLAIMED }),
            held: AtomicUsize::new(FREE),
        });
        let at = AtomicUsize::new(if has_owners { 0 } else { LAST });
        Self { at, needed, process: fork::process(), slots }
    }

    /// Whether it is needed.
    pub(crate) fn is_needed(&self) -> bool {
        self.needed
    }

    #[inline(always)]
    fn slot(&self) -> &Slot {
        // SAFETY: `at` is that of a slot.
        unsafe { &*self.slots.as_ptr().byte_add(self.at.load(Ordering::Acquire)) }
    }

    /// A lock that no thread can take, for a queue that a queue pair does not have. With it, the
    /// fast path need not check whether there is a queue.
    pub(crate) fn unavailable() -> Self {
        let lock = Self::with_owners(true, false);
        lock.slot().held.store(HELD, Ordering::Relaxed);
        lock
    }

    /// Takes the lock.
    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if self.try_acquire().is_none() {
            self.wait();
        }
    }

    /// Takes the lock if it is free and not another thread's. Callers wait in a function that they
    /// call in tail position, so they save no registers for waiting.
    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> Option<Taken<'_>> {
        let (slot, thread) = (self.slot(), this_thread());
        let is_taken = if slot.owner.load(Ordering::Relaxed) == thread {
            slot.enter(thread) || !self.needed
        } else if self.needed {
            slot.take(HELD)
        } else {
            slot.enter_unlocked(thread)
        };
        is_taken.then_some(Taken(slot))
    }

    /// Releases the lock, kept or not.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.slot().held.store(FREE, Ordering::Release);
    }

    /// Takes the lock if it is free and not another thread's, and keeps it when the program's call
    /// returns. `NEEDED` says whether the lock is needed. It is a constant, because the object's
    /// creation chose between two functions.
    #[inline(always)]
    pub(crate) fn try_keep<const NEEDED: bool>(&self) -> bool {
        let (slot, thread) = (self.slot(), this_thread());
        if slot.owner.load(Ordering::Relaxed) == thread {
            return slot.enter(thread) || !NEEDED;
        }
        if !NEEDED {
            return slot.enter_unlocked(thread);
        }
        slot.take(thread)
    }

    /// Records that this thread, which holds the lock, keeps it when the program's call returns.
    #[inline(always)]
    pub(crate) fn keep(&self) {
        self.slot().held.store(this_thread(), Ordering::Relaxed);
    }

    /// Whether this thread keeps the lock, as it does between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) fn is_kept_here(&self) -> bool {
        let (slot, thread) = (self.slot(), this_thread());
        let held = slot.held.load(Ordering::Relaxed);
        match slot.owner.load(Ordering::Relaxed) {
            NONE => held == thread,
            // The owner calls no verb while it holds the lock in any other way.
            owner => owner & !REVOKED == thread && held != FREE,
        }
    }

    /// Takes the lock until the guard is dropped, unless this thread already keeps it.
    pub(crate) fn guard_unless_kept(&self) -> Option<Guard<'_>> {
        (!self.is_kept_here()).then(|| self.guard())
    }

    /// Takes the lock until the guard goes.
    #[inline(always)]
    pub(crate) fn guard(&self) -> Guard<'_> {
        self.acquire();
        Guard(self)
    }

    /// Takes a lock that was not free, or was owned by another thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait(&self) {
        let thread = this_thread();
        self.until(|| self.try_claim(thread));
    }

    /// Takes the lock if it is free, and becomes the owner of one that has owners.
    fn try_claim(&self, thread: usize) -> bool {
        let slot = self.slot();
        let owner = slot.owner.load(Ordering::Relaxed);
        match owner {
            NONE => slot.held.load(Ordering::Relaxed) == FREE && slot.take(HELD),
            UNCLAIMED => {
                let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
                slot.owner.compare_exchange(UNCLAIMED, thread, acquire, relaxed).is_ok()
                    && slot.enter(thread)
            }
            owner if owner == thread => slot.enter(thread),
            owner if owner & REVOKED != 0 => false,
            owner => self.revoke(slot, owner, thread),
        }
    }

    /// Takes the lock away from its owner. Returns false, with nothing changed, if another thread
    /// does.
    ///
    /// The owner stores that it holds the lock, then checks whether it is still the owner. This
    /// thread stores that the owner is revoked, then checks whether the owner holds the lock. At
    /// least one of the two sees the other's store, provided that neither processor reads before
    /// its store is visible. `membarrier` guarantees this for both threads, so the owner needs no
    /// barrier instruction.
    fn revoke(&self, slot: &Slot, owner: usize, thread: usize) -> bool {
        let (order, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
        if slot.owner.compare_exchange(owner, owner | REVOKED, order, relaxed).is_err() {
            return false;
        }
        membarrier::run();
        self.until(|| slot.held.load(Ordering::Acquire) == FREE);
        // Other threads wait for the next slot, so only this thread has it.
        let at = self.at.load(Ordering::Relaxed) + size_of::<Slot>();
        let next = &self.slots[at / size_of::<Slot>()];
        next.held.store(HELD, Ordering::Relaxed);
        if at != LAST {
            next.owner.store(thread, Ordering::Relaxed);
        }
        self.at.store(at, Ordering::Release);
        true
    }

    /// Waits until `is_done`. A forked child of the process that created the lock spins only once,
    /// because the thread that it would wait for exists only in the parent.
    fn until(&self, mut is_done: impl FnMut() -> bool) {
        let mut rounds = 0;
        while !spin(&mut is_done) {
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
}

impl Slot {
    /// The owner takes the lock. Returns false, with nothing changed, if it is taken away.
    #[inline(always)]
    fn enter(&self, thread: usize) -> bool {
        self.held.store(HELD, Ordering::Relaxed);
        // The processor may swap the store and the load: see `Lock::revoke`.
        compiler_fence(Ordering::SeqCst);
        if self.owner.load(Ordering::Acquire) == thread {
            return true;
        }
        self.held.store(FREE, Ordering::Release);
        false
    }

    /// A thread becomes the owner of a lock that is not needed.
    #[inline(always)]
    fn enter_unlocked(&self, thread: usize) -> bool {
        self.owner.store(thread, Ordering::Relaxed);
        self.held.store(HELD, Ordering::Relaxed);
        true
    }

    /// Takes a lock that has no owner, if it is free. `held` is [`HELD`], or a thread that keeps
    /// the lock.
    #[inline(always)]
    fn take(&self, held: usize) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.owner.load(relaxed) == NONE
            && self.held.compare_exchange(FREE, held, acquire, relaxed).is_ok()
    }
}

/// Spins a limited number of times. Returns whether `is_done` came true.
fn spin(is_done: &mut impl FnMut() -> bool) -> bool {
    for _ in 0..SPINS {
        if is_done() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// The thread pointer: an address that no other live thread has, and that is even. In a shared
/// object, reading a thread-local variable would take a call.
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

/// A lock that is held during a call. Its slot does not change while it is held, so releasing it
/// need not find the slot. Dropping this value does not release the lock: see [`Lock::release`].
pub(crate) struct Taken<'a>(&'a Slot);

impl Taken<'_> {
    /// Gives the lock back.
    #[inline(always)]
    pub(crate) fn release(self) {
        self.0.held.store(FREE, Ordering::Release);
    }
}

/// A lock that is held.
pub(crate) struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A value that control verbs share, behind a mutex.
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

    /// A counter that is not an atomic, behind a lock.
    struct Counted(Lock, std::cell::UnsafeCell<u64>);
    // SAFETY: the counter is used under the lock only.
    unsafe impl Sync for Counted {}

    impl Counted {
        fn new(has_owners: bool) -> Self {
            Self(Lock::with_owners(true, has_owners), std::cell::UnsafeCell::new(0))
        }

        fn add(&self) {
            let _guard = self.0.guard();
            // SAFETY: the lock is held.
            unsafe { *self.1.get() += 1 };
        }

        fn owner(&self) -> usize {
            self.0.slot().owner.load(Ordering::Relaxed)
        }
    }

    /// Four threads add to a counter: none of the additions is lost.
    fn keeps_others_out(has_owners: bool) {
        let shared = Counted::new(has_owners);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| shared.add()));
            }
        });
        assert_eq!(shared.1.into_inner(), 40_000);
    }

    #[test]
    fn no_thread_gets_an_unavailable_lock() {
        assert!(Lock::unavailable().try_acquire().is_none());
    }

    #[test]
    fn a_lock_without_owners_keeps_others_out() {
        keeps_others_out(false);
    }

    #[test]
    fn taking_a_lock_away_loses_no_addition() {
        assert!(register(), "the kernel has no membarrier");
        // Each lock is taken away a few times only, in the middle of the owner's additions.
        (0..200).for_each(|_| keeps_others_out_once());
    }

    fn keeps_others_out_once() {
        let shared = Counted::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|_| shared.add()));
            (0..1000).for_each(|_| shared.add());
        });
        assert_eq!(shared.1.into_inner(), 2000);
    }

    /// Threads that come one after another own the lock in turn, and then none does.
    #[test]
    fn threads_become_the_owner_until_the_last_slot() {
        assert!(register(), "the kernel has no membarrier");
        let shared = Counted::new(true);
        let owns = || {
            shared.add();
            assert!(!shared.0.is_kept_here());
            shared.owner() == this_thread()
        };
        let owned = [(); OWNERS + 2].map(|()| {
            std::thread::scope(|scope| {
                // The main thread owns it before each of the others, so no address of an ended
                // thread counts as this one's.
                let before = owns();
                (before, scope.spawn(owns).join().is_ok_and(|owns| owns))
            })
        });
        let count = owned.iter().map(|(one, other)| usize::from(*one) + usize::from(*other));
        assert_eq!(count.sum::<usize>(), OWNERS);
        assert_eq!(shared.owner(), NONE);
    }

    /// A kept lock belongs to this thread even while another thread waits for it.
    #[test]
    fn only_its_thread_sees_a_lock_as_kept_here() {
        for has_owners in [false, register()] {
            let shared = Counted::new(has_owners);
            if !shared.0.try_keep::<true>() {
                shared.0.wait();
                shared.0.keep();
            }
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    assert!(!shared.0.is_kept_here());
                    shared.add();
                });
                while has_owners && shared.owner() & REVOKED == 0 {
                    std::thread::yield_now();
                }
                assert!(shared.0.is_kept_here());
                assert!(!other.is_finished());
                shared.0.release();
            });
            assert!(!shared.0.is_kept_here());
            assert_eq!(shared.1.into_inner(), 1);
        }
    }
}
