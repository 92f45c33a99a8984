//! The directory in which the preload library creates the directories that the program lists.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use uverbs::soft::settings::{RECORDED, TRACED};

use crate::failure::{Context, Failure, Outcome};

const PREFIX: &str = "uverbs-run-";

/// Files that the first recording device and the first tracing process remove: whichever removes
/// one replaces the output of an older run. A process that outlives the command recreates the
/// directory without them.
const TOKENS: [&str; 2] = [RECORDED, TRACED];

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    /// Marks the directory as in use. The kernel releases the lock if the command is killed.
    _lock: Flock<File>,
}

impl Scratch {
    /// Creates the directory in `$TMPDIR`, or in `/dev/shm` if that is not writable, as in a
    /// container with a read-only root.
    pub(super) fn new() -> Outcome<Self> {
        let usual = std::env::temp_dir();
        Self::new_in(&usual).or_else(|failure| {
            Self::new_in(Path::new("/dev/shm")).map_err(|_| {
                let cure = "set TMPDIR to a directory that can be written";
                Failure::failed(format!("{failure}; {cure}"))
            })
        })
    }

    fn new_in(directory: &Path) -> Outcome<Self> {
        sweep(directory);
        for attempt in 0..u16::MAX {
            let name = format!("{PREFIX}{}-{attempt}", std::process::id());
            let path = directory.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.context(|| format!("cannot make a directory in {}", directory.display()))?;
                    let lock = lock(&path).context(|| format!("cannot lock {}", path.display()))?;
                    let scratch = Self { path, _lock: lock };
                    return scratch
                        .with_tokens()
                        .context(|| format!("cannot make a file in {}", directory.display()));
                }
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists))
            .context(|| format!("no free name in {}", directory.display()))
    }

    fn with_tokens(self) -> std::io::Result<Self> {
        TOKENS.iter().try_for_each(|name| File::create(self.path.join(name)).map(drop))?;
        Ok(self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // This may fail, because a process of the program may still write to the directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn lock(path: &Path) -> std::io::Result<Flock<File>> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| errno.into())
}

/// Removes the directories of killed commands. It examines only files with such names, so that many
/// other files in `/tmp` do not slow down the start.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let of_the_gone = |entry: &DirEntry| owner(&entry.file_name()).is_some_and(is_gone);
    for path in entries.flatten().filter(of_the_gone).map(|entry| entry.path()) {
        if is_abandoned(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The process id of the command in a directory's name.
fn owner(name: &OsStr) -> Option<Pid> {
    let owner = name.to_str()?.strip_prefix(PREFIX)?.split('-').next()?;
    owner.parse().ok().map(Pid::from_raw)
}

fn is_gone(process: Pid) -> bool {
    kill(process, None) == Err(Errno::ESRCH)
}

/// Whether a directory was created by this user's command and is no longer in use. A process of the
/// program that outlives the command recreates what it needs.
fn is_abandoned(path: &Path) -> bool {
    let is_own = fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
    // The lock is tested last: in another PID namespace the command may still be running.
    is_own && lock(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_all_that_is_in_it() {
        let (one, other) = (Scratch::new().expect("one"), Scratch::new().expect("other"));
        assert_ne!(one.path(), other.path());
        let file = one.path().join("file");
        fs::write(&file, "text").expect("a file");
        drop(one);
        // The name itself is free again, and a test beside this one may have it by now.
        assert!(!file.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let failure = Scratch::new_in(Path::new("/proc")).expect_err("procfs has no directories");
        assert!(failure.to_string().starts_with("cannot make a directory in /proc: "), "{failure}");
    }

    #[test]
    fn only_names_of_this_command_are_looked_at() {
        let owner = |name: &str| owner(OsStr::new(name)).map(Pid::as_raw);
        assert_eq!(owner("uverbs-run-17-3"), Some(17));
        for other in ["uverbs-run-x", "uverbs-run-", "uverbs-17-3", "a", ""] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_killed_command_left_goes_and_what_is_in_use_stays() {
        let all = Scratch::new().expect("a directory");
        // No process has the highest number there can be, and 1 never ends.
        let [left, used, alive, strange] =
            ["uverbs-run-4194304-0", "uverbs-run-4194304-1", "uverbs-run-1-0", "uverbs-run-x"]
                .map(|name| all.path().join(name));
        for path in [&left, &used, &alive, &strange] {
            fs::create_dir(path).expect("a directory");
        }
        fs::create_dir(left.join("sys!class!infiniband")).expect("a directory");
        let _lock = lock(&used).expect("locked");
        sweep(all.path());
        let there = [left, used, alive, strange].map(|path| path.exists());
        assert_eq!(there, [false, true, true, true]);
    }
}
