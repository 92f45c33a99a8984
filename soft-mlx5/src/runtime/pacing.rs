//! When the device thread does its next look: at once, after yielding, or after a sleep.

use super::spins::Spins;

/// How long the thread yields after its last work, in nanoseconds.
const YIELDING: u64 = 200_000;

/// Shortest sleep of a device with queues in nanoseconds. With shorter sleeps, the thread uses up
/// its share of an oversubscribed core, and then must wait for the pollers: on two cores with two
/// pollers, a round trip took three times as long with 10 us as with 25 us.
const SHORTEST: u64 = 25_000;

/// Longest sleep soon after work, and longest sleep of all, in nanoseconds. A wake-up by timer
/// costs 3 us on bare metal and 25 us in a virtual machine. With all cores busy it costs 30 us
/// there, and the look itself as much again, with cold caches. With 8 ms an idle device takes less
/// than one percent of a core even there.
const LONGEST: (u64, u64) = (1_000_000, 8_000_000);

/// How long to sleep after `quiet` nanoseconds without work. It is a fraction of that time, which
/// bounds the delay of the next work.
fn nap(quiet: u64) -> u64 {
    (quiet / 8).clamp(SHORTEST, LONGEST.0).max(quiet / 256).min(LONGEST.1)
}

/// How the device's thread pauses if there is no work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Let other threads run, if any want to.
    Yield,
    /// Sleep, see [`Pacing::timeout`].
    Sleep,
}

/// The results of the last looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    last_work: u64,
    /// Whether there are queues, whose doorbells wake no thread.
    polling: bool,
    spins: Spins,
}

impl Pacing {
    pub(super) fn new(now: u64) -> Self {
        Self { last_work: now, polling: false, spins: Spins::default() }
    }

    /// How to pause if this look finds nothing; `oversubscribed` says that yields take long now.
    pub(super) fn plan(&self, now: u64, oversubscribed: bool) -> Pause {
        let fresh = now.saturating_sub(self.last_work) < YIELDING;
        if self.polling && fresh && !oversubscribed { Pause::Yield } else { Pause::Sleep }
    }

    /// As [`plan`](Self::plan), for a program's thread that waits for a file. It looks again
    /// without a sleep only if that is faster ([`Spins`]).
    pub(super) fn plan_waiting(&mut self, now: u64, oversubscribed: bool) -> Pause {
        let may_yield = self.plan(now, oversubscribed) == Pause::Yield;
        let quiet = now.saturating_sub(self.last_work);
        if self.spins.pay(quiet, may_yield) { Pause::Yield } else { Pause::Sleep }
    }

    /// Records the result of a look for which that thread did not sleep.
    pub(super) fn looked_waiting(&mut self, did_work: bool) {
        self.spins.looked(did_work);
    }

    /// Records that work came during a sleep: more is likely to follow.
    pub(super) fn woken(&mut self, now: u64) {
        self.last_work = now;
    }

    /// Records the result of a look.
    pub(super) fn looked(&mut self, now: u64, did_work: bool, polling: bool) {
        self.polling = polling;
        if did_work {
            self.last_work = now;
        }
    }

    /// How long to sleep in nanoseconds, at most until `deadline`; `None`: until woken.
    pub(super) fn timeout(&self, now: u64, deadline: Option<u64>) -> Option<u64> {
        self.timeout_above(0, now, deadline)
    }

    /// As [`timeout`](Self::timeout). Doorbells may wait for at least `least` nanoseconds.
    pub(super) fn timeout_above(&self, least: u64, now: u64, deadline: Option<u64>) -> Option<u64> {
        let quiet = now.saturating_sub(self.last_work);
        let doorbell = self.polling.then(|| nap(quiet).max(least));
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
        assert_eq!((pacing.plan(1, false), pacing.timeout(1, None)), (Pause::Sleep, None));
        pacing.looked(1, true, false);
        assert_eq!(
            (pacing.plan(2, false), pacing.timeout(2, Some(102))),
            (Pause::Sleep, Some(100))
        );
        assert_eq!(pacing.timeout(200, Some(102)), Some(0));
    }

    /// 125 looks per second of 80 us each would be one percent of a core.
    #[test]
    fn an_idle_device_looks_at_its_doorbells_every_eight_milliseconds() {
        let mut pacing = Pacing::new(0);
        pacing.looked(0, true, true);
        let next = |now: &u64| {
            assert!(*now < YIELDING || pacing.plan(*now, false) == Pause::Sleep);
            pacing.timeout(*now, None).map(|sleep| now + sleep)
        };
        let looks = std::iter::successors(Some(0), next).skip_while(|now| *now < 2_500_000_000);
        assert_eq!(looks.take_while(|now| *now < 3_500_000_000).count(), 125);
    }

    #[test]
    fn a_silent_device_sleeps_longer_and_longer() {
        let mut pacing = Pacing::new(0);
        pacing.looked(0, true, true);
        assert_eq!(pacing.plan(YIELDING - 1, false), Pause::Yield);
        assert_eq!(pacing.plan(YIELDING - 1, true), Pause::Sleep);
        assert_eq!(pacing.plan(YIELDING, false), Pause::Sleep);
        assert_eq!(pacing.timeout(YIELDING, None), Some(25_000));
        assert_eq!(pacing.timeout(3_200_000, None), Some(400_000));
        assert_eq!(pacing.timeout(100_000_000, None), Some(1_000_000));
        assert_eq!(pacing.timeout(10_000_000_000, None), Some(8_000_000));
        assert_eq!(pacing.timeout(10_000_000_000, Some(10_000_000_007)), Some(7));
    }
}
