//! Hooks for calls on sockets. Calls on RDMA netlink sockets are handled here; those on other
//! sockets are passed to the C library.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;

use super::{Socket, send as answer, with};
use crate::sys::{self, next};

const SOL_NETLINK: c_int = 270;
const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

/// Declares hooks: C functions by name and type. The name after the type is that of the C library's
/// function inside the hook.
macro_rules! hooks {
    ($(#[$doc:meta] $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty, $next:ident $body:block)*) => {$(
        #[$doc]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            let $next = |$($argument: $kind),*| match next!($name as Function) {
                // SAFETY: the program's own call.
                Some(next) => unsafe { next($($argument),*) },
                None => {
                    sys::fail(libc::ENOSYS);
                    -1
                }
            };
            $body
        }
    )*};
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: plain numbers, of which 0 is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_pid = port;
    address
}

/// Writes as much of an address as fits, and its full length, as the kernel does.
///
/// # Safety
/// `into` points at `*length` bytes, and `length` may be written.
unsafe fn write_address(port: u32, into: *mut c_void, length: *mut libc::socklen_t) {
    let address = address(port);
    // SAFETY: the caller vouches for both.
    unsafe {
        let fits = (*length).min(ADDRESS) as usize;
        into.cast::<u8>().copy_from_nonoverlapping((&raw const address).cast(), fits);
        *length = ADDRESS;
    }
}

fn to_c_result(result: Result<usize, Errno>) -> isize {
    result.map_or_else(|errno| sys::fail(errno as c_int) as isize, |length| length as isize)
}

/// All bytes of a message's buffers.
///
/// # Safety
/// `header` and its buffers are valid for reads.
unsafe fn gather(header: *const libc::msghdr) -> Vec<u8> {
    // SAFETY: the caller's header, with its number of buffers.
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

hooks! {
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) -> isize, next {
        if is_own(fd) {
            // SAFETY: the C function's contract.
            if let Some(result) = answer(fd, &unsafe { gather(header) }) {
                return to_c_result(result);
            }
        }
        next(fd, header, flags)
    }

    /// `sendto(2)`.
    sendto(
        fd: c_int,
        bytes: *const c_void,
        length: usize,
        flags: c_int,
        to: *const libc::sockaddr,
        to_length: libc::socklen_t,
    ) -> isize, next {
        if is_own(fd) && length > 0 {
            // SAFETY: the C function's contract: that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
            if let Some(result) = answer(fd, bytes) {
                return to_c_result(result);
            }
        }
        next(fd, bytes, length, flags, to, to_length)
    }

    /// `recvmsg(2)`.
    recvmsg(fd: c_int, header: *mut libc::msghdr, flags: c_int) -> isize, next {
        if !is_own(fd) {
            return next(fd, header, flags);
        }
        // SAFETY: the C function's contract.
        let (name, mut length) = unsafe { ((*header).msg_name, (*header).msg_namelen) };
        let result = next(fd, header, flags);
        if result >= 0 && !name.is_null() {
            // SAFETY: as above; the header is still the program's.
            unsafe {
                write_address(0, name, &raw mut length);
                (*header).msg_namelen = length;
            }
        }
        result
    }

    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int,
        into: *mut c_void,
        length: usize,
        flags: c_int,
        from: *mut libc::sockaddr,
        from_length: *mut libc::socklen_t,
    ) -> isize, next {
        if !is_own(fd) || from.is_null() || from_length.is_null() {
            return next(fd, into, length, flags, from, from_length);
        }
        let result =
            next(fd, into, length, flags, std::ptr::null_mut(), std::ptr::null_mut());
        if result >= 0 {
            // SAFETY: the C function's contract.
            unsafe { write_address(0, from.cast(), from_length) };
        }
        result
    }

    /// `bind(2)`.
    bind(fd: c_int, to: *const libc::sockaddr, length: libc::socklen_t) -> c_int, next {
        let bind = |socket: &mut Socket| {
            if length < ADDRESS {
                return sys::fail(libc::EINVAL);
            }
            // SAFETY: the C function's contract: that many bytes.
            let wanted = unsafe { to.cast::<libc::sockaddr_nl>().read_unaligned() };
            if wanted.nl_pid != 0 {
                socket.port = wanted.nl_pid;
            }
            0
        };
        with(fd, bind).unwrap_or_else(|| next(fd, to, length))
    }

    /// `connect(2)`: the kernel is the only peer.
    connect(fd: c_int, to: *const libc::sockaddr, length: libc::socklen_t) -> c_int, next {
        if is_own(fd) { 0 } else { next(fd, to, length) }
    }

    /// `getsockname(2)`.
    getsockname(
        fd: c_int,
        into: *mut libc::sockaddr,
        length: *mut libc::socklen_t,
    ) -> c_int, next {
        let Some(port) = with(fd, |socket| socket.port) else { return next(fd, into, length) };
        // SAFETY: the C function's contract.
        unsafe { write_address(port, into.cast(), length) };
        0
    }

    /// `setsockopt(2)`: netlink's own options have no effect here.
    setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: libc::socklen_t,
    ) -> c_int, next {
        if level == SOL_NETLINK && is_own(fd) {
            return 0;
        }
        next(fd, level, name, value, length)
    }
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
