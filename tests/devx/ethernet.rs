//! Queues for Ethernet frames, and steering rules for them.

use uverbs::devx::{Devx, DevxObject, DevxUar, UarKind};
use uverbs::flow::{Flow, MatcherOptions};
use uverbs::{Context, MemoryRegion};
use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::command::object;
use uverbs_soft_adapter::firmware::layout::context::{tisc, wq};
use uverbs_soft_adapter::firmware::layout::ethernet::{modify_rq_in, modify_sq_in, rqc, sqc, tirc};

use crate::common;
use crate::firmware::{Cq, Input, Memory, RECORD, commands, create, free, segment};
use crate::frames::{Wire, udp_frame};
use crate::spreading::table;
use crate::{BAD_RESOURCE, granted, refused};

/// Offsets in bits of contexts in commands, and of work queues in contexts.
pub(crate) const CONTEXT: usize = 0x100;
pub(crate) const QUEUE: usize = CONTEXT + 0x180;

const LOG_WQES: u64 = 4;
pub(crate) const WQES: usize = 1 << LOG_WQES;
const CYCLIC: u64 = 1;
/// A receive is one segment, a send one block.
const LOG_RECEIVE: u64 = 4;
const LOG_BLOCK: u64 = 6;
pub(crate) const SPACE: usize = 256;

/// Completions, as CQEs have their opcodes.
const SENT: u8 = 0;
pub(crate) const RECEIVED: u8 = 2;

/// Headers that a send has inside its WQE.
const INLINE: usize = 18;

/// The work queue of a context, its ring at the start of the memory.
pub(crate) fn queue(input: Input, memory: &Memory, pd: u32, log_stride: u64) -> Input {
    [
        (wq::WQ_TYPE, CYCLIC),
        (wq::PD, pd.into()),
        (wq::DBR_ADDR, RECORD as u64),
        (wq::LOG_WQ_STRIDE, log_stride),
        (wq::LOG_WQ_SZ, LOG_WQES),
        (wq::DBR_UMEM_ID, memory.umem.id().into()),
        (wq::WQ_UMEM_ID, memory.umem.id().into()),
    ]
    .into_iter()
    .fold(input, |input, (field, value)| input.set(field.at(QUEUE), value))
}

/// A send queue over registered memory.
struct Sq {
    object: DevxObject,
    number: u32,
    memory: Memory,
    interface: DevxObject,
    sent: usize,
}

impl Sq {
    fn new(devx: &Devx, uar: &DevxUar, pd: u32, cq: &Cq, domain: u32) -> Self {
        let input = Input::new(0x912, 192).set(tisc::TRANSPORT_DOMAIN.at(CONTEXT), domain);
        let (interface, tis) = create(devx, &input);
        let memory = Memory::new(devx);
        let input = Input::new(0x904, 272)
            .set(sqc::CQN.at(CONTEXT), cq.number)
            .set(sqc::TIS_LST_SZ.at(CONTEXT), 1u64)
            .set(sqc::TIS_NUM_0.at(CONTEXT), tis)
            .set(sqc::USER_INDEX.at(CONTEXT), 0xff_ffffu64)
            .set(wq::UAR_PAGE.at(QUEUE), uar.id());
        let (object, number) = create(devx, &queue(input, &memory, pd, LOG_BLOCK));
        let ready = Input::new(0x905, 272).set(modify_sq_in::SQN, number);
        object.modify(&ready.set(sqc::STATE.at(CONTEXT), 1u64).0, &mut [0; 16]).unwrap();
        Self { object, number, memory, interface, sent: 0 }
    }

    /// Sends a frame whose first bytes are in the WQE, and whose others are in `region`.
    fn send(&mut self, frame: &[u8], region: &MemoryRegion, uar: &DevxUar) {
        let at = self.sent % WQES * 64;
        let mut block = [0; 64];
        block[..4].copy_from_slice(&((self.sent as u32 & 0xffff) << 8 | 0x0a).to_be_bytes());
        block[4..8].copy_from_slice(&(self.number << 8 | 4).to_be_bytes());
        block[11] = 8;
        block[16 + 12..][..2].copy_from_slice(&(INLINE as u16).to_be_bytes());
        block[16 + 14..][..INLINE].copy_from_slice(&frame[..INLINE]);
        region.view().write(0, &frame[INLINE..]).unwrap();
        block[48..].copy_from_slice(&segment(region));
        block[48..52].copy_from_slice(&((frame.len() - INLINE) as u32).to_be_bytes());
        self.memory.put(at, &block);
        self.sent += 1;
        self.memory.publish_sends(self.sent, *block.first_chunk().unwrap(), uar);
    }
}

/// Creates a receive queue that receives.
pub(crate) fn ready_rq(devx: &Devx, input: &Input) -> (DevxObject, u32) {
    let (object, number) = create(devx, input);
    let ready = Input::new(0x909, 272).set(modify_rq_in::RQN, number);
    object.modify(&ready.set(rqc::STATE.at(CONTEXT), 1u64).0, &mut [0; 16]).unwrap();
    (object, number)
}

