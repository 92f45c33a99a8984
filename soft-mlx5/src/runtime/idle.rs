//! The device's work in a polling program's thread that has nothing else to do.
//!
//! The thread does a look in place of the device's thread ([`Runtime::progress`]). If there is
//! nothing to do, it lets other threads run: by `sched_yield` if that returns soon, else by waiting
//! in the kernel for the next packet, like the device's own thread. The scheduler runs a woken
//! thread soon, even if other threads are busy, but a thread that yields waits for all of them.
//!
//! # No completion is missed
//! Another thread may deliver a completion between the program's poll and the wait. So a thread
//! only waits if no work was done since its previous call, after which the program has polled
//! again. Each look that does work increments [`Work`] before it releases the worker's lock. The
//! holder of that lock waits for packets; all other threads wait for the counter.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, TryLockError};
use std::thread;
use std::time::Duration;

use super::pacing::Pause;
use super::worker::{Whose, Worker};
use super::{Runtime, Shared, clock, lock};

/// Longest wait in nanoseconds. The program may also wait for other events, and doorbells of
/// threads that never call this are only noticed between two waits.
const BOUND: u64 = 500_000;

/// Counts what was done for the program, and wakes threads that wait for it.
#[derive(Debug, Default)]
pub(super) struct Work {
    done: AtomicU64,
    waiting: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
}

impl Work {
    /// Counts work. Call it after completions are written and before the lock is released.
    pub(super) fn note(&self) {
        // Sequentially consistent, like the accesses in `wait_beyond`: either this thread sees the
        // waiting thread, or that thread sees the new count.
        self.done.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            drop(lock(&self.turn));
            self.changed.notify_all();
        }
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits until more than `seen` was done, or for [`BOUND`].
    fn wait_beyond(&self, seen: u64) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = lock(&self.turn);
        if self.done() == seen {
            drop(self.changed.wait_timeout(turn, Duration::from_nanos(BOUND)));
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    static SEEN: Cell<Seen> = const { Cell::new(Seen([(ptr::null(), 0); DEVICES])) };
}

/// Most devices whose work counters a thread remembers.
const DEVICES: usize = 4;

/// The devices on which a thread was idle last, with their work counters at that time.
#[derive(Clone, Copy)]
struct Seen([(*const Shared, u64); DEVICES]);

impl Seen {
    /// The device's work counter at the last call; `None` if that was too long ago.
    fn replace(&mut self, device: *const Shared, done: u64) -> Option<u64> {
        let known = self.0.iter().position(|(other, _)| ptr::eq(*other, device));
        let before = known.map(|at| self.0[at].1);
        // The oldest one is forgotten.
        self.0[..=known.unwrap_or(DEVICES - 1)].rotate_right(1);
        self.0[0] = (device, done);
        before
    }
}

impl Runtime {
    /// Does a look in the calling thread; if there was nothing to do, lets other threads run.
    /// Polling programs call it between two polls that found nothing. It may wait in the kernel,
    /// for at most 500 us.
    pub fn idle(&self) {
        if !self.is_here() {
            return thread::yield_now();
        }
        if self.progress() {
            return;
        }
        let rest = catch_unwind(AssertUnwindSafe(|| self.shared.rest()));
        rest.unwrap_or_else(|_| self.shared.fail());
    }
}

impl Shared {
    fn rest(&self) {
        if self.is_wanted() {
            thread::yield_now();
        } else if self.scheduler.is_oversubscribed(clock::now()) {
            self.wait_for_work();
        } else {
            self.scheduler.yield_now();
        }
    }

    fn wait_for_work(&self) {
        let done = self.work.done();
        let mut seen = SEEN.get();
        let before = seen.replace(self, done);
        SEEN.set(seen);
        match before {
            Some(before) if before == done => {}
            Some(_) => return,
            None => return thread::yield_now(),
        }
        match self.worker.try_lock() {
            // Looks of other threads have ended when this thread has the lock.
            Ok(mut worker) if self.work.done() == done => doze(self, &mut worker),
            Ok(_) => {}
            Err(TryLockError::WouldBlock) => {
                self.sweep_anew();
                self.work.wait_beyond(done);
            }
            Err(TryLockError::Poisoned(_)) => thread::yield_now(),
        }
    }
}

/// A look and, if it finds nothing, a short sleep.
fn doze(shared: &Shared, worker: &mut Worker) {
    let now = clock::now();
    // The device's own thread stands by until then.
    shared.standby.note(now + BOUND);
    // A signal ends the sleep, and the program polls.
    let whose = Whose::Own(Pause::Sleep);
    let _ = worker.look_and_sleep(shared, now, whose, &[], |_, now, deadline| {
        Some(deadline.map_or(BOUND, |at| at.saturating_sub(now).min(BOUND)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_remembers_the_devices_it_was_idle_on_last() {
        let mut seen = Seen([(ptr::null(), 0); DEVICES]);
        let device = |n: usize| ptr::without_provenance(n);
        for n in 1..=DEVICES {
            assert_eq!(seen.replace(device(n), 7), None);
        }
        assert_eq!(seen.replace(device(1), 8), Some(7));
        assert_eq!(seen.replace(device(9), 8), None);
        assert_eq!(seen.replace(device(2), 8), None, "the one that was not used for longest");
        assert_eq!(seen.replace(device(1), 8), Some(8));
    }

    #[test]
    fn what_was_done_before_the_wait_ends_it() {
        let work = Work::default();
        let seen = work.done();
        work.note();
        // This takes forever if only the limit ends it.
        work.wait_beyond(seen);
        assert_eq!(work.done(), seen + 1);
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while work.done() == 0 {
                    work.wait_beyond(0);
                }
            });
            while work.waiting.load(Ordering::SeqCst) == 0 && !waiter.is_finished() {
                thread::yield_now();
            }
            work.note();
        });
    }
}
