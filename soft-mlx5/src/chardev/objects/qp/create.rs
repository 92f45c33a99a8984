//! Creation of queue pairs, in its three forms.
//! Kernel: `UVERBS_METHOD_QP_CREATE`, `create_qp` (core/uverbs_cmd.c), `mlx5_ib_create_qp`
//! (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::{QpType as UserQpType, SrqType};
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::mlx5::QpFlags;
use uverbs_uapi::objects::qp::create;
use uverbs_uapi::write::qp::{CreateQp, CreateQpResp, ExCreateQp, ExCreateQpResp, QpCap};

use super::build::build;
use super::driver_request::read_driver_request;
use super::rss;
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::objects::object::Kind;
use crate::core::{QpType, Qpn};

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
pub(super) const BLOCK_MULTICAST_LOOPBACK: u32 = QpCreateFlags::BLOCK_MULTICAST_LOOPBACK.bits();
pub(super) const CVLAN_STRIPPING: u32 = QpCreateFlags::CVLAN_STRIPPING.bits();
pub(super) const SCATTER_FCS: u32 = QpCreateFlags::SCATTER_FCS.bits();
pub(super) const RAW_ONLY: u32 = SCATTER_FCS | CVLAN_STRIPPING;
pub(super) const NATIVE_FLAGS: u32 =
    BLOCK_MULTICAST_LOOPBACK | RAW_ONLY | QpCreateFlags::PCI_WRITE_END_PADDING.bits() | SIGNAL_ALL;
/// Flags of cross-channel and managed queues, which only the extended write form accepts.
const CROSS_CHANNEL: u32 = 0b111 << 2;
const EXTENDED_FLAGS: u32 =
    NATIVE_FLAGS & !SIGNAL_ALL | QpCreateFlags::SOURCE_QPN.bits() | CROSS_CHANNEL;

/// The parameters that all forms have in common. The objects of the handles have been checked.
pub(super) struct Request {
    pub(super) qp_type: QpType,
    pub(super) handles: Handles,
    pub(super) cap: QpCap,
    pub(super) flags: u32,
    pub(super) signal_all: bool,
    pub(super) user_handle: u64,
    pub(super) events: Option<Arc<EventQueue>>,
}

/// Handles of the objects that a queue pair uses.
#[derive(Clone, Copy, Default)]
pub(super) struct Handles {
    pub(super) xrcd: Option<u32>,
    pub(super) pd: Option<u32>,
    pub(super) send_cq: Option<u32>,
    pub(super) receive_cq: Option<u32>,
    pub(super) srq: Option<u32>,
}

impl Handles {
    pub(super) fn all(&self) -> Vec<u32> {
        let Self { xrcd, pd, send_cq, receive_cq, srq } = *self;
        [xrcd, pd, send_cq, receive_cq, srq].into_iter().flatten().collect()
    }
}

/// `UVERBS_METHOD_QP_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let cap = call.input(create::CAP)?;
    let user_handle = call.input(create::USER_HANDLE)?;
    let qp_type = qp_type(call, call.constant(create::TYPE, u32::MAX.into())?)?;
    if qp_type != QpType::XrcTarget && call.has(create::IND_TABLE_HANDLE.id()) {
        return rss::create(call, qp_type);
    }
    let handles = native_handles(call, qp_type)?;
    let flags = call.flags(create::FLAGS, NATIVE_FLAGS)?;
    check_native_flags(qp_type, flags & !SIGNAL_ALL)?;
    if call.has(create::SOURCE_QPN.id()) {
        // Underlay QPs of IPoIB.
        return Err(Errno::EOPNOTSUPP);
    }
    check_srq(call, handles.srq, qp_type)?;
    let mut request = Request {
        qp_type,
        handles,
        cap,
        flags: flags & !SIGNAL_ALL,
        signal_all: flags & SIGNAL_ALL != 0,
        user_handle,
        events: call.async_queue(create::EVENT_FD)?,
    };
    let qpn = build(call, &mut request)?;
    call.output_struct(create::RESP_CAP, &request.cap)?;
    call.output(create::RESP_QP_NUM, &response_number(qp_type, qpn))
}

