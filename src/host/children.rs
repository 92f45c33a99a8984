//! Children that may hold a file open after this process has closed it.
//!
//! `vfork` and `posix_spawn` run no handlers that could count forks. Their children hold every
//! descriptor until they call exec or end. If this process closes a file before that, the child
//! keeps the file open. `/proc` shows the children and their files (proc_pid_stat(5),
//! proc_pid_fd(5)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

/// The identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl FileId {
    /// # Errors
    /// As `fstat(2)`.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|data| Self(data.dev(), data.ino()))
    }

    fn is_held_by(self, child: &Child) -> io::Result<bool> {
        for entry in fs::read_dir(format!("/proc/{}/fd", child.id))? {
            // A descriptor that was closed meanwhile does not count.
            let data = fs::metadata(entry?.path());
            if data.is_ok_and(|data| Self(data.dev(), data.ino()) == self) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A process. The start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child {
    id: u32,
    started: u64,
}

/// The children of this process before it closes a file.
#[derive(Debug)]
pub(crate) struct Children {
    /// The children that do not hold the file.
    without: Vec<Child>,
}

impl Children {
    /// Call it while this process still has `file` open. A child that does not have the file now
    /// never gets it.
    ///
    /// # Errors
    /// Errors of reading `/proc`.
    pub(crate) fn before_close(file: FileId) -> io::Result<Self> {
        let lacks_it = |child: &Child| file.is_held_by(child).is_ok_and(|held| !held);
        Ok(Self { without: running()?.into_iter().filter(lacks_it).collect() })
    }

    /// Whether a child may still hold the file, or be closing it at this moment, after this process
    /// has closed it. A child that has ended does not: the kernel closes the files before a process
    /// becomes a zombie (`do_exit`, kernel/exit.c).
    pub(crate) fn may_hold(&self) -> bool {
        running().map_or(true, |all| all.iter().any(|child| !self.without.contains(child)))
    }
}

/// The children of all threads, without those that have ended.
fn running() -> io::Result<Vec<Child>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process whose file cannot be read has ended.
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        all.extend(running_child(id, &stat));
    }
    Ok(all)
}

/// The process, if it is a child of this one and has not ended.
fn running_child(id: u32, stat: &str) -> Option<Child> {
    // The second field is a name in parentheses, and may itself contain parentheses.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let [state, parent, ..] = fields.as_slice() else { return None };
    let is_ours = parent.parse() == Ok(std::process::id());
    let started = fields.get(19)?.parse().ok()?;
    (is_ours && !matches!(*state, "Z" | "X")).then_some(Child { id, started })
}

#[cfg(test)]
mod tests;
