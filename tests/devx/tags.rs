//! Shared receive queues that match tags (XRQs).

use uverbs::MemoryRegion;
use uverbs::devx::{Devx, DevxObject, DevxUar, UarKind};
use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::capability::general;
use uverbs_soft_adapter::firmware::layout::command::{arm_rq_in, object};
use uverbs_soft_adapter::firmware::layout::context::{
    qpc, tag_matching_topology as topology, wq, xrqc,
};

use crate::common::{self, Setup};
use crate::firmware::{CONTEXT, Cq, Input, Memory, RECORD, commands, create, free, segment};
use crate::queue_pairs::{LOG_WQES, QP_CONTEXT, Qp, path_of};
use crate::{BAD_PARAMETER, BAD_RESOURCE, capability, refused, setup, setup_for_refusals};

/// A device that matches tags. Software devices do so on InfiniBand ports.
fn setup_with_tags() -> Option<(Setup, Devx)> {
    if common::is_soft() {
        let device = common::soft_device(uverbs::soft::DeviceBuilder::infiniband);
        let setup = Setup::on(device.open().unwrap());
        let devx = commands(&setup.context);
        return Some((setup, devx));
    }
    setup().filter(|(_, devx)| capability(devx, general::TAG_MATCHING) == 1)
}

/// Bytes of the commands about tag matching SRQs, and offsets in bits of the parts of their
/// contexts.
const TAG_QUEUE: usize = 336;
const TAGS: usize = CONTEXT + 0x100;
const TAG_RING: usize = CONTEXT + 0x400;
const LOG_TAGS: u64 = 7;
const LOG_TAG_STRIDE: u64 = 5;

/// CREATE_XRQ with ring and doorbell record in one page.
fn tag_queue_input(memory: &Memory, pd: u32, cq: u32) -> Input {
    let ring = [
        (wq::PD, u64::from(pd)),
        (wq::WQ_UMEM_ID, memory.umem.id().into()),
        (wq::DBR_UMEM_ID, memory.umem.id().into()),
        (wq::DBR_ADDR, RECORD as u64),
        (wq::LOG_WQ_SZ, LOG_WQES),
        (wq::LOG_WQ_STRIDE, LOG_TAG_STRIDE),
    ];
    let input = Input::new(0x717, TAG_QUEUE)
        .set(xrqc::TOPOLOGY.at(CONTEXT), 1u64)
        .set(xrqc::OFFLOAD.at(CONTEXT), 1u64)
        .set(xrqc::CQN.at(CONTEXT), cq)
        .set(topology::LOG_MATCHING_LIST_SZ.at(TAGS), LOG_TAGS);
    ring.into_iter().fold(input, |input, (field, value)| input.set(field.at(TAG_RING), value))
}

/// A shared receive queue that matches tags, and a queue pair that receives from it.
struct TagQueue {
    object: DevxObject,
    number: u32,
    memory: Memory,
    qp: Qp,
}

impl TagQueue {
    fn new(devx: &Devx, uar: &DevxUar, pd: u32, cq: &Cq) -> Self {
        let (memory, of_qp) = (Memory::new(devx), Memory::new(devx));
        let (object, number) = create(devx, &tag_queue_input(&memory, pd, cq.number));
        let input = Qp::input(uar, &of_qp, pd, cq.number)
            .set(qpc::RQ_TYPE.at(QP_CONTEXT), 1u64)
            .set(qpc::SRQN_RMPN_XRQN.at(QP_CONTEXT), number);
        let (qp, qpn) = create(devx, &input);
        Self { object, number, memory, qp: Qp { object: qp, number: qpn, memory: of_qp } }
    }

    fn post(&self, regions: &[MemoryRegion]) {
        for (index, region) in regions.iter().enumerate() {
            let at = index << LOG_TAG_STRIDE;
            self.memory.put(at + 2, &(index as u16 + 1).to_be_bytes());
            self.memory.put(at + 16, &segment(region));
        }
        self.memory.publish_receives(regions.len());
    }

    fn query(&self, field: Field) -> u64 {
        let mut answer = [0; TAG_QUEUE];
        let query = Input::new(0x719, 16).set(object::NUMBER, self.number);
        self.object.query(&query.0, &mut answer).unwrap();
        field.get(&answer)
    }

    fn arm(&self, limit: u64) {
        let input = Input::new(0x71a, 16).set(arm_rq_in::SRQ_NUMBER, self.number);
        self.object.modify(&input.set(arm_rq_in::LWM, limit).0, &mut [0; 16]).unwrap();
    }
}

