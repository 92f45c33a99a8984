//! Multicast groups of UD QPs.
//! Kernel: `ib_uverbs_attach_mcast`, `ib_attach_mcast` (core/verbs.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::write::qp::{AttachMcast, DetachMcast};

use crate::chardev::abi::call::Call;
use crate::chardev::objects::object::Kind;
use crate::core::QpType;
use crate::packet::Gid;

/// Lowest multicast LID (`IB_MULTICAST_LID_BASE`).
const FIRST_LID: u16 = 0xc000;
/// The permissive LID (`IB_LID_PERMISSIVE`).
const PERMISSIVE_LID: u16 = 0xffff;

/// `IB_USER_VERBS_CMD_ATTACH_MCAST`. Attaching a second time has no effect.
pub(crate) fn attach(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: AttachMcast = call.request()?;
    let device = call.file.device.clone();
    let qp = call.object_mut(Kind::Qp, request.qp_handle)?.qp_mut()?;
    let (group, lid) = (Gid(request.gid), request.mlid);
    if qp.groups.contains(&(group, lid)) {
        return Ok(());
    }
    let lid_fits = device.options().is_roce() || (FIRST_LID..PERMISSIVE_LID).contains(&lid);
    if !group.is_multicast() || qp.qp_type != QpType::Ud || !lid_fits {
        return Err(Errno::EINVAL);
    }
    device.core(|core| core.attach_multicast(qp.qpn, group))?;
    if let Err(error) = device.join(group) {
        device.core(|core| core.detach_multicast(qp.qpn, group))?;
        return Err(error);
    }
    qp.groups.push((group, lid));
    Ok(())
}

/// `IB_USER_VERBS_CMD_DETACH_MCAST`; EINVAL for a group that the QP is not attached to.
pub(crate) fn detach(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DetachMcast = call.request()?;
    let device = call.file.device.clone();
    let qp = call.object_mut(Kind::Qp, request.qp_handle)?.qp_mut()?;
    let wanted = (Gid(request.gid), request.mlid);
    let at = qp.groups.iter().position(|known| *known == wanted).ok_or(Errno::EINVAL)?;
    qp.groups.remove(at);
    device.leave(wanted.0);
    device.core(|core| core.detach_multicast(qp.qpn, wanted.0))
}
