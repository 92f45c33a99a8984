//! The failure of a run: one sentence on standard error, and an exit status.

use std::fmt;

use uverbs::ErrorKind;

/// Why the command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the input is invalid (status 2).
    Usage(String),
    /// The device, the peer, a file or its contents failed (status 1).
    Failed(String),
    /// Standard output was closed (`uverbs … | head`): status 0, no message.
    Unread,
    /// The program that `uverbs run` started ended with this status and reported the reason itself.
    Ended(u8),
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The process's exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
            Self::Unread => 0,
            Self::Ended(status) => *status,
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// The message, if there is one.
    pub(crate) fn sentence(&self) -> Option<&str> {
        match self {
            Self::Usage(text) | Self::Failed(text) => Some(text),
            Self::Unread | Self::Ended(_) => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence().unwrap_or_default())
    }
}

impl From<uverbs::Error> for Failure {
    /// An unknown device name or GID index is an error of the command line, and a wrong variable
    /// `UVERBS_SOFT_…` is one of the input. All other errors are failures.
    fn from(error: uverbs::Error) -> Self {
        match (error.kind(), error.verb()) {
            (ErrorKind::NotFound, "open_device" | "choose_gid") if error.cure().is_empty() => {
                Self::Usage(error.cause().to_owned())
            }
            (ErrorKind::InvalidInput, "open_device") if names_variable(&error) => {
                Self::Usage(error.to_string())
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Whether the error is about a variable of the software device. The kernel's EINVAL is not.
fn names_variable(error: &uverbs::Error) -> bool {
    error.to_string().contains("UVERBS_SOFT_")
}

/// Adds a description of the failed action to an error.
pub(crate) trait Context<T> {
    /// Fails with `doing: error`.
    fn context(self, doing: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure::Failed(format!("{}: {error}", doing())))
    }
}
