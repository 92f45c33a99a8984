//! The settings that `uverbs run` passes to this library in the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use uverbs_soft::settings::Variables;

/// Scratch directory: it gets a real directory for each directory of sysfs that the program lists.
pub(crate) const SYSFS: &str = "UVERBS_RUN_SYSFS";
/// Where the trace goes: a file, or `-` for standard error.
pub(crate) const TRACE: &str = "UVERBS_RUN_TRACE";

/// The devices' variables. Messages call each by the option of `uverbs run` that sets it.
pub(crate) const DEVICES: Variables =
    Variables { prefix: "UVERBS_RUN_", shown: |rest| format!("--{}", rest.to_ascii_lowercase()) };

/// The value of a variable that is set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// A file of the scratch directory that is about the whole run: a token.
pub(crate) fn of_run(name: &str) -> Option<PathBuf> {
    variable(SYSFS).map(|directory| PathBuf::from(directory).join(name))
}
