//! The receive queue of frames.

use std::fmt;
use std::marker::PhantomData;

use uverbs_mlx5::format::{CqeChecksum, CqeHeaderTypes, L3Type};

use super::FrameError;
use super::clock::{Clock, FreeRunning, Timed, Timestamp};
use super::counters::{Matches, RxCounters};
use super::rings::{RingFrame, RxRing};
use crate::cq::channel::CompletionChannel;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::flow::{Flow, FlowBuilder, Traffic};
use crate::memory::slab::Slab;
use crate::memory::slot::Slot;
use crate::qp::work_queue::WqHandle;

/// A receive queue of frames: from
/// [`ProtectionDomain::create_rx_queue`](crate::ProtectionDomain::create_rx_queue).
///
/// One thread polls it at a time. `C` is the clock of its timestamps. Dropping it destroys its
/// rules and queues.
pub struct RxQueue<C: Clock = FreeRunning> {
    pub(super) ring: RxRing,
    pub(super) slab: Slab,
    pub(super) rejected: u64,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) matched: Matches,
    pub(super) clock: PhantomData<C>,
}

impl<C: Clock> fmt::Debug for RxQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxQueue")
            .field("receiver", self.ring.receiver())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<C: Clock> RxQueue<C> {
    /// The next frame. Its buffer goes back to the device when it is dropped.
    ///
    /// # Errors
    /// [`FrameError::Empty`] if there is none now. [`FrameError::Queue`] with `NotOutstanding` for
    /// a completion of no outstanding receive, which the next call skips. The other errors are
    /// permanent.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> std::result::Result<Frame<'_, C>, FrameError> {
        self.next(true)
    }

    /// Starts polling several frames, whose buffers go back to the device together.
    ///
    /// ```no_run
    /// # fn drain(rx: &mut uverbs::ethernet::RxQueue) {
    /// let mut batch = rx.batch();
    /// for _ in 0..16 {
    ///     let Ok(frame) = batch.poll() else { break };
    ///     println!("{} bytes", frame.bytes().len());
    /// }
    /// # }
    /// ```
    #[inline(always)]
    pub fn batch(&mut self) -> RxBatch<'_, C> {
        RxBatch { queue: self }
    }

    #[inline(always)]
    fn next(&mut self, publishes: bool) -> std::result::Result<Frame<'_, C>, FrameError> {
        let frame = self.ring.next(publishes)?;
        Ok(Frame { frame, rejected: &mut self.rejected, clock: PhantomData })
    }

    /// Adds a steering rule that leads to this queue. Dropping the result destroys the rule.
    ///
    /// # Errors
    /// Those of [`FlowBuilder::build`](crate::flow::FlowBuilder::build) and of the rule itself;
    /// `InvalidInput` for a queue made by [`RxBuilder::spread`](super::RxBuilder::spread), because
    /// its target has the rules.
    pub fn steer(&mut self, rule: &impl Traffic) -> Result<Flow> {
        self.steer_by(rule, |builder| builder)
    }

    /// As [`RxQueue::steer`], with further options of the rule.
    ///
    /// # Errors
    /// As for [`RxQueue::steer`].
    pub fn steer_by(
        &mut self,
        rule: &impl Traffic,
        change: impl FnOnce(FlowBuilder<'_>) -> FlowBuilder<'_>,
    ) -> Result<Flow> {
        let builder = rule.describe(self.ring.create_flow()?)?;
        change(self.matched.count(builder)).build()
    }

    /// The counters.
    pub fn counters(&self) -> RxCounters {
        let frames = self.ring.frames();
        RxCounters::new(frames.counters(), frames.depth(), self.rejected)
    }

    /// Frames that have arrived and have not been polled.
    pub fn backlog(&self) -> u32 {
        self.ring.frames().backlog()
    }

    /// The device's count of frames that this queue's rules matched.
    ///
    /// # Errors
    /// `InvalidInput` unless the queue was made by
    /// [`RxBuilder::count_matches`](super::RxBuilder::count_matches); EINVAL before the first rule;
    /// other errors of the kernel.
    pub fn matched(&self) -> Result<u64> {
        if self.work_queue().is_some() {
            return Err(super::receiver::counts_no_matches());
        }
        self.matched.read()
    }

    /// Frames that the rules matched and that were dropped, because no receive was posted or the
    /// queue is in error. While frames are arriving, the number includes some that are still on
    /// their way to the queue.
    ///
    /// # Errors
    /// Those of [`RxQueue::matched`].
    pub fn lost(&self) -> Result<u64> {
        let counters = self.counters();
        let seen = counters.frames + counters.too_long + u64::from(self.backlog());
        self.matched().map(|matched| matched.saturating_sub(seen))
    }

    /// The slab of its buffers. Its free slots can be spares for [`Frame::take`].
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// The work queue, for an [`IndirectionTable`](crate::qp::rss::IndirectionTable), of a queue
    /// made by [`RxBuilder::spread`](super::RxBuilder::spread); `None` for others. After this queue
    /// was dropped, frames still fill posted receives; the buffers are freed when the table and its
    /// targets are destroyed, too.
    ///
    /// ```no_run
    /// use uverbs::ethernet::RxQueue;
    /// use uverbs::qp::rss::{RssOptions, RssTraffic};
    /// let context = uverbs::open_default()?;
    /// let pd = context.alloc_pd()?;
    /// let queue = || pd.create_rx_queue(512).spread().build();
    /// let queues = [queue()?, queue()?];
    /// let entries: Vec<_> = queues.iter().filter_map(RxQueue::work_queue).collect();
    /// let table = context.create_indirection_table(&entries)?;
    /// let mut target = pd.create_rss_target(&table, &RssOptions::new(RssTraffic::Ipv4Udp))?;
    /// let rule = target.steer(&uverbs::flow::UdpMulticast::new([239, 1, 2, 3].into(), 14310))?;
    /// // Poll each queue in its own thread.
    /// # drop((rule, queues));
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    pub fn work_queue(&self) -> Option<&WqHandle> {
        self.ring.receiver().work_queue()
    }

    /// The device's number for the queue pair or work queue.
    pub fn number(&self) -> u32 {
        self.ring.receiver().number()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.ring.receiver().context()
    }

    /// Destroys its rules and the queue.
    ///
    /// # Errors
    /// Errors of the kernel; `Busy` while an indirection table has it. The queue is returned
    /// without its rules.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.ring.end().map_err(|error| DestroyError::new(self, error))
    }
}

