//! Polling on both layers: completions of the raw layer carry ids, those of the safe layer slots.

#![allow(unsafe_code)]

use uverbs_mlx5::completion_queue as provider;
use uverbs_mlx5::completion_queue::PollBatch;
use uverbs_mlx5::format::CqeOpcode;
use uverbs_mlx5::queue_state::QueueState;

use super::builder::CqBuilder;
use super::{CompletionQueue, PollError, Status, WorkCompletion};
use crate::device::layer::{Layer, Raw, Safe};
use crate::host::lifetime::{Destroy, destroy_in_place_method};
use crate::memory::flight::{Flight, Serial};
use crate::memory::slot::{Slot, header_of, land, land_id, land_other, land_shared};
use crate::mlx5::RingLayout;

impl<L: Layer> CqBuilder<L> {
    /// Turns off the device's check for overruns: it overwrites completions that were not polled in
    /// time, instead of failing the queue.
    ///
    /// # Safety
    /// The requests outstanding on all queues that complete here never exceed the number of
    /// entries. Otherwise the device writes an entry while it is being read.
    pub unsafe fn ignore_overrun(self) -> Self {
        self.set_ignore_overrun()
    }
}

/// The addresses of a completion queue's parts, for programs that poll it themselves.
#[derive(Debug, Clone, Copy)]
pub struct CqLayout {
    /// The ring.
    pub ring: RingLayout,
    /// The doorbell record: two words, the consumer index and the word that arms.
    pub record: *mut u8,
    /// The page with the register that arms it.
    pub page: *mut u8,
}

impl CompletionQueue<Raw> {
    /// The addresses of its parts, valid until it is resized or destroyed; `None` if it has no
    /// ring.
    pub fn layout(&self) -> Option<CqLayout> {
        let memory = self.queue.memory();
        let ring = memory.ring(|ring| RingLayout {
            start: ring.memory.as_ptr(),
            entries: ring.entries,
            stride: ring.entry_bytes,
        })?;
        let record = std::ptr::with_exposed_provenance_mut(memory.record_address() as usize);
        Some(CqLayout { ring, record, page: self.context().inner().uars.arm_page() })
    }

    /// Takes the consumer index from the doorbell record: for programs that poll the ring
    /// themselves, and arm through [`CompletionQueue::arm`].
    pub fn follow_record(&mut self) {
        self.queue.follow_record();
    }

    /// The next completion, borrowed until the next call. `docs/ordering.md` says what it implies
    /// for other requests and for memory.
    ///
    /// An empty queue is an error value, as for `try_recv` of a channel, so one `match` covers all
    /// cases, and `while let Ok(completion) = cq.poll()` drains the queue.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for a completion of
    /// no outstanding request, which was ignored; the other errors are permanent.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> Result<provider::Completion<'_>, PollError> {
        self.queue.poll()
    }

    /// Starts polling several completions, whose entries are returned to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        self.queue.batch()
    }

    /// Calls `visit` with each completion that is there, up to `most`; returns their number. Their
    /// entries are returned to the device together after the last call, which costs less than
    /// polling one by one. A program that posts inside `visit` needs a queue with `most` entries
    /// more than requests can be outstanding.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] except `Empty`, if there was no completion.
    #[inline(always)]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll_up_to(
        &mut self,
        most: usize,
        visit: impl FnMut(provider::Completion<'_>),
    ) -> Result<usize, PollError> {
        self.queue.poll_up_to(most, visit)
    }

    /// Copies the completions that are there, up to the length of `out`; returns their number.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] except `Empty`, if there was no completion.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_into(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.queue.poll_into(out)
    }

    /// Removes completions of queue pairs that were reset or destroyed, which would otherwise
    /// occupy entries until they are polled. After
    /// [`QueuePair::reset`](crate::raw::QueuePair::reset) such entries reduce the requests that can
    /// be posted. The other completions stay in order.
    pub fn remove_closed(&mut self) {
        self.queue.remove_closed();
    }

    destroy_in_place_method! {
        "`Busy` while queue pairs or other handles hold it; errors of the kernel."
    }

    /// The provider's queue, for operations that this type does not offer.
    ///
    /// # Safety
    /// The caller does not exchange it with another queue (by `mem::swap`, for instance): it uses
    /// memory that `self` frees when dropped.
    #[inline]
    pub unsafe fn provider(&mut self) -> &mut provider::CompletionQueue {
        &mut self.queue
    }
}

