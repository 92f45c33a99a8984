//! Multicast memberships of queue pairs.

use super::Firmware;
use super::command::Command;
use super::refusal::Done;
use uverbs_soft::core::Qpn;
use uverbs_soft::packet::Gid;

/// ATTACH_TO_MCG. Memberships are counted, because the kernel joins a group once for each LID with
/// which a program joins it, and leaves it as often. A queue pair in a group cannot be destroyed.
pub(super) fn attach(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let (qpn, group) = (command.number(), group(command));
    firmware.object_firmware().check_uses(command, &[Qpn(qpn).object()])?;
    firmware.core.attach_multicast(Qpn(qpn), group)?;
    let count = firmware.memberships.entry((qpn, group)).or_default();
    *count += 1;
    if *count == 1 {
        let joined = firmware.cable.join(group);
        joined.unwrap_or_else(|error| firmware.warn(format_args!("joining {group}: {error}")));
    }
    Ok(())
}

/// DETACH_FROM_MCG.
pub(super) fn detach(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let (qpn, group) = (command.number(), group(command));
    firmware.object_firmware().check_uses(command, &[Qpn(qpn).object()])?;
    if let Some(count @ 2..) = firmware.memberships.get_mut(&(qpn, group)) {
        *count -= 1;
        return Ok(());
    }
    if firmware.memberships.remove(&(qpn, group)).is_some() {
        firmware.cable.leave(group);
    }
    Ok(firmware.core.detach_multicast(Qpn(qpn), group)?)
}

impl Firmware {
    pub(super) fn leave_all_groups(&mut self) {
        for (_, group) in std::mem::take(&mut self.memberships).into_keys() {
            self.cable.leave(group);
        }
    }
}

/// The multicast GID at bit 0x80.
fn group(command: &Command<'_>) -> Gid {
    let mut gid = Gid::default();
    gid.0.iter_mut().zip(command.structure(0x80)).for_each(|(to, from)| *to = *from);
    gid
}
