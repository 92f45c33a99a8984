use std::os::fd::OwnedFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, raise, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe, write};

use super::*;

/// Writes to `file` in a process whose file size limit is 0, and which has sent itself `own` and
/// blocks only this signal. Returns how it ended: with status 1 if its own signal is still pending
/// and it got this errno.
fn end_of_a_write(file: &OwnedFd, own: Signal, errno: Errno) -> WaitStatus {
    // SAFETY: the child uses no threads and locks of the parent, and exits at once.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            for (_, of) in OF_WRITES {
                // SAFETY: the default action runs no code of the program.
                unsafe { signal(of, SigHandler::SigDfl) }.unwrap();
            }
            SigSet::from(own).thread_block().unwrap();
            raise(own).unwrap();
            setrlimit(Resource::RLIMIT_FSIZE, 0, 0).unwrap();
            let written = without_signals(|| write(file, b"a byte"));
            let is_right = written == Err(errno) && is_pending(own);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(is_right.into()) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).unwrap();
            assert_eq!(ended.pid(), Some(child));
            ended
        }
    }
}

#[test]
fn a_signal_of_the_programs_keeps_no_other_one() {
    let (_, unread) = pipe().unwrap();
    let full = memfd_create(c"full", MFdFlags::empty()).unwrap();
    for own in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        for (file, errno) in [(&unread, Errno::EPIPE), (&full, Errno::EFBIG)] {
            let ended = end_of_a_write(file, own, errno);
            assert!(matches!(ended, WaitStatus::Exited(_, 1)), "{own}, {errno}: {ended:?}");
        }
    }
}
