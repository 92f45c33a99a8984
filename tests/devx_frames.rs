//! Queues for Ethernet frames that a program's firmware commands (DEVX) create, and rules that lead
//! to them.
//!
//! The tests need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod common;

#[path = "common/firmware.rs"]
mod firmware;
#[path = "common/frames.rs"]
mod frames;

use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use firmware::{
    Cq, Input, KEY_VARIANT, LOG_CQES, Memory, RECORD, commands, free, key_input, segment,
};
use frames::{Wire, udp_frame};
use uverbs::devx::{CommandChannel, Devx, DevxObject, DevxUar, UarKind};
use uverbs::flow::{Flow, MatcherOptions};
use uverbs::{Context, MemoryRegion};
use uverbs_soft_adapter::firmware::bits::{Field, field};
use uverbs_soft_adapter::firmware::layout::capability::general;
use uverbs_soft_adapter::firmware::layout::command::{header, object};
use uverbs_soft_adapter::firmware::layout::context::{rmpc, tisc, wq};
use uverbs_soft_adapter::firmware::layout::ethernet::{
    create_flow_group_in, destroy_flow_group_in, flow_context, flow_counter, flow_table_context,
    modify_flow_table_in, modify_rq_in, modify_sq_in, query_flow_counter_in, rqc, rqtc, set_fte_in,
    sqc, tirc, traffic_counter,
};

/// Where the commands have their contexts, work queues and lists of receive queues, in bits.
const CONTEXT: usize = 0x100;
const QUEUE: usize = CONTEXT + 0x180;
const LIST: usize = CONTEXT + 0x780;

const LOG_WQES: u64 = 4;
const WQES: usize = 1 << LOG_WQES;
const CYCLIC: u64 = 1;
/// A receive is one segment, a send one block.
const LOG_RECEIVE: u64 = 4;
const LOG_BLOCK: u64 = 6;
const SPACE: usize = 256;

/// Completions, as CQEs have their opcodes.
const SENT: u8 = 0;
const RECEIVED: u8 = 2;

/// Statuses of refused commands, `MLX5_CMD_STAT_*`.
const BAD_PARAMETER: u8 = 0x3;
const BAD_RESOURCE: u8 = 0x5;
const BAD_INPUT_LENGTH: u8 = 0x50;
const EINVAL: i32 = 22;
const EREMOTEIO: i32 = 121;

/// Headers that a send has inside its WQE.
const INLINE: usize = 18;

fn create(devx: &Devx, input: &Input) -> (DevxObject, u32) {
    let mut answer = [0; 16];
    let made = devx.create(&input.0, &mut answer).unwrap();
    (made, object::NUMBER.get32(&answer))
}

/// The work queue of a context, its ring at the start of the memory.
fn queue(input: Input, memory: &Memory, pd: u32, log_stride: u64) -> Input {
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
        fence(Ordering::SeqCst);
        self.memory.record(RECORD + 4, self.sent as u32);
        fence(Ordering::SeqCst);
        let doorbell = u64::from_ne_bytes(*block.first_chunk().unwrap());
        // SAFETY: the register is mapped as long as the page is there.
        unsafe { uar.register().cast::<u64>().write_volatile(doorbell) };
    }
}

/// A receive queue over registered memory, with a completion queue and buffers of its own.
struct Rq {
    object: DevxObject,
    number: u32,
    memory: Memory,
    cq: Cq,
    buffers: Vec<MemoryRegion>,
    taken: usize,
}

impl Rq {
    fn new(devx: &Devx, uar: &DevxUar, wire: &Wire) -> Self {
        let (cq, memory) = (Cq::new(devx, uar), Memory::new(devx));
        let input = Input::new(0x908, 272)
            .set(rqc::VSD.at(CONTEXT), 1u64)
            .set(rqc::CQN.at(CONTEXT), cq.number)
            .set(rqc::USER_INDEX.at(CONTEXT), 0xff_ffffu64);
        let pd = wire.setup.pd.number();
        let (object, number) = create(devx, &queue(input, &memory, pd, LOG_RECEIVE));
        let ready = Input::new(0x909, 272).set(modify_rq_in::RQN, number);
        object.modify(&ready.set(rqc::STATE.at(CONTEXT), 1u64).0, &mut [0; 16]).unwrap();
        let buffers: Vec<_> = (0..WQES).map(|_| wire.setup.region(SPACE)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            memory.put(index << LOG_RECEIVE, &segment(buffer));
        }
        fence(Ordering::SeqCst);
        memory.record(RECORD, WQES as u32);
        Self { object, number, memory, cq, buffers, taken: 0 }
    }

