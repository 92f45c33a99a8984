//! Firmware commands of a program (DEVX): they create queues in the program's memory, beside queues
//! created by verbs.

mod common;

#[path = "common/firmware.rs"]
mod firmware;

use std::os::fd::AsFd;

use common::Setup;
use firmware::{CONTEXT, Cq, Input, LOG_CQES, Memory, RECORD, commands, free, key_input, segment};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use uverbs::cq::Status;
use uverbs::devx::{Devx, DevxEventChannelFlags, DevxObject, DevxUar, EventChannel, UarKind};
use uverbs::qp::{DcTarget, PostFlags};
use uverbs::qp_type::{Dci, Rc};
use uverbs::{Context, ErrorKind, MemoryRegion, op};
use uverbs_soft_adapter::firmware::bits::{Field, field};
use uverbs_soft_adapter::firmware::layout::capability::{general, general_2};
use uverbs_soft_adapter::firmware::layout::command::{
    arm_rq_in, create_cq_in, create_qp_in, general_object, header, modify_qp_in, object, result,
};
use uverbs_soft_adapter::firmware::layout::context::{
    ads, cqc, dctc, mkc, qpc, tag_matching_topology as topology, wq, xrqc,
};

/// Where commands about queue pairs have their contexts, in bits.
const QP_CONTEXT: usize = 0xc0;
const PATH: usize = QP_CONTEXT + 0xc0;
const PATH_BYTES: usize = 44;

const EREMOTEIO: i32 = 121;
/// Statuses, `MLX5_CMD_STAT_*`.
const BAD_PARAMETER: u64 = 3;
const BAD_RESOURCE: u64 = 5;
/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u64 = 0x2c;
const ACCESS_KEY: u64 = 0x0102_0304_0506_0708;

/// A device whose contexts have DEVX; `None` if the kernel's device has no DEVX.
fn setup() -> Option<(Setup, Devx)> {
    let setup = Setup::on(common::open());
    if !setup.context.has_devx() {
        assert!(!common::is_soft());
        println!("skipped: the device grants no DEVX");
        return None;
    }
    let devx = commands(&setup.context);
    Some((setup, devx))
}

/// As `setup`, for tests whose commands the firmware refuses. `None` in the guests, where a refused
/// command counts as a defect of the device or the driver.
fn setup_for_refusals() -> Option<(Setup, Devx)> {
    if common::is_soft() { setup() } else { None }
}

const LOG_WQES: u64 = 4;
const SEND_RING: usize = 64 << LOG_WQES;

/// A reliable connected queue pair: receive ring, send ring and doorbell record in one page.
struct Qp {
    object: DevxObject,
    number: u32,
    memory: Memory,
}

impl Qp {
    fn input(uar: &DevxUar, memory: &Memory, pd: u32, cq: u32) -> Input {
        let context = [
            (qpc::PD, u64::from(pd)),
            (qpc::PM_STATE, 3),
            (qpc::LOG_RQ_SIZE, LOG_WQES),
            (qpc::LOG_RQ_STRIDE, 2),
            (qpc::LOG_SQ_SIZE, LOG_WQES),
            (qpc::UAR_PAGE, uar.id().into()),
            (qpc::CQN_SND, cq.into()),
            (qpc::CQN_RCV, cq.into()),
            (qpc::DBR_UMEM_ID, memory.umem.id().into()),
            (qpc::DBR_ADDR, RECORD as u64),
        ];
        let input = Input::new(0x500, 272).set(create_qp_in::WQ_UMEM_ID, memory.umem.id());
        context
            .into_iter()
            .fold(input, |input, (field, value)| input.set(field.at(QP_CONTEXT), value))
    }

    fn new(devx: &Devx, uar: &DevxUar, pd: u32, cq: &Cq) -> Self {
        let memory = Memory::new(devx);
        let mut answer = [0; 16];
        let input = Self::input(uar, &memory, pd, cq.number);
        let object = devx.create(&input.0, &mut answer).unwrap();
        Self { object, number: object::NUMBER.get32(&answer), memory }
    }

