//! The trace: a line for each verb, with its arguments, its answer and its time.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use uverbs::soft::settings::open_output;

use super::{Argument, Named};
use crate::environment::{say, variable, write_or_lose};
use crate::events::uncancelled;

/// The variable with the destination of the trace: a file, or `-` for standard error.
const VARIABLE: &str = "UVERBS_TRACE";

/// An open trace. Lines of several processes and threads are appended whole.
#[derive(Debug)]
pub(super) struct Trace {
    file: File,
    identity: Identity,
    /// The path to open again if the program has closed the file; `None` for standard error.
    path: Option<PathBuf>,
}

/// Device and inode of a file. If they change, the program has closed the descriptor and its number
/// belongs to another file.
type Identity = (u64, u64);

/// The line of a verb that runs: the text so far, without the answer.
pub(super) struct Entry {
    text: String,
    began: Instant,
}

impl Trace {
    /// The trace that the environment requests. If it cannot be opened, the reason goes to standard
    /// error.
    pub(super) fn from_environment() -> Option<Self> {
        let target = variable(VARIABLE).filter(|target| !target.is_empty())?;
        let opened = uncancelled(|| match target.to_str() {
            Some("-") => Self::new(io::stderr().as_fd().try_clone_to_owned()?.into(), None),
            _ => {
                let path = std::path::absolute(&target)?;
                Self::new(open(&path)?, Some(path))
            }
        });
        opened.inspect_err(|cause| say(&format!("no trace in {target:?}: {cause}"))).ok()
    }

    fn new(file: File, path: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { identity: identity(&file)?, file, path })
    }

    /// Begins a line with the arguments that the program gives.
    pub(super) fn begin(&self, verb: &str, arguments: &[Named<'_>]) -> Entry {
        let mut text = String::new();
        start_line(&mut text, verb);
        for (place, (name, given, argument)) in arguments.iter().enumerate() {
            let _ = write!(text, "{}{name}=", if place > 0 { ", " } else { "" });
            if *given { argument.show(&mut text) } else { text.push('…') }
        }
        text.push(')');
        Entry { text, began: Instant::now() }
    }

    /// Writes the line, with the verb's result, its outputs and its duration.
    pub(super) fn end(
        &self,
        entry: Entry,
        arguments: &[Named<'_>],
        answer: &dyn Argument,
        errno: Option<i32>,
    ) {
        let (mut text, took) = (entry.text, entry.began.elapsed());
        text.push_str(" = ");
        answer.show(&mut text);
        match errno {
            Some(errno) => {
                let _ = write!(text, " {:?}", nix::errno::Errno::from_raw(errno));
            }
            None => show_outputs(arguments, &mut text),
        }
        let _ = writeln!(text, " <{:.1} us>", took.as_nanos() as f64 / 1000.0);
        self.put(&text);
    }

    /// Writes one line of a post or a poll.
    pub(super) fn line(&self, verb: &str, what: &str) {
        let mut text = String::new();
        start_line(&mut text, verb);
        text.push_str(what);
        self.put(&(text + ")\n"));
    }

    /// Appends a line. A line that cannot be written is lost.
    fn put(&self, line: &str) {
        write_or_lose(|| {
            if identity(&self.file).is_ok_and(|now| now == self.identity) {
                return (&self.file).write_all(line.as_bytes());
            }
            // The program has closed descriptors that it did not open, as daemons do.
            match &self.path {
                Some(path) => open(path)?.write_all(line.as_bytes()),
                None => Ok(()),
            }
        });
    }
}

/// Opens a file to append to. A pipe without a reader is an error, because opening it would block
/// the program. Writes wait for a slow reader.
fn open(path: &Path) -> io::Result<File> {
    open_output(File::options().create(true).append(true), path)
}

fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|file| (file.dev(), file.ino()))
}

/// Appends the start of a line: time, thread and verb.
fn start_line(text: &mut String, verb: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // SAFETY: asks for the thread's number.
    let thread = unsafe { libc::gettid() };
    let _ = write!(text, "{}.{:09} {thread} {verb}(", now.as_secs(), now.subsec_nanos());
}

/// Appends the arguments that the verb has filled in.
fn show_outputs(arguments: &[Named<'_>], text: &mut String) {
    for (name, given, argument) in arguments {
        if !given {
            let _ = write!(text, ", {name}=");
            argument.show(text);
        }
    }
}
