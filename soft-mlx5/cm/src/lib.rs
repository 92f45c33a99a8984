//! Connection management: the kernel's half of rdma_cm, as state machines without I/O, threads or
//! clock.
//!
//! The software device (`uverbs-soft`) answers the commands of `/dev/infiniband/rdma_cm` with it.
//!
//! [`mad`] has the datagrams of the communication management class as they travel between QP1s:
//! their formats follow the InfiniBand Architecture Specification volume 1, chapter 12
//! ("Communication Management"). [`ib_cm`] is the protocol engine on them, which does what Linux's
//! `drivers/infiniband/core/cm.c` does. Both are checked against recordings of two Linux 6.12
//! kernels that connect to each other. [`cma`] is rdma_cm itself, on top of the engine: port
//! spaces, ids, addresses and routes.

#![forbid(unsafe_code)]

pub mod cma;
pub mod ib_cm;
pub mod mad;

#[cfg(test)]
mod tests;
