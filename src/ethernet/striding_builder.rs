//! Making striding receive queues.

use std::marker::PhantomData;

use super::clock::{Clock, FreeRunning, compressed};
use super::counters::Matches;
use super::rings::StridingRing;
use super::rx_builder::{RxBuilder, VERB, make_slab};
use super::striding::StridingQueue;
use crate::cq::Compression;
use crate::error::{Error, Result};
use crate::memory::slab::Slab;
use crate::qp::rss::{RssFields, RssOptions, RssTarget};
use crate::qp::striding::Striding;
use crate::qp::work_queue::WqHandle;

/// Bytes of a receive WQE: the link segment and one SGE.
const RECEIVE: u32 = 32;

/// Makes a [`StridingQueue`]: from [`RxBuilder::striding`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct StridingBuilder<C: Clock = FreeRunning> {
    pub(super) rx: RxBuilder<C>,
    pub(super) striding: Striding,
    pub(super) spares: u32,
}

impl<C: Clock> StridingBuilder<C> {
    /// Buffers in addition to those of the receives; 2 by default. Kept frames can occupy this many
    /// buffers before fewer receives are posted.
    pub fn spares(mut self, spares: u32) -> Self {
        self.spares = spares;
        self
    }

    /// Creates the queue. It receives the frames of its rules ([`StridingQueue::steer`]), or of its
    /// target.
    ///
    /// # Errors
    /// Those of [`RxBuilder::build`]; `InvalidInput` for strides outside the device's limits, or
    /// more strides than a completion queue can have entries; `Unsupported` if the device has no
    /// striding queues.
    pub fn build(self) -> Result<StridingQueue<C>> {
        let Self { rx, striding, spares } = self;
        let depth = rx.depth(RECEIVE)?;
        rx.check_spread()?;
        let compression = compressed::<C>(Compression::ChecksumAndStride);
        let (cq, channel) = rx.completion_queue(completions(depth, striding)?, compression)?;
        let wq = rx.pd.create_raw_wq(cq.handle(), depth).striding(striding);
        let wq = if rx.strips_vlan { wq.strip_vlan() } else { wq };
        let wq = wq.build()?;
        let target = (!rx.spread).then(|| target(&rx, wq.handle())).transpose()?;
        let slab = buffers(&rx, striding, depth + spares)?;
        let (slots, spares) = (rx.take(&slab, depth)?, rx.take(&slab, spares)?);
        let ring = StridingRing::new(wq, cq, striding, slots, spares)?;
        let matched = Matches::new(rx.pd.context(), rx.counts)?;
        Ok(StridingQueue { target, ring, channel, matched, clock: PhantomData })
    }
}

/// Entries of the completion queue: one for each stride of all receives.
fn completions(depth: u32, striding: Striding) -> Result<u32> {
    depth.checked_mul(striding.strides()).ok_or_else(|| {
        let cause = "a completion queue has an entry for each stride of all receives";
        let asked = format!("{depth} receives of {} strides", striding.strides());
        Error::invalid(VERB, cause).asked(asked).cure_with("ask for fewer receives")
    })
}

/// Makes a target without hashing, whose table has only this queue.
fn target<C: Clock>(rx: &RxBuilder<C>, wq: &WqHandle) -> Result<RssTarget> {
    let table = rx.pd.context().create_indirection_table(&[wq])?;
    let options = RssOptions::with_fields(RssFields::empty()).port(rx.port);
    rx.pd.create_rss_target(&table, &options)
}

fn buffers<C: Clock>(rx: &RxBuilder<C>, striding: Striding, count: u32) -> Result<Slab> {
    let Some(slab) = &rx.slab else {
        return make_slab(&rx.pd, count, striding.wqe_bytes());
    };
    if slab.slot_bytes() < striding.wqe_bytes() {
        let cause = format!("the slab's slots have {} bytes", slab.slot_bytes());
        let asked = format!("buffers of {} bytes", striding.wqe_bytes());
        return Err(Error::invalid(VERB, cause).asked(asked));
    }
    Ok(slab.clone())
}