    fn step(&self, opcode: u64, path: &[u8], fields: &[(Field, u64)]) {
        let mut input = Input::new(opcode, 256).set(modify_qp_in::QPN, self.number);
        input.0[PATH / 8..][..PATH_BYTES].copy_from_slice(path);
        for (field, value) in fields {
            input = input.set(field.at(QP_CONTEXT), *value);
        }
        self.object.modify(&input.0, &mut [0; 16]).unwrap();
    }

    /// Connects to queue pair `remote` with the path of another queue pair.
    fn connect(&self, remote: u32, path: &[u8]) {
        self.step(0x502, path, &[(qpc::RRE, 1), (qpc::RWE, 1)]);
        self.ready_to_receive(remote, path);
        self.step(0x504, path, &[(qpc::RETRY_COUNT, 7), (qpc::RNR_RETRY, 7)]);
    }

    fn ready_to_receive(&self, remote: u32, path: &[u8]) {
        let receive = [
            (qpc::MTU, 3),
            (qpc::LOG_MSG_MAX, 20),
            (qpc::REMOTE_QPN, remote.into()),
            (qpc::MIN_RNR_NAK, 12),
        ];
        self.step(0x503, path, &receive);
    }

    fn state(&self) -> u64 {
        let mut answer = [0; 272];
        let query = Input::new(0x50b, 16).set(object::NUMBER, self.number);
        self.object.query(&query.0, &mut answer).unwrap();
        qpc::STATE.at(QP_CONTEXT).get(&answer)
    }

