//! Pages of doorbell registers.

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::Done;

/// ALLOC_UAR.
pub(super) fn allocate(firmware: &mut Firmware, _: &Command<'_>, reply: &mut Reply) -> Done {
    reply.set_number(firmware.doorbells.uars.allocate()?);
    Ok(())
}

/// DEALLOC_UAR.
pub(super) fn free(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    firmware.doorbells.uars.free(command.number())
}
