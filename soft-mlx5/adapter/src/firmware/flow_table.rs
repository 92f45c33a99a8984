//! Flow steering: tables, groups, entries, and the route of a frame through them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use super::command::Command;
use super::flow_counter::FlowCounters;
use super::match_value::{MATCH_BYTES, MatchValue, SECTION};
use super::record::next_number;
use super::refusal::{Done, Refusal};
use super::{Firmware, Objects};
use crate::core::{FrameTables, ObjectId, ObjectKind, Qpn, Steered};
use crate::firmware::bits::{Field, field};
use crate::firmware::layout::command::header;
use crate::firmware::layout::ethernet::{
    create_flow_group_in, create_flow_table_in, destroy_flow_group_in, flow_context,
    flow_table_context, modify_flow_table_in, set_flow_table_root_in, set_fte_in,
};

/// Offsets in commands, in bits: the table's context, the group's criteria, the entry's context,
/// and the value and destinations in that context.
const TABLE_CONTEXT: usize = 0xc0;
const CRITERIA: usize = 0x200;
const ENTRY_CONTEXT: usize = 0x200;
const VALUE: usize = ENTRY_CONTEXT + 0x200;
const DESTINATIONS: usize = ENTRY_CONTEXT + 0x1800;
const DESTINATION_BITS: usize = 64;

/// Table type: reception by the NIC.
const NIC_RECEIVE: u8 = 0;

/// The action for frames that match no entry, `MLX5_FLOW_TABLE_MISS_ACTION_*`.
const MISS_FORWARD: u64 = 1;

/// Actions, `MLX5_FLOW_CONTEXT_ACTION_*`.
const ALLOW: u16 = 1;
const DROP: u16 = 2;
const FORWARD: u16 = 4;
const COUNT: u16 = 8;

/// Kinds of destination, `MLX5_IFC_FLOW_DESTINATION_TYPE_*`.
const TO_TABLE: u64 = 1;
const TO_TIR: u64 = 2;

/// Operations of SET_FLOW_TABLE_ROOT and SET_FLOW_TABLE_ENTRY.
const RESET_ROOT: u64 = 1;
const NEW_ENTRY: u64 = 0;
const MODIFY_ENTRY: u64 = 1;

/// The properties that SET_FLOW_TABLE_ENTRY may modify, `MLX5_SET_FTE_MODIFY_ENABLE_MASK_*`.
const CHANGE_ACTION: u64 = 1;
const CHANGE_TAG: u64 = 2;
const CHANGE_DESTINATIONS: u64 = 4;
const CHANGE_COUNTERS: u64 = 8;

/// Levels of tables are below this. A table leads only to tables of higher levels, as
/// `dest_is_valid` demands (drivers/net/ethernet/mellanox/mlx5/core/fs_core.c). The last level is
/// one less than the announced number (`dr_table_create_sw_owned_tbl`, steering/dr_table.c in the
/// same place).
pub(super) const LEVELS: u64 = 128;
/// log2 of the most entries of a table.
pub(super) const LOG_SIZE: u32 = 20;
/// log2 of the most tables.
pub(super) const LOG_TABLES: u32 = 16;
/// log2 of the most entries of all tables.
pub(super) const LOG_ENTRIES: u32 = 16;
/// log2 of the most destinations of an entry.
pub(super) const LOG_DESTINATIONS: u32 = 6;
/// log2 of the most counters of an entry.
pub(super) const LOG_ENTRY_COUNTERS: u32 = 6;

/// Most tables that a frame visits. One path has at most [`LEVELS`] tables, but paths fork if an
/// entry has several destinations.
const MAX_TABLES: usize = 256;

#[derive(Debug)]
struct Group {
    range: RangeInclusive<u64>,
    mask: MatchValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Table(u32),
    Tir(u32),
}

#[derive(Debug)]
struct Entry {
    group: u32,
    value: MatchValue,
    tag: u32,
    targets: Targets,
}

