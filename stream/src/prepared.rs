//! The objects of a connection, created before it is established.

use std::io;

use uverbs::cm::Id;
use uverbs::qp_type::Rc;
use uverbs::{
    AccessFlags, Buffer, CompletionChannel, CompletionQueue, MemoryRegion, QueuePair, Slab,
};

use crate::buffers::SendBuffers;
use crate::config::{Config, INLINE, RECEIVES, SENDS};
use crate::handshake::Offer;
use crate::window::Report;

/// The queues, ring and send buffers of a connection that is not established yet. Its receives are
/// posted.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) qp: QueuePair<Rc>,
    pub(crate) cq: CompletionQueue,
    pub(crate) completions: CompletionChannel,
    pub(crate) ring: MemoryRegion,
    pub(crate) buffers: SendBuffers,
    pub(crate) offer: Offer,
}

impl Prepared {
    /// Creates everything on the device of `id`.
    pub(crate) fn new(id: &Id, config: &Config) -> io::Result<Self> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let completions = context.create_completion_channel()?;
        let cq = context.create_cq(SENDS + RECEIVES).channel(&completions).build()?;
        let mut qp = id
            .create_qp::<Rc, _>(&pd, cq.handle(), cq.handle())?
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES)
            .max_inline_data(INLINE)
            .build()?;
        let reports = (RECEIVES, Report::BYTES as u32);
        let (buffers, reports) = SendBuffers::with_receives(&pd, config, reports)?;
        post_receives(&mut qp, &reports)?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let ring = pd.register(Buffer::new(config.ring as usize)?, access)?;
        let offer = offer(&ring)?;
        Ok(Self { qp, cq, completions, ring, buffers, offer })
    }
}

fn post_receives(qp: &mut QueuePair<Rc>, slab: &Slab) -> uverbs::Result<()> {
    let mut batch = qp.receive_batch()?;
    while let Some(slot) = slab.take() {
        batch.build(slot)?;
    }
    batch.publish();
    Ok(())
}

fn offer(ring: &MemoryRegion) -> uverbs::Result<Offer> {
    let (bytes, receives) = (ring.len() as u32, RECEIVES as u16);
    Ok(Offer { ring: ring.remote(0)?, bytes, receives })
}
