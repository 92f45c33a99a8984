//! Flow steering: tables, groups, entries. The rules are checked for consistency and kept; they decide about Ethernet
//! frames from a wire, and this front end's port has no Ethernet wire yet: RoCE packets reach their QPs by number.

use std::collections::{BTreeMap, BTreeSet};

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::Refusal;
use crate::pci::layout::ethernet::{
    create_flow_group_in, create_flow_table_in, destroy_flow_group_in, flow_context,
    flow_table_context, set_flow_table_root_in, set_fte_in,
};

type Done = Result<(), Refusal>;

const TABLE_CONTEXT: usize = 0xc0;
const ENTRY_CONTEXT: usize = 0x200;

#[derive(Debug)]
struct Table {
    kind: u8,
    size: u64,
    groups: BTreeMap<u32, std::ops::RangeInclusive<u64>>,
    entries: BTreeSet<u64>,
}

/// All flow tables.
#[derive(Debug, Default)]
pub(super) struct FlowTables {
    tables: BTreeMap<u32, Table>,
    last_table: u32,
    last_group: u32,
}

impl FlowTables {
    pub(super) fn len(&self) -> usize {
        self.tables.len()
    }

    /// The table that a command names by type and number, at the same places in all of them.
    fn find(&mut self, command: &Command<'_>) -> Result<&mut Table, Refusal> {
        let number = command.get32(create_flow_group_in::TABLE_ID);
        let kind = command.get(create_flow_group_in::TABLE_TYPE) as u8;
        let table = self.tables.get_mut(&number).filter(|table| table.kind == kind);
        table.ok_or_else(|| Refusal::no_such("flow table", number))
    }
}

/// CREATE_FLOW_TABLE.
pub(super) fn create_table(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let kind = command.get(create_flow_table_in::TABLE_TYPE) as u8;
    if kind != NIC_RECEIVE {
        return Err(Refusal::parameter("table_type", u64::from(kind)));
    }
    let log_size = command.get(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT));
    if log_size > 24 {
        return Err(Refusal::parameter("log_size", log_size));
    }
    let flows = &mut firmware.ethernet.flows;
    flows.last_table += 1;
    let table =
        Table { kind, size: 1 << log_size, groups: BTreeMap::new(), entries: BTreeSet::new() };
    flows.tables.insert(flows.last_table, table);
    reply.set_number(flows.last_table);
    Ok(())
}

/// Table type: reception by the NIC.
const NIC_RECEIVE: u8 = 0;

/// DESTROY_FLOW_TABLE.
pub(super) fn destroy_table(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let number = command.get32(create_flow_group_in::TABLE_ID);
    let table = firmware.ethernet.flows.find(command)?;
    if !table.groups.is_empty() {
        return Err(Refusal::busy("flow table", number));
    }
    firmware.ethernet.flows.tables.remove(&number);
    Ok(())
}

/// MODIFY_FLOW_TABLE: where packets go that match nothing.
pub(super) fn modify_table(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    firmware.ethernet.flows.find(command).map(|_| ())
}

/// SET_FLOW_TABLE_ROOT. Operation 1 resets it, table 0 is none.
pub(super) fn set_root(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    if command.get(set_flow_table_root_in::TABLE_ID) == 0 {
        return Ok(());
    }
    firmware.ethernet.flows.find(command).map(|_| ())
}

/// CREATE_FLOW_GROUP.
pub(super) fn create_group(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    let first = command.get(create_flow_group_in::START_FLOW_INDEX);
    let last = command.get(create_flow_group_in::END_FLOW_INDEX);
    let flows = &mut firmware.ethernet.flows;
    let number = flows.last_group + 1;
    let table = flows.find(command)?;
    let overlaps =
        table.groups.values().any(|group| first <= *group.end() && *group.start() <= last);
    if first > last || last >= table.size || overlaps {
        return Err(Refusal::parameter("end_flow_index", last));
    }
    table.groups.insert(number, first..=last);
    flows.last_group = number;
    reply.set_number(number);
    Ok(())
}

/// DESTROY_FLOW_GROUP.
pub(super) fn destroy_group(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let number = command.get32(destroy_flow_group_in::GROUP_ID);
    let table = firmware.ethernet.flows.find(command)?;
    let group = table.groups.get(&number).ok_or_else(|| Refusal::no_such("flow group", number))?;
    if table.entries.range(group.clone()).next().is_some() {
        return Err(Refusal::busy("flow group", number));
    }
    table.groups.remove(&number);
    Ok(())
}

/// SET_FLOW_TABLE_ENTRY.
pub(super) fn set_entry(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let index = command.get(set_fte_in::FLOW_INDEX);
    let number = command.get32(flow_context::GROUP_ID.at(ENTRY_CONTEXT));
    let table = firmware.ethernet.flows.find(command)?;
    let group = table.groups.get(&number).ok_or_else(|| Refusal::no_such("flow group", number))?;
    if !group.contains(&index) {
        return Err(Refusal::parameter("flow_index", index));
    }
    table.entries.insert(index);
    Ok(())
}

/// DELETE_FLOW_TABLE_ENTRY.
pub(super) fn delete_entry(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    let index = command.get(set_fte_in::FLOW_INDEX);
    let removed = firmware.ethernet.flows.find(command)?.entries.remove(&index);
    if removed { Ok(()) } else { Err(Refusal::no_such("flow table entry", index as u32)) }
}
