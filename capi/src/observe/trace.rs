//! The trace: a line for each verb, with its arguments, its answer and its time.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Argument, Named};

/// Where the trace goes: a file, or `-` for standard error.
const VARIABLE: &str = "UVERBS_TRACE";

/// An open trace. Lines of several processes and threads are appended whole.
#[derive(Debug)]
pub(super) struct Trace(File);

/// The start of a line, as it is before the verb runs.
pub(super) struct Entry {
    text: String,
    began: Instant,
}

impl Trace {
    /// The trace that the environment asks for. If it cannot be opened, standard error says why.
    pub(super) fn from_environment() -> Option<Self> {
        let target = std::env::var_os(VARIABLE).filter(|target| !target.is_empty())?;
        let opened = if target == "-" {
            // SAFETY: duplicates a descriptor, if it is one.
            let own = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
            // SAFETY: just duplicated, and owned by nothing else.
            (own >= 0).then(|| File::from(unsafe { OwnedFd::from_raw_fd(own) }))
        } else {
            let opened = File::options().create(true).append(true).open(&target);
            opened.inspect_err(|cause| eprintln!("uverbs: no trace in {target:?}: {cause}")).ok()
        };
        opened.map(Self)
    }

    /// Begins a line with the arguments that the program gives.
    pub(super) fn begin(&self, verb: &str, arguments: &[Named<'_>]) -> Entry {
        let mut text = String::new();
        begin(&mut text, verb);
        for (place, (name, given, argument)) in arguments.iter().enumerate() {
            let _ = write!(text, "{}{name}=", if place > 0 { ", " } else { "" });
            if *given { argument.show(&mut text) } else { text.push('…') }
        }
        text.push(')');
        Entry { text, began: Instant::now() }
    }

    /// Writes the line, with what the verb returned, what it filled in and how long it took.
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
        self.write(text, took);
    }

    /// Writes one line of a post or a poll.
    pub(super) fn line(&self, verb: &str, what: &str) {
        let mut text = String::new();
        begin(&mut text, verb);
        text.push_str(what);
        let _ = (&self.0).write_all((text + ")\n").as_bytes());
    }

    fn write(&self, mut text: String, took: Duration) {
        let _ = writeln!(text, " <{:.1} us>", took.as_nanos() as f64 / 1000.0);
        let _ = (&self.0).write_all(text.as_bytes());
    }
}

fn begin(text: &mut String, verb: &str) {
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
