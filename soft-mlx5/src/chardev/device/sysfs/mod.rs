//! The sysfs entries of a device, as a tree in memory: the files and links that libibverbs,
//! `ibv_devinfo`, UCX and this project's own discovery read.
//!
//! The layout is that of Linux's driver core: the device's directory is below `devices`, and
//! everything in `class` and `bus` is a symbolic link to it. `layout.rs` fills the directories.
#![forbid(unsafe_code)]

mod counters;
mod layout;
mod locality;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) use counters::hw_counters;
pub use layout::pci_address;

/// Most symbolic links in the resolution of one path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Files and symbolic links by path relative to `/sys`. Directories are implied by what they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysfs {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File(String),
    Link(String),
}

/// The entry at a path, without following links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A file with these contents.
    File(&'a str),
    /// A symbolic link with this text, relative to the directory that holds it.
    Link(&'a str),
    /// A directory.
    Directory,
}

impl Sysfs {
    /// A file's contents, with the newline at its end; links are followed.
    pub fn read(&self, path: &str) -> Option<&str> {
        match self.find(&self.canonical(path, true)?)? {
            Found::File(contents) => Some(contents),
            _ => None,
        }
    }

    /// Names in a directory, sorted; empty if there is no such directory. Links are followed.
    pub fn list(&self, directory: &str) -> Vec<&str> {
        let Some(directory) = self.canonical(directory, true) else { return Vec::new() };
        let names: BTreeSet<_> =
            self.below(&directory).filter_map(|rest| rest.split('/').next()).collect();
        names.into_iter().collect()
    }

    /// The entry at a path without links, as [`canonical`](Self::canonical) returns it.
    pub fn find(&self, path: &str) -> Option<Found<'_>> {
        match self.entries.get(path) {
            Some(Entry::File(contents)) => Some(Found::File(contents)),
            Some(Entry::Link(target)) => Some(Found::Link(target)),
            None => self.below(path).next().map(|_| Found::Directory),
        }
    }

    /// Resolves links, `.` and `..` of a path; a link in the last component only if `follow`. A
    /// component that does not exist counts as a directory. `None` if links form a cycle.
    pub fn canonical(&self, path: &str, follow: bool) -> Option<String> {
        let mut rest: Vec<&str> = path.split('/').rev().collect();
        let (mut at, mut links) = (String::new(), 0);
        while let Some(component) = rest.pop() {
            match component {
                "" | "." => {}
                ".." => ascend(&mut at),
                name => {
                    descend(&mut at, name);
                    if !follow && rest.is_empty() {
                        break;
                    }
                    let Some(Entry::Link(target)) = self.entries.get(&at) else { continue };
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    ascend(&mut at);
                    rest.extend(target.split('/').rev());
                }
            }
        }
        Some(at)
    }

    /// Adds all entries of another tree below `directory` of this one.
    pub fn mount(&mut self, directory: &str, other: &Self) {
        let path = |path: &String| format!("{directory}/{path}");
        self.entries.extend(other.entries.iter().map(|(key, entry)| (path(key), entry.clone())));
    }

    /// Writes the tree below `root`, which can then be used as `SYSFS_PATH`.
    ///
    /// # Errors
    /// Errors of creating directories, files and links.
    pub fn write_to(&self, root: &Path) -> std::io::Result<()> {
        for (path, entry) in &self.entries {
            let path = root.join(path);
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            match entry {
                Entry::File(contents) => std::fs::write(path, contents)?,
                Entry::Link(target) => std::os::unix::fs::symlink(target, path)?,
            }
        }
        Ok(())
    }

    /// Adds a file with one line of text.
    pub fn add(&mut self, path: &str, line: &str) {
        self.entries.insert(path.to_owned(), Entry::File(format!("{line}\n")));
    }

    /// Adds a link; both paths are relative to `/sys`.
    fn link(&mut self, path: &str, target: &str) {
        let up = "../".repeat(path.matches('/').count());
        self.entries.insert(path.to_owned(), Entry::Link(format!("{up}{target}")));
    }

    /// Paths below a directory, relative to it.
    fn below<'a>(&'a self, directory: &str) -> impl Iterator<Item = &'a str> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        self.entries
            .range(prefix.clone()..)
            .map_while(move |(path, _)| path.strip_prefix(prefix.as_str()))
    }
}

fn descend(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(name);
}

fn ascend(path: &mut String) {
    path.truncate(path.rfind('/').unwrap_or(0));
}

#[cfg(test)]
mod tests;
