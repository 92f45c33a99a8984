//! File descriptors that another process passes over a Unix socket.

#![allow(unsafe_code)]

use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nix::errno::Errno;

/// Most descriptors that the kernel passes on in one read (`SCM_MAX_FD` of net/scm.h).
const MOST: usize = 253;

/// The result of one read of a socket.
#[derive(Debug)]
pub struct Received {
    /// How many bytes were read; 0 at the end of the stream.
    pub bytes: usize,
    /// The descriptors that came with them.
    pub files: Vec<OwnedFd>,
    /// Whether there were more descriptors than this process may open. The kernel has closed them.
    pub is_cut_off: bool,
}

/// Space for the control message with all descriptors.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

// SAFETY: computes a number.
const CONTROL: usize = unsafe { libc::CMSG_SPACE((MOST * size_of::<RawFd>()) as u32) } as usize;
const _: () = assert!(align_of::<libc::cmsghdr>() <= align_of::<Control>());

/// Receives bytes and the descriptors passed with them, without waiting. (If some descriptors
/// cannot be received, `nix` leaks the others.)
///
/// # Errors
/// Errors of `recvmsg`; EAGAIN if there is nothing to receive.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> nix::Result<Received> {
    let mut control = Control([0; CONTROL]);
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all-zero bytes are a valid value of this C struct of integers and pointers.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points at the borrowed bytes and at the control buffer of this frame, with
    // their lengths.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let bytes = Errno::result(bytes)? as usize;
    // SAFETY: filled by the successful call just made; `control` is still there.
    let files = unsafe { passed(&header) };
    Ok(Received { bytes, files, is_cut_off: header.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// The descriptors in a message's control data.
///
/// # Safety
/// `recvmsg` has filled the header, its control buffer is there, and this is called once for it.
unsafe fn passed(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the walk stays within what the kernel wrote. A message SCM_RIGHTS holds descriptors
    // up to its length, all new ones of this process that no other code knows of (unix(7)).
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                #[allow(clippy::unnecessary_cast, reason = "cmsg_len is shorter with musl")]
                let bytes = found.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(message).cast::<i32>();
                let fd = |index| OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(index)));
                files.extend((0..bytes / size_of::<i32>()).map(fd));
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    files
}