/// The destinations and counters of an entry.
#[derive(Debug)]
struct Targets {
    destinations: Vec<Destination>,
    counters: Vec<u32>,
}

impl Targets {
    /// The objects that it refers to.
    fn uses(&self) -> Vec<ObjectId> {
        let destinations = self.destinations.iter().map(|destination| match *destination {
            Destination::Table(table) => (ObjectKind::FlowTable, table),
            Destination::Tir(tir) => (ObjectKind::Tir, tir),
        });
        let counters = self.counters.iter().map(|counter| (ObjectKind::FlowCounter, *counter));
        destinations.chain(counters).collect()
    }
}

#[derive(Debug)]
struct Table {
    /// The user context that has created it; 0 for the driver.
    owner: u16,
    kind: u8,
    level: u64,
    size: u64,
    /// The next table of frames that match no entry.
    miss: Option<u32>,
    groups: BTreeMap<u32, Group>,
    entries: BTreeMap<u64, Entry>,
}

impl Table {
    /// Whether a command may name the table. The driver may name all.
    fn belongs_to(&self, command: &Command<'_>) -> bool {
        [0, self.owner].contains(&command.user_context())
    }

    /// The number of a new group.
    fn next_group(&self, last: u32) -> u32 {
        next_number(last, |number| self.groups.contains_key(&number))
    }

    /// The matching entry: the one with the lowest index.
    fn find(&self, frame: &MatchValue) -> Option<&Entry> {
        self.entries.values().find(|entry| {
            let mask = self.groups.get(&entry.group).map(|group| &group.mask);
            mask.is_some_and(|mask| frame.agrees(&entry.value, mask))
        })
    }
}

/// A TIR that a frame has reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    tir: u32,
    flow_tag: u32,
}

impl Objects {
    /// The receive queue of a TIR for a frame. The TIR of a user context leads only to queues of
    /// the same context, even if a command has made it name another one.
    pub fn receiver(&self, reached: &Reached, frame: &[u8]) -> Option<(Qpn, Steered)> {
        let (queue, hash) = self.choose(reached.tir, frame)?;
        let owner = self.owners.get(&(ObjectKind::Tir, reached.tir));
        let is_theirs = owner.is_none() || owner == self.owners.get(&queue.object());
        let steered = Steered { flow_tag: reached.flow_tag, hash };
        (is_theirs && self.is_receive_queue(queue.0)).then_some((queue, steered))
    }
}

/// All flow tables.
#[derive(Debug, Default)]
pub struct FlowTables {
    tables: BTreeMap<u32, Table>,
    root: Option<u32>,
    last_table: u32,
    last_group: u32,
    /// Entries of all tables.
    entries: usize,
}

impl FlowTables {
    pub(super) fn len(&self) -> usize {
        self.tables.len()
    }

    /// The number of a new table.
    fn next_table(&self) -> Result<u32, Refusal> {
        if self.tables.len() >> LOG_TABLES != 0 {
            return Err(Refusal::limit("flow table"));
        }
        Ok(next_number(self.last_table, |number| self.tables.contains_key(&number)))
    }

    /// Whether another entry may be made.
    fn check_entries(&self) -> Done {
        let is_full = self.entries >> LOG_ENTRIES != 0;
        if is_full { Err(Refusal::limit("flow table entry")) } else { Ok(()) }
    }

    /// The table that a command names by type and number, which all commands have at the same
    /// offsets.
    fn find(&self, command: &Command<'_>) -> Result<&Table, Refusal> {
        let number = command.get32(create_flow_group_in::TABLE_ID);
        let kind = command.get(create_flow_group_in::TABLE_TYPE) as u8;
        let table = self.tables.get(&number);
        let table = table.filter(|table| table.kind == kind && table.belongs_to(command));
        table.ok_or_else(|| Refusal::no_such("flow table", number))
    }

    /// As [`find`](Self::find).
    fn find_mut(&mut self, command: &Command<'_>) -> Result<&mut Table, Refusal> {
        self.find(command)?;
        let number = command.get32(create_flow_group_in::TABLE_ID);
        self.tables.get_mut(&number).ok_or_else(|| Refusal::no_such("flow table", number))
    }

