//! Receive work queues. In the core each is a raw packet QP that only receives.
//! Kernel: uverbs_std_types_wq.c, `ib_uverbs_ex_create_wq` and neighbours (core/uverbs_cmd.c),
//! `mlx5_ib_create_wq`, `prepare_user_rq` and `mlx5_ib_modify_wq` (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::{WqState, WqType};
use uverbs_uapi::flags::{WqAttrMask, WqFlags};
use uverbs_uapi::mlx5::flags::{CreateWqMask, WqFlags as DriverFlags};
use uverbs_uapi::mlx5::wq::{self, CreateWq, CreateWqResp as DriverResponse};
use uverbs_uapi::objects::wq::{create, destroy};
use uverbs_uapi::write::wq::{
    ExCreateWq, ExCreateWqResp, ExDestroyWq, ExDestroyWqResp, ExModifyWq,
};
use zerocopy::IntoBytes;

use super::object::{Kind, Object};
use super::qp::driver_request::{check_offset, pin_ring, user_index};
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::options::Options;
use crate::chardev::device::{DeviceShared, errno};
use crate::core::{
    EventObject, QpAttributes, QpParams, QpState, QpType, Qpn, ReceiveRing, ReceiveSource, Striding,
};
use crate::memory::PageMap;

/// log2 of a stride's bytes (`MLX5_MIN_SINGLE_STRIDE_LOG_NUM_BYTES` and its neighbour).
pub(crate) const LOG_STRIDE_BYTES: RangeInclusive<u32> = 6..=13;
/// log2 of a WQE's strides (from `MLX5_EXT_MIN_SINGLE_WQE_LOG_NUM_STRIDES` on).
pub(crate) const LOG_STRIDES: RangeInclusive<u32> = 3..=14;

/// A receive work queue.
#[derive(Debug)]
pub(crate) struct Wq {
    pub(crate) qpn: Qpn,
    /// Protection domain and completion queue.
    pub(crate) parents: [u32; 2],
    pub(crate) events: Reporter,
    /// The state that the driver remembers.
    state: WqState,
}

impl Wq {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.control(|machine| {
            machine.core.destroy_qp(self.qpn).map_err(errno)?;
            device.routes().remove(EventObject::Qp(self.qpn), &self.events);
            Ok(())
        })
    }
}

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(create::HANDLE, Kind::Wq),
    Attribute::handle(create::PD_HANDLE, Kind::Pd),
    Attribute::handle(create::CQ_HANDLE, Kind::Cq).optional(),
    Attribute::input(create::USER_HANDLE, 8),
    Attribute::constant(create::TYPE),
    Attribute::descriptor(create::EVENT_FD, Kind::AsyncEvent).optional(),
    Attribute::input(create::MAX_WR, 4),
    Attribute::input(create::MAX_SGE, 4),
    Attribute::flags(create::FLAGS),
    Attribute::output(create::RESP_MAX_WR, 4),
    Attribute::output(create::RESP_MAX_SGE, 4),
    Attribute::output(create::RESP_WQ_NUM, 4).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

pub(crate) const DESTROY: &[Attribute] = &[
    Attribute::destroy(destroy::HANDLE, Kind::Wq),
    Attribute::output(destroy::RESP, size_of::<u32>()),
];

/// The parameters that both forms have in common.
struct Request {
    wq_type: WqType,
    pd: u32,
    cq: u32,
    max_wr: u32,
    flags: WqFlags,
    user_handle: u64,
    events: Option<Arc<EventQueue>>,
}

/// `UVERBS_METHOD_WQ_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let max_sge: u32 = call.input(create::MAX_SGE)?;
    let max_wr = call.input(create::MAX_WR)?;
    let user_handle = call.input(create::USER_HANDLE)?;
    let wq_type = WqType(call.constant(create::TYPE, u32::MAX.into())? as u32);
    let flags = WqFlags::from_bits_retain(call.flags(create::FLAGS, WqFlags::all().bits())?);
    if wq_type != WqType::RQ {
        return Err(Errno::EINVAL);
    }
    let request = Request {
        wq_type,
        pd: call.handle(create::PD_HANDLE)?,
        cq: call.handle(create::CQ_HANDLE)?,
        max_wr,
        flags,
        user_handle,
        events: call.async_queue(create::EVENT_FD)?,
    };
    let qpn = build(call, &request)?;
    call.output(create::RESP_MAX_WR, &max_wr)?;
    call.output(create::RESP_MAX_SGE, &max_sge)?;
    call.optional_output(create::RESP_WQ_NUM, &qpn.0)
}

