//! The device thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow};

use super::lending::Standby;
use super::os_thread::OsThread;
use super::pacing::{Pacing, Pause};
use super::worker::{Whose, Worker};
use super::{Shared, clock, lock, wait};

/// How often the thread yields to a waiting command before it takes the lock all the same.
const COURTESY: usize = 1000;

/// Starts the thread with all signals blocked: they are the program's, not the device's.
pub(super) fn spawn(name: &str, shared: Arc<Shared>) -> io::Result<OsThread> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = OsThread::spawn(&format!("soft {name}"), move || main(&shared));
    before.thread_set_mask()?;
    thread
}

/// A bug that panics here must not leave the program waiting for ever: it sees a fatal device.
fn main(shared: &Shared) {
    // Sleeps of microseconds end on time, not up to 50 us late. Where this fails they do.
    let _ = nix::sys::prctl::set_timerslack(1);
    if catch_unwind(AssertUnwindSafe(|| run(shared))).is_err() {
        shared.fail();
    }
}

fn run(shared: &Shared) {
    let mut standby = Standby::new();
    // Receivers that this thread has left asleep are not left to a program that may not look.
    let mut left_asleep = false;
    while !shared.stop.load(Ordering::Acquire) {
        let lent = shared.lending.last();
        let now = clock::now();
        let nap = lent.and_then(|last| standby.nap(last, now));
        if let Some(nap) = nap.filter(|_| !left_asleep) {
            shared.lending.nap(nap);
            continue;
        }
        give_way(shared);
        let mut worker = match shared.worker.try_lock() {
            Ok(worker) => worker,
            // A program's thread is at it, and wakes the receivers.
            Err(TryLockError::WouldBlock) => {
                left_asleep = false;
                // It is not known to poll: one that sleeps would take that for a poller's note.
                shared.lending.note_wait(now);
                continue;
            }
            // A lent look has panicked and reported that.
            Err(TryLockError::Poisoned(_)) => return,
        };
        let yields = worker.turn(shared);
        left_asleep = worker.left_asleep;
        drop(worker);
        if yields {
            shared.crowd.yield_now();
        }
    }
}

/// Lets commands have the locks.
fn give_way(shared: &Shared) {
    for _ in 0..COURTESY {
        if shared.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        thread::yield_now();
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slept {
    /// There was something to do first.
    Not,
    /// It ended; whether one of the files is readable.
    Until(bool),
}

impl Worker {
    /// Looks once, and sleeps if it is time to. Returns whether to let other threads run now.
    fn turn(&mut self, shared: &Shared) -> bool {
        let now = clock::now();
        match self.pacing.plan(now, shared.crowd.is_there(now)) {
            Pause::Sleep => {
                // All signals are blocked, and a failure only means to look again.
                let whose = Whose::Own(Pause::Sleep);
                let _ = self.look_and_sleep(shared, now, whose, &[], Pacing::timeout);
                false
            }
            // Also after work: the program that waits for it may need this core.
            Pause::Yield => !self.look(shared, now, Whose::Own(Pause::Yield)).more,
        }
    }

    /// A look and, if it finds nothing, a sleep that ends when one of `files` is readable.
    ///
    /// A thread that waits for a file also sleeps after work, unless there is more of it, or the
    /// file may be readable by it.
    pub(super) fn look_and_sleep(
        &mut self,
        shared: &Shared,
        now: u64,
        whose: Whose,
        files: &[BorrowedFd<'_>],
        timeout: impl FnOnce(&Pacing, u64, Option<u64>) -> Option<u64>,
    ) -> nix::Result<Slept> {
        // Said before the look, so that whatever brings work after it wakes the thread.
        shared.waker.prepare();
        let look = self.look(shared, now, whose);
        let is_over = look.more || look.told || self.left_asleep;
        let slept = if is_over || look.did_work && whose != Whose::Waiting {
            Ok(Slept::Not)
        } else {
            let timeout = timeout(&self.pacing, now, look.deadline);
            self.sleep(shared, now, files, timeout)
        };
        shared.waker.awake();
        slept
    }

    fn sleep(
        &mut self,
        shared: &Shared,
        now: u64,
        files: &[BorrowedFd<'_>],
        timeout: Option<u64>,
    ) -> nix::Result<Slept> {
        let wire = lock(&shared.wire);
        // Both may have come after they were last looked at, but before the waker was prepared.
        if shared.is_wanted() {
            return Ok(Slept::Not);
        }
        let mut fds: Vec<BorrowedFd<'_>> = files.to_vec();
        fds.push(shared.waker.as_fd());
        wire.poll_fds(&mut fds);
        let (ready, of_files) = wait::readable(&fds, files.len(), timeout)?;
        if ready > of_files {
            self.pacing.woken(now);
        }
        // Time may have passed since a sleep that ended by itself.
        self.woken(ready == 0 || ready > of_files);
        Ok(Slept::Until(of_files > 0))
    }
}
