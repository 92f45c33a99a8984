//! Signals of a thread that does the device's work.
//!
//! Such a thread has the device's locks, and it writes to pipes whose readers may be gone. The
//! device's own thread has all signals blocked, because they are the program's. A program's thread
//! blocks them for a sleep that a signal has to end (signalfd(2)). So that neither has to block
//! SIGPIPE for each write, a thread knows whether it has.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;

/// Signals that an instruction causes, which cannot wait.
const AT_ONCE: [Signal; 5] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];

/// To which side a SIGPIPE belongs that waits after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This library's: none waited before. The program must not get it.
    Library,
    /// The program's, or it makes no difference.
    Program,
}

thread_local! {
    /// `None`: it may not be blocked.
    static SIGPIPE: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Blocks the signals in this thread while it exists.
#[derive(Debug)]
pub struct SignalsBlocked {
    all: SigSet,
    before: SigSet,
    outer: Option<Owner>,
    /// It is the thread's.
    _thread: PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks all signals but those that cannot wait.
    ///
    /// # Errors
    /// None is known.
    pub fn new() -> nix::Result<Self> {
        let mut all = SigSet::all();
        AT_ONCE.iter().for_each(|signal| all.remove(*signal));
        let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let outer = SIGPIPE.replace(Some(owner(&before)));
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
        SIGPIPE.set(self.outer);
        // It fails for no valid set.
        let _ = self.before.thread_set_mask();
    }
}

/// For a thread that had these signals blocked: one that blocks SIGPIPE may have one waiting.
fn owner(before: &SigSet) -> Owner {
    let waits = before.contains(Signal::SIGPIPE) && is_sigpipe_pending();
    if waits { Owner::Program } else { Owner::Library }
}

/// Notes that this thread has all signals blocked for as long as it lives, and gets none.
pub(crate) fn note_all_blocked() {
    SIGPIPE.set(Some(Owner::Program));
}

/// Runs a write to a pipe whose reader may be gone, so that no SIGPIPE is left in this thread. It
/// takes no system call more where SIGPIPE is known to be blocked.
///
/// # Errors
/// Those of the write.
pub fn without_sigpipe<T>(write: impl FnOnce() -> nix::Result<T>) -> nix::Result<T> {
    let blocked = SigPipeBlocked::new()?;
    let written = write();
    if matches!(written, Err(Errno::EPIPE)) && blocked.owner == Owner::Library {
        drop_sigpipe();
    }
    written
}

/// Blocks SIGPIPE in this thread while it exists.
#[derive(Debug)]
struct SigPipeBlocked {
    /// The signals to block afterwards, if they are others.
    before: Option<SigSet>,
    owner: Owner,
}

impl SigPipeBlocked {
    fn new() -> nix::Result<Self> {
        if let Some(owner) = SIGPIPE.get() {
            return Ok(Self { before: None, owner });
        }
        let before = SigSet::from(Signal::SIGPIPE).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let owner = owner(&before);
        Ok(Self { before: Some(before).filter(|it| !it.contains(Signal::SIGPIPE)), owner })
    }
}

impl Drop for SigPipeBlocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // It fails for no valid set.
            let _ = before.thread_set_mask();
        }
    }
}

/// Takes a SIGPIPE that waits in this thread, which has it blocked. One that was sent to the whole
/// process stays: the kernel gives the thread's own first.
fn drop_sigpipe() {
    let (sigpipe, now) = (SigSet::from(Signal::SIGPIPE), TimeSpec::new(0, 0));
    // SAFETY: it reads a set and a time of this frame.
    unsafe { libc::sigtimedwait(sigpipe.as_ref(), std::ptr::null_mut(), now.as_ref()) };
}

/// Whether a SIGPIPE waits that this thread has blocked.
pub(crate) fn is_sigpipe_pending() -> bool {
    // SAFETY: an all-zero set is a valid one, which the call fills.
    unsafe {
        let mut pending = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
    }
}
