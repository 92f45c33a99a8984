//! Creates queue pairs from checked requests: parameters, rings and doorbells, and the device's
//! object.
//! Kernel: `create_user_qp`, `create_dci` and `create_dct` of hw/mlx5/qp.c.
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::mlx5::{self, CreateQpResp as DriverResponse, QpFlags};
use zerocopy::IntoBytes;

use super::create::{
    BLOCK_MULTICAST_LOOPBACK, CVLAN_STRIPPING, Handles, RAW_ONLY, Request, SCATTER_FCS,
};
use super::driver_request::{
    check_receive_ring, check_vendor_flags, doorbell, read_driver_request, rings, user_index,
};
use crate::chardev::abi::call::Call;
use crate::chardev::device::context::{NO_BFREG, Register};
use crate::chardev::device::errno;
use crate::chardev::device::events::Reporter;
use crate::chardev::objects::object::Object;
use crate::chardev::objects::qp::Qp;
use crate::chardev::objects::xrcd::Domain;
use crate::core::{
    CqeSize, EventObject, QpParams, QpType, Qpn, ReceiveRing, ReceiveSource, ScatterToCqe, Srqn,
};
use crate::runtime::Doorbell;

pub(super) fn build(call: &mut Call<'_>, request: &mut Request) -> Result<Qpn, Errno> {
    match request.qp_type {
        QpType::XrcTarget => build_target(call, request),
        QpType::DcTarget => build_dc_target(call, request),
        _ => build_user(call, request),
    }
}

/// A target has no queues of its own, and the kernel does not pass the request to the driver.
fn build_target(call: &mut Call<'_>, request: &Request) -> Result<Qpn, Errno> {
    let xrcd = request.handles.xrcd.ok_or(Errno::EINVAL)?;
    let domain = call.any_object(xrcd)?.xrcd()?.domain.clone();
    let device = call.file.device.clone();
    let params = {
        let (pd, cq) = device.internal_objects();
        QpParams { xrcd: Some(domain.xrcdn), ..QpParams::new(QpType::XrcTarget, pd, cq, cq) }
    };
    finish(call, request, params, None, (0, 0), Some(domain))
}

/// As in `create_dct`, creation only records the parameters, because the firmware creates the
/// target at RTR. This device chooses the number now and returns it at RTR.
fn build_dc_target(call: &mut Call<'_>, request: &Request) -> Result<Qpn, Errno> {
    let driver = call.driver();
    let ucmd = read_driver_request(&driver)?;
    let known = QpFlags::TYPE_DCT | QpFlags::SCATTER_CQE | QpFlags::ALLOW_SCATTER_CQE;
    if !known.contains(ucmd.flags) {
        return Err(Errno::EINVAL);
    }
    let cqe_version = call.context()?.cqe_version;
    let user_index = user_index(cqe_version, ucmd.uidx)?;
    let Handles { pd: Some(pd), srq: Some(srq), receive_cq: Some(receive_cq), .. } =
        request.handles
    else {
        return Err(Errno::EINVAL);
    };
    if request.flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (pd, cqn) = (call.pdn(pd)?, call.cqn(receive_cq)?);
    let scatter = scatter_size(call, receive_cq, ucmd.flags)?;
    let params = QpParams {
        receive: ReceiveSource::Srq(srqn(call, srq)?),
        access_key: ucmd.sq_buf_addr,
        user_index,
        cqe_version_1: cqe_version != 0,
        // Only CQEs of 128 bytes can hold the data.
        scatter_responder: match scatter {
            ScatterToCqe::B64 => scatter,
            _ => ScatterToCqe::Off,
        },
        ..QpParams::new(QpType::DcTarget, pd, cqn, cqn)
    };
    let qpn = finish(call, request, params, None, (0, 0), None)?;
    driver.write_fitting(DriverResponse::default().as_bytes())?;
    Ok(qpn)
}

/// `create_user_qp` and `create_dci`.
fn build_user(call: &mut Call<'_>, request: &mut Request) -> Result<Qpn, Errno> {
    let driver = call.driver();
    let ucmd = read_driver_request(&driver)?;
    check_vendor_flags(request, ucmd.flags)?;
    let cqe_version = call.context()?.cqe_version;
    let user_index = user_index(cqe_version, ucmd.uidx)?;
    check_service(call, request, cqe_version)?;
    let receives = check_receive_ring(request, &ucmd)?;
    let (uar, register) = doorbell(call, &ucmd)?;
    let params = params(call, request, &ucmd, user_index, cqe_version)?;
    let adjusted = register.as_ref().map_or(NO_BFREG, Register::adjusted);
    let doorbell = Some((uar, register));
    let qpn = finish(call, request, params, doorbell, receives, None)?;
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
    let fits =
        cqe_version != 0 && call.file.device.options().is_roce() && request.handles.srq.is_none();
    if raw && !fits { Err(Errno::EINVAL) } else { Ok(()) }
}

