//! Striding receive queues: many frames share a buffer, for programs that record what arrives.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use uverbs_mlx5::completion_queue::{StrideCounters, StrideFrame, StrideQueue};
use uverbs_mlx5::format::{CqeChecksum, CqeHeaderTypes};
use uverbs_mlx5::recv_queue::PostedRing;

use super::FrameError;
use super::clock::{Clock, FreeRunning, Timestamp};
use super::rx::VERB;
use crate::cq::CompletionQueue;
use crate::cq::channel::CompletionChannel;
use crate::device::context::Context;
use crate::device::layer::Raw;
use crate::error::{Error, Result};
use crate::flow::{Flow, FlowBuilder, Traffic};
use crate::memory::slot::Slot;
use crate::qp::rss::RssTarget;
use crate::qp::striding::Striding;
use crate::qp::work_queue::{WorkQueue, WqHandle};

/// A queue whose buffers many frames share: from
/// [`RxBuilder::striding`](super::RxBuilder::striding).
///
/// One thread polls it at a time. A frame is owned: it can go to another thread, and be kept beyond
/// the queue. Its buffer goes back to the device when all frames in it have been dropped; as long
/// as one is kept, another buffer takes its place in the ring, if there is a spare one.
pub struct StridingQueue<C: Clock = FreeRunning> {
    /// Ends before the work queue does.
    target: Option<RssTarget>,
    wq: WorkQueue<Raw>,
    cq: CompletionQueue<Raw>,
    strides: StrideQueue,
    striding: Striding,
    /// The buffer posted at each place of the ring.
    posted: Box<[Option<Arc<Slot>>]>,
    /// Buffers that are not posted. Those that frames are in come back when the frames are dropped.
    others: VecDeque<Arc<Slot>>,
    /// WQEs whose buffers are among the others again.
    done: u32,
    pub(super) channel: Option<CompletionChannel>,
    clock: PhantomData<C>,
}

impl<C: Clock> fmt::Debug for StridingQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridingQueue")
            .field("striding", &self.striding)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

/// What a striding queue is made of.
pub(super) struct Parts {
    pub(super) target: Option<RssTarget>,
    pub(super) wq: WorkQueue<Raw>,
    pub(super) cq: CompletionQueue<Raw>,
    pub(super) striding: Striding,
    /// A buffer for each receive.
    pub(super) slots: Box<[Slot]>,
    pub(super) spares: Box<[Slot]>,
    pub(super) channel: Option<CompletionChannel>,
}

