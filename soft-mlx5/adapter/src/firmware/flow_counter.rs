//! Flow counters, for entries of flow tables and rules of the core.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::core::{Core, FlowHits, FlowId, Mkey, ObjectKind};
use crate::firmware::layout::ethernet::{flow_counter, query_flow_counter_in, traffic_counter};

/// log2 of the most counters.
pub const LOG_COUNTERS: u32 = 15;
const END: u32 = 1 << LOG_COUNTERS;
/// log2 of the most counters of one answer.
pub const LOG_BULK: u32 = 8;
/// The sizes of bulks: 128, 256 and 512 counters (`mlx5_fc_bulk_alloc_bitmask`).
pub const BULK_SIZES: u64 = 0b111;
/// Counters per unit of a bulk's size (`MLX5_FC_BULK_SIZE_FACTOR`).
const UNIT: u32 = 128;
/// The first number of several counters is a multiple of this. Linux takes groups of four counters
/// when it reads the ones of its own network device (`mlx5_fc_stats_query`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_counters.c).
const ALIGNMENT: u32 = 4;

/// Offset of the counters in QUERY_FLOW_COUNTER's output, in bits, and the bytes of each.
const COUNTS: usize = 0x80;
const COUNT_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u64,
    octets: u64,
}

/// Counters that were allocated together.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    length: u32,
    /// The user context that has allocated them; 0 for the driver.
    owner: u16,
}

/// All flow counters.
#[derive(Debug)]
pub struct FlowCounters {
    /// The bulks, by their first number.
    bulks: BTreeMap<u32, Bulk>,
    /// Where the search for free numbers begins: freed ones are reused as late as possible.
    next: u32,
    counts: BTreeMap<u32, Count>,
    /// Rules of the core with their counter, and with the hits that it has already counted.
    rules: BTreeMap<FlowId, (u32, FlowHits)>,
}

impl Default for FlowCounters {
    fn default() -> Self {
        Self { bulks: BTreeMap::new(), next: 1, counts: BTreeMap::new(), rules: BTreeMap::new() }
    }
}

impl FlowCounters {
    pub(super) fn in_use(&self) -> usize {
        self.bulks.len()
    }

    /// The bulk of the counter that a command names. The driver may name all counters, a user
    /// context only its own.
    pub(super) fn bulk_of(
        &self,
        command: &Command<'_>,
        number: u32,
    ) -> Result<Range<u32>, Refusal> {
        let found = self.bulks.range(..=number).next_back();
        let own = found.filter(|(_, bulk)| [0, bulk.owner].contains(&command.user_context()));
        let numbers = own.map(|(first, bulk)| *first..first + bulk.length);
        let numbers = numbers.filter(|numbers| numbers.contains(&number));
        numbers.ok_or_else(|| Refusal::no_such("flow counter", number))
    }

    /// Whether a user context has counters.
    pub(super) fn has_owner(&self, uid: u16) -> bool {
        self.bulks.values().any(|bulk| bulk.owner == uid)
    }

    /// Allocates consecutive numbers, and returns the first.
    fn allocate(&mut self, length: u32, owner: u16) -> Result<u32, Refusal> {
        let aligned = |first: &u32| first % length.min(ALIGNMENT) == 0;
        let is_free = |first: &u32| {
            let before = self.bulks.range(..first + length).next_back();
            first + length <= END && before.is_none_or(|(used, bulk)| used + bulk.length <= *first)
        };
        let mut all = (self.next..END).chain(1..self.next).filter(aligned);
        let first = all.find(is_free).ok_or_else(|| Refusal::limit("flow counter"))?;
        self.bulks.insert(first, Bulk { length, owner });
        self.next = if first + length < END { first + length } else { 1 };
        Ok(first)
    }

