//! Modifying and querying a queue pair: converts typed attributes to the kernel's and back.

use nix::errno::Errno;
use uverbs_uapi::enums::{MigState, Mtu as KernelMtu, QpState as KernelState};
use uverbs_uapi::flags::{AccessFlags, DeviceCapFlags, QpAttrMask};
use uverbs_uapi::mlx5::qp::{BurstInfo, ModifyQp as DriverRequest, ModifyQpResp as DriverAnswer};
use uverbs_uapi::write::qp::{ExModifyQp, ModifyQp, QpDest, QueryQp, QueryQpResp};
use zerocopy::IntoBytes;

use super::ah;
use super::attributes::{AckTimeout, AlternatePath, MigrationState, QpAttributes, RnrTimer};
use super::sizes::Capacities;
use super::{QpType, State, transitions};
use crate::device::address::{AddressVector, Gid, GlobalRoute, LinkLayer, Mtu};
use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};

const MODIFY: &str = "modify_qp";
/// All attributes that can be queried.
const EVERYTHING: QpAttrMask = QpAttrMask::all().difference(QpAttrMask::RATE_LIMIT);
/// The attributes of a DC target that can be queried (`mlx5_ib_dct_query_qp` in
/// drivers/infiniband/hw/mlx5/qp.c).
const DC_TARGET_ATTRIBUTES: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::PKEY_INDEX);

/// The queue pair to change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) handle: u32,
    pub(super) qp_type: QpType,
    pub(super) current: State,
    /// ECE options to request.
    pub(super) ece: Option<u32>,
    /// Burst and packet size of a rate limit.
    pub(super) burst: BurstInfo,
}

/// The driver's answer to a change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answer {
    /// Granted ECE options, if some were requested.
    pub(super) ece: Option<u32>,
    /// The number of a DC target that has become ready.
    pub(super) target_number: Option<u32>,
}

/// Checks a change against the values' ranges, the device and the table of transitions, and sends
/// it.
pub(super) fn modify(
    context: &Context,
    target: Target,
    attributes: &QpAttributes,
) -> Result<Answer> {
    let Target { handle, qp_type, current, ece, burst } = target;
    let from = attributes.current_state.unwrap_or(current);
    let to = attributes.state.unwrap_or(from);
    check_values(attributes)?;
    check_device(context, qp_type, attributes)?;
    transitions::check(qp_type, from, to, attributes.mask()).map_err(|wrong| {
        Error::new(MODIFY, ErrorKind::InvalidInput, wrong.to_string()).asked(qp_type.to_string())
    })?;
    let command = command(handle, attributes);
    let becomes_target = qp_type == QpType::DcTarget && to == State::Rtr;
    let sent = match (attributes.rate_limit, ece) {
        (None, None) if !becomes_target => {
            context.commands().write(MODIFY, &command).map(|()| Answer::default())
        }
        (rate_limit, ece) => {
            let rate_limit = rate_limit.unwrap_or_default();
            let extended = ExModifyQp { base: command, rate_limit, reserved: 0 };
            send_extended(context, &extended, burst, ece, becomes_target)
        }
    };
    sent.map_err(|error| explain(error, from, to, attributes))
}

/// Sends the extended command, for attributes that the older command has no field for.
fn send_extended(
    context: &Context,
    extended: &ExModifyQp,
    burst_info: BurstInfo,
    ece: Option<u32>,
    becomes_target: bool,
) -> Result<Answer> {
    let ece_options = ece.unwrap_or_default();
    let driver = DriverRequest { burst_info, ece_options, ..DriverRequest::default() };
    if driver == DriverRequest::default() && ece.is_none() && !becomes_target {
        return context.commands().write(MODIFY, extended).map(|_| Answer::default());
    }
    let mut answer = DriverAnswer::default();
    let (request, response) = (driver.as_bytes(), answer.as_mut_bytes());
    context.commands().write_with(MODIFY, extended, request, response)?;
    Ok(Answer {
        ece: ece.map(|_| answer.ece_options),
        target_number: becomes_target.then_some(answer.dctn),
    })
}

/// Refuses values that do not fit their bits.
fn check_values(attributes: &QpAttributes) -> Result<()> {
    let limits = [
        ("retry_cnt", attributes.retry_count.map(u32::from), 7),
        ("rnr_retry", attributes.rnr_retry.map(u32::from), 7),
        ("rq_psn", attributes.receive_psn, 0xff_ffff),
        ("sq_psn", attributes.send_psn, 0xff_ffff),
        ("dest_qp_num", attributes.remote_qpn, 0xff_ffff),
    ];
    for (name, value, limit) in limits {
        if value.is_some_and(|value| value > limit) {
            return Err(Error::invalid(MODIFY, format!("{name} is at most {limit:#x}")));
        }
    }
    Ok(())
}

