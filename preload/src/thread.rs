//! Threads of this library inside the user's program.

use std::io;

use nix::sys::signal::SigSet;

/// Starts a thread with all signals blocked, since the program expects signals in its own threads.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK)?;
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    before.thread_set_mask()?;
    started.map(drop)
}
