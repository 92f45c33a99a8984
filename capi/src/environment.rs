//! Environment variables and standard error.

use std::ffi::OsString;
use std::io::{self, IoSlice};

use uverbs::soft::signals::without_signals;

use crate::events::uncancelled;

/// An environment variable. `None` in a program that runs with more rights than its caller (set
/// user id), because variables name devices and files to write to.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads a value that the kernel set at exec.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !has_more_rights)
}

/// Whether a variable is set, not empty and not 0.
pub(crate) fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Writes a line to standard error in one call, so that lines of several threads and processes do
/// not mix. It takes no lock, because a forked child may inherit one that no thread releases. A
/// line that cannot be written is lost.
pub(crate) fn say(text: &str) {
    let parts = [b"uverbs: ", text.as_bytes(), b"\n"].map(IoSlice::new);
    let (start, count) = (parts.as_ptr().cast(), parts.len() as _);
    write_or_lose(|| {
        // SAFETY: the parts are readable, and an `IoSlice` is an `iovec` by its documentation.
        let written = unsafe { libc::writev(libc::STDERR_FILENO, start, count) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
}

/// Writes a line that is lost if it cannot be written. A pipe without a reader, or a file that may
/// not grow, sends the program no signal. A thread that is cancelled in the call would never
/// release the library's locks that it holds, so cancellation waits.
pub(crate) fn write_or_lose(write: impl FnOnce() -> io::Result<()>) {
    uncancelled(|| {
        let _ = without_signals(write);
    });
}
