//! The device's work in a program's thread that sleeps until a file is readable.
//!
//! If a program slept on a completion channel, a packet would wake the device's thread, which would
//! then wake the program: two context switches for a message, and one more until the program's
//! doorbell is noticed. Here the program's thread does the device's work while it waits: it does
//! looks and sleeps on the device's files and its own, so a packet wakes it directly.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::pacing::Pause;
use super::thread::Slept;
use super::worker::{Whose, Worker};
use super::{Runtime, Shared, clock};

/// Shortest sleep in nanoseconds between two looks at the doorbells. While this thread sleeps it
/// rings no doorbells, and those of other threads may wait this long.
const SHORTEST: u64 = 250_000;

/// How long this thread leaves the device to another thread that does its work, in nanoseconds: at
/// first, and at most.
const APART: (u64, u64) = (100_000, 8_000_000);

/// How long the device's own thread stands by while this thread sleeps without a timeout, in
/// nanoseconds.
const SLEEPS: u64 = 8_000_000;

/// How long the device's own thread stands by while this thread sleeps with this timeout. Sleeps
/// end late, by about 50 us or more: without a reserve the device's thread would take over each
/// time, and this thread would have to wake it to get the device back.
fn apart_for(timeout: Option<u64>) -> u64 {
    timeout.map_or(SLEEPS, |timeout| timeout.saturating_add((timeout / 4).min(500_000)))
}

/// Which files are readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Readable {
    /// The first one of the caller's files.
    pub(super) own: Option<usize>,
    /// The waker's file.
    pub(super) waker: bool,
    /// One of the wire's files.
    pub(super) wire: bool,
}

/// Which of `fds` are readable after at most `timeout` nanoseconds (`None`: no limit). The first
/// `own` are the caller's; the waker's and the wire's may follow.
pub(super) fn readable(
    fds: &[BorrowedFd<'_>],
    own: usize,
    timeout: Option<u64>,
) -> nix::Result<Readable> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // `TimeSpec::nanoseconds` panics above i64::MAX - 1e9.
    let timeout = timeout.map(|time| TimeSpec::from_duration(Duration::from_nanos(time)));
    ppoll(&mut fds, timeout, None)?;
    let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    let (own, others) = fds.split_at(own);
    let (waker, wire) = others.split_at(others.len().min(1));
    Ok(Readable {
        own: own.iter().position(is_ready),
        waker: waker.iter().any(is_ready),
        wire: wire.iter().any(is_ready),
    })
}

/// An event for which a thread waits, and which it takes directly if its own look raises it.
pub(crate) trait Expected {
    /// The calling thread is about to look.
    fn expect(&self);

    /// The look has ended. Returns whether there is an event for the thread to take.
    fn has_come(&self) -> bool;
}

/// A wait for one of the caller's files.
struct Wait<'a> {
    files: &'a [BorrowedFd<'a>],
    /// The event that may be passed directly, without making the first file readable.
    expected: Option<&'a dyn Expected>,
    /// When to give up.
    until: Option<u64>,
    /// How long to leave the device to another thread that works for it, in nanoseconds.
    apart: u64,
    /// The device's work counter when the files were last polled (see [`Work`](super::idle::Work)).
    /// `None` if they never were.
    done: Option<u64>,
}

impl Runtime {
    /// `poll(2)` for reading: waits until one of `files` is readable, for at most `timeout`, and
    /// returns the index of the first readable one. The calling thread does the device's work
    /// meanwhile.
    ///
    /// # Errors
    /// As `poll(2)`: EINTR by a signal.
    pub fn wait_readable(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        self.wait(None, files, timeout)
    }

    /// As [`wait_readable`](Self::wait_readable). Also returns `Some(0)` once the `expected` event
    /// has come.
    pub(crate) fn wait_for(
        &self,
        expected: &dyn Expected,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        self.wait(Some(expected), files, timeout)
    }

