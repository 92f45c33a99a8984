//! Wakes a sleeping device thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd that is only written when the device thread is about to sleep, so that a busy
/// device costs its wakers no system call.
#[derive(Debug)]
pub struct Waker {
    event: EventFd,
    asleep: AtomicBool,
}

impl Waker {
    /// A new waker.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self { event: EventFd::from_flags(flags)?, asleep: AtomicBool::new(false) })
    }

    /// Wakes the thread if it sleeps or is about to. Call it after the work is visible (pushed to
    /// a queue, stored in a flag).
    pub fn wake(&self) {
        // The fence orders the caller's work before the load, as `prepare_sleep` orders its store
        // before the sleeper's last look for work: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // A full counter (EAGAIN) is readable as well, which is all that matters.
            let _ = self.event.write(1);
        }
    }

    /// Says that the thread is going to sleep. It must look for work once more before it does.
    pub fn prepare_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the thread is awake, and empties the eventfd if it was written. `was_readable`:
    /// the sleep found it so. A waker claims the sleep, then writes. If the sleep ends in between,
    /// the write comes during a later sleep, which no waker has claimed and which must empty it.
    pub fn end_sleep(&self, was_readable: bool) {
        if !self.asleep.swap(false, Ordering::Relaxed) || was_readable {
            let _ = self.event.read();
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(waker: &Waker) -> bool {
        let mut fds = [PollFd::new(waker.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() != 0
    }

    #[test]
    fn a_wake_that_comes_after_its_sleep_ends_only_one_more() {
        let waker = Waker::new().unwrap();
        waker.prepare_sleep();
        // The first step of `wake`, before the sleep ends by its timeout.
        assert!(waker.asleep.swap(false, Ordering::Relaxed));
        waker.end_sleep(is_readable(&waker));
        waker.prepare_sleep();
        // The second step.
        waker.event.write(1).unwrap();
        assert!(is_readable(&waker));
        waker.end_sleep(true);
        waker.prepare_sleep();
        assert!(!is_readable(&waker), "no later sleep lasts");
        waker.wake();
        assert!(is_readable(&waker));
    }
}
