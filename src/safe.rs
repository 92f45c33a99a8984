//! Posting without `unsafe`: memory that is in flight cannot be touched, freed or handed out twice.
//!
//! A [`Slab`] is registered memory cut into [`Slot`]s. A slot is the right to its bytes: its holder
//! reads and writes them as a plain slice. Posting moves the slot into the queue, where its address
//! is the work request's id; the completion moves it back out. In between no code has it.
//!
//! The [crate]'s page begins with an example.
//!
//! Several sends or receives share one doorbell in a batch ([`QueuePair::batch`],
//! [`QueuePair::receive_batch`], [`SharedReceiveQueue::batch`]), and several completions one report
//! to the device ([`CompletionQueue::poll_up_to`]).
//!
//! A slot that a completion brings and that is dropped goes back to its slab, not to the queue: a
//! loop that forgets to post it again drains the receive queue. [`QueuePair::outstanding_receives`]
//! and [`QueuePair::receives_run_low`] show that.
//!
//! # Why it holds
//! - A slot is made in two places only: [`Slab::take`], from the free list, and a completion, from
//!   a request that carried it. Both take it out of where it was.
//! - Completions of safe queue pairs go to [`CompletionQueue`]s, and nothing else does: the device
//!   names queues there by an index into a table that has safe ones only. So the id in such a
//!   completion always is a slot of a queue pair of this module, or zero. It is given out only if
//!   the slot still is in flight on the very queue pair that the completion names, in the direction
//!   that it names, and towards the very completion queue that was polled, so a device that
//!   completes something twice, or elsewhere, gives it out once.
//! - A slot goes into flight only once nothing can keep its request from being posted any more, and
//!   before the device can see it. So one that is refused never was in flight, whatever the device
//!   claims.
//! - A batch puts slots into flight one by one, before the device is told of any. One that is
//!   leaked loses them; receives of a shared queue are published by its next post. Several
//!   completions are polled by [`CompletionQueue::poll_up_to`] and not through a guard: a leaked
//!   guard would have the same completions polled again, when their slots may be in flight once
//!   more.
//! - A queue pair takes slots of its own protection domain only, so what a completion's id leads to
//!   lives as long as the queue that is polled.
//! - A queue pair that is dropped is destroyed first, and what it held is given back only after its
//!   completion queues have passed everything that was in them, so that a poller in another thread
//!   cannot take a slot at the same time. One whose destruction fails, or that is leaked, keeps its
//!   slots for ever.
//! - Each slot keeps its slab, and so the registration, alive. Counting happens when a slot is
//!   taken and when it is given back, not per request.
//! - Slabs are registered for local access only, and no key of theirs is ever shown, so no remote
//!   operation and no memory window reaches a slot. Memory for peers is a
//!   [`MemoryRegion`](crate::MemoryRegion), seen through views.
//!
//! What the compiler refuses: a slot that is in flight, a completion that the next poll may
//! overwrite, a post beside a batch. Handles of the two layers are different types, so a queue pair
//! completes to queues of its own layer only.
//!
//! # What it costs
//! `docs/vs-libmlx5.md` has the instructions of both layers, which `benches/safe_layer` counts.
//!
//! The safe layer adds no lock, allocation or reference count. It adds the checks of the slot's
//! domain, queue pair and completion queue, and the words that are written when a slot goes into
//! flight and comes back. A completion that also releases slots which were posted unsignaled before
//! takes a mutex of their slab and counts for each of them.

pub use crate::cq::CompletionQueue;
pub use crate::cq::poll::Completion;
pub use crate::memory::posting::Refused;
pub use crate::memory::slab::Slab;
pub use crate::memory::slot::Slot;
pub use crate::qp::QueuePair;
pub use crate::qp::safe::{Batch, InlineTemplate, ReceiveBatch, SlotRequest};
pub use crate::srq::SharedReceiveQueue;
pub use crate::srq::post::SharedReceiveBatch;
