//! Converts timestamps to nanoseconds since 1970.

use std::time::Instant;

use uverbs::ethernet::{FreeRunning, RealTime, Timed, Timestamp, UtcClock};

/// Converts the timestamps of clock `C`.
pub(super) trait ToUtc<C: Timed> {
    fn nanoseconds(&mut self, time: Timestamp<C>) -> u64;

    /// Called between batches: reads the clock again if that is due.
    fn refresh(&mut self) {}
}

impl ToUtc<FreeRunning> for (UtcClock, Instant) {
    fn nanoseconds(&mut self, time: Timestamp<FreeRunning>) -> u64 {
        self.0.nanoseconds(time)
    }

    fn refresh(&mut self) {
        // Half the period, because a batch itself takes time.
        if self.1.elapsed() >= self.0.period() / 2 {
            // If that fails, the old values are good enough for another batch.
            let _ = self.0.refresh();
            self.1 = Instant::now();
        }
    }
}

/// The device's PTP clock, whose timestamps are UTC.
pub(super) struct Ptp;

impl ToUtc<RealTime> for Ptp {
    fn nanoseconds(&mut self, time: Timestamp<RealTime>) -> u64 {
        time.nanoseconds()
    }
}
