//! Completion queues that give slots back.

use std::sync::atomic::Ordering;

use super::queue_pair::{header_of, release_chain};
use super::slab::{Flight, Slot};
use crate::cq::{
    CompletionOpcode, CompletionQueue, CqBuilder, CqHandle, PollError, Status, WorkCompletion,
};
use crate::error::Result;
use crate::events::ObjectId;

/// A completion queue for safe queue pairs only.
#[derive(Debug)]
pub struct SafeCompletionQueue {
    handle: SafeCqHandle,
    /// What slots in flight to it know it by.
    id: u64,
    queue: Option<CompletionQueue>,
}

/// What safe queue pairs hold of a [`SafeCompletionQueue`].
#[derive(Debug, Clone)]
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
        let handle = SafeCqHandle(queue.handle().clone());
        let id = queue.id().0;
        Ok(SafeCompletionQueue { handle, id, queue: Some(queue) })
    }
}

impl SafeCompletionQueue {
    /// What queue pairs hold of it.
    pub fn handle(&self) -> &SafeCqHandle {
        &self.handle
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.handle.0.id()
    }

    /// The next completion, with its slot.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; the other errors when there will not be any more.
    #[inline]
    pub fn poll(&mut self) -> std::result::Result<SafeCompletion, PollError> {
        let queue = self.queue.as_mut().ok_or(PollError::DeviceRemoved)?;
        let completion = queue.poll()?.to_work_completion();
        Ok(SafeCompletion { slot: landed(&completion, self.id), completion })
    }

    /// Asks for an event at the next completion: see [`CompletionQueue::arm`].
    pub fn arm(&mut self) {
        self.queue.iter_mut().for_each(CompletionQueue::arm);
    }

    /// Asks for an event at the next solicited completion or error.
    pub fn arm_solicited(&mut self) {
        self.queue.iter_mut().for_each(CompletionQueue::arm_solicited);
    }
}

/// The slot that a completion gives back.
#[inline]
fn landed(completion: &WorkCompletion, cq: u64) -> Option<Slot> {
    let header = header_of(completion.wr_id)?;
    let flight = Flight { owner: completion.user_context, cq };
    // SAFETY: only safe queue pairs complete here, and they take slots of their own protection domain only. So the
    // id is a header of a slab of this context, which keeps it, and which the queue being polled keeps.
    let slot = unsafe { header.as_ref() };
    if slot.unsignaled.load(Ordering::Relaxed) != 0 {
        // It failed, so it completes; whoever was to release it still does.
        return None;
    }
    let before = slot.before.load(Ordering::Relaxed);
    // SAFETY: one thread polls this queue, and slots in flight to it are landed by its poller alone: what is left
    // of a queue pair that is gone waits until it has been polled past that.
    let mut slot = unsafe { Slot::land(header, flight) }?;
    // SAFETY: they were posted unsignaled before it, on the same send queue, and only it releases them.
    unsafe { release_chain(before, flight) };
    match completion.opcode {
        CompletionOpcode::Recv => slot.set_len(received(completion)),
        // The data went where the peer's write said.
        CompletionOpcode::RecvWriteImmediate => slot.set_len(0),
        _ => {}
    }
    Some(slot)
}

fn received(completion: &WorkCompletion) -> usize {
    match completion.status {
        Status::Success => completion.byte_len as usize,
        _ => 0,
    }
}

impl Drop for SafeCompletionQueue {
    fn drop(&mut self) {
        let context = self.handle.0.context().clone();
        // With its poller gone, nobody can be taking slots that queue pairs left behind.
        self.queue = None;
        context.inner().safe.reap();
    }
}
