//! The rings of the queues of frames, with the proofs that their memory stays valid: receive rings
//! own their buffers, and the send ring keeps all memory that its requests name.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uverbs_mlx5::completion_queue::PostedRing;
use uverbs_mlx5::completion_queue::{self as provider, FrameQueue, Look};
use uverbs_mlx5::completion_queue::{StrideFrame, StrideQueue};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::send_queue::{
    self as provider_send, Batch, EthernetFrame, EthernetOffload, SendQueue, framed,
};

use super::FrameError;
use super::receiver::Receiver;
use super::rx_builder::VERB;
use super::template::{Tailed, Template};
use super::wait::RxWait;
use crate::cq::CompletionQueue;
use crate::device::context::Context;
use crate::device::layer::Raw;
use crate::error::{Error, Result};
use crate::flow::FlowBuilder;
use crate::host::events::Wait;
use crate::host::lifetime::Destroy;
use crate::memory::posting::Refused;
use crate::memory::slot::Slot;
use crate::qp::qp_type::RawPacket;
use crate::qp::striding::Striding;
use crate::qp::work_queue::WorkQueue;
use crate::qp::{PostError, PostFlags, QueuePair};

/// A receive queue whose buffers take one frame each, and its completion queue.
pub(super) struct RxRing {
    frames: FrameQueue,
    receiver: Receiver,
    cq: CompletionQueue<Raw>,
    /// The buffers of the receives, in the order in which they were first posted. This type neither
    /// reads nor writes them.
    slots: Box<[Slot]>,
}

impl Receiver {
    /// The receive queue.
    ///
    /// # Safety
    /// The queue is not exchanged with another one.
    unsafe fn receives(&mut self) -> Option<&mut RecvQueue> {
        match self {
            // SAFETY: the caller's promise.
            Self::QueuePair(qp) => unsafe { qp.queues() }.1,
            Self::WorkQueue(wq) => wq.receive_queue(),
        }
    }
}

impl RxRing {
    /// Posts the slots: one for each receive of the queue, all of `slot_bytes` bytes and of the
    /// receiver's domain.
    pub(super) fn new(
        mut receiver: Receiver,
        mut cq: CompletionQueue<Raw>,
        slots: Box<[Slot]>,
        slot_bytes: u32,
    ) -> Result<Self> {
        // SAFETY: neither queue is exchanged with another one.
        let (queue, receives) = unsafe { (cq.provider(), receiver.receives()) };
        let receives = receives.ok_or_else(no_receives)?;
        for slot in &slots {
            let whole = slot.whole();
            // SAFETY: the slots stay in this value until a frame is taken out, and nothing accesses
            // them before. Their memory is given back after the receiver was destroyed.
            unsafe { receives.build(whole.address(), &[whole]) }?;
        }
        receives.publish();
        // SAFETY: this value keeps both queues and uses them only through `FrameQueue`; nothing
        // else completes to the CQ. The receives are as just posted: a slot's memory, which was
        // initialized when it was mapped.
        let frames = unsafe { FrameQueue::new(queue, receives, slot_bytes) };
        match frames {
            Ok(frames) => Ok(Self { frames, receiver, cq, slots }),
            Err(error) => {
                receiver.end_with(slots);
                Err(Error::invalid(VERB, error.to_string()))
            }
        }
    }

    /// The next frame. Dropping it gives its buffer back to the device: at once if it `publishes`,
    /// otherwise with [`RxRing::publish`].
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        publishes: bool,
    ) -> std::result::Result<RingFrame<'_>, FrameError> {
        // SAFETY: it is not exchanged with another one.
        let cq = unsafe { self.cq.provider() };
        let next = match self.frames.look() {
            Look::Frame(next) => next,
            Look::Nothing => return Err(self.frames.nothing(cq)),
            Look::Other => self.frames.look_slow(cq)?,
        };
        // SAFETY: `next` was just found, and nothing was polled since.
        let frame = unsafe { self.frames.front(next, publishes) };
        Ok(RingFrame { frame, slots: &mut self.slots })
    }

    /// Posts all buffers that were given back.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        self.frames.publish();
    }

    /// The provider's queue of frames, for checks and counters.
    #[inline(always)]
    pub(super) fn frames(&self) -> &FrameQueue {
        &self.frames
    }

    /// The receiving queue.
    pub(super) fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Starts building a steering rule that leads here.
    pub(super) fn create_flow(&mut self) -> Result<FlowBuilder<'_>> {
        self.receiver.create_flow()
    }

    /// Destroys the receiving queue.
    pub(super) fn end(&mut self) -> Result<()> {
        self.receiver.end()
    }
}

