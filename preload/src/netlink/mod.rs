//! RDMA netlink (`NETLINK_RDMA`), which `rdma link` uses, and which libibverbs tries before sysfs.
//!
//! The program's socket is one end of a socket pair. As in the kernel, the answers to a request are
//! written before `sendmsg` returns: here to the other end of the pair. Receiving and polling need
//! no hooks. The hooks handle only the calls for which a netlink socket differs from a socket pair:
//! `bind`, `getsockname`, addresses of senders, netlink's options.

mod answer;
mod hooks;
mod message;

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::sys;

/// A netlink socket of the program.
pub(crate) struct Socket {
    fd: c_int,
    /// Device and inode. The descriptor does not identify the socket, since the program may close
    /// it and reuse its number.
    identity: (u64, u64),
    /// The other end of the pair.
    kept: OwnedFd,
    /// Its netlink address (`nl_pid`).
    port: u32,
}

/// The lock on the table of sockets.
pub(crate) type Sockets = MutexGuard<'static, Vec<Socket>>;

static SOCKETS: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
/// The number of sockets, so that in a program without any a call costs only a load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Locks out other threads, also while the process forks.
pub(crate) fn lock() -> Sockets {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `socket(AF_NETLINK, kind, NETLINK_RDMA)`.
pub(crate) fn open(kind: c_int) -> Result<c_int, Errno> {
    let flags = SockFlag::from_bits_truncate(kind);
    let (given, kept) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let identity = sys::identity(given.as_raw_fd()).ok_or(Errno::EBADF)?;
    let mut sockets = lock();
    sockets.retain(is_open);
    let port = free_port(|port| sockets.iter().any(|socket| socket.port == port));
    sockets.push(Socket { fd: given.as_raw_fd(), identity, kept, port });
    COUNT.store(sockets.len(), Ordering::Release);
    Ok(given.into_raw_fd())
}

/// Whether the program's end is open.
fn is_open(socket: &Socket) -> bool {
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(socket.kept.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO) != Ok(1)
}

/// A free address, chosen as in the kernel (netlink_autobind of net/netlink/af_netlink.c): the
/// process id for the first socket, then numbers from -4097 down, which are not process ids.
fn free_port(is_taken: impl Fn(u32) -> bool) -> u32 {
    let others = (0..u32::MAX / 2).map(|number| (-4097_i32 as u32) - number);
    let mut all = std::iter::once(std::process::id()).chain(others);
    all.find(|port| !is_taken(*port)).unwrap_or(0)
}

/// Runs `act` on the socket `fd`; `None` if `fd` is another file.
fn with<R>(fd: c_int, act: impl FnOnce(&mut Socket) -> R) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut sockets = lock();
    let index = sockets.iter().position(|socket| socket.fd == fd)?;
    if sys::identity(fd) != Some(sockets[index].identity) {
        sockets.swap_remove(index);
        COUNT.store(sockets.len(), Ordering::Release);
        return None;
    }
    Some(act(&mut sockets[index]))
}

/// Answers the requests that the program sends.
fn send(fd: c_int, bytes: &[u8]) -> Option<Result<usize, Errno>> {
    let port = with(fd, |socket| socket.port)?;
    // Without the table's lock, because this call may create the devices.
    let answers = answer::to(bytes, port);
    let deliver = |socket: &mut Socket| {
        answers.iter().all(|answer| sys::send(socket.kept.as_raw_fd(), answer))
    };
    with(fd, deliver).map(|all| if all { Ok(bytes.len()) } else { Err(Errno::ENOBUFS) })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn more_than_a_thousand_sockets_have_addresses_of_their_own() {
        let mut taken = HashSet::new();
        assert_eq!(super::free_port(|port| taken.contains(&port)), std::process::id());
        for _ in 0..1100 {
            let port = super::free_port(|port| taken.contains(&port));
            assert!(taken.insert(port));
        }
    }
}
