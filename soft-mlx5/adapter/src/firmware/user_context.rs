//! User contexts (UCTX): the driver creates one for each open context with DEVX.

use super::bits::{Field, field};
use super::command::Command;
use super::refusal::{Done, Refusal};
use super::{Firmware, Objects};

/// The user context's number (`uid`), in the reply of CREATE_UCTX and in DESTROY_UCTX.
const UID: Field = field(0x50, 16);

impl Objects {
    /// Creates a user context.
    ///
    /// # Errors
    /// A refusal if there are too many.
    pub fn create_user_context(&mut self) -> Result<u16, Refusal> {
        Ok(self.user_contexts.allocate()? as u16)
    }

    /// Destroys a user context.
    ///
    /// # Errors
    /// A refusal if no context has this number, or while it has objects, because another context
    /// may get the number.
    pub fn destroy_user_context(&mut self, uid: u16) -> Done {
        self.user_contexts.check(uid.into())?;
        if self.has_owner(uid) {
            return Err(Refusal::busy("user context", uid.into()));
        }
        self.user_contexts.free(uid.into())
    }

    fn has_owner(&self, uid: u16) -> bool {
        self.owners.values().chain(self.reserved.values()).any(|owner| *owner == uid)
            || self.umems.has_owner(uid)
            || self.flows.has_owner(uid)
            || self.flow_counters.has_owner(uid)
    }
}

/// CREATE_UCTX.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    command.reply.set(UID, firmware.objects.create_user_context()?.into());
    Ok(())
}

/// DESTROY_UCTX.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    firmware.objects.destroy_user_context(command.get(UID) as u16)
}
