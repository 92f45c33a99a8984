//! Completion queues that give slots back.

use super::header::{Serial, header_of, land, land_shared, release_chain, releases_only};
use super::slab::Slot;
use crate::context::Context;
use crate::cq::{
    Completion, CompletionOpcode, CompletionQueue, CqBuilder, CqHandle, PollError, Status,
    WorkCompletion,
};
use crate::error::Result;
use crate::events::{ObjectId, Wait};
use crate::lifetime::{Destroy, destroy_methods};

/// A completion queue for safe queue pairs only.
#[derive(Debug)]
pub struct SafeCompletionQueue {
    // Declared before `reaper`: with the poller gone, nobody can be taking slots that queue pairs left behind.
    queue: CompletionQueue,
    /// The device's number for it: what slots in flight to it know it by.
    number: u32,
    #[allow(dead_code, reason = "for its drop")]
    reaper: Reaper,
}

/// Gives back what waited for a poller that is gone.
#[derive(Debug)]
struct Reaper(Context);

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.inner().safe.reap();
    }
}

/// What safe queue pairs hold of a [`SafeCompletionQueue`].
#[derive(Debug, Clone)]
#[repr(transparent)]
pub struct SafeCqHandle(CqHandle);

impl SafeCqHandle {
    pub(super) fn raw(&self) -> &CqHandle {
        &self.0
    }
}

/// A completion, and the slot that its request carried.
#[derive(Debug)]
pub struct SafeCompletion {
    /// The slot: filled with what was received or read. `None` for inline data, and for a send that was
    /// posted unsignaled and failed: its slot goes back to its slab.
    pub slot: Option<Slot>,
    /// Everything else. Its `wr_id` and `user_context` mean nothing here; see [`Slot::tag`].
    pub completion: WorkCompletion,
}

impl CqBuilder {
    /// Creates a completion queue for safe queue pairs.
    ///
    /// # Errors
    /// As [`CqBuilder::build`].
    pub fn build_safe(self) -> Result<SafeCompletionQueue> {
        let queue = self.build()?;
        let reaper = Reaper(queue.handle().context().clone());
        Ok(SafeCompletionQueue { number: queue.number(), queue, reaper })
    }
}

impl SafeCompletionQueue {
    /// What queue pairs hold of it.
    pub fn handle(&self) -> &SafeCqHandle {
        let handle = std::ptr::from_ref(self.queue.handle()).cast::<SafeCqHandle>();
        // SAFETY: a transparent wrapper, borrowed for as long as what it wraps.
        unsafe { &*handle }
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.queue.id()
    }

    /// The next completion, with its slot.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; the other errors when there will not be any more.
    #[inline]
    pub fn poll(&mut self) -> std::result::Result<SafeCompletion, PollError> {
        let completion = self.queue.poll()?;
        let slot = landed(&completion, self.number);
        Ok(SafeCompletion { slot, completion: completion.to_work_completion() })
    }

    /// Asks for an event at the next completion: see [`CompletionQueue::arm`].
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

impl Destroy for SafeCompletionQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.queue.destroy_in_place(wait)
    }
}

/// The slot that a completion gives back.
#[inline]
fn landed(completion: &Completion<'_>, cq: u32) -> Option<Slot> {
    if completion.is_send() { sent(completion, cq) } else { received(completion, cq) }
}

#[inline]
fn sent(completion: &Completion<'_>, cq: u32) -> Option<Slot> {
    let header = header_of(completion.wr_id())?;
    let flight = Serial::of(completion.user_context()).sends(cq);
    if releases_only(completion.wr_id()) {
        // SAFETY: as for a slot's own chain, below.
        unsafe { release_chain(header.as_ptr(), flight) };
        return None;
    }
    // SAFETY: only safe queue pairs complete here, and they take slots of their own context only. So the id is a
    // header of a slab of this context, which keeps it, and which the queue being polled keeps.
    let (unsignaled, before) = unsafe { header.as_ref() }.chain();
    if unsignaled {
        // It failed, so it completes; whoever was to release it still does.
        return None;
    }
    // SAFETY: one thread polls this queue, and slots in flight to it are landed by its poller alone: what is left
    // of a queue pair that is gone waits until it has been polled past that.
    let slot = unsafe { land(header, flight) }?;
    if !before.is_null() {
        // SAFETY: they were posted unsignaled before it, on the same send queue, and only it releases them.
        unsafe { release_chain(before, flight) };
    }
    Some(slot)
}

#[inline]
fn received(completion: &Completion<'_>, cq: u32) -> Option<Slot> {
    let header = header_of(completion.wr_id())?;
    let slot = match completion.state().shared_receive_context() {
        // SAFETY: as in `sent`: only safe queue pairs and shared receive queues complete here.
        Some(srq) => unsafe { land_shared(header, Serial::of(srq).shared_receives()) }?,
        None => {
            let flight = Serial::of(completion.user_context()).receives(cq);
            // SAFETY: as in `sent`.
            unsafe { land(header, flight) }?
        }
    };
    slot.header().set_length(filled(completion));
    Some(slot)
}

/// Bytes of its slot that a receive filled; those of a peer's write went where it said.
#[inline]
fn filled(completion: &Completion<'_>) -> usize {
    let wrote_elsewhere = completion.opcode() == CompletionOpcode::RecvWriteImmediate;
    if completion.status() != Status::Success || wrote_elsewhere {
        return 0;
    }
    completion.byte_len() as usize
}
