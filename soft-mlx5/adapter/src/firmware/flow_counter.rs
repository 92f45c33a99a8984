//! Flow counters: what entries of flow tables, and rules of the core, count.

use std::collections::BTreeMap;

use super::Firmware;
use super::command::Command;
use super::numbers::Numbers;
use super::refusal::{Done, Refusal};
use crate::core::{Core, FlowHits, FlowId};
use crate::firmware::bits::Field;
use crate::firmware::layout::ethernet::{flow_counter, query_flow_counter_in, traffic_counter};

/// log2 of the most counters. Linux takes groups of four
/// counters when it reads the ones of its own network device (`mlx5_fc_stats_query`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_counters.c).
pub const LOG_COUNTERS: u32 = 12;
/// As [`LOG_COUNTERS`], of one query.
pub const LOG_BULK: u32 = 8;

/// Where QUERY_FLOW_COUNTER's output has the counters, and the bits of each.
const COUNTS: usize = 0x80;
const COUNT_BITS: usize = 128;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u64,
    octets: u64,
}

/// All flow counters.
#[derive(Debug)]
pub struct FlowCounters {
    numbers: Numbers,
    counts: BTreeMap<u32, Count>,
    /// Rules of the core with their counter, and with the hits that it has already counted.
    rules: BTreeMap<FlowId, (u32, FlowHits)>,
}

impl Default for FlowCounters {
    fn default() -> Self {
        let numbers = Numbers::new("flow counter", 1..1 << LOG_COUNTERS);
        Self { numbers, counts: BTreeMap::new(), rules: BTreeMap::new() }
    }
}

impl FlowCounters {
    pub(super) fn in_use(&self) -> usize {
        self.numbers.in_use()
    }

    /// # Errors
    /// A refusal if there is no such counter.
    pub fn check(&self, number: u32) -> Done {
        self.numbers.check(number)
    }

    /// Counts the frames of a rule from now on.
    pub fn bind(&mut self, rule: FlowId, number: u32) {
        self.rules.insert(rule, (number, FlowHits::default()));
    }

    /// Counts the last frames of a rule, which is about to end.
    pub fn unbind(&mut self, rule: FlowId, core: &Core) {
        self.collect(core);
        self.rules.remove(&rule);
    }

    /// Adds what the core's rules have taken since the last time.
    fn collect(&mut self, core: &Core) {
        for (rule, (number, counted)) in &mut self.rules {
            let Ok(hits) = core.flow_hits(*rule) else { continue };
            let count = self.counts.entry(*number).or_default();
            count.packets += hits.frames - counted.frames;
            count.octets += hits.bytes - counted.bytes;
            *counted = hits;
        }
    }

    /// Counts a frame in each of these counters.
    pub fn count(&mut self, numbers: &[u32], octets: u64) {
        for number in numbers {
            let count = self.counts.entry(*number).or_default();
            count.packets += 1;
            count.octets += octets;
        }
    }
}

/// ALLOC_FLOW_COUNTER.
pub(super) fn allocate(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let bulk = command.get(flow_counter::BULK);
    if bulk != 0 {
        return Err(Refusal::parameter("flow_counter_bulk", bulk));
    }
    let number = firmware.objects.flow_counters.numbers.allocate()?;
    command.reply.set(flow_counter::ID, number.into());
    Ok(())
}

/// DEALLOC_FLOW_COUNTER.
pub(super) fn free(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = command.get32(flow_counter::ID);
    let counters = &mut firmware.objects.flow_counters;
    if counters.rules.values().any(|(used, _)| *used == number) {
        return Err(Refusal::busy("flow counter", number));
    }
    counters.numbers.free(number)?;
    counters.counts.remove(&number);
    Ok(())
}

/// QUERY_FLOW_COUNTER of one counter, or of successive numbers, in which those without a counter
/// are zero.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let first = command.get32(query_flow_counter_in::FLOW_COUNTER_ID);
    let bulk = command.get32(query_flow_counter_in::NUM_OF_COUNTERS);
    // A user context has no successive counters, because it allocates them singly.
    let most = if command.user_context() == 0 { 1 << LOG_BULK } else { 1 };
    if bulk > most {
        return Err(Refusal::parameter("num_of_counters", bulk.into()));
    }
    let counters = &mut firmware.objects.flow_counters;
    counters.collect(firmware.core);
    if bulk == 0 {
        counters.check(first)?;
    }
    let length = bulk.max(1) as usize;
    command.reply.need((COUNTS + length * COUNT_BITS) / 8)?;
    let clear = command.is_set(query_flow_counter_in::CLEAR);
    for (index, number) in (first..=u32::MAX).take(length).enumerate() {
        let Some(count) = counters.counts.get_mut(&number) else { continue };
        let mut set = |field: Field, value| {
            command.reply.set(field.at(COUNTS + index * COUNT_BITS), value);
        };
        set(traffic_counter::PACKETS, count.packets);
        set(traffic_counter::OCTETS, count.octets);
        if clear {
            *count = Count::default();
        }
    }
    Ok(())
}
