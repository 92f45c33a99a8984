//! Refused commands about flow tables.

use super::driver::{Driver, Input};
use super::frames::pair;
use crate::bits::{Field, field};
use crate::layout::command::header;
use crate::layout::ethernet::{
    create_flow_group_in, flow_context, flow_counter, flow_table_context, flow_table_properties,
    modify_flow_table_in, set_fte_in,
};

const TABLE_CONTEXT: usize = 0xc0;
const ENTRY: usize = 0x200;
/// The list of destinations and counters.
const DESTINATIONS: usize = ENTRY + 0x1800;
const DROP: u64 = 2;
const FORWARD: u64 = 4;
const COUNT: u64 = 8;
const BAD_PARAMETER: u64 = 3;

fn driver() -> Driver {
    pair().into_iter().next().unwrap()
}

/// A table of four entries, with one group for all of them. Returns their numbers.
fn table(driver: &mut Driver) -> (u32, u32) {
    let input = Input::new(0x930, 64).set(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT), 2);
    let table = driver.create(input);
    let group = Input::new(0x933, 1024)
        .set(create_flow_group_in::TABLE_ID, table.into())
        .set(create_flow_group_in::END_FLOW_INDEX, 3);
    (table, driver.create(group))
}

/// An entry that drops frames.
fn entry((table, group): (u32, u32), index: u64) -> Input {
    Input::new(0x936, 848)
        .set(set_fte_in::TABLE_ID, table.into())
        .set(set_fte_in::FLOW_INDEX, index)
        .set(flow_context::GROUP_ID.at(ENTRY), group.into())
        .set(flow_context::ACTION.at(ENTRY), DROP)
}

fn status(driver: &mut Driver, input: Input) -> u64 {
    driver.command(input, 16).map_or_else(|refused| refused.0, |_| 0)
}

#[test]
fn an_entry_is_new_or_modified() {
    let mut driver = driver();
    let table = table(&mut driver);
    let operation = |number| entry(table, 1).set(header::OP_MOD, number);
    for unknown in [2, 3, 0xffff] {
        assert_eq!(status(&mut driver, operation(unknown)), BAD_PARAMETER, "{unknown}");
    }
    driver.done(operation(0), 8);
    driver.done(operation(1), 8);
}

#[test]
fn tables_lead_only_to_higher_levels() {
    let mut driver = driver();
    let on = |level| {
        Input::new(0x930, 64)
            .set(flow_table_context::LEVEL.at(TABLE_CONTEXT), level)
            .set(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT), 2)
    };
    let [low, middle, high] = [1, 2, 3].map(|level| driver.create(on(level)));
    let to = |input: Input, next: u32| {
        input
            .set(flow_table_context::TABLE_MISS_ACTION.at(TABLE_CONTEXT), 1)
            .set(flow_table_context::TABLE_MISS_ID.at(TABLE_CONTEXT), next.into())
    };
    let modify = Input::new(0x93c, 64)
        .set(set_fte_in::TABLE_ID, middle.into())
        .set(modify_flow_table_in::MODIFY_FIELD_SELECT, 1);
    let group = Input::new(0x933, 1024).set(create_flow_group_in::TABLE_ID, middle.into());
    let group = driver.create(group);
    let enter = |next: u32| {
        entry((middle, group), 0)
            .set(flow_context::ACTION.at(ENTRY), FORWARD)
            .set(flow_context::DESTINATION_LIST_SIZE.at(ENTRY), 1)
            .set(field(DESTINATIONS, 32), 1 << 24 | u64::from(next))
    };
    for (next, expected) in [(low, BAD_PARAMETER), (middle, BAD_PARAMETER), (high, 0)] {
        assert_eq!(status(&mut driver, to(on(2), next)), expected, "{next}");
        assert_eq!(status(&mut driver, to(modify.clone(), next)), expected, "{next}");
        assert_eq!(status(&mut driver, enter(next)), expected, "{next}");
    }
}