    /// The numbers that a query names.
    fn wanted(&self, command: &Command<'_>) -> Result<Range<u32>, Refusal> {
        let first = command.get32(query_flow_counter_in::FLOW_COUNTER_ID);
        let count = command.get32(query_flow_counter_in::NUM_OF_COUNTERS);
        let too_many = || Refusal::parameter("num_of_counters", count.into());
        let end = first.checked_add(count.max(1)).ok_or_else(too_many)?;
        // The driver may read over gaps, a user context only within one of its bulks.
        let is_driver = command.user_context() == 0;
        let most = if is_driver && count > 0 { END } else { self.bulk_of(command, first)?.end };
        let to_memory = command.is_set(query_flow_counter_in::DUMP_TO_MEMORY);
        let fits = to_memory || count <= 1 << LOG_BULK;
        if end <= most && fits { Ok(first..end) } else { Err(too_many()) }
    }

    /// The counts in the format of answers; zero for numbers without a counter.
    fn read(&self, wanted: Range<u32>) -> Vec<u8> {
        let bytes = |number| {
            let count = self.counts.get(&number).copied().unwrap_or_default();
            let mut bytes = [0; COUNT_BYTES];
            traffic_counter::PACKETS.set(&mut bytes, count.packets);
            traffic_counter::OCTETS.set(&mut bytes, count.octets);
            bytes
        };
        wanted.flat_map(bytes).collect()
    }

    fn clear(&mut self, wanted: Range<u32>) {
        self.counts.range_mut(wanted).for_each(|(_, count)| *count = Count::default());
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

    /// Adds the hits of the core's rules since the last call.
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

/// How many counters ALLOC_FLOW_COUNTER allocates (`MLX5_IB_METHOD_DEVX_OBJ_CREATE` in the kernel's
/// hw/mlx5/devx.c).
pub fn length(command: &Command<'_>) -> u32 {
    match command.get32(flow_counter::BULK_LOG_SIZE) {
        0 => (UNIT * command.get32(flow_counter::BULK)).max(1),
        log => 1 << log,
    }
}

/// ALLOC_FLOW_COUNTER.
pub(super) fn allocate(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let (length, owner) = (length(command), command.user_context());
    let first = firmware.objects.flow_counters.allocate(length, owner)?;
    command.reply.set(flow_counter::ID, first.into());
    Ok(())
}

/// DEALLOC_FLOW_COUNTER: all that were allocated together, named by the first number.
pub(super) fn free(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = command.get32(flow_counter::ID);
    let counters = &mut firmware.objects.flow_counters;
    let bulk = counters.bulk_of(command, number)?;
    if bulk.start != number {
        return Err(Refusal::no_such("flow counter", number));
    }
    let by_rules = counters.rules.values().any(|(used, _)| bulk.contains(used));
    if by_rules {
        return Err(Refusal::busy("flow counter", number));
    }
    let references = &firmware.objects.references;
    let mut all = bulk.clone().map(|number| (ObjectKind::FlowCounter, number));
    all.try_for_each(|counter| references.check_unused(counter))?;
    counters.bulks.remove(&number);
    counters.counts.retain(|counter, _| !bulk.contains(counter));
    Ok(())
}

/// QUERY_FLOW_COUNTER of one counter, or of consecutive numbers. The counts are in the answer or,
/// in the same format, go to the memory of a key. The latter is known from DPDK
/// (drivers/common/mlx5/mlx5_prm.h and `mlx5_devx_cmd_flow_counter_query`); the kernel's header
/// does not have it.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let wanted = firmware.objects.flow_counters.wanted(command)?;
    firmware.objects.flow_counters.collect(firmware.core);
    let counts = firmware.objects.flow_counters.read(wanted.clone());
    if command.is_set(query_flow_counter_in::DUMP_TO_MEMORY) {
        store(firmware, command, &counts)?;
    } else {
        command.reply.need(COUNTS / 8 + counts.len())?;
        command.reply.put(COUNTS, &counts);
    }
    if command.is_set(query_flow_counter_in::CLEAR) {
        firmware.objects.flow_counters.clear(wanted);
    }
    Ok(())
}

/// Stores counts in the memory of the key that the command names.
fn store(firmware: &Firmware<'_>, command: &Command<'_>, counts: &[u8]) -> Done {
    let key = command.get32(query_flow_counter_in::MKEY);
    firmware.check_uses(command, &[Mkey(key & !0xff).object()])?;
    let address = command.get(query_flow_counter_in::ADDRESS);
    Ok(firmware.core.write_mkey(Mkey(key), address, counts)?)
}
