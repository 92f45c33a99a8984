//! Creation of completion queues, in its three forms.
//! Kernel: `UVERBS_METHOD_CQ_CREATE`, `ib_uverbs_create_cq`, `ib_uverbs_ex_create_cq`,
//! `mlx5_ib_create_cq`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use uverbs_mlx5_format::MiniCqeFormat;
use uverbs_uapi::flags::CqCreateFlags;
use uverbs_uapi::mlx5::flags::CqeCompFormat;
use uverbs_uapi::mlx5::{self, CqFlags, object::cq::create as driver_create};
use uverbs_uapi::objects::cq::create;
use uverbs_uapi::write::cq::{CreateCq, CreateCqResp, ExCreateCq, ExCreateCqResp};
use zerocopy::IntoBytes;

use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::errno;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::options::Options;
use crate::chardev::objects::cq::{Cq, cqe_size, ring};
use crate::chardev::objects::object::{Kind, Object};
use crate::core::{CqParams, CqeSize, EventObject, Moderation, Stamps};
use crate::runtime::{self, Doorbell};

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(create::HANDLE, Kind::Cq),
    Attribute::input(create::CQE, 4),
    Attribute::input(create::USER_HANDLE, 8),
    Attribute::descriptor(create::COMP_CHANNEL, Kind::CompChannel).optional(),
    Attribute::input(create::COMP_VECTOR, 4),
    Attribute::flags(create::FLAGS),
    Attribute::output(create::RESP_CQE, 4),
    Attribute::descriptor(create::EVENT_FD, Kind::AsyncEvent).optional(),
    Attribute::input(driver_create::UAR_INDEX, 4).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

/// The parameters that all forms have in common.
struct Request {
    entries: u32,
    vector: u32,
    flags: CqCreateFlags,
    user_handle: u64,
    channel: Option<Arc<EventQueue>>,
    events: Option<Arc<EventQueue>>,
    uar: Option<u32>,
}

/// `UVERBS_METHOD_CQ_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let request = Request {
        vector: call.input(create::COMP_VECTOR)?,
        entries: call.input(create::CQE)?,
        user_handle: call.input(create::USER_HANDLE)?,
        flags: CqCreateFlags::from_bits_retain(
            call.flags(create::FLAGS, CqCreateFlags::all().bits())?,
        ),
        channel: call.event_queue(create::COMP_CHANNEL, Kind::CompChannel)?,
        events: call.async_queue(create::EVENT_FD)?,
        uar: call.input(driver_create::UAR_INDEX).ok(),
    };
    let entries = build(call, request)?;
    call.output(create::RESP_CQE, &entries)
}

/// `IB_USER_VERBS_CMD_CREATE_CQ`.
pub(crate) fn create_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CreateCq = call.request()?;
    let extended = ExCreateCq {
        user_handle: request.user_handle,
        cqe: request.cqe,
        comp_vector: request.comp_vector,
        comp_channel: request.comp_channel,
        ..ExCreateCq::default()
    };
    let (cq_handle, cqe) = write_form(call, &extended)?;
    call.response(&CreateCqResp { cq_handle, cqe })
}

/// `IB_USER_VERBS_EX_CMD_CREATE_CQ`.
pub(crate) fn create_extended(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExCreateCq = call.request()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let (cq_handle, cqe) = write_form(call, &request)?;
    let response_length = call.response_length::<ExCreateCqResp>();
    call.response(&ExCreateCqResp {
        base: CreateCqResp { cq_handle, cqe },
        comp_mask: 0,
        response_length,
    })
}

fn write_form(call: &mut Call<'_>, request: &ExCreateCq) -> Result<(u32, u32), Errno> {
    // The kernel checks the vector first (create_cq in uverbs_cmd.c).
    if request.comp_vector >= call.file.device.options().completion_vectors {
        return Err(Errno::EINVAL);
    }
    let handle = call.reserve()?;
    let channel = match request.comp_channel {
        0.. => Some(call.state.event_queue(request.comp_channel, Kind::CompChannel)?),
        _ => None,
    };
    let request = Request {
        entries: request.cqe,
        vector: request.comp_vector,
        flags: request.flags,
        user_handle: request.user_handle,
        channel,
        events: call.state.default_async(),
        uar: None,
    };
    Ok((handle, build(call, request)?))
}

