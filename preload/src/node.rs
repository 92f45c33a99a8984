//! The open device nodes of this process.
//!
//! `open("/dev/infiniband/uverbs0")` returns one end of a socket pair; this module keeps the other.
//! A descriptor is recognised by its inode, so duplicates (`dup`, `fcntl`, a descriptor that was
//! passed through a socket) need no bookkeeping. When all of them are closed, also in processes
//! that have inherited one, the kept end reads end-of-file, and the node is closed, as the kernel
//! would do. Messages at the kept end are from forked children, see `inherited.rs`.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use uverbs_soft::chardev::OpenFile;

use crate::inherited::{self, Inherited};
use crate::open_files::{self, DeviceFile, OpenFiles};
use crate::{device, rdma_cm, sys, thread, trace};

/// One open of a device node.
pub(crate) struct Node {
    pub(crate) file: OpenFile,
    pub(crate) index: usize,
    identity: (u64, u64),
    /// The end of the socket pair that this library keeps.
    kept: OwnedFd,
}

impl Node {
    /// The kept end, at which messages of forked children arrive.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.kept.as_fd()
    }
}

static NODES: OpenFiles<Node> = OpenFiles::new();
static REAPER_RUNS: AtomicBool = AtomicBool::new(false);

impl DeviceFile for Node {
    fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn kept(&self) -> c_int {
        self.kept.as_raw_fd()
    }
}

/// Opens device number `index` and returns the program's descriptor.
pub(crate) fn open(index: usize, close_on_exec: bool) -> Result<c_int, Errno> {
    close_abandoned();
    let file = device::open(index)?;
    let flags = if close_on_exec { SockFlag::SOCK_CLOEXEC } else { SockFlag::empty() };
    let (given, kept) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    let identity = sys::identity(given.as_raw_fd()).ok_or(Errno::EBADF)?;
    NODES.add(Node { file, index, identity, kept });
    ensure_reaper();
    trace::opened(index, given.as_raw_fd());
    Ok(given.into_raw_fd())
}

/// The node that a descriptor refers to.
pub(crate) fn find(fd: c_int) -> Option<Arc<Node>> {
    NODES.find(fd)
}

/// Closes the device files of both kinds whose last descriptor is closed.
pub(crate) fn close_abandoned() {
    NODES.close_abandoned(|node| {
        let index = node.index;
        drop(node);
        trace::closed(index);
    });
    rdma_cm::close_abandoned();
}

/// Closes the device files that the program has closed. Call this before each call on an open
/// device file, whose result may depend on it (a port that is bound, a steering rule that exists).
pub(crate) fn catch_up() {
    if NODES.count() + rdma_cm::count() > 1 {
        close_abandoned();
    }
}

/// Starts the thread that closes nodes as soon as their last descriptor is closed, and answers
/// forked children.
pub(crate) fn ensure_reaper() {
    if !REAPER_RUNS.swap(true, Ordering::AcqRel) {
        let started = thread::spawn("uverbs-reaper", reap_for_ever);
        REAPER_RUNS.store(started.is_ok(), Ordering::Release);
    }
}

fn reap_for_ever() {
    loop {
        wait_and_serve();
        close_abandoned();
    }
}

/// Longest wait of the thread, which does not wait for files that are opened meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits until a file's last descriptor is closed, and answers children meanwhile.
fn wait_and_serve() {
    let asked = |kept| sys::waiting_for(kept, libc::POLLIN);
    let closed = |kept| sys::waiting_for(kept, 0);
    let (nodes, channels) = (NODES.kept(), rdma_cm::kept());
    let mut entries: Vec<libc::pollfd> =
        nodes.into_iter().map(asked).chain(channels.into_iter().map(closed)).collect();
    sys::poll(&mut entries, LOOK_AGAIN);
    entries
        .iter()
        .filter(|entry| entry.revents & libc::POLLIN != 0)
        .filter_map(|entry| NODES.of_kept(entry.fd))
        .for_each(|node| inherited::serve(&node));
}

/// The lock on the table, held while the process forks.
pub(crate) type Table = open_files::Table<Node>;

/// Locks out other threads.
pub(crate) fn lock() -> Table {
    NODES.lock()
}

/// In a forked child: forgets the nodes without closing them, since they are the parent's.
pub(crate) fn forget(table: Table, inherited: Inherited) {
    let mut identities = Vec::new();
    NODES.forget(table, |node| {
        identities.push(node.identity);
        // With its own copy open, the child would not notice that the parent has ended. SAFETY: the
        // node is forgotten, so the descriptor is not used any more.
        unsafe { sys::close(node.kept()) };
    });
    inherited::adopt(inherited, identities.into_iter());
    REAPER_RUNS.store(false, Ordering::Release);
}
