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

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::UnixAddr;
use nix::unistd::geteuid;

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
    let directories = directories().filter(|directory| is_own(directory));
    directories.filter_map(move |directory| UnixAddr::new(&directory.join(name.as_ref()?)).ok())
}

fn file_name(station: Station) -> io::Result<String> {
    // `with_extension` takes what follows the last dot for an extension.
    Ok(format!("net-{:x}-{station}.ring", fs::metadata("/proc/self/ns/net")?.ino()))
}

/// The file in the first directory that is this user's own, or can be made, and whose path is short
/// enough for a socket.
fn own_path(name: &str) -> io::Result<PathBuf> {
    let mut usable = directories().filter(|directory| {
        // One that is there is looked at all the same.
        let _ = DirBuilder::new().mode(0o700).create(directory);
        is_own(directory)
    });
    let fitting = usable.find(|directory| UnixAddr::new(&directory.join(name)).is_ok());
    fitting.map(|directory| directory.join(name)).ok_or_else(|| {
        let text = "there is no directory of this user's own for a device's name";
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    })
}

/// Directories in order of preference. The last one's parent is everybody's: another user may have
/// made it, who then is found out by [`is_own`].
fn directories() -> impl Iterator<Item = PathBuf> {
    let user = geteuid();
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = variable("XDG_RUNTIME_DIR").map(|base| base.join("uverbs-soft"));
    let system = PathBuf::from(format!("/run/user/{user}/uverbs-soft"));
    let home = variable("HOME").map(|home| home.join(".uverbs-soft"));
    let shared = std::env::temp_dir().join(format!("uverbs-soft-{user}"));
    [runtime, Some(system), home, Some(shared)].into_iter().flatten()
}

/// Whether it is a directory of this user's into which no other user can reach.
fn is_own(directory: &Path) -> bool {
    directory.symlink_metadata().is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_once_and_freed_by_the_end_of_its_holder() {
        let station = Station::candidate(std::process::id() ^ 0x5a5a);
        let (held, socket) = PrivateName::claim(station).unwrap().expect("free");
        assert!(PrivateName::claim(station).unwrap().is_none());
        assert!(addresses(station).count() > 0);
        drop((held, socket));
        let (held, _socket) = PrivateName::claim(station).unwrap().expect("free again");
        // As if the process had been killed: the socket's file stays.
        fs::write(held.path.with_extension("left"), "").unwrap();
        let (path, left) = (held.path.clone(), held.path.with_extension("left"));
        drop(held);
        fs::rename(left, path).unwrap();
        drop(PrivateName::claim(station).unwrap().expect("what was left is removed"));
    }

    #[test]
    fn directories_into_which_others_reach_are_not_used() {
        assert!(!is_own(Path::new("/tmp")));
        assert!(!is_own(Path::new("/no/such/directory")));
        let link = std::env::temp_dir().join(format!("uverbs-private-link-{}", std::process::id()));
        let own = own_path("name").unwrap();
        std::os::unix::fs::symlink(own.parent().unwrap(), &link).unwrap();
        let is_link_used = is_own(&link);
        fs::remove_file(&link).unwrap();
        assert!(!is_link_used);
    }
}
