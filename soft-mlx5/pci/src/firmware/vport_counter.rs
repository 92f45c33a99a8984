//! Counters of the virtual port.

use super::Firmware;
use super::command::Command;
use super::refusal::Done;
use crate::bits::field;

/// Offset in bits of the counters of unicast RDMA packets in QUERY_VPORT_COUNTER: received, then
/// sent; packets and octets of each.
const RDMA: usize = 0x180;

/// QUERY_VPORT_COUNTER: RDMA packets (unicast and multicast together) and Ethernet frames.
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
