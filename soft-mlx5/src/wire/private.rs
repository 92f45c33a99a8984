//! Names of stations that only this user's processes can take: files in a directory of the user's
//! own.
//!
//! Stations are taken by binding UDP port 4791 of their address, and their names for shared memory
//! are in the abstract namespace: the first process that asks gets them, whichever user's it is. A
//! user who takes them all, or port 4791 of every address at once, would keep all others from
//! having devices. A device that finds everything taken uses a name in this directory instead.
//! Devices of the same user reach it through shared memory; other users' devices do not.
//!
//! A name is a Unix socket, held by a lock on a file beside it, so that what a killed process left
//! is found out. Both have the number of the network namespace in their names: devices of different
//! namespaces do not see each other here either.
//!
//! The directory is in one of the user's own. A user without one has it in `/tmp`, where another
//! user can take its name first: then it has a number in its name that no other user can foresee.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::UnixAddr;
use nix::unistd::{AccessFlags, access, geteuid};

use super::Station;
use super::ring::bind_name;

/// A name that is held until this is dropped.
#[derive(Debug)]
pub(super) struct PrivateName {
    path: PathBuf,
    _lock: Flock<File>,
}

impl PrivateName {
    /// Takes a station's name, and gives the socket to listen on. `None` if another device of this
    /// user has it.
    ///
    /// # Errors
    /// What making directory, lock and socket says.
    pub(super) fn claim(station: Station) -> io::Result<Option<(Self, OwnedFd)>> {
        let path = own_path(&file_name(station)?)?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o600);
        let lock = lock.open(path.with_extension("lock"))?;
        let lock = match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno.into()),
        };
        // Left by a process that was killed: the lock is ours.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = bind_name(&UnixAddr::new(&path)?)?;
        Ok(Some((Self { path, _lock: lock }, socket)))
    }
}

impl Drop for PrivateName {
    fn drop(&mut self) {
        // The lock is held still.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where a device of this user that has a station under a private name can be connected to.
pub(super) fn addresses(station: Station) -> impl Iterator<Item = UnixAddr> {
    let name = file_name(station).ok();
    directories().filter_map(move |directory| UnixAddr::new(&directory.join(name.as_ref()?)).ok())
}

fn file_name(station: Station) -> io::Result<String> {
    // `with_extension` takes what follows the last dot for an extension.
    Ok(format!("net-{:x}-{station}.ring", fs::metadata("/proc/self/ns/net")?.ino()))
}

/// The file in the first directory that is this user's own, or can be made, and whose path is short
/// enough for a socket.
fn own_path(name: &str) -> io::Result<PathBuf> {
    let is_usable = |directory: &PathBuf| {
        UnixAddr::new(&directory.join(name)).is_ok() && {
            // One that is there is looked at all the same.
            let _ = DirBuilder::new().mode(0o700).create(directory);
            is_own(directory)
        }
    };
    let found = private_directories().find(is_usable);
    let fits = |base: &PathBuf| UnixAddr::new(&base.join(numbered_name(0)).join(name)).is_ok();
    let found =
        found.or_else(|| shared_bases().filter(fits).find_map(|base| own_directory_in(&base)));
    found.map(|directory| directory.join(name)).ok_or_else(|| {
        let text = "there is no directory of this user's own for a device's name (set \
                    XDG_RUNTIME_DIR to one)";
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    })
}

/// Directories of this user's own in which there are names, in order of preference.
fn directories() -> impl Iterator<Item = PathBuf> {
    let private = private_directories().filter(|directory| is_own(directory));
    // No process of this user has a name in a shared directory if there is a better one.
    let shared = shared_bases().filter(|_| !private_directories().any(|it| can_be_made(&it)));
    private.chain(shared.flat_map(|base| own_directories_in(&base)))
}

/// Directories in order of preference whose parents are this user's.
fn private_directories() -> impl Iterator<Item = PathBuf> {
    let runtime = variable("XDG_RUNTIME_DIR").map(|base| base.join("uverbs-soft"));
    let system = PathBuf::from(format!("/run/user/{}/uverbs-soft", geteuid()));
    let home = variable("HOME").map(|home| home.join(".uverbs-soft"));
    [runtime, Some(system), home].into_iter().flatten()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether the directory is there, or this user can make it.
fn can_be_made(directory: &Path) -> bool {
    let is_writable = |base| access(base, AccessFlags::W_OK).is_ok();
    is_own(directory) || directory.parent().is_some_and(is_writable)
}

/// Directories of all users in which one user cannot remove or rename what is another's.
fn shared_bases() -> impl Iterator<Item = PathBuf> {
    let named = std::env::temp_dir();
    let common = ["/tmp", "/dev/shm"].map(PathBuf::from).into_iter();
    let common = common.filter({
        let named = named.clone();
        move |base| *base != named
    });
    std::iter::once(named).chain(common).filter(|base| keeps_entries(base))
}

fn keeps_entries(base: &Path) -> bool {
    const STICKY: u32 = 0o1000;
    const OTHERS_WRITE: u32 = 0o002;
    fs::metadata(base).is_ok_and(|it| it.mode() & (STICKY | OTHERS_WRITE) != OTHERS_WRITE)
}

/// The directory for this user's names in a directory of all users, made if there is none.
///
/// Any user can take a name there first, so a name that is taken has a number appended that no
/// other user can know before. All processes of this user choose the same of several.
fn own_directory_in(base: &Path) -> Option<PathBuf> {
    let existing = || own_directories_in(base).into_iter().next();
    existing().or_else(|| {
        let make = |path: PathBuf| DirBuilder::new().mode(0o700).create(path);
        let number = RandomState::new().hash_one(base);
        make(base.join(plain_name())).or_else(|_| make(base.join(numbered_name(number)))).ok()?;
        existing()
    })
}

fn plain_name() -> String {
    format!("uverbs-soft-{}", geteuid())
}

fn numbered_name(number: u64) -> String {
    format!("{}-{number:016x}", plain_name())
}

/// The directories for this user's names in a directory of all users, by name.
fn own_directories_in(base: &Path) -> Vec<PathBuf> {
    let plain = plain_name();
    let is_named = |name: &str| {
        name.strip_prefix(&plain).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_named));
    let mut own: Vec<_> = named.map(|entry| entry.path()).filter(|path| is_own(path)).collect();
    own.sort();
    own
}

/// Whether it is a directory of this user's into which no other user can reach.
fn is_own(directory: &Path) -> bool {
    directory.symlink_metadata().is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

#[cfg(test)]
mod tests;