/// `IB_USER_VERBS_EX_CMD_CREATE_WQ`.
pub(crate) fn create_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let cmd: ExCreateWq = call.request()?;
    if cmd.comp_mask != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let wq_handle = call.reserve()?;
    let request = Request {
        wq_type: cmd.wq_type,
        pd: cmd.pd_handle,
        cq: cmd.cq_handle,
        max_wr: cmd.max_wr,
        flags: cmd.create_flags,
        user_handle: cmd.user_handle,
        events: call.state.default_async(),
    };
    let qpn = build(call, &request)?;
    let response_length = call.response_length::<ExCreateWqResp>();
    call.response(&ExCreateWqResp {
        comp_mask: 0,
        response_length,
        wq_handle,
        max_wr: cmd.max_wr,
        max_sge: cmd.max_sge,
        wqn: qpn.0,
    })
}

/// `mlx5_ib_create_wq`.
fn build(call: &mut Call<'_>, request: &Request) -> Result<Qpn, Errno> {
    let driver = call.driver();
    let device = call.file.device.clone();
    let (pd, cq) = (call.pdn(request.pd)?, call.cqn(request.cq)?);
    if !device.options().is_roce() {
        return Err(Errno::EOPNOTSUPP);
    }
    check_driver_response(&driver)?;
    check_request(request)?;
    let ucmd = read_driver_request(&driver)?;
    check_size(request, &ucmd)?;
    let striding = striding(&ucmd)?;
    pin_ring(call, ucmd.buf_addr, u64::from(ucmd.rq_wqe_count) << ucmd.rq_wqe_shift)?;
    check_offset(ucmd.buf_addr)?;
    call.user.pin(ucmd.db_addr, 8, true)?;
    let params = QpParams {
        receive: ReceiveSource::Ring(ReceiveRing {
            buffer: PageMap::linear(ucmd.buf_addr),
            log_wqes: ucmd.rq_wqe_count.ilog2() as u8,
            log_stride: ucmd.rq_wqe_shift as u8,
        }),
        doorbell_record: ucmd.db_addr,
        user_index: user_index(call.context()?.cqe_version, ucmd.user_index)?,
        signatures: ucmd.flags.contains(DriverFlags::SIGNATURE),
        strip_vlan: request.flags.contains(WqFlags::CVLAN_STRIPPING),
        striding,
        scatter_check_sequence: request.flags.contains(WqFlags::SCATTER_FCS),
        ..QpParams::new(QpType::RawPacket, pd, cq, cq)
    };
    let events = Reporter::of_work_queue(request.events.clone(), request.user_handle);
    let qpn = device.control(|machine| {
        let qpn = machine.core.create_qp(params).map_err(errno)?;
        device.routes().add(EventObject::Qp(qpn), &events);
        Ok(qpn)
    })?;
    let parents = [request.pd, request.cq];
    call.commit(Object::Wq(Wq { qpn, parents, events, state: WqState::RESET }))?;
    let response_length = size_of::<u32>() as u32;
    let response = DriverResponse { response_length, ..DriverResponse::default() };
    driver.write_fitting(&response.as_bytes()[..size_of::<u32>()])?;
    Ok(qpn)
}