/// A receive queue over registered memory, with a completion queue and buffers of its own.
pub(crate) struct Rq {
    object: DevxObject,
    pub(crate) number: u32,
    memory: Memory,
    pub(crate) cq: Cq,
    buffers: Vec<MemoryRegion>,
    taken: usize,
}

impl Rq {
    pub(crate) fn new(devx: &Devx, uar: &DevxUar, wire: &Wire) -> Self {
        let (cq, memory) = (Cq::new(devx, uar), Memory::new(devx));
        let input = Input::new(0x908, 272)
            .set(rqc::VSD.at(CONTEXT), 1u64)
            .set(rqc::CQN.at(CONTEXT), cq.number)
            .set(rqc::USER_INDEX.at(CONTEXT), 0xff_ffffu64);
        let pd = wire.setup.pd.number();
        let (object, number) = ready_rq(devx, &queue(input, &memory, pd, LOG_RECEIVE));
        let buffers: Vec<_> = (0..WQES).map(|_| wire.setup.region(SPACE)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            memory.put(index << LOG_RECEIVE, &segment(buffer));
        }
        memory.publish_receives(WQES);
        Self { object, number, memory, cq, buffers, taken: 0 }
    }

    /// Waits for the next frame and returns its start.
    pub(crate) fn frame<const N: usize>(&mut self) -> [u8; N] {
        assert_eq!(self.cq.opcode(), RECEIVED);
        self.taken()
    }

    /// As [`frame`](Self::frame), but does not wait.
    pub(crate) fn poll<const N: usize>(&mut self) -> Option<[u8; N]> {
        let opcode = self.cq.poll()?;
        assert_eq!(opcode, RECEIVED);
        Some(self.taken())
    }

    fn taken<const N: usize>(&mut self) -> [u8; N] {
        let mut frame = [0; N];
        self.buffers[self.taken % WQES].view().read(0, &mut frame).unwrap();
        self.taken += 1;
        frame
    }

    fn state(&self) -> u64 {
        let mut answer = [0; 272];
        self.object
            .query(&Input::new(0x90b, 16).set(object::NUMBER, self.number).0, &mut answer)
            .unwrap();
        rqc::STATE.at(CONTEXT).get(&answer)
    }

    pub(crate) fn close(self) {
        self.object.destroy().unwrap();
        self.cq.close();
        free(self.memory);
    }
}

/// Shared by the tests of frames: a port that delivers to itself, and a send queue.
pub(crate) struct Bench {
    pub(crate) wire: Wire,
    pub(crate) devx: Devx,
    pub(crate) uar: DevxUar,
    pub(crate) domain: (DevxObject, u32),
    pub(crate) sends: Cq,
    sq: Sq,
    payload: MemoryRegion,
}

impl Bench {
    pub(crate) fn new() -> Option<Self> {
        let wire = Wire::new(|builder| builder)?;
        let devx = granted(&wire.setup.context)?;
        let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
        let domain = create(&devx, &Input::new(0x816, 16));
        let sends = Cq::new(&devx, &uar);
        let sq = Sq::new(&devx, &uar, wire.setup.pd.number(), &sends, domain.1);
        let payload = wire.setup.region(SPACE);
        Some(Self { wire, devx, uar, domain, sends, sq, payload })
    }

    /// As [`new`](Self::new), for tests whose commands are refused: `None` in the guests, where a
    /// refused command counts as a defect of the device or the driver.
    pub(crate) fn for_refusals() -> Option<Self> {
        common::is_soft().then(Self::new).flatten()
    }

    /// Another context of the device.
    pub(crate) fn another(&self) -> Context {
        self.wire.setup.context.device().open().unwrap()
    }

    /// A receiving interface, and a rule that steers frames to the port's address to it.
    pub(crate) fn lead_to(&self, fields: &[(Field, u64)]) -> (DevxObject, Flow) {
        self.count_to(fields, None)
    }

    /// As [`lead_to`](Self::lead_to), with a counter.
    pub(crate) fn count_to(
        &self,
        fields: &[(Field, u64)],
        counter: Option<(&DevxObject, Option<u32>)>,
    ) -> (DevxObject, Flow) {
        let (tir, _) = self.interface(fields);
        let rule = self.rule_to(&tir, counter);
        (tir, rule)
    }

    /// A receiving interface.
    pub(crate) fn interface(&self, fields: &[(Field, u64)]) -> (DevxObject, u32) {
        let input = Input::new(0x900, 272);
        let input = input.set(tirc::TRANSPORT_DOMAIN.at(CONTEXT), self.domain.1);
        let input =
            fields.iter().fold(input, |input, (field, value)| input.set(field.at(CONTEXT), *value));
        create(&self.devx, &input)
    }

    /// A rule that steers frames to the port's address to an object.
    pub(crate) fn rule_to(
        &self,
        to: &DevxObject,
        counter: Option<(&DevxObject, Option<u32>)>,
    ) -> Flow {
        self.rule_in(&self.wire.setup.context, to, counter)
    }

