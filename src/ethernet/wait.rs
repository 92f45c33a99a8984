//! Waiting for frames: spinning first, then sleeping.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::clock::Clock;
use super::rx::RxQueue;
use crate::error::{Error, ErrorKind, Result};

const VERB: &str = "wait";

impl<C: Clock> RxQueue<C> {
    /// Waits until there is something to poll: looks `spins` times without a system call, then
    /// sleeps until the device raises an event, or until `timeout` is over. False if there was
    /// nothing to the end.
    ///
    /// No frame is lost in between: the queue is looked at once more after the event was asked for.
    ///
    /// # Errors
    /// `InvalidInput` without events ([`RxBuilder::without_events`](super::RxBuilder)), unless
    /// spinning found something; `Interrupted` by a signal; why the queue receives nothing any
    /// more.
    pub fn wait(&mut self, spins: u32, timeout: Option<Duration>) -> Result<bool> {
        if (0..spins).any(|_| self.spin()) {
            return Ok(true);
        }
        self.sleep(timeout.map(|timeout| Instant::now() + timeout))
    }

    #[inline(always)]
    fn spin(&self) -> bool {
        let found = self.has_something();
        if !found {
            self.context().poll_idle();
        }
        found
    }

    fn sleep(&mut self, until: Option<Instant>) -> Result<bool> {
        let Some(channel) = self.channel.clone() else {
            return Err(Error::invalid(VERB, "the queue was made without events"));
        };
        loop {
            self.arm();
            if self.has_something() {
                return Ok(true);
            }
            self.check()?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let commands = self.context().commands();
            let ready = commands.channel().wait_readable(&[channel.as_fd()], left);
            if !ready.map_err(|errno: Errno| Error::os(VERB, errno))? {
                return Ok(self.has_something());
            }
            // An event of before may be among them: then nothing is there yet.
            while let Some(event) = some(channel.try_get_event())? {
                event.acknowledge();
            }
        }
    }

    /// For poll, epoll and the like, after [`RxQueue::arm_events`]; `None` without events.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// Asks for an event at the next frame: [`RxQueue::event_fd`] becomes readable then. Poll once
    /// more afterwards, before waiting: a frame that came just before raises none. Takes the events
    /// that are there.
    ///
    /// # Errors
    /// `InvalidInput` without events; EIO once the device is gone.
    pub fn arm_events(&mut self) -> Result<()> {
        let Some(channel) = &self.channel else {
            return Err(Error::invalid(VERB, "the queue was made without events"));
        };
        while let Some(event) = some(channel.try_get_event())? {
            event.acknowledge();
        }
        self.arm();
        Ok(())
    }
}

/// What is there, or nothing.
fn some<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
