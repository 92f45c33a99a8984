//! Signals that end a capture or a replay. They are read as data, so that files can be completed
//! first.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::{Context, Outcome};

/// SIGINT and SIGTERM, blocked until they are read.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: SignalFd,
}

impl Stop {
    /// Blocks the signals, so that they no longer end the process. Threads started later inherit
    /// this.
    pub(crate) fn new() -> Outcome<Self> {
        let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
        let made = signals.thread_block().and_then(|()| {
            SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        });
        Ok(Self { signals: made.context(|| "cannot wait for signals".to_owned())? })
    }

    /// Whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> Outcome<bool> {
        let signal = self.signals.read_signal().context(|| "cannot wait for signals".to_owned())?;
        Ok(signal.is_some())
    }
}
