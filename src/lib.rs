//! A userspace RDMA verbs provider for NVIDIA ConnectX (mlx5), from the character device up: no libibverbs,
//! no libmlx5, no C.
//!
//! A program opens a [`Device`] and gets a [`Context`]; from it it makes a [`ProtectionDomain`] for memory
//! and queue pairs, and [`CompletionQueue`]s to learn what was done. Handles hold their parents, so they
//! may be dropped in any order, and nothing that a program stores has a lifetime. Queues are then rung and
//! polled without any call into the kernel.
//!
//! Two layers post. The safe one, [`QueuePair`], [`CompletionQueue`] and [`SharedReceiveQueue`], takes slots of registered
//! memory ([`safe`]); the raw one ([`raw`]) takes addresses and keys and is `unsafe`. With the cargo feature `soft` a software ConnectX is built in, opened by
//! name (`soft`) or by `UVERBS_DEVICE=soft`, never by itself.
//!
//! # Threads
//! Nothing is bound to the thread that made it, and no call takes a lock on a queue: `&mut` is the lock.
//!
//! | may be shared (`Send + Sync`) | belongs to one thread at a time (`Send`) | stays (neither) |
//! |---|---|---|
//! | [`Context`], [`ProtectionDomain`], [`ThreadDomain`], [`XrcDomain`], [`CqHandle`], [`SrqHandle`], [`CompletionChannel`], [`MemoryRegion`], [`MemoryView`], [`MemoryWindow`], [`Buffer`], [`DeviceMemory`], [`DeviceClock`], [`AddressHandle`], [`Counters`], [`Flow`], [`Slab`], [`Slot`], detached events | [`CompletionQueue`], [`QueuePair`], [`SharedReceiveQueue`] of both layers | [`events::AsyncEvent`], [`completion_channel::CqEvent`]: detach them first |
//!
//! ```
//! use uverbs::{op, qp::PostFlags, qp_type::Rc};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "soft")] {
//! let context = uverbs::device("soft")?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq(64).build()?;
//! let mut a = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
//! let mut b = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
//! let (end_a, end_b) = (a.endpoint(), b.endpoint());
//! a.connect(&end_b)?;
//! b.connect(&end_a)?;
//!
//! let slab = pd.create_slab(2, 4096)?;
//! b.receive(slab.take().ok_or("no slot")?)?;
//! let mut slot = slab.take().ok_or("no slot")?;
//! slot.write(b"hello");
//! a.post(op::Send, slot, PostFlags::SIGNALED)?;
//!
//! let mut texts = Vec::new();
//! while texts.len() < 2 {
//!     if let Ok(done) = cq.poll() {
//!         texts.extend(done.slot.map(|slot| slot.to_vec()));
//!     }
//! }
//! assert_eq!(texts, [b"hello", b"hello"]);
//! # }
//! # Ok(())
//! # }
//! ```

#![allow(
    clippy::result_large_err,
    reason = "a destroy that fails gives the object back by value, and only then is it moved"
)]

pub mod address;
pub mod ah;
pub mod attributes;
pub mod channel;
pub mod clock;
mod command;
pub mod completion_channel;
mod context;
pub mod counters;
pub mod cq;
mod device;
pub mod device_memory;
mod driver;
pub mod endpoint;
pub mod error;
pub mod events;
pub mod flow;
pub mod fork;
pub mod gid;
mod import;
pub mod layer;
mod lifetime;
pub mod memory;
mod multicast;
pub mod mw;
pub mod op;
mod pd;
pub mod qp;
pub mod qp_type;
mod query;
pub mod raw;
mod records;
pub mod safe;
mod sizes;
pub mod srq;
mod thread_domain;
#[cfg(feature = "tokio")]
pub mod tokio;
mod uar;
mod until_close;
mod xrcd;

pub use address::{AddressVector, Gid, GidKind, GlobalRoute, LinkLayer, Mtu};
pub use ah::{AddressHandle, DatagramAddress};
pub use attributes::{DeviceAttributes, PortAttributes};
pub use clock::DeviceClock;
pub use completion_channel::CompletionChannel;
pub use context::Context;
pub use counters::Counters;
pub use cq::builder::CqBuilder;
pub use cq::{CqHandle, PollError};
pub use device::{
    DEVICE_VARIABLE, Device, DeviceKind, device, devices, devices_below, open_default,
};
pub use device_memory::DeviceMemory;
pub use endpoint::Endpoint;
pub use error::{DestroyError, Error, ErrorKind, Result};
pub use flow::Flow;
pub use memory::{AccessFlags, Buffer, MemoryRegion, MemoryView, PageSize, Remote, Sge};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use qp::builder::QpBuilder;
pub use safe::{
    Batch, Completion, CompletionQueue, QueuePair, ReceiveBatch, Refused, SharedReceiveBatch,
    SharedReceiveQueue, Slab, Slot,
};
pub use srq::{SrqBuilder, SrqHandle};
pub use thread_domain::ThreadDomain;
pub use xrcd::XrcDomain;

/// The software ConnectX: building one, breaking one on purpose.
#[cfg(feature = "soft")]
pub mod soft {
    pub use uverbs_soft::chardev::*;
    pub use uverbs_soft::core::{AsyncKind, Cqn, EventObject, Qpn, Srqn};
    pub use uverbs_soft::{fault, packet, prng, wire};
}

/// The examples of the README compile and run.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../README.md")]
struct Readme;
