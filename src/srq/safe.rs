//! Shared receive queues that take slots.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use super::{SrqBuilder, SrqHandle};
use crate::error::Result;
use crate::host::events::Wait;
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::memory::Grave;
use crate::memory::header::{Flight, Serial};
use crate::memory::posting::{Admission, Refused};
use crate::memory::slab::Slot;
use crate::srq as raw;

impl SrqBuilder {
    /// Creates it.
    ///
    /// # Errors
    /// `InvalidInput` beyond what the device can; ENOMEM, with the memlock limit where that is the likely
    /// reason; what else the kernel says.
    pub fn build(self) -> Result<SharedReceiveQueue> {
        let serial = Serial::new("create_srq")?;
        let domain = self.domain().identity();
        let queue = ManuallyDrop::new(self.build_queue(serial.get())?);
        let flight = serial.shared_receives();
        Ok(SharedReceiveQueue { queue, serial, flight, domain })
    }
}

/// A shared receive queue whose receives are slots: whichever queue pair a message comes to, its completion
/// brings the slot back, from whichever completion queue that is polled.
///
/// Dereferences to its [`SrqHandle`], which asks, arms and changes it. It may be dropped before its queue pairs, which
/// then go on to consume what is posted; slots that are left go back to their slabs when the last of them is gone. A
/// receive that a queue pair had taken when that was destroyed is posted again by the next
/// [`SharedReceiveQueue::publish`], unless the device had begun to fill it: then it stays out until the queue is gone.
pub struct SharedReceiveQueue {
    queue: ManuallyDrop<raw::SharedReceiveQueue>,
    serial: Serial,
    flight: Flight,
    /// Whose memory it takes.
    domain: usize,
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}

impl Deref for SharedReceiveQueue {
    type Target = SrqHandle;
    fn deref(&self) -> &SrqHandle {
        self.queue.handle().for_slots()
    }
}

impl SharedReceiveQueue {
    /// What queue pairs hold of it. Only safe ones can be made with it.
    pub fn handle(&self) -> &SrqHandle {
        self.queue.handle().for_slots()
    }

    /// Receives that were posted and whose completion was not polled: see
    /// [`raw::SharedReceiveQueue::outstanding_receives`].
    pub fn outstanding_receives(&self) -> u32 {
        self.queue.outstanding_receives()
    }

    /// Receives that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Posts a receive that may fill all of `slot`: the device may use it from now on.
    ///
    /// # Errors
    /// The slot, with the reason.
    #[inline]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn receive(&mut self, slot: Slot) -> std::result::Result<(), Refused> {
        self.batch().receive(slot)
    }

    /// Starts posting several receives, of which the device is told together.
    #[inline(always)]
    pub fn batch(&mut self) -> SharedReceiveBatch<'_> {
        let admission = Admission { domain: self.domain, flight: self.flight };
        SharedReceiveBatch { queue: &mut self.queue, admission }
    }

    /// Tells the device of receives that have to be posted again because nothing was received into them.
    #[inline]
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    destroy_methods! {
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         what the kernel says. It comes back unharmed."
    }
}

/// Receives of which the device is told together, when this is dropped: from [`SharedReceiveQueue::batch`].
#[derive(Debug)]
pub struct SharedReceiveBatch<'q> {
    queue: &'q mut raw::SharedReceiveQueue,
    admission: Admission,
}

impl SharedReceiveBatch<'_> {
    /// Posts a receive that may fill all of `slot`.
    ///
    /// # Errors
    /// The slot, with the reason. What was posted before stands.
    #[inline]
    pub fn receive(&mut self, slot: Slot) -> std::result::Result<(), Refused> {
        let queue = &mut self.queue;
        self.admission.receive(slot, |id, data| {
            // SAFETY: the slot is launched then, and nothing touches its memory until the completion or the end of the
            // queue; it keeps the registration. The device learns of it only when it is published.
            unsafe { queue.batch().post(id, data) }
        })
    }
}

impl Drop for SharedReceiveBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.publish();
    }
}

impl Destroy for SharedReceiveQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.queue.destroy_in_place(wait)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let context = self.queue.context().clone();
        let handle = self.queue.handle().user().clone();
        // SAFETY: `self` is being dropped, so this is the last use of `queue`.
        unsafe { ManuallyDrop::drop(&mut self.queue) };
        context.inner().kept.defer(Grave::new(Some(handle), Vec::new(), self.serial));
    }
}
