//! Striding receive queues: many frames share a buffer, for programs that record what arrives.

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

/// A queue whose buffers many frames share: from
/// [`RxBuilder::striding`](super::RxBuilder::striding).
///
/// One thread polls it at a time. A frame is owned: it can go to another thread, and be kept beyond
/// the queue. Its buffer goes back to the device when all frames in it have been dropped; as long
/// as one is kept, another buffer takes its place in the ring, if there is a spare one.
pub struct StridingQueue<C: Clock = FreeRunning> {
    /// Ends before the work queue does.
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
    /// [`FrameError::Empty`] if there is none now; if frames are kept in all buffers, the device
    /// has none to fill, and drops what arrives. The others are those of
    /// [`RxQueue::poll`](super::RxQueue::poll).
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> std::result::Result<StridedFrame<C>, FrameError> {
        self.ring.poll().map(|found| StridedFrame { found, clock: PhantomData })
    }

    /// Adds a steering rule: its frames come here. It ends when the result is
    /// dropped.
    ///
    /// # Errors
    /// Those of [`RxQueue::steer`](super::RxQueue::steer).
    pub fn steer(&mut self, rule: &impl Traffic) -> Result<Flow> {
        self.steer_by(rule, |builder| builder)
    }

    /// As [`StridingQueue::steer`], with everything else that a rule can say.
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

    /// Frames that the rules of this queue matched: see
    /// [`RxQueue::matched`](super::RxQueue::matched).
    ///
    /// # Errors
    /// As for [`RxQueue::matched`](super::RxQueue::matched).
    pub fn matched(&self) -> Result<u64> {
        if self.target.is_none() {
            return Err(super::receiver::counts_no_matches());
        }
        self.matched.read()
    }

    /// Frames that the rules matched and that were not polled: see
    /// [`RxQueue::lost`](super::RxQueue::lost). Those that wait to be polled are among them.
    ///
    /// # Errors
    /// As for [`RxQueue::lost`](super::RxQueue::lost).
    pub fn lost(&self) -> Result<u64> {
        let counters = self.ring.strides().counters();
        let seen = counters.frames + counters.too_long;
        self.matched().map(|matched| matched.saturating_sub(seen))
    }

    /// What was counted so far.
    pub fn counters(&self) -> StridingCounters {
        let StrideCounters { frames, bytes, fillers, too_long, refused, exhausted } =
            self.ring.strides().counters();
        let posted = self.ring.posted();
        StridingCounters { frames, bytes, fillers, too_long, refused, exhausted, posted }
    }

    /// How its buffers are divided.
    pub fn striding(&self) -> Striding {
        self.ring.striding()
    }

    /// Buffers that it has, posted or not.
    pub fn buffers(&self) -> usize {
        self.ring.buffers()
    }

    /// As [`RxQueue::work_queue`](super::RxQueue::work_queue): only of queues that frames are
    /// spread to.
    pub fn work_queue(&self) -> Option<&WqHandle> {
        self.target.is_none().then(|| self.ring.work_queue().handle())
    }

    /// The device's number of the work queue.
    pub fn number(&self) -> u32 {
        self.ring.work_queue().number()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        self.ring.work_queue().context()
    }

    /// Destroys it; its rules end. Frames that are kept stay.
    ///
    /// # Errors
    /// Errors of the kernel; `Busy` while an indirection table has it. It comes back, without its
    /// rules.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        if let Some(Err(error)) = self.target.as_mut().map(RssTarget::end) {
            return Err(DestroyError::new(self, error));
        }
        // Its table holds the queue.
        self.target = None;
        self.ring.end().map_err(|error| DestroyError::new(self, error))
    }
}

/// What a [`StridingQueue`] has counted since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StridingCounters {
    /// Frames polled.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rests of buffers that were too small for the next frame.
    pub fillers: u64,
    /// Frames longer than a buffer: the device dropped them, the queue skipped them.
    pub too_long: u64,
    /// Completions of strides that were not the next ones: not 0 means that the device is broken,
    /// or that something else writes to the queue.
    pub refused: u64,
    /// Times at which the device had no buffer left when one was done, and so may have dropped
    /// frames.
    pub exhausted: u64,
    /// Buffers that the device has. Fewer than the depth while frames are kept in more buffers than
    /// there are spares.
    pub posted: u32,
}

/// A frame in a buffer that it shares with others: owned, until it is dropped.
pub struct StridedFrame<C: Clock = FreeRunning> {
    found: SharedFrame,
    clock: PhantomData<C>,
}

impl<C: Timed> StridedFrame<C> {
    /// When it arrived.
    pub fn timestamp(&self) -> Timestamp<C> {
        Timestamp::from_raw(self.found.timestamp)
    }

    /// The receive hash, and what was hashed. (Compressed completions have it for the first frame
    /// only.)
    pub fn hash(&self) -> (u32, u8) {
        self.found.hash
    }
}

impl<C: Clock> StridedFrame<C> {
    /// From the destination address on, without the check sequence.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.found.bytes()
    }

    /// The tag of the steering rule that brought it.
    pub fn flow_tag(&self) -> u32 {
        self.found.flow_tag
    }

    /// The control information of the VLAN tag that the device stripped.
    pub fn vlan(&self) -> Option<u16> {
        self.found.vlan
    }

    /// Whether the device checked the checksums of layers 3 and 4 and found both good.
    pub fn checksums_ok(&self) -> bool {
        self.checks().l3_l4_ok()
    }

    /// What the device checked and found good, layer by layer.
    pub fn checks(&self) -> CqeChecksum {
        self.found.checks
    }

    /// Types of its headers: IP version, protocol.
    pub fn header_types(&self) -> CqeHeaderTypes {
        self.found.header_types
    }

    /// Where it begins in its buffer, from 0: a multiple of a stride's bytes, two more with
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
