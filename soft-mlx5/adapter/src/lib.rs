//! The software ConnectX itself, independent of its front end.
//!
//! [`core`] is a state machine without I/O, threads or clock: objects, execution of work-queue
//! entries, the RC, UC, UD, XRC and DC transports, frames. [`memory`] accesses the host's bytes.
//! [`firmware`] executes commands about its objects. Its front ends are the character device
//! (`uverbs-soft`) and the PCI function (`uverbs-soft-pci`).

#![deny(unsafe_code)]

pub mod copy;
pub mod core;
pub mod firmware;
pub mod memory;
pub mod process_vm;

use uverbs_soft_packet as packet;
use uverbs_soft_packet::prng;
