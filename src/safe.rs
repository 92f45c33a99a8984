//! Posting without `unsafe`: memory in flight cannot be accessed, freed or handed out twice.
//!
//! A [`Slab`] is registered memory divided into [`Slot`]s. The owner of a slot reads and writes its
//! bytes as a slice. Posting moves the slot into the queue, where its address is the work request's
//! id; the completion moves it back out. In between no code can access it.
//!
//! The [crate]'s page has an example.
//!
//! In a batch ([`QueuePair::batch`], [`QueuePair::receive_batch`], [`SharedReceiveQueue::batch`])
//! several sends or receives share one doorbell. [`CompletionQueue::poll_up_to`] updates the
//! consumer index once for several completions.
//!
//! A dropped slot returns to its slab, not to the queue: a loop that does not post received slots
//! again drains the receive queue. [`QueuePair::outstanding_receives`] and
//! [`QueuePair::receives_run_low`] show that.
//!
//! # Why it is sound
//! - A `Slot` value is made in two places only: [`Slab::take`] removes it from the free list, and a
//!   completion removes it from its request.
//! - A safe [`CompletionQueue`] accepts completions of safe queue pairs only: a completion names
//!   its queue pair by an index into a table that has only those. So the id in such a completion is
//!   always a slot of a safe queue pair, or zero. The slot is handed out only if it is still in
//!   flight on the queue pair, direction and completion queue of the completion. So it is handed
//!   out once, even if the device completes it twice or elsewhere.
//! - A slot is marked as in flight when its request can no longer be refused, and before the device
//!   can see it. So a refused slot was never in flight, whatever the device reports.
//! - A batch marks its slots one by one, before the doorbell. A leaked batch loses its slots,
//!   except receives of a shared queue, which the queue's next post publishes.
//!   [`CompletionQueue::poll_up_to`] takes a closure and returns no guard: after a leaked guard the
//!   same completions would be polled again, while their slots may be in flight again.
//! - A queue pair takes slots of its own protection domain only, so the memory that a completion's
//!   id names lives as long as the polled queue.
//! - Dropping a queue pair destroys it. Its slots are given back only after its completion queues
//!   have passed all completions that they held, so that a poller in another thread cannot take a
//!   slot at the same time. If the destruction fails, or the queue pair is leaked, its slots are
//!   never given back.
//! - Each slot keeps its slab, and so the registration, alive. The reference count changes when a
//!   slot is taken and given back, not per request.
//! - Slabs are registered for local access only, and their keys are private, so no remote operation
//!   and no memory window reaches a slot. Memory for peers is a
//!   [`MemoryRegion`](crate::MemoryRegion), accessed through views.
//!
//! The compiler refuses use of a slot in flight, of a completion after the next poll, and of a
//! queue while a batch borrows it. Handles of the two layers are different types, so a queue pair
//! completes to queues of its own layer only.
//!
//! # What it costs
//! `docs/vs-libmlx5.md` has the instruction counts of both layers, from `benches/safe_layer`.
//!
//! The safe layer adds no lock, allocation or reference count to a request. It adds the checks of
//! the slot's domain, queue pair and completion queue, and the header words written when a slot is
//! posted and given back. If a completion also releases slots of earlier unsignaled sends, it takes
//! the mutex of their slab and decrements a reference count for each of them.

pub use crate::cq::CompletionQueue;
pub use crate::cq::poll::Completion;
pub use crate::memory::posting::Refused;
pub use crate::memory::slab::Slab;
pub use crate::memory::slot::Slot;
pub use crate::qp::QueuePair;
pub use crate::qp::safe::{Batch, InlineTemplate, ReceiveBatch, SlotRequest};
pub use crate::srq::SharedReceiveQueue;
pub use crate::srq::post::SharedReceiveBatch;
