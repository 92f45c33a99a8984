//! Printing to standard output and standard error, without panics if nothing reads them.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use serde::Serialize;

use crate::failure::{Context, Failure, Outcome};

/// Whether the process was started without standard output (`>&-`). Rust's runtime then opens
/// /dev/null in its place, where results would vanish without an error.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Checks standard output before Rust's runtime opens it.
#[allow(unsafe_code)]
mod at_start {
    use nix::libc::{F_GETFD, STDOUT_FILENO, fcntl};

    use super::{IS_CLOSED, Ordering};

    // SAFETY: the C library calls every function in `.init_array` once before `main`, with
    // arguments that a function without parameters ignores. `check` needs nothing of Rust's
    // runtime.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static CHECK: extern "C" fn() = check;

    extern "C" fn check() {
        // SAFETY: F_GETFD has no argument and changes nothing, whatever the descriptor is.
        let flags = unsafe { fcntl(STDOUT_FILENO, F_GETFD) };
        IS_CLOSED.store(flags < 0, Ordering::Relaxed);
    }
}

/// Prints one or more lines and flushes them.
pub(crate) fn print(text: impl Display) -> Outcome {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(stdout_failure(Errno::EBADF.into()));
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(stdout_failure)
}

/// Prints one JSON document on one line.
pub(crate) fn print_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string(value).context(|| "cannot encode the result".into())?)
}

/// Prints one JSON document, indented.
pub(crate) fn print_pretty_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string_pretty(value).context(|| "cannot encode the result".into())?)
}

/// Prints a message for the user on standard error.
pub(crate) fn remark(text: impl Display) {
    // If this fails, there is no other place for the message.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Fails if a file could not be written later. Changes nothing.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    match path.metadata() {
        // Opening a FIFO would wait for a reader.
        Ok(file) if file.file_type().is_fifo() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => check_creatable(path),
        _ => OpenOptions::new().append(true).open(path).map(drop),
    }
}

/// [`check_writable`] for a file that does not exist. It removes a file that it has created, but
/// not one that another run creates at the same time. A symbolic link is kept.
fn check_creatable(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match path.read_link() {
            Ok(target) => check_writable(&path.with_file_name(target)),
            Err(_) => OpenOptions::new().append(true).open(path).map(drop),
        },
        Err(error) => Err(error),
    }
}

/// Bytes as pairs of hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Escapes control and formatting characters as in Rust's string literals, so that the text cannot
/// move a terminal's cursor, end a line or reorder the text around it.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unsafe_to_show(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Control characters, and those that Unicode calls line and paragraph separators or format
/// characters: bidirectional overrides, isolates and marks, zero-width and invisible ones, tags
/// (Unicode 16, categories Cc, Zl, Zp, Cf).
pub(crate) fn is_unsafe_to_show(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
}

fn stdout_failure(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::failed(format!("cannot write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_only_what_was_there() {
        let name = format!("uverbs-output-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let names = ["file", "link", "old", "loop", "none"].map(|name| directory.join(name));
        let [file, link, old, around, none] = &names;
        std::os::unix::fs::symlink("file", link).unwrap();
        std::os::unix::fs::symlink("loop", around).unwrap();
        fs::write(old, "old").unwrap();
        assert!([file, link, old].iter().all(|path| check_writable(path).is_ok()));
        assert!(!file.exists() && link.is_symlink() && fs::read(old).unwrap() == b"old");
        assert!([around, &none.join("file")].iter().all(|path| check_writable(path).is_err()));
        // Another run has created the file since it was looked for.
        assert!(check_creatable(old).is_ok() && fs::read(old).unwrap() == b"old");
        fs::write(file, "new").unwrap();
        assert!(check_creatable(link).is_ok() && fs::read(file).unwrap() == b"new");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn control_and_bidirectional_characters_are_escaped() {
        assert_eq!(escaped("Größe 1.txt"), "Größe 1.txt");
        let text = "a\u{1b}[2J\n\u{202e}txt\u{2066}\u{9b}\u{feff}";
        let shown = "a\\u{1b}[2J\\u{a}\\u{202e}txt\\u{2066}\\u{9b}\\u{feff}";
        assert_eq!(escaped(text), shown);
    }
}
