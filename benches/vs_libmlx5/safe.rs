//! The same operations through the safe layer, on queues of a halted device.

use std::hint::black_box;

use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, CompletionQueue, Device, QueuePair, Remote, Slab, Slot, op};

use crate::halted::{self, QpNumbers};
use crate::producer::Producer;
use crate::{OPERATIONS, measured};

/// A safe queue pair, its completion queue, and slots.
pub(crate) struct Safe {
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    numbers: QpNumbers,
    cqe: Producer,
    slots: Vec<Slot>,
    sent: u32,
    received: u32,
    _slab: Slab,
}

impl Safe {
    pub(crate) fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let device = halted::device("uverbs_safe")?;
        let context = Device::from_soft(device.clone()).open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1023).build()?;
        let builder = pd.create_qp::<Rc>(cq.handle(), cq.handle());
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let builder = builder.access(rights).max_send_wr(512).max_recv_wr(512);
        let mut qp = builder.build()?;
        let own = qp.endpoint();
        qp.connect(&own)?;
        let slab = pd.create_slab(OPERATIONS as u32, 64)?;
        let mut slots: Vec<Slot> = std::iter::from_fn(|| slab.take()).collect();
        for slot in &mut slots {
            slot.set_len(64);
        }
        let numbers = halted::numbers_of(&device, qp.number());
        let cqe = halted::producer(&device, numbers);
        Ok(Self { cq, qp, numbers, cqe, slots, sent: 0, received: 0, _slab: slab })
    }

    fn complete_sends(&mut self) {
        for _ in 0..OPERATIONS {
            self.cqe.send(self.numbers.user_index, 8 << 24 | self.numbers.number, self.sent);
            self.sent += 1;
        }
    }

    fn post(&mut self) {
        let flags = PostFlags::SIGNALED;
        for i in 0..OPERATIONS {
            let Some(slot) = self.slots.pop() else { break };
            let remote = Remote::new(0x1000 + 64 * i as u64, 0x1234);
            assert!(self.qp.post_send(op::Write(remote), slot, flags).is_ok(), "space");
        }
    }

    fn poll(&mut self) -> u64 {
        let mut sum = 0;
        for _ in 0..OPERATIONS {
            let Ok(done) = self.cq.poll() else { break };
            sum += done.completion.status() as u64 + u64::from(done.completion.byte_len());
            self.slots.extend(done.slot);
        }
        assert_eq!(self.slots.len(), OPERATIONS, "all came back");
        sum
    }
}

pub(crate) fn write_sge(safe: &mut Safe) -> u64 {
    let time = measured(|| safe.post());
    safe.complete_sends();
    black_box(safe.poll());
    time
}

pub(crate) fn poll_send_1(safe: &mut Safe) -> u64 {
    safe.post();
    safe.complete_sends();
    measured(|| {
        black_box(safe.poll());
    })
}

pub(crate) fn recv(safe: &mut Safe) -> u64 {
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            let Some(slot) = safe.slots.pop() else { break };
            assert!(safe.qp.post_receive(slot).is_ok(), "space");
        }
    });
    for _ in 0..OPERATIONS {
        safe.cqe.receive(safe.numbers.user_index, safe.numbers.number, safe.received);
        safe.received += 1;
    }
    black_box(safe.poll());
    time
}
