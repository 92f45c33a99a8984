//! Sets of queue counters.

use std::collections::BTreeMap;

use super::Firmware;
use super::command::Command;
use super::numbers::Numbers;
use super::refusal::{Done, Refusal};
use crate::core::{Counters, ObjectKind};
use crate::firmware::layout::command::{
    alloc_q_counter_out, query_q_counter_in, query_q_counter_out,
};

/// Most sets: the number has eight bits.
pub const SETS: u32 = 255;

/// The sets of queue counters.
///
/// The device counts for all queue pairs together, so every set shows the counts of the whole
/// device since it was allocated or cleared, regardless of the queue pairs bound to it. The driver
/// has one set per port and binds all of its queue pairs to it.
#[derive(Debug)]
pub(super) struct QueueCounters {
    numbers: Numbers,
    since: BTreeMap<u32, Counters>,
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self { numbers: Numbers::new("queue counter", 1..SETS + 1), since: BTreeMap::new() }
    }
}

impl QueueCounters {
    pub(super) fn in_use(&self) -> usize {
        self.numbers.in_use()
    }
}

/// ALLOC_Q_COUNTER. The set's number is in the low byte of its word.
pub(super) fn allocate(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let now = firmware.core.counters();
    let number = firmware.objects.queue_counters.numbers.allocate()?;
    firmware.objects.queue_counters.since.insert(number, now);
    firmware.created(command, (ObjectKind::QueueCounter, number), &[]);
    command.reply.set(alloc_q_counter_out::COUNTER_SET_ID, u64::from(number));
    Ok(())
}

/// DEALLOC_Q_COUNTER.
pub(super) fn free(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let number = command.get32(alloc_q_counter_out::COUNTER_SET_ID);
    firmware.check_uses(command, &[(ObjectKind::QueueCounter, number)])?;
    firmware.objects.queue_counters.numbers.free(number)?;
    firmware.objects.queue_counters.since.remove(&number);
    firmware.objects.release((ObjectKind::QueueCounter, number));
    Ok(())
}

/// QUERY_Q_COUNTER.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    for other in [query_q_counter_in::OTHER_VPORT, query_q_counter_in::AGGREGATE] {
        if command.is_set(other) {
            return Err(Refusal::parameter("other_vport or aggregate", 1));
        }
    }
    let number = command.get32(query_q_counter_in::COUNTER_SET_ID);
    firmware.check_uses(command, &[(ObjectKind::QueueCounter, number)])?;
    let now = firmware.core.counters();
    let since = firmware.objects.queue_counters.since.get_mut(&number);
    let since = since.ok_or_else(|| Refusal::no_such("queue counter", number))?;
    let lost = |counters: &Counters| counters.rnr_naks.wrapping_add(counters.datagrams_lost);
    let values = [
        (query_q_counter_out::OUT_OF_BUFFER, lost(&now), lost(since)),
        (query_q_counter_out::OUT_OF_SEQUENCE, now.out_of_sequence, since.out_of_sequence),
        (query_q_counter_out::DUPLICATE_REQUEST, now.duplicates, since.duplicates),
        (query_q_counter_out::LOCAL_ACK_TIMEOUT_ERR, now.timeouts, since.timeouts),
        (
            query_q_counter_out::RESP_LOCAL_LENGTH_ERROR,
            now.receives_too_short,
            since.receives_too_short,
        ),
    ];
    values
        .into_iter()
        .for_each(|(field, now, since)| command.reply.set(field, now.wrapping_sub(since)));
    if command.is_set(query_q_counter_in::CLEAR) {
        *since = now;
    }
    Ok(())
}
