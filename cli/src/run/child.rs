//! The program as a child process, which gets the command's signals and whose end ends the command.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{Pid, getpid, getppid};

/// Signals that are passed on to the program instead of ending this command.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// `si_code` of a signal that a terminal sent, and sent to the child as well (`SI_KERNEL` of
/// `<asm-generic/siginfo.h>`).
const FROM_TERMINAL: i32 = 0x80;

/// Runs a command to its end. If this process is killed, so is the child.
pub(super) fn run(mut command: Command) -> io::Result<ExitStatus> {
    // Blocked before the child exists, so that no signal is missed.
    let mut watched: SigSet = FORWARDED.into_iter().collect();
    watched.add(Signal::SIGCHLD);
    let before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let parent = getpid();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The kernel sends no signal if the parent ended before this was set.
        if getppid() != parent {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        before.thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure only makes system calls, which is allowed there.
    unsafe { command.pre_exec(prepare) };
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC)?;
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(child.id() as i32);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = signals.read_signal()?.as_ref().and_then(to_forward) {
            // The child is not reaped yet, so its process id is still valid.
            let _ = kill(pid, signal);
        }
    }
}

fn to_forward(info: &siginfo) -> Option<Signal> {
    let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
    let is_ours = signal == Signal::SIGCHLD || info.ssi_code == FROM_TERMINAL;
    (!is_ours).then_some(signal)
}

/// The program's exit status, or 128 plus the number of the signal that ended it, as in shells.
pub(super) fn exit_code(status: &ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(exit_code(&ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(&ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(&ExitStatus::from_raw(15)), 143);
    }
}
