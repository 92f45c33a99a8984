//! Making send queues of frames.

use std::marker::PhantomData;

use super::clock::{Clock, FreeRunning, RealTime, format};
use super::rings::TxRing;
use super::rx_builder::in_memory_of;
use super::template::ALWAYS_BLOCKS;
use super::template::blocks;
use super::tx::TxQueue;
use crate::error::{Error, Result};
use crate::host::queue_memory::QueueMemory;
use crate::memory::pd::ProtectionDomain;
use crate::qp::qp_type::RawPacket;

const VERB: &str = "create_tx_queue";
/// Bytes at the start of a frame that are in the Ethernet segment itself, and do not count as
/// inline data.
const BESIDE: u32 = 2;
/// Bytes of the longest frame that fits [`ALWAYS_BLOCKS`]. Every queue has space for such frames,
/// so sending one needs no check of the length.
const ALWAYS: u32 = 226;
const _: () = assert!(blocks(ALWAYS as usize) == ALWAYS_BLOCKS);
const _: () = assert!(blocks(ALWAYS as usize + 1) > ALWAYS_BLOCKS);

/// Makes a [`TxQueue`]: from [`ProtectionDomain::create_tx_queue`].
///
/// The defaults: frames of up to 226 bytes, the most that one BlueFlame copy takes; a completion
/// for every 64th frame, or twice per depth if that is more often; free-running timestamps; port 1.
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct TxBuilder<C: Clock = FreeRunning> {
    pd: ProtectionDomain,
    depth: u32,
    frame_bytes: u32,
    every: u32,
    port: u8,
    clock: PhantomData<C>,
}

impl ProtectionDomain {
    /// Starts building a send queue of frames, of which at least `depth` may be outstanding.
    pub fn create_tx_queue(&self, depth: u32) -> TxBuilder {
        let every = (depth / 2).clamp(1, 64);
        TxBuilder {
            pd: self.clone(),
            depth,
            frame_bytes: ALWAYS,
            every,
            port: 1,
            clock: PhantomData,
        }
    }
}

impl<C: Clock> TxBuilder<C> {
    /// Bytes of the longest template, at least 226. Longer frames end in memory:
    /// [`TxQueue::template_with_tail`].
    pub fn frame_bytes(mut self, bytes: u32) -> Self {
        self.frame_bytes = bytes.max(ALWAYS);
        self
    }

    /// Sets how many frames there are per completion: 1 up to half of the depth. With 1 each frame
    /// has a timestamp.
    pub fn completion_every(mut self, frames: u32) -> Self {
        self.every = frames;
        self
    }

    /// Takes the memory of its rings and doorbell records from `memory`: see
    /// [`RxBuilder::memory`](super::RxBuilder::memory).
    pub fn memory(mut self, memory: &QueueMemory) -> Self {
        self.pd = self.pd.with_queue_memory(memory);
        self
    }

    /// The port, from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Takes timestamps from the device's PTP hardware clock ([`RealTime`]).
    pub fn real_time(self) -> TxBuilder<RealTime> {
        TxBuilder {
            pd: self.pd,
            depth: self.depth,
            frame_bytes: self.frame_bytes,
            every: self.every,
            port: self.port,
            clock: PhantomData,
        }
    }

    /// Creates the queue, ready to send.
    ///
    /// # Errors
    /// `InvalidInput` for a depth, a length or a number of frames per completion out of range;
    /// `Unsupported` for a port that is not an Ethernet port, or options that the device lacks;
    /// EPERM without CAP_NET_RAW; other errors of the kernel.
    pub fn build(self) -> Result<TxQueue<C>> {
        if self.depth == 0 {
            return Err(Error::invalid(VERB, "a queue has space for at least one frame"));
        }
        if self.every == 0 || self.every > (self.depth / 2).max(1) {
            let cause = "a completion is for 1 frame up to half of the depth";
            return Err(Error::invalid(VERB, cause).asked(format!("every {} frames", self.every)));
        }
        // The depth is rounded up, so up to twice as many frames may be granted.
        let entries = self.depth.saturating_mul(2);
        let cq = self.pd.context().create_raw_cq(entries).timestamps(format::<C>());
        let cq = in_memory_of(&self.pd, cq).build()?;
        let builder = self.pd.create_raw_qp::<RawPacket>(cq.handle(), cq.handle());
        let builder = builder.max_send_wr(self.depth).max_recv_wr(0).port(self.port);
        let mut qp = builder.max_inline_data(self.frame_bytes - BESIDE).build()?;
        qp.activate()?;
        let ring = TxRing::new(qp, self.pd.identity(), blocks(self.frame_bytes as usize));
        Ok(TxQueue::new(ring, cq, self.every))
    }
}
