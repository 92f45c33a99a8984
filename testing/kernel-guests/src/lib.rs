//! Runs tests in guests of QEMU, which boot an unmodified Debian kernel on the software ConnectX.
//! `cargo xtask kernel-test` uses it and prints a table of the results.
//!
//! [`run`] runs the matrix of kernels and port types. [`Packages`] downloads and unpacks Debian
//! packages without root. All files are below [`target_directory`].

#![forbid(unsafe_code)]

mod figures;
mod guest;
mod initramfs;
mod kernel;
mod matrix;
mod options;
mod packages;
mod programs;
mod record;
mod report;
mod script;
mod suite;

use std::path::{Path, PathBuf};

pub use matrix::run;
pub use options::Options;
pub use packages::Packages;

/// The root of the workspace.
fn workspace() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("this crate is two folders below the root")
}

/// Cargo's target directory: `CARGO_TARGET_DIR`, or `target` in the workspace.
pub fn target_directory() -> PathBuf {
    let default = workspace().join("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or(default, PathBuf::from)
}
