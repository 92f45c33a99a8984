//! Forks: a child gets copies of the descriptors and of this library's memory, but none of the
//! devices' threads.
//!
//! So the child starts with no devices. As with a kernel's device, the descriptors that it has
//! inherited keep the parent's nodes open until it closes them or executes another program. Calls
//! on them are executed by the parent (`inherited.rs`). A device that the child opens itself is a
//! new one with its own address.

use std::cell::RefCell;

use crate::device::{self, Made};
use crate::inherited::{self, Inherited};
use crate::netlink::{self, Sockets};
use crate::node::{self, Table};
use crate::open_files::{self, Closing};
use crate::rdma_cm;

/// The locks that are held while the process forks.
type Locks = (Table, Inherited, rdma_cm::Table, Made, Sockets, Closing);

thread_local! {
    /// All locks, while this thread forks, so that the child's copy of the memory is consistent.
    static ACROSS_FORK: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    // The order matters: a thread that closes files locks a table, and so may a thread that creates
    // the devices.
    let closing = open_files::closing();
    let made = device::lock();
    let (nodes, inherited, files) = (node::lock(), inherited::lock(), rdma_cm::lock());
    ACROSS_FORK.set(Some((nodes, inherited, files, made, netlink::lock(), closing)));
}

extern "C" fn in_parent() {
    drop(ACROSS_FORK.take());
}

extern "C" fn in_child() {
    if let Some((table, inherited, files, made, _sockets, _closing)) = ACROSS_FORK.take() {
        node::forget(table, inherited);
        rdma_cm::forget(files);
        device::forget(made);
    }
}

/// Registers the three functions with the C library.
pub(crate) fn watch() {
    // SAFETY: the functions live as long as the process.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
