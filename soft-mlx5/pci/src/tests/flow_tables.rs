//! Flow tables: what the commands about them refuse.

use super::driver::{Driver, Input};
use super::frames::pair;
use crate::layout::command::header;
use crate::layout::ethernet::{create_flow_group_in, flow_context, flow_table_context, set_fte_in};

const TABLE_CONTEXT: usize = 0xc0;
const ENTRY: usize = 0x200;
const DROP: u64 = 2;
const BAD_PARAMETER: u64 = 3;

fn driver() -> Driver {
    pair().into_iter().next().unwrap()
}

/// A table of four entries, with one group that has them all. Returns their numbers.
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
