//! Counters of steering rules.

use uverbs::devx::{CommandChannel, Devx, DevxObject};
use uverbs::flow::MatcherOptions;
use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::ethernet::{
    flow_counter, query_flow_counter_in, tirc, traffic_counter,
};

use crate::common;
use crate::ethernet::{Bench, Rq};
use crate::firmware::{Input, KEY_VARIANT, Memory, create, free, key_input};

/// Packets and octets that a counter has counted.
pub(crate) fn counted(counter: &DevxObject, number: u32, channel: &CommandChannel) -> [u64; 2] {
    let query = Input::new(0x93b, 32).set(query_flow_counter_in::FLOW_COUNTER_ID, number);
    counter.query_async(&query.0, 32, 7, channel).unwrap();
    let mut answer = [0; 8 + 32];
    assert_eq!(channel.read(&mut answer).unwrap(), answer.len());
    pair(&answer[8 + 16..], 0)
}

#[test]
fn a_counter_counts_the_frames_of_its_rules() {
    let Some(mut bench) = Bench::new() else { return };
    let Bulk { object: counter, first: number } = Bulk::new(&bench.devx, 0);
    let channel = bench.devx.command_channel().unwrap();
    let mut rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let queue = [(tirc::INLINE_RQN, rq.number.into())];
    assert_eq!(counted(&counter, number, &channel), [0, 0]);
    for lap in 1..=2 {
        // The counter keeps its value after the rule's end.
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

/// Counters that were allocated together, `size` times 128, or a single one.
pub(crate) struct Bulk {
    pub(crate) object: DevxObject,
    pub(crate) first: u32,
}

impl Bulk {
    pub(crate) fn new(devx: &Devx, size: u64) -> Self {
        let mut answer = [0; 16];
        let input = Input::new(0x939, 16).set(flow_counter::BULK, size);
        let object = devx.create(&input.0, &mut answer).unwrap();
        Self { object, first: flow_counter::ID.get32(&answer) }
    }

    /// A query of `count` counters from the `index`th on; if `count` is 0, of a single counter.
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

    // Into memory, as requested by DPDK.
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
    let options = MatcherOptions { mask: &[0xff; 8], ..MatcherOptions::default() };
    let matcher = bench.wire.setup.context.create_flow_matcher(&options).unwrap();
    let rule = matcher.create_flow(&[0; 8]).count(&bulk.object, Some(BULK));
    assert_eq!(rule.drop_frames().build().unwrap_err().errno(), libc::EINVAL);
    bulk.object.destroy().unwrap();
    bench.close();
}
