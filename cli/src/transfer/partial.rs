//! A file that is being received. It gets its name only after its contents are verified.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, RenameFlags, renameat2};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::{Statvfs, statvfs};
use nix::unistd::linkat;

use crate::failure::{Context, Failure, Outcome};
use crate::output::{escaped, is_unsafe_to_show};

/// A file under construction in its final directory.
///
/// If the file system supports it, the file has no name until [`Partial::finish`] and vanishes with
/// the process. Otherwise it has a hidden name that is removed on drop.
#[derive(Debug)]
pub(crate) struct Partial {
    file: File,
    /// A hidden name, for file systems without nameless files, and for the moment before the file
    /// replaces another.
    hidden: PathBuf,
    /// Whether the file has the name `hidden`.
    is_hidden: bool,
    /// The final name.
    target: PathBuf,
    overwrite: bool,
}

/// Checks that a peer's `name` is a single path component without characters that would disturb a
/// terminal.
pub(crate) fn checked_name(name: &str) -> Outcome<&str> {
    let is_plain = !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= 255
        && !name.contains(['/', '\0']);
    if !is_plain {
        return Err(Failure::failed(format!("{:?} cannot be a file's name", escaped(name))));
    }
    if name.chars().any(is_unsafe_to_show) {
        return Err(Failure::failed(format!(
            "a file's name holds control or formatting characters: {}",
            escaped(name)
        )));
    }
    Ok(name)
}

impl Partial {
    /// Begins the file `directory/name` of `size` bytes.
    ///
    /// Fails if that name exists and `overwrite` is not set, or if the disk does not have the
    /// space. It reserves no space, so that a peer that only announces bytes takes none from
    /// others.
    pub(crate) fn begin(directory: &Path, name: &str, size: u64, overwrite: bool) -> Outcome<Self> {
        let target = directory.join(checked_name(name)?);
        if !overwrite && target.symlink_metadata().is_ok() {
            return Err(taken(&target));
        }
        require_space(directory, size).map_err(|reason| no_space(&target, size, &reason))?;
        let hidden = directory.join(format!(".{}.{}.partial", shortened(name), std::process::id()));
        let (file, is_hidden) = create(directory, &hidden)?;
        Ok(Self { file, hidden, is_hidden, target, overwrite })
    }

    /// Writes `data` at `offset`.
    pub(crate) fn write_at(&self, data: &[u8], offset: u64) -> Outcome {
        self.file
            .write_all_at(data, offset)
            .context(|| format!("cannot write {}", self.target.display()))
    }

    /// Makes the contents durable and gives the file its name, atomically for every observer.
    pub(crate) fn finish(mut self) -> Outcome<PathBuf> {
        self.file.sync_all().context(|| format!("cannot write {}", self.target.display()))?;
        self.give_name().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => taken(&self.target),
            _ => {
                Failure::failed(format!("cannot give {} its name: {error}", self.target.display()))
            }
        })?;
        self.is_hidden = false;
        // Makes the name as durable as the contents. Errors are ignored, because the name exists in
        // any case.
        let _ = self
            .target
            .parent()
            .map(|directory| File::open(directory).and_then(|directory| directory.sync_all()));
        Ok(self.target.clone())
    }

    fn give_name(&mut self) -> io::Result<()> {
        if !self.is_hidden && !self.overwrite {
            return Ok(link(&self.file, &self.target)?);
        }
        if !self.is_hidden {
            link(&self.file, &self.hidden)?;
            self.is_hidden = true;
        }
        let flags =
            if self.overwrite { RenameFlags::empty() } else { RenameFlags::RENAME_NOREPLACE };
        Ok(renameat2(AT_FDCWD, &self.hidden, AT_FDCWD, &self.target, flags)?)
    }
}

/// Fails if no file can be created in `directory`. It tries to create one, because permissions
/// alone do not decide that on every file system.
pub(crate) fn require_writable(directory: &Path) -> Outcome {
    let hidden = directory.join(format!(".{}.partial", std::process::id()));
    create(directory, &hidden).map(|(_, is_hidden)| {
        if is_hidden {
            let _ = std::fs::remove_file(&hidden);
        }
    })
}

/// Creates a file without a name or, if the file system does not support that, with the name
/// `hidden`; then the second value is true.
fn create(directory: &Path, hidden: &Path) -> Outcome<(File, bool)> {
    open_nameless(directory)
        .map(|file| (file, false))
        .or_else(|_| open_hidden(hidden).map(|file| (file, true)))
        .context(|| format!("cannot create a file in {}", directory.display()))
}

/// The reason why a file of `size` bytes does not fit into `directory` now.
fn require_space(directory: &Path, size: u64) -> Result<(), String> {
    // If a file system does not report its space, the first write that does not fit fails. procfs
    // and similar file systems have no blocks, and refuse files themselves.
    let free = statvfs(directory).ok().filter(|found| found.blocks() > 0).map(free_bytes);
    if let Some(free) = free.filter(|free| size > *free) {
        return Err(format!("{free} bytes are free"));
    }
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if size > limit => {
            Err(format!("this process's files may have {limit} bytes (ulimit -f)"))
        }
        _ => Ok(()),
    }
}

