//! Signals of a thread that does the device's work.
//!
//! Such a thread has the device's locks, and it writes to pipes whose readers may be gone, and to
//! files that may not grow. The device's own thread has all signals blocked, because they are the
//! program's. A program's thread blocks them for a sleep that a signal has to end (signalfd(2)). So
//! that neither has to block the signals of failed writes for each write, a thread knows whether it
//! has.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;

/// Signals that an instruction causes, which cannot wait.
const AT_ONCE: [Signal; 5] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];

/// All signals but those that cannot wait.
static ALL: LazyLock<SigSet> = LazyLock::new(|| {
    let mut all = SigSet::all();
    AT_ONCE.iter().for_each(|signal| all.remove(*signal));
    all
});

/// Which signal a write sends that fails with an errno.
const OF_WRITES: [(Errno, Signal); 2] =
    [(Errno::EPIPE, Signal::SIGPIPE), (Errno::EFBIG, Signal::SIGXFSZ)];

thread_local! {
    /// Those of [`OF_WRITES`] that stay if they wait after a write: they waited before it, so they
    /// are the program's, or it makes no difference. `None`: they may not be blocked.
    static KEPT: Cell<Option<SigSet>> = const { Cell::new(None) };
}

/// Blocks the signals in this thread while it exists.
#[derive(Debug)]
pub struct SignalsBlocked {
    all: SigSet,
    before: SigSet,
    outer: Option<SigSet>,
    /// It is the thread's.
    _thread: PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks all signals but those that cannot wait.
    ///
    /// # Errors
    /// None is known.
    pub fn new() -> nix::Result<Self> {
        let all = *ALL;
        let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let outer = KEPT.replace(Some(waiting(&before)));
        Ok(Self { all, before, outer, _thread: PhantomData })
    }

    /// The signals that it blocks.
    pub fn all(&self) -> &SigSet {
        &self.all
    }

    /// Those that were blocked before.
    pub fn before(&self) -> &SigSet {
        &self.before
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        KEPT.set(self.outer);
        // It fails for no valid set.
        let _ = self.before.thread_set_mask();
    }
}

/// The signals of writes that wait in a thread which had `before` blocked.
fn waiting(before: &SigSet) -> SigSet {
    let mut waiting = SigSet::empty();
    for (_, signal) in OF_WRITES {
        if before.contains(signal) && is_pending(signal) {
            waiting.add(signal);
        }
    }
    waiting
}

/// The signals of writes.
fn of_writes() -> SigSet {
    OF_WRITES.iter().map(|(_, signal)| *signal).collect()
}

/// Notes that this thread has all signals blocked for as long as it lives, and gets none.
pub(crate) fn note_all_blocked() {
    KEPT.set(Some(of_writes()));
}

/// The error of a write.
pub trait WriteError: From<Errno> {
    /// The kernel's number, if it is the kernel's error.
    fn errno(&self) -> Option<Errno>;
}

impl WriteError for Errno {
    fn errno(&self) -> Option<Errno> {
        Some(*self)
    }
}

impl WriteError for io::Error {
    fn errno(&self) -> Option<Errno> {
        self.raw_os_error().map(Errno::from_raw)
    }
}

/// Runs a write to a pipe whose reader may be gone, or to a file that is as large as the process
/// may make it, so that the signal which the kernel sends then is not left in this thread. It takes
/// no system call more where the signals are known to be blocked.
///
/// # Errors
/// Those of the write.
pub fn without_signals<T, E: WriteError>(write: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let blocked = WritesBlocked::new()?;
    let written = write();
    if let Some(errno) = written.as_ref().err().and_then(WriteError::errno) {
        let sent = OF_WRITES.iter().find(|(of, _)| *of == errno).map(|(_, signal)| *signal);
        sent.filter(|signal| !blocked.kept.contains(*signal)).into_iter().for_each(take);
    }
    written
}

/// Blocks the signals of writes in this thread while it exists.
#[derive(Debug)]
struct WritesBlocked {
    /// The signals to block afterwards, if they are others.
    before: Option<SigSet>,
    kept: SigSet,
}

impl WritesBlocked {
    fn new() -> nix::Result<Self> {
        if let Some(kept) = KEPT.get() {
            return Ok(Self { before: None, kept });
        }
        let before = of_writes().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let kept = waiting(&before);
        let had_all = OF_WRITES.iter().all(|(_, signal)| before.contains(*signal));
        Ok(Self { before: Some(before).filter(|_| !had_all), kept })
    }
}

impl Drop for WritesBlocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // It fails for no valid set.
            let _ = before.thread_set_mask();
        }
    }
}

/// Takes a signal that waits in this thread, which has it blocked. One that was sent to the whole
/// process stays: the kernel gives the thread's own first.
fn take(signal: Signal) {
    let (signal, now) = (SigSet::from(signal), TimeSpec::new(0, 0));
    // SAFETY: it reads a set and a time of this frame.
    unsafe { libc::sigtimedwait(signal.as_ref(), std::ptr::null_mut(), now.as_ref()) };
}

/// Whether a signal waits that this thread has blocked.
pub(crate) fn is_pending(signal: Signal) -> bool {
    // SAFETY: an all-zero set is a valid one, which the call fills.
    unsafe {
        let mut pending = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, signal as libc::c_int) == 1
    }
}

pub mod asleep;
#[cfg(test)]
mod tests;
