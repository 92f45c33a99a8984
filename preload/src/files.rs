//! The real files and directories that a program gets for those of the devices.
//!
//! A file is created in memory when it is opened. Directories must be on disk, because the C
//! library lists them: they are below the run's own directory, with empty files, links and
//! directories of the right names. A directory is created when a process first opens it, and shared
//! by all processes of a run, since the names do not depend on the process.

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

/// A descriptor that reads `contents`. Its name in `/proc` is the file's path, see
/// [`paths::of_file`].
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
    // SAFETY: just created, without another owner.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let filled = file.write_all(contents.as_bytes()).and_then(|()| file.rewind());
    filled.map_err(|error| as_errno(&error))?;
    Ok(file.into_raw_fd())
}

fn as_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The directory on disk that replaces `directory`.
pub(crate) fn listed(directory: &str) -> Result<CString, Errno> {
    let devices = device::devices()?;
    let root = Path::new(paths::root().ok_or(Errno::ENOENT)?);
    // `/` is replaced by `!`, as in names of the kernel's driver core.
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
    // After the rename all entries are visible at once. Another process may have been first.
    match fs::rename(&fresh, place) {
        Err(_) if place.is_dir() => fs::remove_dir_all(fresh),
        result => result,
    }
}

/// An empty directory. Creates the root again if it was removed because the run has ended.
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

/// The `stat(2)` of a file or link of the devices. In sysfs every file has the size of a page.
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

/// An inode number for a file of the tree: a hash of the path (FNV-1a).
fn inode(path: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The flags of `open(2)` for a mode of `fopen(3)` that only reads; `None` for other modes.
pub(crate) fn read_flags(mode: &CStr) -> Option<c_int> {
    let mode = mode.to_bytes();
    let close_on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    (mode.first() == Some(&b'r') && !mode.contains(&b'+')).then_some(close_on_exec)
}
