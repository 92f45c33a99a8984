//! Making receive queues of frames.

use std::marker::PhantomData;

use super::clock::{Clock, FreeRunning, RealTime, Timed, Untimed, compressed, format};
use super::counters::Matches;
use super::receiver::Receiver;
use super::rings::RxRing;
use super::rx::RxQueue;
use super::striding_builder::StridingBuilder;
use crate::cq::builder::CqBuilder;
use crate::cq::channel::CompletionChannel;
use crate::cq::{CompletionQueue, Compression};
use crate::device::layer::Raw;
use crate::error::{Error, Result};
use crate::host::queue_memory::{self, QueueMemory, QueueUse};
use crate::memory::pd::ProtectionDomain;
use crate::memory::slab::{self, Slab};
use crate::memory::slot::Slot;
use crate::qp::qp_type::RawPacket;
use crate::qp::striding::Striding;

pub(super) const VERB: &str = "create_rx_queue";

/// Spare buffers in addition to those of the receives, if the queue makes its own buffers.
const SPARES: u32 = 64;
/// Least bytes of a ring.
const SHORTEST: u32 = 64;
/// Bytes of a receive WQE.
const RECEIVE: u32 = 16;
/// Most receives: the device's counters have 16 bits.
const MOST: u32 = 1 << 15;

/// Makes an [`RxQueue`]: from [`ProtectionDomain::create_rx_queue`].
///
/// The defaults: buffers of 2048 bytes that the queue makes itself, free-running timestamps, events
/// for [`RxQueue::wait`], port 1, VLAN tags left in the frames.
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct RxBuilder<C: Clock = FreeRunning> {
    pub(super) pd: ProtectionDomain,
    depth: u32,
    frame_bytes: u32,
    pub(super) slab: Option<Slab>,
    pub(super) port: u8,
    pub(super) vector: u32,
    pub(super) events: bool,
    pub(super) strips_vlan: bool,
    pub(super) counts: bool,
    pub(super) spread: bool,
    clock: PhantomData<C>,
}

impl ProtectionDomain {
    /// Starts building a receive queue of frames with at least `depth` receives, rounded up to a
    /// power of two from 4 to 32768. Frames are lost if more than `depth` frames arrive before the
    /// program polls them.
    pub fn create_rx_queue(&self, depth: u32) -> RxBuilder {
        RxBuilder {
            pd: self.clone(),
            depth,
            frame_bytes: 2048,
            slab: None,
            port: 1,
            vector: 0,
            events: true,
            strips_vlan: false,
            counts: false,
            spread: false,
            clock: PhantomData,
        }
    }
}

impl<C: Clock> RxBuilder<C> {
    /// Bytes of a buffer; the device drops longer frames. At the usual MTU a frame with a VLAN tag
    /// has 1518 bytes.
    pub fn frame_bytes(mut self, bytes: u32) -> Self {
        self.frame_bytes = bytes;
        self
    }

    /// Takes all memory that the device accesses from `memory`: rings, doorbell records, and the
    /// buffers unless [`RxBuilder::buffers`] sets others. This can be huge pages, memory of one
    /// NUMA node ([`QueueMemory::on_node`]), or the program's own. The same as
    /// [`ProtectionDomain::with_queue_memory`].
    pub fn memory(mut self, memory: &QueueMemory) -> Self {
        self.pd = self.pd.with_queue_memory(memory);
        self
    }

    /// Uses slots of `slab` as buffers, which may be in the program's own memory
    /// ([`ProtectionDomain::create_slab_with`]). The slab needs a free slot for each receive;
    /// further slots can be spares for [`Frame::take`](super::Frame::take).
    pub fn buffers(mut self, slab: &Slab) -> Self {
        self.slab = Some(slab.clone());
        self
    }

    /// The port, from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Completion vector (interrupt) of its events, from 0; 0 by default.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Makes no completion channel: the queue can only be polled.
    pub fn without_events(mut self) -> Self {
        self.events = false;
        self
    }

    /// Delivers VLAN tags in [`Frame::vlan`](super::Frame::vlan) instead of in memory.
    pub fn strip_vlan(mut self) -> Self {
        self.strips_vlan = true;
        self
    }

