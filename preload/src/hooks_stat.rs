//! The hooks of the `stat` family, which make the node's descriptor look like a character device,
//! and provide the devices' part of sysfs.

use std::ffi::{CString, c_char, c_int};

use nix::errno::Errno;

use crate::paths::{self, NodeKind, Place, Target};
use crate::{device, files, node, rdma_cm, sys};

/// Turns the `stat` of a socket into that of a device node.
fn as_node(stat: &mut libc::stat, kind: NodeKind) {
    stat.st_mode = libc::S_IFCHR | 0o666;
    stat.st_rdev = device::number(kind);
    stat.st_size = 0;
}

/// The node that a descriptor refers to.
fn node_of(fd: c_int) -> Option<NodeKind> {
    let verbs = node::find(fd).map(|node| NodeKind::Verbs(node.index));
    verbs.or_else(|| rdma_cm::find(fd).map(|_| NodeKind::RdmaCm))
}

/// # Safety
/// `into` may be written.
unsafe fn fstat_any(fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: an empty C string; by this function's contract for `into`.
    let result = unsafe { sys::fstatat(fd, c"".as_ptr(), into, libc::AT_EMPTY_PATH) };
    if result != 0 {
        return result;
    }
    // SAFETY: the call succeeded, so `into` holds a whole struct.
    let stat = unsafe { &mut *into };
    if let Some(kind) = node_of(fd) {
        as_node(stat, kind);
    } else if let Some(file) = own_file(fd, stat.st_mode, stat.st_nlink == 0) {
        *stat = file;
    }
    result
}

/// The `stat` of an open file of the devices. It is the same as that of its path, because programs
/// that copy files compare the two.
fn own_file(fd: c_int, mode: libc::mode_t, is_nameless: bool) -> Option<libc::stat> {
    if !is_nameless || mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let path = paths::of_file(fd)?;
    Some(files::stat(&path, libc::S_IFREG, 4096))
}

/// # Safety
/// `path` is a C string and `into` may be written.
unsafe fn stat_any(
    directory: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller vouches for `path`.
    let target = unsafe { paths::find(directory, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) };
    let stat = |path: *const c_char, directory| {
        // SAFETY: the program's path or a C string; by this function's contract for `into`.
        unsafe { sys::fstatat(directory, path, into, flags) }
    };
    let Some(target) = target else { return stat(path, directory) };
    let answer = target.and_then(answer).map(|answer| match answer {
        Answer::Ready(ready) => {
            // SAFETY: the caller vouches for `into`.
            unsafe { into.write(ready) };
            0
        }
        Answer::At(path) => stat(path.as_ptr(), libc::AT_FDCWD),
    });
    sys::outcome(answer)
}

/// The answer for a path of the devices.
enum Answer {
    Ready(libc::stat),
    /// The `stat` of this path.
    At(CString),
}

fn answer(target: Target) -> Result<Answer, Errno> {
    Ok(match target {
        Target::Elsewhere(path) => Answer::At(path),
        Target::Own(path, Place::Directory) => Answer::At(files::listed(&path)?),
        Target::Own(path, Place::File(_)) => Answer::Ready(files::stat(&path, libc::S_IFREG, 4096)),
        Target::Own(path, Place::Link(text)) => {
            Answer::Ready(files::stat(&path, libc::S_IFLNK, text.len()))
        }
        Target::Own(path, Place::Node(kind)) => {
            let mut stat = files::stat(&path, libc::S_IFCHR, 0);
            as_node(&mut stat, kind);
            Answer::Ready(stat)
        }
    })
}

macro_rules! stat_family {
    ($($name:ident($($version:ident)?) $flags:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($version: c_int,)? path: *const c_char, into: *mut libc::stat) -> c_int {
            $(let _ = $version;)?
            // SAFETY: the C function's contract.
            unsafe { stat_any(libc::AT_FDCWD, path, into, $flags) }
        }
    )*};
}

