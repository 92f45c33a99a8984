//! Effects of a fork in a program with an open RDMA device.
//!
//! # The parent
//! The device reads and writes pinned pages of the parent by their physical address. If `fork`
//! shared such a page copy-on-write and the parent wrote to it first, the parent would get a new
//! page and the device would continue to use the old one. Linux 5.12 and later copy pinned pages at
//! fork, so the parent keeps its pages. On older kernels this library excludes its own mappings
//! from the child (`MADV_DONTFORK`), each as a whole: splitting mappings could exceed
//! `vm.max_map_count`. It does not change memory that the program allocated itself; on such a
//! kernel a program that forks should register [`Buffer`](crate::Buffer)s, or not write to
//! registered memory between fork and exec.
//!
//! # The child
//! A child shares the open file, so destroying an object there would destroy the parent's object.
//! Therefore every verb fails in a child with [`ErrorKind::ForkedChild`] and every `Drop` does
//! nothing, so a child may exit or exec. Posting and polling do not check this, because it would
//! cost the parent a test per call. Instead a handler that runs in the child before `fork` returns
//! (`pthread_atfork`) replaces the doorbell pages by ordinary memory, and closes the queues for
//! posting:
//!
//! - The device sees nothing that a child posts, publishes or arms: rings, doorbell records and
//!   doorbells are the child's copies. The exception is queue memory that the program itself shares
//!   with its children (an allocator of `MAP_SHARED` memory).
//! - Slots are refused with [`PostError::ForkedChild`](crate::qp::PostError::ForkedChild) at once,
//!   a batch of a queue pair cannot be started, and a single raw post fails as soon as the queue
//!   checks its state. Before that, as many posts as the ring has entries may return `Ok` and do
//!   nothing. Most posts to a raw shared receive queue, and arming a completion queue, do nothing
//!   and return no error.
//!
//! `vfork` and `posix_spawn` run no handlers; their children only call exec. Children of a bare
//! `clone` system call are not supported. The software device's thread exists in the parent only. A
//! child that uses RDMA has to open the device itself.
//!
//! The child has only the thread that forked. Locks that other threads of the parent held at the
//! fork stay locked in the child for ever. No verb and no `Drop` in a child waits for such a lock:
//! they give up on locked state of a context, and per-process state is created anew.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};
use nix::sys::socket::{recv, send, socket};

use crate::error::{Error, ErrorKind};
use crate::host::system;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)` of rdma_netlink.h.
const SYS_GET: u16 = (5 << 10) + 6;
/// `RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK`, one byte.
const COPY_ON_FORK: u16 = 93;
const NLM_F_REQUEST: u16 = 1;
const HEADER: usize = 16;

/// Whether the running kernel copies pinned pages at fork.
///
/// The RDMA core reports this over netlink. If it does not answer (no RDMA in the kernel, or no
/// netlink in a container), the kernel's version decides: 5.12 is the first that copies.
#[doc(alias = "ibv_fork_init")]
#[doc(alias = "ibv_is_fork_initialized")]
pub fn kernel_copies_pinned_pages() -> bool {
    const UNKNOWN: u8 = 2;
    // Not a lock, which could be held for ever in a child. Two threads may ask at once; both get
    // the same answer.
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = ANSWER.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == 1;
    }
    let answer = ask_rdma_core().unwrap_or_else(|_| release_at_least(5, 12));
    ANSWER.store(answer.into(), Ordering::Relaxed);
    answer
}

/// The error of a verb on an inherited handle.
pub(crate) fn forked(verb: &'static str) -> Error {
    let cause = "this process is a forked child of the one that opened the device";
    Error::new(verb, ErrorKind::ForkedChild, cause).cure_with("open the device anew in the child")
}

/// A mutex on which a forked child never waits: the thread that held it at the fork does not exist
/// there.
///
/// Poisoning is ignored: every critical section keeps the data consistent at each step.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    mutex: Mutex<T>,
    process: Process,
}

/// A process, distinct from its forked children even if a pid namespace gives them the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    id: u32,
    generation: u64,
}

impl Process {
    pub(crate) fn current() -> Self {
        Self { id: system::process_id(), generation: system::generation() }
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), process: Process::current() }
    }

    /// Locks; `None` in a forked child if the lock is held.
    #[inline]
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        self.try_lock().or_else(|| self.wait())
    }

    /// Locks, unless the lock is held.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn wait(&self) -> Option<MutexGuard<'_, T>> {
        if self.is_inherited() {
            return None;
        }
        Some(self.mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Whether this is a forked child of the process that made the lock.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != Process::current()
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

fn ask_rdma_core() -> Result<bool, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRDMA)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    send(fd, &request(), MsgFlags::empty())?;
    let mut reply = [0; 1024];
    // The core answers during the send, so the reply is either there now or never comes.
    let length = recv(fd, &mut reply, MsgFlags::MSG_DONTWAIT)?;
    copy_on_fork(&reply[..length]).ok_or(Errno::EPROTO)
}

/// A netlink header without data: length, type, flags, sequence, port.
fn request() -> [u8; HEADER] {
    let mut message = [0; HEADER];
    message[..4].copy_from_slice(&(HEADER as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&SYS_GET.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message
}

/// The attribute in an answer; `None` if it is not an answer to [`request`].
fn copy_on_fork(reply: &[u8]) -> Option<bool> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    if kind != SYS_GET {
        return None;
    }
    let mut rest = &reply[HEADER.min(reply.len())..];
    while let Some((id, value, tail)) = next_attribute(rest) {
        if id == COPY_ON_FORK {
            return Some(value.first() == Some(&1));
        }
        rest = tail;
    }
    Some(false)
}

fn next_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let id = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
    let value = bytes.get(4..length)?;
    let padded = length.next_multiple_of(4).min(bytes.len());
    Some((id, value, &bytes[padded..]))
}

fn release_at_least(major: u32, minor: u32) -> bool {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= (major, minor)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "tests fork")]
mod tests;