    /// The number of a table that follows one of this level.
    fn next(&self, command: &Command<'_>, level: u64, number: u32) -> Result<u32, Refusal> {
        let table = self.tables.get(&number).filter(|table| table.belongs_to(command));
        let table = table.ok_or_else(|| Refusal::no_such("flow table", number))?;
        if table.level > level { Ok(number) } else { Err(Refusal::parameter("level", table.level)) }
    }

    /// Whether a user context has a table.
    pub(super) fn has_owner(&self, uid: u16) -> bool {
        self.tables.values().any(|table| table.owner == uid)
    }

    /// The TIRs that a frame goes to from the root on. The frame is counted.
    pub fn route(&self, frame: &[u8], counters: &mut FlowCounters) -> Vec<Reached> {
        self.root.map_or_else(Vec::new, |root| self.route_from(root, 0, frame, counters))
    }

    /// As [`route`](Self::route), from a table that a frame with this flow tag has reached.
    fn route_from(
        &self,
        table: u32,
        flow_tag: u32,
        frame: &[u8],
        counters: &mut FlowCounters,
    ) -> Vec<Reached> {
        let value = MatchValue::of(frame);
        let mut tirs = Vec::new();
        let mut pending = vec![(table, flow_tag)];
        for _ in 0..MAX_TABLES {
            let Some((number, tag)) = pending.pop() else { break };
            let Some(table) = self.tables.get(&number) else { continue };
            let Some(entry) = table.find(&value) else {
                pending.extend(table.miss.map(|miss| (miss, tag)));
                continue;
            };
            let tag = if entry.tag == 0 { tag } else { entry.tag };
            counters.count(&entry.targets.counters, frame.len() as u64);
            for destination in &entry.targets.destinations {
                match *destination {
                    Destination::Table(next) => pending.push((next, tag)),
                    Destination::Tir(tir) => {
                        tirs.push(Reached { tir, flow_tag: tag });
                    }
                }
            }
        }
        tirs
    }
}

impl FrameTables for Mutex<Objects> {
    fn route(&self, table: u32, flow_tag: u32, frame: &[u8]) -> Vec<(Qpn, Steered)> {
        let objects = &mut *self.lock().unwrap_or_else(PoisonError::into_inner);
        let tirs = objects.flows.route_from(table, flow_tag, frame, &mut objects.flow_counters);
        tirs.iter().filter_map(|reached| objects.receiver(reached, frame)).collect()
    }
}

/// The miss table in the context of a table of this level.
fn miss(flows: &FlowTables, command: &Command<'_>, level: u64) -> Result<Option<u32>, Refusal> {
    match command.get(flow_table_context::TABLE_MISS_ACTION.at(TABLE_CONTEXT)) {
        MISS_FORWARD => {
            let next = command.get32(flow_table_context::TABLE_MISS_ID.at(TABLE_CONTEXT));
            flows.next(command, level, next).map(Some)
        }
        _ => Ok(None),
    }
}

/// The miss table as an object.
fn next(miss: Option<u32>) -> Option<ObjectId> {
    miss.map(|table| (ObjectKind::FlowTable, table))
}

/// CREATE_FLOW_TABLE.
pub(super) fn create_table(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let kind = command.get(create_flow_table_in::TABLE_TYPE) as u8;
    if kind != NIC_RECEIVE {
        return Err(Refusal::parameter("table_type", u64::from(kind)));
    }
    let log_size = command.get32(flow_table_context::LOG_SIZE.at(TABLE_CONTEXT));
    if log_size > LOG_SIZE {
        return Err(Refusal::parameter("log_size", log_size.into()));
    }
    let level = command.get(flow_table_context::LEVEL.at(TABLE_CONTEXT));
    if level >= LEVELS {
        return Err(Refusal::parameter("level", level));
    }
    let flows = &mut firmware.objects.flows;
    let miss = miss(flows, command, level)?;
    let number = flows.next_table()?;
    let owner = command.user_context();
    let (groups, entries) = Default::default();
    let table = Table { owner, kind, level, size: 1 << log_size, miss, groups, entries };
    flows.tables.insert(number, table);
    flows.last_table = number;
    firmware.objects.references.add(next(miss));
    command.reply.set_number(number);
    Ok(())
}

