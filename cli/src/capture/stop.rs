//! Ending at a signal, in order: files are complete then.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::{Context, Outcome};

/// SIGINT and SIGTERM, which wait until they are asked for.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: SignalFd,
}

impl Stop {
    /// From now on the signals end nothing by themselves. Threads that are made later have them
    /// blocked too.
    pub(crate) fn new() -> Outcome<Self> {
        let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
        let made = signals.thread_block().and_then(|()| {
            SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        });
        Ok(Self { signals: made.context(|| "cannot wait for signals".to_owned())? })
    }

    /// Whether one has come.
    pub(crate) fn is_asked(&self) -> Outcome<bool> {
        let signal = self.signals.read_signal().context(|| "cannot wait for signals".to_owned())?;
        Ok(signal.is_some())
    }
}
