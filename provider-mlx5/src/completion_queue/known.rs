//! The queues that a CQ polls: the table of user indices, and a cache of it.
//!
//! A queue in the cache needs fewer comparisons than one that is looked up: its key tells at once
//! whether the CQE is its own, and whether the queue is open. Up to 256 queues that were registered
//! one after the other have places of their own.

#![allow(unsafe_code)]

use core::array;
use core::cell::Cell;
use core::mem::offset_of;
use std::sync::Arc;

use super::completion::Completion;
use super::ring::CqeView;
use crate::format::Cqe;
use crate::queue_state::{PolledReceives, PolledSends, QueueState, Shape, Side};
use crate::user_index::{TableView, UserIndexTable};

/// One place for each low byte of a user index.
const PLACES: usize = 1 << 8;
const USER_INDEX: usize = offset_of!(Cqe, srqn_user_index);

/// Where a queue is, or [`KnownQueues::none`].
type Places = [Cell<*const QueueState>; PLACES];

/// The table, and those of its queues whose sends, or whose receives, this CQ's poller found to be
/// its own.
///
/// A queue is in the place of its own index alone, and closed queues have a key with another low
/// byte. So no CQE whose index leads to a place equals the key of a closed queue there.
#[derive(Debug)]
pub(super) struct KnownQueues {
    view: TableView,
    /// [`CqMonitor::identity`](super::CqMonitor).
    identity: usize,
    sends: Places,
    receives: Places,
    /// What is in a place without a queue. This CQ's own, since its poller may write to it: its key
    /// is no queue's, and a device can say it all the same. It has no outstanding requests.
    none: Arc<QueueState>,
}

// SAFETY: the places lead to `none`, and to blocks that live as long as the table, which `view`
// keeps. Blocks are `Sync`.
unsafe impl Send for KnownQueues {}

impl KnownQueues {
    /// The queues of `table` that complete to the CQ with this identity.
    pub(super) fn new(table: &UserIndexTable, identity: usize) -> Self {
        let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
        let none = Arc::<QueueState>::from(QueueState::new(shape));
        let places = || array::from_fn(|_| Cell::new(Arc::as_ptr(&none)));
        let view = TableView::new(table);
        Self { view, identity, sends: places(), receives: places(), none }
    }

    /// Empties the cache. To be called before the CQ says that it was drained: then blocks of
    /// closed queues may become those of queues that complete to other CQs.
    pub(super) fn clear(&self) {
        let places = self.sends.iter().chain(&self.receives);
        places.for_each(|place| place.set(Arc::as_ptr(&self.none)));
    }

    /// The table.
    pub(super) fn table(&self) -> &UserIndexTable {
        self.view.table()
    }

    /// Has [`KnownQueues::any`] know all queues that are registered by now.
    pub(super) fn refresh(&mut self) {
        self.view.refresh();
    }

    /// The queue that a user index leads to, open or not.
    pub(super) fn any(&self, index: u32) -> Option<&QueueState> {
        self.view.block(index)
    }

    /// The identity of the CQ.
    pub(super) fn identity(&self) -> usize {
        self.identity
    }

    /// The open queue that a CQE, which is ours, is of, if this CQ polls its sends.
    #[inline(always)]
    pub(super) fn sends_of(&self, cqe: CqeView) -> Option<PolledSends<'_>> {
        let queue = self.find(cqe, &self.sends, QueueState::send_side)?;
        // SAFETY: as `find` says; the CQ's poller is this thread, since only its CQ has this value,
        // which is not `Sync`.
        Some(unsafe { PolledSends::new(queue) })
    }

    /// The open queue that a CQE, which is ours, is of, if this CQ polls its receives.
    #[inline(always)]
    pub(super) fn receives_of(&self, cqe: CqeView) -> Option<PolledReceives<'_>> {
        let queue = self.find(cqe, &self.receives, QueueState::recv_side)?;
        // SAFETY: as in `sends_of`.
        Some(unsafe { PolledReceives::new(queue) })
    }

    /// The open queue that the user index of a CQE leads to, if this CQ polls that `side` of it; or
    /// `none`. The byte above the index counts segments of large receive offload; CQEs in which it
    /// is not 0 find their queue on the slow path.
    #[inline(always)]
    fn find<'q>(
        &'q self,
        cqe: CqeView,
        known: &'q Places,
        side: fn(&QueueState) -> &Side,
    ) -> Option<&'q QueueState> {
        crate::barrier::from_device();
        let place = &known[usize::from(cqe.u8(USER_INDEX + 3))];
        // SAFETY: `none`, or a block of the table that `view` keeps.
        let queue = unsafe { &*place.get() };
        // The key first: so the load of the index is an operand of the comparison.
        let key = side(queue).key();
        if key == cqe.u32_in_memory(USER_INDEX) {
            return Some(queue);
        }
        crate::hint::seldom();
        let index = cqe.u32(USER_INDEX);
        let queue = self.view.block(index)?;
        if !side(queue).is_polled_by(self.identity) {
            return None;
        }
        known[usize::from(index as u8)].set(queue);
        Some(queue)
    }
}

impl Completion<'_> {
    /// What the QP's posting and polling sides share.
    #[inline(always)]
    pub fn state(&self) -> &QueueState {
        // SAFETY: the side is that of a registered queue, whose block lives as long as it does.
        unsafe { &*self.side().block() }
    }

    #[inline(always)]
    pub(super) fn side(&self) -> &Side {
        // SAFETY: blocks live as long as the user index table, which the CQ keeps alive, and the CQ
        // is borrowed.
        unsafe { &*self.raw.side }
    }
}
