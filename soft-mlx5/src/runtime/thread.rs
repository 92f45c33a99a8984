//! The device thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow};

use super::os_thread::OsThread;
use super::pacing::{Pacing, Pause};
use super::standby::Naps;
use super::wait::{Readable, readable};
use super::worker::{Whose, Worker};
use super::{Shared, clock, lock};
use crate::signals;

/// The number of files that most devices sleep on: the waker's, and those of a wire.
const DEVICES_FILES: usize = 6;

/// How often the thread yields while a command waits for a lock, before it takes the lock itself.
const MAX_YIELDS: usize = 1000;

/// Starts the thread with all signals blocked: they are the program's, not the device's.
pub(super) fn spawn(name: &str, shared: Arc<Shared>) -> io::Result<OsThread> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = OsThread::spawn(&format!("soft {name}"), move || main(&shared));
    before.thread_set_mask()?;
    thread
}

/// Runs the thread. A panic, which is a bug, reports a fatal error of the device, so that the
/// program does not wait forever.
fn main(shared: &Shared) {
    signals::note_all_blocked();
    // Makes sleeps of microseconds end on time. By default, or if this fails, they end up to 50 us
    // late.
    let _ = nix::sys::prctl::set_timerslack(1);
    if catch_unwind(AssertUnwindSafe(|| run(shared))).is_err() {
        shared.fail();
    }
}

fn run(shared: &Shared) {
    let mut naps = Naps::new();
    // Whether this thread must do another look: it has sent packets without waking their receivers,
    // or has not checked all doorbells.
    let mut looks_again = false;
    while !shared.stop.load(Ordering::Acquire) {
        let last = shared.standby.last();
        let now = clock::now();
        let nap = last.and_then(|last| naps.next(last, now));
        if let Some(nap) = nap.filter(|_| !looks_again) {
            shared.standby.nap(nap);
            continue;
        }
        yield_to_commands(shared);
        let mut worker = match shared.worker.try_lock() {
            Ok(worker) => worker,
            // A program's thread is doing a look, and wakes the receivers.
            Err(TryLockError::WouldBlock) => {
                looks_again = false;
                // Not `note`: that thread may be waiting for a file, and would take the note for
                // another thread's poll.
                shared.standby.note_wait(now);
                continue;
            }
            // A look of a program's thread has panicked and reported that.
            Err(TryLockError::Poisoned(_)) => return,
        };
        let yields = worker.turn(shared);
        looks_again = worker.left_asleep || worker.is_sweeping;
        drop(worker);
        if yields {
            shared.scheduler.yield_now();
        }
    }
}

/// Yields while commands wait for the locks.
fn yield_to_commands(shared: &Shared) {
    for _ in 0..MAX_YIELDS {
        if shared.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        thread::yield_now();
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slept {
    /// There was work to do first.
    Not,
    /// It ended, and these files are readable.
    Until(Readable),
}

impl Slept {
    fn ready(&self) -> Option<Readable> {
        match *self {
            Self::Not => None,
            Self::Until(ready) => Some(ready),
        }
    }
}

impl Worker {
    /// Does a look, and sleeps if it is time to. Returns whether to let other threads run now.
    fn turn(&mut self, shared: &Shared) -> bool {
        let now = clock::now();
        match self.pacing.plan(now, shared.scheduler.is_oversubscribed(now)) {
            Pause::Sleep => {
                // All signals are blocked, and a failure only means to look again.
                let whose = Whose::Own(Pause::Sleep);
                let _ = self.look_and_sleep(shared, now, whose, &[], Pacing::timeout);
                false
            }
            // Yields even after work, because the program that waits for it may need this core.
            Pause::Yield => !self.look(shared, now, Whose::Own(Pause::Yield)).more,
        }
    }

    /// Does a look. If there was nothing to do, sleeps until there is, or until one of `files` is
    /// readable.
    ///
    /// A thread that waits for a file ([`Whose::Waiting`]) also sleeps if there was work, unless
    /// there is more, or the work may have made the file readable.
    pub(super) fn look_and_sleep(
        &mut self,
        shared: &Shared,
        now: u64,
        whose: Whose,
        files: &[BorrowedFd<'_>],
        timeout: impl FnOnce(&Pacing, u64, Option<u64>) -> Option<u64>,
    ) -> nix::Result<Slept> {
        // Announced before the look, so that work that comes after the look wakes this thread.
        shared.waker.prepare_sleep();
        let look = self.look(shared, now, whose);
        self.pace_commands(shared, now);
        let is_over = look.more || look.passed_events || self.left_asleep;
        let slept = if is_over || look.did_work && whose != Whose::Waiting {
            Ok(Slept::Not)
        } else {
            let timeout = timeout(&self.pacing, now, look.deadline);
            self.sleep(shared, files, timeout)
        };
        let ready = slept.as_ref().ok().and_then(Slept::ready);
        shared.waker.end_sleep(ready.is_some_and(|ready| ready.waker));
        // After a wake-up by a thread that begins to wait, only the next look finds the doorbells
        // that it rang. So this is not counted as work.
        if ready.is_some_and(|ready| ready.wire) {
            self.pacing.woken(now);
        }
        self.pace_commands(shared, now);
        slept
    }

    pub(super) fn sleep(
        &mut self,
        shared: &Shared,
        files: &[BorrowedFd<'_>],
        timeout: Option<u64>,
    ) -> nix::Result<Slept> {
        let wire = lock(&shared.wire);
        // A command or the stop request may have come after the last check, but before the waker
        // was prepared.
        if shared.is_wanted() {
            return Ok(Slept::Not);
        }
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(files.len() + DEVICES_FILES);
        fds.extend_from_slice(files);
        fds.push(shared.waker.as_fd());
        wire.poll_fds(&mut fds);
        let ready = readable(&fds, files.len(), timeout)?;
        self.woken(ready.wire);
        Ok(Slept::Until(ready))
    }
}
