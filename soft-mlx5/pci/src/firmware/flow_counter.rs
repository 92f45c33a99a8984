//! Flow counters: what entries of flow tables count.

use std::collections::BTreeMap;

use super::Firmware;
use super::command::Command;
use super::numbers::Numbers;
use super::refusal::{Done, Refusal};
use crate::bits::Field;
use crate::layout::ethernet::{flow_counter, query_flow_counter_in, traffic_counter};

/// log2 of the most counters, and of the most that one query reads. Linux takes groups of four
/// counters when it reads the ones of its own network device (`mlx5_fc_stats_query`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_counters.c).
pub(super) const LOG_COUNTERS: u32 = 12;
pub(super) const LOG_BULK: u32 = 8;

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
pub(super) struct FlowCounters {
    numbers: Numbers,
    counts: BTreeMap<u32, Count>,
}

impl Default for FlowCounters {
    fn default() -> Self {
        let numbers = Numbers::new("flow counter", 1..1 << LOG_COUNTERS);
        Self { numbers, counts: BTreeMap::new() }
    }
}

impl FlowCounters {
    pub(super) fn in_use(&self) -> usize {
        self.numbers.in_use()
    }

    pub(super) fn check(&self, number: u32) -> Done {
        self.numbers.check(number)
    }

    /// Counts a frame in each of these counters.
    pub(super) fn count(&mut self, numbers: &[u32], octets: u64) {
        for number in numbers {
            let count = self.counts.entry(*number).or_default();
            count.packets += 1;
            count.octets += octets;
        }
    }
}

/// ALLOC_FLOW_COUNTER.
pub(super) fn allocate(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let bulk = command.get(flow_counter::BULK);
    if bulk != 0 {
        return Err(Refusal::parameter("flow_counter_bulk", bulk));
    }
    let number = firmware.ethernet.flows.counters.numbers.allocate()?;
    command.reply.set(flow_counter::ID, number.into());
    Ok(())
}

/// DEALLOC_FLOW_COUNTER.
pub(super) fn free(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let number = command.get32(flow_counter::ID);
    let flows = &mut firmware.ethernet.flows;
    if flows.is_counting(number) {
        return Err(Refusal::busy("flow counter", number));
    }
    flows.counters.numbers.free(number)?;
    flows.counters.counts.remove(&number);
    Ok(())
}

/// QUERY_FLOW_COUNTER of one counter, or of successive numbers, in which those without a counter
/// are zero.
pub(super) fn query(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let first = command.get32(query_flow_counter_in::FLOW_COUNTER_ID);
    let bulk = command.get32(query_flow_counter_in::NUM_OF_COUNTERS);
    if bulk > 1 << LOG_BULK {
        return Err(Refusal::parameter("num_of_counters", bulk.into()));
    }
    let counters = &mut firmware.ethernet.flows.counters;
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