    /// The start of the next frame, waited for.
    fn frame<const N: usize>(&mut self) -> [u8; N] {
        assert_eq!(self.cq.opcode(), RECEIVED);
        self.taken()
    }

    /// As [`frame`](Self::frame), if it is there.
    fn poll<const N: usize>(&mut self) -> Option<[u8; N]> {
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

    fn close(self) {
        self.object.destroy().unwrap();
        self.cq.object.destroy().unwrap();
        free(self.cq.memory);
        free(self.memory);
    }
}

/// A list of receive queues, and the rule that leads to it.
struct Table {
    list: DevxObject,
    tir: DevxObject,
    rule: Flow,
}

impl Table {
    fn close(self) {
        self.rule.destroy().unwrap();
        self.tir.destroy().unwrap();
        self.list.destroy().unwrap();
    }
}

/// What the tests share: a port that delivers to itself, and a send queue.
struct Bench {
    wire: Wire,
    devx: Devx,
    uar: DevxUar,
    domain: (DevxObject, u32),
    sends: Cq,
    sq: Sq,
    payload: MemoryRegion,
}

impl Bench {
    fn new() -> Option<Self> {
        let wire = Wire::new(|builder| builder)?;
        if !wire.setup.context.has_devx() {
            assert!(!common::is_soft());
            println!("skipped: the device grants no DEVX");
            return None;
        }
        let devx = commands(&wire.setup.context);
        let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
        let domain = create(&devx, &Input::new(0x816, 16));
        let sends = Cq::new(&devx, &uar);
        let sq = Sq::new(&devx, &uar, wire.setup.pd.number(), &sends, domain.1);
        let payload = wire.setup.region(SPACE);
        Some(Self { wire, devx, uar, domain, sends, sq, payload })
    }

    /// A receiving interface, and a rule by which frames to the port's address reach it.
    fn lead_to(&self, fields: &[(Field, u64)]) -> (DevxObject, Flow) {
        self.count_to(fields, None)
    }

    /// As [`lead_to`](Self::lead_to), with a counter.
    fn count_to(
        &self,
        fields: &[(Field, u64)],
        counter: Option<(&DevxObject, Option<u32>)>,
    ) -> (DevxObject, Flow) {
        let (tir, _) = self.interface(fields);
        let rule = self.rule_to(&tir, counter);
        (tir, rule)
    }

    /// A receiving interface.
    fn interface(&self, fields: &[(Field, u64)]) -> (DevxObject, u32) {
        let input = Input::new(0x900, 272);
        let input = input.set(tirc::TRANSPORT_DOMAIN.at(CONTEXT), self.domain.1);
        let input =
            fields.iter().fold(input, |input, (field, value)| input.set(field.at(CONTEXT), *value));
        create(&self.devx, &input)
    }

    /// A rule by which frames to the port's address reach an object.
    fn rule_to(&self, to: &DevxObject, counter: Option<(&DevxObject, Option<u32>)>) -> Flow {
        self.rule_in(&self.wire.setup.context, to, counter)
    }

    /// As [`rule_to`](Self::rule_to), in a context.
    fn rule_in(
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

    /// Frames are spread over these queues by a hash.
    fn spread(&self, queues: [u32; 2]) -> Table {
        let list = Input::new(0x916, 280)
            .set(rqtc::RQT_MAX_SIZE.at(CONTEXT), 2u64)
            .set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), 2u64)
            .set(field(LIST + 8, 24), queues[0])
            .set(field(LIST + 32 + 8, 24), queues[1]);
        let (list, number) = create(&self.devx, &list);
        let mut fields = vec![
            (tirc::DISP_TYPE, 1),
            (tirc::INDIRECT_TABLE, number.into()),
            (tirc::RX_HASH_FN, 2),
            // IPv4 and UDP: both addresses and both ports.
            (tirc::RX_HASH_FIELD_SELECTOR_OUTER, 1 << 30 | 0xf),
        ];
        let key = (0..10).map(|word| (tirc::RX_HASH_TOEPLITZ_KEY.element(word, 32), 0x6d5a_56da));
        fields.extend(key);
        let (tir, rule) = self.lead_to(&fields);
        Table { list, tir, rule }
    }