/// Polls frames one by one; their buffers go back to the device when the batch is dropped.
///
/// If a batch is leaked, the buffers go back with the next poll or batch.
#[derive(Debug)]
pub struct RxBatch<'q, C: Clock = FreeRunning> {
    queue: &'q mut RxQueue<C>,
}

impl<C: Clock> RxBatch<'_, C> {
    /// The next frame.
    ///
    /// # Errors
    /// As for [`RxQueue::poll`].
    #[inline(always)]
    pub fn poll(&mut self) -> std::result::Result<Frame<'_, C>, FrameError> {
        self.queue.next(false)
    }
}

impl<C: Clock> Drop for RxBatch<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.ring.publish();
    }
}

/// A received frame. Dropping it gives its buffer back to the device.
///
/// If a frame is leaked, its buffer does not go back, and the next poll returns the same frame
/// again.
#[derive(Debug)]
pub struct Frame<'q, C: Clock = FreeRunning> {
    frame: RingFrame<'q>,
    rejected: &'q mut u64,
    clock: PhantomData<C>,
}

impl<C: Timed> Frame<'_, C> {
    /// When it arrived.
    #[inline(always)]
    pub fn timestamp(&self) -> Timestamp<C> {
        Timestamp::from_raw(self.frame.timestamp())
    }
}

impl<C: Clock> Frame<'_, C> {
    /// The bytes from the destination address on, without the check sequence (FCS).
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        self.frame.bytes()
    }

    /// The tag of the steering rule that delivered it. A rule without a tag has the tag of the
    /// first rule with the same match, see [`crate::flow`].
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.frame.flow_tag()
    }

    /// The control information (TCI) of the VLAN tag that the device stripped: only with
    /// [`RxBuilder::strip_vlan`](super::RxBuilder::strip_vlan).
    #[inline(always)]
    pub fn vlan(&self) -> Option<u16> {
        self.frame.vlan()
    }

    /// Whether the device checked the layer 3 and layer 4 checksums, of IPv4 or IPv6, and both are
    /// correct.
    #[inline(always)]
    pub fn checksums_ok(&self) -> bool {
        self.checks().l3_l4_ok()
    }

    /// The checksums that the device found correct, by layer.
    #[inline(always)]
    pub fn checks(&self) -> CqeChecksum {
        self.frame.checks()
    }

    /// The types of its headers: IP version and protocol.
    #[inline(always)]
    pub fn header_types(&self) -> CqeHeaderTypes {
        self.frame.header_types()
    }

    /// Whether it is an IPv4 packet.
    #[inline(always)]
    pub fn is_ipv4(&self) -> bool {
        self.header_types().l3() == L3Type::IPV4
    }

    /// The receive hash and the device's hash type; 0 unless an RSS target delivered the frame.
    #[inline(always)]
    pub fn hash(&self) -> (u32, u8) {
        self.frame.hash()
    }

    /// Gives the buffer back and counts the frame as rejected: for frames that the program
    /// discards, for example because a checksum is wrong.
    #[inline(always)]
    pub fn reject(self) {
        *self.rejected += 1;
    }

    /// Keeps the frame: returns its buffer, and gives the queue `spare` instead. If spares come
    /// from the queue's [slab](RxQueue::slab), buffers that the program drops become spares again.
    ///
    /// # Errors
    /// `spare`, if it is shorter than the queue's buffers or of another protection domain. The
    /// frame's buffer then goes back to the device.
    #[inline]
    pub fn take(self, spare: Slot) -> std::result::Result<Slot, Slot> {
        self.frame.replace(spare)
    }
}
