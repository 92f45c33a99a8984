//! A software ConnectX: it replaces the kernel's driver and the adapter for programs and tests, and
//! the adapter for kernels.
//!
//! [`core`] is the device itself, a state machine without I/O, threads or clock: objects, execution
//! of work-queue entries, the RC, UC, UD and XRC transports. Its front ends are [`chardev`], which
//! answers raw ioctl bytes as ib_uverbs and mlx5_ib do, and the crate `uverbs-soft-pci`, the PCI
//! function that an unmodified kernel drives. [`runtime`] runs it in a thread, [`sim`] in a test
//! with a simulated clock. [`replay`] feeds it recorded frames, with disturbances. [`wire`] carries
//! its [`packet`]s within the process, through memory that two processes share, or as RoCE v2 over
//! loopback UDP, and [`fault`] injects reproducible faults.
//!
//! Its behaviour is taken from the kernel's source, from headers, from recordings of libmlx5, and
//! from runs of unmodified C programs and kernels. Behaviour that none of these has confirmed is
//! marked as unconfirmed; it may differ from the hardware's.

#![deny(unsafe_code)]

pub mod chardev;
pub mod fault;
mod home;
pub mod locking;
pub mod passed;
mod per_process;
pub mod replay;
pub mod runtime;
pub mod sealed;
pub mod settings;
pub mod signals;
pub mod sim;
pub mod wire;

pub use per_process::PerProcess;
pub use uverbs_soft_adapter::{copy, core, memory};
pub use uverbs_soft_packet as packet;
pub use uverbs_soft_packet::prng;