impl<C: Clock> StridingQueue<C> {
    /// Posts the slots, all of a WQE's bytes at least and of the queue's domain.
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let Parts { target, mut wq, mut cq, striding, slots, spares, channel } = parts;
        let receives = wq.receive_queue();
        let receives = receives.ok_or_else(|| Error::invalid(VERB, "there are no receives"))?;
        for slot in &slots {
            let buffer = slot.whole().with_length(striding.wqe_bytes());
            // SAFETY: the slots stay in this value, and nothing looks into them but frames, where
            // the device has completed theirs. Their memory is given back once the queue is gone.
            unsafe { receives.build(0, &[buffer]) }?;
        }
        receives.publish();
        // SAFETY: this value keeps both queues and uses them through `StrideQueue` alone; nothing
        // else completes to the CQ. The receives are as just posted.
        let ring = unsafe { PostedRing::new(receives) };
        // SAFETY: it stays in its place.
        let provider = unsafe { cq.provider() };
        let strides = ring.and_then(|ring| StrideQueue::new(provider, ring, striding.shape()));
        let strides = strides.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        let mut others = VecDeque::with_capacity(slots.len() + spares.len());
        others.extend(Vec::from(spares).into_iter().map(Arc::new));
        let posted = Vec::from(slots).into_iter().map(|slot| Some(Arc::new(slot))).collect();
        let (done, clock) = (strides.done(), PhantomData);
        Ok(Self { target, wq, cq, strides, striding, posted, others, done, channel, clock })
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`FrameError::Empty`] if there is none now; if frames are kept in all buffers, the device
    /// has none to fill, and drops what arrives. The others are those of
    /// [`RxQueue::poll`](super::RxQueue::poll).
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> std::result::Result<StridedFrame<C>, FrameError> {
        // SAFETY: it stays in its place.
        let found = self.strides.poll(unsafe { self.cq.provider() });
        let frame = found.ok().and_then(|found| {
            let buffer = self.posted.get(found.place as usize)?.clone()?;
            Some(StridedFrame { buffer, found, clock: PhantomData })
        });
        if self.strides.done() != self.done || self.strides.missing() > 0 {
            self.refill();
        }
        match (frame, found) {
            (Some(frame), _) => Ok(frame),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(FrameError::Empty),
        }
    }

    /// Takes the buffers of WQEs that are done, and posts those that no frame is in any more.
    #[cold]
    #[inline(never)]
    fn refill(&mut self) {
        while self.done != self.strides.done() {
            let place = self.done as usize & (self.posted.len() - 1);
            self.others.extend(self.posted.get_mut(place).and_then(Option::take));
            self.done = self.done.wrapping_add(1);
        }
        let mut any = false;
        for _ in 0..self.others.len() {
            let Some(place) = self.strides.free_place() else { break };
            let Some(mut buffer) = self.others.pop_front() else { break };
            if Arc::get_mut(&mut buffer).is_none() {
                self.others.push_back(buffer);
                continue;
            }
            let sge = buffer.whole().with_length(self.striding.wqe_bytes());
            // SAFETY: the place is free, so its WQE is done. The buffer is a slot of the queue's
            // domain, long enough for a WQE. This is its only reference, so no frame is in it, and
            // frames come into it by completions alone. It stays in `posted` until its WQE is done,
            // or is kept until the queue is gone.
            unsafe { self.strides.receives().post(sge) };
            any = true;
            if let Some(at) = self.posted.get_mut(place as usize) {
                *at = Some(buffer);
            }
        }
        if any {
            self.strides.receives().publish();
        }
    }

    /// Adds a steering rule: the frames that it is about come here. It ends when the result is
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
    /// As there.
    pub fn steer_by(
        &mut self,
        rule: &impl Traffic,
        change: impl FnOnce(FlowBuilder<'_>) -> FlowBuilder<'_>,
    ) -> Result<Flow> {
        let target = self.target.as_mut().ok_or_else(super::receiver::has_no_rules)?;
        change(rule.describe(target.create_flow())?).build()
    }

    /// Whether [`StridingQueue::poll`] may return something else than `Empty`.
    pub(super) fn has_something(&self) -> bool {
        self.strides.has_something()
    }

    /// Asks for an event at the next completion.
    pub(super) fn arm(&mut self) {
        // SAFETY: it stays in its place.
        self.strides.write_back(unsafe { self.cq.provider() });
        self.cq.arm();
    }

    /// Whether the queue has failed while nothing was in it.
    pub(super) fn check(&mut self) -> Result<()> {
        self.refill();
        // SAFETY: it stays in its place.
        match self.strides.nothing(unsafe { self.cq.provider() }) {
            FrameError::Empty => Ok(()),
            error => Err(error.into()),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> StridingCounters {
        let StrideCounters { frames, bytes, fillers, too_long, refused, exhausted } =
            self.strides.counters();
        let posted = self.posted.len() as u32 - self.strides.missing();
        StridingCounters { frames, bytes, fillers, too_long, refused, exhausted, posted }
    }

    /// How its buffers are divided.
    pub fn striding(&self) -> Striding {
        self.striding
    }

    /// Buffers that it has, posted or not.
    pub fn buffers(&self) -> usize {
        self.posted.iter().flatten().count() + self.others.len()
    }

    /// As [`RxQueue::work_queue`](super::RxQueue::work_queue): only of queues that frames are
    /// spread to.
    pub fn work_queue(&self) -> Option<&WqHandle> {
        self.target.is_none().then(|| self.wq.handle())
    }

    /// The device's number of the work queue.
    pub fn number(&self) -> u32 {
        self.wq.number()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        self.wq.context()
    }
}

impl<C: Clock> Drop for StridingQueue<C> {
    fn drop(&mut self) {
        // Tables may keep the work queue.
        self.wq.handle().keep_buffers(std::mem::take(&mut self.posted));
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
    buffer: Arc<Slot>,
    found: StrideFrame,
    clock: PhantomData<C>,
}

impl<C: Clock> StridedFrame<C> {
    /// From the destination address on, without the check sequence.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let Some(start) = self.start() else { return &[] };
        // SAFETY: the bytes are initialized memory of the slot, which the frame keeps, as `start`
        // has checked. The device has completed them: the queue refuses strides that it has lent
        // since the buffer was posted. It writes them again only after the buffer was posted again,
        // for which no frame may be in it (`StridingQueue::refill`). Until then no reference to
        // them is made but by frames, to each its own: a slot's own bytes are those filled, none.
        unsafe { std::slice::from_raw_parts(start, self.found.length as usize) }
    }

    /// Where it begins, if all of it is inside the buffer.
    fn start(&self) -> Option<*const u8> {
        let end = self.found.offset as usize + self.found.length as usize;
        let start = self.buffer.header().start().cast_const();
        (end <= self.buffer.capacity()).then(|| start.wrapping_add(self.found.offset as usize))
    }

    /// When it arrived.
    pub fn timestamp(&self) -> Timestamp<C> {
        Timestamp::from_raw(self.found.timestamp)
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

    /// The receive hash, and what was hashed.
    pub fn hash(&self) -> (u32, u8) {
        self.found.hash
    }

    /// Where it begins in its buffer, from 0: a multiple of a stride's bytes, two more with
    /// [`Striding::two_byte_shift`].
    pub fn offset(&self) -> u32 {
        self.found.offset
    }
}

impl<C: Clock> fmt::Debug for StridedFrame<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridedFrame").field("found", &self.found).finish_non_exhaustive()
    }
}