    /// Sends a frame to a UDP port.
    fn send(&mut self, port: u16) -> Vec<u8> {
        let frame = udp_frame(self.wire.mac, port, &[port as u8; 40]);
        self.sq.send(&frame, &self.payload, &self.uar);
        assert_eq!(self.sends.opcode(), SENT);
        frame
    }

    fn close(self) {
        self.sq.object.destroy().unwrap();
        self.sq.interface.destroy().unwrap();
        self.domain.0.destroy().unwrap();
        free(self.sq.memory);
        self.sends.object.destroy().unwrap();
        free(self.sends.memory);
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

/// Packets and octets that a counter has counted.
fn counted(counter: &DevxObject, number: u32, channel: &CommandChannel) -> [u64; 2] {
    let query = Input::new(0x93b, 32).set(query_flow_counter_in::FLOW_COUNTER_ID, number);
    counter.query_async(&query.0, 32, 7, channel).unwrap();
    let mut answer = [0; 8 + 32];
    assert_eq!(channel.read(&mut answer).unwrap(), answer.len());
    let at = |field: Field| field.at(8 * 8 + 0x80).get(&answer);
    [at(traffic_counter::PACKETS), at(traffic_counter::OCTETS)]
}

#[test]
fn a_counter_counts_the_frames_of_its_rules() {
    let Some(mut bench) = Bench::new() else { return };
    let mut answer = [0; 16];
    let counter = bench.devx.create(&Input::new(0x939, 16).0, &mut answer).unwrap();
    let number = flow_counter::ID.get32(&answer);
    let channel = bench.devx.command_channel().unwrap();
    let mut rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let queue = [(tirc::INLINE_RQN, rq.number.into())];
    assert_eq!(counted(&counter, number, &channel), [0, 0]);
    for lap in 1..=2 {
        // The counter keeps what a rule has counted after the rule's end.
        let (tir, rule) = bench.count_to(&queue, Some((&counter, None)));
        for port in 1..=5 {
            let sent = bench.send(port);
            assert_eq!(rq.frame::<82>(), sent[..]);
        }
        assert_eq!(counted(&counter, number, &channel), [5 * lap, 5 * 82 * lap]);
        rule.destroy().unwrap();
        tir.destroy().unwrap();
        assert_eq!(counted(&counter, number, &channel), [5 * lap, 5 * 82 * lap]);
    }
    counter.destroy().unwrap();
    rq.close();
    bench.close();
}

/// Counters that were allocated together.
struct Bulk {
    object: DevxObject,
    first: u32,
}

impl Bulk {
    fn new(devx: &Devx, size: u64) -> Self {
        let mut answer = [0; 16];
        let input = Input::new(0x939, 16).set(flow_counter::BULK, size);
        let object = devx.create(&input.0, &mut answer).unwrap();
        Self { object, first: flow_counter::ID.get32(&answer) }
    }

    /// A query of counters from the `index`th on; of one that the query names if `count` is 0.
    fn query(&self, index: u32, count: u32) -> Input {
        Input::new(0x93b, 32)
            .set(query_flow_counter_in::FLOW_COUNTER_ID, self.first + index)
            .set(query_flow_counter_in::NUM_OF_COUNTERS, count)
    }
}

/// Packets and octets of the `index`th counter of a list.
fn pair(list: &[u8], index: usize) -> [u64; 2] {
    let at = |field: Field| field.at(index * 128).get(list);
    [at(traffic_counter::PACKETS), at(traffic_counter::OCTETS)]
}

const BULK: u32 = 128;
const COUNTED: u32 = 5;

#[test]
fn counters_are_allocated_and_queried_together() {
    let Some(mut bench) = Bench::new() else { return };
    let [bulk, other] = [1, 2].map(|size| Bulk::new(&bench.devx, size));
    assert!(bulk.first + BULK <= other.first || other.first + 2 * BULK <= bulk.first);
    let mut rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let queue = [(tirc::INLINE_RQN, rq.number.into())];
    let (tir, rule) = bench.count_to(&queue, Some((&bulk.object, Some(COUNTED))));
    for port in 1..=3 {
        let sent = bench.send(port);
        assert_eq!(rq.frame::<82>(), sent[..]);
    }
    let counted = |index: u32| if index == COUNTED { [3, 3 * 82] } else { [0; 2] };

    let mut answer = [0; 16 + 16];
    for index in [0, COUNTED, BULK - 1] {
        bulk.object.query(&bulk.query(index, 0).0, &mut answer).unwrap();
        assert_eq!(pair(&answer[16..], 0), counted(index));
    }
    let mut answers = [0; 16 + 16 * BULK as usize];
    bulk.object.query(&bulk.query(0, BULK).0, &mut answers).unwrap();
    (0..BULK).for_each(|at| assert_eq!(pair(&answers[16..], at as usize), counted(at)));
    let outside = bulk.object.query(&bulk.query(BULK, 0).0, &mut answer).unwrap_err();
    assert_eq!(outside.errno(), libc::EINVAL, "the kernel knows how many there are");

    // To memory, as DPDK asks for them.
    let memory = Memory::new(&bench.devx);
    let (key, index) =
        create(&bench.devx, &key_input(&memory, bench.wire.setup.pd.number(), 16 * 64));
    let dump = |bulk: &Bulk, count: u32, key: u32| {
        let input = bulk
            .query(0, count)
            .set(query_flow_counter_in::CLEAR, 1u64)
            .set(query_flow_counter_in::DUMP_TO_MEMORY, 1u64)
            .set(query_flow_counter_in::MKEY, key)
            .set(query_flow_counter_in::ADDRESS, memory.base.as_ptr() as u64);
        bulk.object.query(&input.0, &mut [0; 16 + 16])
    };
    let key_number = index << 8 | KEY_VARIANT;
    if common::is_soft() {
        // More than the key has, a key of another variant, and more than the bulk has.
        for (count, key) in [(BULK, key_number), (4, key_number ^ 1), (BULK + 4, key_number)] {
            let error = dump(&bulk, count, key).unwrap_err();
            assert_eq!(error.errno(), libc::EREMOTEIO, "{error}");
        }
    }
    dump(&bulk, 64, key_number).unwrap();
    let stored: Vec<u8> = (0..16 * 64).map(|at| memory.byte(at)).collect();
    (0..64).for_each(|at| assert_eq!(pair(&stored, at as usize), counted(at)));
    bulk.object.query(&bulk.query(COUNTED, 0).0, &mut answer).unwrap();
    assert_eq!(pair(&answer[16..], 0), [0; 2], "cleared");
    key.destroy().unwrap();
    free(memory);

    // The rule uses one of the counters.
    let bulk = match common::is_soft() {
        true => *bulk.object.destroy().unwrap_err().object,
        false => bulk.object,
    };
    rule.destroy().unwrap();
    tir.destroy().unwrap();
    bulk.destroy().unwrap();
    other.object.destroy().unwrap();
    rq.close();
    bench.close();
}

#[test]
fn a_rule_names_only_counters_that_there_are() {
    let Some(bench) = Bench::new() else { return };
    let bulk = Bulk::new(&bench.devx, 1);
    let matcher = bench
        .wire
        .setup
        .context
        .create_flow_matcher(&MatcherOptions { mask: &[0xff; 8], ..MatcherOptions::default() });
    let matcher = matcher.unwrap();
    let rule = matcher.create_flow(&[0; 8]).count(&bulk.object, Some(BULK));
    assert_eq!(rule.drop_frames().build().unwrap_err().errno(), libc::EINVAL);
    bulk.object.destroy().unwrap();
    bench.close();
}

#[test]
fn a_program_names_only_what_is_its_own() {
    // In the guests a refused command counts as a mistake of the device or of the driver.
    let Some(bench) = common::is_soft().then(Bench::new).flatten() else { return };
    let other = bench.wire.setup.context.device().open().unwrap();
    let (theirs, pd) = (commands(&other), other.alloc_pd().unwrap());
    let memory = Memory::new(&bench.devx);
    let input = |pd| {
        let input = Input::new(0x908, 272).set(rqc::CQN.at(CONTEXT), bench.sends.number);
        queue(input, &memory, pd, LOG_RECEIVE)
    };
    let mut answer = [0; 16];
    let mut refused = |input: Input| {
        let error = bench.devx.create(&input.0, &mut answer).unwrap_err();
        assert_eq!(error.errno(), libc::EREMOTEIO, "{error}");
    };
    let own = bench.wire.setup.pd.number();
    refused(input(pd.number()));
    refused(input(0));
    refused(input(own).set(rqc::RLKY.at(CONTEXT), 1u64));
    let (rq, number) = create(&bench.devx, &input(own));

    // Neither an interface nor a list of another context may name the queue.
    let interface = Input::new(0x900, 272).set(tirc::INLINE_RQN.at(CONTEXT), number);
    for input in [interface, table(1, 1, &[number])] {
        let error = theirs.create(&input.0, &mut answer).unwrap_err();
        assert_eq!((error.errno(), answer[0]), (EREMOTEIO, BAD_RESOURCE), "{error}");
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

#[test]
fn a_hash_spreads_frames_over_queues_made_by_commands() {
    let Some(mut bench) = Bench::new() else { return };
    let mut queues = [0; 2].map(|_| Rq::new(&bench.devx, &bench.uar, &bench.wire));
    let table = bench.spread([queues[0].number, queues[1].number]);
    let mut sent: Vec<_> = (1..=16).map(|port| bench.send(port)).collect();
    let mut got = Vec::new();
    let mut counts = [0; 2];
    let start = Instant::now();
    while got.len() < sent.len() {
        for (queue, count) in queues.iter_mut().zip(&mut counts) {
            let arrived = queue.poll::<82>();
            *count += usize::from(arrived.is_some());
            got.extend(arrived.map(|frame| frame.to_vec()));
        }
        assert!(start.elapsed() < common::PATIENCE, "frames are missing: {counts:?}");
        std::thread::yield_now();
    }
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    table.close();
    queues.into_iter().for_each(Rq::close);
    bench.close();
}

/// A table of receive queues, with a list of these.
fn table(max: u64, actual: u64, queues: &[u32]) -> Input {
    let input = Input::new(0x916, LIST / 8 + queues.len() * 4)
        .set(rqtc::RQT_MAX_SIZE.at(CONTEXT), max)
        .set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), actual);
    let place = |at: usize| field(LIST + 32 * at + 8, 24);
    queues.iter().enumerate().fold(input, |input, (at, queue)| input.set(place(at), *queue))
}

#[test]
fn tables_have_at_most_the_advertised_size() {
    // In the guests a refused command counts as a mistake of the device or of the driver.
    let Some(bench) = common::is_soft().then(Bench::new).flatten() else { return };
    let mut answer = [0; 16 + 4096];
    bench.devx.command(&Input::new(0x100, 16).0, &mut answer).unwrap();
    let log_most = general::LOG_MAX_RQT_SIZE.at(0x80).get(&answer);
    assert_eq!(log_most, 11);
    let most = 1u64 << log_most;
    let refused = |input: Input| {
        let mut answer = [0; 16];
        let error = bench.devx.create(&input.0, &mut answer).unwrap_err();
        assert_eq!(error.errno(), libc::EREMOTEIO, "{error}");
        answer[0]
    };
    let rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let table = |max, actual, queues| table(max, actual, &vec![rq.number; queues]);
    assert_eq!(refused(table(2 * most, 1, 1)), BAD_PARAMETER);
    assert_eq!(refused(table(4, 5, 5)), BAD_PARAMETER);
    assert_eq!(refused(table(4, 4, 3)), BAD_INPUT_LENGTH);
    let (largest, _) = create(&bench.devx, &table(most, most, most as usize));
    largest.destroy().unwrap();

    let (object, number) = create(&bench.devx, &table(4, 1, 1));
    let change = |actual: u64, queues: usize| {
        let input = table(0, actual, queues).set(field(0, 16), 0x917u64);
        let input = input.set(field(0x48, 24), number).set(field(0x80, 64), 1u64);
        let mut answer = [0; 16];
        object.modify(&input.0, &mut answer).map_err(|_| answer[0])
    };
    assert_eq!(change(5, 5), Err(BAD_PARAMETER));
    assert_eq!(change(4, 3), Err(BAD_INPUT_LENGTH));
    change(4, 4).unwrap();
    assert_eq!(change(4, 3), Err(BAD_INPUT_LENGTH), "the fourth is not in the command");
    object.destroy().unwrap();
    rq.close();
    bench.close();
}

/// The order in which the receives of a pool are taken.
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
        fence(Ordering::SeqCst);
        memory.record(RECORD, WQES as u32);
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
        let (object, number) = create(&bench.devx, &input);
        let ready = Input::new(0x909, 272).set(modify_rq_in::RQN, number);
        object.modify(&ready.set(rqc::STATE.at(CONTEXT), 1u64).0, &mut [0; 16]).unwrap();
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
    let table = bench.spread([queues[0].1, queues[1].1]);
    let mut sent: Vec<_> = (1..=WQES as u16).map(|port| bench.send(port)).collect();
    let (mut got, mut counts) = (Vec::new(), [0; 2]);
    let start = Instant::now();
    while got.len() < sent.len() {
        for ((_, _, cq), count) in queues.iter_mut().zip(&mut counts) {
            if let Some(opcode) = cq.poll() {
                assert_eq!(opcode, RECEIVED);
                got.push(pool.frame(cq).to_vec());
                *count += 1;
            }
        }
        assert!(start.elapsed() < common::PATIENCE, "frames are missing: {counts:?}");
        std::thread::yield_now();
    }
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    table.close();
    let pool = match common::is_soft() {
        true => Pool { object: *pool.object.destroy().unwrap_err().object, ..pool },
        false => pool,
    };
    for (queue, _, cq) in queues {
        queue.destroy().unwrap();
        cq.object.destroy().unwrap();
        free(cq.memory);
    }
    pool.object.destroy().unwrap();
    free(pool.memory);
    bench.close();
}

/// Where commands about flow tables have a table's context, a group's criteria, an entry's context,
/// and that one's value and list of destinations, in bits.
const TABLE_CONTEXT: usize = 0xc0;
const ENTRY: usize = 0x200;
const VALUE: usize = ENTRY + 0x200;
const DESTINATIONS: usize = ENTRY + 0x1800;
/// The destination port of UDP in criteria and values.
const UDP_PORT: Field = field(0xf0, 16);
/// Kinds of destinations, actions of entries, and what a modification changes.
const TO_TABLE: u64 = 1;
const TO_TIR: u64 = 2;
const FORWARD: u64 = 4;
const COUNT: u64 = 8;
const CHANGE_DESTINATIONS: u64 = 4;
const TAG: u32 = 0x51_5253;

/// A flow table of four entries, in one group that compares UDP's destination port.
struct FlowTable {
    object: DevxObject,
    number: u32,
    group: DevxObject,
    group_number: u32,
}

impl FlowTable {
    /// Frames that match no entry go to `miss`, or nowhere. Tables lead only to those of higher
    /// levels.
    fn new(devx: &Devx, miss: Option<u32>) -> Self {
        let level = if miss.is_some() { 64u64 } else { 65 };
        let input = Input::new(0x930, 64)
            .set(flow_table_context::LEVEL.at(TABLE_CONTEXT), level)
            .set(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT), 2u64)
            .set(flow_table_context::TABLE_MISS_ACTION.at(TABLE_CONTEXT), miss.is_some())
            .set(flow_table_context::TABLE_MISS_ID.at(TABLE_CONTEXT), miss.unwrap_or(0));
        let (object, number) = create(devx, &input);
        let (group, group_number) = create(devx, &Self::group(number));
        Self { object, number, group, group_number }
    }

