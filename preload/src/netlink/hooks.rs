//! The calls that a netlink socket takes, for those of RDMA netlink; every other socket is the C
//! library's.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;

use super::{Socket, send as answer, with};
use crate::sys::{self, next};

const SOL_NETLINK: c_int = 270;
const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

/// The C library's function, or a failure.
macro_rules! pass {
    ($name:ident as $function:ty, $($argument:expr),*) => {
        match next!($name as $function) {
            // SAFETY: the program's own call.
            Some(next) => unsafe { next($($argument),*) },
            None => {
                sys::fail(libc::ENOSYS);
                -1
            }
        }
    };
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: plain numbers, of which 0 is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_pid = port;
    address
}

/// Writes as much of an address as fits, and its whole length, as the kernel does.
///
/// # Safety
/// `into` points at `*length` bytes, and `length` may be written.
unsafe fn give(port: u32, into: *mut c_void, length: *mut libc::socklen_t) {
    let address = address(port);
    // SAFETY: the caller vouches for both.
    unsafe {
        let room = (*length).min(ADDRESS) as usize;
        into.cast::<u8>().copy_from_nonoverlapping((&raw const address).cast(), room);
        *length = ADDRESS;
    }
}

fn sent(result: Result<usize, Errno>) -> isize {
    result.map_or_else(|errno| sys::fail(errno as c_int) as isize, |length| length as isize)
}

/// All bytes of a list of buffers.
///
/// # Safety
/// The buffers are as long as they say.
unsafe fn gather(header: *const libc::msghdr) -> Vec<u8> {
    // SAFETY: the caller's header, with so many buffers.
    let (first, count) = unsafe { ((*header).msg_iov, (*header).msg_iovlen) };
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: as above.
        let buffer = unsafe { &*first.add(index) };
        if buffer.iov_len > 0 {
            // SAFETY: as above.
            bytes.extend(unsafe {
                std::slice::from_raw_parts(buffer.iov_base.cast::<u8>(), buffer.iov_len)
            });
        }
    }
    bytes
}

fn is_own(fd: c_int) -> bool {
    with(fd, |_| ()).is_some()
}

/// `sendmsg(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) -> isize {
    if is_own(fd) {
        // SAFETY: the C function's contract.
        if let Some(result) = answer(fd, &unsafe { gather(header) }) {
            return sent(result);
        }
    }
    type Function = unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> isize;
    pass!(sendmsg as Function, fd, header, flags)
}

/// `sendto(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_length: libc::socklen_t,
) -> isize {
    if is_own(fd) && length > 0 {
        // SAFETY: the C function's contract: so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
        if let Some(result) = answer(fd, bytes) {
            return sent(result);
        }
    }
    type Function = unsafe extern "C" fn(
        c_int,
        *const c_void,
        usize,
        c_int,
        *const libc::sockaddr,
        libc::socklen_t,
    ) -> isize;
    pass!(sendto as Function, fd, bytes, length, flags, to, to_length)
}

/// `send(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the same call without an address.
    unsafe { sendto(fd, bytes, length, flags, std::ptr::null(), 0) }
}

/// `recvmsg(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, header: *mut libc::msghdr, flags: c_int) -> isize {
    type Function = unsafe extern "C" fn(c_int, *mut libc::msghdr, c_int) -> isize;
    if !is_own(fd) {
        return pass!(recvmsg as Function, fd, header, flags);
    }
    // SAFETY: the C function's contract.
    let (name, mut room) = unsafe { ((*header).msg_name, (*header).msg_namelen) };
    let result = pass!(recvmsg as Function, fd, header, flags);
    if result >= 0 && !name.is_null() {
        // SAFETY: as above; the header still is the program's.
        unsafe {
            give(0, name, &raw mut room);
            (*header).msg_namelen = room;
        }
    }
    result
}

/// `recvfrom(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_length: *mut libc::socklen_t,
) -> isize {
    type Function = unsafe extern "C" fn(
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut libc::sockaddr,
        *mut libc::socklen_t,
    ) -> isize;
    if !is_own(fd) || from.is_null() || from_length.is_null() {
        return pass!(recvfrom as Function, fd, into, length, flags, from, from_length);
    }
    let (nowhere, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let result = pass!(recvfrom as Function, fd, into, length, flags, nowhere, none);
    if result >= 0 {
        // SAFETY: the C function's contract.
        unsafe { give(0, from.cast(), from_length) };
    }
    result
}

/// `bind(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(
    fd: c_int,
    to: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    let take = |socket: &mut Socket| {
        if length < ADDRESS {
            return sys::fail(libc::EINVAL);
        }
        // SAFETY: the C function's contract: so many bytes.
        let wanted = unsafe { to.cast::<libc::sockaddr_nl>().read_unaligned() };
        if wanted.nl_pid != 0 {
            socket.port = wanted.nl_pid;
        }
        0
    };
    type Function = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    with(fd, take).unwrap_or_else(|| pass!(bind as Function, fd, to, length))
}

/// `connect(2)`: there is one peer only, the kernel.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(
    fd: c_int,
    to: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    if is_own(fd) { 0 } else { pass!(connect as Function, fd, to, length) }
}

/// `getsockname(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    fd: c_int,
    into: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;
    let Some(port) = with(fd, |socket| socket.port) else {
        return pass!(getsockname as Function, fd, into, length);
    };
    // SAFETY: the C function's contract.
    unsafe { give(port, into.cast(), length) };
    0
}

/// `setsockopt(2)`: netlink's own options change nothing here.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    type Function =
        unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
    if level == SOL_NETLINK && is_own(fd) {
        return 0;
    }
    pass!(setsockopt as Function, fd, level, name, value, length)
}
