//! Striding receive queues: many frames share a buffer, for recorders.

use std::fmt;
use std::marker::PhantomData;

use uverbs_mlx5::completion_queue::StrideCounters;
use uverbs_mlx5::format::{CqeChecksum, CqeHeaderTypes};

use super::FrameError;
use super::clock::{Clock, FreeRunning, Timed, Timestamp};
use super::counters::Matches;
use super::rings::{SharedFrame, StridingRing};
use crate::cq::channel::CompletionChannel;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::flow::{Flow, FlowBuilder, Traffic};
use crate::qp::rss::RssTarget;
use crate::qp::striding::Striding;
use crate::qp::work_queue::WqHandle;

/// A receive queue in which many frames share a buffer: from
/// [`RxBuilder::striding`](super::RxBuilder::striding).
///
/// One thread polls it at a time. A frame is owned: it can move to another thread, and outlive the
/// queue. A buffer goes back to the device when all frames in it have been dropped; until then a
/// spare buffer, if there is one, takes its place in the ring.
pub struct StridingQueue<C: Clock = FreeRunning> {
    /// Declared first, so that it is destroyed before the work queue.
    pub(super) target: Option<RssTarget>,
    pub(super) ring: StridingRing,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) matched: Matches,
    pub(super) clock: PhantomData<C>,
}

impl<C: Clock> fmt::Debug for StridingQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridingQueue")
            .field("striding", &self.striding())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<C: Clock> StridingQueue<C> {
    /// The next frame.
    ///
    /// # Errors
    /// [`FrameError::Empty`] if there is none now. This is also returned while kept frames occupy
    /// all buffers; the device then drops frames that arrive. The other errors are those of
    /// [`RxQueue::poll`](super::RxQueue::poll).
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> std::result::Result<StridedFrame<C>, FrameError> {
        self.ring.poll().map(|found| StridedFrame { found, clock: PhantomData })
    }

    /// Adds a steering rule that leads to this queue. Dropping the result destroys the rule.
    ///
    /// # Errors
    /// Those of [`RxQueue::steer`](super::RxQueue::steer).
    pub fn steer(&mut self, rule: &impl Traffic) -> Result<Flow> {
        self.steer_by(rule, |builder| builder)
    }

    /// As [`StridingQueue::steer`], with further options of the rule.
    ///
    /// # Errors
    /// As for [`StridingQueue::steer`].
    pub fn steer_by(
        &mut self,
        rule: &impl Traffic,
        change: impl FnOnce(FlowBuilder<'_>) -> FlowBuilder<'_>,
    ) -> Result<Flow> {
        let target = self.target.as_mut().ok_or_else(super::receiver::has_no_rules)?;
        change(self.matched.count(rule.describe(target.create_flow())?)).build()
    }

    /// As [`RxQueue::matched`](super::RxQueue::matched).
    ///
    /// # Errors
    /// As for [`RxQueue::matched`](super::RxQueue::matched).
    pub fn matched(&self) -> Result<u64> {
        if self.target.is_none() {
            return Err(super::receiver::counts_no_matches());
        }
        self.matched.read()
    }

    /// As [`RxQueue::lost`](super::RxQueue::lost), but frames that wait to be polled are included.
    ///
    /// # Errors
    /// As for [`RxQueue::lost`](super::RxQueue::lost).
    pub fn lost(&self) -> Result<u64> {
        let counters = self.ring.strides().counters();
        let seen = counters.frames + counters.too_long;
        self.matched().map(|matched| matched.saturating_sub(seen))
    }

    /// The counters.
    pub fn counters(&self) -> StridingCounters {
        let StrideCounters { frames, bytes, fillers, too_long, refused, exhausted } =
            self.ring.strides().counters();
        let posted = self.ring.posted();
        StridingCounters { frames, bytes, fillers, too_long, refused, exhausted, posted }
    }

    /// The division of its buffers.
    pub fn striding(&self) -> Striding {
        self.ring.striding()
    }

    /// Number of buffers, posted or not.
    pub fn buffers(&self) -> usize {
        self.ring.buffers()
    }

    /// As [`RxQueue::work_queue`](super::RxQueue::work_queue).
    pub fn work_queue(&self) -> Option<&WqHandle> {
        self.target.is_none().then(|| self.ring.work_queue().handle())
    }

    /// The device's number for the work queue.
    pub fn number(&self) -> u32 {
        self.ring.work_queue().number()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.ring.work_queue().context()
    }

    /// Destroys its rules and the queue. Kept frames stay valid.
    ///
    /// # Errors
    /// Errors of the kernel; `Busy` while an indirection table has it. The queue is returned
    /// without its rules.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        if let Some(Err(error)) = self.target.as_mut().map(RssTarget::end) {
            return Err(DestroyError::new(self, error));
        }
        // The target's table keeps the work queue.
        self.target = None;
        self.ring.end().map_err(|error| DestroyError::new(self, error))
    }
}

/// The counters of a [`StridingQueue`] since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StridingCounters {
    /// Polled frames.
    pub frames: u64,
    /// Bytes of the polled frames.
    pub bytes: u64,
    /// Filler completions: ends of buffers that were too small for the next frame.
    pub fillers: u64,
    /// Frames longer than a buffer, which the device dropped and the queue skipped.
    pub too_long: u64,
    /// Completions of strides out of order. If it is not 0, the device is faulty, or other code
    /// writes to the queue.
    pub refused: u64,
    /// Times at which the device had no other buffer when one was full, and so may have dropped
    /// frames.
    pub exhausted: u64,
    /// Posted buffers. Fewer than the depth while kept frames occupy more buffers than there are
    /// spares.
    pub posted: u32,
}

/// An owned frame, in a buffer that it shares with other frames.
pub struct StridedFrame<C: Clock = FreeRunning> {
    found: SharedFrame,
    clock: PhantomData<C>,
}

impl<C: Timed> StridedFrame<C> {
    /// When it arrived.
    pub fn timestamp(&self) -> Timestamp<C> {
        Timestamp::from_raw(self.found.timestamp)
    }

    /// The receive hash and the device's hash type.
    pub fn hash(&self) -> (u32, u8) {
        self.found.hash
    }
}

impl<C: Clock> StridedFrame<C> {
    /// The bytes from the destination address on, without the check sequence (FCS).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.found.bytes()
    }

    /// The tag of the steering rule that delivered it.
    pub fn flow_tag(&self) -> u32 {
        self.found.flow_tag
    }

    /// The control information (TCI) of the VLAN tag that the device stripped.
    pub fn vlan(&self) -> Option<u16> {
        self.found.vlan
    }

    /// Whether the device checked the layer 3 and layer 4 checksums and both are correct.
    pub fn checksums_ok(&self) -> bool {
        self.checks().l3_l4_ok()
    }

    /// The checksums that the device found correct, by layer.
    pub fn checks(&self) -> CqeChecksum {
        self.found.checks
    }

    /// Types of its headers: IP version, protocol.
    pub fn header_types(&self) -> CqeHeaderTypes {
        self.found.header_types
    }

    /// Its byte offset in the buffer: a multiple of the stride's bytes, plus 2 with
    /// [`Striding::two_byte_shift`].
    pub fn offset(&self) -> u32 {
        self.found.offset
    }
}

impl<C: Clock> fmt::Debug for StridedFrame<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridedFrame").field("found", &*self.found).finish_non_exhaustive()
    }
}
