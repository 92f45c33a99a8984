//! State changes of queue pairs: MODIFY_QP in both forms.
//! Kernel: `modify_qp` (core/uverbs_cmd.c), `_ib_modify_qp` (core/verbs.c), `mlx5_ib_modify_qp`
//! (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5;
use uverbs_uapi::write::qp::{ExModifyQp, ExModifyQpResp, ModifyQp, QpDest};
use zerocopy::IntoBytes;

use super::target;
use super::transitions::{allowed, mask, state};
use crate::chardev::abi::call::Call;
use crate::chardev::device::options::Options;
use crate::chardev::device::{DeviceShared, errno};
use crate::chardev::objects::address_handle::{check_rate, check_route, mac_of, require_neighbour};
use crate::chardev::objects::object::Kind;
use crate::chardev::objects::qp::Remembered;
use crate::core::{AddressPath, MigrationState, Mtu, QpAttributes, QpState, QpType, RemoteRights};
use crate::packet::Gid;
use crate::runtime;

/// `IB_USER_VERBS_CMD_MODIFY_QP`.
pub(crate) fn modify(call: &mut Call<'_>) -> Result<(), Errno> {
    let mut request: ModifyQp = call.request()?;
    if request.attr_mask.bits() & !mask::STANDARD != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    change(call, &mut request, 0)
}

