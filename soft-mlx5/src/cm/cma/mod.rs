//! What of rdma_cm's addresses and ids needs neither a device nor a connection: Linux's
//! `drivers/infiniband/core/cma.c`.
//!
//! [`service_id`] and [`flow_label`] say how IP addresses become InfiniBand's; [`Ports`] has the
//! port spaces, in which ids bind.

mod ports;

pub use ports::{BindError, Binding, Ports};

use std::net::IpAddr;

use uverbs_uapi::cm::PortSpace;

/// The service id that a listener at a port has (IBTA annex A11).
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space.0 as u64) << 16 | port as u64
}

/// The port of a service id, if it is of this port space.
pub fn service_port(space: PortSpace, id: u64) -> Option<u16> {
    (id >> 16 == u64::from(space.0)).then_some(id as u16)
}

/// Flow label of a RoCE v2 path between two ports (`rdma_calc_flow_label`), 20 bits.
pub const fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (source_port as u32 * 31 + destination_port as u32) & 0xf_ffff
}

/// Whether an address stands for all of the machine: the unspecified ones, and to rdma_cm those of
/// the loopback interface too (`cma_any_addr`).
pub fn is_any(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

#[cfg(test)]
mod tests;
