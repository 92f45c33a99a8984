//! System calls made directly, for the hooks that replace the C library's functions.
//!
//! A hook cannot call the C library's function of the same name, since that is the hook itself.
//! Looking up the next one (`dlsym`) may allocate, while the caller may be the loader or the
//! allocator. `syscall` is also hooked, so the instruction is written here.

use std::arch::asm;
use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::time::Duration;

/// The system call's own result: a negated errno if it failed.
///
/// # Safety
/// As the system call demands of its arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn kernel(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the kernel's calling convention: it changes rax, rcx and r11, and only memory that
    // the arguments allow it to change.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The system call's own result: a negated errno if it failed.
///
/// # Safety
/// As the system call demands of its arguments.
#[cfg(target_arch = "aarch64")]
unsafe fn kernel(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the kernel's calling convention: it changes x0, and only memory that the arguments
    // allow it to change.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second, in("x2") third, in("x3") fourth, in("x4") fifth, in("x5") sixth,
            options(nostack),
        );
    }
    result
}

/// `syscall(2)`: -1 and `errno` if the call failed.
///
/// # Safety
/// As the system call demands of its arguments.
pub(crate) unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { kernel(number, arguments) };
    // Linux reserves the last page of addresses for error numbers (`MAX_ERRNO`).
    if (-4095..0).contains(&result) { fail(-result as c_int).into() } else { result }
}

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
    let arguments = [directory.into(), path as c_long, flags.into(), mode.into(), 0, 0];
    // SAFETY: the arguments are those of the system call; by this function's contract for `path`.
    (unsafe { call(libc::SYS_openat, arguments) }) as c_int
}

/// `ioctl(2)`.
///
/// # Safety
/// As the request demands of `argument`.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let arguments = [fd.into(), request as c_long, argument as c_long, 0, 0, 0];
    // SAFETY: the arguments are those of the system call; by this function's contract for
    // `argument`.
    (unsafe { call(libc::SYS_ioctl, arguments) }) as c_int
}

/// `mmap(2)`.
///
/// # Safety
/// As `mmap(2)`: with `MAP_FIXED`, what is mapped at `address` is replaced.
pub(crate) unsafe fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let place = [address as c_long, length as c_long];
    let arguments = [place[0], place[1], protection.into(), flags.into(), fd.into(), offset];
    // SAFETY: the arguments are those of the system call; by this function's contract for
    // `address`.
    (unsafe { call(libc::SYS_mmap, arguments) }) as *mut c_void
}

/// `socket(2)`.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let arguments = [domain.into(), kind.into(), protocol.into(), 0, 0, 0];
    // SAFETY: the arguments are those of the system call, which takes no pointers.
    (unsafe { call(libc::SYS_socket, arguments) }) as c_int
}

/// `close(2)`.
///
/// # Safety
/// The descriptor is not used any more.
pub(crate) unsafe fn close(fd: c_int) {
    // SAFETY: the arguments are those of the system call; the caller gives the descriptor up.
    unsafe { call(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]) };
}

/// An entry for [`poll`].
pub(crate) fn waiting_for(fd: c_int, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// `poll(2)` on descriptors that other threads may close: a closed one is reported (POLLNVAL), and
/// if another file has the same number, the call waits on that. Unlike the C library's function it
/// is not a cancellation point, so hooks of functions that are none can use it. Returns the number
/// of entries with events, 0 after `limit`, or -1 with `errno`.
pub(crate) fn poll(entries: &mut [libc::pollfd], limit: Duration) -> c_long {
    let mut time = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let at = [entries.as_mut_ptr() as c_long, entries.len() as c_long];
    let arguments = [at[0], at[1], &raw mut time as c_long, 0, 0, 0];
    // SAFETY: the arguments are those of the system call. It writes at most the given number of
    // entries, and the remaining time into `time` (ppoll(2)).
    unsafe { call(libc::SYS_ppoll, arguments) }
}

/// `send(2)` without waiting and without a signal. Returns whether all bytes were sent.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let arguments =
        [fd.into(), bytes.as_ptr() as c_long, bytes.len() as c_long, flags.into(), 0, 0];
    // SAFETY: the arguments are those of the system call, which reads `bytes`.
    usize::try_from(unsafe { call(libc::SYS_sendto, arguments) }) == Ok(bytes.len())
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
    let arguments = [directory.into(), path as c_long, into as c_long, flags.into(), 0, 0];
    // SAFETY: the arguments are those of the system call; the caller vouches for both pointers.
    (unsafe { call(libc::SYS_newfstatat, arguments) }) as c_int
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
    let arguments =
        [directory.into(), path as c_long, flags.into(), mask.into(), into as c_long, 0];
    // SAFETY: the arguments are those of the system call; the caller vouches for both pointers.
    (unsafe { call(libc::SYS_statx, arguments) }) as c_int
}

/// The target of a symbolic link, such as one below `/proc/self`. `None` if it does not fit.
pub(crate) fn read_link<'a>(path: &std::ffi::CStr, into: &'a mut [u8]) -> Option<&'a [u8]> {
    let at: c_long = libc::AT_FDCWD.into();
    let space = [into.as_mut_ptr() as c_long, into.len() as c_long];
    let arguments = [at, path.as_ptr() as c_long, space[0], space[1], 0, 0];
    // SAFETY: a C string, and a buffer with its length.
    let length = unsafe { call(libc::SYS_readlinkat, arguments) };
    usize::try_from(length).ok().filter(|length| *length < into.len()).map(|length| &into[..length])
}

/// Device and inode of an open file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: an empty C string and space for one `stat`.
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

/// The result of a C function that returns a number: -1 and `errno` if it failed.
pub(crate) fn outcome(result: Result<c_int, nix::errno::Errno>) -> c_int {
    result.unwrap_or_else(|errno| fail(errno as c_int))
}

/// The C library's function that the hook of the same name replaces; `None` if it has none. A
/// function that was found is cached.
///
/// Only for hooks that the loader and the allocator do not call, since the lookup may allocate.
macro_rules! next {
    ($name:ident as $function:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let mut found = NEXT.load(std::sync::atomic::Ordering::Relaxed);
        if found.is_null() {
            let name = concat!(stringify!($name), "\0").as_ptr().cast();
            // SAFETY: a constant C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
            NEXT.store(found, std::sync::atomic::Ordering::Relaxed);
        }
        if found.is_null() {
            None
        } else {
            // SAFETY: the symbol of that name has the C function's type.
            Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, $function>(found) })
        }
    }};
}
pub(crate) use next;