    /// As [`rule_to`](Self::rule_to), in a context.
    pub(crate) fn rule_in(
        &self,
        context: &Context,
        to: &DevxObject,
        counter: Option<(&DevxObject, Option<u32>)>,
    ) -> Flow {
        let (mut mask, mut value) = ([0; 64], [0; 64]);
        mask[8..14].fill(0xff);
        value[8..14].copy_from_slice(&self.wire.mac);
        let options = MatcherOptions { mask: &mask, criteria: 1, ..MatcherOptions::default() };
        let matcher = context.create_flow_matcher(&options).unwrap();
        let rule = matcher.create_flow(&value).to_object(to);
        let rule = counter.into_iter().fold(rule, |rule, counter| rule.count(counter.0, counter.1));
        rule.build().unwrap()
    }

    /// Sends a frame to a UDP port.
    pub(crate) fn send(&mut self, port: u16) -> Vec<u8> {
        let frame = udp_frame(self.wire.mac, port, &[port as u8; 40]);
        self.sq.send(&frame, &self.payload, &self.uar);
        assert_eq!(self.sends.opcode(), SENT);
        frame
    }

    pub(crate) fn close(self) {
        self.sq.object.destroy().unwrap();
        self.sq.interface.destroy().unwrap();
        self.domain.0.destroy().unwrap();
        free(self.sq.memory);
        self.sends.close();
    }
}

#[test]
fn frames_pass_through_queues_made_by_commands() {
    let Some(mut bench) = Bench::new() else { return };
    let mut rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    assert_eq!(rq.state(), 1);
    let (tir, rule) = bench.lead_to(&[(tirc::INLINE_RQN, rq.number.into())]);
    for port in 1..=10 {
        let sent = bench.send(port);
        assert_eq!(rq.frame::<82>(), sent[..]);
    }
    if common::is_soft() {
        let tir = tir.destroy().unwrap_err().object;
        rule.destroy().unwrap();
        tir.destroy().unwrap();
    } else {
        rule.destroy().unwrap();
        tir.destroy().unwrap();
    }
    rq.close();
    bench.close();
}

#[test]
fn a_program_names_only_what_is_its_own() {
    let Some(bench) = Bench::for_refusals() else { return };
    let other = bench.another();
    let (theirs, pd) = (commands(&other), other.alloc_pd().unwrap());
    let memory = Memory::new(&bench.devx);
    let input = |pd| {
        let input = Input::new(0x908, 272).set(rqc::CQN.at(CONTEXT), bench.sends.number);
        queue(input, &memory, pd, LOG_RECEIVE)
    };
    let own = bench.wire.setup.pd.number();
    for input in [input(pd.number()), input(0), input(own).set(rqc::RLKY.at(CONTEXT), 1u64)] {
        refused(&bench.devx, &input);
    }
    let (rq, number) = create(&bench.devx, &input(own));

    // Interfaces and lists of another context may not refer to the queue.
    let interface = Input::new(0x900, 272).set(tirc::INLINE_RQN.at(CONTEXT), number);
    for input in [interface, table(1, 1, &[number])] {
        assert_eq!(refused(&theirs, &input), BAD_RESOURCE);
    }
    let (domain, _) = create(&theirs, &Input::new(0x816, 16));
    let options = MatcherOptions { mask: &[0; 64], ..MatcherOptions::default() };
    for (context, wrong) in [(&other, &domain), (&bench.wire.setup.context, &bench.domain.0)] {
        let matcher = context.create_flow_matcher(&options).unwrap();
        let error = matcher.create_flow(&[0; 64]).to_object(wrong).build().unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    // The other context's handle may be that of an object here.
    let matcher = bench.wire.setup.context.create_flow_matcher(&options).unwrap();
    let rule = || matcher.create_flow(&[0; 64]);
    for rule in [rule().to_object(&domain), rule().drop_frames().count(&domain, None)] {
        let error = rule.build().unwrap_err();
        assert!(error.to_string().contains("another context"), "{error}");
    }
    domain.destroy().unwrap();
    rq.destroy().unwrap();
    free(memory);
    bench.close();
}

/// mlx5dv programs create such an interface for software steering. Here frames reach the queue only
/// by rules of verbs.
#[test]
fn an_interface_may_name_a_work_queue_of_its_own_context() {
    let Some(bench) = Bench::for_refusals() else { return };
    let (setup, other) = (&bench.wire.setup, bench.another());
    let cq = setup.context.create_cq(64).build().unwrap();
    let wq = setup.pd.create_wq(cq.handle(), 16).build().unwrap();
    let (tir, _) = bench.interface(&[(tirc::INLINE_RQN, wq.number().into())]);
    let interface = Input::new(0x900, 272).set(tirc::INLINE_RQN.at(CONTEXT), wq.number());
    assert_eq!(refused(&commands(&other), &interface), BAD_RESOURCE);
    tir.destroy().unwrap();
    drop(wq);
    bench.close();
}
