//! Standard output and standard error, without panics when nobody reads them.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::failure::{Context, Failure, Outcome};

/// Prints one or more lines and makes sure that they are out.
pub(crate) fn print(text: impl Display) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(of_stdout)
}

/// Prints one JSON document on one line.
pub(crate) fn print_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string(value).context(|| "cannot encode the result".into())?)
}

/// Prints one JSON document on lines for people.
pub(crate) fn print_pretty_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string_pretty(value).context(|| "cannot encode the result".into())?)
}

/// Says something to the user that is not the result.
pub(crate) fn remark(text: impl Display) {
    // Nobody left to complain to if this fails.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn of_stdout(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::failed(format!("cannot write to standard output: {error}")),
    }
}
