//! Polling on both layers: the raw one hands back ids, the safe one slots.

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
    /// The device does not check for overruns: instead of failing the queue it overwrites
    /// completions that were not polled in time.
    ///
    /// # Safety
    /// There are never more completions than entries that were not polled: the requests outstanding
    /// on all queues that complete here are no more than its entries. Otherwise the device writes
    /// an entry while it is being read.
    pub unsafe fn ignore_overrun(self) -> Self {
        self.set_ignore_overrun()
    }
}

/// Where the parts of a completion queue are: for programs that poll it themselves.
#[derive(Debug, Clone, Copy)]
pub struct CqLayout {
    /// The ring.
    pub ring: RingLayout,
    /// The doorbell record: two words, the consumer index and the one that arms.
    pub record: *mut u8,
    /// The page with the register that arms it.
    pub page: *mut u8,
}

impl CompletionQueue<Raw> {
    /// Where its parts are; `None` if it has no ring. They stay there until it is resized or
    /// destroyed.
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

    /// Goes to where the doorbell record says that polling is: the program polls the ring itself,
    /// and arms through [`CompletionQueue::arm`].
    pub fn follow_record(&mut self) {
        self.queue.follow_record();
    }

    /// The next completion, lent until the next call. What it says of other requests and of memory:
    /// `docs/ordering.md`.
    ///
    /// That there is none now is an error of its own, as for
    /// `try_recv` of a channel: one match then tells a program everything, and `while let
    /// Ok(completion) = cq.poll()` takes what is there.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of
    /// no request, which changed nothing; the other errors when there will not be any more.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> Result<provider::Completion<'_>, PollError> {
        self.queue.poll()
    }

    /// Starts polling several completions, whose places are given back to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        self.queue.batch()
    }

    /// Shows `visit` as many completions as there are, `most` of them if there are more; returns
    /// how many. Their places are given back to the device together, when the last was shown, so it
    /// costs less than polling one after the other. A program that posts inside
    /// `visit` needs a queue that holds all that is outstanding and `most` besides.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
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

    /// Copies as many completions as there are, up to the length of `out`; returns how many.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_into(&mut self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.queue.poll_into(out)
    }

    /// Takes out what it holds of queue pairs that were reset or destroyed, so that this takes up
    /// no places until it is polled. What [`QueuePair::reset`](crate::raw::QueuePair::reset) leaves
    /// bounds the requests of the next life until then. What remains stays in order.
    pub fn remove_closed(&mut self) {
        self.queue.remove_closed();
    }

    destroy_in_place_method! {
        "`Busy` while queue pairs or other handles hold it; errors of the kernel."
    }

    /// The provider's own queue, for everything that this type does not offer.
    ///
    /// # Safety
    /// It stays where it is: it is not exchanged with another one (by
    /// `mem::swap` and the like), since it works on memory that `self` frees when it goes.
    #[inline]
    pub unsafe fn provider(&mut self) -> &mut provider::CompletionQueue {
        &mut self.queue
    }
}

/// A completion, lent until the next poll, and the slot that its request carried, which is the
/// program's again.
#[derive(Debug)]
pub struct Completion<'c> {
    /// The slot: filled with what was received or read. `None` for inline data, and for a send that
    /// was posted unsignaled and failed: [`Slab::free`](crate::Slab::free) says when its slot goes
    /// back to its slab.
    pub slot: Option<Slot>,
    /// Everything else. Its `wr_id` and `user_context` mean nothing here; see [`Slot::tag`].
    pub completion: provider::Completion<'c>,
}

impl Completion<'_> {
    /// The slot, and a copy of everything else, that stay.
    pub fn copied(self) -> (Option<Slot>, WorkCompletion) {
        (self.slot, self.completion.to_work_completion())
    }
}

impl CompletionQueue<Safe> {
    /// The next completion, with its slot.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of
    /// no request, which changed nothing; the other errors when there will not be any more.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> Result<Completion<'_>, PollError> {
        let completion = self.queue.poll()?;
        Ok(Completion { slot: landed(&completion), completion })
    }

    /// Shows `visit` as many completions as there are, `most` of them if there are more; returns
    /// how many. Their places are given back to the device together, when the last was shown, so it
    /// costs less than polling one after the other. A program that posts inside
    /// `visit` needs a queue that holds all that is outstanding and `most` besides.
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
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
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
        // use, and they take slots of their own context only. So the id leads to a header of a slab
        // of this context, which keeps it, and which the queue being polled keeps. One thread polls
        // this queue, and only its poller lands slots in flight to it: a completion of a queue pair
        // that completes to another one is `NotOutstanding` here, and what is left of a queue pair
        // that is gone waits until it has been polled past that.
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
        // SAFETY: as in `landed`: safe shared receive queues take slots of their own context, too.
        Some(shared) => unsafe { land_shared(header, Serial::of(shared).shared_receives()) },
        // SAFETY: as in `landed`.
        None => unsafe { land(header, serial.receives(cq)) },
    }
}

/// Bytes of its slot that a receive filled; a peer's write with immediate fills none of them.
#[inline(always)]
fn filled(completion: &provider::Completion<'_>) -> usize {
    let wrote_elsewhere = completion.cqe_opcode() == CqeOpcode::RESPONDER_WRITE_IMMEDIATE;
    if completion.status() != Status::Success || wrote_elsewhere {
        return 0;
    }
    completion.byte_len() as usize
}