    fn receive(&self, index: usize, region: &MemoryRegion) {
        self.memory.put((index & 15) * 64, &segment(region));
        // The rest of the list is empty.
        self.memory.put((index & 15) * 64 + 16, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.memory.record(RECORD, index as u32 + 1);
    }

    fn send(&self, index: usize, region: &MemoryRegion, uar: &DevxUar) {
        let mut control = [0; 16];
        control[..4].copy_from_slice(&((index as u32 & 0xffff) << 8 | 0x0a).to_be_bytes());
        control[4..8].copy_from_slice(&(self.number << 8 | 2).to_be_bytes());
        control[11] = 8;
        let at = SEND_RING + (index & 15) * 64;
        self.memory.put(at, &control);
        self.memory.put(at + 16, &segment(region));
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.memory.record(RECORD + 4, index as u32 + 1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let doorbell = u64::from_ne_bytes(control[..8].try_into().unwrap());
        // SAFETY: the register is mapped as long as the page is there.
        unsafe { uar.register().cast::<u64>().write_volatile(doorbell) };
    }
}

/// The path of a queue pair of verbs that is connected to another on the same device.
fn path_of(devx: &Devx, setup: &Setup) -> Vec<u8> {
    let (a, _b) = setup.rc_pair();
    let mut answer = [0; 272];
    let query = Input::new(0x50b, 16).set(object::NUMBER, a.number());
    devx.query(a.kernel_handle(), &query.0, &mut answer).unwrap();
    assert_eq!(qpc::STATE.at(QP_CONTEXT).get(&answer), 3);
    let path = answer[PATH / 8..][..PATH_BYTES].to_vec();
    assert_eq!(ads::VHCA_PORT_NUM.get(&path), 1);
    path
}

/// The status with which the firmware refused a command.
fn refused<T>(result: uverbs::Result<T>, answer: &[u8]) -> u64 {
    let error = result.err().expect("refused");
    assert_eq!(error.errno(), EREMOTEIO, "{error}");
    assert!(error.to_string().contains("the firmware refused the command"), "{error}");
    result::STATUS.get(answer)
}

#[test]
fn queues_created_by_commands_transfer_messages() {
    let Some((setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (mut cq_a, mut cq_b) = (Cq::new(&devx, &uar), Cq::new(&devx, &uar));
    let pd = setup.pd.number();
    let (a, b) = (Qp::new(&devx, &uar, pd, &cq_a), Qp::new(&devx, &uar, pd, &cq_b));
    assert_eq!(a.state(), 0);
    a.connect(b.number, &path);
    b.connect(a.number, &path);
    assert_eq!((a.state(), b.state()), (3, 3));
    let (from, to) = (setup.region(64), setup.region(64));
    for index in 0..40 {
        let sent = common::pattern(64, index as u8);
        from.view().write(0, &sent).unwrap();
        b.receive(index, &to);
        a.send(index, &from, &uar);
        assert_eq!(cq_a.opcode(), 0, "a send is complete");
        assert_eq!(cq_b.opcode(), 2, "a send has arrived");
        let mut received = [0; 64];
        to.view().read(0, &mut received).unwrap();
        assert_eq!(received[..], sent);
    }
    for (queue, cq) in [(a, cq_a), (b, cq_b)] {
        queue.object.destroy().unwrap();
        cq.object.destroy().unwrap();
        free(queue.memory);
        free(cq.memory);
    }
}

/// A DC target, and its number.
fn dc_target(devx: &Devx, setup: &Setup, cq: &Cq, srq: u32, path: &[u8]) -> (DevxObject, u32) {
    let input = Input::new(0x710, 128)
        .set(dctc::CQN.at(CONTEXT), cq.number)
        .set(dctc::SRQN_XRQN.at(CONTEXT), srq)
        .set(dctc::PD.at(CONTEXT), setup.pd.number())
        .set(dctc::DC_ACCESS_KEY.at(CONTEXT), ACCESS_KEY)
        .set(dctc::PORT.at(CONTEXT), 1u64)
        .set(dctc::MTU.at(CONTEXT), 3u64)
        .set(dctc::HOP_LIMIT.at(CONTEXT), 64u64)
        .set(dctc::MY_ADDR_INDEX.at(CONTEXT), ads::SRC_ADDR_INDEX.get(path))
        .set(dctc::MIN_RNR_NAK.at(CONTEXT), 12u64);
    let mut answer = [0; 16];
    let target = devx.create(&input.0, &mut answer).unwrap();
    (target, object::NUMBER.get32(&answer))
}

/// The kernel's own event queue has no such events, so that a guest gets none.
#[test]
fn an_armed_target_reports_one_wrong_access_key() {
    let Some((mut setup, devx)) = setup_for_refusals() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let srq = setup.pd.create_raw_srq(16).build().unwrap();
    let (target, dctn) = dc_target(&devx, &setup, &cq, srq.handle().number(), &path);
    let channel = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    channel.subscribe(Some(target.kernel_handle()), &[KEY_VIOLATION], 5).unwrap();
    let arm = Input::new(0x714, 16).set(object::NUMBER, dctn);
    target.modify(&arm.0, &mut [0; 16]).unwrap();
    let mut initiator = setup.builder::<Dci>().build().unwrap();
    initiator.activate().unwrap();
    let ah = setup.pd.create_ah(&initiator.address_of(&initiator.endpoint()).unwrap()).unwrap();
    let to = ah.dc_target(dctn, ACCESS_KEY + 1);
    let data = setup.region(64);
    // SAFETY: the region outlives the queue.
    unsafe {
        let sge = data.sge(0, 64).unwrap();
        initiator.post_send(2, op::To(DcTarget(&to), op::Send), sge, PostFlags::SIGNALED).unwrap();
    }
    let told: [u8; 72] = event(&channel);
    assert_eq!((told[0], told[8 + 1]), (5, KEY_VIOLATION as u8));
    assert_eq!(told[8 + 32 + 24..][..4], dctn.to_be_bytes());
    let wrong = Input::new(0x714, 16).set(object::NUMBER, dctn + 1);
    assert_eq!(target.modify(&wrong.0, &mut [0; 16]).unwrap_err().errno(), 22, "of another");
    // The initiator repeats its request until it gives up.
    assert_eq!(setup.completion().status, Status::RetryExceeded);
    never_wait(&channel);
    no_event(&channel);
    target.destroy().unwrap();
    cq.object.destroy().unwrap();
    free(cq.memory);
}

#[test]
fn a_dct_created_by_a_command_receives_from_a_verbs_queue_pair() {
    let Some((mut setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let mut cq = Cq::new(&devx, &uar);
    let mut srq = setup.pd.create_raw_srq(16).build().unwrap();
    let mut initiator = setup.builder::<Dci>().build().unwrap();
    initiator.activate().unwrap();
    let own = initiator.endpoint();
    let (target, dctn) = dc_target(&devx, &setup, &cq, srq.handle().number(), &path);
    let mut shown = [0; 128];
    target.query(&Input::new(0x713, 16).set(object::NUMBER, dctn).0, &mut shown).unwrap();
    assert_eq!(dctc::DC_ACCESS_KEY.at(CONTEXT).get(&shown), ACCESS_KEY);

    let ah = setup.pd.create_ah(&initiator.address_of(&own).unwrap()).unwrap();
    let to = ah.dc_target(dctn, ACCESS_KEY);
    let (from, into) = (setup.region(64), setup.region(64));
    let sent = common::pattern(64, 9);
    from.view().write(0, &sent).unwrap();
    // SAFETY: the regions outlive the queues, and are looked at through views between requests.
    unsafe {
        srq.post(1, &[into.sge(0, 64).unwrap()]).unwrap();
        let data = from.sge(0, 64).unwrap();
        initiator.post_send(2, op::To(DcTarget(&to), op::Send), data, PostFlags::SIGNALED).unwrap();
    }
    common::success(&mut setup.cq);
    assert_eq!(cq.opcode(), 2, "a send has arrived");
    assert_eq!(into.view().to_vec()[..64], sent);
    target.destroy().unwrap();
    drop(srq);
    cq.object.destroy().unwrap();
    free(cq.memory);
}

/// A device that matches tags, which software devices do on InfiniBand ports.
fn setup_with_tags() -> Option<(Setup, Devx)> {
    if common::is_soft() {
        let device = common::soft_device(uverbs::soft::DeviceBuilder::infiniband);
        let setup = Setup::on(device.open().unwrap());
        let devx = commands(&setup.context);
        return Some((setup, devx));
    }
    setup().filter(|(_, devx)| capability(devx, general::TAG_MATCHING) == 1)
}

/// A field of the general capabilities.
fn capability(devx: &Devx, field: Field) -> u64 {
    let mut answer = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 1u64).0, &mut answer).unwrap();
    field.at(CONTEXT).get(&answer)
}

/// Bytes of the commands about tag matching SRQs, and where their contexts have their parts, in
/// bits.
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
        let mut answer = [0; 16];
        let object = devx.create(&tag_queue_input(&memory, pd, cq.number).0, &mut answer).unwrap();
        let number = object::NUMBER.get32(&answer);
        let input = Qp::input(uar, &of_qp, pd, cq.number)
            .set(qpc::RQ_TYPE.at(QP_CONTEXT), 1u64)
            .set(qpc::SRQN_RMPN_XRQN.at(QP_CONTEXT), number);
        let qp = devx.create(&input.0, &mut answer).unwrap();
        let qp = Qp { object: qp, number: object::NUMBER.get32(&answer), memory: of_qp };
        Self { object, number, memory, qp }
    }

    fn post(&self, regions: &[MemoryRegion]) {
        for (index, region) in regions.iter().enumerate() {
            let at = index << LOG_TAG_STRIDE;
            self.memory.put(at + 2, &(index as u16 + 1).to_be_bytes());
            self.memory.put(at + 16, &segment(region));
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.memory.record(RECORD, regions.len() as u32);
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
        let mut answer = [0; 16];
        let result = devx.create(&input.0, &mut answer);
        assert_eq!(refused(result, &answer), status, "{field:?} of {value:#x}");
    }
    let queue = TagQueue::new(&devx, &uar, pd, &cq);
    // The file's end destroys the queue pair before the queue that it receives from.
    drop((queue, cq));
}

#[test]
fn a_tag_matching_srq_is_not_announced_on_ethernet() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    assert_eq!(capability(&devx, general::TAG_MATCHING), 0);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (cq, memory) = (Cq::new(&devx, &uar), Memory::new(&devx));
    let input = tag_queue_input(&memory, setup.pd.number(), cq.number);
    let mut answer = [0; 16];
    let result = devx.create(&input.0, &mut answer);
    assert_eq!(refused(result, &answer), BAD_PARAMETER);
}

#[test]
fn answers_of_queries_come_through_a_channel() {
    let Some((_setup, devx)) = setup() else { return };
    let channel = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    // More than a pipe of sixteen pages holds.
    for wr_id in 0..40u64 {
        cq.object.query_async(&query.0, 272, wr_id, &channel).unwrap();
    }
    for wr_id in 0..40u64 {
        let mut answer = [0xaa; 8 + 272];
        assert_eq!(channel.read(&mut answer).unwrap(), answer.len());
        assert_eq!(answer[..8], wr_id.to_ne_bytes());
        assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer[8..]), LOG_CQES);
    }
    let other = Input::new(0x402, 16).set(object::NUMBER, cq.number + 1);
    let error = cq.object.query_async(&other.0, 272, 1, &channel).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    cq.object.destroy().unwrap();
    free(cq.memory);
}

