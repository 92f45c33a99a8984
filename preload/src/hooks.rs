//! Replacements for functions of the C library.
//!
//! Each behaves like the C library's, except for the device node and its sysfs entries.

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};

use nix::errno::Errno;

use crate::hooks_path::{access, faccessat, readlink, readlinkat};
use crate::hooks_stat::{fstat, fstatat, lstat, stat, statx};
use crate::paths::{self, NodeKind, Place, Target};
use crate::{files, inherited, netlink, node, rdma_cm, sys, trace};

/// `RDMA_VERBS_IOCTL` of `<rdma/rdma_user_ioctl_cmds.h>`.
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;

/// # Safety
/// `path` is a C string.
unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller vouches for `path`.
    match unsafe { paths::find(directory, path, flags & libc::O_NOFOLLOW == 0) } {
        // SAFETY: the program's own call.
        None => unsafe { sys::openat(directory, path, flags, mode) },
        Some(target) => sys::outcome(target.and_then(|target| open_own(target, flags, mode))),
    }
}

fn open_own(target: Target, flags: c_int, mode: c_int) -> Result<c_int, Errno> {
    let other = match target {
        Target::Own(path, Place::File(contents)) => {
            return files::open(&path, &contents, flags);
        }
        Target::Own(_, Place::Node(kind)) => {
            return open_node(kind, flags);
        }
        Target::Own(_, Place::Link(_)) => return Err(Errno::ELOOP),
        Target::Own(path, Place::Directory) => files::listed(&path)?,
        Target::Elsewhere(path) => path,
    };
    // SAFETY: a C string of ours.
    Errno::result(unsafe { sys::openat(libc::AT_FDCWD, other.as_ptr(), flags, mode) })
}

/// Opens a device node, with the flags of `open(2)`.
pub(crate) fn open_node(kind: NodeKind, flags: c_int) -> Result<c_int, Errno> {
    let close_on_exec = flags & libc::O_CLOEXEC != 0;
    match kind {
        // O_NONBLOCK is ignored: no call on this node blocks.
        NodeKind::Verbs(index) => node::open(index, close_on_exec),
        NodeKind::RdmaCm => rdma_cm::open(close_on_exec, flags & libc::O_NONBLOCK != 0),
    }
}

/// One C function of the `open` family per line. In C they are variadic. On the supported platforms
/// a variadic integer argument is passed like a named one, and the kernel does not read `mode` when
/// the program passes none.
macro_rules! open_family {
    ($($name:ident ($($directory:ident)?) $extra:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($directory: c_int,)? path: *const c_char, flags: c_int, mode: c_int) -> c_int {
            let directory = open_family!(@directory $($directory)?);
            // SAFETY: the C function's contract makes `path` a C string.
            unsafe { open_any(directory, path, flags | $extra, mode) }
        }
    )*};
    (@directory) => { libc::AT_FDCWD };
    (@directory $directory:ident) => { $directory };
}

open_family! {
    open() 0;
    open64() libc::O_LARGEFILE;
    openat(directory) 0;
    openat64(directory) libc::O_LARGEFILE;
    __open_2() 0;
    __open64_2() libc::O_LARGEFILE;
    __openat_2(directory) 0;
    __openat64_2(directory) libc::O_LARGEFILE;
}

/// `ioctl(2)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request & 0xffff_ffff == RDMA_VERBS_IOCTL {
        if let Some(node) = node::find(fd) {
            node::catch_up();
            // SAFETY: the program passes a request as for the kernel's RDMA_VERBS_IOCTL.
            return match unsafe { trace::ioctl(&node, argument.cast()) } {
                Ok(()) => 0,
                Err(errno) => sys::fail(errno as c_int),
            };
        }
        if inherited::is_inherited(fd) {
            return match inherited::ioctl(fd, argument) {
                Ok(()) => 0,
                Err(errno) => sys::fail(errno as c_int),
            };
        }
    }
    if rdma_cm::refuses(fd, request) {
        return sys::fail(libc::ENOTTY);
    }
    // SAFETY: the program's own call on another file.
    unsafe { sys::ioctl(fd, request, argument) }
}

