//! Shared receive queues: basic, XRC and tag matching.
//! Kernel: uverbs_std_types_srq.c, `__uverbs_create_xsrq` and neighbours in uverbs_cmd.c,
//! hw/mlx5/srq.c.
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::flags::SrqAttrMask;
use uverbs_uapi::mlx5::{self, SrqFlags};
use uverbs_uapi::objects::srq::{create, destroy};
use uverbs_uapi::write::srq::{
    CreateSrq, CreateSrqResp, CreateXsrq, DestroySrq, DestroySrqResp, ModifySrq, QuerySrq,
    QuerySrqResp,
};
use zerocopy::IntoBytes;

use super::object::{Kind, Object};
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::options::Options;
use crate::chardev::device::{DeviceShared, errno};
use crate::chardev::objects::qp::driver_request::user_index;
use crate::core::{EventObject, SrqOrder, SrqParams, Srqn, TagParams, XrcSrqParams};
use crate::memory::PageMap;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: Srqn,
    pub(crate) parents: Vec<u32>,
    pub(crate) srq_type: SrqType,
    pub(crate) events: Reporter,
    /// WQEs in the ring.
    ring: u32,
    /// `max_wr` in the answer to a query.
    max_wr: u32,
    max_sge: u32,
}

impl Srq {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.control(|machine| {
            machine.core.destroy_srq(self.srqn).map_err(errno)?;
            device.routes().remove(EventObject::Srq(self.srqn), &self.events);
            Ok(())
        })
    }
}

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(create::HANDLE, Kind::Srq),
    Attribute::handle(create::PD_HANDLE, Kind::Pd),
    Attribute::constant(create::TYPE),
    Attribute::input(create::USER_HANDLE, 8),
    Attribute::input(create::MAX_WR, 4),
    Attribute::input(create::MAX_SGE, 4),
    Attribute::input(create::LIMIT, 4),
    Attribute::handle(create::XRCD_HANDLE, Kind::Xrcd).optional(),
    Attribute::handle(create::CQ_HANDLE, Kind::Cq).optional(),
    Attribute::input(create::MAX_NUM_TAGS, 4).optional(),
    Attribute::descriptor(create::EVENT_FD, Kind::AsyncEvent).optional(),
    Attribute::output(create::RESP_MAX_WR, 4),
    Attribute::output(create::RESP_MAX_SGE, 4),
    Attribute::output(create::RESP_SRQ_NUM, 4).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

pub(crate) const DESTROY: &[Attribute] = &[
    Attribute::destroy(destroy::HANDLE, Kind::Srq),
    Attribute::output(destroy::RESP, size_of::<DestroySrqResp>()),
];

/// The parameters that all forms have in common.
struct Request {
    srq_type: SrqType,
    pd: u32,
    cq: Option<u32>,
    xrcd: Option<u32>,
    /// Entries of the tag list.
    tags: Option<u32>,
    max_wr: u32,
    max_sge: u32,
    user_handle: u64,
    events: Option<Arc<EventQueue>>,
}

/// Number and granted size.
struct Created {
    srqn: Srqn,
    max_wr: u32,
}

/// `UVERBS_METHOD_SRQ_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let max_sge = call.input(create::MAX_SGE)?;
    let srq_type = SrqType(call.constant(create::TYPE, u32::MAX.into())? as u32);
    if !matches!(srq_type, SrqType::BASIC | SrqType::XRC | SrqType::TM) {
        return Err(Errno::EINVAL);
    }
    let has_cq = matches!(srq_type, SrqType::XRC | SrqType::TM);
    let cq = if has_cq { Some(call.handle(create::CQ_HANDLE)?) } else { None };
    let xrcd =
        if srq_type == SrqType::XRC { Some(call.handle(create::XRCD_HANDLE)?) } else { None };
    let tags = if srq_type == SrqType::TM { Some(call.input(create::MAX_NUM_TAGS)?) } else { None };
    let request = Request {
        srq_type,
        pd: call.handle(create::PD_HANDLE)?,
        cq,
        xrcd,
        tags,
        max_wr: call.input(create::MAX_WR)?,
        max_sge,
        user_handle: call.input(create::USER_HANDLE)?,
        events: call.async_queue(create::EVENT_FD)?,
    };
    let created = build(call, &request)?;
    call.output(create::RESP_MAX_WR, &created.max_wr)?;
    call.output(create::RESP_MAX_SGE, &max_sge)?;
    match srq_type {
        SrqType::XRC => call.output(create::RESP_SRQ_NUM, &created.srqn.0),
        _ => Ok(()),
    }
}

