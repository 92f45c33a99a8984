//! Receives of a shared receive queue, on both layers.

use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{
    AccessFlags, Buffer, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, Sge,
    SharedReceiveQueue, Slab, Slot, raw,
};

use crate::{BATCH, BYTES, Device, ENTRIES, OPERATIONS, Outcome, Shared};

/// A raw shared receive queue, and its free SGEs.
pub(crate) struct RawShared {
    queue: raw::SharedReceiveQueue,
    cq: raw::CompletionQueue,
    device: Device,
    free: Vec<u64>,
    table: Vec<Sge>,
    _qp: raw::QueuePair<Rc>,
    _region: MemoryRegion,
}

impl RawShared {
    pub(crate) fn new(device: &SoftDevice, pd: &ProtectionDomain) -> Outcome<Self> {
        let bytes = OPERATIONS * BYTES as usize;
        let region = pd.register(Buffer::new(bytes)?, AccessFlags::LOCAL_WRITE)?;
        let cq = pd.context().create_raw_cq(ENTRIES).build()?;
        let queue = pd.create_raw_srq(ENTRIES - 1).build()?;
        let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        let mut qp = builder.shared_receive_queue(queue.handle()).build()?;
        let own = qp.endpoint();
        qp.connect(&own)?;
        let sge = |i: usize| region.sge(i * BYTES as usize, BYTES as usize);
        let table = (0..OPERATIONS).map(sge).collect::<uverbs::Result<_>>()?;
        let device = Device::of_shared(device, qp.number());
        let free = (0..OPERATIONS as u64).collect();
        Ok(Self { queue, cq, device, free, table, _qp: qp, _region: region })
    }
}

impl Shared for RawShared {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn post(&mut self) {
        let Self { queue, free, table, .. } = self;
        for _ in 0..OPERATIONS {
            let Some(number) = free.pop() else { break };
            let Some(sge) = table.get(number as usize) else { break };
            // SAFETY: the device is halted: it writes to no buffer.
            assert!(unsafe { queue.post(number, &[*sge]) }.is_ok(), "space");
        }
    }

    fn post_batch(&mut self) {
        let Self { queue, free, table, .. } = self;
        for _ in 0..OPERATIONS / BATCH {
            let mut batch = queue.batch();
            for _ in 0..BATCH {
                let Some(number) = free.pop() else { break };
                let Some(sge) = table.get(number as usize) else { break };
                // SAFETY: the device is halted: it writes to no buffer.
                assert!(unsafe { batch.build(number, &[*sge]) }.is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn poll(&mut self) {
        while let Ok(done) = self.cq.poll() {
            self.free.push(done.wr_id());
        }
        assert_eq!(self.free.len(), OPERATIONS);
    }
}

/// A safe shared receive queue, and its free slots.
pub(crate) struct SafeShared {
    queue: SharedReceiveQueue,
    cq: CompletionQueue,
    device: Device,
    slots: Vec<Slot>,
    _qp: QueuePair<Rc>,
    _slab: Slab,
}

impl SafeShared {
    pub(crate) fn new(device: &SoftDevice, pd: &ProtectionDomain) -> Outcome<Self> {
        let cq = pd.context().create_cq(ENTRIES).build()?;
        let queue = pd.create_srq(ENTRIES - 1).build()?;
        let builder = pd.create_qp::<Rc>(cq.handle(), cq.handle());
        let mut qp = builder.shared_receive_queue(queue.handle()).build()?;
        let own = qp.endpoint();
        qp.connect(&own)?;
        let slab = pd.create_slab(OPERATIONS as u32, BYTES)?;
        let slots = std::iter::from_fn(|| slab.take()).collect();
        let device = Device::of_shared(device, qp.number());
        Ok(Self { queue, cq, device, slots, _qp: qp, _slab: slab })
    }
}

impl Shared for SafeShared {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn post(&mut self) {
        for _ in 0..OPERATIONS {
            let Some(slot) = self.slots.pop() else { break };
            assert!(self.queue.post(slot).is_ok(), "space");
        }
    }

    fn post_batch(&mut self) {
        for _ in 0..OPERATIONS / BATCH {
            let mut batch = self.queue.batch();
            for _ in 0..BATCH {
                let Some(slot) = self.slots.pop() else { break };
                assert!(batch.build(slot).is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn poll(&mut self) {
        while let Ok(done) = self.cq.poll() {
            self.slots.extend(done.slot);
        }
        assert_eq!(self.slots.len(), OPERATIONS);
    }
}