    /// Lets the device count the frames that the queue's rules match, for [`RxQueue::matched`] and
    /// [`RxQueue::lost`].
    pub fn count_matches(mut self) -> Self {
        self.counts = true;
        self
    }

    /// Makes a receive work queue ([`RxQueue::work_queue`]), one of several over which an
    /// [`RssTarget`](crate::qp::rss::RssTarget) spreads frames. The target has the rules, their
    /// port and their counts.
    pub fn spread(mut self) -> Self {
        self.spread = true;
        self
    }

    /// Lets many frames share a buffer. The depth is then the number of posted buffers, each of
    /// [`Striding::wqe_bytes`] bytes, and [`RxBuilder::frame_bytes`] has no effect. The queue is a
    /// receive work queue with its own target. Set all other options before: the returned builder
    /// has only the number of spare buffers.
    ///
    /// ```no_run
    /// use uverbs::ethernet::{StrideBytes, Striding, StridesPerWqe};
    /// let context = uverbs::open_default()?;
    /// let pd = context.alloc_pd()?;
    /// let strides = Striding::new(StrideBytes::B256, StridesPerWqe::N2048);
    /// let mut rx = pd.create_rx_queue(16).striding(strides).build()?;
    /// let feed = uverbs::flow::UdpMulticast::new([239, 1, 2, 3].into(), 14310);
    /// let _rule = rx.steer(&feed)?;
    /// while let Ok(frame) = rx.poll() {
    ///     println!("{:?}: {} bytes", frame.timestamp(), frame.bytes().len());
    /// }
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    #[doc(alias = "mlx5dv_create_wq")]
    pub fn striding(self, striding: Striding) -> StridingBuilder<C> {
        StridingBuilder { rx: self, striding, spares: 2 }
    }

    fn with_clock<D: Clock>(self) -> RxBuilder<D> {
        RxBuilder {
            pd: self.pd,
            depth: self.depth,
            frame_bytes: self.frame_bytes,
            slab: self.slab,
            port: self.port,
            vector: self.vector,
            events: self.events,
            strips_vlan: self.strips_vlan,
            counts: self.counts,
            spread: self.spread,
            clock: PhantomData,
        }
    }

    /// Creates the queue. It receives the frames of its rules ([`RxQueue::steer`]), or of its
    /// target.
    ///
    /// # Errors
    /// `InvalidInput` for a depth or buffers out of range; `Unsupported` for a port that is not an
    /// Ethernet port, or options that the device lacks, for example real-time timestamps; EPERM
    /// without CAP_NET_RAW; other errors of the kernel.
    pub fn build(self) -> Result<RxQueue<C>> {
        let depth = self.depth(RECEIVE)?;
        self.check_spread()?;
        // Compressed completions keep the hash of each frame; its checksum is not needed.
        let compression = compressed::<C>(Compression::Hash);
        let (cq, channel) = self.completion_queue(depth, compression)?;
        let matched = Matches::new(self.pd.context(), self.counts)?;
        let receiver = self.receiver(&cq, depth)?;
        let slab = self.slab(depth)?;
        let ring = RxRing::new(receiver, cq, self.take(&slab, depth)?, slab.slot_bytes())?;
        Ok(RxQueue { ring, slab, rejected: 0, channel, matched, clock: PhantomData })
    }

    /// Makes the completion queue, with a channel if there are events.
    pub(super) fn completion_queue(
        &self,
        entries: u32,
        compression: Option<Compression>,
    ) -> Result<(CompletionQueue<Raw>, Option<CompletionChannel>)> {
        let context = self.pd.context();
        let channel = self.events.then(|| context.create_completion_channel()).transpose()?;
        let cq = context.create_raw_cq(entries).vector(self.vector).timestamps(format::<C>());
        let cq = match compression {
            Some(compression) => cq.compressed(compression),
            None => cq,
        };
        let cq = match &channel {
            Some(channel) => cq.channel(channel),
            None => cq,
        };
        Ok((in_memory_of(&self.pd, cq).build()?, channel))
    }

