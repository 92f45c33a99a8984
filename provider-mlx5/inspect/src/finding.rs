//! Findings about a WQE or a CQE.

use core::fmt;

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Legal, but rarely intended.
    Suspicious,
    /// The device refuses it, or does something that was not intended.
    Illegal,
}

/// Something illegal or suspicious about a WQE or CQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Byte offset, from the start of the entry, of the field in question.
    pub offset: usize,
    /// What is wrong, in words.
    pub text: String,
}

impl Finding {
    pub(super) fn illegal(offset: usize, text: impl Into<String>) -> Self {
        Self { severity: Severity::Illegal, offset, text: text.into() }
    }

    pub(super) fn suspicious(offset: usize, text: impl Into<String>) -> Self {
        Self { severity: Severity::Suspicious, offset, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Suspicious => "suspicious",
            Severity::Illegal => "illegal",
        };
        write!(f, "{severity} at byte {:#04x}: {}", self.offset, self.text)
    }
}