/// `IB_USER_VERBS_CMD_CREATE_SRQ`.
pub(crate) fn create_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CreateSrq = call.request()?;
    let extended = CreateXsrq {
        user_handle: request.user_handle,
        srq_type: SrqType::BASIC,
        pd_handle: request.pd_handle,
        max_wr: request.max_wr,
        max_sge: request.max_sge,
        srq_limit: request.srq_limit,
        ..CreateXsrq::default()
    };
    create_from_command(call, &extended)
}

/// `IB_USER_VERBS_CMD_CREATE_XSRQ`.
pub(crate) fn create_extended(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CreateXsrq = call.request()?;
    create_from_command(call, &request)
}

fn create_from_command(call: &mut Call<'_>, cmd: &CreateXsrq) -> Result<(), Errno> {
    let srq_handle = call.reserve()?;
    let is_xrc = cmd.srq_type == SrqType::XRC;
    if is_xrc {
        call.state
            .lookup_live(call.file, Kind::Xrcd, cmd.xrcd_handle)
            .map_err(|_| Errno::EINVAL)?;
    }
    let has_cq = matches!(cmd.srq_type, SrqType::XRC | SrqType::TM);
    if has_cq {
        call.cqn(cmd.cq_handle)?;
    }
    let request = Request {
        srq_type: cmd.srq_type,
        pd: cmd.pd_handle,
        cq: has_cq.then_some(cmd.cq_handle),
        xrcd: is_xrc.then_some(cmd.xrcd_handle),
        tags: (cmd.srq_type == SrqType::TM).then_some(cmd.max_num_tags),
        max_wr: cmd.max_wr,
        max_sge: cmd.max_sge,
        user_handle: cmd.user_handle,
        events: call.state.default_async(),
    };
    let created = build(call, &request)?;
    let srqn = if is_xrc { created.srqn.0 } else { 0 };
    call.response(&CreateSrqResp { srq_handle, max_wr: created.max_wr, max_sge: cmd.max_sge, srqn })
}

/// `mlx5_ib_create_srq`.
fn build(call: &mut Call<'_>, request: &Request) -> Result<Created, Errno> {
    let driver = call.driver();
    let device = call.file.device.clone();
    check_request(request)?;
    let ring = (request.max_wr + 1).next_power_of_two();
    let stride = (16 + request.max_sge * 16).next_power_of_two().max(32);
    let pdn = call.pdn(request.pd)?;
    let ucmd = read_driver_request(&driver)?;
    let xrc = xrc_params(call, request, ucmd.uidx)?;
    let tags = tag_params(call, request, ucmd.uidx)?;
    let size = u64::from(ring) * u64::from(stride);
    call.charge_ring(ucmd.buf_addr, size)?;
    call.user.pin(ucmd.buf_addr, size, false)?;
    call.user.pin(ucmd.db_addr, 8, true)?;
    let params = SrqParams {
        pd: pdn,
        buffer: PageMap::linear(ucmd.buf_addr),
        order: SrqOrder::Linked,
        log_wqes: ring.trailing_zeros() as u8,
        log_stride: stride.trailing_zeros() as u8,
        doorbell_record: ucmd.db_addr,
        xrc,
        tags,
        // The driver ignores the limit at creation.
        limit: 0,
    };
    let events = Reporter::new(request.events.clone(), request.user_handle);
    let srqn = device.control(|machine| {
        let srqn = machine.core.create_srq(params).map_err(errno)?;
        device.routes().add(EventObject::Srq(srqn), &events);
        Ok(srqn)
    })?;
    let parents = [Some(request.pd), request.cq, request.xrcd].into_iter().flatten().collect();
    let (max_wr, max_sge) = (ring - 1, request.max_sge);
    call.commit(Object::Srq(Srq {
        srqn,
        parents,
        srq_type: request.srq_type,
        events,
        ring,
        max_wr,
        max_sge,
    }))?;
    driver.write_fitting(mlx5::CreateSrqResp { srqn: srqn.0, reserved: 0 }.as_bytes())?;
    Ok(Created { srqn, max_wr })
}

