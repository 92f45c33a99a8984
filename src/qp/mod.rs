//! Queue pairs: made by a builder, connected from an exchanged endpoint or step by step.
//!
//! Two layers post to them. The raw one
//! ([`raw::QueuePair`](crate::raw::QueuePair)) takes addresses and keys, is `unsafe` with a written
//! contract, and adds nothing to what the hardware needs. The safe one ([`crate::safe`]) takes
//! slots of registered memory.
//!
//! # What does not compile
//! Calls that the transport, the operation or the queue pair does not have: READs and atomics on
//! unreliable transports,
//!
//! ```compile_fail,E0277
//! # use uverbs::{raw, Remote, Sge, op, qp::*, qp_type::*};
//! unsafe fn read(qp: &mut raw::QueuePair<Uc>, remote: Remote, sge: Sge) {
//!     let _ = qp.post_send(1, op::Read(remote), sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{raw, Remote, op, qp::*, qp_type::*};
//! unsafe fn count(qp: &mut raw::QueuePair<Uc>, remote: Remote, result: AtomicResult) {
//!     let _ = qp.post_send(1, op::FetchAdd { remote, add: 1 }, result, PostFlags::SIGNALED);
//! }
//! ```
//!
//! anything but SEND in a datagram, a datagram without a destination,
//!
//! ```compile_fail,E0277
//! # use uverbs::{raw, Remote, Sge, op, qp::*, qp_type::*};
//! unsafe fn write(qp: &mut raw::QueuePair<Ud>, to: Datagram<'_>, remote: Remote, sge: Sge) {
//!     let _ = qp.post_send(1, op::To(to, op::Write(remote)), sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{raw, Sge, op, qp::*, qp_type::*};
//! unsafe fn send(qp: &mut raw::QueuePair<Ud>, sge: Sge) {
//!     let _ = qp.post_send(1, op::Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! inline data for a READ, an atomic whose result has no place, an XRC send that names no shared
//! receive queue,
//!
//! ```compile_fail,E0277
//! # use uverbs::{raw, Remote, op, qp::*, qp_type::*};
//! unsafe fn read(qp: &mut raw::QueuePair<Rc>, remote: Remote) {
//!     let _ = qp.post_send(1, op::Read(remote), Inline(b"no"), PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{raw, Remote, op, qp::*, qp_type::*};
//! unsafe fn count(qp: &mut raw::QueuePair<Rc>, remote: Remote) {
//!     let _ = qp.post_send(1, op::FetchAdd { remote, add: 1 }, (), PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{raw, Sge, op, qp::*, qp_type::*};
//! unsafe fn send(qp: &mut raw::QueuePair<Xrc>, sge: Sge) {
//!     let _ = qp.post_send(1, op::Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! anything but frames on a raw packet queue pair, and frames on any other,
//!
//! ```compile_fail,E0277
//! # use uverbs::{raw, Sge, op, qp::*, qp_type::*};
//! unsafe fn send(qp: &mut raw::QueuePair<RawPacket>, sge: Sge) {
//!     let _ = qp.post_send(1, op::Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{raw, Sge, op, qp::*, qp_type::*};
//! unsafe fn send(qp: &mut raw::QueuePair<Uc>, sge: Sge) {
//!     let _ = qp.post_send(1, op::EthernetSend::default(), sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! connecting a datagram queue pair, or activating a connected one,
//!
//! ```compile_fail,E0599
//! # use uverbs::{Endpoint, raw, op, qp::*, qp_type::*};
//! fn connect(qp: &mut raw::QueuePair<Ud>, peer: &Endpoint) { let _ = qp.connect(peer); }
//! ```
//! ```compile_fail,E0599
//! # use uverbs::{raw, op, qp::*, qp_type::*};
//! fn activate(qp: &mut raw::QueuePair<Rc>) { let _ = qp.activate(); }
//! ```
//!
//! two threads, or two batches, in one send queue, and a completion kept beyond the next poll.
//!
//! ```compile_fail,E0499
//! # use uverbs::{raw, op, qp::*, qp_type::*};
//! fn twice(qp: &mut raw::QueuePair<Rc>) -> Result<(), PostError> {
//!     let (one, other) = (qp.batch()?, qp.batch()?);
//!     one.publish();
//!     other.publish();
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0499
//! # use uverbs::{PollError, raw::CompletionQueue};
//! fn keep(cq: &mut CompletionQueue) -> Result<u64, PollError> {
//!     let (first, second) = (cq.poll()?, cq.poll()?);
//!     Ok(first.wr_id() + second.wr_id())
//! }
//! ```
//!
//! What depends on values is checked when posting, before anything is stored: see [`PostError`].

pub mod ah;
mod attributes;
pub(crate) mod builder;
mod core;
mod create;
mod dc_receiver;
mod ece;
pub mod endpoint;
mod modify;
mod multicast;
#[doc(alias = "ibv_wr_send")]
#[doc(alias = "ibv_wr_send_imm")]
#[doc(alias = "ibv_wr_send_inv")]
#[doc(alias = "ibv_wr_send_tso")]
#[doc(alias = "ibv_wr_rdma_read")]
#[doc(alias = "ibv_wr_rdma_write")]
#[doc(alias = "ibv_wr_rdma_write_imm")]
#[doc(alias = "ibv_wr_atomic_cmp_swp")]
#[doc(alias = "ibv_wr_atomic_fetch_add")]
#[doc(alias = "ibv_wr_bind_mw")]
#[doc(alias = "ibv_wr_local_inv")]
pub mod op;
mod path;
pub mod qp_type;
pub(crate) mod queue_pair;
pub(crate) mod raw;
pub mod raw_packet;
pub mod rss;
pub(crate) mod safe;
mod sizes;
pub(crate) mod striding;
mod tags;
pub(crate) mod thread_domain;
mod transitions;
pub mod work_queue;
mod xrc_target;

pub use attributes::{
    AccessFlags, AckTimeout, AlternatePath, MigrationState, QpAttrMask, QpAttributes, RnrTimer,
};
pub(crate) use core::{SteeringRule, SteeringTarget};
pub use dc_receiver::{DcEndpoint, DcReceiver};
pub use ece::Ece;
pub use modify::QpInfo;
pub use path::PathOptions;
pub use queue_pair::QueuePair;
pub use raw_packet::RateLimit;
pub use sizes::Capacities;
pub use tags::TagQueue;
pub use transitions::{Transition, TransitionError, check, transition};
pub use uverbs_mlx5::format::EthChecksum;
pub use uverbs_mlx5::mmio::{BlueFlame, Register, SharedBlueFlame};
pub use uverbs_mlx5::queue_state::QpState as State;
pub use uverbs_mlx5::request::{Immediate, ListError, PostError, PostFlags};
pub use uverbs_mlx5::send_queue::{
    AtomicResult, Datagram, DcTarget, EthernetOffload, Field, Inline, Payload, RunTimeDestination,
    RunTimeOperation, Segmented, SendRequest, TagChange, TagError, TagRequest, XrcTarget, framed,
    segmented, template_blocks,
};
pub use uverbs_mlx5::size::Operations;
pub use xrc_target::XrcReceiver;

pub(crate) use qp_type::{Connected, QpType, QueuePairType, Unconnected};