fn check_driver_response(driver: &Buffers) -> Result<(), Errno> {
    let length = driver.output_length();
    if length != 0 && length < size_of::<DriverResponse>() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Delayed drops need CAP_SYS_RAWIO in the kernel. This device does not support them.
fn check_request(request: &Request) -> Result<(), Errno> {
    if request.flags.contains(WqFlags::DELAY_DROP) {
        return Err(Errno::EPERM);
    }
    if request.wq_type != WqType::RQ {
        return Err(Errno::EINVAL);
    }
    if !WqFlags::all().contains(request.flags) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// `prepare_user_rq`.
fn read_driver_request(driver: &Buffers) -> Result<CreateWq, Errno> {
    let required = std::mem::offset_of!(CreateWq, single_wqe_log_num_of_strides);
    let request: CreateWq = driver.read_known(required, Errno::EOPNOTSUPP)?;
    if !CreateWqMask::STRIDING_RQ.contains(request.comp_mask) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(request)
}

/// The requested strides: `prepare_user_rq` of a device with `ext_stride_num_range`. The kernel
/// accepts up to 2^16 strides; this device accepts only as many as a CQE can report as consumed.
fn striding(ucmd: &CreateWq) -> Result<Option<Striding>, Errno> {
    if ucmd.comp_mask.is_empty() {
        return Ok(None);
    }
    let (bytes, strides) =
        (ucmd.single_stride_log_num_of_bytes, ucmd.single_wqe_log_num_of_strides);
    if !LOG_STRIDE_BYTES.contains(&bytes) || !LOG_STRIDES.contains(&strides) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(Striding {
        log_bytes: bytes as u8,
        log_strides: strides as u8,
        two_byte_shift: ucmd.two_byte_shift_en != 0,
    }))
}

/// `set_user_rq_size`. If the count is not a power of two, the kernel uses its base-2 logarithm,
/// rounded down.
fn check_size(request: &Request, ucmd: &CreateWq) -> Result<(), Errno> {
    let shift = (4..=11).contains(&ucmd.rq_wqe_shift);
    let count = (1..=1 << Options::LOG_MAX_QP_SIZE).contains(&ucmd.rq_wqe_count);
    if request.max_wr > 1 << Options::LOG_MAX_QP_SIZE || !count || !shift {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// `IB_USER_VERBS_EX_CMD_MODIFY_WQ`.
pub(crate) fn modify(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExModifyWq = call.request()?;
    let given = request.attr_mask;
    if given.is_empty() || !WqAttrMask::all().contains(given) {
        return Err(Errno::EINVAL);
    }
    let driver = call.driver();
    let device = call.file.device.clone();
    let wq = call.object_mut(Kind::Wq, request.wq_handle)?.wq_mut()?;
    let (from, to) = states(&request, wq.state)?;
    check_driver_request(&driver)?;
    let strips = stripping(&request)?;
    change_state(&device, wq, from, to)?;
    if let Some(strips) = strips {
        device.core(|core| core.strip_vlan(wq.qpn, strips))?;
    }
    Ok(())
}

/// The current and the new state that the request names; by default the queue's state.
fn states(request: &ExModifyWq, now: WqState) -> Result<(WqState, WqState), Errno> {
    let named = |bit, state: WqState, otherwise| match request.attr_mask.contains(bit) {
        true if state.0 > WqState::ERR.0 => Err(Errno::EINVAL),
        true => Ok(state),
        false => Ok(otherwise),
    };
    let from = named(WqAttrMask::CURR_STATE, request.curr_wq_state, now)?;
    Ok((from, named(WqAttrMask::STATE, request.wq_state, from)?))
}

fn check_driver_request(driver: &Buffers) -> Result<(), Errno> {
    let size = size_of::<wq::ModifyWq>();
    if driver.input_length() < size {
        return Err(Errno::EINVAL);
    }
    if driver.is_clear_from(0)? { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Whether tags are stripped from now on. No other flag can be changed.
fn stripping(request: &ExModifyWq) -> Result<Option<bool>, Errno> {
    if !request.attr_mask.contains(WqAttrMask::FLAGS) {
        return Ok(None);
    }
    if request.flags_mask.contains(WqFlags::PCI_WRITE_END_PADDING) {
        return Err(Errno::EOPNOTSUPP);
    }
    let strips = request.flags.contains(WqFlags::CVLAN_STRIPPING);
    Ok(request.flags_mask.contains(WqFlags::CVLAN_STRIPPING).then_some(strips))
}

/// MODIFY_RQ: the firmware refuses a state that the queue is not in, and RDY from ERR.
fn change_state(
    device: &DeviceShared,
    wq: &mut Wq,
    from: WqState,
    to: WqState,
) -> Result<(), Errno> {
    let now = match device.core(|core| core.query_qp(wq.qpn))?.state {
        QpState::Reset | QpState::Init => WqState::RESET,
        QpState::Error | QpState::SendQueueError => WqState::ERR,
        _ => WqState::RDY,
    };
    if from != now || (from, to) == (WqState::ERR, WqState::RDY) {
        return Err(Errno::EINVAL);
    }
    let steps: &[QpState] = match to {
        _ if to == now => &[],
        WqState::RDY => &[QpState::Init, QpState::ReadyToReceive],
        WqState::RESET => &[QpState::Reset],
        _ => &[QpState::Error],
    };
    for step in steps {
        device.core(|core| core.modify_qp(wq.qpn, *step, &QpAttributes::default()))?;
    }
    wq.state = to;
    Ok(())
}

/// `UVERBS_METHOD_WQ_DESTROY`. Unlike other queues' responses, this one is only the number of
/// events.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let events_reported = call.destroyed()?.wq()?.events.reported();
    call.output(destroy::RESP, &events_reported)
}

/// `IB_USER_VERBS_EX_CMD_DESTROY_WQ`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExDestroyWq = call.request()?;
    if request.comp_mask != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    call.destroy(Kind::Wq, request.wq_handle)?;
    let events_reported = call.destroyed()?.wq()?.events.reported();
    let response_length = call.response_length::<ExDestroyWqResp>();
    call.response(&ExDestroyWqResp {
        response_length,
        events_reported,
        ..ExDestroyWqResp::default()
    })
}
