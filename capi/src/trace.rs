//! What the library says about failed verbs, where a program's user asks for it.

use std::sync::OnceLock;

use uverbs::Error;

use crate::environment::{say, variable};

/// Set to anything but nothing: the sentence behind each errno goes to standard error.
const VARIABLE: &str = "UVERBS_ERRORS";

/// Tells of a failed verb: errno alone does not say what was asked, why it failed and what helps.
pub(crate) fn failure(error: &Error) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| variable(VARIABLE).is_some_and(|value| !value.is_empty())) {
        say(&error.to_string());
    }
}