    fn group(table: u32) -> Input {
        Input::new(0x933, 1024)
            .set(create_flow_group_in::TABLE_ID, table)
            .set(create_flow_group_in::END_FLOW_INDEX, 3u64)
            .set(create_flow_group_in::MATCH_CRITERIA_ENABLE, 1u64)
            .set(UDP_PORT.at(0x200), 0xffffu64)
    }

    /// Sends frames to a UDP port there, and counts them.
    fn entry(&self, port: u16, to: (u64, u32), counter: Option<u32>) -> Input {
        let counts = counter.map_or(0, |_| COUNT);
        let input = Input::new(0x936, 848)
            .set(set_fte_in::TABLE_ID, self.number)
            .set(set_fte_in::FLOW_INDEX, port)
            .set(flow_context::GROUP_ID.at(ENTRY), self.group_number)
            .set(flow_context::FLOW_TAG.at(ENTRY), TAG)
            .set(flow_context::ACTION.at(ENTRY), FORWARD | counts)
            .set(flow_context::DESTINATION_LIST_SIZE.at(ENTRY), 1u64)
            .set(flow_context::FLOW_COUNTER_LIST_SIZE.at(ENTRY), counter.is_some())
            .set(UDP_PORT.at(VALUE), port)
            .set(field(DESTINATIONS, 8), to.0)
            .set(field(DESTINATIONS + 8, 24), to.1);
        input.set(field(DESTINATIONS + 64, 32), counter.unwrap_or(0))
    }

