//! The hooks that say what a file is: the node's descriptor must look like a character device, and the device's part of sysfs
//! lies elsewhere.

use std::ffi::{c_char, c_int, c_void};

use crate::device;
use crate::node;
use crate::paths::{node_index, rewrite};
use crate::sys;

/// Turns the `stat` of a socket into that of device node number `index`.
fn as_node(stat: &mut libc::stat, index: usize) {
    stat.st_mode = libc::S_IFCHR | 0o666;
    stat.st_rdev = device::number(index);
    stat.st_size = 0;
}

/// # Safety
/// `into` may be written.
unsafe fn fstat_any(fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: an empty C string; the caller vouches for `into`.
    let result = unsafe { sys::fstatat(fd, c"".as_ptr(), into, libc::AT_EMPTY_PATH) };
    if let (0, Some(node)) = (result, node::find(fd)) {
        // SAFETY: the call succeeded, so `into` holds a whole struct.
        as_node(unsafe { &mut *into }, node.index);
    }
    result
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
    if let Some(index) = unsafe { node_index(path) }.filter(|index| device::exists(*index)) {
        // SAFETY: an all-zero `stat` is a valid one, and the caller vouches for `into`.
        unsafe { into.write(std::mem::zeroed()) };
        // SAFETY: just written.
        as_node(unsafe { &mut *into }, index);
        return 0;
    }
    // SAFETY: the caller vouches for `path`, which outlives the call.
    let path = unsafe { rewrite(path) };
    // SAFETY: either the caller's path or a terminated buffer of ours; the caller vouches for `into`.
    unsafe { sys::fstatat(directory, path.as_ptr(), into, flags) }
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

/// `fstatat(2)` and its older names: with a path of ours the directory does not count, without a path it is `fstat`.
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

/// Whether a call with these arguments is about the descriptor and not about a path.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn is_empty(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: a C string has at least its terminating zero.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// Turns the `statx` of a socket, or of nothing, into that of device node number `index`.
fn as_node_x(statx: &mut libc::statx, index: usize) {
    let number = device::number(index);
    statx.stx_mask |= libc::STATX_TYPE | libc::STATX_MODE;
    statx.stx_mode = (libc::S_IFCHR | 0o666) as u16;
    statx.stx_rdev_major = libc::major(number);
    statx.stx_rdev_minor = libc::minor(number);
    statx.stx_size = 0;
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
    // SAFETY: the C function's contract makes `path` null or a C string.
    let node = unsafe { node_index(path) }.filter(|index| device::exists(*index));
    if let Some(index) = node {
        // SAFETY: an all-zero `statx` is a valid one, and the caller vouches for `into`.
        unsafe { into.write(std::mem::zeroed()) };
        // SAFETY: just written.
        as_node_x(unsafe { &mut *into }, index);
        return 0;
    }
    // SAFETY: the caller vouches for `path`, which outlives the call.
    let other = unsafe { rewrite(path) };
    // SAFETY: either the caller's path or a terminated buffer of ours; the caller vouches for `into`.
    let result = unsafe { sys::statx(directory, other.as_ptr(), flags, mask, into) };
    // SAFETY: as above.
    let open = unsafe { is_empty(path, flags) }.then(|| node::find(directory)).flatten();
    if let (0, Some(node)) = (result, open) {
        // SAFETY: the call succeeded, so `into` holds a whole struct.
        as_node_x(unsafe { &mut *into }, node.index);
    }
    result
}

/// Calls the C library's own function of the same name with its path rewritten: the first argument, or the one after a
/// directory's descriptor.
///
/// These are called by programs at run time, never by the loader, so looking the next one up is safe.
macro_rules! rewritten {
    ($($name:ident $([$directory:ident])? ($($argument:ident: $kind:ty),*) -> $result:ty, $failure:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($directory: c_int,)? path: *const c_char $(, $argument: $kind)*
        ) -> $result {
            type Function =
                unsafe extern "C" fn($(rewritten!(@descriptor $directory),)? *const c_char $(, $kind)*) -> $result;
            // SAFETY: a constant C string.
            let next = unsafe { libc::dlsym(libc::RTLD_NEXT, concat!(stringify!($name), "\0").as_ptr().cast()) };
            if next.is_null() {
                sys::fail(libc::ENOSYS);
                return $failure;
            }
            // SAFETY: the symbol of that name has the C function's type.
            let next: Function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: `path` is a C string by the C function's contract, and outlives the call.
            let path = unsafe { rewrite(path) };
            // SAFETY: the C function's contract, with a path that is as valid as the program's.
            unsafe { next($($directory,)? path.as_ptr() $(, $argument)*) }
        }
    )*};
    (@descriptor $directory:ident) => { c_int };
}

rewritten! {
    access(mode: c_int) -> c_int, -1;
    euidaccess(mode: c_int) -> c_int, -1;
    eaccess(mode: c_int) -> c_int, -1;
    faccessat[directory](mode: c_int, flags: c_int) -> c_int, -1;
    readlinkat[directory](into: *mut c_char, length: usize) -> isize, -1;
    fopen(mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut();
    fopen64(mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut();
    opendir() -> *mut libc::DIR, std::ptr::null_mut();
    readlink(into: *mut c_char, length: usize) -> isize, -1;
    getxattr(name: *const c_char, into: *mut c_void, length: usize) -> isize, -1;
    lgetxattr(name: *const c_char, into: *mut c_void, length: usize) -> isize, -1;
    listxattr(into: *mut c_char, length: usize) -> isize, -1;
    llistxattr(into: *mut c_char, length: usize) -> isize, -1;
    realpath(into: *mut c_char) -> *mut c_char, std::ptr::null_mut();
    scandir(list: *mut *mut *mut libc::dirent, filter: *const c_void, compare: *const c_void) -> c_int, -1;
    scandir64(list: *mut *mut *mut libc::dirent64, filter: *const c_void, compare: *const c_void) -> c_int, -1;
}
