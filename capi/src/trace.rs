//! Explains failed verbs on standard error, if the user requests it.

use uverbs::Error;

use crate::environment::{say, variable};
use crate::lazy::Lazy;

/// If this variable is set and not empty, each failed verb is explained on standard error.
const VARIABLE: &str = "UVERBS_ERRORS";

/// Prints why a verb failed, because an errno explains neither the cause nor the cure.
pub(crate) fn failure(error: &Error) {
    static WANTED: Lazy<bool> = Lazy::new();
    if *WANTED.get_or(|| variable(VARIABLE).is_some_and(|value| !value.is_empty())) {
        say(&error.to_string());
    }
}
