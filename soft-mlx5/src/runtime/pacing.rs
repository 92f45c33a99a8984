//! When the device thread looks again: at once, after letting others run, or after a sleep.
//!
//! The hard case is a machine with two cores and two processes, each with a thread that polls a CQ
//! without ever sleeping beside its device thread. `sched_yield` then means to wait for the end of
//! a poller's time slice (milliseconds). A thread that sleeps, if only for microseconds, is owed
//! time when it wakes up and preempts the poller. So: yield as long as yields are short, and sleep
//! for a while after one was long.

/// How long the thread yields after its last work, in nanoseconds.
const YIELDING: u64 = 200_000;

/// A yield that took this long in nanoseconds means that another thread does not give its core
/// away.
const LONG_YIELD: u64 = 60_000;

/// How long the thread avoids yielding after a long one, in nanoseconds: at first, and in the end if
/// yields turn out long again and again.
const CROWDED: (u64, u64) = (5_000_000, 320_000_000);

/// Shortest sleep of a device with queues in nanoseconds. A thread that sleeps less uses up its
/// share of a crowded core, and then has to wait for the pollers after all: measured on two cores
/// with two pollers, 10 us made a round trip three times as long as 25 us did.
const SHORTEST: u64 = 25_000;

/// Longest sleep soon after work, and the longest at all, in nanoseconds. A wake-up by timer costs
/// 3 us on bare metal; in a virtual machine 25 us, and with all cores busy 30 us and as much for the
/// look itself with cold caches. 8 ms keep an idle device below one percent of a core there as well.
const LONGEST: (u64, u64) = (1_000_000, 8_000_000);

/// How long to sleep after `quiet` nanoseconds without work: what is noticed late is late by a
/// fraction of the time that nothing was wanted.
fn nap(quiet: u64) -> u64 {
    (quiet / 8).clamp(SHORTEST, LONGEST.0).max(quiet / 256).min(LONGEST.1)
}

/// What to do if there is no work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Let other threads run, if any want to.
    Yield,
    /// Sleep, see [`Pacing::timeout`].
    Sleep,
}

/// What the last looks found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    last_work: u64,
    crowded_until: u64,
    /// How long the next crowd is expected to last.
    crowd: u64,
    /// There are queues, whose doorbells nobody announces.
    polling: bool,
}

impl Pacing {
    pub(super) fn new(now: u64) -> Self {
        Self { last_work: now, crowded_until: 0, crowd: CROWDED.0, polling: false }
    }

    /// How to pause if this look finds nothing.
    pub(super) fn plan(&self, now: u64) -> Pause {
        let fresh = now.saturating_sub(self.last_work) < YIELDING;
        if self.polling && fresh && now >= self.crowded_until { Pause::Yield } else { Pause::Sleep }
    }

    /// Notes that something came during a sleep: more is likely to follow.
    pub(super) fn woken(&mut self, now: u64) {
        self.last_work = now;
    }

    /// Notes what a look found.
    pub(super) fn looked(&mut self, now: u64, did_work: bool, polling: bool) {
        self.polling = polling;
        if did_work {
            self.last_work = now;
        }
    }

    /// Notes how long a yield took.
    pub(super) fn yielded(&mut self, from: u64, to: u64) {
        if to.saturating_sub(from) > LONG_YIELD {
            self.crowded_until = to + self.crowd;
            self.crowd = (self.crowd * 2).min(CROWDED.1);
        } else {
            self.crowd -= (self.crowd - CROWDED.0) / 16;
        }
    }

    /// How long to sleep in nanoseconds, at most until `deadline`; `None`: until woken.
    pub(super) fn timeout(&self, now: u64, deadline: Option<u64>) -> Option<u64> {
        let quiet = now.saturating_sub(self.last_work);
        let doorbell = self.polling.then(|| nap(quiet));
        let deadline = deadline.map(|at| at.saturating_sub(now));
        doorbell.into_iter().chain(deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_queues_sleeps_until_woken() {
        let mut pacing = Pacing::new(0);
        assert_eq!((pacing.plan(1), pacing.timeout(1, None)), (Pause::Sleep, None));
        pacing.looked(1, true, false);
        assert_eq!((pacing.plan(2), pacing.timeout(2, Some(102))), (Pause::Sleep, Some(100)));
        assert_eq!(pacing.timeout(200, Some(102)), Some(0));
    }

    #[test]
    fn a_silent_device_sleeps_longer_and_longer() {
        let mut pacing = Pacing::new(0);
        pacing.looked(0, true, true);
        assert_eq!(pacing.plan(YIELDING - 1), Pause::Yield);
        assert_eq!(pacing.plan(YIELDING), Pause::Sleep);
        assert_eq!(pacing.timeout(YIELDING, None), Some(25_000));
        assert_eq!(pacing.timeout(3_200_000, None), Some(400_000));
        assert_eq!(pacing.timeout(100_000_000, None), Some(1_000_000));
        assert_eq!(pacing.timeout(10_000_000_000, None), Some(8_000_000));
        assert_eq!(pacing.timeout(10_000_000_000, Some(10_000_000_007)), Some(7));
    }

    #[test]
    fn a_long_yield_turns_yields_into_sleeps_for_a_while() {
        let mut pacing = Pacing::new(0);
        pacing.looked(0, true, true);
        pacing.yielded(0, LONG_YIELD);
        assert_eq!(pacing.plan(LONG_YIELD), Pause::Yield);
        pacing.yielded(0, LONG_YIELD + 1);
        pacing.looked(70_000, true, true);
        assert_eq!(
            (pacing.plan(70_001), pacing.timeout(70_001, None)),
            (Pause::Sleep, Some(25_000))
        );
        let later = LONG_YIELD + 1 + CROWDED.0;
        pacing.looked(later, true, true);
        assert_eq!(pacing.plan(later), Pause::Yield);
        pacing.yielded(later, later + LONG_YIELD + 1);
        let later = later + LONG_YIELD + CROWDED.0 * 2;
        pacing.looked(later, true, true);
        assert_eq!(pacing.plan(later), Pause::Sleep, "the second crowd is taken for a longer one");
    }
}
