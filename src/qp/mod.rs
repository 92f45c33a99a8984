//! Queue pairs: made by a builder, connected by an exchanged endpoint or step by step.
//!
//! A raw queue pair ([`raw::QueuePair`](crate::raw::QueuePair)) takes addresses and keys in
//! `unsafe` functions. A safe one ([`crate::safe`]) takes slots of registered memory.
//!
//! # What does not compile
//! Calls that the transport, the operation or the queue pair does not support:
//! - READs and atomics on unreliable transports;
//! - anything but SEND in a datagram, a datagram without a destination;
//! - inline data for a READ, an atomic without a buffer for its result, an XRC send that names no
//!   shared receive queue;
//! - anything but Ethernet frames on a raw packet queue pair, and frames on any other;
//! - connecting a datagram queue pair, or activating a connected one;
//! - two threads or two batches posting to one queue pair at a time, and a completion kept beyond
//!   the next poll.
//!
//! Values are checked when posting, before anything is stored: see [`PostError`].

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

#[doc(no_inline)]
pub use crate::memory::AccessFlags;
pub use attributes::{
    AckTimeout, AlternatePath, MigrationState, QpAttrMask, QpAttributes, RnrTimer,
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