fn free_bytes(found: Statvfs) -> u64 {
    found.blocks_available().saturating_mul(found.fragment_size())
}

fn no_space(target: &Path, size: u64, reason: &str) -> Failure {
    Failure::failed(format!("no space for {} ({size} bytes): {reason}", target.display()))
}

fn taken(target: &Path) -> Failure {
    Failure::failed(format!("{} exists already (--overwrite replaces it)", target.display()))
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.is_hidden {
            let _ = std::fs::remove_file(&self.hidden);
        }
    }
}

/// `name` cut so that a prefix and a suffix still fit into a path component.
fn shortened(name: &str) -> &str {
    let end = (0..=name.len().min(200)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    &name[..end]
}

fn open_nameless(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o666)
        .custom_flags(nix::fcntl::OFlag::O_TMPFILE.bits())
        .open(directory)
}

fn open_hidden(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Gives an open nameless file a name (open(2), O_TMPFILE).
fn link(file: &File, path: &Path) -> nix::Result<()> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, source.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_finished_file_has_its_name_and_its_contents() {
        let scratch = Scratch::new("finish");
        let partial = Partial::begin(scratch.path(), "a", 6, false).expect("begin");
        partial.write_at(b"def", 3).expect("write");
        partial.write_at(b"abc", 0).expect("write");
        let path = partial.finish().expect("finish");
        assert_eq!(std::fs::read(path).expect("read"), b"abcdef");
        assert_eq!(scratch.names(), ["a"]);
    }

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        let scratch = Scratch::new("abandon");
        let partial = Partial::begin(scratch.path(), "a", 10, false).expect("begin");
        partial.write_at(b"abc", 0).expect("write");
        drop(partial);
        assert!(scratch.names().is_empty(), "{:?}", scratch.names());
    }

    #[test]
    fn a_taken_name_is_kept_unless_told_otherwise() {
        let scratch = Scratch::new("taken");
        std::fs::write(scratch.path().join("a"), b"old").expect("write");
        let failure = Partial::begin(scratch.path(), "a", 3, false).expect_err("taken");
        assert!(failure.to_string().contains("exists already"), "{failure}");
        let partial = Partial::begin(scratch.path(), "a", 3, true).expect("begin");
        partial.write_at(b"new", 0).expect("write");
        partial.finish().expect("finish");
        assert_eq!(std::fs::read(scratch.path().join("a")).expect("read"), b"new");
    }

    #[test]
    fn a_name_that_is_taken_meanwhile_is_kept_as_well() {
        let scratch = Scratch::new("meanwhile");
        let partial = Partial::begin(scratch.path(), "a", 3, false).expect("begin");
        std::fs::write(scratch.path().join("a"), b"other").expect("write");
        let failure = partial.finish().expect_err("taken");
        assert!(failure.to_string().contains("exists already"), "{failure}");
        assert_eq!(std::fs::read(scratch.path().join("a")).expect("read"), b"other");
        assert_eq!(scratch.names(), ["a"]);
    }

    #[test]
    fn a_hidden_name_works_like_none() {
        let scratch = Scratch::new("hidden");
        let hidden = scratch.path().join(".a.partial");
        let make = |overwrite| Partial {
            file: open_hidden(&hidden).expect("create"),
            hidden: hidden.clone(),
            is_hidden: true,
            target: scratch.path().join("a"),
            overwrite,
        };
        drop(make(false));
        assert!(scratch.names().is_empty());
        make(false).finish().expect("finish");
        make(false).finish().expect_err("taken");
        make(true).finish().expect("replaced");
        assert_eq!(scratch.names(), ["a"]);
    }

    #[test]
    fn more_than_the_disk_has_is_refused_at_once() {
        let scratch = Scratch::new("room");
        let failure = Partial::begin(scratch.path(), "a", u64::MAX, false).expect_err("too large");
        assert!(failure.to_string().contains("no space"), "{failure}");
        assert!(scratch.names().is_empty());
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
            checked_name(name).expect_err(name);
        }
        checked_name("ordinary name.txt").expect("plain");
    }

    #[test]
    fn names_that_disturb_a_terminal_are_refused_and_shown_escaped() {
        for name in
            ["a\nb", "a\u{1b}[2J", "a\u{202e}txt.exe", "a\u{2066}b", "\u{9b}2J", "a\u{200b}"]
        {
            let text = checked_name(name).expect_err(name).to_string();
            assert!(!text.chars().any(is_unsafe_to_show), "{text:?}");
        }
        checked_name("Größe – 日本語 🦀.txt").expect("letters of all kinds");
    }

    #[test]
    fn a_file_that_is_only_announced_takes_no_space() {
        use std::os::unix::fs::MetadataExt;
        let scratch = Scratch::new("announced");
        let partial = Partial::begin(scratch.path(), "a", 1 << 20, false).expect("begin");
        assert_eq!(partial.file.metadata().expect("metadata").blocks(), 0);
    }

    #[test]
    fn a_long_name_of_wide_letters_is_cut_between_letters() {
        assert!(shortened(&"ü".repeat(120)).len() <= 200);
    }
}
