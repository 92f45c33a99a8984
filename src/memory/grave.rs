//! What queues that are gone leave behind: slots that were in flight on them.

use std::ptr::NonNull;

use uverbs_mlx5::user_index::QueueHandle;

use super::header::{Header, Serial, header_of, release_all};
use crate::device::kept::Deferred;

/// A queue pair or shared receive queue that is gone, and the slots that were in flight on it. They go back once its
/// completion queues have passed everything that was in them, or are gone themselves.
#[derive(Debug)]
pub(crate) struct Grave {
    handle: Option<QueueHandle>,
    /// Of a queue pair. Receives of a shared queue are looked up when the grave is opened: until then queue pairs
    /// may go on to consume them.
    slots: Vec<NonNull<Header>>,
    serial: Serial,
}

// SAFETY: the pointers lead to slots in flight, which belong to nobody's thread.
unsafe impl Send for Grave {}

impl Grave {
    pub(crate) fn new(
        handle: Option<QueueHandle>,
        slots: Vec<NonNull<Header>>,
        serial: Serial,
    ) -> Self {
        Self { handle, slots, serial }
    }
}

impl Deferred for Grave {
    fn is_ready(&self) -> bool {
        self.handle.as_ref().is_none_or(QueueHandle::has_drained)
    }

    fn release(mut self: Box<Self>) {
        let slots = &mut self.slots;
        let mut note = |wr_id| slots.extend(header_of(wr_id));
        self.handle.iter().for_each(|handle| handle.state().for_each_shared_receive(&mut note));
        for header in &self.slots {
            // SAFETY: whoever releases holds the context, whose headers these are. They were launched on this queue, which
            // is destroyed; its completion queues have been polled past it, so no other thread lands them. Those
            // that completed before are not in flight on it any more.
            unsafe { release_all(*header, self.serial) };
        }
    }
}
