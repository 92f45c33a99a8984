//! Noticing that the device is gone while polling. A poll of an empty queue says so only once the
//! event of it was taken.

use std::time::{Duration, Instant};

use uverbs::{Context, ErrorKind};

use crate::failure::Outcome;

/// Interval at which a polling end looks for its device and its peer.
const INTERVAL: Duration = Duration::from_millis(20);
/// Empty polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 256;

/// Says when a loop that polls in vain has to look.
#[derive(Debug)]
pub(crate) struct Lookout {
    empty_polls: u32,
    last: Instant,
}

impl Lookout {
    pub(crate) fn new() -> Self {
        Self { empty_polls: 0, last: Instant::now() }
    }

    /// Something came.
    pub(crate) fn reset(&mut self) {
        self.empty_polls = 0;
    }

    /// Counts an empty poll. Fails now and then if the device is gone; returns whether it was time
    /// to look.
    pub(crate) fn look(&mut self, context: &Context) -> Outcome<bool> {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if !self.empty_polls.is_multiple_of(POLLS_PER_CLOCK) || self.last.elapsed() < INTERVAL {
            return Ok(false);
        }
        self.last = Instant::now();
        require_device(context).map(|()| true)
    }
}

/// Fails if the device is gone. Takes the asynchronous events, because the last one says so.
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
