//! Pages of doorbell registers.

use super::Firmware;
use super::command::Command;
use super::refusal::Done;

/// ALLOC_UAR.
pub(super) fn allocate(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    command.reply.set_number(firmware.doorbells.uars.allocate()?);
    Ok(())
}

/// DEALLOC_UAR.
pub(super) fn free(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    firmware.doorbells.uars.free(command.number())
}