/// DESTROY_FLOW_TABLE. The driver destroys the root table without resetting the root first.
pub(super) fn destroy_table(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = command.get32(create_flow_group_in::TABLE_ID);
    let flows = &mut firmware.objects.flows;
    let table = flows.find(command)?;
    if !table.groups.is_empty() {
        return Err(Refusal::busy("flow table", number));
    }
    firmware.objects.references.check_unused((ObjectKind::FlowTable, number))?;
    firmware.objects.references.remove(next(table.miss));
    flows.root = flows.root.filter(|root| *root != number);
    flows.tables.remove(&number);
    Ok(())
}

/// MODIFY_FLOW_TABLE: sets the miss table.
pub(super) fn modify_table(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let select = command.get(modify_flow_table_in::MODIFY_FIELD_SELECT);
    if select != 1 {
        return Err(Refusal::parameter("modify_field_select", select));
    }
    let flows = &mut firmware.objects.flows;
    let table = flows.find(command)?;
    let miss = miss(flows, command, table.level)?;
    let before = std::mem::replace(&mut flows.find_mut(command)?.miss, miss);
    firmware.objects.references.remove(next(before));
    firmware.objects.references.add(next(miss));
    Ok(())
}

/// SET_FLOW_TABLE_ROOT.
pub(super) fn set_root(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let flows = &mut firmware.objects.flows;
    let number = command.get32(set_flow_table_root_in::TABLE_ID);
    if command.get(header::OP_MOD) == RESET_ROOT || number == 0 {
        flows.root = None;
        return Ok(());
    }
    flows.find(command)?;
    flows.root = Some(number);
    Ok(())
}

/// The match parameter at bit `bit`, with only the sections that `enabled` names.
fn match_parameter(command: &Command<'_>, bit: usize, enabled: u64) -> MatchValue {
    let bytes = command.structure(bit);
    let bytes = &bytes[..bytes.len().min(MATCH_BYTES)];
    let mut value = MatchValue::default();
    for (index, section) in bytes.chunks(SECTION).enumerate() {
        if enabled >> index & 1 == 1 {
            value.0[index * SECTION..][..section.len()].copy_from_slice(section);
        }
    }
    value
}

/// CREATE_FLOW_GROUP.
pub(super) fn create_group(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let first = command.get(create_flow_group_in::START_FLOW_INDEX);
    let last = command.get(create_flow_group_in::END_FLOW_INDEX);
    let enabled = command.get(create_flow_group_in::MATCH_CRITERIA_ENABLE);
    let flows = &mut firmware.objects.flows;
    let last_group = flows.last_group;
    let table = flows.find_mut(command)?;
    let overlaps = table
        .groups
        .values()
        .any(|group| first <= *group.range.end() && *group.range.start() <= last);
    if first > last || last >= table.size || overlaps {
        return Err(Refusal::parameter("end_flow_index", last));
    }
    let number = table.next_group(last_group);
    let mask = match_parameter(command, CRITERIA, enabled);
    table.groups.insert(number, Group { range: first..=last, mask });
    flows.last_group = number;
    command.reply.set_number(number);
    Ok(())
}

/// DESTROY_FLOW_GROUP.
pub(super) fn destroy_group(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = command.get32(destroy_flow_group_in::GROUP_ID);
    let table = firmware.objects.flows.find_mut(command)?;
    let group = table.groups.get(&number).ok_or_else(|| Refusal::no_such("flow group", number))?;
    if table.entries.range(group.range.clone()).next().is_some() {
        return Err(Refusal::busy("flow group", number));
    }
    table.groups.remove(&number);
    Ok(())
}

