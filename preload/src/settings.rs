//! The settings that `uverbs run` passes to this library in the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use uverbs_soft::settings::Variables;

/// Scratch directory, for a real directory in place of each directory of sysfs that the program
/// lists.
pub(crate) const SYSFS: &str = "UVERBS_RUN_SYSFS";
/// Destination of the trace: a file, or `-` for standard error.
pub(crate) const TRACE: &str = "UVERBS_RUN_TRACE";

/// The devices' variables. Error messages name the options of `uverbs run` that set them.
pub(crate) const DEVICES: Variables =
    Variables { prefix: "UVERBS_RUN_", shown: |rest| format!("--{}", rest.to_ascii_lowercase()) };

/// The value of a variable, if it is set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Path of a file in the scratch directory that is shared by the whole run, such as a token.
pub(crate) fn of_run(name: &str) -> Option<PathBuf> {
    variable(SYSFS).map(|directory| PathBuf::from(directory).join(name))
}
