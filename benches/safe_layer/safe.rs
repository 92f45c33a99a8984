//! The safe layer's side.

use std::hint::black_box;

use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, CompletionQueue, InlineTemplate, QueuePair, Remote, Slab, Slot, op};

use crate::rings::SafeFrames;
use crate::shared::SafeShared;
use crate::{BATCH, BYTES, Device, ENTRIES, Frames, OPERATIONS, Outcome, Shared, Side, halted};

/// A safe queue pair, its completion queue, and its free slots.
pub(crate) struct Safe {
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    template: InlineTemplate<op::Write>,
    device: Device,
    shared: SafeShared,
    frames: SafeFrames,
    slots: Vec<Slot>,
    _slab: Slab,
    /// For the cases in which slots are taken and given back.
    lives: Slab,
}

impl Safe {
    pub(crate) fn new() -> Outcome<Self> {
        let device = halted::device("uverbs_safe")?;
        let context = uverbs::Device::from_soft(device.clone()).open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * ENTRIES - 1).build()?;
        let builder = pd.create_qp::<Rc>(cq.handle(), cq.handle());
        let builder = builder.max_send_wr(ENTRIES).max_recv_wr(ENTRIES);
        let mut qp = builder.access(AccessFlags::REMOTE_WRITE).build()?;
        let own = qp.endpoint();
        qp.connect(&own)?;
        let [slab, lives] = pd.create_slabs([(OPERATIONS as u32, BYTES); 2])?;
        let mut slots: Vec<Slot> = std::iter::from_fn(|| slab.take()).collect();
        for slot in &mut slots {
            slot.set_len(BYTES as usize);
        }
        let write = op::Write(Remote::new(0x1000, 0x1234));
        let template = qp.template(write, &[7; 16], PostFlags::SIGNALED)?;
        let shared = SafeShared::new(&device, &pd)?;
        let device = Device::new(&device, qp.number());
        let frames = SafeFrames::new()?;
        Ok(Self { cq, qp, template, device, shared, frames, slots, _slab: slab, lives })
    }
}

fn remote(i: usize) -> op::Write {
    op::Write(Remote::new(0x1000 + 64 * i as u64, 0x1234))
}

impl Side for Safe {
    fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    fn post(&mut self) {
        for i in 0..OPERATIONS {
            let Some(slot) = self.slots.pop() else { break };
            assert!(self.qp.post_send(remote(i), slot, PostFlags::SIGNALED).is_ok(), "space");
        }
    }

    fn post_batch(&mut self) {
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = self.qp.batch() else { return };
            for i in 0..BATCH {
                let Some(slot) = self.slots.pop() else { break };
                let remote = remote(list * BATCH + i);
                assert!(batch.build(remote, slot, PostFlags::SIGNALED).is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn template(&mut self) {
        for i in 0..OPERATIONS {
            assert!(self.template.set_inline(&[i as u8; 16]));
            assert!(self.qp.post_template(&self.template).is_ok(), "space");
        }
    }

    fn template_batch(&mut self) {
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = self.qp.batch() else { return };
            for i in 0..BATCH {
                assert!(self.template.set_inline(&[(list * BATCH + i) as u8; 16]));
                assert!(batch.build_template(&self.template).is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn receive(&mut self) {
        for _ in 0..OPERATIONS {
            let Some(slot) = self.slots.pop() else { break };
            assert!(self.qp.post_receive(slot).is_ok(), "space");
        }
    }

    fn receive_batch(&mut self) {
        for _ in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = self.qp.receive_batch() else { return };
            for _ in 0..BATCH {
                let Some(slot) = self.slots.pop() else { break };
                assert!(batch.build(slot).is_ok(), "space");
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
        let mut sum = 0;
        for _ in 0..OPERATIONS {
            let Ok(done) = self.cq.poll() else { break };
            assert!(done.completion.is_success());
            sum += u64::from(done.completion.byte_len());
            if let Some(slot) = done.slot {
                self.slots.push(slot);
            }
        }
        black_box(sum);
    }

    fn poll_batch(&mut self) {
        let mut sum = 0;
        let Self { cq, slots, .. } = self;
        for _ in 0..OPERATIONS / BATCH {
            let polled = cq.poll_up_to(BATCH, |done| {
                assert!(done.completion.is_success());
                sum += u64::from(done.completion.byte_len());
                if let Some(slot) = done.slot {
                    slots.push(slot);
                }
            });
            assert_eq!(polled, Ok(BATCH));
        }
        black_box(sum);
    }

    fn take_and_post(&mut self) {
        for i in 0..OPERATIONS {
            let Some(mut slot) = self.lives.take() else { break };
            slot.set_len(BYTES as usize);
            assert!(self.qp.post_send(remote(i), slot, PostFlags::SIGNALED).is_ok(), "space");
        }
    }

    fn take_and_post_batch(&mut self) {
        for list in 0..OPERATIONS / BATCH {
            let Ok(mut batch) = self.qp.batch() else { return };
            for i in 0..BATCH {
                let Some(mut slot) = self.lives.take() else { break };
                slot.set_len(BYTES as usize);
                let signaled = i + 1 == BATCH;
                let flags = if signaled { PostFlags::SIGNALED } else { PostFlags::empty() };
                assert!(batch.build(remote(list * BATCH + i), slot, flags).is_ok(), "space");
            }
            batch.publish();
        }
    }

    fn poll_and_give_back(&mut self) {
        let mut sum = 0;
        while let Ok(polled) = self.cq.poll_up_to(BATCH, |done| {
            assert!(done.completion.is_success());
            sum += u64::from(done.completion.byte_len());
        }) {
            if polled == 0 {
                break;
            }
        }
        black_box(sum);
    }
}