/// Longer than a packet of a pipe, and one as long as an attribute can say.
#[test]
fn long_answers_come_whole_and_one_by_one() {
    // In the guests a command whose answer is too long counts as a mistake of the driver.
    let Some((_setup, devx)) = common::is_soft().then(setup).flatten() else { return };
    let channel = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    let lengths = [4088, 4089, 272, 272, u16::MAX as usize, 8192, 8192, 272];
    for (wr_id, length) in lengths.iter().enumerate() {
        cq.object.query_async(&query.0, *length as u64, wr_id as u64, &channel).unwrap();
    }
    for (wr_id, length) in lengths.into_iter().enumerate() {
        let mut answer = vec![0xaa; 1 << 17];
        assert_eq!(channel.read(&mut answer).unwrap(), 8 + length, "answer {wr_id}");
        assert_eq!(answer[..8], (wr_id as u64).to_ne_bytes());
        assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer[8..]), LOG_CQES);
        assert!(answer[8 + 272..8 + length].iter().all(|byte| *byte == 0));
    }
    cq.object.destroy().unwrap();
    free(cq.memory);
}

#[test]
fn a_read_into_too_little_space_takes_nothing() {
    let Some((_setup, devx)) = setup() else { return };
    let answers = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    cq.object.query_async(&query.0, 272, 1, &answers).unwrap();
    for space in [0, 7] {
        let error = answers.read(&mut [0; 8][..space]).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    }
    assert_eq!(answers.read(&mut [0; 8 + 272]).unwrap(), 8 + 272);

    let whole = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let cookies = devx.event_channel(DevxEventChannelFlags::OMIT_DATA).unwrap();
    for (events, length) in [(&whole, 72), (&cookies, 8)] {
        never_wait(events);
        for space in [0, length - 1] {
            let error = events.read(&mut vec![0; space]).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
        }
        no_event(events);
    }
    cq.object.destroy().unwrap();
    free(cq.memory);
}

