//! Creation of queue pairs, in its three forms.
//! Kernel: `UVERBS_METHOD_QP_CREATE`, `create_qp` (core/uverbs_cmd.c), `mlx5_ib_create_qp`
//! (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::QpType as UserQpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::mlx5::{self, CreateQpResp as DriverResponse, QpFlags};
use uverbs_uapi::objects::qp::create;
use uverbs_uapi::write::qp::{CreateQp, CreateQpResp, ExCreateQp, ExCreateQpResp, QpCap};
use zerocopy::IntoBytes;

use super::rss;
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::query_device::MAX_QP_WR;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::context::{NO_BFREG, Register};
use crate::chardev::device::errno;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::options::Options;
use crate::chardev::objects::object::{Kind, Object};
use crate::chardev::objects::qp::{self, Qp};
use crate::chardev::objects::xrcd::Domain;
use crate::core::{
    CqeSize, EventObject, QpParams, QpType, Qpn, ReceiveRing, ReceiveSource, ScatterToCqe,
    SendRing, Srqn,
};
use crate::memory::PageMap;

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(create::HANDLE, Kind::Qp),
    Attribute::handle(create::XRCD_HANDLE, Kind::Xrcd).optional(),
    Attribute::handle(create::PD_HANDLE, Kind::Pd).optional(),
    Attribute::handle(create::SRQ_HANDLE, Kind::Srq).optional(),
    Attribute::handle(create::SEND_CQ_HANDLE, Kind::Cq).optional(),
    Attribute::handle(create::RECV_CQ_HANDLE, Kind::Cq).optional(),
    Attribute::handle(create::IND_TABLE_HANDLE, Kind::RwqIndTbl).optional(),
    Attribute::input(create::USER_HANDLE, 8),
    Attribute::input_struct(create::CAP, size_of::<QpCap>(), size_of::<QpCap>()),
    Attribute::constant(create::TYPE),
    Attribute::flags(create::FLAGS),
    Attribute::input(create::SOURCE_QPN, 4).optional(),
    Attribute::descriptor(create::EVENT_FD, Kind::AsyncEvent).optional(),
    Attribute::output_struct(create::RESP_CAP, size_of::<QpCap>(), size_of::<QpCap>()),
    Attribute::output(create::RESP_QP_NUM, 4),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

/// All send requests are signaled. Only the native form has this flag.
pub(super) const SIGNAL_ALL: u32 = QpCreateFlags::SQ_SIG_ALL.bits();
const BLOCK_MULTICAST_LOOPBACK: u32 = QpCreateFlags::BLOCK_MULTICAST_LOOPBACK.bits();
const CVLAN_STRIPPING: u32 = QpCreateFlags::CVLAN_STRIPPING.bits();
const SCATTER_FCS: u32 = QpCreateFlags::SCATTER_FCS.bits();
const RAW_ONLY: u32 = SCATTER_FCS | CVLAN_STRIPPING;
pub(super) const NATIVE_FLAGS: u32 =
    BLOCK_MULTICAST_LOOPBACK | RAW_ONLY | QpCreateFlags::PCI_WRITE_END_PADDING.bits() | SIGNAL_ALL;
/// Flags of cross-channel and managed queues, which only the extended write form accepts.
const CROSS_CHANNEL: u32 = 0b111 << 2;
const EXTENDED_FLAGS: u32 =
    NATIVE_FLAGS & !SIGNAL_ALL | QpCreateFlags::SOURCE_QPN.bits() | CROSS_CHANNEL;

/// User index of QPs whose CQEs carry none (`MLX5_IB_DEFAULT_UIDX`).
const NO_USER_INDEX: u32 = 0xff_ffff;

/// The parameters that all forms have in common. The objects of the handles have been checked.
struct Request {
    qp_type: QpType,
    pd: Option<u32>,
    send_cq: Option<u32>,
    receive_cq: Option<u32>,
    srq: Option<u32>,
    xrcd: Option<u32>,
    cap: QpCap,
    flags: u32,
    signal_all: bool,
    user_handle: u64,
    events: Option<Arc<EventQueue>>,
}

