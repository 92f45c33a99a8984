//! The send queue of frames.

use std::fmt;
use std::marker::PhantomData;

use uverbs_mlx5::send_queue::EthernetOffload;

use super::clock::{Clock, FreeRunning, Timestamp};
use super::rings::{Sendable, StagedFrames, TxRing};
use super::template::{Tailed, Template};
use crate::cq::{CompletionQueue, PollError, Status};
use crate::device::context::Context;
use crate::device::layer::Raw;
use crate::error::{DestroyError, Result};
use crate::memory::posting::Refused;
use crate::memory::slot::Slot;
use crate::qp::{PostError, PostFlags};

/// A send queue of frames: from
/// [`ProtectionDomain::create_tx_queue`](crate::ProtectionDomain::create_tx_queue).
///
/// One thread uses it at a time. `C` is the clock of its timestamps.
pub struct TxQueue<C: Clock = FreeRunning> {
    ring: TxRing,
    cq: CompletionQueue<Raw>,
    /// Frames per completion.
    every: u32,
    /// Frames until the next completion; 0 after a frame has failed.
    left: u32,
    counters: TxCounters,
    clock: PhantomData<C>,
}

/// The counters of a [`TxQueue`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Posted frames.
    pub sent: u64,
    /// Polled completions of successful frames.
    pub completed: u64,
    /// Polled completions of failed frames. The queue sends no frame after the first failure.
    pub failed: u64,
}

/// The completion of a frame. If it succeeded, all frames before it have also been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent<C> {
    /// The frame's id.
    pub id: u64,
    /// When the device completed it.
    pub timestamp: Timestamp<C>,
    /// The status; any status other than `Success` stops the queue.
    pub status: Status,
}