/// A completion, borrowed until the next poll, and the slot of its request, which the program owns
/// again.
#[derive(Debug)]
pub struct Completion<'c> {
    /// The slot, filled with the received or read data. `None` for inline data, and for an
    /// unsignaled send that failed: [`Slab::free`](crate::Slab::free) says when its slot goes back
    /// to the slab.
    pub slot: Option<Slot>,
    /// The completion's fields. `wr_id` and `user_context` are internal values here; see
    /// [`Slot::tag`].
    pub completion: provider::Completion<'c>,
}

impl Completion<'_> {
    /// The slot and a copy of the completion, which outlive the next poll.
    pub fn copied(self) -> (Option<Slot>, WorkCompletion) {
        (self.slot, self.completion.to_work_completion())
    }
}

impl CompletionQueue<Safe> {
    /// The next completion, with its slot.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for a completion of
    /// no outstanding request, which was ignored; the other errors are permanent.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> Result<Completion<'_>, PollError> {
        let completion = self.queue.poll()?;
        Ok(Completion { slot: landed(&completion), completion })
    }

    /// Calls `visit` with each completion that is there, up to `most`; returns their number. Their
    /// entries are returned to the device together after the last call, which costs less than
    /// polling one by one. A program that posts inside `visit` needs a queue with `most` entries
    /// more than requests can be outstanding.
    ///
    /// ```no_run
    /// # let context = uverbs::open_default()?;
    /// # let pd = context.alloc_pd()?;
    /// # let mut cq = context.create_cq(256).build()?;
    /// let mut free = Vec::new();
    /// let count = cq.poll_up_to(16, |done| {
    ///     println!("{:?}", done.completion.status());
    ///     free.extend(done.slot);
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] except `Empty`, if there was no completion.
    #[inline(always)]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll_up_to(
        &mut self,
        most: usize,
        mut visit: impl FnMut(Completion<'_>),
    ) -> Result<usize, PollError> {
        self.queue.poll_up_to(most, |completion| {
            visit(Completion { slot: landed(&completion), completion });
        })
    }
}

/// The slot that a completion gives back.
#[inline(always)]
fn landed(completion: &provider::Completion<'_>) -> Option<Slot> {
    let id = completion.wr_id();
    let flight = Flight::of_completion(completion.side_context());
    if completion.is_success() {
        if id == 0 {
            return None;
        }
        // SAFETY: completions of this queue lead to safe queue pairs only, whose table no others
        // use, and they take slots of their own context only. So the id is the address of a header
        // in a slab that this context keeps; the polled queue keeps the context. One thread polls
        // this queue, and only its poller lands slots in flight to it: a completion of a queue pair
        // that completes to another queue is `NotOutstanding` here, and the slots of a destroyed
        // queue pair are released only after this queue was polled past its completions.
        if let Some(slot) = unsafe { land_id(id, flight) } {
            if flight.is_of_receive() {
                slot.header().set_length(filled(completion));
            }
            return Some(slot);
        }
    }
    let sent = completion.is_send();
    let slot = landed_otherwise(id, sent, completion.state(), flight)?;
    if !sent {
        slot.header().set_length(filled(completion));
    }
    Some(slot)
}

/// The slot of a receive of a shared queue, of a send with a chain, or of a failed request; `None`
/// if there is no slot. Takes the completion's fields by value: the caller's borrowed completion
/// then stays in registers.
#[cold]
#[inline(never)]
fn landed_otherwise(wr_id: u64, sent: bool, state: &QueueState, flight: Flight) -> Option<Slot> {
    let (serial, cq) = (flight.serial(), flight.cq());
    if sent {
        // SAFETY: as in `landed`.
        return unsafe { land_other(wr_id, serial, cq) };
    }
    let header = header_of(wr_id)?;
    match state.shared_receive_context() {
        // SAFETY: as in `landed`: safe shared receive queues too take slots of their own context
        // only.
        Some(shared) => unsafe { land_shared(header, Serial::of(shared).shared_receives()) },
        // SAFETY: as in `landed`.
        None => unsafe { land(header, serial.receives(cq)) },
    }
}

/// Bytes of the slot that a receive filled; a peer's WRITE with immediate fills none.
#[inline(always)]
fn filled(completion: &provider::Completion<'_>) -> usize {
    let wrote_elsewhere = completion.cqe_opcode() == CqeOpcode::RESPONDER_WRITE_IMMEDIATE;
    if completion.status() != Status::Success || wrote_elsewhere {
        return 0;
    }
    completion.byte_len() as usize
}