impl RxWait for RxRing {
    #[inline(always)]
    fn has_something(&self) -> bool {
        self.frames.look() != Look::Nothing
    }

    fn arm(&mut self) {
        // SAFETY: it stays in its place.
        self.frames.write_back(unsafe { self.cq.provider() });
        self.cq.arm();
    }

    fn check(&mut self) -> Result<()> {
        // SAFETY: it stays in its place.
        only_empty(self.frames.nothing(unsafe { self.cq.provider() }))
    }

    fn context(&self) -> &Context {
        self.receiver.context()
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        self.receiver.end_with(mem::take(&mut self.slots));
    }
}

/// A frame in a buffer of an [`RxRing`].
#[derive(Debug)]
pub(super) struct RingFrame<'q> {
    frame: provider::Frame<'q>,
    slots: &'q mut [Slot],
}

impl<'q> Deref for RingFrame<'q> {
    type Target = provider::Frame<'q>;
    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.frame
    }
}

impl RingFrame<'_> {
    /// Takes the buffer with the frame out of the ring, and puts `spare` in its place.
    ///
    /// # Errors
    /// `spare`, if it is shorter than the ring's buffers or of another protection domain. The
    /// frame's buffer then goes back to the device.
    #[inline]
    pub(super) fn replace(self, spare: Slot) -> std::result::Result<Slot, Slot> {
        let Self { frame, slots } = self;
        let Some(place) = slots.get_mut(frame.place()) else { return Err(spare) };
        let fits = spare.capacity() >= frame.buffer_bytes() as usize;
        if !fits || spare.header().domain() != place.header().domain() {
            return Err(spare);
        }
        let (length, bytes) = (frame.length(), frame.buffer_bytes());
        // SAFETY: a slot of the queue's domain, long enough for a frame, that nothing accesses
        // while it is in `slots`.
        unsafe { frame.replace(spare.whole().with_length(bytes)) };
        let mut kept = mem::replace(place, spare);
        kept.set_len(length);
        Ok(kept)
    }
}

/// A work queue in whose buffers many frames share space, and its completion queue.
pub(super) struct StridingRing {
    wq: WorkQueue<Raw>,
    cq: CompletionQueue<Raw>,
    strides: StrideQueue,
    striding: Striding,
    /// The buffer posted at each index of the ring.
    posted: Box<[Option<Arc<Slot>>]>,
    /// Buffers that are not posted: spares, and those that frames still use.
    others: VecDeque<Arc<Slot>>,
    /// Number of WQEs whose buffers have moved to `others`.
    done: u32,
}

