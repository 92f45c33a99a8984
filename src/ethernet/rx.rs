//! The receive queue: polling frames and giving them back.

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

/// A queue of frames that arrive: from
/// [`ProtectionDomain::create_rx_queue`](crate::ProtectionDomain::create_rx_queue).
///
/// One thread polls it at a time: polling takes `&mut self`. Its timestamps are of clock `C`.
/// Dropping it ends its rules and destroys its queues.
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
    /// a completion of no receive; the next call goes on after it. The other errors mean that no
    /// frame will follow.
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

    /// Adds a steering rule, whose frames come here. It ends when the result is dropped.
    ///
    /// # Errors
    /// Those of [`FlowBuilder::build`](crate::flow::FlowBuilder::build), and what the rule itself
    /// refuses; `InvalidInput` for a queue that frames are spread to, whose target has the rules.
    pub fn steer(&mut self, rule: &impl Traffic) -> Result<Flow> {
        self.steer_by(rule, |builder| builder)
    }

    /// As [`RxQueue::steer`], with everything else that a rule can say.
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

    /// What was counted so far.
    pub fn counters(&self) -> RxCounters {
        let frames = self.ring.frames();
        RxCounters::new(frames.counters(), frames.depth(), self.rejected)
    }

    /// Frames that have arrived and were not polled yet.
    pub fn backlog(&self) -> u32 {
        self.ring.frames().backlog()
    }

    /// Frames that the rules of this queue matched, as the device counts them.
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

    /// Frames that the rules matched and that did not arrive here, because the device had no
    /// receive for them or the queue is in error. The number is exact while no frame arrives:
    /// frames between the rule and the queue count as lost.
    ///
    /// # Errors
    /// Those of [`RxQueue::matched`].
    pub fn lost(&self) -> Result<u64> {
        let counters = self.counters();
        let seen = counters.frames + counters.too_long + u64::from(self.backlog());
        self.matched().map(|matched| matched.saturating_sub(seen))
    }

    /// Memory for frames that are kept: its free slots can be given to [`Frame::take`].
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// What an [`IndirectionTable`](crate::qp::rss::IndirectionTable) takes of a queue that was
    /// made by [`RxBuilder::spread`](super::RxBuilder::spread); `None` for others. After the queue
    /// was dropped, frames still fill the receives that are posted; the buffers are free when the
    /// table and its targets are gone, too.
    ///
    /// ```no_run
    /// use uverbs::ethernet::RxQueue;
    /// use uverbs::qp::rss::{RssOptions, RssTraffic};
    /// let context = uverbs::open_default()?;
    /// let pd = context.alloc_pd()?;
    /// let queue = || pd.create_rx_queue(512).spread().build();
    /// let queues = [queue()?, queue()?];
    /// let places: Vec<_> = queues.iter().filter_map(RxQueue::work_queue).collect();
    /// let table = context.create_indirection_table(&places)?;
    /// let mut target = pd.create_rss_target(&table, &RssOptions::new(RssTraffic::Ipv4Udp))?;
    /// let rule = target.steer(&uverbs::flow::UdpMulticast::new([239, 1, 2, 3].into(), 14310))?;
    /// // Each queue goes to a thread of its own.
    /// # drop((rule, queues));
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    pub fn work_queue(&self) -> Option<&WqHandle> {
        self.ring.receiver().work_queue()
    }

    /// The device's number of the queue pair, or of the work queue.
    pub fn number(&self) -> u32 {
        self.ring.receiver().number()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        self.ring.receiver().context()
    }

    /// Destroys it; its rules end.
    ///
    /// # Errors
    /// Errors of the kernel; `Busy` while an indirection table has it. It comes back, without its
    /// rules.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.ring.end().map_err(|error| DestroyError::new(self, error))
    }
}

/// Polls frames one after the other; their buffers go back to the device when it is dropped.
///
/// Buffers of a leaked batch go back with the next poll or batch.
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

/// A frame that has arrived, lent until it is dropped: then its buffer goes back to the device.
///
/// The buffer of a leaked frame does not go back: the next poll lends the same frame again.
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
    /// From the destination address on, without the check sequence.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        self.frame.bytes()
    }

    /// The tag of the steering rule that took it. A rule without a tag has that of the first rule
    /// with its match, see [`crate::flow`].
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.frame.flow_tag()
    }

    /// The control information of the VLAN tag that the device stripped: only of queues made by
    /// [`RxBuilder::strip_vlan`](super::RxBuilder::strip_vlan).
    #[inline(always)]
    pub fn vlan(&self) -> Option<u16> {
        self.frame.vlan()
    }

    /// Whether the device checked the checksums of layers 3 and 4 and found both good, of IPv4 and
    /// of IPv6.
    #[inline(always)]
    pub fn checksums_ok(&self) -> bool {
        self.checks().l3_l4_ok()
    }

    /// What the device checked and found good, layer by layer.
    #[inline(always)]
    pub fn checks(&self) -> CqeChecksum {
        self.frame.checks()
    }

    /// Types of its headers: IP version, protocol.
    #[inline(always)]
    pub fn header_types(&self) -> CqeHeaderTypes {
        self.frame.header_types()
    }

    /// Whether it is an IPv4 packet.
    #[inline(always)]
    pub fn is_ipv4(&self) -> bool {
        self.header_types().l3() == L3Type::IPV4
    }

    /// The receive hash, and what was hashed; 0 unless the frame came over an indirection table.
    #[inline(always)]
    pub fn hash(&self) -> (u32, u8) {
        self.frame.hash()
    }

    /// Gives the buffer back, and counts the frame as rejected: for frames that the program drops
    /// because a checksum is wrong, for instance.
    #[inline(always)]
    pub fn reject(self) {
        *self.rejected += 1;
    }

    /// Keeps the frame. Its buffer belongs to the program from now on, and the queue uses `spare`
    /// instead. With spares of the slab of [`RxBuilder::buffers`](super::RxBuilder::buffers),
    /// buffers that the program drops become spares again.
    ///
    /// # Errors
    /// `spare`, if it is shorter than the queue's buffers or of another protection domain. The
    /// frame is given back then.
    #[inline]
    pub fn take(self, spare: Slot) -> std::result::Result<Slot, Slot> {
        self.frame.replace(spare)
    }
}