/// `IB_USER_VERBS_EX_CMD_MODIFY_QP`. Only raw packet QPs can have a rate limit: the transition
/// table refuses the attribute for others.
pub(crate) fn modify_extended(call: &mut Call<'_>) -> Result<(), Errno> {
    let mut request: ExModifyQp = call.request()?;
    if request.base.attr_mask.bits() & !(mask::STANDARD | mask::RATE_LIMIT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    change(call, &mut request.base, request.rate_limit)?;
    let response_length = call.response_length::<ExModifyQpResp>();
    call.response(&ExModifyQpResp { comp_mask: 0, response_length })
}

fn change(call: &mut Call<'_>, request: &mut ModifyQp, rate: u32) -> Result<(), Errno> {
    let device = call.file.device.clone();
    let qp = call.object(Kind::Qp, request.qp_handle)?.qp()?;
    if qp.spreads {
        // `mlx5_ib_modify_qp`.
        return Err(Errno::ENOSYS);
    }
    if qp.qp_type == QpType::DcTarget {
        return target::change(call, request);
    }
    let (qpn, qp_type, driver) = (qp.qpn, qp.qp_type, qp.driver.clone());
    let before = driver.get();
    check_ports(request, before)?;
    check_states(request)?;
    let given = relevant(qp_type, request.attr_mask.bits());
    check_paths(call, qp_type, request, given)?;
    let ucmd = read_driver_request(call)?;
    let (current, next) = states(request, given, before);
    check_transition(&device, qp_type, current, next, given)?;
    check_values(&device, request, qp_type, given)?;
    check_limit(&device, given, rate)?;
    if (current, next) == (state::RESET, state::RESET) {
        return Ok(());
    }
    if device.options().is_roce() {
        // `mlx5_set_path` does not store it.
        request.dest.dlid = 0;
    }
    let after = remember(request, given, next, before);
    let rate_limit = (given & mask::RATE_LIMIT != 0).then_some(rate);
    let attributes = QpAttributes { rate_limit, ..attributes(request, qp_type, given, after)? };
    device.control(|machine| {
        if [state::ERR, state::SQD, state::RESET].contains(&next) {
            machine.catch_up(runtime::now(), qpn);
        }
        machine.core.modify_qp(qpn, core_state(next), &attributes).map_err(errno)
    })?;
    driver.set(after);
    answer_driver(call, ucmd)
}

/// The port must be 1, and the path's port that of the QP (`modify_qp` in uverbs_cmd.c).
pub(super) fn check_ports(request: &mut ModifyQp, before: Remembered) -> Result<(), Errno> {
    let given = request.attr_mask.bits();
    let bad_port = given & mask::PORT != 0 && request.port_num != 1;
    let bad_path = given & mask::AV != 0 && request.dest.port_num != 1;
    if bad_port || bad_path {
        return Err(Errno::EINVAL);
    }
    if given & mask::AV != 0 {
        if given & mask::STATE != 0 && request.qp_state.0 == state::RTR {
            if request.dest.port_num != before.port {
                return Err(Errno::EINVAL);
            }
        } else if given & mask::PORT == 0 {
            // A new path in SQD also sets the port.
            request.attr_mask |= uverbs_uapi::flags::QpAttrMask::PORT;
            request.port_num = request.dest.port_num;
        }
    }
    let alternate = (request.alt_port_num, request.alt_dest.port_num);
    if given & mask::ALT_PATH != 0 && alternate != (1, 1) { Err(Errno::EINVAL) } else { Ok(()) }
}

pub(super) fn check_states(request: &ModifyQp) -> Result<(), Errno> {
    let given = request.attr_mask.bits();
    let bad = |bit, value| given & bit != 0 && value > state::ERR;
    if bad(mask::CUR_STATE, request.cur_qp_state.0) || bad(mask::STATE, request.qp_state.0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Attributes that an XRC initiator or target does not use are ignored (`modify_qp_mask`).
fn relevant(qp_type: QpType, given: u32) -> u32 {
    match qp_type {
        QpType::XrcInitiator => given & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        QpType::XrcTarget => given & !(mask::MAX_QP_RD_ATOMIC | mask::RETRY_CNT | mask::RNR_RETRY),
        _ => given,
    }
}

/// `_ib_modify_qp`: routes must be complete; alternate paths are for InfiniBand only.
pub(super) fn check_paths(
    call: &mut Call<'_>,
    qp_type: QpType,
    request: &ModifyQp,
    given: u32,
) -> Result<(), Errno> {
    let device = call.file.device.clone();
    let options = device.options();
    if given & mask::AV != 0 {
        let dest = &request.dest;
        let source = check_route(options, dest.is_global != 0, dest.sgid_index)?;
        if qp_type.is_connected() {
            require_neighbour(call, source, Gid(dest.dgid))?;
        }
    }
    if given & mask::ALT_PATH != 0 {
        check_route(options, request.alt_dest.is_global != 0, request.alt_dest.sgid_index)?;
        if options.is_roce() {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

/// The driver's part of the request: options of connection establishment, and burst sizes, which
/// are not modelled.
pub(super) fn read_driver_request(call: &Call<'_>) -> Result<Option<mlx5::ModifyQp>, Errno> {
    let driver = call.driver();
    if driver.input_length() == 0 {
        return Ok(None);
    }
    let size = size_of::<mlx5::ModifyQp>();
    let request: mlx5::ModifyQp = driver.read_known(size, Errno::EOPNOTSUPP)?;
    if request.comp_mask.bits() != 0 || request.burst_info.reserved != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(Some(request))
}

fn answer_driver(call: &Call<'_>, ucmd: Option<mlx5::ModifyQp>) -> Result<(), Errno> {
    let driver = call.driver();
    let length = size_of::<mlx5::ModifyQpResp>();
    if driver.output_length() < length {
        return Ok(());
    }
    let ucmd = ucmd.map_or(0, |ucmd| ucmd.ece_options);
    let response = mlx5::ModifyQpResp {
        response_length: length as u32,
        ece_options: ucmd & call.file.device.options().connection_options,
        ..mlx5::ModifyQpResp::default()
    };
    driver.write(response.as_bytes())
}

/// Current and next state. The current state is the one that the driver remembers, unless the
/// program names one.
fn states(request: &ModifyQp, given: u32, before: Remembered) -> (u8, u8) {
    let current = if given & mask::CUR_STATE != 0 { request.cur_qp_state.0 } else { before.state };
    let next = if given & mask::STATE != 0 { request.qp_state.0 } else { current };
    (current, next)
}

/// Checks the transition tables of ib_core and of the driver. The driver's has no transition to
/// SQD.
fn check_transition(
    device: &DeviceShared,
    qp_type: QpType,
    current: u8,
    next: u8,
    given: u32,
) -> Result<(), Errno> {
    if !allowed(current, next, qp_type, given) {
        return Err(Errno::EINVAL);
    }
    if next == state::SQD && !device.options().send_queue_drain {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// `mlx5_ib_modify_qp` and `__mlx5_ib_modify_qp`.
fn check_values(
    device: &DeviceShared,
    request: &ModifyQp,
    qp_type: QpType,
    given: u32,
) -> Result<(), Errno> {
    let options = device.options();
    let pkeys = options.pkeys.len();
    let bad = [
        given & mask::PKEY_INDEX != 0 && usize::from(request.pkey_index) >= pkeys,
        given & mask::MAX_QP_RD_ATOMIC != 0 && request.max_rd_atomic > Options::MAX_READ_ATOMIC,
        given & mask::MAX_DEST_RD_ATOMIC != 0
            && request.max_dest_rd_atomic > Options::MAX_READ_ATOMIC,
        given & mask::PATH_MTU != 0
            && qp_type != QpType::Ud
            && Mtu::from_code(request.path_mtu.0).is_none(),
    ];
    if bad.contains(&true) {
        return Err(Errno::EINVAL);
    }
    if given & mask::AV != 0 {
        check_rate(request.dest.static_rate)?;
    }
    if given & mask::ALT_PATH != 0 {
        check_rate(request.alt_dest.static_rate)?;
    }
    Ok(())
}

/// `mlx5_rl_add_rate` (net/ethernet/mellanox/mlx5/core/rl.c).
fn check_limit(device: &DeviceShared, given: u32, rate: u32) -> Result<(), Errno> {
    let rates = device.options().rates();
    let known = rate == 0 || rates.is_some_and(|rates| rates.contains(&rate));
    if given & mask::RATE_LIMIT != 0 && !known { Err(Errno::EINVAL) } else { Ok(()) }
}

fn remember(request: &ModifyQp, given: u32, next: u8, before: Remembered) -> Remembered {
    let mut after = Remembered { state: next, ..before };
    if given & mask::ACCESS_FLAGS != 0 {
        after.access = request.qp_access_flags.bits();
    }
    if given & mask::MAX_DEST_RD_ATOMIC != 0 {
        after.responder_depth = request.max_dest_rd_atomic;
    }
    if given & mask::PORT != 0 {
        after.port = request.port_num;
    }
    after
}

fn attributes(
    request: &ModifyQp,
    qp_type: QpType,
    given: u32,
    after: Remembered,
) -> Result<QpAttributes, Errno> {
    let has = |bit| given & bit != 0;
    // The device stores depths as logarithms, so 0 becomes 1 (`__mlx5_ib_modify_qp`).
    let depth = |bit, value: u8| has(bit).then(|| value.next_power_of_two());
    let mtu = match qp_type {
        QpType::Ud => Some(Mtu::M4096),
        _ if has(mask::PATH_MTU) => Mtu::from_code(request.path_mtu.0),
        _ => None,
    };
    Ok(QpAttributes {
        qkey: has(mask::QKEY).then_some(request.qkey),
        remote_rights: has(mask::ACCESS_FLAGS | mask::MAX_DEST_RD_ATOMIC)
            .then(|| remote_rights(after)),
        pkey_index: has(mask::PKEY_INDEX).then_some(request.pkey_index),
        // P_Key index and timeout of the primary path are separate attributes.
        path: has(mask::AV).then(|| path(&request.dest, after.port, 0, 0)),
        alternate_path: has(mask::ALT_PATH).then(|| {
            path(
                &request.alt_dest,
                request.alt_port_num,
                request.alt_pkey_index,
                request.alt_timeout,
            )
        }),
        mtu,
        destination_qpn: has(mask::DEST_QPN).then_some(request.dest_qp_num & 0xff_ffff),
        // The kernel masks PSNs with a warning.
        receive_psn: has(mask::RQ_PSN).then_some(request.rq_psn & 0xff_ffff),
        send_psn: has(mask::SQ_PSN).then_some(request.sq_psn & 0xff_ffff),
        max_read_atomic: depth(mask::MAX_QP_RD_ATOMIC, request.max_rd_atomic),
        max_destination_read_atomic: depth(mask::MAX_DEST_RD_ATOMIC, request.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(request.min_rnr_timer & 0x1f),
        ack_timeout: has(mask::TIMEOUT).then_some(request.timeout & 0x1f),
        retry_count: has(mask::RETRY_CNT).then_some(request.retry_cnt & 7),
        rnr_retry: has(mask::RNR_RETRY).then_some(request.rnr_retry & 7),
        migration: has(mask::PATH_MIG_STATE).then(|| migration(request.path_mig_state.0)),
        drained_event: has(mask::EN_SQD_ASYNC_NOTIFY).then_some(request.en_sqd_async_notify != 0),
        rate_limit: None,
    })
}

/// `set_qpc_atomic_flags`: a responder with depth 0 allows writes only.
fn remote_rights(after: Remembered) -> RemoteRights {
    let access = AccessFlags::from_bits_retain(after.access);
    let mut rights = RemoteRights::empty();
    rights.set(RemoteRights::WRITE, access.contains(AccessFlags::REMOTE_WRITE));
    if after.responder_depth != 0 {
        rights.set(RemoteRights::READ, access.contains(AccessFlags::REMOTE_READ));
        rights.set(RemoteRights::ATOMIC, access.contains(AccessFlags::REMOTE_ATOMIC));
    }
    rights
}

pub(super) fn path(dest: &QpDest, port: u8, pkey_index: u16, timeout: u8) -> AddressPath {
    AddressPath {
        source_gid_index: dest.sgid_index,
        global: dest.is_global != 0,
        destination_gid: Gid(dest.dgid),
        destination_lid: dest.dlid,
        source_path_bits: dest.src_path_bits,
        service_level: dest.sl & 0xf,
        traffic_class: dest.traffic_class,
        hop_limit: dest.hop_limit,
        flow_label: dest.flow_label & 0xf_ffff,
        destination_mac: mac_of(Gid(dest.dgid)),
        udp_source_port: 0,
        pkey_index,
        port,
        ack_timeout: timeout & 0x1f,
        static_rate: dest.static_rate,
    }
}

fn migration(state: u8) -> MigrationState {
    match state {
        1 => MigrationState::Rearm,
        2 => MigrationState::Armed,
        _ => MigrationState::Migrated,
    }
}

pub(super) fn core_state(number: u8) -> QpState {
    match number {
        state::RESET => QpState::Reset,
        state::INIT => QpState::Init,
        state::RTR => QpState::ReadyToReceive,
        state::RTS => QpState::ReadyToSend,
        state::SQD => QpState::SendQueueDrain,
        state::SQE => QpState::SendQueueError,
        _ => QpState::Error,
    }
}