impl StridingRing {
    /// Posts `slots`, one for each receive. These and `spares` have at least the bytes of a WQE,
    /// and are of the queue's domain.
    pub(super) fn new(
        mut wq: WorkQueue<Raw>,
        mut cq: CompletionQueue<Raw>,
        striding: Striding,
        slots: Box<[Slot]>,
        spares: Box<[Slot]>,
    ) -> Result<Self> {
        let receives = wq.receive_queue().ok_or_else(no_receives)?;
        for slot in &slots {
            let buffer = slot.whole().with_length(striding.wqe_bytes());
            // SAFETY: the slots stay in this value, and only frames access them, each the bytes
            // that the device has completed. Their memory is given back after the queue was
            // destroyed.
            unsafe { receives.build(0, &[buffer]) }?;
        }
        receives.publish();
        // SAFETY: this value keeps both queues and uses them only through `StrideQueue`; nothing
        // else completes to the CQ. The receives are as just posted.
        let ring = unsafe { PostedRing::new(receives) };
        // SAFETY: it is not exchanged with another one.
        let provider = unsafe { cq.provider() };
        let strides = ring.and_then(|ring| StrideQueue::new(provider, ring, striding.shape()));
        let posted: Box<[_]> =
            Vec::from(slots).into_iter().map(|slot| Some(Arc::new(slot))).collect();
        let strides = match strides {
            Ok(strides) => strides,
            Err(error) => {
                wq.handle().keep_buffers(posted);
                return Err(Error::invalid(VERB, error.to_string()));
            }
        };
        let mut others = VecDeque::with_capacity(posted.len() + spares.len());
        others.extend(Vec::from(spares).into_iter().map(Arc::new));
        let done = strides.done();
        Ok(Self { wq, cq, strides, striding, posted, others, done })
    }

