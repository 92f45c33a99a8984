//! Signal masks of threads that do the device's work.
//!
//! Such a thread has the device's locks, and it writes to pipes whose readers may have ended, and
//! to files that may not grow. The device's own thread has all signals blocked, because they are
//! the program's. A program's thread blocks them while it sleeps, and a signalfd(2) ends the sleep.
//! Each thread remembers whether it has blocked the signals of failed writes, so that it need not
//! block them for each write.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;

/// Signals caused by an instruction, which cannot be delayed.
const AT_ONCE: [Signal; 5] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];

/// All signals except those of [`AT_ONCE`].
static ALL: LazyLock<SigSet> = LazyLock::new(|| {
    let mut all = SigSet::all();
    AT_ONCE.iter().for_each(|signal| all.remove(*signal));
    all
});

/// The signals of failed writes, by errno.
const OF_WRITES: [(Errno, Signal); 2] =
    [(Errno::EPIPE, Signal::SIGPIPE), (Errno::EFBIG, Signal::SIGXFSZ)];

thread_local! {
    /// Signals of [`OF_WRITES`] that must stay pending after a write, because they were pending
    /// before it (and are the program's), or because it makes no difference. `None` if the signals
    /// may not be blocked.
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
    /// Blocks all signals except those that cannot be delayed.
    ///
    /// # Errors
    /// None are known.
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
        // This cannot fail for a valid set.
        let _ = self.before.thread_set_mask();
    }
}

/// The signals of writes that are pending in a thread that had `before` blocked.
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

/// Records that this thread has all signals blocked until it ends.
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

/// Runs a write to a pipe whose reader may have ended, or to a file that may have reached the
/// process's size limit, without the kernel's signal (SIGPIPE or SIGXFSZ) reaching the program. It
/// needs no extra system call if the signals are known to be blocked.
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
    /// The mask to restore afterwards, if it was different.
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
            // This cannot fail for a valid set.
            let _ = before.thread_set_mask();
        }
    }
}

/// Takes a blocked signal that is pending in this thread. A signal that was sent to the whole
/// process stays, because the kernel returns the thread's own first.
fn take(signal: Signal) {
    let (signal, now) = (SigSet::from(signal), TimeSpec::new(0, 0));
    // SAFETY: it reads a set and a time of this frame.
    unsafe { libc::sigtimedwait(signal.as_ref(), std::ptr::null_mut(), now.as_ref()) };
}

/// Whether a blocked signal is pending in this thread.
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