    fn close(self) {
        self.group.destroy().unwrap();
        self.object.destroy().unwrap();
    }
}

/// A queue, and an interface that leads to it.
fn receiver(bench: &Bench) -> (Rq, DevxObject, u32) {
    let rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let (tir, number) = bench.interface(&[(tirc::INLINE_RQN, rq.number.into())]);
    (rq, tir, number)
}

#[test]
fn frames_go_through_flow_tables_made_by_commands() {
    let Some(mut bench) = Bench::new() else { return };
    let [mut first, mut second] = [(); 2].map(|()| receiver(&bench));
    let mut answer = [0; 16];
    let counter = bench.devx.create(&Input::new(0x939, 16).0, &mut answer).unwrap();
    let number = flow_counter::ID.get32(&answer);
    let channel = bench.devx.command_channel().unwrap();
    let last = FlowTable::new(&bench.devx, None);
    let root = FlowTable::new(&bench.devx, Some(last.number));
    let enter = |input: Input| bench.devx.create(&input.0, &mut [0; 16]).unwrap();
    let entries = [
        enter(root.entry(1, (TO_TIR, first.2), Some(number))),
        enter(root.entry(2, (TO_TABLE, last.number), None)),
        enter(last.entry(2, (TO_TIR, second.2), None)),
        enter(last.entry(3, (TO_TIR, second.2), None)),
    ];
    let rule = bench.rule_to(&root.object, None);
    let sent = bench.send(1);
    assert_eq!(first.0.frame::<82>(), sent[..]);
    assert_eq!([57, 58, 59].map(|at| first.0.cq.memory.byte(at)), TAG.to_be_bytes()[1..]);
    assert_eq!(counted(&counter, number, &channel), [1, sent.len() as u64]);
    // By way of an entry, and as frames that match no entry. No table has an entry for the last.
    for port in [2, 3] {
        let sent = bench.send(port);
        assert_eq!(second.0.frame::<82>(), sent[..], "{port}");
    }
    bench.send(4);
    let change = root.entry(1, (TO_TIR, second.2), None);
    let change =
        change.set(field(0x30, 16), 1u64).set(set_fte_in::MODIFY_ENABLE_MASK, CHANGE_DESTINATIONS);
    entries[0].modify(&change.0, &mut [0; 16]).unwrap();
    let no_miss = Input::new(0x93c, 64)
        .set(create_flow_group_in::TABLE_ID, root.number)
        .set(modify_flow_table_in::MODIFY_FIELD_SELECT, 1u64);
    root.object.modify(&no_miss.0, &mut [0; 16]).unwrap();
    bench.send(3);
    let sent = bench.send(1);
    assert_eq!(second.0.frame::<82>(), sent[..]);
    assert!(first.0.poll::<82>().is_none());
    rule.destroy().unwrap();
    entries.into_iter().for_each(|entry| entry.destroy().unwrap());
    root.close();
    last.close();
    counter.destroy().unwrap();
    for (rq, tir, _) in [first, second] {
        tir.destroy().unwrap();
        rq.close();
    }
    bench.close();
}

