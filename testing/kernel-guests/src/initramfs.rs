//! Initial RAM file systems: archives in the kernel's "newc" cpio format, written without root.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const REGULAR: u32 = 0o100_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Initramfs {
    /// Adds a file; `path` is relative to the root.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | mode, data);
    }

    /// Adds an empty directory.
    pub(crate) fn directory(&mut self, path: &str) {
        self.parents(path);
        if self.directories.insert(path.to_owned()) {
            self.entry(path, DIRECTORY, &[]);
        }
    }

    /// Adds a symbolic link. Paths of later files may go through it.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.directories.insert(path.to_owned());
        self.entry(path, SYMLINK, target.as_bytes());
    }

    /// Adds a file of the host under another name.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let mode =
            fs::metadata(from).with_context(|| from.display().to_string())?.permissions().mode();
        self.file(path, mode & 0o777, &fs::read(from)?);
        Ok(())
    }

    /// Adds the files below `from` for which `wanted` returns true, relative to the archive's root.
    pub(crate) fn tree(&mut self, from: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        self.subtree(from, Path::new(""), wanted)
    }

    fn subtree(&mut self, root: &Path, below: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let mut children: Vec<PathBuf> = fs::read_dir(root.join(below))?
            .map(|entry| entry.map(|e| below.join(e.file_name())))
            .collect::<Result<_, _>>()?;
        children.sort();
        for child in children {
            let name = child.to_string_lossy().into_owned();
            let kind = fs::symlink_metadata(root.join(&child))?.file_type();
            if !wanted(&name) {
                continue;
            }
            if kind.is_symlink() {
                let target = fs::read_link(root.join(&child))?;
                self.symlink(&name, &target.to_string_lossy());
            } else if kind.is_dir() {
                self.subtree(root, &child, wanted)?;
            } else {
                self.copy(&name, &root.join(&child))?;
            }
        }
        Ok(())
    }

    /// The finished archive, padded so that another one may be appended.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            if self.directories.insert(path[..at].to_owned()) {
                self.entry(&path[..at], DIRECTORY, &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let (links, size, name) = (1, data.len() as u32, path.len() as u32 + 1);
        let header = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        header
            .iter()
            .for_each(|word| self.bytes.extend_from_slice(format!("{word:08x}").as_bytes()));
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