fn params(
    call: &mut Call<'_>,
    request: &Request,
    ucmd: &mlx5::CreateQp,
    user_index: u32,
    cqe_version: u8,
) -> Result<QpParams, Errno> {
    let pd = call.pdn(request.handles.pd.ok_or(Errno::EINVAL)?)?;
    let send_handle = request.handles.send_cq.ok_or(Errno::EINVAL)?;
    let receive_handle = request.handles.receive_cq.unwrap_or(send_handle);
    let (send_cq, receive_cq) = (call.cqn(send_handle)?, call.cqn(receive_handle)?);
    let (send_ring, receive_ring) = rings(call, request, ucmd)?;
    call.user.pin(ucmd.db_addr, 8, true)?;
    let scatter = |handle| scatter_size(call, handle, ucmd.flags);
    let connected = matches!(request.qp_type, QpType::Rc | QpType::Uc);
    let rendezvous =
        request.qp_type == QpType::Rc && send_ring.is_none() && matches_tags(call, request)?;
    Ok(QpParams {
        send_ring,
        receive: receive_source(call, request, receive_ring)?,
        doorbell_record: ucmd.db_addr,
        user_index,
        cqe_version_1: cqe_version != 0,
        scatter_requester: requester_scatter(request, ucmd.flags, scatter(send_handle)?),
        scatter_responder: if connected { scatter(receive_handle)? } else { ScatterToCqe::Off },
        signatures: ucmd.flags.contains(QpFlags::SIGNATURE),
        block_multicast_loopback: request.flags & BLOCK_MULTICAST_LOOPBACK != 0,
        strip_vlan: request.flags & CVLAN_STRIPPING != 0,
        scatter_check_sequence: request.flags & SCATTER_FCS != 0,
        rendezvous,
        ..QpParams::new(request.qp_type, pd, send_cq, receive_cq)
    })
}

fn receive_source(
    call: &Call<'_>,
    request: &Request,
    ring: Option<ReceiveRing>,
) -> Result<ReceiveSource, Errno> {
    match (request.handles.srq, ring) {
        (Some(handle), _) => Ok(ReceiveSource::Srq(srqn(call, handle)?)),
        (None, Some(ring)) => Ok(ReceiveSource::Ring(ring)),
        (None, None) => Ok(ReceiveSource::None),
    }
}

fn srqn(call: &Call<'_>, handle: u32) -> Result<Srqn, Errno> {
    Ok(call.any_object(handle)?.srq()?.srqn)
}

fn matches_tags(call: &Call<'_>, request: &Request) -> Result<bool, Errno> {
    let Some(srq) = request.handles.srq else { return Ok(false) };
    Ok(call.any_object(srq)?.srq()?.srq_type == SrqType::TM)
}

/// How much data the device scatters to CQEs of this queue, if the program allows it.
fn scatter_size(call: &Call<'_>, cq: u32, flags: QpFlags) -> Result<ScatterToCqe, Errno> {
    if !flags.contains(QpFlags::SCATTER_CQE) {
        return Ok(ScatterToCqe::Off);
    }
    Ok(match call.any_object(cq)?.cq()?.cqe_size {
        CqeSize::B64 => ScatterToCqe::B32,
        CqeSize::B128 => ScatterToCqe::B64,
    })
}

/// `configure_requester_scat_cqe`: only if all requests are signaled, or the program sets the flag.
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
    domain: Option<Arc<Domain>>,
) -> Result<Qpn, Errno> {
    let device = call.file.device.clone();
    let events = Reporter::new(request.events.clone(), request.user_handle);
    let page = doorbell.as_ref().map(|(uar, _)| device.uars.page(*uar)).transpose()?;
    let qpn = device.control(|machine| {
        let qpn = machine.core.create_qp(params).map_err(errno)?;
        if let Some(page) = &page {
            machine.uars.attach(page, Doorbell::Send(qpn));
        }
        device.routes().add(EventObject::Qp(qpn), &events);
        Ok(qpn)
    })?;
    let qp = Qp {
        uar: page,
        receives,
        signal_all: request.signal_all,
        register: doorbell.and_then(|(_, register)| register),
        domain,
        ..Qp::new(qpn, request.qp_type, request.handles.all(), events)
    };
    if let Some(domain) = &qp.domain {
        domain.add_target(qpn, qp.driver.clone());
    }
    call.commit(Object::Qp(qp))?;
    Ok(qpn)
}