/// The status with which the firmware refuses to create an object.
fn refused(devx: &Devx, input: &Input) -> u8 {
    let mut answer = [0; 16];
    let error = devx.create(&input.0, &mut answer).unwrap_err();
    assert_eq!(error.errno(), EREMOTEIO, "{error}");
    answer[0]
}

/// A guest's device complains of commands that it refuses, so only a software device gets them.
#[test]
fn a_flow_table_takes_only_what_fits_it() {
    if !common::is_soft() {
        return println!("skipped: only a software device gets commands to refuse");
    }
    let Some(bench) = Bench::new() else { return };
    let (rq, tir, number) = receiver(&bench);
    let table = FlowTable::new(&bench.devx, None);
    let to = (TO_TIR, number);
    assert_eq!(refused(&bench.devx, &FlowTable::group(table.number)), BAD_PARAMETER, "overlaps");
    assert_eq!(refused(&bench.devx, &FlowTable::group(0x7777)), BAD_RESOURCE);
    assert_eq!(refused(&bench.devx, &table.entry(4, to, None)), BAD_PARAMETER, "no such place");
    assert_eq!(refused(&bench.devx, &table.entry(1, (TO_TIR, 0x7777), None)), BAD_RESOURCE);
    assert_eq!(refused(&bench.devx, &table.entry(1, (TO_TABLE, 0x7777), None)), BAD_RESOURCE);
    assert_eq!(refused(&bench.devx, &table.entry(1, to, Some(0x7777))), BAD_RESOURCE);
    let sends = Input::new(0x930, 64).set(create_flow_group_in::TABLE_TYPE, 1u64);
    assert_eq!(refused(&bench.devx, &sends), BAD_PARAMETER, "a table of frames that are sent");
    // Another context has other tables.
    let other = bench.wire.setup.context.device().open().unwrap();
    let theirs = commands(&other);
    assert_eq!(refused(&theirs, &FlowTable::group(table.number)), BAD_RESOURCE);
    // And other counters.
    let counter = Bulk::new(&theirs, 1);
    assert_eq!(refused(&bench.devx, &table.entry(1, to, Some(counter.first))), BAD_RESOURCE);
    // The kernel has commands for objects pass only as what they do to them, and no root.
    let modify = table.entry(1, to, None).set(header::OP_MOD, 1u64);
    let errno = |result: uverbs::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(bench.devx.create(&modify.0, &mut [0; 16]).map(drop)), EINVAL);
    let unknown = table.entry(1, to, None).set(header::OP_MOD, 2u64);
    assert_eq!(errno(bench.devx.create(&unknown.0, &mut [0; 16]).map(drop)), EINVAL);
    let entry = bench.devx.create(&table.entry(1, to, None).0, &mut [0; 16]).unwrap();
    assert_eq!(errno(entry.modify(&table.entry(1, to, None).0, &mut [0; 16])), EINVAL);
    assert_eq!(errno(entry.modify(&unknown.0, &mut [0; 16])), EINVAL);
    let root = Input::new(0x92f, 64).set(create_flow_group_in::TABLE_ID, table.number);
    assert_eq!(errno(bench.devx.command(&root.0, &mut [0; 16])), EINVAL);
    assert_eq!(errno(table.object.modify(&root.0, &mut [0; 16])), EINVAL);
    let query = Input::new(0x935, 64).set(destroy_flow_group_in::GROUP_ID, table.group_number);
    assert_eq!(errno(table.group.query(&query.0, &mut [0; 1024])), EREMOTEIO);
    // What is in use stays.
    let rule = bench.rule_to(&table.object, None);
    let group = *table.group.destroy().unwrap_err().object;
    let object = *table.object.destroy().unwrap_err().object;
    rule.destroy().unwrap();
    entry.destroy().unwrap();
    FlowTable { object, group, ..table }.close();
    tir.destroy().unwrap();
    rq.close();
    bench.close();
}

/// No entry of another context's table leads to an interface here.
#[test]
fn entries_reach_only_queues_of_their_own_context() {
    let Some(bench) = common::is_soft().then(Bench::new).flatten() else { return };
    let (rq, tir, number) = receiver(&bench);
    let other = bench.wire.setup.context.device().open().unwrap();
    let theirs = commands(&other);
    let table = FlowTable::new(&theirs, None);
    assert_eq!(refused(&theirs, &table.entry(1, (TO_TIR, number), None)), BAD_RESOURCE);
    table.close();
    tir.destroy().unwrap();
    rq.close();
    bench.close();
}