/// The number in the response to creation: 0 for a DC target, which gets its number at RTR.
fn response_number(qp_type: QpType, qpn: Qpn) -> u32 {
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

/// The QP type that the driver's flags select (`check_qp_type`, `process_vendor_flags`).
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

/// The handles, as each type requires or refuses them.
fn native_handles(call: &Call<'_>, qp_type: QpType) -> Result<Handles, Errno> {
    let given = |id| call.has(id);
    let srq = call.optional_handle(create::SRQ_HANDLE);
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
        let xrcd = Some(call.handle(create::XRCD_HANDLE)?);
        return Ok(Handles { xrcd, srq, ..Handles::default() });
    }
    let srq_of_initiator = qp_type == QpType::XrcInitiator && srq.is_some();
    if given(create::XRCD_HANDLE.id()) || srq_of_initiator {
        return Err(Errno::EINVAL);
    }
    let pd = Some(call.handle(create::PD_HANDLE)?);
    let send_cq = Some(call.handle(create::SEND_CQ_HANDLE)?);
    let receive_cq = match qp_type {
        QpType::XrcInitiator => None,
        _ => Some(call.handle(create::RECV_CQ_HANDLE)?),
    };
    Ok(Handles { xrcd: None, pd, send_cq, receive_cq, srq })
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
    let is_xrc = call.any_object(srq)?.srq()?.srq_type == SrqType::XRC;
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

fn write_form(call: &mut Call<'_>, cmd: &ExCreateQp) -> Result<CreateQpResp, Errno> {
    let qp_type = qp_type(call, cmd.qp_type.0.into())?;
    let qp_handle = call.reserve()?;
    let mut cap = QpCap {
        max_send_wr: cmd.max_send_wr,
        max_recv_wr: cmd.max_recv_wr,
        max_send_sge: cmd.max_send_sge,
        max_recv_sge: cmd.max_recv_sge,
        max_inline_data: cmd.max_inline_data,
    };
    if qp_type == QpType::XrcInitiator {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let mut request = Request {
        qp_type,
        handles: write_handles(call, cmd, qp_type)?,
        cap,
        flags: cmd.create_flags.bits(),
        signal_all: cmd.sq_sig_all != 0,
        user_handle: cmd.user_handle,
        events: call.state.default_async(),
    };
    if request.flags & !EXTENDED_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let qpn = build(call, &mut request)?;
    let cap = request.cap;
    Ok(CreateQpResp {
        qp_handle,
        qpn: response_number(qp_type, qpn),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        reserved: 0,
    })
}

/// In the write form, the PD's field holds the XRC domain of an XRC target.
fn write_handles(call: &Call<'_>, cmd: &ExCreateQp, qp_type: QpType) -> Result<Handles, Errno> {
    let mut handles = Handles::default();
    if qp_type == QpType::XrcTarget {
        let found = call.state.lookup_live(call.file, Kind::Xrcd, cmd.pd_handle);
        handles.xrcd = Some(cmd.pd_handle);
        return found.map(|()| handles).map_err(|_| Errno::EINVAL);
    }
    if qp_type != QpType::XrcInitiator {
        if cmd.is_srq != 0 {
            call.state.lookup_live(call.file, Kind::Srq, cmd.srq_handle)?;
            handles.srq = Some(cmd.srq_handle);
            check_srq(call, handles.srq, qp_type)?;
        }
        call.cqn(cmd.recv_cq_handle)?;
        handles.receive_cq = Some(cmd.recv_cq_handle);
    }
    call.cqn(cmd.send_cq_handle)?;
    call.pdn(cmd.pd_handle)?;
    Ok(Handles { pd: Some(cmd.pd_handle), send_cq: Some(cmd.send_cq_handle), ..handles })
}
