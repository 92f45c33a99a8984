//! The connection manager's character device: what ib_ucma does behind `/dev/infiniband/rdma_cm`
//! (`drivers/infiniband/core/ucma.c` of Linux 6.12).
//!
//! An [`RdmaCm`] is the connection manager of a host: it has the ids of all open files and one
//! state machine ([`Cma`]) for its [`SoftDevice`]s. [`RdmaCm::open`] is open(2) of the node.
//! Commands come as the bytes of write(2), answers go to the addresses in them, and the descriptor
//! is readable while events wait: unmodified librdmacm works on it.
//!
//! ```text
//! write bytes ──> file ──> commands ──> Cma ──> datagrams ──> QP1 of the devices
//!                   ▲                    │  ◄── datagrams ◄──        │
//!                   └── event queue ◄── host (thread: arrivals and timers)
//! ```
//!
//! Differences from the kernel:
//! - ids are the process's, not the machine's, and so are ports at a device's own address. A port
//!   at all addresses or at 127.0.0.1 is the machine's, as in the kernel, see `directory.rs`;
//! - the loopback address of a device's station is that device's; the kernel takes every loopback
//!   address for a wildcard. 127.0.0.1 is the first device's for an id that binds to it. For an id
//!   that connects, it leads to the process that listens to the port there or on all addresses.
//!   Other loopback addresses belong to no device;
//! - a caller whose credentials changed since open is not refused, and ports below 1024 are root's;
//! - a signal ends the wait for an event with EINTR, also one with `SA_RESTART`.
//!
//! [`Cma`]: uverbs_soft_cm::cma::Cma
//! [`SoftDevice`]: crate::chardev::SoftDevice

mod commands;
mod connections;
mod context;
mod directory;
mod file;
mod host;
mod inbox;
mod queries;
mod queue;
mod stack;

#[cfg(test)]
mod tests;

pub use file::CmFile;
pub use host::RdmaCm;
pub(crate) use host::WeakRdmaCm;
