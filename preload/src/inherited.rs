//! Device nodes that a forked child has inherited. The device runs in the parent, which executes
//! the child's calls.
//!
//! The inherited descriptor is a socket whose other end the parent has (`node.rs`). For a call the
//! child sends two things there: the address of the request in its own memory, which the parent
//! accesses with `process_vm_readv(2)` and `process_vm_writev(2)`, and a new socket for the answer,
//! because several children share the inherited one. This works for calls that need only the
//! request: protection domains, on-device memory, queries, mappings. For queues and memory regions
//! the device would have to access the child's memory at any time, so those calls fail with EIO.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use uverbs_soft::passed;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::node::Node;
use crate::sys;

/// Device and inode of the inherited descriptors.
static INHERITED: RwLock<Vec<(u64, u64)>> = RwLock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

const IOCTL: u32 = 0x7576_0001;
const MMAP: u32 = 0x7576_0002;

/// A child's call. An ioctl uses only `address`, an mmap only the other fields.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    kind: u32,
    process: i32,
    address: u64,
    length: u64,
    protection: i32,
    flags: i32,
    offset: i64,
}

/// The parent's answer: an errno or 0. For an mmap also the descriptor of the device's file, which
/// the child has inherited, too, and an offset in this file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Answer {
    errno: i32,
    fd: i32,
    offset: i64,
}

/// The lock on the list, held while the process forks.
pub(crate) type Inherited = RwLockWriteGuard<'static, Vec<(u64, u64)>>;

/// Locks out other threads.
pub(crate) fn lock() -> Inherited {
    INHERITED.write().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: marks these descriptors as the parent's nodes.
pub(crate) fn adopt(mut inherited: Inherited, identities: impl Iterator<Item = (u64, u64)>) {
    inherited.extend(identities);
    COUNT.store(inherited.len(), Ordering::Release);
}

/// Whether a descriptor is a parent's node.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 || fd < 0 {
        return false;
    }
    let inherited = INHERITED.read().unwrap_or_else(PoisonError::into_inner);
    sys::identity(fd).is_some_and(|identity| inherited.contains(&identity))
}

/// `ioctl` on a parent's node.
pub(crate) fn ioctl(fd: c_int, argument: *mut c_void) -> Result<(), Errno> {
    ask(fd, Request { kind: IOCTL, address: argument as u64, ..Request::default() }).map(drop)
}

/// `mmap` on a parent's node: the descriptor and offset to map instead.
pub(crate) fn backing(
    fd: c_int,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> Result<(RawFd, i64), Errno> {
    let length = length as u64;
    let request = Request { kind: MMAP, length, protection, flags, offset, ..Request::default() };
    ask(fd, request).map(|answer| (answer.fd, answer.offset))
}

/// Sends a request to the parent and waits for its answer; EIO if the parent has ended.
fn ask(fd: c_int, request: Request) -> Result<Answer, Errno> {
    let request = Request { process: std::process::id() as i32, ..request };
    let (mut ours, theirs) = UnixStream::pair().map_err(|_| Errno::EIO)?;
    let rights = [theirs.as_raw_fd()];
    let bytes = [IoSlice::new(request.as_bytes())];
    let rights = [ControlMessage::ScmRights(&rights)];
    sendmsg::<()>(fd, &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None).map_err(|_| Errno::EIO)?;
    drop(theirs);
    let mut answer = Answer::default();
    ours.read_exact(answer.as_mut_bytes()).map_err(|_| Errno::EIO)?;
    if answer.errno == 0 { Ok(answer) } else { Err(Errno::from_raw(answer.errno)) }
}

/// In the parent: answers the calls that children have made on a node so far.
pub(crate) fn serve(node: &Node) {
    while let Some((request, reply)) = receive(node.socket()) {
        let answer = answer(node, &request);
        // The child may have ended.
        let _ = UnixStream::from(reply).write_all(answer.as_bytes());
    }
}

/// The next request, with the socket for the answer. Drops other data that a program has written to
/// the socket, and closes descriptors in it.
fn receive(kept: BorrowedFd<'_>) -> Option<(Request, OwnedFd)> {
    let mut request = Request::default();
    let received = passed::receive(kept, request.as_mut_bytes()).ok()?;
    let is_request = received.bytes == size_of::<Request>() && !received.is_cut_off;
    let [reply] = <[OwnedFd; 1]>::try_from(received.files).ok()?;
    is_request.then_some((request, reply))
}

fn answer(node: &Node, request: &Request) -> Answer {
    let result = match request.kind {
        IOCTL => {
            // SAFETY: the child passed a request as for RDMA_VERBS_IOCTL, and waits for the answer.
            let done = unsafe { node.file.ioctl_of_child(request.process, request.address) };
            done.map(|()| (0, 0))
        }
        MMAP => node.file.backing(
            request.length as usize,
            request.protection,
            request.flags,
            request.offset,
        ),
        _ => Err(Errno::EINVAL),
    };
    match result {
        Ok((fd, offset)) => Answer { errno: 0, fd, offset },
        Err(errno) => Answer { errno: errno as i32, ..Answer::default() },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::Duration;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    /// A socket with a message that has this many descriptors, and the other ends of these.
    fn sent_with(descriptors: usize) -> (OwnedFd, Vec<UnixStream>) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (child, kept) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap();
        let pairs = std::iter::repeat_with(|| UnixStream::pair().unwrap()).take(descriptors);
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.unzip();
        let fds: Vec<RawFd> = theirs.iter().map(AsRawFd::as_raw_fd).collect();
        let request = Request { kind: IOCTL, address: 7, ..Request::default() };
        let (bytes, rights) =
            ([IoSlice::new(request.as_bytes())], [ControlMessage::ScmRights(&fds)]);
        let child = child.as_raw_fd();
        sendmsg::<()>(child, &bytes, &rights, MsgFlags::empty(), None).unwrap();
        (kept, ours)
    }

    fn assert_closed(ends: Vec<UnixStream>) {
        let count = ends.len();
        for mut end in ends {
            // A process that another test starts briefly has copies of all descriptors.
            end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(end.read(&mut [0]).unwrap(), 0, "of {count}: one is still open");
        }
    }

    #[test]
    fn a_request_comes_with_the_socket_for_its_answer() {
        let (kept, mut ours) = sent_with(1);
        let (request, reply) = receive(kept.as_fd()).unwrap();
        assert_eq!((request.kind, request.address), (IOCTL, 7));
        UnixStream::from(reply).write_all(&[1]).unwrap();
        ours[0].read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn descriptors_of_other_messages_are_closed() {
        for descriptors in [2, 3, 20] {
            let (kept, ours) = sent_with(descriptors);
            assert!(receive(kept.as_fd()).is_none());
            assert_closed(ours);
        }
    }

    /// Tests a process with space for one of two descriptors. The test below runs it in a new
    /// process.
    #[test]
    #[ignore = "the other process of a test"]
    fn full() {
        let (kept, ours) = sent_with(2);
        let next = || std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let first = next();
        let limit = libc::rlimit { rlim_cur: first as u64 + 1, rlim_max: first as u64 + 1 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        assert!(receive(kept.as_fd()).is_none());
        assert_eq!(next(), first, "that place is free again");
        assert_closed(ours);
    }

    #[test]
    fn without_space_for_all_descriptors_none_stays_open() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "inherited::tests::full"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}