    fn wait(
        &self,
        expected: Option<&dyn Expected>,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> nix::Result<Option<usize>> {
        let now = clock::now();
        let nanoseconds = timeout.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let until = nanoseconds.map(|time| now.saturating_add(time));
        let mut wait = Wait { files, expected, until, apart: APART.0, done: None };
        let has_come = || expected.is_some_and(Expected::has_come);
        if has_come() {
            return Ok(Some(0));
        }
        if !self.is_here() {
            return wait.without_device(None);
        }
        let waited = catch_unwind(AssertUnwindSafe(|| wait.with_device(&self.shared)));
        waited.unwrap_or_else(|_| {
            self.shared.fail();
            if has_come() { Ok(Some(0)) } else { wait.without_device(None) }
        })
    }
}

impl Wait<'_> {
    fn left(&self, now: u64) -> Option<u64> {
        self.until.map(|until| until.saturating_sub(now))
    }

    /// Waits only for the files, `limit` nanoseconds at most.
    fn without_device(&self, limit: Option<u64>) -> nix::Result<Option<usize>> {
        let left = self.left(clock::now());
        let timeout = left.into_iter().chain(limit).min();
        readable(self.files, self.files.len(), timeout).map(|ready| ready.own)
    }

    fn with_device(&mut self, shared: &Shared) -> nix::Result<Option<usize>> {
        loop {
            let found = self.turn(shared)?;
            if found.is_some() {
                return Ok(found);
            }
            if self.left(clock::now()) == Some(0) {
                return self.without_device(Some(0));
            }
        }
    }

    /// Runs the device once, then pauses. Returns a file that is known to be readable.
    fn turn(&mut self, shared: &Shared) -> nix::Result<Option<usize>> {
        let now = clock::now();
        if shared.standby.is_polled(now) {
            return self.stay_apart();
        }
        shared.standby.note_wait(now);
        let worker = match shared.worker.try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(_)) => return self.without_device(None),
            Err(TryLockError::WouldBlock) => {
                // The thread that has the worker may be asleep. It is woken to see the doorbells
                // that this thread rang. If it is the device's own thread, it then leaves the
                // device to this thread.
                shared.standby.note_wait(now.saturating_add(apart_for(Some(self.apart))));
                // Later, this thread would only wake another waiting thread like itself.
                if self.apart < APART.1 {
                    shared.sweep_anew();
                }
                return self.stay_apart();
            }
        };
        if self.done.is_none() {
            shared.sweep_anew();
        }
        if shared.is_wanted() {
            drop(worker);
            std::thread::yield_now();
            return Ok(None);
        }
        self.expected.inspect(|expected| expected.expect());
        let slept = self.look(shared, worker, now);
        if self.expected.is_some_and(Expected::has_come) {
            return Ok(Some(0));
        }
        if let Slept::Until(ready) = slept? {
            return Ok(ready.own);
        }
        let done = Some(shared.work.done());
        let before = std::mem::replace(&mut self.done, done);
        if done == before { Ok(None) } else { self.without_device(Some(0)) }
    }

    /// Looks, and then sleeps or lets other threads run.
    fn look(
        &self,
        shared: &Shared,
        mut worker: MutexGuard<'_, Worker>,
        now: u64,
    ) -> nix::Result<Slept> {
        let oversubscribed = shared.scheduler.is_oversubscribed(now);
        if worker.pacing.plan_waiting(now, oversubscribed) == Pause::Sleep {
            return self.sleep(shared, &mut worker, now);
        }
        let look = worker.look(shared, now, Whose::Polling);
        worker.pacing.looked_waiting(look.did_work);
        drop(worker);
        if !look.did_work {
            shared.scheduler.yield_now();
        }
        Ok(Slept::Not)
    }

    fn sleep(&self, shared: &Shared, worker: &mut Worker, now: u64) -> nix::Result<Slept> {
        let left = self.left(now);
        worker.look_and_sleep(shared, now, Whose::Waiting, self.files, |pacing, now, deadline| {
            let look = pacing.timeout_above(SHORTEST, now, deadline);
            let timeout = look.into_iter().chain(left).min();
            // The device's own thread stands by meanwhile.
            shared.standby.note_wait(now.saturating_add(apart_for(timeout)));
            timeout
        })
    }

    /// Another thread does the device's work until there is an event.
    fn stay_apart(&mut self) -> nix::Result<Option<usize>> {
        let apart = self.apart;
        self.apart = (apart * 2).min(APART.1);
        self.without_device(Some(apart))
    }
}
