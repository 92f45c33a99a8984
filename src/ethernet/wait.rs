//! Waiting for frames: spinning first, then sleeping.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::rx::RxQueue;
use super::striding::StridingQueue;
use crate::cq::channel::CompletionChannel;
use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};

const VERB: &str = "wait";

/// The methods of a receive ring that waiting needs.
pub(super) trait RxWait {
    /// Whether there is a completion to poll.
    fn has_something(&self) -> bool;

    /// Requests an event at the next completion.
    fn arm(&mut self);

    /// Returns the error if the queue has failed while it was empty.
    fn check(&mut self) -> Result<()>;

    /// The context of the queue.
    fn context(&self) -> &Context;
}

macro_rules! waits {
    ($queue:ident) => {
        impl<C: Clock> $queue<C> {
            /// Waits until there is something to poll: checks `spins` times without a system call,
            /// then sleeps until the device raises an event. Returns false after `timeout`.
            ///
            /// It cannot miss a frame, because it checks the queue once more after requesting the
            /// event.
            ///
            /// # Errors
            /// `InvalidInput` without events ([`RxBuilder::without_events`](super::RxBuilder)),
            /// unless spinning found something; `Interrupted` by a signal; the error of a failed
            /// queue.
            pub fn wait(&mut self, spins: u32, timeout: Option<Duration>) -> Result<bool> {
                if (0..spins).any(|_| spin(&self.ring)) {
                    return Ok(true);
                }
                let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
                sleep(&mut self.ring, self.channel.as_ref().ok_or_else(no_events)?, until)
            }

            /// The file for poll(2) and epoll(7), after `arm_events`; `None` without events.
            pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
                self.channel.as_ref().map(AsFd::as_fd)
            }

            /// Takes pending events and requests an event at the next frame, which makes `event_fd`
            /// readable. Poll once more before waiting: a frame that arrived before this call
            /// raises no event.
            ///
            /// # Errors
            /// `InvalidInput` without events; `DeviceGone` (EIO) after the device was removed.
            pub fn arm_events(&mut self) -> Result<()> {
                let Some(channel) = &self.channel else { return Err(no_events()) };
                while let Some(event) = some(channel.try_get_event())? {
                    event.acknowledge();
                }
                self.ring.arm();
                Ok(())
            }
        }
    };
}

waits!(RxQueue);
waits!(StridingQueue);

fn no_events() -> Error {
    Error::invalid(VERB, "the queue was made without events")
}

#[inline(always)]
fn spin(queue: &impl RxWait) -> bool {
    let found = queue.has_something();
    if !found {
        queue.context().poll_idle();
    }
    found
}

fn sleep(
    queue: &mut impl RxWait,
    channel: &CompletionChannel,
    until: Option<Instant>,
) -> Result<bool> {
    loop {
        queue.arm();
        if queue.has_something() {
            return Ok(true);
        }
        queue.check()?;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if !channel.wait_event(&[], left)? {
            return Ok(queue.has_something());
        }
        // The event may be an old one, without a new frame; then the loop waits again.
        while let Some(event) = some(channel.try_get_event())? {
            event.acknowledge();
        }
    }
}

/// `None` instead of `WouldBlock`.
fn some<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