    /// The next frame.
    #[inline]
    pub(super) fn poll(&mut self) -> std::result::Result<SharedFrame, FrameError> {
        // SAFETY: it is not exchanged with another one.
        let found = self.strides.poll(unsafe { self.cq.provider() });
        let frame = found.ok().and_then(|found| {
            let buffer = self.posted.get(found.place as usize)?.clone()?;
            Some(SharedFrame { buffer, found })
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

    /// Removes the buffers of completed WQEs from the ring, and posts buffers that no frame uses.
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
            // domain, long enough for a WQE. This is its only reference, so no frame uses it, and
            // only completions make new frames of it. It stays in `posted` until its WQE is done,
            // or is kept until the queue is destroyed.
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

    /// The provider's queue of strides, for checks and counters.
    pub(super) fn strides(&self) -> &StrideQueue {
        &self.strides
    }

    /// The receiving queue.
    pub(super) fn work_queue(&self) -> &WorkQueue<Raw> {
        &self.wq
    }

    /// Destroys the receiving queue.
    pub(super) fn end(&mut self) -> Result<()> {
        self.wq.destroy_in_place(Wait::Forever)
    }

    /// The division of its buffers.
    pub(super) fn striding(&self) -> Striding {
        self.striding
    }

    /// Number of posted buffers.
    pub(super) fn posted(&self) -> u32 {
        self.posted.len() as u32 - self.strides.missing()
    }

    /// Number of buffers, posted or not.
    pub(super) fn buffers(&self) -> usize {
        self.posted.iter().flatten().count() + self.others.len()
    }
}

impl RxWait for StridingRing {
    #[inline(always)]
    fn has_something(&self) -> bool {
        self.strides.has_something()
    }

    fn arm(&mut self) {
        // SAFETY: it stays in its place.
        self.strides.write_back(unsafe { self.cq.provider() });
        self.cq.arm();
    }

    fn check(&mut self) -> Result<()> {
        self.refill();
        // SAFETY: it stays in its place.
        only_empty(self.strides.nothing(unsafe { self.cq.provider() }))
    }

    fn context(&self) -> &Context {
        self.wq.context()
    }
}

impl Drop for StridingRing {
    fn drop(&mut self) {
        // A table may keep the work queue alive, so the buffers go to it.
        self.wq.handle().keep_buffers(mem::take(&mut self.posted));
    }
}

/// A frame in a buffer of a [`StridingRing`].
pub(super) struct SharedFrame {
    buffer: Arc<Slot>,
    found: StrideFrame,
}

impl Deref for SharedFrame {
    type Target = StrideFrame;
    fn deref(&self) -> &StrideFrame {
        &self.found
    }
}

impl SharedFrame {
    /// Its bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        let Some(start) = self.start() else { return &[] };
        // SAFETY: the bytes are initialized memory of the slot, which the frame keeps, as `start`
        // has checked. The device has completed them: the queue refuses strides that it has already
        // handed out since the buffer was posted. The device writes them again only after the
        // buffer was posted again, which needs that no frame uses it (`StridingRing::refill`).
        // Until then only frames make references to them, each to its own bytes: the slot itself
        // is empty.
        unsafe { std::slice::from_raw_parts(start, self.found.length as usize) }
    }

    /// Its address, if all of it is inside the buffer.
    fn start(&self) -> Option<*const u8> {
        let end = self.found.offset as usize + self.found.length as usize;
        let start = self.buffer.header().start().cast_const();
        (end <= self.buffer.capacity()).then(|| start.wrapping_add(self.found.offset as usize))
    }
}

fn no_receives() -> Error {
    Error::invalid(VERB, "there are no receives")
}

fn only_empty(nothing: FrameError) -> Result<()> {
    match nothing {
        FrameError::Empty => Ok(()),
        error => Err(error.into()),
    }
}

/// The result of a post.
type Posted<T = ()> = std::result::Result<T, PostError>;

/// The send queue of frames.
pub(super) struct TxRing {
    qp: QueuePair<RawPacket, Raw>,
    /// A number that is unique in the process.
    identity: u64,
    /// The protection domain's identity.
    domain: usize,
    /// Blocks of the longest request: at least `ALWAYS_BLOCKS`.
    blocks: usize,
    /// The tails of frames, which the device may read as long as the queue exists.
    tails: Vec<Slot>,
}

/// The next ring's identity.
static IDENTITIES: AtomicU64 = AtomicU64::new(0);

impl TxRing {
    /// The ring of `qp`, which is in the protection domain with the identity `domain` and has space
    /// for requests of `blocks` blocks.
    pub(super) fn new(qp: QueuePair<RawPacket, Raw>, domain: usize, blocks: usize) -> Self {
        let identity = IDENTITIES.fetch_add(1, Ordering::Relaxed);
        Self { qp, identity, domain, blocks, tails: Vec::new() }
    }

    /// The queue pair.
    pub(super) fn queue_pair(&self) -> &QueuePair<RawPacket, Raw> {
        &self.qp
    }

    /// As [`QueuePair::modify_rate_limit`].
    pub(super) fn modify_rate_limit(&mut self, limit: crate::qp::RateLimit) -> Result<()> {
        self.qp.modify_rate_limit(limit)
    }

    /// Number of requests that can be posted now.
    pub(super) fn free_requests(&mut self) -> u32 {
        self.queue().map_or(0, |queue| queue.free_requests())
    }

    /// Makes a frame that is entirely in the request.
    pub(super) fn template<const BLOCKS: usize>(
        &mut self,
        frame: &[u8],
        offload: EthernetOffload,
    ) -> Posted<Template<BLOCKS>> {
        let (operation, data) = framed(offload, frame, ());
        let request = self.queue()?.long_template(operation, data, PostFlags::empty())?;
        Ok(Template { request, length: frame.len(), longest: frame.len() })
    }

    /// Makes a frame that ends in `tail`, which the ring keeps.
    pub(super) fn tailed<const BLOCKS: usize>(
        &mut self,
        start: &[u8],
        tail: Slot,
        offload: EthernetOffload,
    ) -> std::result::Result<Tailed<BLOCKS>, Refused> {
        match self.describe_tailed(start, &tail, offload) {
            Ok(tailed) => {
                self.tails.push(tail);
                Ok(tailed)
            }
            Err(reason) => Err(Refused { slot: tail, reason }),
        }
    }

    fn describe_tailed<const BLOCKS: usize>(
        &mut self,
        start: &[u8],
        tail: &Slot,
        offload: EthernetOffload,
    ) -> Posted<Tailed<BLOCKS>> {
        if tail.header().domain() != self.domain {
            return Err(PostError::ForeignMemory);
        }
        let (operation, data) = framed(offload, start, tail.filled());
        let request = self.queue()?.long_template(operation, data, PostFlags::empty())?;
        let start = Template { request, length: start.len(), longest: start.len() };
        Ok(Tailed { start, tail: tail.len(), queue: self.identity })
    }

    /// Builds a frame and rings the doorbell.
    ///
    /// # Errors
    /// `ForeignMemory` for a frame whose tail another ring keeps; any other [`PostError`].
    #[inline(always)]
    pub(super) fn post<const BLOCKS: usize>(
        &mut self,
        id: u64,
        frame: &impl Sendable<BLOCKS>,
    ) -> Posted {
        let request = frame.request(self)?;
        // SAFETY: the request names no memory except a tail that this ring keeps (`Sendable`).
        unsafe { self.queue()?.post_template(id, request) }
    }

    /// As [`TxRing::post`], with a completion for the frame.
    #[inline(always)]
    pub(super) fn post_signaled<const BLOCKS: usize>(
        &mut self,
        id: u64,
        frame: &impl Sendable<BLOCKS>,
    ) -> Posted {
        let request = frame.request(self)?;
        // SAFETY: as for `post`.
        unsafe { self.queue()?.post_template_with(id, request, PostFlags::SIGNALED) }
    }

    /// Starts building frames without ringing the doorbell.
    #[inline(always)]
    pub(super) fn stage(&mut self) -> Posted<StagedFrames<'_>> {
        let blocks = self.blocks;
        Ok(StagedFrames { batch: ManuallyDrop::new(self.queue()?.batch()?), blocks })
    }

    /// Destroys the queue pair.
    pub(super) fn end(&mut self) -> Result<()> {
        self.qp.end()
    }

    #[inline(always)]
    fn queue(&mut self) -> Posted<&mut SendQueue<RawPacket>> {
        // SAFETY: it is not exchanged with another one.
        let (send, _) = unsafe { self.qp.queues() };
        send.ok_or(PostError::NoQueue)
    }
}

impl Drop for TxRing {
    fn drop(&mut self) {
        if self.tails.is_empty() {
            return;
        }
        let Err(error) = self.qp.end() else { return };
        // The device may still read the tails.
        let tails = mem::take(&mut self.tails);
        self.qp.context().inner().until_close.keep("frames' tails", &error, tails);
    }
}

type Request<const BLOCKS: usize> = provider_send::Template<EthernetFrame<'static>, BLOCKS>;

/// A frame that a ring may send.
pub(super) trait Sendable<const BLOCKS: usize> {
    /// Its request, which names no memory except a tail that `ring` keeps.
    fn request(&self, ring: &TxRing) -> Posted<&Request<BLOCKS>>;
}

impl<const BLOCKS: usize> Sendable<BLOCKS> for Template<BLOCKS> {
    #[inline(always)]
    fn request(&self, ring: &TxRing) -> Posted<&Request<BLOCKS>> {
        self.check_length(ring.blocks)?;
        Ok(&self.request)
    }
}

impl<const BLOCKS: usize> Sendable<BLOCKS> for Tailed<BLOCKS> {
    #[inline(always)]
    fn request(&self, ring: &TxRing) -> Posted<&Request<BLOCKS>> {
        if self.queue != ring.identity {
            return Err(PostError::ForeignMemory);
        }
        Ok(&self.start.request)
    }
}

/// Frames in the ring without a doorbell. Dropping it discards them.
#[derive(Debug)]
pub(super) struct StagedFrames<'q> {
    /// Never dropped: dropping it would leave the frames in the queue for the next doorbell.
    batch: ManuallyDrop<Batch<'q, RawPacket, BlueFlame>>,
    /// Blocks of the ring's longest request.
    blocks: usize,
}

impl StagedFrames<'_> {
    /// Builds a frame after those built before.
    #[inline(always)]
    pub(super) fn build<const BLOCKS: usize>(
        &mut self,
        id: u64,
        template: &Template<BLOCKS>,
        flags: PostFlags,
    ) -> Posted {
        template.check_length(self.blocks)?;
        // SAFETY: the whole frame is in the request, which names no memory.
        unsafe { self.batch.build_template_with(id, &template.request, flags) }
    }

    /// Rings the doorbell for all of them.
    #[inline(always)]
    pub(super) fn publish(self) {
        ManuallyDrop::into_inner(self.batch).publish();
    }
}
