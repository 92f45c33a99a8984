//! Flow tables of received frames.

use uverbs::devx::{Devx, DevxObject};
use uverbs_soft_adapter::firmware::bits::{Field, field};
use uverbs_soft_adapter::firmware::layout::command::header;
use uverbs_soft_adapter::firmware::layout::ethernet::{
    create_flow_group_in, destroy_flow_group_in, flow_context, flow_table_context,
    modify_flow_table_in, set_fte_in, tirc,
};

use crate::counters::{Bulk, counted};
use crate::ethernet::{Bench, Rq};
use crate::firmware::{Input, commands, create};
use crate::{BAD_PARAMETER, BAD_RESOURCE, refused};

/// Offsets in bits in commands about flow tables: a table's context, a group's criteria, an entry's
/// context, and the entry's value and list of destinations.
const TABLE_CONTEXT: usize = 0xc0;
const ENTRY: usize = 0x200;
const VALUE: usize = ENTRY + 0x200;
const DESTINATIONS: usize = ENTRY + 0x1800;
/// The destination port of UDP in criteria and values.
const UDP_PORT: Field = field(0xf0, 16);
/// Kinds of destinations, actions of entries, and the fields that a modification changes.
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
    /// Frames that match no entry go to the table `miss`, or are dropped. Tables forward only to
    /// those of higher levels.
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

    /// An entry that steers frames for a UDP port to `to`, and counts them.
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

/// A queue, and an interface for it.
fn receiver(bench: &Bench) -> (Rq, DevxObject, u32) {
    let rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let (tir, number) = bench.interface(&[(tirc::INLINE_RQN, rq.number.into())]);
    (rq, tir, number)
}

#[test]
fn frames_go_through_flow_tables_made_by_commands() {
    let Some(mut bench) = Bench::new() else { return };
    let [mut first, mut second] = [(); 2].map(|()| receiver(&bench));
    let Bulk { object: counter, first: number } = Bulk::new(&bench.devx, 0);
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
    // By an entry, and as frames that match no entry. No table has an entry for the last port.
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

#[test]
fn a_flow_table_takes_only_what_fits_it() {
    let Some(bench) = Bench::for_refusals() else { return };
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
    let other = bench.another();
    let theirs = commands(&other);
    assert_eq!(refused(&theirs, &FlowTable::group(table.number)), BAD_RESOURCE);
    // And other counters.
    let counter = Bulk::new(&theirs, 1);
    assert_eq!(refused(&bench.devx, &table.entry(1, to, Some(counter.first))), BAD_RESOURCE);
    // The kernel passes commands only for their own kind of access to objects, and no changes of
    // the root.
    let modify = table.entry(1, to, None).set(header::OP_MOD, 1u64);
    let errno = |result: uverbs::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(bench.devx.create(&modify.0, &mut [0; 16]).map(drop)), libc::EINVAL);
    let unknown = table.entry(1, to, None).set(header::OP_MOD, 2u64);
    assert_eq!(errno(bench.devx.create(&unknown.0, &mut [0; 16]).map(drop)), libc::EINVAL);
    let entry = bench.devx.create(&table.entry(1, to, None).0, &mut [0; 16]).unwrap();
    assert_eq!(errno(entry.modify(&table.entry(1, to, None).0, &mut [0; 16])), libc::EINVAL);
    assert_eq!(errno(entry.modify(&unknown.0, &mut [0; 16])), libc::EINVAL);
    let root = Input::new(0x92f, 64).set(create_flow_group_in::TABLE_ID, table.number);
    assert_eq!(errno(bench.devx.command(&root.0, &mut [0; 16])), libc::EINVAL);
    assert_eq!(errno(table.object.modify(&root.0, &mut [0; 16])), libc::EINVAL);
    let query = Input::new(0x935, 64).set(destroy_flow_group_in::GROUP_ID, table.group_number);
    assert_eq!(errno(table.group.query(&query.0, &mut [0; 1024])), libc::EREMOTEIO);
    // Objects in use cannot be destroyed.
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

/// An entry of another context's table cannot refer to an interface of this context.
#[test]
fn entries_reach_only_queues_of_their_own_context() {
    let Some(bench) = Bench::for_refusals() else { return };
    let (rq, tir, number) = receiver(&bench);
    let other = bench.another();
    let theirs = commands(&other);
    let table = FlowTable::new(&theirs, None);
    assert_eq!(refused(&theirs, &table.entry(1, (TO_TIR, number), None)), BAD_RESOURCE);
    table.close();
    tir.destroy().unwrap();
    rq.close();
    bench.close();
}
