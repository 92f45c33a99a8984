//! The worst stalls of a measurement: how long each was, and when.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Most stalls that are kept.
const KEPT: usize = 10;

/// One stall.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Stall {
    /// Microseconds that one message took.
    pub(super) length_us: f64,
    /// Seconds from the beginning of the size's measurement to the message's end.
    pub(super) at_s: f64,
    /// The microseconds that this program itself lost, if measured. The rest was spent in the
    /// device and the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program_us: Option<f64>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} µs at {:.6} s", self.length_us, self.at_s)?;
        self.program_us.map_or(Ok(()), |us| write!(f, " (program stalled {us:.1} µs)"))
    }
}

/// The longest stalls so far, longest first.
#[derive(Debug, Default)]
pub(super) struct Stalls(Vec<(Duration, Duration, Option<Duration>)>);

impl Stalls {
    /// Records a message that took `length` and ended at `at` after the start.
    pub(super) fn note(&mut self, length: Duration, at: Duration) {
        self.insert(length, at, None);
    }

    /// Records a message during which the program itself stalled for `stalled`.
    pub(super) fn note_stalled(&mut self, length: Duration, at: Duration, stalled: Duration) {
        self.insert(length, at, Some(stalled));
    }

    fn insert(&mut self, length: Duration, at: Duration, stalled: Option<Duration>) {
        let is_full = self.0.len() == KEPT;
        if is_full && self.0.last().is_some_and(|(shortest, ..)| length <= *shortest) {
            return;
        }
        let place = self.0.partition_point(|(longer, ..)| *longer >= length);
        self.0.insert(place, (length, at, stalled));
        self.0.truncate(KEPT);
    }

    pub(super) fn list(&self) -> Vec<Stall> {
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let stall = |(length, at, stalled): &(Duration, Duration, Option<Duration>)| Stall {
            length_us: micros(*length),
            at_s: at.as_secs_f64(),
            program_us: stalled.map(micros),
        };
        self.0.iter().map(stall).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stalls_are_kept() {
        let mut stalls = Stalls::default();
        for at in 0..1000u64 {
            stalls.note(Duration::from_micros(at * 7919 % 1000), Duration::from_secs(at));
        }
        let lengths: Vec<f64> = stalls.list().iter().map(|stall| stall.length_us).collect();
        assert_eq!(lengths, [999., 998., 997., 996., 995., 994., 993., 992., 991., 990.]);
    }
}