/// Refuses what the device does not support, before a command is sent.
fn check_device(context: &Context, qp_type: QpType, wanted: &QpAttributes) -> Result<()> {
    let migrates = wanted.alternate_path.is_some() || wanted.migration_state.is_some();
    if migrates && !context.attributes()?.capabilities().contains(DeviceCapFlags::AUTO_PATH_MIG) {
        let cause = "the device has no automatic path migration (AUTO_PATH_MIG)";
        return Err(Error::unsupported(MODIFY, cause));
    }
    if let Some(path) = wanted.alternate_path {
        // ib_core (`_ib_modify_qp`) would return EINVAL.
        let link = context.query_port(path.address.port)?.link_layer();
        if link != LinkLayer::InfiniBand {
            let cause = format!("alternate paths are for InfiniBand ports, not for {link}");
            return Err(Error::unsupported(MODIFY, cause));
        }
    }
    let Some(rate) = wanted.rate_limit else { return Ok(()) };
    let pacing = context.attributes()?.mlx5.packet_pacing_caps;
    let bit = 1u32.checked_shl(qp_type as u32).unwrap_or(0);
    if pacing.supported_qpts & bit == 0 {
        let cause = format!("the device has no packet pacing for {qp_type} queue pairs");
        return Err(Error::unsupported(MODIFY, cause).asked(format!("rate_limit {rate} kbit/s")));
    }
    let (least, most) = (pacing.qp_rate_limit_min, pacing.qp_rate_limit_max);
    if rate != 0 && !(least..=most).contains(&rate) {
        let cause = format!("the device paces at {least} to {most} kbit/s");
        return Err(Error::invalid(MODIFY, cause).asked(format!("rate_limit {rate} kbit/s")));
    }
    Ok(())
}

fn explain(error: Error, from: State, to: State, attributes: &QpAttributes) -> Error {
    let error = error.asked(format!("{from} to {to}, {}", attributes.mask()));
    if to == State::Sqd && error.errno() == Errno::EINVAL as i32 {
        // `optab` of `__mlx5_ib_modify_qp` (drivers/infiniband/hw/mlx5/qp.c) has no row for SQD.
        return error.because("mlx5_ib has no transition into SQD, though the device has").cure_with(
            "wait for the completions of what was posted, or move the queue pair to ERR to flush it",
        );
    }
    let Some(address) = attributes.address.filter(|_| error.errno() != Errno::EIO as i32) else {
        return error;
    };
    match address.global {
        None => error.because("the path has no GID; RoCE always needs one").cure_with(
            "give the address vector a global route (a chosen source GID and the peer's GID)",
        ),
        Some(route) if error.errno() == Errno::ETIMEDOUT as i32 => {
            ah::unanswered(error, route.destination)
        }
        Some(route) => error.because(format!(
            "the kernel did not accept the path from GID index {} to {} (no such GID, no route, or the neighbour \
             cannot be resolved)",
            route.source_index, route.destination
        )),
    }
}

fn command(handle: u32, attributes: &QpAttributes) -> ModifyQp {
    let alternate = attributes.alternate_path;
    ModifyQp {
        dest: attributes.address.map(destination).unwrap_or_default(),
        alt_dest: alternate.map(|path| destination(path.address)).unwrap_or_default(),
        qp_handle: handle,
        attr_mask: attributes.mask(),
        qkey: attributes.qkey.unwrap_or_default(),
        rq_psn: attributes.receive_psn.unwrap_or_default(),
        sq_psn: attributes.send_psn.unwrap_or_default(),
        dest_qp_num: attributes.remote_qpn.unwrap_or_default(),
        qp_access_flags: attributes.access.unwrap_or_default(),
        pkey_index: attributes.pkey_index.unwrap_or_default(),
        alt_pkey_index: alternate.map_or(0, |path| path.pkey_index),
        qp_state: KernelState(attributes.state.map_or(0, |state| state as u8)),
        cur_qp_state: KernelState(attributes.current_state.map_or(0, |state| state as u8)),
        path_mtu: KernelMtu(attributes.path_mtu.map_or(0, |mtu| mtu as u8)),
        path_mig_state: attributes.migration_state.map(migration_code).unwrap_or_default(),
        en_sqd_async_notify: attributes.drained_notify.unwrap_or_default().into(),
        max_rd_atomic: attributes.max_initiator_reads.unwrap_or_default(),
        max_dest_rd_atomic: attributes.max_responder_reads.unwrap_or_default(),
        min_rnr_timer: attributes.min_rnr_timer.map_or(0, RnrTimer::code),
        port_num: attributes.port.unwrap_or_default(),
        timeout: attributes.timeout.map_or(0, AckTimeout::code),
        retry_cnt: attributes.retry_count.unwrap_or_default(),
        rnr_retry: attributes.rnr_retry.unwrap_or_default(),
        alt_port_num: alternate.map_or(0, |path| path.address.port),
        alt_timeout: alternate.map_or(0, |path| path.timeout.code()),
        reserved: [0; 2],
    }
}