macro_rules! fstat_family {
    ($($name:ident($($version:ident)?);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($version: c_int,)? fd: c_int, into: *mut libc::stat) -> c_int {
            $(let _ = $version;)?
            // SAFETY: the C function's contract.
            unsafe { fstat_any(fd, into) }
        }
    )*};
}

stat_family! {
    stat() 0;
    stat64() 0;
    lstat() libc::AT_SYMLINK_NOFOLLOW;
    lstat64() libc::AT_SYMLINK_NOFOLLOW;
    __xstat(version) 0;
    __xstat64(version) 0;
    __lxstat(version) libc::AT_SYMLINK_NOFOLLOW;
    __lxstat64(version) libc::AT_SYMLINK_NOFOLLOW;
}

fstat_family! {
    fstat();
    fstat64();
    __fxstat(version);
    __fxstat64(version);
}

/// `fstatat(2)` and its older names. Without a path it is `fstat`.
macro_rules! fstatat_family {
    ($($name:ident($($version:ident)?);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($version: c_int,)? directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int,
        ) -> c_int {
            $(let _ = $version;)?
            // SAFETY: the C function's contract.
            unsafe {
                if is_empty(path, flags) { fstat_any(directory, into) } else { stat_any(directory, path, into, flags) }
            }
        }
    )*};
}

fstatat_family! {
    fstatat();
    fstatat64();
    __fxstatat(version);
    __fxstatat64(version);
}

/// Whether a call with these arguments is about the descriptor itself.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn is_empty(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: a C string has at least its terminating zero.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// Turns the `statx` of a socket into that of a device node.
fn as_node_x(statx: &mut libc::statx, kind: NodeKind) {
    let number = device::number(kind);
    statx.stx_mask |= libc::STATX_TYPE | libc::STATX_MODE;
    statx.stx_mode = (libc::S_IFCHR | 0o666) as u16;
    statx.stx_rdev_major = libc::major(number);
    statx.stx_rdev_minor = libc::minor(number);
    statx.stx_size = 0;
}

/// A `stat` as a `statx`.
fn as_statx(stat: &libc::stat) -> libc::statx {
    // SAFETY: plain numbers, of which 0 is valid.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    statx.stx_mask = libc::STATX_TYPE
        | libc::STATX_MODE
        | libc::STATX_NLINK
        | libc::STATX_UID
        | libc::STATX_GID
        | libc::STATX_SIZE
        | libc::STATX_INO;
    statx.stx_mode = stat.st_mode as u16;
    statx.stx_nlink = stat.st_nlink as u32;
    statx.stx_size = stat.st_size as u64;
    statx.stx_blksize = stat.st_blksize as u32;
    statx.stx_ino = stat.st_ino;
    statx.stx_rdev_major = libc::major(stat.st_rdev);
    statx.stx_rdev_minor = libc::minor(stat.st_rdev);
    statx
}

/// `statx(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: libc::c_uint,
    into: *mut libc::statx,
) -> c_int {
    let call = |directory, path: *const c_char| {
        // SAFETY: the program's path or a C string; the C function's contract for `into`.
        unsafe { sys::statx(directory, path, flags, mask, into) }
    };
    // SAFETY: the C function's contract makes `path` null or a C string.
    let target = unsafe { paths::find(directory, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) };
    if let Some(target) = target {
        return sys::outcome(target.and_then(answer).map(|answer| match answer {
            Answer::Ready(ready) => {
                // SAFETY: the C function's contract.
                unsafe { into.write(as_statx(&ready)) };
                0
            }
            Answer::At(path) => call(libc::AT_FDCWD, path.as_ptr()),
        }));
    }
    let result = call(directory, path);
    // SAFETY: the C function's contract.
    if result != 0 || !unsafe { is_empty(path, flags) } {
        return result;
    }
    // SAFETY: the call succeeded, so `into` holds a whole struct.
    let statx = unsafe { &mut *into };
    if let Some(kind) = node_of(directory) {
        as_node_x(statx, kind);
    } else if let Some(file) = own_file(directory, statx.stx_mode.into(), statx.stx_nlink == 0) {
        *statx = as_statx(&file);
    }
    result
}
