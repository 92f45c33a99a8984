//! Pools of receives that several queues share (RMPs).

use uverbs::MemoryRegion;
use uverbs::devx::DevxObject;
use uverbs_soft_adapter::firmware::layout::context::{rmpc, wq};
use uverbs_soft_adapter::firmware::layout::ethernet::rqc;

use crate::common;
use crate::ethernet::{Bench, CONTEXT, QUEUE, RECEIVED, SPACE, WQES, queue, ready_rq};
use crate::firmware::{Cq, Input, LOG_CQES, Memory, create, free, segment};
use crate::spreading::{Table, all_arrive};

/// The order in which the receives of a pool are used.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Linked,
    Cyclic,
    /// Without a link before each receive.
    BasicCyclic,
}

/// A pool of receives.
struct Pool {
    object: DevxObject,
    number: u32,
    memory: Memory,
    buffers: Vec<MemoryRegion>,
}

impl Pool {
    fn new(bench: &Bench, order: Order) -> Self {
        let (memory, pd) = (Memory::new(&bench.devx), bench.wire.setup.pd.number());
        let is_basic = order == Order::BasicCyclic;
        let log_stride = if is_basic { 4 } else { 5 };
        let input = Input::new(0x90c, 272)
            .set(rmpc::STATE.at(CONTEXT), 1u64)
            .set(rmpc::BASIC_CYCLIC_RCV_WQE.at(CONTEXT), is_basic);
        let input = queue(input, &memory, pd, log_stride as u64);
        let input = input.set(wq::WQ_TYPE.at(QUEUE), order != Order::Linked);
        let (object, number) = create(&bench.devx, &input);
        let buffers: Vec<_> = (0..WQES).map(|_| bench.wire.setup.region(SPACE)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            let end = (index + 1) << log_stride;
            memory.put(end - 16, &segment(buffer));
            if order == Order::Linked {
                memory.put(end - 30, &((index + 1) as u16 % WQES as u16).to_be_bytes());
            }
        }
        memory.publish_receives(WQES);
        Self { object, number, memory, buffers }
    }

    /// A queue that receives into the pool, with its completion queue.
    fn queue(&self, bench: &Bench) -> (DevxObject, u32, Cq) {
        let cq = Cq::new(&bench.devx, &bench.uar);
        let input = Input::new(0x908, 272)
            .set(rqc::VSD.at(CONTEXT), 1u64)
            .set(rqc::MEM_RQ_TYPE.at(CONTEXT), 1u64)
            .set(rqc::RMPN.at(CONTEXT), self.number)
            .set(rqc::CQN.at(CONTEXT), cq.number)
            .set(rqc::USER_INDEX.at(CONTEXT), 0xff_ffffu64);
        let (object, number) = ready_rq(&bench.devx, &input);
        (object, number, cq)
    }

    /// The frame of the completion that was polled last.
    fn frame(&self, cq: &Cq) -> [u8; 82] {
        let slot = (cq.consumed - 1) % (1 << LOG_CQES);
        let index = [60, 61].map(|at| cq.memory.byte(slot * 64 + at));
        let mut frame = [0; 82];
        let buffer = &self.buffers[usize::from(u16::from_be_bytes(index))];
        buffer.view().read(0, &mut frame).unwrap();
        frame
    }
}

#[test]
fn queues_share_the_receives_of_a_pool() {
    for order in [Order::Linked, Order::Cyclic, Order::BasicCyclic] {
        let Some(bench) = Bench::new() else { return };
        share_pool(bench, order);
    }
}

fn share_pool(mut bench: Bench, order: Order) {
    let pool = Pool::new(&bench, order);
    let mut queues = [0; 2].map(|_| pool.queue(&bench));
    let table = Table::new(&bench, [queues[0].1, queues[1].1]);
    let sent = (1..=WQES as u16).map(|port| bench.send(port)).collect();
    all_arrive(sent, |queue| {
        let cq = &mut queues[queue].2;
        cq.poll().map(|opcode| {
            assert_eq!(opcode, RECEIVED);
            pool.frame(cq).to_vec()
        })
    });
    table.close();
    let pool = match common::is_soft() {
        true => Pool { object: *pool.object.destroy().unwrap_err().object, ..pool },
        false => pool,
    };
    for (queue, _, cq) in queues {
        queue.destroy().unwrap();
        cq.close();
    }
    pool.object.destroy().unwrap();
    free(pool.memory);
    bench.close();
}