fn migration_code(state: MigrationState) -> MigState {
    match state {
        MigrationState::Migrated => MigState::MIGRATED,
        MigrationState::Rearm => MigState::REARM,
        MigrationState::Armed => MigState::ARMED,
    }
}

/// A queue pair without alternate path reports "migrated"; unknown numbers count as that.
fn migration_state(code: MigState) -> MigrationState {
    match code {
        MigState::REARM => MigrationState::Rearm,
        MigState::ARMED => MigrationState::Armed,
        _ => MigrationState::Migrated,
    }
}

/// Ports begin at 1: without an alternate path the number is 0.
fn alternate_path(answer: &QueryQpResp) -> Option<AlternatePath> {
    (answer.alt_port_num != 0).then(|| AlternatePath {
        address: AddressVector { port: answer.alt_port_num, ..address(&answer.alt_dest) },
        pkey_index: answer.alt_pkey_index,
        timeout: AckTimeout::from_code(answer.alt_timeout),
    })
}

fn destination(address: AddressVector) -> QpDest {
    let route = address.global.unwrap_or_default();
    QpDest {
        dgid: route.destination.0,
        flow_label: route.flow_label,
        dlid: address.lid,
        reserved: 0,
        sgid_index: route.source_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        sl: address.service_level,
        src_path_bits: address.source_path_bits,
        static_rate: address.static_rate,
        is_global: address.global.is_some().into(),
        port_num: address.port,
    }
}

fn address(dest: &QpDest) -> AddressVector {
    AddressVector {
        port: dest.port_num,
        lid: dest.dlid,
        service_level: dest.sl,
        source_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        global: (dest.is_global != 0).then_some(GlobalRoute {
            destination: Gid(dest.dgid),
            source_index: dest.sgid_index,
            flow_label: dest.flow_label,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        }),
    }
}

/// The result of a query of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInfo {
    /// The queue pair's state in the device.
    pub state: State,
    /// Whether an SQD queue pair still has sends in flight.
    pub draining: bool,
    /// Path MTU; `None` in states before RTR.
    pub path_mtu: Option<Mtu>,
    /// The primary path.
    pub address: AddressVector,
    /// The local port.
    pub port: u8,
    /// Index into the partition table.
    pub pkey_index: u16,
    /// The alternate path, while the device has one.
    pub alternate_path: Option<AlternatePath>,
    /// State of automatic path migration.
    pub migration_state: MigrationState,
    /// Q_Key.
    pub qkey: u32,
    /// What peers may do through the queue pair.
    pub access: AccessFlags,
    /// Next PSN expected from the peer, as the device reports it.
    pub receive_psn: u32,
    /// Next PSN to send, as the device reports it.
    pub send_psn: u32,
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// Most outstanding READs and atomics of this end.
    pub max_initiator_reads: u8,
    /// Most outstanding READs and atomics of the peer.
    pub max_responder_reads: u8,
    /// How long the peer has to wait before a retry when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// Local ACK timeout.
    pub timeout: AckTimeout,
    /// Transport retries.
    pub retry_count: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// The capacities granted at creation.
    pub capacities: Capacities,
    /// Whether every send request generates a completion.
    pub signal_all: bool,
}

/// Queries the device. `capacities` come from the library, because the kernel does not know all of
/// them.
pub(super) fn query(
    context: &Context,
    (handle, qp_type): (u32, QpType),
    capacities: Capacities,
) -> Result<QpInfo> {
    const VERB: &str = "query_qp";
    let attr_mask = if qp_type == QpType::DcTarget { DC_TARGET_ATTRIBUTES } else { EVERYTHING };
    let command = QueryQp { response: 0, qp_handle: handle, attr_mask };
    let answer: QueryQpResp = context.commands().write(VERB, &command)?;
    let code = answer.qp_state.0;
    let state = State::from_code(code)
        .ok_or_else(|| Error::new(VERB, ErrorKind::Refused, format!("{code} is not a state")))?;
    Ok(QpInfo {
        state,
        draining: answer.sq_draining != 0,
        path_mtu: Mtu::from_code(answer.path_mtu.0),
        address: address(&answer.dest),
        port: answer.port_num,
        pkey_index: answer.pkey_index,
        alternate_path: alternate_path(&answer),
        migration_state: migration_state(answer.path_mig_state),
        qkey: answer.qkey,
        access: answer.qp_access_flags,
        receive_psn: answer.rq_psn,
        send_psn: answer.sq_psn,
        remote_qpn: answer.dest_qp_num,
        max_initiator_reads: answer.max_rd_atomic,
        max_responder_reads: answer.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::from_code(answer.min_rnr_timer),
        timeout: AckTimeout::from_code(answer.timeout),
        retry_count: answer.retry_cnt,
        rnr_retry: answer.rnr_retry,
        capacities,
        signal_all: answer.sq_sig_all != 0,
    })
}
