//! Resources without a context: UARs, protection, XRC and transport domains.

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::Done;
use uverbs_soft::core::{Pdn, Xrcdn};

pub(super) fn alloc_uar(firmware: &mut Firmware, _: &Command<'_>, reply: &mut Reply) -> Done {
    reply.set_number(firmware.uars.allocate()?);
    Ok(())
}

pub(super) fn dealloc_uar(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    firmware.uars.free(command.number())
}

pub(super) fn alloc_pd(firmware: &mut Firmware, _: &Command<'_>, reply: &mut Reply) -> Done {
    reply.set_number(firmware.core.create_pd()?.0);
    Ok(())
}

pub(super) fn dealloc_pd(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    Ok(firmware.core.destroy_pd(Pdn(command.number()))?)
}

pub(super) fn alloc_xrcd(firmware: &mut Firmware, _: &Command<'_>, reply: &mut Reply) -> Done {
    reply.set_number(firmware.core.create_xrcd()?.0);
    Ok(())
}

pub(super) fn dealloc_xrcd(firmware: &mut Firmware, command: &Command<'_>, _: &mut Reply) -> Done {
    Ok(firmware.core.destroy_xrcd(Xrcdn(command.number()))?)
}

pub(super) fn alloc_transport_domain(
    firmware: &mut Firmware,
    _: &Command<'_>,
    reply: &mut Reply,
) -> Done {
    reply.set_number(firmware.transport_domains.allocate()?);
    Ok(())
}

pub(super) fn dealloc_transport_domain(
    firmware: &mut Firmware,
    command: &Command<'_>,
    _: &mut Reply,
) -> Done {
    firmware.transport_domains.free(command.number())
}
