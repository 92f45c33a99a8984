//! The files of the repository, for tests that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// The files below a folder whose names end in one of `ends`, in order. A file is its own list.
pub(crate) fn files(path: &Path, ends: &[&str]) -> Vec<PathBuf> {
    if !path.is_dir() {
        let end = path.extension().and_then(|end| end.to_str());
        let is_wanted = end.is_some_and(|end| ends.contains(&end));
        return is_wanted.then(|| path.to_owned()).into_iter().collect();
    }
    if path.ends_with("target") {
        return Vec::new();
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let below = entries.flat_map(|entry| files(&entry.expect("an entry").path(), ends));
    let mut found: Vec<_> = below.collect();
    found.sort();
    found
}
