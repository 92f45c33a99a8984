//! Detects the device's removal while polling: a poll of an empty queue reports it only after its
//! event was taken.

use std::time::{Duration, Instant};

use uverbs::{Context, ErrorKind};

use crate::failure::Outcome;

/// The interval at which a polling end checks its device and its peer.
const INTERVAL: Duration = Duration::from_millis(20);
/// The number of empty polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 256;

/// Decides when a polling loop must check the device.
#[derive(Debug)]
pub(crate) struct Lookout {
    empty_polls: u32,
    last: Instant,
}

impl Lookout {
    pub(crate) fn new() -> Self {
        Self { empty_polls: 0, last: Instant::now() }
    }

    /// Restarts the count of empty polls, because something has arrived.
    pub(crate) fn reset(&mut self) {
        self.empty_polls = 0;
    }

    /// Counts an empty poll, and checks the device if the interval is over. Returns whether it was;
    /// fails if the device is gone.
    pub(crate) fn look(&mut self, context: &Context) -> Outcome<bool> {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if !self.empty_polls.is_multiple_of(POLLS_PER_CLOCK) || self.last.elapsed() < INTERVAL {
            return Ok(false);
        }
        self.last = Instant::now();
        require_device(context).map(|()| true)
    }
}

/// Fails if the device is gone, which the last of its asynchronous events reports. Takes all of
/// them.
pub(crate) fn require_device(context: &Context) -> Outcome {
    loop {
        match context.try_get_event() {
            Ok(event) => event.acknowledge(),
            Err(error) => {
                let is_there =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                return if is_there { Ok(()) } else { Err(error.into()) };
            }
        }
    }
}
