//! Interruptible sleeps of a program's thread that does the device's work.
//!
//! The thread holds the device's locks while it sleeps. Signals are blocked until it has released
//! them, because a handler may call exit(3), which takes these locks. A signal still ends the sleep
//! (signalfd(2)). The program's call then fails with EINTR if the signal has a handler without
//! SA_RESTART, like the read(2) in which libibverbs would sleep.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::SignalsBlocked;

/// The longest single sleep. A thread can be cancelled (`pthread_cancel(3)`) between two sleeps.
pub const LONGEST: Duration = Duration::from_millis(100);

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept<T> {
    /// The sleep ended with this result.
    Until(T),
    /// A signal has arrived whose handler ends a read(2).
    Interrupted,
    /// Neither: the thread sleeps again.
    Again,
    /// It failed. The program's call then waits in the kernel, which reports the error.
    Failed,
}

/// Sleeps once, with the signals blocked. `wait` gets a file that becomes readable when a signal
/// arrives. It waits for that file and the program's files, and returns the result of the latter.
/// Signal handlers run at the end.
pub fn sleep<T>(wait: impl FnOnce(BorrowedFd<'_>) -> nix::Result<Option<T>>) -> Slept<T> {
    let Ok(signals) = SignalsBlocked::new() else { return Slept::Failed };
    let Ok(arrivals) = Arrivals::of_thread(&signals) else { return Slept::Failed };
    match wait(arrivals.file.as_fd()) {
        Ok(Some(found)) => {
            arrivals.keep();
            Slept::Until(found)
        }
        waited => arrivals.without_event(waited.err()),
    }
}

thread_local! {
    /// The signalfd of the thread's last sleep. The next sleep can use it, unless the program has
    /// changed its signal mask.
    static LAST: Cell<Option<Arrivals>> = const { Cell::new(None) };
}

/// The signals that end a sleep.
struct Arrivals {
    /// Those that the program blocks.
    before: SigSet,
    set: SigSet,
    /// A signalfd(2) of `set`: readable in a thread for which one of them is pending.
    file: ManuallyDrop<SignalFd>,
}

impl Arrivals {
    fn of_thread(signals: &SignalsBlocked) -> nix::Result<Self> {
        let mut last = LAST.try_with(Cell::take).ok().flatten();
        match last.take_if(|last| bits(&last.before) == bits(signals.before())) {
            Some(last) => Ok(last),
            None => Self::new(signals),
        }
    }

    fn new(signals: &SignalsBlocked) -> nix::Result<Self> {
        // A signal that the program itself blocks does not end its sleep.
        let set = without(signals.all(), signals.before());
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let file = ManuallyDrop::new(SignalFd::with_flags(&set, flags)?);
        Ok(Self { before: *signals.before(), set, file })
    }

    /// How a sleep without an event ended.
    fn without_event<T>(self, error: Option<Errno>) -> Slept<T> {
        let is_interrupted = self.interrupt();
        self.keep_if_ours();
        match error {
            _ if is_interrupted => Slept::Interrupted,
            None | Some(Errno::EINTR) => Slept::Again,
            Some(_) => Slept::Failed,
        }
    }

    /// Whether a signal has arrived whose handler ends a read(2).
    fn interrupt(&self) -> bool {
        let mut pending = *SigSet::empty().as_ref();
        // SAFETY: a set, which the call fills anew; it stays empty if the call fails.
        unsafe { libc::sigpending(&raw mut pending) };
        signals()
            .filter(|signal| has(&pending, *signal) && has(self.set.as_ref(), *signal))
            .any(ends_a_read)
    }

    /// Keeps the file for the thread's next sleep.
    fn keep(self) {
        // While the thread ends, nothing can be kept.
        let _ = LAST.try_with(|last| last.set(Some(self)));
    }

    /// Keeps the file unless the program has closed it. A sleep that an event ends does not check
    /// this: if the descriptor is another file, a later sleep is not woken by signals, and is
    /// checked here when it ends.
    fn keep_if_ours(mut self) {
        if self.is_ours() {
            self.keep();
        }
    }

    /// Whether the descriptor is still a signalfd: setting the mask fails for every other file. A
    /// program may close descriptors that are not its own and open a file with this number. That
    /// file reports no signals and must not be closed here.
    fn is_ours(&mut self) -> bool {
        self.file.set_mask(&self.set).is_ok()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// All signals, including real-time ones.
fn signals() -> impl Iterator<Item = c_int> {
    1..=libc::SIGRTMAX()
}

/// The part of a set that the kernel knows: a bit for each signal.
fn bits(set: &SigSet) -> u64 {
    // SAFETY: the set of every C library begins with the kernel's, of 64 bits, which are
    // initialised; it is longer, and aligned as a `long` is.
    unsafe { std::ptr::from_ref(set.as_ref()).cast::<u64>().read_unaligned() }
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a filled set.
    (unsafe { libc::sigismember(set, signal) }) == 1
}

/// The signals of one set that are not in another one.
fn without(all: &SigSet, other: &SigSet) -> SigSet {
    let mut set = *all.as_ref();
    for signal in signals().filter(|signal| has(other.as_ref(), *signal)) {
        // SAFETY: a filled set, and the number of a signal.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    // SAFETY: a filled set.
    unsafe { SigSet::from_sigset_t_unchecked(set) }
}

/// Whether the signal has a handler without SA_RESTART.
pub fn ends_a_read(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only asks, and fills the place for one action if it succeeds.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if asked != 0 {
        return false;
    }
    // SAFETY: filled by the successful call.
    let action = unsafe { action.assume_init() };
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        && action.sa_flags & libc::SA_RESTART == 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn of_thread() -> Arrivals {
        Arrivals::of_thread(&SignalsBlocked::new().unwrap()).unwrap()
    }

    #[test]
    fn the_next_sleep_uses_the_same_file_unless_the_program_blocks_other_signals() {
        let (first, identity) = (of_thread(), |arrivals: &Arrivals| arrivals.file.as_raw_fd());
        let number = identity(&first);
        first.keep();
        let second = of_thread();
        assert_eq!(identity(&second), number);
        second.keep();
        for signal in [libc::SIGUSR1, libc::SIGRTMAX()] {
            let mut blocked = *SigSet::empty().as_ref();
            // SAFETY: a filled set of this frame, and the number of a signal; the mask is this
            // thread's, which ends with the test.
            unsafe {
                libc::sigaddset(&raw mut blocked, signal);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
            }
            let changed = of_thread();
            assert!(!has(changed.set.as_ref(), signal));
            assert!(has(changed.set.as_ref(), libc::SIGUSR2));
            changed.keep();
        }
    }

    #[test]
    fn a_file_that_took_the_descriptors_place_is_not_kept() {
        let mut arrivals = of_thread();
        assert!(arrivals.is_ours());
        let (read, writer) = nix::unistd::pipe().unwrap();
        // SAFETY: the descriptor is this test's; the pipe's end takes its place.
        let taken = unsafe { libc::dup2(read.as_raw_fd(), arrivals.file.as_raw_fd()) };
        assert!(taken >= 0 && !arrivals.is_ours(), "an idle pipe, which poll(2) does not report");
        arrivals.keep_if_ours();
        let others = of_thread();
        assert_ne!(others.file.as_raw_fd(), taken, "the next sleep has a file of its own");
        // SAFETY: asks for the descriptor's flags, which fails if it was closed.
        assert!(unsafe { libc::fcntl(taken, libc::F_GETFD) } >= 0, "the program's file stays open");
        drop(writer);
        // SAFETY: the descriptor of the pipe's end, which nothing else uses.
        unsafe { libc::close(taken) };
    }
}
