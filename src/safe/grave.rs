//! What queues that are gone leave behind: slots that were in flight on them.

use std::ptr::NonNull;

use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::header::{Header, Headers, Serial, header_of, release_all};
use crate::fork::Lock;

/// A queue pair or shared receive queue that is gone, and the slots that were in flight on it.
#[derive(Debug)]
pub(super) struct Grave {
    handle: Option<QueueHandle>,
    /// Of a queue pair. Receives of a shared queue are looked up when the grave is opened: until then queue pairs
    /// may go on to consume them.
    slots: Vec<NonNull<Header>>,
    serial: Serial,
}

// SAFETY: the pointers lead to slots in flight, which belong to nobody's thread.
unsafe impl Send for Grave {}

impl Grave {
    pub(super) fn new(
        handle: Option<QueueHandle>,
        slots: Vec<NonNull<Header>>,
        serial: Serial,
    ) -> Self {
        Self { handle, slots, serial }
    }

    fn is_ready(&self) -> bool {
        self.handle.as_ref().is_none_or(QueueHandle::has_drained)
    }

    fn open(mut self) {
        let slots = &mut self.slots;
        let mut note = |wr_id| slots.extend(header_of(wr_id));
        self.handle.iter().for_each(|handle| handle.state().for_each_shared_receive(&mut note));
        for header in &self.slots {
            // SAFETY: whoever reaps holds the context, whose headers these are. They were launched on this queue, which
            // is destroyed; its completion queues have been polled past it, so no other thread lands them. Those
            // that completed before are not in flight on it any more.
            unsafe { release_all(*header, self.serial) };
        }
    }
}

/// What a context keeps for safe queue pairs: who they are to the poller, headers of slots, and slots of queues that are
/// gone until no poller can be taking them any more.
#[derive(Debug, Default)]
pub(crate) struct SafeState {
    /// A table of their own: no completion of a safe queue leads to a raw one's ids, whatever index the device writes.
    pub(crate) users: UserIndexTable,
    pub(super) headers: Headers,
    graves: Lock<Vec<Grave>>,
}

impl SafeState {
    pub(super) fn bury(&self, grave: Grave) {
        match self.graves.lock() {
            Some(mut graves) => graves.push(grave),
            // In a forked child that finds them locked: what it holds is the parent's.
            None => std::mem::forget(grave),
        }
        self.reap();
    }

    /// Gives back what can be: the slots of queues whose completion queues have passed everything that was
    /// in them, or are gone themselves. Nothing in a forked child, where a queue's own locks could be held for ever.
    pub(crate) fn reap(&self) {
        if self.graves.is_inherited() {
            return;
        }
        let Some(mut graves) = self.graves.lock() else { return };
        let (ready, waiting) =
            std::mem::take(&mut *graves).into_iter().partition::<Vec<_>, _>(Grave::is_ready);
        *graves = waiting;
        drop(graves);
        ready.into_iter().for_each(Grave::open);
    }
}

#[cfg(test)]
impl SafeState {
    /// Keeps everybody else waiting.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        (self.graves.lock(), self.headers.hold())
    }
}
