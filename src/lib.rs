//! A userspace RDMA verbs provider for NVIDIA ConnectX (mlx5), from the character device up: no
//! libibverbs, no libmlx5, no C.
//!
//! A program opens a [`Device`] and gets a [`Context`]. From the context it makes a
//! [`ProtectionDomain`] for memory and queue pairs, and [`CompletionQueue`]s. Handles hold their
//! parents, so they may be dropped in any order and have no lifetime parameters. Posting and
//! polling make no system call.
//!
//! There are two layers. The safe one, [`QueuePair`], [`CompletionQueue`] and
//! [`SharedReceiveQueue`], takes slots of registered memory ([`safe`]); the raw one ([`raw`]) takes
//! addresses and keys and is `unsafe`. Generic code has the layer as a parameter: [`layer::Safe`],
//! [`layer::Raw`]. With the cargo feature `soft` a software ConnectX is built in. It is opened only
//! by its name (`soft`) or by `UVERBS_DEVICE=soft`.
//!
//! # Which type for which task
//! A search for a C name (`ibv_post_send`) finds its counterpart; [`from_libibverbs`] lists them
//! all, and the differences.
//!
//! | task | use |
//! |---|---|
//! | a server and clients that meet by address | [`cm`]: [`cm::listen`], [`cm::connect`] |
//! | ends that exchange 48 bytes themselves | [`QueuePair::endpoint`], [`QueuePair::connect`] |
//! | messages without `unsafe` code | [`Slab`], [`QueuePair`], [`CompletionQueue`] |
//! | the fewest instructions, with addresses and keys | [`raw`] |
//! | memory that peers read and write | [`MemoryRegion`], [`MemoryView`], [`op::Write`] ([`raw`]) |
//! | one receive queue for many peers | [`ProtectionDomain::create_srq`] |
//! | datagrams, multicast | [`qp_type::Ud`], [`AddressHandle`] |
//! | Ethernet frames that bypass the kernel | [`ethernet`], [`flow`] |
//! | sleeping until a completion | [`CompletionChannel`]; with tokio `uverbs::tokio` |
//! | byte streams like `TcpStream` | the crate `uverbs-stream` |
//! | tests without an adapter, injected faults | `uverbs::soft` |
//!
//! # Threads
//! No queue has a lock: `&mut` is the lock.
//!
//! - Shared between threads (`Send + Sync`): [`Context`], [`ProtectionDomain`], [`ThreadDomain`],
//!   [`XrcDomain`], [`CqHandle`], [`SrqHandle`], [`CompletionChannel`], [`MemoryRegion`],
//!   [`MemoryView`], [`MemoryWindow`], [`Buffer`], [`DeviceMemory`], [`DeviceClock`],
//!   [`AddressHandle`], [`Counters`], [`Flow`], [`Slab`], [`Slot`], detached events, [`WqHandle`],
//!   [`IndirectionTable`], [`RssTarget`], [`cm::Channel`], [`cm::Id`], [`devx`].
//! - Belong to one thread at a time (`Send`): [`CompletionQueue`], [`QueuePair`],
//!   [`SharedReceiveQueue`] and [`WorkQueue`] of both layers.
//! - Confined to their thread (neither): [`events::AsyncEvent`], [`completion_channel::CqEvent`].
//!   Detach them to move them.
//!
//! # Example
//! ```
//! use uverbs::{PollError, op, qp::PostFlags, qp_type::Rc};
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
//! b.post_receive(slab.take().ok_or("no slot")?)?;
//! let mut slot = slab.take().ok_or("no slot")?;
//! slot.write(b"hello")?;
//! a.post_send(op::Send, slot, PostFlags::SIGNALED)?;
//!
//! let mut texts = Vec::new();
//! while texts.len() < 2 {
//!     match cq.poll() {
//!         Ok(done) => texts.extend(done.slot.map(|slot| slot.to_vec())),
//!         Err(PollError::Empty) => context.poll_idle(),
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! assert_eq!(texts, [b"hello", b"hello"]);
//! # }
//! # Ok(())
//! # }
//! ```

// `tests/rooms.rs` lists the files that allow it.
#![deny(unsafe_code)]

pub mod cm;
pub mod cq;
mod device;
pub mod devx;
pub mod error;
pub mod ethernet;
pub mod flow;
mod host;
pub mod memory;
mod mlx5;
pub mod qp;
pub mod raw;
pub mod safe;
pub mod srq;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use cq::channel as completion_channel;
pub use device::{address, attributes, clock, events, gid, layer};
pub use flow::counters;
pub use host::{channel, fork};
pub use memory::{device_memory, mw};
pub use qp::{ah, endpoint, op, qp_type};

