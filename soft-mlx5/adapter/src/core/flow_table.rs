//! Flow tables, organized as in mlx5_core: entries of one mask in a group, rules of one match in an
//! entry. Kernel: `mlx5_add_flow_rules`, `check_conflicting_ftes` and `alloc_auto_flow_group` in
//! net/ethernet/mellanox/mlx5/core/fs_core.c.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::flow::{FlowFields, FlowId, FlowRule};
use super::{CoreError, Qpn};

/// Entries of a table (`MLX5_FS_MAX_ENTRIES` of mlx5_ib).
const TABLE_SIZE: u32 = 1 << 16;
/// Groups that get an equal share of the table (`MLX5_FS_MAX_TYPES`); later groups have one entry.
const LARGE_GROUPS: usize = 6;
/// The size of a share. One more share is left for the groups of one entry.
const LARGE_GROUP: u32 = TABLE_SIZE / (LARGE_GROUPS as u32 + 1);

/// The rules of one priority.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    /// By index of their first entry. If several match a frame, the lowest index wins.
    groups: BTreeMap<u32, Group>,
}

#[derive(Debug)]
struct Group {
    size: u32,
    mask: FlowFields,
    entries: Vec<Entry>,
}

/// An entry: the handling of frames with this match.
#[derive(Debug)]
pub(super) struct Entry {
    value: FlowFields,
    /// Tag of the rule that made the entry; 0 if it had none.
    flow_tag: u32,
    drops: bool,
    passes_on: bool,
    /// The rules of this match, each with its QP.
    rules: Vec<(FlowId, Option<Qpn>)>,
}

impl FlowTable {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds a rule: to the entry of its match, or as a new entry.
    pub(super) fn add(&mut self, id: FlowId, rule: &FlowRule) -> Result<(), CoreError> {
        let mut same_mask = self.groups.values_mut().filter(|group| group.mask == rule.mask);
        let mut entries = same_mask.by_ref().flat_map(|group| &mut group.entries);
        if let Some(entry) = entries.find(|entry| entry.value == rule.value) {
            return entry.join(id, rule);
        }
        let entry = Entry::new(id, rule);
        let free = |group: &&mut Group| {
            group.mask == rule.mask && group.entries.len() < group.size as usize
        };
        match self.groups.values_mut().find(free) {
            Some(group) => group.entries.push(entry),
            None => self.add_group(rule.mask, entry)?,
        }
        Ok(())
    }

    /// A new group takes the first gap of its size.
    fn add_group(&mut self, mask: FlowFields, entry: Entry) -> Result<(), CoreError> {
        let large = self.groups.values().filter(|group| group.size == LARGE_GROUP).count();
        let size = if large < LARGE_GROUPS { LARGE_GROUP } else { 1 };
        let mut start = 0;
        for (first, group) in &self.groups {
            if start + size <= *first {
                break;
            }
            start = first + group.size;
        }
        if start + size > TABLE_SIZE {
            return Err(CoreError::FlowTableFull);
        }
        self.groups.insert(start, Group { size, mask, entries: vec![entry] });
        Ok(())
    }

    /// Removes a rule. An entry without rules is removed, and so is a group without entries.
    pub(super) fn remove(&mut self, id: FlowId, rule: &FlowRule) {
        let same_mask = self.groups.values_mut().filter(|group| group.mask == rule.mask);
        for group in same_mask {
            group.entries.iter_mut().for_each(|entry| entry.rules.retain(|rule| rule.0 != id));
            group.entries.retain(|entry| !entry.rules.is_empty());
        }
        self.groups.retain(|_, group| !group.entries.is_empty());
    }

    /// The entry that matches a frame.
    pub(super) fn find(&self, fields: &FlowFields) -> Option<&Entry> {
        self.groups.values().find_map(|group| {
            let matches = |entry: &&Entry| takes(fields, &entry.value, &group.mask);
            group.entries.iter().find(matches)
        })
    }
}

fn takes(fields: &FlowFields, value: &FlowFields, mask: &FlowFields) -> bool {
    let bytes = fields.as_bytes().iter().zip(value.as_bytes()).zip(mask.as_bytes());
    bytes.into_iter().all(|((found, wanted), mask)| found & mask == *wanted)
}

impl Entry {
    fn new(id: FlowId, rule: &FlowRule) -> Self {
        Self {
            value: rule.value,
            flow_tag: rule.flow_tag.unwrap_or(0),
            drops: rule.target.is_none(),
            passes_on: rule.passes_on,
            rules: vec![(id, rule.target)],
        }
    }

    /// A rule without a tag gets the entry's tag. Refuses a rule with a different tag, and one that
    /// drops frames which the entry delivers, or the reverse (`check_conflicting_ftes`).
    fn join(&mut self, id: FlowId, rule: &FlowRule) -> Result<(), CoreError> {
        if self.drops != rule.target.is_none() {
            return Err(CoreError::FlowConflict("one drops the frames that the other delivers"));
        }
        if rule.flow_tag.is_some_and(|tag| tag != self.flow_tag) {
            return Err(CoreError::FlowConflict("they have different flow tags"));
        }
        self.passes_on |= rule.passes_on;
        self.rules.push((id, rule.target));
        Ok(())
    }

    pub(super) fn passes_on(&self) -> bool {
        self.passes_on
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.rules.iter().map(|rule| rule.0)
    }

    /// The QPs that get a frame, each once even if several rules name it (`find_flow_rule`), with
    /// the flow tag.
    pub(super) fn receivers(&self) -> impl Iterator<Item = (Qpn, u32)> + '_ {
        let targets = self.rules.iter().enumerate().filter_map(|(at, rule)| {
            let first = self.rules[..at].iter().all(|earlier| earlier.1 != rule.1);
            rule.1.filter(|_| first)
        });
        targets.map(|qpn| (qpn, self.flow_tag))
    }
}

#[cfg(test)]
mod tests;