/// Types of events.
const COMPLETION: u16 = 0x00;
const COMMUNICATION_ESTABLISHED: u16 = 0x02;
const KEY_VIOLATION: u16 = 0x1d;
const PORT_CHANGE: u16 = 0x09;

/// Lets every read of a channel return at once.
fn never_wait(channel: &EventChannel) {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(channel.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
}

/// An event, waited for.
fn event<const N: usize>(channel: &EventChannel) -> [u8; N] {
    let mut polled = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut polled, PollTimeout::from(60_000u16));
    assert_eq!(ready, Ok(1), "no event came");
    let mut event = [0xaa; N];
    assert_eq!(channel.read(&mut event).unwrap(), N);
    event
}

fn no_event(channel: &EventChannel) {
    let error = channel.read(&mut [0; 72]).unwrap_err();
    assert_eq!(error.errno(), nix::errno::Errno::EAGAIN as i32, "{error}");
}

#[test]
fn events_of_objects_come_through_channels() {
    let Some((setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (mut cq_a, mut cq_b) = (Cq::new(&devx, &uar), Cq::new(&devx, &uar));
    let pd = setup.pd.number();
    let (a, b) = (Qp::new(&devx, &uar, pd, &cq_a), Qp::new(&devx, &uar, pd, &cq_b));
    let whole = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let cookies = devx.event_channel(DevxEventChannelFlags::OMIT_DATA).unwrap();
    let signal = EventFd::new().unwrap();
    [&whole, &cookies].into_iter().for_each(never_wait);
    whole.subscribe(Some(cq_b.object.kernel_handle()), &[COMPLETION], 5).unwrap();
    cookies.subscribe(Some(cq_b.object.kernel_handle()), &[COMPLETION], 6).unwrap();
    let queue = b.object.kernel_handle();
    cookies.subscribe(Some(queue), &[COMMUNICATION_ESTABLISHED, 0x13], 7).unwrap();
    whole.subscribe_eventfd(signal.as_fd(), Some(queue), COMMUNICATION_ESTABLISHED).unwrap();
    a.connect(b.number, &path);
    b.step(0x502, &path, &[(qpc::RRE, 1), (qpc::RWE, 1)]);
    b.ready_to_receive(a.number, &path);

    let (from, to) = (setup.region(64), setup.region(64));
    for index in 0..2 {
        cq_b.arm(index, &uar);
        b.receive(index, &to);
        a.send(index, &from, &uar);
        assert_eq!((cq_a.opcode(), cq_b.opcode()), (0, 2));
    }
    for _ in 0..2 {
        assert_eq!(whole.read(&mut [0; 71]).unwrap_err().errno(), libc::EINVAL);
        let told: [u8; 72] = event(&whole);
        assert_eq!(told[..8], 5u64.to_ne_bytes());
        assert_eq!(told[8 + 1], COMPLETION as u8);
        assert_eq!(told[8 + 32 + 24..][..4], cq_b.number.to_be_bytes());
    }
    no_event(&whole);
    // Cookies do not pile up: each comes once until it is read.
    let mut told = [event::<8>(&cookies), event::<8>(&cookies)];
    told.sort_unstable();
    assert_eq!(told, [6u64.to_ne_bytes(), 7u64.to_ne_bytes()]);
    no_event(&cookies);
    assert_eq!(signal.read(), Ok(1), "communication is established once");

    for (queue, cq) in [(a, cq_a), (b, cq_b)] {
        queue.object.destroy().unwrap();
        cq.object.destroy().unwrap();
        free(queue.memory);
        free(cq.memory);
    }
}

#[test]
fn only_events_that_a_program_may_have_are_subscribed_to() {
    let Some((_setup, devx)) = setup() else { return };
    let channel = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let handle = Some(cq.object.kernel_handle());
    let invalid = |result: uverbs::Result<()>| {
        assert_eq!(result.map_err(|error| error.errno()), Err(22));
    };
    channel.subscribe(None, &[PORT_CHANGE], 1).unwrap();
    channel.subscribe(handle, &[COMPLETION; 16], 1).unwrap();
    invalid(channel.subscribe(None, &[COMPLETION], 1));
    invalid(channel.subscribe(handle, &[PORT_CHANGE], 1));
    invalid(channel.subscribe(handle, &[COMPLETION; 17], 1));
    let no_eventfd = std::fs::File::open("/dev/null").unwrap();
    invalid(channel.subscribe_eventfd(no_eventfd.as_fd(), handle, COMPLETION));
    cq.object.destroy().unwrap();
    free(cq.memory);
}

#[test]
fn umem_and_uar_live_as_long_as_the_object_that_uses_them() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let queue = Qp::new(&devx, &uar, setup.pd.number(), &cq);
    let Cq { object, memory: Memory { base, umem }, .. } = cq;
    let object = object.destroy().unwrap_err().object;
    let umem = *umem.destroy().unwrap_err().object;
    queue.object.destroy().unwrap();
    free(queue.memory);
    object.destroy().unwrap();
    free(Memory { base, umem });
}

#[test]
fn mkeys_are_created_over_registered_memory() {
    let Some((setup, devx)) = setup() else { return };
    let memory = Memory::new(&devx);
    let mut answer = [0; 16];
    let input = key_input(&memory, setup.pd.number(), 4096);
    let key = devx.create(&input.0, &mut answer).unwrap();
    let index = object::NUMBER.get32(&answer);
    let mut shown = [0; 304];
    let query = Input::new(0x201, 16).set(object::NUMBER, index);
    key.query(&query.0, &mut shown).unwrap();
    assert_eq!(mkc::LEN.at(CONTEXT).get(&shown), 4096);
    assert_eq!(mkc::PD.at(CONTEXT).get32(&shown), setup.pd.number());
    key.destroy().unwrap();
    free(memory);
}

/// Four completions do not fit a ring of two, whether the device has written them yet or not.
#[test]
fn requests_before_a_resize_count() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let qp = Qp::new(&devx, &uar, setup.pd.number(), &cq);
    qp.connect(qp.number, &path);
    let stop = Input::new(0x507, 16).set(object::NUMBER, qp.number);
    qp.object.modify(&stop.0, &mut [0; 16]).unwrap();
    let region = setup.region(64);
    let shrink = Input::new(0x403, 272)
        .set(header::OP_MOD, 1u64)
        .set(object::NUMBER, cq.number)
        .set(create_cq_in::CQ_UMEM_ID, cq.memory.umem.id())
        .set(cqc::LOG_CQ_SIZE.at(CONTEXT), 1u64);
    (0..4).for_each(|index| qp.send(index, &region, &uar));
    let mut answer = [0; 16];
    assert_ne!(refused(cq.object.modify(&shrink.0, &mut answer), &answer), 0);
    qp.object.destroy().unwrap();
    cq.object.destroy().unwrap();
    free(qp.memory);
    free(cq.memory);
}

