//! The queues that a CQ polls, by the low byte of their user index: a cache of the table.
//!
//! A queue found here needs fewer comparisons than one that is looked up: its key tells at once
//! whether the CQE is its own, and whether the queue is open. Up to 256 queues that were registered
//! one after the other have places of their own.

#![allow(unsafe_code)]

use core::array;
use core::cell::Cell;
use std::sync::Arc;

use crate::queue_state::{QueueState, Shape};

/// One place for each low byte.
const PLACES: usize = 1 << 8;

/// Where a queue is, or [`KnownQueues::none`].
type Places = [Cell<*const QueueState>; PLACES];

/// Queues whose sends, and queues whose receives, this CQ's poller found to be its own.
///
/// A queue is in the place of its own index alone, and closed queues have a key with another low
/// byte. So no CQE whose index leads to a place equals the key of a closed queue there.
#[derive(Debug)]
pub(super) struct KnownQueues {
    pub(super) sends: Places,
    pub(super) receives: Places,
    /// What is in a place without a queue. This CQ's own, since its poller may write to it: its key
    /// is no queue's, and a device can say it all the same. It has no outstanding requests.
    none: Arc<QueueState>,
}

impl KnownQueues {
    pub(super) fn new() -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let none = Arc::<QueueState>::from(QueueState::new(shape));
        let places = || array::from_fn(|_| Cell::new(Arc::as_ptr(&none)));
        Self { sends: places(), receives: places(), none }
    }

    /// Empties all places. To be called before the CQ says that it was drained: then blocks of
    /// closed queues may become those of queues that complete to other CQs.
    pub(super) fn clear(&self) {
        let places = self.sends.iter().chain(&self.receives);
        places.for_each(|place| place.set(Arc::as_ptr(&self.none)));
    }

    /// The queue in a place.
    ///
    /// # Safety
    /// The place is one of these, and the blocks of the queues that were put there are alive.
    #[inline(always)]
    pub(super) unsafe fn get(place: &Cell<*const QueueState>) -> &QueueState {
        // SAFETY: such a block, or `none`.
        unsafe { &*place.get() }
    }
}
