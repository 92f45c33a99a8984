//! The open device nodes of this process.
//!
//! `open("/dev/infiniband/uverbs0")` gives the program one end of a socket pair; this module keeps
//! the other. A descriptor is recognised by its inode, so duplicates (`dup`, `fcntl`, a descriptor
//! that was passed through a socket) need no bookkeeping. When the program has closed them all, or
//! every process that inherited one has ended, the kept end reads end-of-file, and the node is
//! closed like the kernel would close it. What arrives at the kept end comes from forked children,
//! see `inherited.rs`.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use uverbs_soft::chardev::OpenFile;

use crate::inherited::{self, Inherited};
use crate::{device, rdma_cm, sys, thread, trace};

/// One open of a device node.
pub(crate) struct Node {
    pub(crate) file: OpenFile,
    pub(crate) index: usize,
    identity: (u64, u64),
    kept: OwnedFd,
}

static NODES: RwLock<Vec<Arc<Node>>> = RwLock::new(Vec::new());
/// The number of nodes. A program that has none only pays this load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static REAPER_RUNS: AtomicBool = AtomicBool::new(false);

fn read() -> RwLockReadGuard<'static, Vec<Arc<Node>>> {
    NODES.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Vec<Arc<Node>>> {
    NODES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Opens device number `index`: the descriptor to hand to the program.
pub(crate) fn open(index: usize, close_on_exec: bool) -> Result<c_int, Errno> {
    reap();
    let file = device::open(index)?;
    let flags = if close_on_exec { SockFlag::SOCK_CLOEXEC } else { SockFlag::empty() };
    let (given, kept) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    let identity = sys::identity(given.as_raw_fd()).ok_or(Errno::EBADF)?;
    let mut nodes = write();
    nodes.push(Arc::new(Node { file, index, identity, kept }));
    COUNT.store(nodes.len(), Ordering::Release);
    drop(nodes);
    ensure_reaper();
    trace::opened(index, given.as_raw_fd());
    Ok(given.into_raw_fd())
}

/// The node that a descriptor refers to.
pub(crate) fn find(fd: c_int) -> Option<Arc<Node>> {
    if COUNT.load(Ordering::Acquire) == 0 || fd < 0 {
        return None;
    }
    let identity = sys::identity(fd)?;
    read().iter().find(|node| node.identity == identity).cloned()
}

impl Node {
    /// The end of the socket pair that this library keeps.
    pub(crate) fn kept(&self) -> c_int {
        self.kept.as_raw_fd()
    }
}

/// Closes the nodes whose last descriptor is gone.
fn reap() {
    let closed: Vec<Arc<Node>> = {
        let mut nodes = write();
        let (open, closed) =
            std::mem::take(&mut *nodes).into_iter().partition(|node| is_held(node));
        *nodes = open;
        COUNT.store(nodes.len(), Ordering::Release);
        closed
    };
    closed.iter().for_each(|node| trace::closed(node.index));
}

fn is_held(node: &Node) -> bool {
    let mut fds = [PollFd::new(node.kept.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO) != Ok(1)
}

/// Starts the thread that closes nodes as soon as their last descriptor is gone, and answers forked
/// children.
pub(crate) fn ensure_reaper() {
    if !REAPER_RUNS.swap(true, Ordering::AcqRel) {
        let started = thread::spawn("uverbs-reaper", reap_for_ever);
        REAPER_RUNS.store(started.is_ok(), Ordering::Release);
    }
}

fn reap_for_ever() {
    loop {
        wait_and_serve();
        reap();
        rdma_cm::reap();
    }
}

/// Waits until a node's last descriptor is gone, and answers children meanwhile. It wakes every
/// 200 ms, because it does not wait for nodes that are opened meanwhile.
fn wait_and_serve() {
    let nodes = read().clone();
    let channels = rdma_cm::kept();
    let mut fds: Vec<PollFd<'_>> =
        nodes.iter().map(|node| PollFd::new(node.kept.as_fd(), PollFlags::POLLIN)).collect();
    // Closed by the program: POLLERR, which needs not be asked for.
    fds.extend(channels.iter().map(|open| PollFd::new(open.kept_fd(), PollFlags::empty())));
    let _ = poll(&mut fds, PollTimeout::from(200u8));
    let asked = |fd: &PollFd<'_>| fd.revents().is_some_and(|r| r.contains(PollFlags::POLLIN));
    let ready: Vec<bool> = fds.iter().map(asked).collect();
    drop(fds);
    nodes
        .iter()
        .zip(ready)
        .filter(|(_, ready)| *ready)
        .for_each(|(node, _)| inherited::serve(node));
}

/// The lock on the table, held while the process forks.
pub(crate) type Table = RwLockWriteGuard<'static, Vec<Arc<Node>>>;

/// Keeps other threads from using the table.
pub(crate) fn lock() -> Table {
    write()
}

/// In a forked child: forgets the nodes without closing them, since they are the parent's.
pub(crate) fn forget(mut table: Table, inherited: Inherited) {
    let nodes = std::mem::take(&mut *table);
    inherited::adopt(inherited, nodes.iter().map(|node| node.identity));
    std::mem::forget(nodes);
    COUNT.store(0, Ordering::Release);
    REAPER_RUNS.store(false, Ordering::Release);
}