#[test]
fn a_cq_of_verbs_gives_back_the_memory_of_a_command() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let memory = Memory::new(&devx);
    let cq = setup.context.create_cq(3).build().unwrap();
    let (handle, number) = (cq.handle().kernel_handle(), cq.handle().number());
    let resize = Input::new(0x403, 272)
        .set(header::OP_MOD, 1u64)
        .set(object::NUMBER, number)
        .set(create_cq_in::CQ_UMEM_ID, memory.umem.id())
        .set(cqc::LOG_CQ_SIZE.at(CONTEXT), 4u64);
    devx.modify(handle, &resize.0, &mut [0; 16]).unwrap();
    cq.destroy().unwrap();
    free(memory);
}

#[test]
fn the_kernel_refuses_a_command_of_another_kind() {
    let Some((setup, devx)) = setup() else { return };
    let mut answer = [0; 272];
    let invalid = |result: uverbs::Result<()>| {
        let error = result.unwrap_err();
        assert_eq!((error.errno(), error.kind()), (22, ErrorKind::Refused), "{error}");
    };
    // CREATE_CQ is not a general command, QUERY_CQ creates nothing, and CREATE_CQ queries nothing.
    invalid(devx.command(&Input::new(0x400, 272).0, &mut answer));
    invalid(devx.create(&Input::new(0x402, 16).0, &mut answer).map(drop));
    let cq = setup.cq.handle().kernel_handle();
    let number = setup.cq.handle().number();
    invalid(devx.query(cq, &Input::new(0x400, 272).set(object::NUMBER, number).0, &mut answer));
    // The command's number is not the handle's.
    invalid(devx.query(cq, &Input::new(0x402, 16).set(object::NUMBER, number + 1).0, &mut answer));
    invalid(devx.modify(cq, &Input::new(0x402, 16).set(object::NUMBER, number).0, &mut answer));
    devx.query(cq, &Input::new(0x402, 16).set(object::NUMBER, number).0, &mut answer).unwrap();
    assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer), 11);
}

