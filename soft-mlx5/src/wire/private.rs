//! Names of stations that only this user's processes can take: files in a directory of the user.
//!
//! A device takes a station by binding UDP port 4791 of its address. Its name for shared memory is
//! in the abstract namespace. Both belong to the first process that takes them, of any user. So a
//! user who takes all of them, or port 4791 of all addresses at once, could keep others from
//! creating devices. If all stations are taken, a device uses a name in this directory instead.
//! Devices of the same user reach it through shared memory; other users' devices do not.
//!
//! A name is a Unix socket with a lock on a file beside it. The lock shows whether a socket was
//! left by a killed process. Both file names contain the number of the network namespace, so that
//! devices of different namespaces do not see each other here either.
//!
//! The directory is inside one of the user's directories. A user without one has it in `/tmp`,
//! where another user may take its name first. Then a number that no other user can predict is
//! appended.

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

/// A station's private name, held until this is dropped.
#[derive(Debug)]
pub(super) struct PrivateName {
    path: PathBuf,
    _lock: Flock<File>,
}

impl PrivateName {
    /// Takes a station's name, and returns the socket to listen on. `None` if another device of
    /// this user has it.
    ///
    /// # Errors
    ///
    /// Errors of creating directory, lock and socket.
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
        // Left by a killed process, since this process got the lock.
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
        // The lock is still held.
        let _ = fs::remove_file(&self.path);
    }
}

/// The addresses at which the device that has the station under a private name may listen, if it is
/// one of this user's.
pub(super) fn addresses(station: Station) -> impl Iterator<Item = UnixAddr> {
    let name = file_name(station).ok();
    directories().filter_map(move |directory| UnixAddr::new(&directory.join(name.as_ref()?)).ok())
}

fn file_name(station: Station) -> io::Result<String> {
    // `with_extension` treats the text after the last dot as the extension.
    Ok(format!("net-{:x}-{station}.ring", fs::metadata("/proc/self/ns/net")?.ino()))
}

/// The file's path in the first directory that belongs to this user or can be created, if the path
/// is short enough for a socket.
fn own_path(name: &str) -> io::Result<PathBuf> {
    let is_usable = |directory: &PathBuf| {
        UnixAddr::new(&directory.join(name)).is_ok() && {
            // An existing directory is checked below.
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

/// Directories of this user that may contain names, in order of preference.
fn directories() -> impl Iterator<Item = PathBuf> {
    let private = private_directories().filter(|directory| is_own(directory));
    // If a better directory is possible, no process of this user has a name in a shared directory.
    let shared = shared_bases().filter(|_| !private_directories().any(|dir| can_be_made(&dir)));
    private.chain(shared.flat_map(|base| own_directories_in(&base)))
}

/// Directories in order of preference whose parents belong to this user.
fn private_directories() -> impl Iterator<Item = PathBuf> {
    let runtime = variable("XDG_RUNTIME_DIR").map(|base| base.join("uverbs-soft"));
    let system = PathBuf::from(format!("/run/user/{}/uverbs-soft", geteuid()));
    let home = variable("HOME").map(|home| home.join(".uverbs-soft"));
    [runtime, Some(system), home].into_iter().flatten()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether the directory exists or this user can create it.
fn can_be_made(directory: &Path) -> bool {
    let is_writable = |base| access(base, AccessFlags::W_OK).is_ok();
    is_own(directory) || directory.parent().is_some_and(is_writable)
}

/// Directories of all users in which a user cannot remove or rename another user's files.
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
    fs::metadata(base).is_ok_and(|dir| dir.mode() & (STICKY | OTHERS_WRITE) != OTHERS_WRITE)
}

/// The directory for this user's names in a directory of all users; creates it if there is none.
///
/// Any user can take a name there first. If a name is taken, a number is appended that no other
/// user can predict. If there are several, all processes of this user choose the same one.
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

/// Whether it is a directory of this user that no other user can enter.
fn is_own(directory: &Path) -> bool {
    directory.symlink_metadata().is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

#[cfg(test)]
mod tests;