/// The destinations and counters of an entry, all of which must exist.
fn targets(firmware: &Firmware<'_>, command: &Command<'_>) -> Result<Targets, Refusal> {
    let action = command.get(flow_context::ACTION.at(ENTRY_CONTEXT)) as u16;
    if action & !(ALLOW | DROP | FORWARD | COUNT) != 0 {
        return Err(Refusal::parameter("action", u64::from(action)));
    }
    let listed = |with: u16, size: Field, log_most| match action & with {
        0 => Ok(0),
        _ => length(command, size, log_most),
    };
    let forward = listed(FORWARD, flow_context::DESTINATION_LIST_SIZE, LOG_DESTINATIONS)?;
    let all = forward + listed(COUNT, flow_context::FLOW_COUNTER_LIST_SIZE, LOG_ENTRY_COUNTERS)?;
    command.need((DESTINATIONS + all * DESTINATION_BITS) / 8)?;
    let destinations = (0..forward).map(|index| destination(firmware, command, index));
    let counters = (forward..all).map(|index| counter(firmware, command, index));
    Ok(Targets {
        destinations: destinations.collect::<Result<_, _>>()?,
        counters: counters.collect::<Result<_, _>>()?,
    })
}

/// The length of a list in an entry's context.
fn length(command: &Command<'_>, size: Field, log_most: u32) -> Result<usize, Refusal> {
    let length = command.get32(size.at(ENTRY_CONTEXT));
    if length > 1 << log_most {
        return Err(Refusal::parameter("list_size", length.into()));
    }
    Ok(length as usize)
}

fn destination(
    firmware: &Firmware<'_>,
    command: &Command<'_>,
    index: usize,
) -> Result<Destination, Refusal> {
    let at = DESTINATIONS + index * DESTINATION_BITS;
    let number = command.get32(field(at + 8, 24));
    match command.get(field(at, 8)) {
        TO_TABLE => {
            let flows = &firmware.objects.flows;
            let level = flows.find(command)?.level;
            flows.next(command, level, number).map(Destination::Table)
        }
        TO_TIR => {
            firmware.check_references(command, &[(ObjectKind::Tir, number)])?;
            Ok(Destination::Tir(number))
        }
        other => Err(Refusal::parameter("destination_type", other)),
    }
}

/// Counters follow the destinations in the same list (`mlx5_cmd_set_fte`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_cmd.c).
fn counter(firmware: &Firmware<'_>, command: &Command<'_>, index: usize) -> Result<u32, Refusal> {
    let number = command.get32(field(DESTINATIONS + index * DESTINATION_BITS, 32));
    firmware.objects.flow_counters.bulk_of(command, number).map(|_| number)
}

/// SET_FLOW_TABLE_ENTRY: adds an entry, or changes an existing one.
pub(super) fn set_entry(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let operation = command.get(header::OP_MOD);
    if ![NEW_ENTRY, MODIFY_ENTRY].contains(&operation) {
        return Err(Refusal::parameter("op_mod", operation));
    }
    let index = command.get(set_fte_in::FLOW_INDEX);
    let number = command.get32(flow_context::GROUP_ID.at(ENTRY_CONTEXT));
    let targets = targets(firmware, command)?;
    let tag = command.get32(flow_context::FLOW_TAG.at(ENTRY_CONTEXT));
    let has_room = firmware.objects.flows.check_entries();
    let references = &mut firmware.objects.references;
    let table = firmware.objects.flows.find_mut(command)?;
    if operation == MODIFY_ENTRY {
        let entry = table.entries.get_mut(&index);
        let entry = entry.ok_or_else(|| Refusal::no_such("flow table entry", index as u32))?;
        let before = entry.targets.uses();
        change_entry(entry, command.get(set_fte_in::MODIFY_ENABLE_MASK), tag, targets)?;
        references.remove(before);
        references.add(entry.targets.uses());
        return Ok(());
    }
    let group = table.groups.get(&number).ok_or_else(|| Refusal::no_such("flow group", number))?;
    if !group.range.contains(&index) || table.entries.contains_key(&index) {
        return Err(Refusal::parameter("flow_index", index));
    }
    has_room?;
    let value = match_parameter(command, VALUE, u64::MAX);
    references.add(targets.uses());
    table.entries.insert(index, Entry { group: number, value, tag, targets });
    firmware.objects.flows.entries += 1;
    Ok(())
}

