//! Counters of the virtual port.

use super::Firmware;
use super::command::Command;
use super::refusal::Done;
use crate::bits::field;

/// Where QUERY_VPORT_COUNTER has RDMA packets for one receiver: received, then sent; packets and
/// octets of each; in bits.
const RDMA: usize = 0x180;

/// QUERY_VPORT_COUNTER: RDMA packets (those for groups among the others) and Ethernet frames.
/// Errors are not counted.
pub(super) fn query(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let counters = firmware.core.counters();
    let rdma = [counters.received, counters.received_bytes, counters.sent, counters.sent_bytes];
    for (index, value) in rdma.into_iter().enumerate() {
        command.reply.set(field(RDMA + 64 * index, 64), value);
    }
    firmware.ethernet.traffic.fields().for_each(|(field, value)| command.reply.set(field, value));
    Ok(())
}