#[test]
fn a_tag_matching_srq_created_by_a_command_receives_messages() {
    let Some((setup, devx)) = setup_with_tags() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (cq_a, mut cq) = (Cq::new(&devx, &uar), Cq::new(&devx, &uar));
    let pd = setup.pd.number();
    let (a, queue) = (Qp::new(&devx, &uar, pd, &cq_a), TagQueue::new(&devx, &uar, pd, &cq));
    a.connect(queue.qp.number, &path);
    queue.qp.connect(a.number, &path);
    let receives = [0; 3].map(|_| setup.region(64));
    queue.post(&receives);
    queue.arm(2);
    assert_eq!(queue.query(wq::LWM.at(TAG_RING)), 2);
    let from = setup.region(64);
    // A message without a tag, and one whose tag no entry has: IBV_TMH_NO_TAG, IBV_TMH_EAGER.
    for (index, operation) in [0, 3].into_iter().enumerate() {
        let mut sent = common::pattern(64, index as u8);
        sent[0] = operation;
        from.view().write(0, &sent).unwrap();
        a.send(index, &from, &uar);
        assert_eq!(cq.opcode(), 2, "a send has arrived");
        assert_eq!(receives[index].view().to_vec()[..64], sent);
        let unexpected = queue.query(topology::HW_PHASE_CNT.at(TAGS));
        assert_eq!(unexpected, index as u64, "counts unexpected messages");
    }
    assert_eq!(queue.query(wq::LWM.at(TAG_RING)), 0, "the limit was reached");
    for object in [a.object, queue.qp.object, queue.object, cq_a.object, cq.object] {
        object.destroy().unwrap();
    }
    [a.memory, queue.qp.memory, queue.memory, cq_a.memory, cq.memory].into_iter().for_each(free);
}

#[test]
fn commands_query_and_arm_a_tag_matching_srq_of_verbs() {
    let Some((setup, devx)) = setup_with_tags() else { return };
    let srq = setup.pd.create_raw_srq(16).match_tags(setup.cq.handle(), 100).build().unwrap();
    let mut answer = [0; TAG_QUEUE];
    let about = |opcode| Input::new(opcode, 16).set(object::NUMBER, srq.handle().number());
    devx.query(srq.handle().kernel_handle(), &about(0x719).0, &mut answer).unwrap();
    assert_eq!(topology::LOG_MATCHING_LIST_SZ.at(TAGS).get(&answer), LOG_TAGS);
    assert_eq!(xrqc::CQN.at(CONTEXT).get32(&answer), setup.cq.handle().number());
    let disarm = about(0x71a).set(arm_rq_in::LWM, 0u64);
    devx.modify(srq.handle().kernel_handle(), &disarm.0, &mut [0; 16]).unwrap();
    let pool = devx.query(srq.handle().kernel_handle(), &about(0x90f).0, &mut answer);
    assert_eq!(pool.unwrap_err().errno(), 22, "QUERY_RMP of it: EINVAL");
}

#[test]
fn the_firmware_refuses_tag_matching_srqs_that_cannot_be() {
    let Some((setup, devx)) = setup_with_tags().filter(|_| common::is_soft()) else { return };
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (cq, memory, pd) = (Cq::new(&devx, &uar), Memory::new(&devx), setup.pd.number());
    let wrong = [
        (topology::LOG_MATCHING_LIST_SZ.at(TAGS), LOG_TAGS + 1, BAD_PARAMETER),
        (xrqc::CQN.at(CONTEXT), 0x7777, BAD_RESOURCE),
        (wq::PD.at(TAG_RING), 0x7777, BAD_RESOURCE),
        (wq::WQ_UMEM_ID.at(TAG_RING), 0x7777, BAD_RESOURCE),
        (wq::WQ_UMEM_OFFSET.at(TAG_RING), 4096, BAD_PARAMETER),
        (wq::LOG_WQ_SZ.at(TAG_RING), 8, BAD_PARAMETER),
        (wq::DBR_ADDR.at(TAG_RING), 4096, BAD_PARAMETER),
        (xrqc::DC.at(CONTEXT), 1, BAD_PARAMETER),
    ];
    for (field, value, status) in wrong {
        let input = tag_queue_input(&memory, pd, cq.number).set(field, value);
        assert_eq!(refused(&devx, &input), status, "{field:?} of {value:#x}");
    }
    let queue = TagQueue::new(&devx, &uar, pd, &cq);
    // When the file is closed, the queue pair is destroyed before the queue from which it receives.
    drop((queue, cq));
}

#[test]
fn a_tag_matching_srq_is_not_announced_on_ethernet() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    assert_eq!(capability(&devx, general::TAG_MATCHING), 0);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (cq, memory) = (Cq::new(&devx, &uar), Memory::new(&devx));
    let input = tag_queue_input(&memory, setup.pd.number(), cq.number);
    assert_eq!(refused(&devx, &input), BAD_PARAMETER);
}
