//! Reading the machine's sysfs and procfs, or a copy of them below another root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most processors that a list may name; sysfs of the largest machines has 8192.
const MOST: usize = 1 << 16;

/// A file tree with `sys` and `proc`.
#[derive(Debug)]
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// The contents of a small text file, trimmed; `None` if it cannot be read.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.0.join(path)).ok().map(|text| text.trim().to_owned())
    }

    pub(super) fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        fs::read(self.0.join(path)).ok()
    }

    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none if it does not exist.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.0.join(path).exists()
    }

    /// The last component of a symbolic link's target.
    pub(super) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.0.join(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

/// The members of a kernel list (`0-3,8`); `None` if it is not a list.
pub(super) fn members(list: &str) -> Option<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

/// Whether a processor is in a kernel mask: hexadecimal words of 32 bits, highest first.
pub(super) fn is_in_mask(mask: &str, cpu: usize) -> Option<bool> {
    let words: Option<Vec<u32>> =
        mask.split(',').map(|word| u32::from_str_radix(word.trim(), 16).ok()).collect();
    let word = words?.into_iter().rev().nth(cpu / 32).unwrap_or(0);
    Some(word >> (cpu % 32) & 1 == 1)
}

/// Numbers in the format of a kernel list.
pub(super) fn list(members: &BTreeSet<usize>) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &member in members {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == member => *last = member,
            _ => parts.push((member, member)),
        }
    }
    let text = parts.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}