impl<C: Clock> fmt::Debug for TxQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxQueue")
            .field("qp", self.ring.queue_pair())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<C: Clock> TxQueue<C> {
    /// A queue whose QP is ready to send.
    pub(super) fn new(ring: TxRing, cq: CompletionQueue<Raw>, every: u32) -> Self {
        let counters = TxCounters::default();
        Self { ring, cq, every, left: every, counters, clock: PhantomData }
    }

    /// Builds a template for sending frames. `frame` begins with the destination address, contains
    /// the VLAN tag if there is one, and has no frame check sequence. `offload` selects the
    /// checksums (layers 3 and 4) that the device computes in each frame.
    ///
    /// # Errors
    /// [`PostError::NotATemplate`] if it takes more than `BLOCKS` blocks
    /// ([`blocks`](super::blocks)); `InlineTooLong` if it is longer than the queue allows;
    /// `BadHeader` if it is shorter than a header; `VlanWithHeader` if `offload` has a VLAN tag.
    pub fn template<const BLOCKS: usize>(
        &mut self,
        frame: &[u8],
        offload: EthernetOffload,
    ) -> std::result::Result<Template<BLOCKS>, PostError> {
        self.ring.template(frame, offload)
    }

    /// Builds a frame whose start is in the work request, and whose end the device reads from
    /// `tail`, the filled part of a slot. The queue keeps the slot as long as it exists, because
    /// the device may read it at any time. `BLOCKS` is
    /// [`blocks_with_tail`](super::blocks_with_tail) of the start's length.
    ///
    /// # Errors
    /// The slot, with the reason: `ForeignMemory` if it is of another protection domain,
    /// `NotATemplate` if it is empty; otherwise as for [`TxQueue::template`].
    pub fn template_with_tail<const BLOCKS: usize>(
        &mut self,
        start: &[u8],
        tail: Slot,
        offload: EthernetOffload,
    ) -> std::result::Result<Tailed<BLOCKS>, Refused> {
        self.ring.tailed(start, tail, offload)
    }

    /// Posts a frame and rings the doorbell. If the frame generates a completion, that has this
    /// `id`.
    ///
    /// It is fastest to copy the template and set the copy's fields just before the call: the
    /// compiler keeps the copy in registers.
    ///
    /// # Errors
    /// [`PostError::Full`] while too many frames are outstanding: [`TxQueue::poll`] or
    /// [`TxQueue::reap`] makes space. `QueueFailed` after one of these has found a failed frame.
    /// `InlineTooLong` for a template of another queue that is longer than this queue allows.
    #[inline(always)]
    pub fn send<const BLOCKS: usize>(
        &mut self,
        id: u64,
        template: &Template<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        self.send_any(id, template)
    }

    #[inline(always)]
    fn send_any<const BLOCKS: usize>(
        &mut self,
        id: u64,
        frame: &impl Sendable<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        if self.left <= 1 {
            return self.send_signaled(id, frame);
        }
        self.ring.post(id, frame)?;
        self.left -= 1;
        self.counters.sent += 1;
        Ok(())
    }

    /// As [`TxQueue::send`], for a frame that ends in memory.
    ///
    /// # Errors
    /// As for [`TxQueue::send`]; `ForeignMemory` for a frame of another queue.
    #[inline(always)]
    pub fn send_tailed<const BLOCKS: usize>(
        &mut self,
        id: u64,
        frame: &Tailed<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        self.send_any(id, frame)
    }

    /// As [`TxQueue::send`], but the frame always generates a completion, with its time and this
    /// `id`.
    ///
    /// # Errors
    /// As for [`TxQueue::send`].
    pub fn send_timed<const BLOCKS: usize>(
        &mut self,
        id: u64,
        template: &Template<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        self.send_signaled(id, template)
    }

    #[inline(never)]
    fn send_signaled<const BLOCKS: usize>(
        &mut self,
        id: u64,
        frame: &impl Sendable<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        if self.left == 0 {
            return Err(PostError::QueueFailed);
        }
        self.ring.post_signaled(id, frame)?;
        self.left = self.every;
        self.counters.sent += 1;
        Ok(())
    }

    /// Builds a frame in the ring without sending it. [`Staged::fire`] rings the doorbell and so
    /// sends it; dropping the [`Staged`] discards it.
    ///
    /// ```no_run
    /// # use uverbs::ethernet::{Template, TxQueue};
    /// # fn decide() -> bool { true }
    /// # fn order(tx: &mut TxQueue, order: &Template<2>) -> uverbs::Result<()> {
    /// let staged = tx.stage(1, order)?;
    /// if decide() {
    ///     staged.fire();
    /// } else {
    ///     staged.discard();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`TxQueue::send`].
    #[inline(always)]
    pub fn stage<const BLOCKS: usize>(
        &mut self,
        id: u64,
        template: &Template<BLOCKS>,
    ) -> std::result::Result<Staged<'_>, PostError> {
        if self.left == 0 {
            return Err(PostError::QueueFailed);
        }
        let (every, left, sent) = (self.every, &mut self.left, &mut self.counters.sent);
        let plan = Plan { every, left: *left, staged: 0 };
        let mut staged = Staged { frames: self.ring.stage()?, plan, left, sent };
        staged.add(id, template)?;
        Ok(staged)
    }

    /// Does the work of sending a frame except the doorbell, so that the code, the template and the
    /// queue's memory are in the caches. No frame is sent.
    ///
    /// # Errors
    /// As for [`TxQueue::send`].
    #[inline(always)]
    pub fn warm<const BLOCKS: usize>(
        &mut self,
        template: &Template<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        self.stage(0, template).map(Staged::discard)
    }

    /// The next completion of a frame.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`](crate::raw::CompletionQueue::poll).
    #[inline]
    pub fn poll(&mut self) -> std::result::Result<Sent<C>, PollError> {
        let done = self.cq.poll()?;
        let (id, status) = (done.wr_id(), done.status());
        let sent = Sent { id, timestamp: Timestamp::from_raw(done.timestamp()), status };
        if status == Status::Success {
            self.counters.completed += 1;
        } else {
            self.counters.failed += 1;
            self.left = 0;
        }
        Ok(sent)
    }

    /// Polls and counts all completions. Returns the number of frames that can be posted. A failed
    /// queue can have space too, but sends no frames: see [`TxCounters::failed`].
    pub fn reap(&mut self) -> u32 {
        while self.poll().is_ok() {}
        self.ring.free_requests()
    }

    /// The counters.
    pub fn counters(&self) -> TxCounters {
        self.counters
    }

    /// The QP number.
    pub fn number(&self) -> u32 {
        self.ring.queue_pair().number()
    }

    /// The context of the queue.
    pub fn context(&self) -> &Context {
        self.ring.queue_pair().context()
    }

    /// Sets the rate limit: see
    /// [`QueuePair::modify_rate_limit`](crate::qp::QueuePair::modify_rate_limit).
    ///
    /// # Errors
    /// As for [`QueuePair::modify_rate_limit`](crate::qp::QueuePair::modify_rate_limit).
    pub fn modify_rate_limit(&mut self, limit: crate::qp::RateLimit) -> Result<()> {
        self.ring.modify_rate_limit(limit)
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// Errors of the kernel. The queue is returned and still works.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.ring.end().map_err(|error| DestroyError::new(self, error))
    }
}

/// Which of the staged frames generate a completion.
#[derive(Debug, Clone, Copy)]
struct Plan {
    every: u32,
    left: u32,
    staged: u32,
}

/// Frames in the ring without a doorbell: from [`TxQueue::stage`]. Dropping it discards them.
#[derive(Debug)]
#[must_use = "nothing is sent before it is fired"]
pub struct Staged<'q> {
    frames: StagedFrames<'q>,
    plan: Plan,
    left: &'q mut u32,
    sent: &'q mut u64,
}

impl Staged<'_> {
    /// Builds another frame after the others, for the same doorbell.
    ///
    /// # Errors
    /// [`PostError::Full`]; the frames before it stay staged.
    #[inline(always)]
    pub fn add<const BLOCKS: usize>(
        &mut self,
        id: u64,
        template: &Template<BLOCKS>,
    ) -> std::result::Result<(), PostError> {
        let Plan { every, left, staged } = self.plan;
        let signaled = left <= 1;
        let flags = if signaled { PostFlags::SIGNALED } else { PostFlags::empty() };
        self.frames.build(id, template, flags)?;
        self.plan =
            Plan { every, left: if signaled { every } else { left - 1 }, staged: staged + 1 };
        Ok(())
    }

    /// Rings the doorbell, so that the device sends the frames.
    #[inline(always)]
    pub fn fire(self) {
        *self.left = self.plan.left;
        *self.sent += u64::from(self.plan.staged);
        self.frames.publish();
    }

    /// Discards the frames, as dropping does.
    #[inline(always)]
    pub fn discard(self) {}
}
