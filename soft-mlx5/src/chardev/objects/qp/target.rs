//! State changes and queries of DC targets, for which the driver has its own rules. Kernel:
//! `mlx5_ib_modify_dct` and `mlx5_ib_dct_query_qp` (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::{Mtu as UserMtu, QpState as UserQpState};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask};
use uverbs_uapi::mlx5;
use uverbs_uapi::write::qp::{ModifyQp, QpDest, QueryQpResp};
use zerocopy::IntoBytes;

use super::modify::{check_paths, check_ports, check_states, core_state, path};
use super::query::access;
use super::transitions::{allowed_for_target, mask, state};
use super::{Qp, Remembered, modify};
use crate::chardev::abi::call::Call;
use crate::chardev::device::options::Options;
use crate::chardev::objects::object::Kind;
use crate::core::{Mtu, QpAttributes, QpType, RemoteRights};

/// Shortest driver response that holds the target's number. A program with less space for it cannot
/// move the target to RTR.
const SHORTEST_ANSWER: usize = 8;

/// MODIFY_QP of a target.
pub(super) fn change(call: &mut Call<'_>, request: &mut ModifyQp) -> Result<(), Errno> {
    let qp = call.object(Kind::Qp, request.qp_handle)?.qp()?;
    let (qpn, driver) = (qp.qpn, qp.driver.clone());
    let before = driver.get();
    check_ports(request, before)?;
    check_states(request)?;
    let given = request.attr_mask.bits();
    check_paths(call, QpType::DcTarget, request, given)?;
    modify::read_driver_request(call)?;
    let next = request.qp_state.0;
    let is_ready = next == state::RTR;
    if given & mask::STATE == 0
        || is_ready
            && before.state == state::INIT
            && call.driver().output_length() < SHORTEST_ANSWER
        || !allowed_for_target(before.state, next, given)
    {
        return Err(Errno::EINVAL);
    }
    let attributes = if is_ready { to_rtr(request, before)? } else { to_init(call, request)? };
    call.file.device.core(|core| core.modify_qp(qpn, core_state(next), &attributes))?;
    let port = if is_ready { before.port } else { request.port_num };
    driver.set(Remembered { state: next, port, ..before });
    if is_ready { write_number(call, qpn.0) } else { Ok(()) }
}

fn to_init(call: &Call<'_>, request: &ModifyQp) -> Result<QpAttributes, Errno> {
    if usize::from(request.pkey_index) >= call.file.device.options().pkeys.len() {
        return Err(Errno::EINVAL);
    }
    let access = request.qp_access_flags;
    let mut rights = RemoteRights::empty();
    rights.set(RemoteRights::READ, access.contains(AccessFlags::REMOTE_READ));
    rights.set(RemoteRights::WRITE, access.contains(AccessFlags::REMOTE_WRITE));
    rights.set(RemoteRights::ATOMIC, access.contains(AccessFlags::REMOTE_ATOMIC));
    Ok(QpAttributes {
        remote_rights: Some(rights),
        pkey_index: Some(request.pkey_index),
        ..QpAttributes::default()
    })
}

/// A target keeps only the parts of the path that its responses need: traffic class, flow label,
/// GID, hop limit and priority.
fn to_rtr(request: &ModifyQp, before: Remembered) -> Result<QpAttributes, Errno> {
    let mtu = Mtu::from_code(request.path_mtu.0).ok_or(Errno::EINVAL)?;
    let own = QpDest {
        traffic_class: request.dest.traffic_class,
        flow_label: request.dest.flow_label,
        sgid_index: request.dest.sgid_index,
        hop_limit: request.dest.hop_limit,
        is_global: request.dest.is_global,
        sl: request.dest.sl & 7,
        ..QpDest::default()
    };
    Ok(QpAttributes {
        path: Some(path(&own, before.port, 0, 0)),
        mtu: Some(mtu),
        min_rnr_timer: Some(request.min_rnr_timer & 0x1f),
        max_destination_read_atomic: Some(Options::MAX_READ_ATOMIC),
        ..QpAttributes::default()
    })
}

/// Writes the driver's response, which holds the target's number.
fn write_number(call: &Call<'_>, dctn: u32) -> Result<(), Errno> {
    let driver = call.driver();
    let whole = size_of::<mlx5::ModifyQpResp>();
    let length = if driver.output_length() < whole { SHORTEST_ANSWER } else { whole };
    let response =
        mlx5::ModifyQpResp { response_length: length as u32, dctn, ..Default::default() };
    driver.write(&response.as_bytes()[..length])
}

/// QUERY_QP of a target: only in RTR, and only for attributes that a target has.
pub(super) fn query(call: &Call<'_>, qp: &Qp, requested: QpAttrMask) -> Result<QueryQpResp, Errno> {
    const KNOWN: u32 = mask::STATE
        | mask::ACCESS_FLAGS
        | mask::PORT
        | mask::MIN_RNR_TIMER
        | mask::AV
        | mask::PATH_MTU
        | mask::PKEY_INDEX;
    let requested = requested.bits();
    if requested & !KNOWN != 0 || qp.driver.get().state != state::RTR {
        return Err(Errno::EINVAL);
    }
    let attributes = call.file.device.core(|core| core.query_qp(qp.qpn))?.attributes;
    let has = |bit| requested & bit != 0;
    let mut response = QueryQpResp::default();
    if has(mask::STATE) {
        response.qp_state = UserQpState(state::RTR);
    }
    if has(mask::ACCESS_FLAGS) {
        response.qp_access_flags = access(attributes.remote_rights.unwrap_or_default());
    }
    if has(mask::PORT) {
        response.port_num = qp.driver.get().port;
    }
    if has(mask::MIN_RNR_TIMER) {
        response.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(0);
    }
    if let Some(path) = attributes.path.filter(|_| has(mask::AV)) {
        response.dest.traffic_class = path.traffic_class;
        response.dest.flow_label = path.flow_label;
        response.dest.sgid_index = path.source_gid_index;
        response.dest.hop_limit = path.hop_limit;
    }
    if has(mask::PATH_MTU) {
        response.path_mtu = UserMtu(attributes.mtu.map_or(0, |mtu| mtu.code()));
    }
    if has(mask::PKEY_INDEX) {
        response.pkey_index = attributes.pkey_index.unwrap_or(0);
    }
    Ok(response)
}