#[test]
fn the_firmware_refuses_objects_of_another_context() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let other = another(&setup.context);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (memory, theirs) = (Memory::new(&devx), Memory::new(&commands(&other)));
    let mut answer = [0; 16];
    let input = Cq::input(&devx, &uar, &memory).set(create_cq_in::CQ_UMEM_ID, theirs.umem.id());
    assert_ne!(refused(devx.create(&input.0, &mut answer), &answer), 0);
    let input = Cq::input(&devx, &uar, &memory).set(create_cq_in::CQ_UMEM_OFFSET, 8192u64);
    assert_ne!(refused(devx.create(&input.0, &mut answer), &answer), 0);
    let pd = other.alloc_pd().unwrap();
    let input = Qp::input(&uar, &memory, pd.number(), setup.cq.handle().number());
    assert_ne!(refused(devx.create(&input.0, &mut answer), &answer), 0);
    free(memory);
    free(theirs);
}

/// Another context of the same device.
fn another(context: &Context) -> Context {
    context.device().open().unwrap()
}

#[test]
fn capabilities_can_be_queried() {
    let Some((_setup, devx)) = setup() else { return };
    let mut answer = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 1u64).0, &mut answer).unwrap();
    let general = |bit, width| field(CONTEXT + bit, width).get(&answer);
    assert!(general(0x463, 5) > 0, "log_max_uctx");
    assert_eq!(general(0x1b8, 8), 1, "num_ports");
}