pub use cq::CqHandle;
#[doc(no_inline)]
pub use cq::PollError;
pub use cq::builder::CqBuilder;
pub use cq::channel::CompletionChannel;
#[doc(no_inline)]
pub use device::address::{AddressVector, Gid, GidKind, GlobalRoute, LinkLayer, Mtu};
#[doc(no_inline)]
pub use device::attributes::{DeviceAttributes, PortAttributes};
#[doc(no_inline)]
pub use device::clock::DeviceClock;
pub use device::context::Context;
pub use device::limits::Limit;
pub use device::{
    DEVICE_VARIABLE, Device, DeviceKind, device, devices, devices_below, open_default,
};
pub use error::{DestroyError, Error, ErrorKind, Result};
pub use flow::Flow;
pub use flow::counters::Counters;
pub use memory::device_memory::DeviceMemory;
pub use memory::mw::MemoryWindow;
pub use memory::pd::ProtectionDomain;
#[doc(no_inline)]
pub use memory::{AccessFlags, Remote, Sge};
pub use memory::{Buffer, MemoryRegion, MemoryView, PageSize};
pub use qp::ah::{AddressHandle, DatagramAddress, DcAddress};
pub use qp::builder::QpBuilder;
pub use qp::endpoint::Endpoint;
pub use qp::rss::{IndirectionTable, RssTarget};
pub use qp::thread_domain::ThreadDomain;
pub use qp::work_queue::{WorkQueue, WqBuilder, WqHandle, WqState};
pub use qp::{DcEndpoint, DcReceiver};
pub use safe::{
    Batch, Completion, CompletionQueue, InlineTemplate, QueuePair, ReceiveBatch, Refused,
    SharedReceiveBatch, SharedReceiveQueue, Slab, Slot, SlotRequest,
};
pub use srq::xrcd::XrcDomain;
pub use srq::{SrqBuilder, SrqHandle};

#[cfg(doc)]
#[doc = include_str!("../docs/from-libibverbs.md")]
pub mod from_libibverbs {}

/// The software ConnectX, and faults for tests. Where an example says `uverbs_soft` or
/// `uverbs_soft::chardev`, write `uverbs::soft`.
///
/// An example with two devices, the first of which loses its first packet; a retransmission
/// delivers the message:
///
/// ```
/// use std::sync::Arc;
/// use uverbs::soft::SoftDevice;
/// use uverbs::soft::fault::{FaultPlan, Faulty, PacketFault, Rule};
/// use uverbs::soft::wire::{Station, Switch, Waker};
/// use uverbs::{Device, PollError, op, qp::PostFlags, qp_type::Rc};
///
/// let switch = Switch::new();
/// let device = |number, plan| -> std::io::Result<Device> {
///     let (waker, station) = (Arc::new(Waker::new()?), Station::candidate(number));
///     let wire = Faulty::new(switch.attach(station, Some(waker.clone()))?, plan);
///     let builder = SoftDevice::builder("soft0").wire(Box::new(wire), waker, station);
///     Ok(Device::from_soft(builder.build()?))
/// };
/// let rules = vec![Rule { opcode: None, nth: 1, fault: PacketFault::Drop }];
/// let near = device(1, FaultPlan { rules, ..FaultPlan::default() })?.open()?;
/// let far = device(2, FaultPlan::default())?.open()?;
///
/// let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
/// let (mut near_cq, far_cq) = (near.create_cq(16).build()?, far.create_cq(16).build()?);
/// let mut a = near_pd.create_qp::<Rc>(near_cq.handle(), near_cq.handle()).build()?;
/// let mut b = far_pd.create_qp::<Rc>(far_cq.handle(), far_cq.handle()).build()?;
/// a.connect(&b.endpoint())?;
/// b.connect(&a.endpoint())?;
/// b.post_receive(far_pd.create_slab(1, 64)?.take().ok_or("no slot")?)?;
/// let mut slot = near_pd.create_slab(1, 64)?.take().ok_or("no slot")?;
/// slot.write(b"hello")?;
/// a.post_send(op::Send, slot, PostFlags::SIGNALED)?;
/// let sent = loop {
///     match near_cq.poll() {
///         Ok(done) => break done.completion.is_success(),
///         Err(PollError::Empty) => near.poll_idle(),
///         Err(error) => return Err(error.into()),
///     }
/// };
/// assert!(sent);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An example of a verb that fails once, an event, and a removed device:
///
/// ```
/// use uverbs::soft::{AsyncKind, Errno, EventObject, Fault, Moment, SoftDevice};
/// use uverbs::{ErrorKind, events::EventType};
///
/// let soft = SoftDevice::builder("soft0").without_wire().build()?;
/// let context = uverbs::Device::from_soft(soft.clone()).open()?;
/// soft.inject(Fault { moment: Moment::Call(0), errno: Errno::ENOMEM });
/// assert_eq!(context.alloc_pd().unwrap_err().errno(), Errno::ENOMEM as i32);
/// context.alloc_pd()?;
/// soft.raise(AsyncKind::PortError, EventObject::Port(1))?;
/// assert_eq!(context.get_event()?.kind(), EventType::PORT_ERR);
/// soft.remove();
/// assert_eq!(context.alloc_pd().unwrap_err().kind(), ErrorKind::DeviceGone);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "soft")]
pub mod soft {
    pub use uverbs_soft::chardev::{
        DeviceBuilder, Errno, Fault, Found, GidEntry, GidType, Kernel, Model, Moment, OpenFile,
        SoftDevice, Sysfs,
    };
    pub use uverbs_soft::core::{AsyncKind, Cqn, EventObject, Qpn, Srqn};
    #[doc(hidden)]
    pub use uverbs_soft::signals;
    pub use uverbs_soft::{fault, prng, replay, settings, wire};
    /// The packets on a wire.
    pub mod packet {
        #[doc(inline)]
        pub use uverbs_soft::packet::*;
    }
    pub use uverbs_uapi::{objects, write::WriteCmd};
}

/// The examples of the README compile and run.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of `docs/trading.md` compile and run.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../docs/trading.md")]
struct Trading;

/// Misuse that must not compile.
#[cfg(doctest)]
#[doc = include_str!("../tests/does_not_compile.md")]
struct DoesNotCompile;