/// Creates the queue and returns its number of usable entries.
fn build(call: &mut Call<'_>, request: Request) -> Result<u32, Errno> {
    let driver = call.driver();
    let device = call.file.device.clone();
    if request.vector >= device.options().completion_vectors {
        return Err(Errno::EINVAL);
    }
    let entries = ring_entries(request.entries)?;
    if !CqCreateFlags::all().contains(request.flags) {
        return Err(Errno::EOPNOTSUPP);
    }
    let ucmd = read_driver_request(&driver)?;
    let cqe_size = cqe_size(ucmd.cqe_size)?;
    let ring = ring(call, ucmd.buf_addr, entries, cqe_size)?;
    call.user.pin(ucmd.db_addr, 8, true)?;
    let uar = uar_index(call, &ucmd, request.uar)?;
    if ucmd.flags.contains(CqFlags::CQE_128B_PAD) {
        // This device has no padding of 128-byte CQEs.
        return Err(Errno::EOPNOTSUPP);
    }
    let compression = compression(&ucmd, cqe_size)?;
    let stamps = stamps(&ucmd, device.options())?;
    let params = CqParams {
        ring,
        doorbell_record: ucmd.db_addr,
        ignore_overrun: request.flags.contains(CqCreateFlags::IGNORE_OVERRUN),
        moderation: Moderation::default(),
    };
    let page = device.uars.page(uar)?;
    // The device reads the arm words of all CQs of a UAR page when one of them rings. A word that
    // was never written would be 0, which also encodes a first arming. So the word is initialised
    // with a value that encodes no arming. Programs never read it.
    call.user.write_value(ucmd.db_addr.wrapping_add(4), &u32::MAX)?;
    let completions = Reporter::new(request.channel, request.user_handle);
    let events = Reporter::new(request.events, request.user_handle);
    let cqn = device.control(|machine| {
        let cqn = machine.core.create_cq(params).map_err(errno)?;
        machine.core.stamp_by(cqn, stamps).map_err(errno)?;
        if let Some(format) = compression {
            machine.core.compress(cqn, format).map_err(errno)?;
        }
        machine.uars.attach(&page, Doorbell::Arm(cqn));
        let mut routes = device.routes();
        routes.add_completions(cqn.0, &completions);
        routes.add(EventObject::Cq(cqn), &events);
        Ok(cqn)
    })?;
    call.commit(Object::Cq(Cq {
        cqn,
        uar: page,
        entries: entries - 1,
        cqe_size,
        completions,
        events,
    }))?;
    driver.write(cqn.0.as_bytes())?;
    Ok(entries - 1)
}

/// How the CQ's completions are compressed (`create_cq_user` and `mini_cqe_res_format_to_hw` of
/// drivers/infiniband/hw/mlx5/cq.c).
fn compression(ucmd: &mlx5::CreateCq, cqe_size: CqeSize) -> Result<Option<MiniCqeFormat>, Errno> {
    if ucmd.cqe_comp_en != 1 {
        return Ok(None);
    }
    if cqe_size != CqeSize::B64 {
        return Err(Errno::EOPNOTSUPP);
    }
    match CqeCompFormat::from_bits_retain(ucmd.cqe_comp_res_format.into()) {
        CqeCompFormat::HASH => Ok(Some(MiniCqeFormat::HASH)),
        CqeCompFormat::CSUM => Ok(Some(MiniCqeFormat::CHECKSUM)),
        CqeCompFormat::CSUM_STRIDX => Ok(Some(MiniCqeFormat::CHECKSUM_STRIDE_INDEX)),
        _ => Err(Errno::EINVAL),
    }
}

/// The clock behind the CQ's timestamps.
///
/// `REAL_TIME_TS` takes precedence over the flag for free-running timestamps (`get_ts_format` of
/// drivers/infiniband/hw/mlx5/qp.c). If the device has no real-time timestamps, the kernel refuses
/// the queues that complete to the CQ; this device refuses the CQ.
fn stamps(ucmd: &mlx5::CreateCq, options: &Options) -> Result<Stamps, Errno> {
    if !ucmd.flags.contains(CqFlags::REAL_TIME_TS) {
        return Ok(Stamps::Counter(options.counter_start));
    }
    if !options.real_time_clock {
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(start) = options.real_time_start {
        return Ok(Stamps::RealTime(start));
    }
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Stamps::RealTime((wall.as_nanos() as u64).wrapping_sub(runtime::now())))
}

/// Ring size for this many usable entries. The number is signed in the kernel.
fn ring_entries(requested: u32) -> Result<u32, Errno> {
    let max = 1 << Options::LOG_MAX_CQ_SIZE;
    if requested > max {
        return Err(Errno::EINVAL);
    }
    let entries = (requested + 1).next_power_of_two();
    if entries > max { Err(Errno::EINVAL) } else { Ok(entries) }
}

fn read_driver_request(driver: &Buffers) -> Result<mlx5::CreateCq, Errno> {
    if driver.input_length() < std::mem::offset_of!(mlx5::CreateCq, flags) {
        return Err(Errno::EINVAL);
    }
    let request: mlx5::CreateCq = driver.read()?;
    if !CqFlags::all().contains(request.flags) || request.reserved0 != 0 || request.reserved1 != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(request)
}

fn uar_index(call: &Call<'_>, ucmd: &mlx5::CreateCq, attribute: Option<u32>) -> Result<u32, Errno> {
    match attribute {
        Some(index) => Ok(index),
        None if ucmd.flags.contains(CqFlags::UAR_PAGE_INDEX) => Ok(ucmd.uar_page_index.into()),
        None => call.context()?.default_uar(),
    }
}
