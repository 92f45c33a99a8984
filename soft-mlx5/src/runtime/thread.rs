//! The device thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::thread;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::TimeSpec;

use super::lending::Standby;
use super::os_thread::OsThread;
use super::pacing::Pause;
use super::worker::{Whose, Worker};
use super::{Shared, clock, lock};

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
    let (mut standby, mut yielded) = (Standby::default(), None);
    // What this thread has held back is not left to somebody who may not come.
    let mut holds_back = false;
    while !shared.stop.load(Ordering::Acquire) {
        let lent = shared.lending.last();
        let nap = lent.and_then(|last| standby.nap(last, clock::now()));
        if let Some(nap) = nap.filter(|_| !holds_back) {
            shared.lending.nap(nap);
            continue;
        }
        give_way(shared);
        let mut worker = match shared.worker.try_lock() {
            Ok(worker) => worker,
            // Somebody is at it, and sends what is there.
            Err(TryLockError::WouldBlock) => {
                holds_back = false;
                shared.lending.note(clock::now());
                continue;
            }
            // A lent look has panicked and told of it.
            Err(TryLockError::Poisoned(_)) => return,
        };
        let yields = worker.turn(shared, yielded.take());
        holds_back = worker.holds_back;
        drop(worker);
        if yields {
            let before = clock::now();
            thread::yield_now();
            yielded = Some((before, clock::now()));
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

impl Worker {
    /// One look, and a sleep if it is time for one; whether to let other threads run now. `yielded` says from when until
    /// when that was done last.
    fn turn(&mut self, shared: &Shared, yielded: Option<(u64, u64)>) -> bool {
        if let Some((from, to)) = yielded {
            self.pacing.yielded(from, to);
        }
        let now = clock::now();
        let pause = self.pacing.plan(now);
        if pause == Pause::Sleep {
            // Said before the look, so that whoever brings work after it wakes the thread.
            shared.waker.prepare();
        }
        let look = self.look(shared, now, Whose::Own(pause));
        if pause == Pause::Sleep {
            if !look.did_work {
                self.sleep(shared, now, look.deadline);
            }
            shared.waker.awake();
        }
        // Also after work: the program that waits for it may need this core.
        pause == Pause::Yield && !look.more
    }

    fn sleep(&mut self, shared: &Shared, now: u64, deadline: Option<u64>) {
        let timeout = self.pacing.timeout(now, deadline);
        let wire = lock(&shared.wire);
        // Both may have come after they were last looked at, but before the waker was prepared.
        if shared.is_wanted() {
            return;
        }
        let mut fds: Vec<BorrowedFd<'_>> = vec![shared.waker.as_fd()];
        wire.poll_fds(&mut fds);
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = timeout.map(|nanoseconds| {
            TimeSpec::new(
                (nanoseconds / 1_000_000_000) as i64,
                (nanoseconds % 1_000_000_000) as i64,
            )
        });
        // All signals are blocked, and a failure only means to look again.
        if ppoll(&mut fds, timeout, None).is_ok_and(|ready| ready > 0) {
            self.pacing.woken(now);
        }
    }
}
