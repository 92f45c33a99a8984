//! Copies the record of the kernel's answers from the console into the source tree.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

const MARK: &str = "@@ record ";

/// Writes the record of a kind of port. `tests/record` describes its contents.
pub(crate) fn write(workspace: &Path, port: &str, console: &str) -> Result<()> {
    let lines = console.lines().filter_map(|line| line.trim_end().strip_prefix(MARK));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    ensure!(!text.is_empty(), "the guest recorded nothing");
    fs::write(workspace.join(format!("tests/record/kernel-{port}.txt")), text)?;
    Ok(())
}
