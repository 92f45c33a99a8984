//! Round-trip times and their percentiles.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Times up to a minute, with three significant digits.
#[derive(Debug)]
pub(crate) struct Latency {
    nanoseconds: Histogram<u64>,
}

/// The reported percentiles, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Percentiles {
    /// Half of the round trips took no longer.
    pub(crate) p50_us: f64,
    /// 99 of 100.
    pub(crate) p99_us: f64,
    /// 999 of 1,000.
    pub(crate) p99_9_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
}

impl Latency {
    /// No times yet.
    pub(crate) fn new() -> Self {
        let longest = Duration::from_secs(60).as_nanos() as u64;
        let nanoseconds = Histogram::new_with_bounds(1, longest, 3)
            .unwrap_or_else(|_| unreachable!("constant bounds"));
        Self { nanoseconds }
    }

    /// Records one round trip; longer times count as a minute.
    pub(crate) fn record(&mut self, time: Duration) {
        self.nanoseconds.saturating_record(time.as_nanos().max(1) as u64);
    }

    /// Each recorded time in nanoseconds, with how often it occurred. [`Latency::of`] is the
    /// inverse.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let recorded = self.nanoseconds.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    /// Creates the distribution from times, in nanoseconds, and their counts.
    pub(crate) fn of(counts: &[(u64, u64)]) -> Self {
        let mut latency = Self::new();
        for (nanoseconds, count) in counts {
            latency.nanoseconds.saturating_record_n((*nanoseconds).max(1), *count);
        }
        latency
    }

    /// Number of recorded times.
    pub(crate) fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// The time, in microseconds, that this fraction of the recorded times did not exceed.
    pub(crate) fn at(&self, share: f64) -> f64 {
        self.nanoseconds.value_at_quantile(share) as f64 / 1000.0
    }

    /// The shortest, in microseconds.
    pub(crate) fn min(&self) -> f64 {
        self.nanoseconds.min() as f64 / 1000.0
    }

    /// The longest, in microseconds.
    pub(crate) fn max(&self) -> f64 {
        self.nanoseconds.max() as f64 / 1000.0
    }

    /// The mean, in microseconds.
    pub(crate) fn mean(&self) -> f64 {
        self.nanoseconds.mean() / 1000.0
    }

    /// The percentiles so far.
    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_us: self.at(0.5),
            p99_us: self.at(0.99),
            p99_9_us: self.at(0.999),
            max_us: self.max(),
        }
    }
}

impl Extend<Duration> for Latency {
    fn extend<T: IntoIterator<Item = Duration>>(&mut self, times: T) {
        times.into_iter().for_each(|time| self.record(time));
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs",
            self.p50_us, self.p99_us, self.p99_9_us, self.max_us
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new();
        (1..=1000).for_each(|us| latency.record(Duration::from_micros(us)));
        let percentiles = latency.percentiles();
        assert!((percentiles.p50_us - 500.0).abs() < 2.0, "{percentiles}");
        assert!((percentiles.p99_9_us - 999.0).abs() < 2.0, "{percentiles}");
        assert!((percentiles.max_us - 1000.0).abs() < 2.0, "{percentiles}");
        let again = Latency::of(&latency.counts());
        assert_eq!((again.count(), again.at(0.5)), (1000, latency.at(0.5)));
    }
}
