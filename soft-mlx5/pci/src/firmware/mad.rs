//! Management datagrams that the driver passes to the firmware (MAD_IFC).
//!
//! With `ib_virt` the driver queries port, GIDs and P_Keys through the virtual port. The remaining
//! datagrams (vendor attributes, performance counters) are answered as the InfiniBand Architecture
//! Specification prescribes for an agent that does not support the attribute (13.4.7).

use super::Firmware;
use super::command::Command;
use super::refusal::Done;

/// Offset in bits of the datagram in input and output, and its bytes.
const MAD: usize = 0x80;
const LENGTH: usize = 256;

const CLASS: usize = 1;
const METHOD: usize = 3;
const STATUS: usize = 4;

const DIRECTED_ROUTE: u8 = 0x81;
const GET_RESPONSE: u8 = 0x81;
/// The method is not supported for the attribute.
const UNSUPPORTED: u16 = 3 << 2;
/// A directed route datagram on its return path.
const DIRECTION: u16 = 1 << 15;

/// MAD_IFC.
pub(super) fn process(_: &mut Firmware, command: &mut Command<'_>) -> Done {
    command.need(MAD / 8 + LENGTH)?;
    let mut mad = command.structure(MAD)[..LENGTH].to_vec();
    let direction = if mad[CLASS] == DIRECTED_ROUTE { DIRECTION } else { 0 };
    mad[METHOD] = GET_RESPONSE;
    mad[STATUS..STATUS + 2].copy_from_slice(&(UNSUPPORTED | direction).to_be_bytes());
    command.reply.put(MAD, &mad);
    Ok(())
}
