//! Completion queues that give slots back.

use uverbs_mlx5::format::CqeOpcode;
use uverbs_mlx5::queue_state::QueueState;

use super::builder::CqBuilder;
use super::{CqHandle, PollError, Status, WorkCompletion};
use crate::cq as raw;
use crate::device::context::Context;
use crate::error::Result;
use crate::host::events::{ObjectId, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::memory::header::{
    CqBits, Flight, Serial, header_of, land, land_id, land_other, land_shared,
};
use crate::memory::slab::Slot;

/// A completion queue for safe queue pairs only.
#[derive(Debug)]
pub struct CompletionQueue {
    // Declared before `reaper`: with the poller gone, nobody can be taking slots that queue pairs left behind.
    queue: raw::CompletionQueue,
    /// The device's number for it: what slots in flight to it know it by.
    number: CqBits,
    #[allow(dead_code, reason = "for its drop")]
    reaper: Reaper,
}

/// Gives back what waited for a poller that is gone.
#[derive(Debug)]
struct Reaper(Context);

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.inner().kept.release_ready();
    }
}

/// A completion, lent until the next poll, and the slot that its request carried, which is the program's again.
#[derive(Debug)]
pub struct Completion<'c> {
    /// The slot: filled with what was received or read. `None` for inline data, and for a send that was
    /// posted unsignaled and failed: its slot goes back to its slab.
    pub slot: Option<Slot>,
    /// Everything else. Its `wr_id` and `user_context` mean nothing here; see [`Slot::tag`].
    pub completion: raw::Completion<'c>,
}

impl Completion<'_> {
    /// The slot, and a copy of everything else, that stay.
    pub fn copied(self) -> (Option<Slot>, WorkCompletion) {
        (self.slot, self.completion.to_work_completion())
    }
}

impl CqBuilder {
    /// Creates it.
    ///
    /// # Errors
    /// `InvalidInput` for no entries, too many, or a channel of another context; ENOMEM, with the memlock
    /// limit where that is the likely reason; what else the kernel says.
    pub fn build(self) -> Result<CompletionQueue> {
        let queue = self.build_queue()?;
        let reaper = Reaper(queue.handle().context().clone());
        Ok(CompletionQueue { number: CqBits::of(queue.number()), queue, reaper })
    }
}

impl CompletionQueue {
    /// What queue pairs hold of it.
    pub fn handle(&self) -> &CqHandle {
        self.queue.handle().for_slots()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.queue.context()
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.queue.id()
    }

    /// Completions that may be outstanding at a time.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// The next completion, with its slot.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of no request, which
    /// changed nothing; the other errors when there will not be any more.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> std::result::Result<Completion<'_>, PollError> {
        let completion = self.queue.poll()?;
        Ok(Completion { slot: landed(&completion, self.number), completion })
    }

    /// Shows `visit` as many completions as there are, `most` of them if there are more; returns how many. Their places
    /// are given back to the device together, so it costs less than polling one after the other: all of
    /// them when the last was shown, so a program that posts inside `visit` needs a queue with room for all that is outstanding
    /// and `most` besides.
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
    pub fn poll_up_to(
        &mut self,
        most: usize,
        mut visit: impl FnMut(Completion<'_>),
    ) -> std::result::Result<usize, PollError> {
        let number = self.number;
        self.queue.poll_up_to(most, |completion| {
            visit(Completion { slot: landed(&completion, number), completion });
        })
    }

    /// Completions that named no outstanding request: see [`raw::CompletionQueue::refused`].
    pub fn refused(&self) -> u64 {
        self.queue.refused()
    }

    /// Asks for an event at the next completion: see [`raw::CompletionQueue::arm`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self) {
        self.queue.arm();
    }

    /// Asks for an event at the next solicited completion or error.
    pub fn arm_solicited(&mut self) {
        self.queue.arm_solicited();
    }

    destroy_methods! {
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         what the kernel says. It comes back unharmed."
    }
}

impl Destroy for CompletionQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.queue.destroy_in_place(wait)
    }
}

/// The slot that a completion gives back.
#[inline(always)]
fn landed(completion: &raw::Completion<'_>, cq: CqBits) -> Option<Slot> {
    let id = completion.wr_id();
    let flight = Flight::of_completion(completion.side_context(), cq);
    if completion.is_success() {
        if id == 0 {
            return None;
        }
        // SAFETY: completions of this queue lead to safe queue pairs only, whose table is theirs alone, and they take slots
        // of their own context only. So the id leads to a header of a slab of this context, which keeps it, and which the
        // queue being polled keeps. One thread polls this queue, and slots in flight to it are landed by its poller
        // alone: what is left of a queue pair that is gone waits until it has been polled past that.
        if let Some(slot) = unsafe { land_id(id, flight) } {
            if flight.is_of_receive() {
                slot.header().set_length(filled(completion));
            }
            return Some(slot);
        }
    }
    let sent = completion.is_send();
    let slot = landed_otherwise(id, sent, completion.state(), flight.cq())?;
    if !sent {
        slot.header().set_length(filled(completion));
    }
    Some(slot)
}

/// A receive of a shared queue, a send with a chain, what failed, or nothing. It is told what it has to know of the
/// completion by value: one that is lent stays in registers.
#[cold]
#[inline(never)]
fn landed_otherwise(wr_id: u64, sent: bool, state: &QueueState, cq: CqBits) -> Option<Slot> {
    let serial = Serial::of(state.user_context());
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

/// Bytes of its slot that a receive filled; those of a peer's write went where it said.
#[inline(always)]
fn filled(completion: &raw::Completion<'_>) -> usize {
    let wrote_elsewhere = completion.cqe_opcode() == CqeOpcode::RESPONDER_WRITE_IMMEDIATE;
    if completion.status() != Status::Success || wrote_elsewhere {
        return 0;
    }
    completion.byte_len() as usize
}
