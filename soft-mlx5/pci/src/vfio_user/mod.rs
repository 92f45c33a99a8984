//! The server side of vfio-user: a PCI function served to a virtual machine monitor over a UNIX
//! socket.
//!
//! The protocol is described by QEMU's and libvfio-user's `docs/vfio-user.rst`; its message bodies
//! are those of `linux/vfio.h`. A [`Function`] is the device that the guest sees; [`serve`] passes
//! the monitor's accesses to it.

mod connection;
mod message;
mod server;

pub use server::serve;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// The target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The configuration space.
    Config,
    /// Base address register 0.
    Bar0,
}

/// A region of guest memory that the monitor shares.
#[derive(Debug)]
pub struct DmaRegion {
    /// First guest-physical address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Whether the device may write it.
    pub writable: bool,
}

/// A PCI function that [`serve`] can serve.
pub trait Function {
    /// Bytes of BAR 0.
    fn bar0_size(&self) -> u64;
    /// Number of MSI-X vectors.
    fn vectors(&self) -> u32;
    /// A load by the guest or the monitor. Bytes that cannot be read are zero.
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]);
    /// A store by the guest or the monitor.
    fn write(&mut self, region: Region, offset: u64, data: &[u8]);
    /// Adds a region of guest memory.
    fn dma_map(&mut self, region: &DmaRegion, file: Option<OwnedFd>) -> std::io::Result<()>;
    /// Removes guest memory.
    fn dma_unmap(&mut self, address: u64, size: u64) -> std::io::Result<()>;
    /// Sets (or with `None` removes) the eventfd that raises MSI-X vector `vector`.
    fn set_vector(&mut self, vector: u32, event: Option<OwnedFd>);
    /// Function-level reset.
    fn reset(&mut self);
    /// Appends descriptors that become readable when [`step`](Self::step) has work besides
    /// accesses.
    fn poll_fds<'a>(&'a self, _fds: &mut Vec<BorrowedFd<'a>>) {}
    /// Does the work that is due. Called after every batch of accesses, after the returned time,
    /// and when one of [`poll_fds`](Self::poll_fds) is readable. `None` waits for an access.
    fn step(&mut self) -> Option<Duration>;
}
