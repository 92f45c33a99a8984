//! The PCI front end: a ConnectX as a PCI function, to which an unmodified kernel binds its
//! mlx5_core and mlx5_ib.
//!
//! [`PciDevice`] is a ConnectX at the level of registers, guest memory and interrupts: the
//! initialization segment, the firmware command queue, event queues, UARs and doorbells. [`serve`]
//! passes a virtual machine monitor's accesses to it over vfio-user. The [core](uverbs_soft::core)
//! holds the objects and executes WQEs.
//!
//! All input of the guest is untrusted. Addresses are checked against the memory that the guest
//! shares. An invalid command fails with the firmware's error status and causes a warning.

#![deny(unsafe_code)]

mod blueflame;
mod cable;
mod command_queue;
mod config_space;
mod device;
mod firmware;
mod guest_memory;
mod init_segment;
mod interrupts;
mod trace;
mod vfio_user;

#[cfg(test)]
mod tests;

pub(crate) use uverbs_soft_adapter::firmware::{bits, layout};

pub use cable::{Cable, Fabric};
pub use device::{PciDevice, Settings};
pub use guest_memory::GuestMemory;
pub use trace::Trace;
pub use vfio_user::{DmaRegion, Function, Region, serve};