/// `UVERBS_METHOD_QP_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let cap = call.input(create::CAP)?;
    let user_handle = call.input(create::USER_HANDLE)?;
    let qp_type = qp_type(call, call.constant(create::TYPE, u32::MAX.into())?)?;
    if qp_type != QpType::XrcTarget && call.has(create::IND_TABLE_HANDLE.id()) {
        return rss::create(call, qp_type);
    }
    let (pd, send_cq, receive_cq) = native_handles(call, qp_type)?;
    let flags = call.flags(create::FLAGS, NATIVE_FLAGS)?;
    check_native_flags(qp_type, flags & !SIGNAL_ALL)?;
    if call.has(create::SOURCE_QPN.id()) {
        // Underlay QPs of IPoIB.
        return Err(Errno::EOPNOTSUPP);
    }
    let srq = call.optional_handle(create::SRQ_HANDLE);
    check_srq(call, srq, qp_type)?;
    let mut request = Request {
        qp_type,
        pd,
        send_cq,
        receive_cq,
        srq,
        xrcd: call.optional_handle(create::XRCD_HANDLE),
        cap,
        flags: flags & !SIGNAL_ALL,
        signal_all: flags & SIGNAL_ALL != 0,
        user_handle,
        events: call.async_queue(create::EVENT_FD)?,
    };
    let qpn = build(call, &mut request)?;
    call.output_struct(create::RESP_CAP, &request.cap)?;
    call.output(create::RESP_QP_NUM, &told_number(qp_type, qpn))
}

/// The number in the response to creation: 0 for a DC target, which gets its number at RTR.
fn told_number(qp_type: QpType, qpn: Qpn) -> u32 {
    if qp_type == QpType::DcTarget { 0 } else { qpn.0 }
}

/// The QP type of the request.
fn qp_type(call: &Call<'_>, number: u64) -> Result<QpType, Errno> {
    match UserQpType(u8::try_from(number).map_err(|_| Errno::EINVAL)?) {
        UserQpType::RC => Ok(QpType::Rc),
        UserQpType::UC => Ok(QpType::Uc),
        UserQpType::UD => Ok(QpType::Ud),
        UserQpType::XRC_INI => Ok(QpType::XrcInitiator),
        UserQpType::XRC_TGT => Ok(QpType::XrcTarget),
        UserQpType::RAW_PACKET => Ok(QpType::RawPacket),
        UserQpType::DRIVER => driver_type(call),
        _ => Err(Errno::EINVAL),
    }
}

