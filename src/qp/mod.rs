//! Queue pairs: made by a builder, connected from an exchanged endpoint or step by step.
//!
//! Two layers post to them. The raw one ([`QueuePair::post_send`], [`QueuePair::batch`]) takes addresses and
//! keys, is `unsafe` with a written contract, and adds nothing to what the hardware needs. The safe one
//! ([`crate::safe`]) takes slots of registered memory.
//!
//! # What does not compile
//! What a transport cannot carry, an operation cannot take, or a queue pair cannot do is not there to be called:
//! READs and atomics on unreliable transports,
//!
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Remote, Sge, qp::*};
//! unsafe fn read(qp: &mut QueuePair<Uc>, remote: Remote, sge: Sge) {
//!     let _ = qp.post_send(1, Read(remote), sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Remote, qp::*};
//! unsafe fn count(qp: &mut QueuePair<Uc>, remote: Remote, result: AtomicResult) {
//!     let _ = qp.post_send(1, FetchAdd { remote, add: 1 }, result, PostFlags::SIGNALED);
//! }
//! ```
//!
//! anything but SEND in a datagram, a datagram without a destination,
//!
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Remote, Sge, qp::*};
//! unsafe fn write(qp: &mut QueuePair<Ud>, to: Datagram<'_>, remote: Remote, sge: Sge) {
//!     let _ = qp.post_send(1, To(to, Write(remote)), sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Sge, qp::*};
//! unsafe fn send(qp: &mut QueuePair<Ud>, sge: Sge) {
//!     let _ = qp.post_send(1, Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! inline data for a READ, an atomic whose result has no place, an XRC send that names no shared receive queue,
//!
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Remote, qp::*};
//! unsafe fn read(qp: &mut QueuePair<Rc>, remote: Remote) {
//!     let _ = qp.post_send(1, Read(remote), Inline(b"no"), PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Remote, qp::*};
//! unsafe fn count(qp: &mut QueuePair<Rc>, remote: Remote) {
//!     let _ = qp.post_send(1, FetchAdd { remote, add: 1 }, (), PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Sge, qp::*};
//! unsafe fn send(qp: &mut QueuePair<Xrc>, sge: Sge) {
//!     let _ = qp.post_send(1, Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! anything but frames on a raw packet queue pair, and frames on any other,
//!
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Sge, qp::*};
//! unsafe fn send(qp: &mut QueuePair<RawPacket>, sge: Sge) {
//!     let _ = qp.post_send(1, Send, sge, PostFlags::SIGNALED);
//! }
//! ```
//! ```compile_fail,E0277
//! # use uverbs::{QueuePair, Sge, qp::*};
//! unsafe fn send(qp: &mut QueuePair<Uc>, sge: Sge) {
//!     let _ = qp.post_send(1, EthernetSend::default(), sge, PostFlags::SIGNALED);
//! }
//! ```
//!
//! connecting a datagram queue pair, or activating a connected one,
//!
//! ```compile_fail,E0599
//! # use uverbs::{Endpoint, QueuePair, qp::*};
//! fn connect(qp: &mut QueuePair<Ud>, peer: &Endpoint) { let _ = qp.connect(peer); }
//! ```
//! ```compile_fail,E0599
//! # use uverbs::{QueuePair, qp::*};
//! fn activate(qp: &mut QueuePair<Rc>) { let _ = qp.activate(); }
//! ```
//!
//! two threads, or two batches, in one send queue, and a completion kept beyond the next poll.
//!
//! ```compile_fail,E0499
//! # use uverbs::{QueuePair, qp::*};
//! fn twice(qp: &mut QueuePair<Rc>) -> Result<(), PostError> {
//!     let (one, other) = (qp.batch()?, qp.batch()?);
//!     one.publish();
//!     other.publish();
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0499
//! # use uverbs::{CompletionQueue, PollError};
//! fn keep(cq: &mut CompletionQueue) -> Result<u64, PollError> {
//!     let (first, second) = (cq.poll()?, cq.poll()?);
//!     Ok(first.wr_id() + second.wr_id())
//! }
//! ```
//!
//! What depends on values is checked when posting, before anything is stored: see [`PostError`].

mod attributes;
mod builder;
mod core;
mod create;
mod ece;
mod modify;
mod path;
mod queue_pair;
pub mod raw_packet;
mod sizes;
mod state;
mod transitions;
mod xrc_target;

pub use attributes::{
    AccessFlags, AckTimeout, AlternatePath, MigrationState, QpAttrMask, QpAttributes, RnrTimer,
};
pub use builder::QpBuilder;
pub use ece::Ece;
pub use modify::QpInfo;
pub use path::PathOptions;
pub use queue_pair::{Connected, Kind, QueuePair, Unconnected};
pub use raw_packet::RateLimit;
pub use sizes::Capacities;
pub use state::{State, Transport};
pub use transitions::{Transition, TransitionError, check, transition};
pub use uverbs_mlx5::format::EthChecksum;
pub use uverbs_mlx5::recv_queue::RecvBatch;
pub use uverbs_mlx5::request::{Immediate, ListError, PostError, PostFlags};
pub use uverbs_mlx5::send_queue::{
    AtomicResult, Batch, BindWindow, Carries, CompareSwap, Datagram, EthernetOffload, EthernetSend,
    EthernetSendHeader, EthernetTso, FetchAdd, Inline, LocalInvalidate, MaskedCompareSwap,
    MaskedFetchAdd, Nop, Operation, Payload, RawEthernet as RawPacket, Rc, Read,
    RunTimeDestination, RunTimeOperation, Segmented, Send, SendImmediate, SendInvalidate,
    SendRequest, Takes, Template, To, Uc, Ud, UnbindWindow, Write, WriteImmediate, Xrc, XrcTarget,
    segmented,
};
pub use uverbs_mlx5::size::Operations;
pub use xrc_target::XrcReceiver;
