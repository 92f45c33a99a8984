//! The times at which frames are due.

use std::time::{Duration, Instant};

use crate::args::Replay;
use crate::latency::Latency;

/// How the times are determined.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// The recorded times, faster by this factor.
    Recorded(f64),
    /// A fixed interval between frames.
    Every(Duration),
    /// No times: as fast as possible.
    AtOnce,
}

/// The pace of a replay. Each frame is due at its own time, so a late frame does not delay the next
/// ones.
#[derive(Debug)]
pub(super) struct Pace {
    mode: Mode,
    began: Instant,
    /// The time from the start of the replay to the beginning of this pass through the recording.
    round: Duration,
    /// The first frame's recorded time in this pass.
    first: Option<u64>,
    /// The last frame's time in this pass.
    last: Duration,
    frames: u64,
    late: Latency,
}

impl Pace {
    pub(super) fn new(arguments: &Replay) -> Self {
        let mode = match arguments.rate {
            _ if arguments.fast => Mode::AtOnce,
            Some(rate) => Mode::Every(Duration::from_secs_f64(1.0 / rate)),
            None => Mode::Recorded(arguments.speed),
        };
        Self::of(mode)
    }

    fn of(mode: Mode) -> Self {
        Self {
            mode,
            began: Instant::now(),
            round: Duration::ZERO,
            first: None,
            last: Duration::ZERO,
            frames: 0,
            late: Latency::new(),
        }
    }

    /// Begins another pass through the recording.
    pub(super) fn restart(&mut self) {
        if self.frames == 0 {
            self.began = Instant::now();
        }
        self.round += self.last;
        (self.first, self.last) = (None, Duration::ZERO);
    }

    /// The time from the start at which the next frame is due. If recorded times go back, it is due
    /// with the previous frame.
    pub(super) fn due(&mut self, recorded: u64) -> Duration {
        let due = match self.mode {
            Mode::AtOnce => return Duration::ZERO,
            Mode::Every(gap) => {
                let nanoseconds = gap.as_nanos().saturating_mul(self.frames.into());
                return Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            }
            Mode::Recorded(speed) => {
                let first = *self.first.get_or_insert(recorded);
                let seconds = recorded.saturating_sub(first) as f64 / 1e9 / speed;
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        };
        self.last = self.last.max(due);
        self.round.saturating_add(self.last)
    }

    pub(super) fn is_reached(&self, due: Duration) -> bool {
        self.mode == Mode::AtOnce || self.began.elapsed() >= due
    }

    /// Records that a frame was passed to the device.
    pub(super) fn note(&mut self, due: Duration) {
        self.frames += 1;
        if self.mode != Mode::AtOnce {
            self.late.record(self.began.elapsed().saturating_sub(due));
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// How late frames were; `None` if none was due at a time.
    pub(super) fn late(&self) -> Option<&Latency> {
        (self.mode != Mode::AtOnce && self.frames > 0).then_some(&self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_due_at_their_recorded_times_scaled_by_the_speed() {
        let mut pace = Pace::of(Mode::Recorded(2.0));
        pace.restart();
        let due: Vec<_> = [500, 1500, 1000, 2500].map(|time| pace.due(time).as_nanos()).into();
        assert_eq!(due, [0, 500, 500, 1000]);
        pace.note(Duration::ZERO);
        pace.restart();
        assert_eq!(pace.due(7).as_nanos(), 1000);
        assert_eq!(pace.due(2007).as_nanos(), 2000);
        let slow = Pace::of(Mode::Recorded(1e-300)).due(u64::MAX);
        assert_eq!(slow, Duration::ZERO);
    }

    #[test]
    fn frames_of_a_rate_are_due_at_equal_intervals() {
        let mut pace = Pace::of(Mode::Every(Duration::from_micros(10)));
        pace.restart();
        for i in 0..5 {
            assert_eq!(pace.due(0), Duration::from_micros(10 * i));
            pace.note(Duration::MAX);
        }
    }
}