/// Which of the driver's own types: `check_qp_type` and `process_vendor_flags`.
fn driver_type(call: &Call<'_>) -> Result<QpType, Errno> {
    if !call.file.device.options().dynamically_connected {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = read_driver_request(&call.driver())?.flags;
    match flags & (QpFlags::TYPE_DCI | QpFlags::TYPE_DCT) {
        QpFlags::TYPE_DCI => Ok(QpType::DcInitiator),
        QpFlags::TYPE_DCT => Ok(QpType::DcTarget),
        _ => Err(Errno::EINVAL),
    }
}

type Handles = (Option<u32>, Option<u32>, Option<u32>);

/// The handles of PD, send CQ and receive CQ, as each type requires or refuses them.
fn native_handles(call: &Call<'_>, qp_type: QpType) -> Result<Handles, Errno> {
    let given = |id| call.has(id);
    if qp_type == QpType::XrcTarget {
        let refused = [
            create::RECV_CQ_HANDLE,
            create::SEND_CQ_HANDLE,
            create::PD_HANDLE,
            create::IND_TABLE_HANDLE,
        ];
        if refused.into_iter().any(|attribute| given(attribute.id())) {
            return Err(Errno::EINVAL);
        }
        call.handle(create::XRCD_HANDLE)?;
        return Ok((None, None, None));
    }
    let srq_of_initiator = qp_type == QpType::XrcInitiator && given(create::SRQ_HANDLE.id());
    if given(create::XRCD_HANDLE.id()) || srq_of_initiator {
        return Err(Errno::EINVAL);
    }
    let pd = call.handle(create::PD_HANDLE)?;
    let send_cq = call.handle(create::SEND_CQ_HANDLE)?;
    let receive_cq = match qp_type {
        QpType::XrcInitiator => None,
        _ => Some(call.handle(create::RECV_CQ_HANDLE)?),
    };
    Ok((Some(pd), Some(send_cq), receive_cq))
}

/// `check_creation_flags`.
fn check_native_flags(qp_type: QpType, flags: u32) -> Result<(), Errno> {
    let allowed = match qp_type {
        QpType::RawPacket | QpType::DcInitiator | QpType::DcTarget => true,
        QpType::Ud => flags & RAW_ONLY == 0,
        _ => flags == 0,
    };
    if allowed { Ok(()) } else { Err(Errno::EINVAL) }
}

/// An XRC SRQ is for XRC targets only, a basic SRQ for all other types.
fn check_srq(call: &Call<'_>, srq: Option<u32>, qp_type: QpType) -> Result<(), Errno> {
    let Some(srq) = srq else { return Ok(()) };
    let is_xrc = call.state.handles.get(srq)?.object.srq()?.is_xrc;
    if is_xrc != (qp_type == QpType::XrcTarget) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `IB_USER_VERBS_CMD_CREATE_QP`.
pub(crate) fn create_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CreateQp = call.request()?;
    let extended = ExCreateQp {
        user_handle: request.user_handle,
        pd_handle: request.pd_handle,
        send_cq_handle: request.send_cq_handle,
        recv_cq_handle: request.recv_cq_handle,
        srq_handle: request.srq_handle,
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge,
        max_recv_sge: request.max_recv_sge,
        max_inline_data: request.max_inline_data,
        sq_sig_all: request.sq_sig_all,
        qp_type: request.qp_type,
        is_srq: request.is_srq,
        ..ExCreateQp::default()
    };
    let response = write_form(call, &extended)?;
    call.response(&response)
}

/// `IB_USER_VERBS_EX_CMD_CREATE_QP`.
pub(crate) fn create_extended(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExCreateQp = call.request()?;
    if request.comp_mask.bits() & !1 != 0 || request.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    if request.comp_mask.bits() != 0 {
        return rss::create_by_write(call, &request, qp_type(call, request.qp_type.0.into())?);
    }
    let base = write_form(call, &request)?;
    let response_length = call.response_length::<ExCreateQpResp>();
    call.response(&ExCreateQpResp { base, comp_mask: 0, response_length })
}

fn write_form(call: &mut Call<'_>, asked: &ExCreateQp) -> Result<CreateQpResp, Errno> {
    let qp_type = qp_type(call, asked.qp_type.0.into())?;
    let qp_handle = call.reserve()?;
    let mut cap = QpCap {
        max_send_wr: asked.max_send_wr,
        max_recv_wr: asked.max_recv_wr,
        max_send_sge: asked.max_send_sge,
        max_recv_sge: asked.max_recv_sge,
        max_inline_data: asked.max_inline_data,
    };
    let mut request = Request {
        qp_type,
        pd: None,
        send_cq: None,
        receive_cq: None,
        srq: None,
        xrcd: None,
        cap,
        flags: asked.create_flags.bits(),
        signal_all: asked.sq_sig_all != 0,
        user_handle: asked.user_handle,
        events: call.state.default_async(),
    };
    write_handles(call, asked, &mut request)?;
    if request.flags & !EXTENDED_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let qpn = build(call, &mut request)?;
    cap = request.cap;
    Ok(CreateQpResp {
        qp_handle,
        qpn: told_number(qp_type, qpn),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        reserved: 0,
    })
}

/// In the write form the PD's field has the domain of an XRC target.
fn write_handles(call: &Call<'_>, asked: &ExCreateQp, request: &mut Request) -> Result<(), Errno> {
    if request.qp_type == QpType::XrcTarget {
        let found = call.state.lookup_live(call.file, Kind::Xrcd, asked.pd_handle);
        request.xrcd = Some(asked.pd_handle);
        return found.map_err(|_| Errno::EINVAL);
    }
    if request.qp_type == QpType::XrcInitiator {
        (request.cap.max_recv_wr, request.cap.max_recv_sge) = (0, 0);
    } else {
        if asked.is_srq != 0 {
            call.state.lookup_live(call.file, Kind::Srq, asked.srq_handle)?;
            request.srq = Some(asked.srq_handle);
            check_srq(call, request.srq, request.qp_type)?;
        }
        call.cqn(asked.recv_cq_handle)?;
        request.receive_cq = Some(asked.recv_cq_handle);
    }
    call.cqn(asked.send_cq_handle)?;
    request.send_cq = Some(asked.send_cq_handle);
    call.pdn(asked.pd_handle)?;
    request.pd = Some(asked.pd_handle);
    Ok(())
}

fn build(call: &mut Call<'_>, request: &mut Request) -> Result<Qpn, Errno> {
    match request.qp_type {
        QpType::XrcTarget => build_target(call, request),
        QpType::DcTarget => build_dc_target(call, request),
        _ => build_user(call, request),
    }
}

/// A target has no queues of its own, and the kernel does not pass the request to the driver.
fn build_target(call: &mut Call<'_>, request: &Request) -> Result<Qpn, Errno> {
    let xrcd = request.xrcd.ok_or(Errno::EINVAL)?;
    let domain = call.state.handles.get(xrcd)?.object.xrcd()?.domain.clone();
    let device = call.file.device.clone();
    let params = {
        let (pd, cq) = device.internal_objects();
        QpParams { xrcd: Some(domain.xrcdn), ..QpParams::new(QpType::XrcTarget, pd, cq, cq) }
    };
    let parents = std::iter::once(xrcd).chain(request.srq).collect();
    finish(call, request, params, None, (0, 0), parents, Some(domain))
}

/// As in `create_dct`, creation only records the parameters, because the firmware makes the target
/// at RTR. This device chooses the number now and returns it at RTR.
fn build_dc_target(call: &mut Call<'_>, request: &Request) -> Result<Qpn, Errno> {
    let driver = call.driver();
    let asked = read_driver_request(&driver)?;
    let known = QpFlags::TYPE_DCT | QpFlags::SCATTER_CQE | QpFlags::ALLOW_SCATTER_CQE;
    if !known.contains(asked.flags) {
        return Err(Errno::EINVAL);
    }
    let cqe_version = call.context()?.cqe_version;
    let user_index = user_index(cqe_version, asked.uidx)?;
    let (Some(srq), Some(receive_cq)) = (request.srq, request.receive_cq) else {
        return Err(Errno::EINVAL);
    };
    if request.flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (pd, cqn) = (call.pdn(request.pd.ok_or(Errno::EINVAL)?)?, call.cqn(receive_cq)?);
    let scatter = scatter_size(call, receive_cq, asked.flags)?;
    let params = QpParams {
        receive: ReceiveSource::Srq(srqn(call, srq)?),
        access_key: asked.sq_buf_addr,
        user_index,
        cqe_version_1: cqe_version != 0,
        // Only for CQEs of 128 bytes.
        scatter_responder: match scatter {
            ScatterToCqe::B64 => scatter,
            _ => ScatterToCqe::Off,
        },
        ..QpParams::new(QpType::DcTarget, pd, cqn, cqn)
    };
    let parents = [request.pd, request.send_cq, request.receive_cq, request.srq];
    let parents = parents.into_iter().flatten().collect();
    let qpn = finish(call, request, params, None, (0, 0), parents, None)?;
    driver.write_fitting(DriverResponse::default().as_bytes())?;
    Ok(qpn)
}

/// `create_user_qp` and `create_dci`.
fn build_user(call: &mut Call<'_>, request: &mut Request) -> Result<Qpn, Errno> {
    let driver = call.driver();
    let asked = read_driver_request(&driver)?;
    check_vendor_flags(request, asked.flags)?;
    let cqe_version = call.context()?.cqe_version;
    let user_index = user_index(cqe_version, asked.uidx)?;
    check_service(call, request, cqe_version)?;
    let receives = check_receive_ring(request, &asked)?;
    let (uar, register) = doorbell(call, &asked)?;
    let params = params(call, request, &asked, user_index, cqe_version)?;
    let parents = [request.pd, request.send_cq, request.receive_cq, request.srq]
        .into_iter()
        .flatten()
        .collect();
    let adjusted = register.as_ref().map_or(NO_BFREG, Register::adjusted);
    let qpn = finish(call, request, params, Some((uar, register)), receives, parents, None)?;
    let ece_options = call.file.device.options().connection_options;
    let response =
        DriverResponse { bfreg_index: adjusted, ece_options, ..DriverResponse::default() };
    driver.write_fitting(response.as_bytes())?;
    Ok(qpn)
}

/// `process_create_flags`. A raw packet QP also needs an Ethernet port and CQEs of version 1,
/// because its receive queue is found by user index (`check_valid_flow`).
fn check_service(call: &Call<'_>, request: &Request, cqe_version: u8) -> Result<(), Errno> {
    let raw = request.qp_type == QpType::RawPacket;
    let cap = &request.cap;
    if request.qp_type == QpType::DcInitiator && (cap.max_recv_wr != 0 || cap.max_recv_sge != 0) {
        return Err(Errno::EINVAL);
    }
    let known = BLOCK_MULTICAST_LOOPBACK | if raw { RAW_ONLY } else { 0 };
    if request.flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let fits = cqe_version != 0 && call.file.device.options().is_roce() && request.srq.is_none();
    if raw && !fits { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `process_udata_size` and `check_ucmd_data`.
fn read_driver_request(driver: &Buffers) -> Result<mlx5::CreateQp, Errno> {
    if driver.input_length() < std::mem::offset_of!(mlx5::CreateQp, ece_options) {
        return Err(Errno::EINVAL);
    }
    let reserved = std::mem::offset_of!(mlx5::CreateQp, reserved);
    if driver.input_length() > reserved && !driver.is_clear_from(reserved)? {
        return Err(Errno::EINVAL);
    }
    driver.read()
}

/// `process_vendor_flags`, for a device without streams of DC initiators and without packet-based
/// credits.
fn check_vendor_flags(request: &Request, flags: QpFlags) -> Result<(), Errno> {
    let own = match request.qp_type {
        QpType::DcInitiator => QpFlags::TYPE_DCI,
        _ => QpFlags::empty(),
    };
    let known = own
        | QpFlags::SIGNATURE
        | QpFlags::SCATTER_CQE
        | QpFlags::ALLOW_SCATTER_CQE
        | QpFlags::BFREG_INDEX
        | QpFlags::UAR_PAGE_INDEX;
    if known.contains(flags) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `verify_assign_uidx`: CQEs of version 1 carry the program's index, those of version 0 the QP
/// number.
pub(crate) fn user_index(cqe_version: u8, asked: u32) -> Result<u32, Errno> {
    match cqe_version {
        0 if asked == NO_USER_INDEX => Ok(NO_USER_INDEX),
        1.. if asked < NO_USER_INDEX => Ok(asked),
        _ => Err(Errno::EINVAL),
    }
}

/// `set_rq_size`: WQEs in the ring, and entries in each. Without a receive queue both have to be 0.
fn check_receive_ring(request: &mut Request, asked: &mlx5::CreateQp) -> Result<(u32, u32), Errno> {
    let max = 1 << Options::LOG_MAX_QP_SIZE;
    // mlx5_ib grants receive queues of up to `max`, which is more than the `max_qp_wr` that it
    // announces. This device grants no more than it announces.
    if request.cap.max_recv_wr > MAX_QP_WR || asked.sq_wqe_count > max {
        return Err(Errno::EINVAL);
    }
    let has_ring = !matches!(request.qp_type, QpType::XrcInitiator | QpType::DcInitiator)
        && request.srq.is_none()
        && request.cap.max_recv_wr != 0;
    if !has_ring {
        (request.cap.max_recv_wr, request.cap.max_recv_sge) = (0, 0);
        let none = asked.rq_wqe_count == 0 && asked.rq_wqe_shift == 0;
        return if none { Ok((0, 0)) } else { Err(Errno::EINVAL) };
    }
    let size =
        1i32.checked_shl(asked.rq_wqe_shift).filter(|size| *size > 0).ok_or(Errno::EINVAL)?;
    let signature = u32::from(asked.flags.contains(QpFlags::SIGNATURE));
    let entries = (size as u32 / 16).checked_sub(signature).ok_or(Errno::EINVAL)?;
    Ok((asked.rq_wqe_count, entries))
}

/// The UAR page of the send queue's doorbells, and the register if the driver chooses one.
fn doorbell(call: &mut Call<'_>, asked: &mlx5::CreateQp) -> Result<(u32, Option<Register>), Errno> {
    let (by_page, by_register) =
        (asked.flags.contains(QpFlags::UAR_PAGE_INDEX), asked.flags.contains(QpFlags::BFREG_INDEX));
    match (by_page, by_register) {
        (true, true) => Err(Errno::EINVAL),
        (true, false) => Ok((asked.bfreg_index, None)),
        (false, true) => {
            Ok((call.context_mut()?.static_uars()?.dynamic_uar_of(asked.bfreg_index)?, None))
        }
        (false, false) => {
            let uars = call.context_mut()?.static_uars()?;
            let register = uars.take_register();
            Ok((uars.uar_of(register.index())?, Some(register)))
        }
    }
}

fn params(
    call: &mut Call<'_>,
    request: &Request,
    asked: &mlx5::CreateQp,
    user_index: u32,
    cqe_version: u8,
) -> Result<QpParams, Errno> {
    let pd = call.pdn(request.pd.ok_or(Errno::EINVAL)?)?;
    let send_handle = request.send_cq.ok_or(Errno::EINVAL)?;
    let receive_handle = request.receive_cq.unwrap_or(send_handle);
    let (send_cq, receive_cq) = (call.cqn(send_handle)?, call.cqn(receive_handle)?);
    let (send_ring, receive_ring) = rings(call, request, asked)?;
    call.user.pin(asked.db_addr, 8, true)?;
    let scatter = |handle| scatter_size(call, handle, asked.flags);
    let connected = matches!(request.qp_type, QpType::Rc | QpType::Uc);
    Ok(QpParams {
        send_ring,
        receive: receive_source(call, request, receive_ring)?,
        doorbell_record: asked.db_addr,
        user_index,
        cqe_version_1: cqe_version != 0,
        scatter_requester: requester_scatter(request, asked.flags, scatter(send_handle)?),
        scatter_responder: if connected { scatter(receive_handle)? } else { ScatterToCqe::Off },
        signatures: asked.flags.contains(QpFlags::SIGNATURE),
        block_multicast_loopback: request.flags & BLOCK_MULTICAST_LOOPBACK != 0,
        strip_vlan: request.flags & CVLAN_STRIPPING != 0,
        scatter_check_sequence: request.flags & SCATTER_FCS != 0,
        ..QpParams::new(request.qp_type, pd, send_cq, receive_cq)
    })
}

/// Both rings are in one buffer, the receive ring first. A raw packet QP's send ring has its own
/// buffer (`set_user_buf_size`).
fn rings(
    call: &mut Call<'_>,
    request: &Request,
    asked: &mlx5::CreateQp,
) -> Result<(Option<SendRing>, Option<ReceiveRing>), Errno> {
    if asked.sq_wqe_count != 0 && !asked.sq_wqe_count.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    let receive_size = u64::from(asked.rq_wqe_count) << asked.rq_wqe_shift;
    let send_size = u64::from(asked.sq_wqe_count) * 64;
    if receive_size + send_size > i32::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let raw = request.qp_type == QpType::RawPacket;
    if raw && receive_size + send_size == 0 {
        return Err(Errno::EINVAL);
    }
    let send_at = if raw {
        pin_ring(call, asked.buf_addr, receive_size)?;
        pin_ring(call, asked.sq_buf_addr, send_size)?;
        check_offset(asked.buf_addr)?;
        check_offset(asked.sq_buf_addr)?;
        asked.sq_buf_addr
    } else {
        pin_ring(call, asked.buf_addr, receive_size + send_size)?;
        asked.buf_addr.wrapping_add(receive_size)
    };
    let send = (asked.sq_wqe_count != 0).then(|| SendRing {
        buffer: PageMap::linear(send_at),
        log_blocks: asked.sq_wqe_count.trailing_zeros() as u8,
    });
    let receive = (request.cap.max_recv_wr != 0 && asked.rq_wqe_count != 0).then(|| ReceiveRing {
        buffer: PageMap::linear(asked.buf_addr),
        log_wqes: asked.rq_wqe_count.ilog2() as u8,
        log_stride: asked.rq_wqe_shift as u8,
    });
    Ok((send, receive))
}

/// Charges and pins a ring, if there is one.
pub(crate) fn pin_ring(call: &mut Call<'_>, address: u64, size: u64) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    // Address 0 means that the program has no ring.
    if address == 0 {
        return Err(Errno::EINVAL);
    }
    call.charge_ring(address, size)?;
    call.user.pin(address, size, false)?;
    if address % 64 != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// A ring in its own buffer starts in the first half of a page: `page_offset` of `mlx5_ifc_wq_bits`
/// has five bits, in units of 64 bytes (`mlx5_umem_find_best_quantized_pgoff`, which accepts more
/// if pages are contiguous).
pub(crate) fn check_offset(address: u64) -> Result<(), Errno> {
    if address % 4096 < 2048 { Ok(()) } else { Err(Errno::EINVAL) }
}

fn receive_source(
    call: &Call<'_>,
    request: &Request,
    ring: Option<ReceiveRing>,
) -> Result<ReceiveSource, Errno> {
    match (request.srq, ring) {
        (Some(handle), _) => Ok(ReceiveSource::Srq(srqn(call, handle)?)),
        (None, Some(ring)) => Ok(ReceiveSource::Ring(ring)),
        (None, None) => Ok(ReceiveSource::None),
    }
}

fn srqn(call: &Call<'_>, handle: u32) -> Result<Srqn, Errno> {
    Ok(call.state.handles.get(handle)?.object.srq()?.srqn)
}

/// How much data the device scatters to CQEs of this queue, if the program allows it.
fn scatter_size(call: &Call<'_>, cq: u32, flags: QpFlags) -> Result<ScatterToCqe, Errno> {
    if !flags.contains(QpFlags::SCATTER_CQE) {
        return Ok(ScatterToCqe::Off);
    }
    Ok(match call.state.handles.get(cq)?.object.cq()?.cqe_size {
        CqeSize::B64 => ScatterToCqe::B32,
        CqeSize::B128 => ScatterToCqe::B64,
    })
}

/// `configure_requester_scat_cqe`: only if all requests are signaled, or the program sets the flag
/// for it.
fn requester_scatter(request: &Request, flags: QpFlags, size: ScatterToCqe) -> ScatterToCqe {
    let allowed = request.signal_all || flags.contains(QpFlags::ALLOW_SCATTER_CQE);
    if request.qp_type == QpType::Rc && allowed { size } else { ScatterToCqe::Off }
}

/// Creates the QP in the device, connects its doorbell and events, and stores it under its handle.
fn finish(
    call: &mut Call<'_>,
    request: &Request,
    params: QpParams,
    doorbell: Option<(u32, Option<Register>)>,
    receives: (u32, u32),
    parents: Vec<u32>,
    domain: Option<Arc<Domain>>,
) -> Result<Qpn, Errno> {
    let device = call.file.device.clone();
    let events = Reporter::new(request.events.clone(), request.user_handle);
    let page = doorbell.as_ref().map(|(uar, _)| device.uars.page(*uar)).transpose()?;
    let qpn = device.control(|machine| {
        let qpn = machine.core.create_qp(params).map_err(errno)?;
        if let Some(page) = &page {
            machine.uars.attach_send_queue(page, qpn);
        }
        device.routes().add(EventObject::Qp(qpn), &events);
        Ok(qpn)
    })?;
    let driver = qp::fresh();
    if let Some(domain) = &domain {
        domain.add_target(qpn, qp::new_target(&driver));
    }
    call.commit(Object::Qp(Qp {
        qpn,
        uar: page,
        parents,
        qp_type: request.qp_type,
        events,
        receives,
        signal_all: request.signal_all,
        register: doorbell.and_then(|(_, register)| register),
        groups: Vec::new(),
        driver,
        domain,
        spreads: false,
    }))?;
    Ok(qpn)
}
