//! Whether more threads want to run than there are processors.
//!
//! `sched_yield` then means to wait for the end of the other threads' time slices (milliseconds). A
//! thread that sleeps, if only for microseconds, keeps its claim to processor time and is run soon
//! after it wakes up. So threads of the device yield as long as yields are short, and sleep for a
//! while after one was long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::clock;

/// A yield that took this long in nanoseconds means that another thread does not give its processor
/// away.
const LONG_YIELD: u64 = 60_000;

/// After a long yield none is tried for 32 times as long as it took, so yields cost one
/// thirty-second of the time at most.
const TIMES: u64 = 32;

/// The longest time, in nanoseconds, for which no yield is tried.
const LONGEST: u64 = 640_000_000;

/// What the last long yield of the device's threads, its own and those of programs, has shown.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Nothing is published by it, so all accesses are relaxed.
    until: AtomicU64,
}

impl Crowd {
    /// Whether to sleep instead of yielding.
    pub(super) fn is_there(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    /// Lets other threads run, and notes how long they took.
    pub(super) fn yield_now(&self) {
        let from = clock::now();
        thread::yield_now();
        self.yielded(from, clock::now());
    }

    fn yielded(&self, from: u64, to: u64) {
        let took = to.saturating_sub(from);
        if took > LONG_YIELD {
            let pause = took.saturating_mul(TIMES).min(LONGEST);
            self.until.fetch_max(to.saturating_add(pause), Ordering::Relaxed);
        }
    }

    /// There is a crowd from now on.
    #[cfg(test)]
    pub(super) fn assume(&self) {
        self.until.store(u64::MAX, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_yield_turns_yields_into_sleeps_for_a_while() {
        let crowd = Crowd::default();
        crowd.yielded(0, LONG_YIELD);
        assert!(!crowd.is_there(LONG_YIELD));
        crowd.yielded(0, 100_000);
        assert!(crowd.is_there(33 * 100_000 - 1));
        assert!(!crowd.is_there(33 * 100_000));
    }

    #[test]
    fn the_longest_yield_counts_and_is_forgotten_in_the_end() {
        let crowd = Crowd::default();
        crowd.yielded(0, 1_000_000_000);
        crowd.yielded(1_000_000_000, 1_000_100_000);
        assert!(crowd.is_there(1_000_000_000 + LONGEST - 1));
        assert!(!crowd.is_there(1_000_000_000 + LONGEST));
    }
}
