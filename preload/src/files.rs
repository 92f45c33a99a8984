//! The files and directories that a program gets when it opens those of the devices.
//!
//! A file is made in memory when it is opened. The C library has to list a directory, so
//! directories are on disk, below the run's own directory, with empty files, links and directories
//! of the right names. A directory is made when a process first opens it. The names do not depend
//! on the process, so all processes of a run share it.

use std::ffi::{CStr, CString, c_int};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use uverbs_soft::chardev::{Found, Sysfs};

use crate::{device, paths};

/// A descriptor that reads `contents`. Its name in `/proc` is the file's, see [`paths::of_file`].
pub(crate) fn open(path: &str, contents: &str, flags: c_int) -> Result<RawFd, Errno> {
    if flags & libc::O_DIRECTORY != 0 {
        return Err(Errno::ENOTDIR);
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(Errno::EACCES);
    }
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    let name = CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a C string.
    let fd = Errno::result(unsafe { libc::memfd_create(name.as_ptr(), close_on_exec) })?;
    // SAFETY: just made, and of no other owner.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let filled = file.write_all(contents.as_bytes()).and_then(|()| file.rewind());
    filled.map_err(|error| as_errno(&error))?;
    Ok(file.into_raw_fd())
}

fn as_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The laid-out directory that replaces `directory`.
pub(crate) fn listed(directory: &str) -> Result<CString, Errno> {
    let devices = device::devices()?;
    let root = Path::new(paths::root().ok_or(Errno::ENOENT)?);
    // `/` is `!` in the name, as the driver core writes it in names of its own.
    let place = root.join(directory.replace('/', "!"));
    device::internally(|| match place.is_dir() {
        true => Ok(()),
        false => lay_out(&devices.tree, directory, root, &place),
    })
    .map_err(|error| as_errno(&error))?;
    paths::enter();
    CString::new(place.into_os_string().into_encoded_bytes()).map_err(|_| Errno::EINVAL)
}

fn lay_out(tree: &Sysfs, directory: &str, root: &Path, place: &Path) -> io::Result<()> {
    let fresh = fresh(root)?;
    for name in tree.list(directory) {
        let at = fresh.join(name);
        match tree.find(&format!("{directory}/{name}")) {
            Some(Found::Link(text)) => symlink(text, at)?,
            Some(Found::Directory) => fs::create_dir(at)?,
            _ => drop(File::create(at)?),
        }
    }
    // The rename makes all entries appear at once. Another process may have been faster.
    match fs::rename(&fresh, place) {
        Err(_) if place.is_dir() => fs::remove_dir_all(fresh),
        result => result,
    }
}

/// An empty directory. A process that outlives its run finds the root gone, and makes it anew.
fn fresh(root: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let place = root.join(format!("fresh-{}-{count}", std::process::id()));
    let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    match make(&place) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(root).and_then(|()| make(&place)),
        result => result,
    }?;
    Ok(place)
}

/// The `stat(2)` of a file or link of the devices. sysfs gives every file the size of a page.
pub(crate) fn stat(path: &str, kind: libc::mode_t, size: usize) -> libc::stat {
    // SAFETY: plain numbers, of which 0 is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let permissions = if kind == libc::S_IFLNK { 0o777 } else { 0o444 };
    stat.st_mode = kind | permissions;
    stat.st_nlink = 1;
    stat.st_size = size as libc::off_t;
    stat.st_blksize = 4096;
    stat.st_ino = inode(path);
    stat
}

/// A number that differs between the tree's files (FNV-1a).
fn inode(path: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Whether a mode of `fopen(3)` only reads, and the flags of `open(2)` that it means.
pub(crate) fn read_flags(mode: &CStr) -> Option<c_int> {
    let mode = mode.to_bytes();
    let close_on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    (mode.first() == Some(&b'r') && !mode.contains(&b'+')).then_some(close_on_exec)
}
