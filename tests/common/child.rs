//! A forked child of a test.

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Seconds after which a child is killed: far longer than a child needs on any machine.
const PATIENCE: u32 = 60;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran to its end.
    Well,
    /// It panicked, and printed why.
    Panicked,
    /// It did not end in time, and was killed.
    Hung,
}

/// Runs `run` in a forked child.
pub(crate) fn in_child(run: impl FnOnce()) -> Outcome {
    // SAFETY: the C library makes its allocator usable in the child; nothing else of other threads'
    // is touched there, and the child leaves without unwinding into the test harness.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: no memory is involved; the signal ends the process.
            unsafe { libc::alarm(PATIENCE) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, 0) => Outcome::Well,
            WaitStatus::Signaled(_, Signal::SIGALRM, _) => Outcome::Hung,
            _ => Outcome::Panicked,
        },
    }
}
