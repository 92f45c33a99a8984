//! The worst stalls of a measurement: how long each was, and when.

use std::time::Duration;

use serde::Serialize;

/// How many are kept.
const KEPT: usize = 10;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Stall {
    /// Microseconds that one message took.
    pub(super) length_us: f64,
    /// Seconds from the beginning of the size's measurement to the message's end.
    pub(super) at_s: f64,
}

/// The longest so far, longest first.
#[derive(Debug, Default)]
pub(super) struct Stalls(Vec<(Duration, Duration)>);

impl Stalls {
    /// Notes a message that took `length` and ended `at` after the beginning.
    pub(super) fn note(&mut self, length: Duration, at: Duration) {
        let is_full = self.0.len() == KEPT;
        if is_full && self.0.last().is_some_and(|(shortest, _)| length <= *shortest) {
            return;
        }
        let place = self.0.partition_point(|(longer, _)| *longer >= length);
        self.0.insert(place, (length, at));
        self.0.truncate(KEPT);
    }

    pub(super) fn list(&self) -> Vec<Stall> {
        let stall = |(length, at): &(Duration, Duration)| Stall {
            length_us: length.as_nanos() as f64 / 1000.0,
            at_s: at.as_secs_f64(),
        };
        self.0.iter().map(stall).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stay() {
        let mut stalls = Stalls::default();
        for at in 0..1000u64 {
            stalls.note(Duration::from_micros(at * 7919 % 1000), Duration::from_secs(at));
        }
        let lengths: Vec<f64> = stalls.list().iter().map(|stall| stall.length_us).collect();
        assert_eq!(lengths, [999., 998., 997., 996., 995., 994., 993., 992., 991., 990.]);
    }
}