#[test]
fn unknown_capabilities_are_refused() {
    let Some((_setup, devx)) = setup_for_refusals() else { return };
    let mut answer = vec![0; 16 + 4096];
    let unknown = Input::new(0x100, 16).set(header::OP_MOD, 0x7f01u64);
    assert_ne!(refused(devx.command(&unknown.0, &mut answer), &answer), 0);
}

/// The numbers of a general object, which UCX's connection manager names instead of queue pairs.
#[test]
fn numbers_are_reserved_in_ranges() {
    let Some((setup, devx)) = setup() else { return };
    let mut shown = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 0x41u64).0, &mut shown).unwrap();
    let log_numbers = general_2::LOG_RESERVED_QPN_GRANULARITY.at(CONTEXT).get(&shown);
    assert_eq!(capability(&devx, general::GENERAL_OBJ_TYPES) >> RESERVED_QPN & 1, 1);
    let reserve = |numbers: u64| {
        let input = Input::new(0xa00, 16 + 256)
            .set(general_object::TYPE, RESERVED_QPN)
            .set(general_object::LOG_RANGE, numbers);
        let mut answer = [0; 16];
        let made = devx.create(&input.0, &mut answer);
        (made, general_object::ID.get32(&answer), answer)
    };
    let ranges = [(); 3]
        .map(|()| reserve(log_numbers))
        .map(|(made, first, _)| (made.unwrap(), first..first + (1 << log_numbers)));
    for (index, (_, range)) in ranges.iter().enumerate() {
        assert_eq!(range.start % (1 << log_numbers), 0);
        assert!(ranges[..index].iter().all(|(_, other)| other.start != range.start));
    }
    let queue = setup.builder::<Rc>().build().unwrap();
    assert!(ranges.iter().all(|(_, range)| !range.contains(&queue.number())));
    if common::is_soft() {
        let (made, _, answer) = reserve(log_numbers + 1);
        assert_eq!(refused(made, &answer), BAD_PARAMETER);
        let encryption = Input::new(0xa00, 128).set(general_object::TYPE, 0xcu64);
        let mut answer = [0; 16];
        assert_eq!(refused(devx.create(&encryption.0, &mut answer), &answer), BAD_PARAMETER);
    }
    for (object, _) in ranges {
        object.destroy().unwrap();
    }
}
