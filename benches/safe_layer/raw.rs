//! The raw layer's side.

use std::collections::VecDeque;
use std::hint::black_box;

use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::raw::Template;
use uverbs::{AccessFlags, Buffer, MemoryRegion, Remote, Sge, op, raw};

use crate::rings::RawFrames;
use crate::shared::RawShared;
use crate::{BATCH, BYTES, Device, ENTRIES, Frames, OPERATIONS, Outcome, Shared, Side, halted};

/// A raw queue pair, its completion queue, and its free SGEs.
pub(crate) struct Raw {
    cq: raw::CompletionQueue,
    qp: raw::QueuePair<Rc>,
    template: Template<op::Write>,
    device: Device,
    shared: RawShared,
    frames: RawFrames,
    free: Vec<u64>,
    /// The numbers of unsignaled sends, and of signaled ones that complete for them.
    sent: VecDeque<u64>,
    table: Vec<Sge>,
    _region: MemoryRegion,
}

impl Raw {
    pub(crate) fn new() -> Outcome<Self> {
        let device = halted::device("uverbs_raw")?;
        let context = uverbs::Device::from_soft(device.clone()).open()?;
        let pd = context.alloc_pd()?;
        let bytes = OPERATIONS * BYTES as usize;
        let region = pd.register(Buffer::new(bytes)?, AccessFlags::LOCAL_WRITE)?;
        let cq = context.create_raw_cq(2 * ENTRIES - 1).build()?;
        let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        let builder = builder.max_send_wr(ENTRIES).max_recv_wr(ENTRIES);
        let mut qp = builder.access(AccessFlags::REMOTE_WRITE).build()?;
        let own = qp.endpoint();
        qp.connect(&own)?;
        let sge = |i: usize| region.sge(i * BYTES as usize, BYTES as usize);
        let table = (0..OPERATIONS).map(sge).collect::<uverbs::Result<_>>()?;
        let write = op::Write(Remote::new(0x1000, 0x1234));
        let template = qp.template(write, Inline(&[7; 16]), PostFlags::SIGNALED)?;
        let shared = RawShared::new(&device, &pd)?;
        let device = Device::new(&device, qp.number());
        let frames = RawFrames::new()?;
        let free = (0..OPERATIONS as u64).collect();
        let sent = VecDeque::with_capacity(OPERATIONS);
        Ok(Self { cq, qp, template, device, shared, frames, free, sent, table, _region: region })
    }

    #[inline(always)]
    fn take(&mut self) -> Option<(u64, Sge)> {
        let number = self.free.pop()?;
        self.table.get(number as usize).map(|sge| (number, *sge))
    }
}

fn remote(i: usize) -> op::Write {
    op::Write(Remote::new(0x1000 + 64 * i as u64, 0x1234))
}

impl Side for Raw {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn post(&mut self) {
        for i in 0..OPERATIONS {
            let Some((number, sge)) = self.take() else { break };
            // SAFETY: no device reads it.
            let posted = unsafe { self.qp.post_send(number, remote(i), sge, PostFlags::SIGNALED) };
            assert!(posted.is_ok(), "space");
        }
    }

    fn post_batch(&mut self) {
        let Self { qp, free, table, .. } = self;
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = qp.batch() else { return };
            for i in 0..BATCH {
                let Some(number) = free.pop() else { break };
                let Some(sge) = table.get(number as usize) else { break };
                let remote = remote(list * BATCH + i);
                // SAFETY: no device reads it.
                let built = unsafe { batch.build(number, remote, *sge, PostFlags::SIGNALED) };
                assert!(built.is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn template(&mut self) {
        for i in 0..OPERATIONS {
            assert!(self.template.set_inline(&[i as u8; 16]));
            // SAFETY: inline data is copied, so no memory is shared.
            assert!(unsafe { self.qp.post_template(7, &self.template) }.is_ok(), "space");
        }
    }

    fn template_batch(&mut self) {
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = self.qp.batch() else { return };
            for i in 0..BATCH {
                assert!(self.template.set_inline(&[(list * BATCH + i) as u8; 16]));
                // SAFETY: inline data is copied, so no memory is shared.
                assert!(unsafe { batch.build_template(7, &self.template) }.is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn receive(&mut self) {
        for _ in 0..OPERATIONS {
            let Some((number, sge)) = self.take() else { break };
            // SAFETY: no device writes to it.
            assert!(unsafe { self.qp.post_receive(number, &[sge]) }.is_ok(), "space");
        }
    }

    fn receive_batch(&mut self) {
        let Self { qp, free, table, .. } = self;
        for _ in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = qp.receive_batch() else { return };
            for _ in 0..BATCH {
                let Some(number) = free.pop() else { break };
                let Some(sge) = table.get(number as usize) else { break };
                // SAFETY: no device writes to it.
                assert!(unsafe { batch.build(number, &[*sge]) }.is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn shared(&mut self) -> &mut dyn Shared {
        &mut self.shared
    }

    fn ring(&mut self) -> &mut dyn Frames {
        &mut self.frames
    }

    fn poll(&mut self) {
        let (mut sum, room) = (0, self.table.len());
        for _ in 0..OPERATIONS {
            let Ok(done) = self.cq.poll() else { break };
            assert!(done.is_success());
            sum += u64::from(done.byte_len());
            // A template's request has no memory.
            if self.free.len() < room {
                self.free.push(done.wr_id());
            }
        }
        black_box(sum);
    }

    fn poll_batch(&mut self) {
        let (mut sum, room) = (0, self.table.len());
        let Self { cq, free, .. } = self;
        for _ in 0..OPERATIONS / BATCH {
            let polled = cq.poll_up_to(BATCH, |done| {
                assert!(done.is_success());
                sum += u64::from(done.byte_len());
                if free.len() < room {
                    free.push(done.wr_id());
                }
            });
            assert_eq!(polled, Ok(BATCH));
        }
        black_box(sum);
    }

    fn take_and_post(&mut self) {
        self.post();
    }

    fn take_and_post_batch(&mut self) {
        let Self { qp, free, sent, table, .. } = self;
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = qp.batch() else { return };
            for i in 0..BATCH {
                let Some(number) = free.pop() else { break };
                let Some(sge) = table.get(number as usize) else { break };
                let signaled = i + 1 == BATCH;
                let flags = if signaled { PostFlags::SIGNALED } else { PostFlags::empty() };
                let remote = remote(list * BATCH + i);
                // SAFETY: no device reads it.
                assert!(unsafe { batch.build(number, remote, *sge, flags) }.is_ok(), "space");
                sent.push_back(number);
            }
            batch.publish();
        }
    }

    fn poll_and_give_back(&mut self) {
        let mut sum = 0;
        let Self { cq, free, sent, .. } = self;
        while let Ok(polled) = cq.poll_up_to(BATCH, |done| {
            assert!(done.is_success());
            sum += u64::from(done.byte_len());
            let number = done.wr_id();
            while let Some(earlier) = sent.pop_front().filter(|earlier| *earlier != number) {
                free.push(earlier);
            }
            free.push(number);
        }) {
            if polled == 0 {
                break;
            }
        }
        assert_eq!(free.len(), OPERATIONS);
        black_box(sum);
    }
}
