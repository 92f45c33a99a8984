//! The character device: what ib_uverbs and mlx5_ib do behind `/dev/infiniband/uverbsN`.
//!
//! A [`SoftDevice`] runs in this process; [`SoftDevice::open`] is the open(2) of its device node.
//! Its input and output are raw `RDMA_VERBS_IOCTL` bytes, mmap(2) offsets and event descriptors,
//! with no typed shortcut. So every library that uses the kernel's interface can use it: this
//! project's, and libibverbs with libmlx5.
//!
//! ```text
//! ioctl bytes ──> abi/dispatch (uverbs_ioctl.c) ──> abi/methods ──> objects/, a file per kind
//!                   checks header, attributes,         native and     the kernel's errno for
//!                   sizes, handles                     write form     each wrong input
//!                                                                            │
//! mmap offsets ──> device/mapping ──> UAR pages, clock pages,                ▼
//!                                     on-device memory (memfds)            Core
//! event fds    <── device/event_queue <── device/events <────────────────────┘
//! ```
//!
//! [`RdmaCm`] is the other node, `/dev/infiniband/rdma_cm`.
//!
//! The kernel followed is Linux 6.12 (`drivers/infiniband/core`, `drivers/infiniband/hw/mlx5`);
//! file and function names in comments are of that version. [`Kernel`] selects the behaviour of
//! older ones.

mod abi;
mod device;
mod objects;
mod rdma_cm;

#[cfg(test)]
mod tests;

pub use device::event_reader::EventReader;
pub use device::faults::{Fault, Moment};
pub use device::open_file::OpenFile;
pub use device::options::{GidEntry, GidType, Kernel, Model};
pub use device::sysfs::{Found, Sysfs, pci_address};
pub use device::{DeviceBuilder, SoftDevice};
pub use nix::errno::Errno;
pub use rdma_cm::{CmFile, RdmaCm};
