//! Time lost by this program: gaps between two consecutive readings of the clock in a loop. The
//! rest of a frame's time is spent in the device and the network.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The shortest gap that counts as a stall of the program, caused by interrupts, other programs or
/// the hypervisor. Normally an iteration of the loop takes less than a microsecond.
const STALL: Duration = Duration::from_micros(5);

#[derive(Debug)]
pub(super) struct Gaps {
    began: Instant,
    last: Instant,
    lost: Duration,
    count: u64,
    longest: Duration,
}

/// The reported stalls.
#[derive(Debug, Serialize)]
pub(super) struct Stalled {
    /// The shortest gap that is counted.
    threshold_us: f64,
    count: u64,
    total_us: f64,
    longest_us: f64,
    seconds: f64,
}

impl Gaps {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (lost, longest) = (Duration::ZERO, Duration::ZERO);
        Self { began: now, last: now, lost, count: 0, longest }
    }

    /// Reads the clock, and counts a long gap since the last reading.
    #[inline]
    pub(super) fn now(&mut self) -> Instant {
        self.at(Instant::now())
    }

    #[inline]
    fn at(&mut self, now: Instant) -> Instant {
        let gap = now - self.last;
        self.last = now;
        if gap >= STALL {
            self.lost += gap;
            self.count += 1;
            self.longest = self.longest.max(gap);
        }
        now
    }

    /// Ignores the time since the last reading, in which this thread ran a software device.
    pub(super) fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// The sum of all gaps so far.
    #[inline]
    pub(super) fn lost(&self) -> Duration {
        self.lost
    }

    pub(super) fn report(&self) -> Stalled {
        Stalled {
            threshold_us: micros(STALL),
            count: self.count,
            total_us: micros(self.lost),
            longest_us: micros(self.longest),
            seconds: (self.last - self.began).as_secs_f64(),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threshold_us, count, total_us, longest_us, seconds } = self;
        write!(
            f,
            "{count} of {threshold_us} µs or more in {seconds:.3} s, {total_us:.1} µs in all, \
             the longest {longest_us:.1} µs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gaps_are_stalls_unless_they_are_skipped() {
        let mut gaps = Gaps::new();
        let start = gaps.last;
        for us in [1, 3, 103, 104, 134] {
            gaps.at(start + Duration::from_micros(us));
        }
        assert_eq!(gaps.lost(), Duration::from_micros(130));
        let report = gaps.report();
        assert_eq!((report.count, report.longest_us), (2, 100.0));
        gaps.last = start;
        gaps.skip();
        assert_eq!(gaps.report().count, 2);
    }
}