    pub(super) fn check_spread(&self) -> Result<()> {
        if self.spread && (self.counts || self.port != 1) {
            let cause = "a queue that frames are spread to has no rules, and so no port or counts";
            let cure = "say the port to RssOptions, and count at the target's rules";
            return Err(Error::invalid(VERB, cause).cure_with(cure));
        }
        Ok(())
    }

    /// The depth, rounded up for WQEs of `bytes` bytes.
    pub(super) fn depth(&self, bytes: u32) -> Result<u32> {
        match self.depth {
            1..=MOST => Ok(self.depth.next_power_of_two().max(SHORTEST / bytes)),
            _ => {
                let cause = "a queue has 1 to 32768 receives";
                Err(Error::invalid(VERB, cause).asked(format!("{} receives", self.depth)))
            }
        }
    }

    /// Makes the receiving queue, ready to receive.
    fn receiver(&self, cq: &CompletionQueue<Raw>, depth: u32) -> Result<Receiver> {
        if self.spread {
            let builder = self.pd.create_raw_wq(cq.handle(), depth);
            let builder = if self.strips_vlan { builder.strip_vlan() } else { builder };
            return Ok(Receiver::WorkQueue(Box::new(builder.build()?)));
        }
        let builder = self.pd.create_raw_qp::<RawPacket>(cq.handle(), cq.handle());
        let builder = builder.max_send_wr(0).max_recv_wr(depth).port(self.port);
        let builder = if self.strips_vlan { builder.strip_vlan() } else { builder };
        let mut qp = builder.build()?;
        qp.activate()?;
        Ok(Receiver::QueuePair(Box::new(qp)))
    }

    fn slab(&self, depth: u32) -> Result<Slab> {
        match &self.slab {
            Some(slab) => Ok(slab.clone()),
            None => make_slab(&self.pd, depth + SPARES, self.frame_bytes),
        }
    }

    /// Takes a slot for each receive.
    pub(super) fn take(&self, slab: &Slab, depth: u32) -> Result<Box<[Slot]>> {
        let slots: Box<[Slot]> = std::iter::from_fn(|| slab.take()).take(depth as usize).collect();
        if slots.len() < depth as usize {
            let cause = format!("the slab has {} free slots", slots.len());
            return Err(Error::invalid(VERB, cause).asked(format!("{depth} receives")));
        }
        if slots.iter().any(|slot| slot.header().domain() != self.pd.identity()) {
            let cause = "the buffers belong to another protection domain";
            return Err(Error::invalid(VERB, cause));
        }
        Ok(slots)
    }
}

/// A slab in memory of the domain's allocator, if it has one.
pub(super) fn make_slab(pd: &ProtectionDomain, slots: u32, bytes: u32) -> Result<Slab> {
    let Some(memory) = pd.queue_memory() else { return pd.create_slab(slots, bytes) };
    let length = slab::bytes(slots, bytes)?;
    let buffer = queue_memory::allocate(VERB, Some(memory), length, QueueUse::Frames)?;
    pd.create_slab_with(buffer, bytes)
}

/// Sets the domain's allocator for the completion queue, if it has one.
pub(super) fn in_memory_of(pd: &ProtectionDomain, cq: CqBuilder<Raw>) -> CqBuilder<Raw> {
    match pd.queue_memory() {
        Some(memory) => cq.queue_memory(memory),
        None => cq,
    }
}

impl<C: Timed> RxBuilder<C> {
    /// Takes timestamps from the device's PTP hardware clock ([`RealTime`]).
    pub fn real_time(self) -> RxBuilder<RealTime> {
        self.with_clock()
    }

    /// Lets the device compress completions: one full CQE, then eight bytes for each further frame.
    /// This saves bus traffic, but adds latency and loses timestamps. For recorders that the bus
    /// limits.
    ///
    /// ```no_run
    /// let context = uverbs::open_default()?;
    /// let rx = context.alloc_pd()?.create_rx_queue(4096).compressed().build()?;
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    #[doc(alias = "mlx5dv_create_cq")]
    pub fn compressed(self) -> RxBuilder<Untimed> {
        self.with_clock()
    }
}