/// # Safety
/// As `mmap(2)`.
unsafe fn map_any(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let failed = |errno: Errno| {
        sys::fail(errno as c_int);
        libc::MAP_FAILED
    };
    if let Some(node) = node::find(fd) {
        let backing = node.file.backing(length, protection, flags, offset);
        let result = backing.and_then(|(fd, at)| {
            // SAFETY: the program may replace the mapping at its own address.
            match unsafe { sys::mmap(address, length, protection, flags, fd, at) } {
                libc::MAP_FAILED => Err(Errno::last()),
                mapped => Ok(mapped),
            }
        });
        trace::mapped(&node, length, offset, result.map(|mapped| mapped as u64));
        return result.unwrap_or_else(failed);
    }
    if rdma_cm::find(fd).is_some() {
        return failed(Errno::ENODEV);
    }
    let (fd, offset) = match inherited::is_inherited(fd) {
        true => match inherited::backing(fd, length, protection, flags, offset) {
            Ok(backing) => backing,
            Err(errno) => return failed(errno),
        },
        false => (fd, offset),
    };
    // SAFETY: the program's own call, possibly on the file that replaces its descriptor.
    unsafe { sys::mmap(address, length, protection, flags, fd, offset) }
}

/// Both names of the C function are the same where `off_t` has 64 bits.
macro_rules! mmap_family {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: libc::off_t,
        ) -> *mut c_void {
            // SAFETY: the program's own call.
            unsafe { map_any(address, length, protection, flags, fd, offset) }
        }
    )*};
}

mmap_family! { mmap mmap64 }

/// `socket(2)`: sockets of RDMA netlink are provided here.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        return sys::outcome(netlink::open(kind));
    }
    sys::socket(domain, kind, protocol)
}

/// The result of a hook for a system call, whose arguments are cast to the hook's types.
macro_rules! hook {
    ($($name:ident)::+($($argument:expr),*)) => {
        $($name)::+($($argument as _),*) as c_long
    };
}

/// `syscall(2)`, for programs that bypass the other hooks: UCX patches the C library's `mmap` and
/// then makes the system call itself.
///
/// In C it is variadic. On the supported platforms variadic integer arguments are passed like named
/// ones, and the kernel does not read arguments that the program did not pass.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // SAFETY: the arguments are those of the system call, by the C function's contract.
    unsafe {
        match number {
            libc::SYS_mmap => hook!(map_any(first, second, third, fourth, fifth, sixth)),
            libc::SYS_ioctl => hook!(ioctl(first, second, third)),
            libc::SYS_openat => hook!(open_any(first, second, third, fourth)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => hook!(open_any(libc::AT_FDCWD, first, second, third)),
            libc::SYS_write => hook!(rdma_cm::write(first, second, third)),
            libc::SYS_read => hook!(rdma_cm::read_hook(first, second, third)),
            libc::SYS_socket => hook!(socket(first, second, third)),
            libc::SYS_newfstatat => hook!(fstatat(first, second, third, fourth)),
            libc::SYS_statx => hook!(statx(first, second, third, fourth, fifth)),
            libc::SYS_fstat => hook!(fstat(first, second)),
            libc::SYS_faccessat => hook!(faccessat(first, second, third, 0)),
            libc::SYS_faccessat2 => hook!(faccessat(first, second, third, fourth)),
            libc::SYS_readlinkat => hook!(readlinkat(first, second, third, fourth)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => hook!(stat(first, second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => hook!(lstat(first, second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => hook!(access(first, second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => hook!(readlink(first, second, third)),
            _ => sys::call(number, [first, second, third, fourth, fifth, sixth]),
        }
    }
}
