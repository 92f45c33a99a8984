//! A forked child of a test.

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

/// Seconds after which a child is killed, far longer than any child needs.
const PATIENCE: u32 = 60;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It returned.
    Well,
    /// It panicked, and printed why.
    Panicked,
    /// It did not end in time, and was killed.
    Hung,
}

/// As [`in_child`], but after `prepare` any system call except read, write and exit kills the child
/// (strict seccomp mode), which counts as [`Outcome::Panicked`].
#[allow(dead_code, reason = "for some of the tests")]
pub(crate) fn in_child_without_system_calls<T>(
    prepare: impl FnOnce() -> T,
    run: impl FnOnce(&T),
) -> Outcome {
    in_child(|| {
        let prepared = prepare();
        // SAFETY: no memory is involved. `SYS_exit` is the exit that this mode allows.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT), 0);
            run(&prepared);
            libc::syscall(libc::SYS_exit, 0);
        }
    })
}

/// Runs `run` in a forked child.
pub(crate) fn in_child(run: impl FnOnce()) -> Outcome {
    // SAFETY: the C library makes its allocator usable in the child; no other locks of other
    // threads are used there, and the child exits without unwinding into the test harness.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(PATIENCE);
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