/// The capabilities of flow tables for received frames.
fn capabilities(driver: &mut Driver) -> Vec<u8> {
    driver.done(Input::new(0x100, 16).set(header::OP_MOD, 7 << 1), 16 + 4096)
}

fn capability(shown: &[u8], field: Field) -> u64 {
    field.at(0x80 + 0x200).get(shown)
}

fn table_of_size(log_size: u64) -> Input {
    Input::new(0x930, 64).set(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT), log_size)
}

/// A new entry with this action, and a list of 65 equal destinations or counters.
fn with_list((table, group): (u32, u32), action: u64, item: u64) -> Input {
    let input = Input::new(0x936, 832 + 8 * 65)
        .set(set_fte_in::TABLE_ID, table.into())
        .set(flow_context::GROUP_ID.at(ENTRY), group.into())
        .set(flow_context::ACTION.at(ENTRY), action);
    (0..65).fold(input, |input, index| input.set(field(DESTINATIONS + 64 * index, 32), item))
}

#[test]
fn larger_and_higher_tables_than_the_device_announces_are_refused() {
    let mut driver = driver();
    let shown = capabilities(&mut driver);
    let most = capability(&shown, flow_table_properties::LOG_MAX_FT_SIZE);
    assert_eq!(status(&mut driver, table_of_size(most)), 0);
    assert_eq!(status(&mut driver, table_of_size(most + 1)), BAD_PARAMETER);

    let levels = capability(&shown, flow_table_properties::MAX_FT_LEVEL);
    let on = |level| table_of_size(0).set(flow_table_context::LEVEL.at(TABLE_CONTEXT), level);
    assert_eq!(status(&mut driver, on(levels - 1)), 0);
    assert_eq!(status(&mut driver, on(levels)), BAD_PARAMETER);
}

#[test]
fn more_counters_than_the_device_announces_are_refused() {
    let mut driver = driver();
    let shown = capabilities(&mut driver);
    let most = 1 << capability(&shown, flow_table_properties::LOG_MAX_FLOW_COUNTER);
    let table = table(&mut driver);
    let counter = flow_counter::ID.get(&driver.done(Input::new(0x939, 16), 16));
    let counters = |count: u64| {
        with_list(table, DROP | COUNT, counter)
            .set(flow_context::FLOW_COUNTER_LIST_SIZE.at(ENTRY), count)
    };
    assert_eq!(status(&mut driver, counters(most + 1)), BAD_PARAMETER);
    assert_eq!(status(&mut driver, counters(most)), 0);
}

#[test]
fn more_destinations_than_the_device_announces_are_refused() {
    let mut driver = driver();
    let shown = capabilities(&mut driver);
    let most = 1 << capability(&shown, flow_table_properties::LOG_MAX_DESTINATION);
    let table = table(&mut driver);
    let next = table_of_size(0).set(flow_table_context::LEVEL.at(TABLE_CONTEXT), 1);
    let next = 1 << 24 | u64::from(driver.create(next));
    let destinations = |count: u64| {
        with_list(table, FORWARD, next).set(flow_context::DESTINATION_LIST_SIZE.at(ENTRY), count)
    };
    assert_eq!(status(&mut driver, destinations(most + 1)), BAD_PARAMETER);
    assert_eq!(status(&mut driver, destinations(most)), 0);
}

#[test]
fn a_new_entry_replaces_no_other() {
    let mut driver = driver();
    let table = table(&mut driver);
    driver.done(entry(table, 1), 8);
    assert_eq!(status(&mut driver, entry(table, 1)), BAD_PARAMETER);
    driver.done(entry(table, 2), 8);
    let delete = Input::new(0x938, 64)
        .set(set_fte_in::TABLE_ID, table.0.into())
        .set(set_fte_in::FLOW_INDEX, 1);
    driver.done(delete, 8);
    driver.done(entry(table, 1), 8);
}
