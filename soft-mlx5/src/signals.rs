//! Signals of a thread that does the device's work.
//!
//! Such a thread has the device's locks, and it writes to pipes whose readers may be gone. The
//! device's own thread has all signals blocked, because they are the program's. A program's thread
//! blocks them for a sleep that a signal has to end (signalfd(2)). So that neither has to block
//! SIGPIPE for each write, a thread knows whether it has.

use std::cell::Cell;
use std::marker::PhantomData;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Signals that an instruction causes, which cannot wait.
const AT_ONCE: [Signal; 5] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];

/// Who blocks SIGPIPE in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    /// This library does.
    Library,
    /// The program does, or it makes no difference.
    Program,
}

thread_local! {
    /// `None`: it may not be blocked.
    static SIGPIPE: Cell<Option<Blocks>> = const { Cell::new(None) };
}

/// Blocks the signals in this thread while it exists.
#[derive(Debug)]
pub struct SignalsBlocked {
    all: SigSet,
    before: SigSet,
    outer: Option<Blocks>,
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
        let outer = SIGPIPE.replace(Some(blocks(&before)));
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

fn blocks(before: &SigSet) -> Blocks {
    if before.contains(Signal::SIGPIPE) { Blocks::Program } else { Blocks::Library }
}

/// Notes that this thread has all signals blocked for as long as it lives, and gets none.
pub(crate) fn note_all_blocked() {
    SIGPIPE.set(Some(Blocks::Program));
}

/// Blocks SIGPIPE in this thread while it exists, which takes no system call where it is blocked.
#[derive(Debug)]
pub(crate) struct SigPipeBlocked {
    /// The signals to block afterwards.
    before: Option<SigSet>,
    blocks: Blocks,
}

impl SigPipeBlocked {
    pub(crate) fn new() -> nix::Result<Self> {
        if let Some(blocks) = SIGPIPE.get() {
            return Ok(Self { before: None, blocks });
        }
        let before = SigSet::from(Signal::SIGPIPE).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { blocks: blocks(&before), before: Some(before) })
    }

    /// Whether a SIGPIPE that waits now is this library's, which the program must not get.
    pub(crate) fn is_ours(&self) -> bool {
        self.blocks == Blocks::Library
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
