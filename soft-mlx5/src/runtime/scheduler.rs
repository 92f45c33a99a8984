//! Whether the machine is oversubscribed: more threads want to run than there are processors.
//!
//! On such a machine `sched_yield` returns only when the other threads' time slices end, after
//! milliseconds. But a thread that has slept, even for microseconds, is run soon after it wakes up.
//! So the device's threads yield as long as yields are short. After a long yield, they sleep
//! instead for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::clock;

/// A yield that took this long in nanoseconds means that another thread keeps its processor until
/// its time slice ends.
const LONG_YIELD: u64 = 60_000;

/// After a long yield no yield is tried for 32 times its duration, so yields cost at most one
/// thirty-second of the time.
const TIMES: u64 = 32;

/// The longest time, in nanoseconds, for which no yield is tried.
const LONGEST: u64 = 640_000_000;

/// Measurements of yields by the device's own thread and by programs' threads.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    /// Until when threads sleep instead of yielding. All accesses are relaxed, because it publishes
    /// no other data.
    oversubscribed_until: AtomicU64,
}

impl Scheduler {
    /// Whether to sleep instead of yielding.
    pub(super) fn is_oversubscribed(&self, now: u64) -> bool {
        now < self.oversubscribed_until.load(Ordering::Relaxed)
    }

    /// Lets other threads run, and measures how long they took.
    pub(super) fn yield_now(&self) {
        let from = clock::now();
        thread::yield_now();
        self.yielded(from, clock::now());
    }

    fn yielded(&self, from: u64, to: u64) {
        let took = to.saturating_sub(from);
        if took > LONG_YIELD {
            let pause = took.saturating_mul(TIMES).min(LONGEST);
            self.oversubscribed_until.fetch_max(to.saturating_add(pause), Ordering::Relaxed);
        }
    }

    /// The machine counts as oversubscribed from now on.
    #[cfg(test)]
    pub(super) fn assume_oversubscribed(&self) {
        self.oversubscribed_until.store(u64::MAX, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_yield_turns_yields_into_sleeps_for_a_while() {
        let scheduler = Scheduler::default();
        scheduler.yielded(0, LONG_YIELD);
        assert!(!scheduler.is_oversubscribed(LONG_YIELD));
        scheduler.yielded(0, 100_000);
        assert!(scheduler.is_oversubscribed(33 * 100_000 - 1));
        assert!(!scheduler.is_oversubscribed(33 * 100_000));
    }

    #[test]
    fn the_longest_yield_counts_and_is_forgotten_in_the_end() {
        let scheduler = Scheduler::default();
        scheduler.yielded(0, 1_000_000_000);
        scheduler.yielded(1_000_000_000, 1_000_100_000);
        assert!(scheduler.is_oversubscribed(1_000_000_000 + LONGEST - 1));
        assert!(!scheduler.is_oversubscribed(1_000_000_000 + LONGEST));
    }
}
