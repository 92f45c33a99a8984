//! Rings of receives for frames: poll, read five fields, give the buffer back.

use std::hint::black_box;

use uverbs::ethernet::RxQueue;
use uverbs::qp_type::RawPacket;
use uverbs::soft::SoftDevice;
use uverbs::{AccessFlags, Buffer, MemoryRegion, ProtectionDomain, raw};
use uverbs_mlx5::completion_queue::{Frame, FrameQueue, Look};

use crate::{BATCH, Device, ENTRIES, Frames, OPERATIONS, Outcome, halted};

const FRAME_BYTES: u32 = 2048;

/// A separate device, because this type of queue pair needs Ethernet.
fn domain(name: &str) -> Outcome<(SoftDevice, ProtectionDomain)> {
    let device = halted::halted(SoftDevice::builder(name))?;
    let context = uverbs::Device::from_soft(device.clone()).open()?;
    Ok((device, context.alloc_pd()?))
}

/// The provider's ring on a raw queue pair.
pub(crate) struct RawFrames {
    ring: FrameQueue,
    cq: raw::CompletionQueue,
    device: Device,
    _qp: raw::QueuePair<RawPacket>,
    _region: MemoryRegion,
}

impl RawFrames {
    pub(crate) fn new() -> Outcome<Self> {
        let (device, pd) = domain("frames_raw")?;
        let buffer = Buffer::new((ENTRIES * FRAME_BYTES) as usize)?;
        let region = pd.register(buffer, AccessFlags::LOCAL_WRITE)?;
        let mut cq = pd.context().create_raw_cq(ENTRIES).build()?;
        let builder = pd.create_raw_qp::<RawPacket>(cq.handle(), cq.handle());
        let mut qp = builder.max_send_wr(0).max_recv_wr(ENTRIES).build()?;
        qp.activate()?;
        let device = Device::new(&device, qp.number());
        // SAFETY: neither queue is swapped with another one.
        let (queue, (_, receives)) = unsafe { (cq.provider(), qp.queues()) };
        let receives = receives.ok_or("there are no receives")?;
        for i in 0..ENTRIES as usize {
            let sge = region.sge(i * FRAME_BYTES as usize, FRAME_BYTES as usize)?;
            // SAFETY: only this ring uses the region, and keeps it alive.
            unsafe { receives.build(sge.address(), &[sge]) }?;
        }
        receives.publish();
        // SAFETY: the queues are kept alive and used only through the ring; the receives were just
        // posted.
        let ring = unsafe { FrameQueue::new(queue, receives, FRAME_BYTES) }?;
        Ok(Self { ring, cq, device, _qp: qp, _region: region })
    }

    #[inline(always)]
    fn next(&mut self, publishes: bool) -> Option<Frame<'_>> {
        // SAFETY: the queue is not swapped with another one.
        let cq = unsafe { self.cq.provider() };
        let next = match self.ring.look() {
            Look::Frame(next) => next,
            Look::Nothing => {
                self.ring.nothing(cq);
                return None;
            }
            Look::Other => self.ring.look_slow(cq).ok()?,
        };
        // SAFETY: as just seen.
        Some(unsafe { self.ring.front(next, publishes) })
    }
}

/// Length, first byte, timestamp, flow tag, checksum.
macro_rules! read {
    ($frame:ident, $timestamp:expr) => {{
        let first = $frame.bytes().first().copied().unwrap_or_default();
        let (length, tag) = ($frame.bytes().len() as u64, u64::from($frame.flow_tag()));
        u64::from(first) + length + $timestamp + tag + u64::from($frame.checks().l3_l4_ok())
    }};
}

impl Frames for RawFrames {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn poll(&mut self) {
        let mut sum = 0;
        for _ in 0..OPERATIONS {
            let Some(frame) = self.next(true) else { break };
            sum += read!(frame, frame.timestamp());
        }
        black_box(sum);
    }

    fn poll_batch(&mut self) {
        let mut sum = 0;
        for _ in 0..OPERATIONS / BATCH {
            for _ in 0..BATCH {
                let Some(frame) = self.next(false) else { break };
                sum += read!(frame, frame.timestamp());
            }
            self.ring.publish();
        }
        black_box(sum);
    }
}

/// A receive queue of frames.
pub(crate) struct SafeFrames {
    queue: RxQueue,
    device: Device,
}

impl SafeFrames {
    pub(crate) fn new() -> Outcome<Self> {
        let (device, pd) = domain("frames_safe")?;
        let builder = pd.create_rx_queue(ENTRIES).frame_bytes(FRAME_BYTES);
        let queue = builder.without_events().build()?;
        let device = Device::new(&device, queue.number());
        Ok(Self { queue, device })
    }
}

impl Frames for SafeFrames {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn poll(&mut self) {
        let mut sum = 0;
        for _ in 0..OPERATIONS {
            let Ok(frame) = self.queue.poll() else { break };
            sum += read!(frame, frame.timestamp().raw());
        }
        black_box(sum);
    }

    fn poll_batch(&mut self) {
        let mut sum = 0;
        for _ in 0..OPERATIONS / BATCH {
            let mut batch = self.queue.batch();
            for _ in 0..BATCH {
                let Ok(frame) = batch.poll() else { break };
                sum += read!(frame, frame.timestamp().raw());
            }
        }
        black_box(sum);
    }
}