fn check_request(request: &Request) -> Result<(), Errno> {
    match request.srq_type {
        SrqType::BASIC | SrqType::XRC | SrqType::TM => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    let max_entries = u32::from(Options::MAX_RECV_WQE) / 16;
    if request.max_wr >= 1 << Options::LOG_MAX_SRQ_SIZE || request.max_sge > max_entries {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// `create_srq_user`.
fn read_driver_request(driver: &Buffers) -> Result<mlx5::CreateSrq, Errno> {
    let request: mlx5::CreateSrq = driver.read_known(0, Errno::EINVAL)?;
    if request.reserved0 != 0 || request.reserved1 != 0 {
        return Err(Errno::EINVAL);
    }
    if request.flags.contains(SrqFlags::SIGNATURE) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(request)
}

fn xrc_params(
    call: &Call<'_>,
    request: &Request,
    uidx: u32,
) -> Result<Option<XrcSrqParams>, Errno> {
    let (Some(cq), Some(xrcd)) = (request.cq, request.xrcd) else { return Ok(None) };
    let domain = &call.any_object(xrcd)?.xrcd()?.domain;
    let user_index = user_index(call.context()?.cqe_version, uidx)?;
    Ok(Some(XrcSrqParams { xrcd: domain.xrcdn, cq: call.cqn(cq)?, user_index }))
}

/// The firmware of a device without tag matching refuses the queue, even if it has no tags.
fn tag_params(call: &Call<'_>, request: &Request, uidx: u32) -> Result<Option<TagParams>, Errno> {
    let (Some(cq), Some(tags)) = (request.cq, request.tags) else { return Ok(None) };
    let user_index = user_index(call.context()?.cqe_version, uidx)?;
    let log_entries = tags.checked_ilog2().map_or(0, |log| log + 1);
    let options = call.file.device.options();
    if !options.matches_tags() || log_entries > Options::LOG_MAX_TAGS {
        return Err(Errno::EINVAL);
    }
    Ok(Some(TagParams { cq: call.cqn(cq)?, user_index, log_entries: log_entries as u8 }))
}

/// `UVERBS_METHOD_SRQ_DESTROY`.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let events_reported = call.destroyed()?.srq()?.events.reported();
    call.output(destroy::RESP, &DestroySrqResp { events_reported })
}

/// `IB_USER_VERBS_CMD_DESTROY_SRQ`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DestroySrq = call.request()?;
    call.destroy(Kind::Srq, request.srq_handle)?;
    let events_reported = call.destroyed()?.srq()?.events.reported();
    call.response(&DestroySrqResp { events_reported })
}

/// `IB_USER_VERBS_CMD_MODIFY_SRQ`. Unknown bits of the mask are ignored, as by the kernel.
pub(crate) fn modify(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ModifySrq = call.request()?;
    let device = call.file.device.clone();
    let srq = call.object_mut(Kind::Srq, request.srq_handle)?.srq_mut()?;
    let resize = request.attr_mask.contains(SrqAttrMask::MAX_WR);
    if resize {
        check_resize(&device, srq, request.max_wr)?;
    }
    if request.attr_mask.contains(SrqAttrMask::LIMIT) {
        if request.srq_limit >= srq.ring {
            return Err(Errno::EINVAL);
        }
        device.core(|core| core.arm_srq(srq.srqn, request.srq_limit as u16))?;
    }
    if resize {
        srq.max_wr = request.max_wr;
    }
    Ok(())
}

/// mlx5 devices cannot resize an SRQ. A device that is built with that option can, up to the ring's
/// size.
fn check_resize(device: &DeviceShared, srq: &Srq, max_wr: u32) -> Result<(), Errno> {
    let outstanding = device.core(|core| core.query_srq(srq.srqn))?.outstanding;
    let fits = max_wr < srq.ring && max_wr >= u32::from(outstanding) && max_wr != 0;
    if device.options().srq_resize && fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `IB_USER_VERBS_CMD_QUERY_SRQ`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: QuerySrq = call.request()?;
    let srq = call.object(Kind::Srq, request.srq_handle)?.srq()?;
    let info = call.file.device.core(|core| core.query_srq(srq.srqn))?;
    if info.in_error {
        return Err(Errno::EINVAL);
    }
    let response = QuerySrqResp {
        max_wr: srq.max_wr,
        max_sge: srq.max_sge,
        srq_limit: info.limit.into(),
        ..QuerySrqResp::default()
    };
    call.response(&response)
}
