//! Resources without a context: protection, XRC and transport domains.

use super::Firmware;
use super::command::Command;
use super::refusal::Done;
use crate::core::{ObjectKind, Pdn, Xrcdn};

pub(super) fn alloc_pd(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let pdn = firmware.core.create_pd()?;
    firmware.created(command, pdn.object(), &[]);
    command.reply.set_number(pdn.0);
    Ok(())
}

pub(super) fn dealloc_pd(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    firmware.core.destroy_pd(Pdn(command.number()))?;
    firmware.objects.release(Pdn(command.number()).object());
    Ok(())
}

pub(super) fn alloc_xrcd(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let xrcdn = firmware.core.create_xrcd()?;
    firmware.created(command, xrcdn.object(), &[]);
    command.reply.set_number(xrcdn.0);
    Ok(())
}

pub(super) fn dealloc_xrcd(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    firmware.core.destroy_xrcd(Xrcdn(command.number()))?;
    firmware.objects.release(Xrcdn(command.number()).object());
    Ok(())
}

pub(super) fn alloc_transport_domain(
    firmware: &mut Firmware<'_>,
    command: &mut Command<'_>,
) -> Done {
    let number = firmware.objects.transport_domains.allocate()?;
    firmware.created(command, (ObjectKind::TransportDomain, number), &[]);
    command.reply.set_number(number);
    Ok(())
}

pub(super) fn dealloc_transport_domain(
    firmware: &mut Firmware<'_>,
    command: &mut Command<'_>,
) -> Done {
    let object = (ObjectKind::TransportDomain, command.number());
    firmware.objects.references.check_unused(object)?;
    firmware.objects.transport_domains.free(object.1)?;
    firmware.objects.release(object);
    Ok(())
}
