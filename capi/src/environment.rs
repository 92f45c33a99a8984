//! What the library gets from its surroundings besides calls: variables, and standard error.

use std::ffi::OsString;
use std::io::IoSlice;

use crate::events::uncancelled;

/// A variable of the environment. A program that runs with more rights than its caller has (set
/// user id) gets none: they name files to write to, and devices.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel told at exec.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !has_more_rights)
}

/// Whether a variable is set, and to neither nothing nor 0.
pub(crate) fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Writes a line to standard error, at once, so that lines of several threads and processes stay
/// whole. It takes no lock, because a forked child may inherit one that no thread gives back. A
/// line that cannot be written is lost, and the program goes on.
pub(crate) fn say(text: &str) {
    let parts = [b"uverbs: ", text.as_bytes(), b"\n"].map(IoSlice::new);
    let (start, count) = (parts.as_ptr().cast(), parts.len() as _);
    // SAFETY: the parts are readable, and an `IoSlice` is an `iovec` by its documentation. A thread
    // that is cancelled in the call would leave locks of the library behind.
    uncancelled(|| unsafe { libc::writev(libc::STDERR_FILENO, start, count) });
}
