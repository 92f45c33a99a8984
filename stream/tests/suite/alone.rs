//! Runs tests in separate processes: those that use up all file descriptors, fork, or measure the
//! memory of the process.

use std::fs::File;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The environment variable that is set in the process of such a test.
const ALONE: &str = "UVERBS_TEST_ALONE";

/// Runs an ignored test alone.
pub(crate) fn run(test: &str) {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", "--ignored", test]).env(ALONE, "1").output().unwrap();
    let [text, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// Whether this process is that of such a test.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Takes all file descriptors, until the returned files are dropped.
pub(crate) fn take_all_descriptors() -> Vec<File> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}
