//! The system calls that the hooks stand in front of, called directly.
//!
//! A hook cannot call the C library's function of the same name, since that is the hook itself, and looking up the next one
//! (`dlsym`) may allocate while the loader or the allocator is the caller. A system call has neither problem.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// `openat(2)`.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn openat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the system call; the caller vouches for `path`.
    (unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode) }) as c_int
}

/// `ioctl(2)`.
///
/// # Safety
/// As the request demands of `argument`.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the arguments are those of the system call; the caller vouches for `argument`.
    (unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) }) as c_int
}

/// `mmap(2)`.
///
/// # Safety
/// As `mmap(2)`: with `MAP_FIXED`, what lies at `address` is replaced.
pub(crate) unsafe fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the arguments are those of the system call; the caller vouches for `address`.
    let result =
        unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) };
    result as *mut c_void
}

/// `socket(2)`.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the arguments are those of the system call, which takes no pointers.
    (unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) }) as c_int
}

/// `fstatat(2)`.
///
/// # Safety
/// `path` is a C string and `into` may be written.
pub(crate) unsafe fn fstatat(
    directory: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the system call; the caller vouches for both pointers.
    (unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, into, flags) }) as c_int
}

/// `statx(2)`.
///
/// # Safety
/// `path` is null or a C string and `into` may be written.
pub(crate) unsafe fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: libc::c_uint,
    into: *mut libc::statx,
) -> c_int {
    // SAFETY: the arguments are those of the system call; the caller vouches for both pointers.
    (unsafe { libc::syscall(libc::SYS_statx, directory, path, flags, mask, into) }) as c_int
}

/// Device and inode of an open file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: an empty C string and a place for one `stat`.
    let result = unsafe { fstatat(fd, c"".as_ptr(), stat.as_mut_ptr(), libc::AT_EMPTY_PATH) };
    // SAFETY: the call succeeded, so it has filled the struct.
    (result == 0).then(|| unsafe { stat.assume_init() }).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Sets the calling thread's `errno` and returns -1, as a failing C function does.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library gives a valid pointer to the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}
