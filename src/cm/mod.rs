//! Connections by address: a client of the connection manager, `/dev/infiniband/rdma_cm`, without
//! librdmacm.
//!
//! # Connecting in one call
//! [`listen`] and [`connect`] take addresses and return connected queue pairs of the safe layer.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use uverbs::{PollError, cm, op, qp::PostFlags};
//! # let context = uverbs::device("soft")?.open()?;
//! # let listener = cm::Listener::builder().context(&context);
//! # /*
//! let mut listener = cm::listen("10.0.0.1:7471")?;
//! # */
//! # let mut listener = listener.bind("127.0.0.1:0")?;
//! # let address = listener.local_address()?;
//! let server = std::thread::spawn(move || -> Result<(), uverbs::Error> {
//!     let mut connection = listener.accept()?;
//!     let slab = connection.resources.pd.create_slab(1, 4096)?;
//!     let mut slot = slab.take().expect("the only slot");
//!     slot.write(b"welcome")?;
//!     connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED)?;
//!     while let Err(error) = connection.resources.cq.poll() {
//!         match error {
//!             PollError::Empty => connection.context().poll_idle(),
//!             error => return Err(error.into()),
//!         }
//!     }
//!     connection.wait_disconnected(None)
//! });
//!
//! # let connector = cm::Connector::new().context(&context);
//! # /*
//! let mut connection = cm::connect("10.0.0.1:7471")?;
//! # */
//! # let mut connection = connector.connect(address)?;
//! let slab = connection.resources.pd.create_slab(1, 4096)?;
//! connection.qp.post_receive(slab.take().expect("the only slot"))?;
//! let text = loop {
//!     match connection.resources.cq.poll() {
//!         Ok(done) => break done.slot.map(|slot| slot.to_vec()),
//!         Err(PollError::Empty) => connection.context().poll_idle(),
//!         Err(error) => return Err(error.into()),
//!     }
//! };
//! assert_eq!(text.as_deref(), Some(&b"welcome"[..]));
//! connection.disconnect()?;
//! server.join().expect("no panic")?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No completion reports that the peer has ended the connection: see [`Connection`]. Listeners on
//! the software device have the address `127.0.0.1`, or the address that `UVERBS_SOFT_ADDRESS` or
//! the device's builder sets.
//!
//! [`Address`] parses addresses with an interface: `[fe80::1%eth0]:7471`.
//!
//! [`Listener::builder`] and [`Connector`] have the options. A program may make the queue pairs
//! itself, for example with a shared receive queue, with a common completion queue, with a
//! [channel](crate::CqBuilder::channel) to sleep on, or on the [raw layer](crate::raw): it passes a
//! function to [`ListenerBuilder::bind_with`] or [`Connector::connect_with`].
//!
//! # Connecting step by step
//! A [`Channel`] has [`Id`]s, and its [`Event`]s report the result of each step:
//!
//! 1. [`Id::resolve_address`], then [`AddressResolved`](EventKind::AddressResolved).
//! 2. [`Id::resolve_route`], then [`RouteResolved`](EventKind::RouteResolved).
//! 3. A queue pair on the device of [`Id::context`], and [`Id::connect`].
//! 4. The listener, which has called [`Id::bind`] and [`Id::listen`], gets a
//!    [`ConnectRequest`](EventKind::ConnectRequest), makes a queue pair on the request's device and
//!    calls [`ConnectionRequest::accept`].
//! 5. [`ConnectResponse`](EventKind::ConnectResponse), then [`Id::establish`], which moves the
//!    queue pair to RTS. The listener gets [`Established`](EventKind::Established).
//! 6. [`Id::disconnect`] on both sides, each of which gets
//!    [`Disconnected`](EventKind::Disconnected).
//!
//! For datagrams there is no connection: [`Id::lookup`] asks a listener of [`PortSpace::Udp`] for
//! its queue pair, [`ConnectionRequest::answer`] replies, and [`Found`](EventKind::Found) has the
//! queue pair's number and address. [`Id::join`] joins a multicast group, and
//! [`Joined`](EventKind::Joined) has the group's address.
//!
//! # What differs from librdmacm
//! - Events own their data. They need no acknowledgement, and destroying an id does not wait.
//!   `rdma_destroy_id` waits until all events of the id were acknowledged, so a program that
//!   destroys the id while it handles an event hangs.
//! - Dropping a request refuses the peer.
//! - Peers may not access memory unless the caller allows it ([`QpOptions::access`]), and the RNR
//!   timer is 0.64 ms, not 655 ms ([`QpOptions::min_rnr_timer`]).
//! - The limits of private data are in its types: [`RequestData`] and the others. Requests arrive
//!   padded to 56 bytes, replies to 196.
//!
//! # Devices
//! The address of an id decides its device: [`Id::context`]. The kernel's connection manager serves
//! all of the kernel's devices. A software device inside the process has its own connection
//! manager, which [`Channel::of`] opens for its context, and [`Channel::open`] with
//! `UVERBS_DEVICE=soft`. Under `uverbs run` the program sees the software device as a kernel
//! device.

mod address;
mod attributes;
mod channel;
mod connection;
mod connector;
mod event;
mod half_open;
mod id;
mod infiniband;
mod listener;
mod multicast;
mod params;
mod private_data;
mod refusal;
mod request;

pub use address::Address;
pub use channel::Channel;
pub use connection::{Connection, Link, Resources};
pub use connector::{Connector, connect};
pub use event::{DatagramPeer, Event, EventKind, Group, Reply};
#[doc(hidden)]
pub use half_open::{HalfOpen, Source};
pub use id::{Id, IdKey, PortSpace};
pub use infiniband::IbAddress;
pub use listener::{Listener, ListenerBuilder, listen};
pub use multicast::{JoinMode, Membership};
pub use params::{AcceptOptions, ConnectOptions, QpOptions};
pub use private_data::{
    LookupData, LookupReplyData, PrivateData, RejectData, ReplyData, RequestData,
};
pub use refusal::{RejectReason, Rejection};
pub use request::{ConnectionRequest, Peer};