fn change_entry(entry: &mut Entry, mask: u64, tag: u32, targets: Targets) -> Done {
    if mask & !(CHANGE_ACTION | CHANGE_TAG | CHANGE_DESTINATIONS | CHANGE_COUNTERS) != 0 {
        return Err(Refusal::parameter("modify_enable_mask", mask));
    }
    if mask & CHANGE_TAG != 0 {
        entry.tag = tag;
    }
    if mask & (CHANGE_DESTINATIONS | CHANGE_ACTION) != 0 {
        entry.targets.destinations = targets.destinations;
    }
    if mask & (CHANGE_COUNTERS | CHANGE_ACTION) != 0 {
        entry.targets.counters = targets.counters;
    }
    Ok(())
}

/// DELETE_FLOW_TABLE_ENTRY.
pub(super) fn delete_entry(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let index = command.get(set_fte_in::FLOW_INDEX);
    let removed = firmware.objects.flows.find_mut(command)?.entries.remove(&index);
    let entry = removed.ok_or_else(|| Refusal::no_such("flow table entry", index as u32))?;
    firmware.objects.flows.entries -= 1;
    firmware.objects.references.remove(entry.targets.uses());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Pdn;
    use crate::firmware::layout::ethernet::tirc;

    fn table() -> Table {
        let (groups, entries) = Default::default();
        Table { owner: 0, kind: NIC_RECEIVE, level: 0, size: 4, miss: None, groups, entries }
    }

    fn group() -> Group {
        Group { range: 0..=3, mask: MatchValue::default() }
    }

    #[test]
    fn the_tir_of_a_context_leads_to_no_queue_of_another() {
        let mut objects = Objects::new(Pdn(1));
        let queue = Qpn(7);
        objects.ethernet.receive.insert(queue.0, Vec::new());
        let mut context = vec![0; 240];
        tirc::INLINE_RQN.set(&mut context, queue.0.into());
        let tir = objects.tir.insert(ObjectKind::Tir, context).unwrap();
        for (uid, other, arrives) in [
            (None, None, true),
            (None, Some(1), true),
            (Some(1), Some(1), true),
            (Some(1), Some(2), false),
            (Some(1), None, false),
        ] {
            objects.owners.clear();
            objects.owners.extend(uid.map(|uid| ((ObjectKind::Tir, tir), uid)));
            objects.owners.extend(other.map(|uid| (queue.object(), uid)));
            let received = objects.receiver(&Reached { tir, flow_tag: 0 }, &[]);
            assert_eq!(received.is_some(), arrives, "{uid:?}, {other:?}");
        }
    }

    #[test]
    fn tables_have_a_limit() {
        let mut flows = FlowTables::default();
        flows.tables.extend((1..1 << LOG_TABLES).map(|number| (number, table())));
        assert_eq!(flows.next_table(), Ok(1 << LOG_TABLES));
        flows.tables.insert(1 << LOG_TABLES, table());
        assert_eq!(flows.next_table(), Err(Refusal::limit("flow table")));
    }

    #[test]
    fn numbers_stay_in_their_fields() {
        let mut flows = FlowTables { last_table: 0xff_fffe, ..FlowTables::default() };
        assert_eq!(flows.next_table(), Ok(0xff_ffff));
        flows.tables.extend([0xff_ffff, 1].map(|number| (number, table())));
        assert_eq!(flows.next_table(), Ok(2), "the first is used");

        let mut table = table();
        assert_eq!(table.next_group(0xff_ffff), 1);
        table.groups.extend([1, 2].map(|number| (number, group())));
        assert_eq!(table.next_group(0xff_ffff), 3);
    }
}
