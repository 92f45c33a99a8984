//! The fuzz targets are a separate workspace. Its lock file is easily forgotten when a crate of the
//! library gets a new dependency.

use std::process::Command;

#[test]
fn the_lock_file_of_the_fuzz_targets_is_up_to_date() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--offline", "--quiet", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    // Crates that are not downloaded yet are also an error, but that is reported later.
    assert!(!error.contains("lock file"), "cargo metadata in testing/fuzz: {error}");
}
