//! Files of DEVX: answers of asynchronous queries, and events of the firmware.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use nix::errno::Errno;
use uverbs_mlx5_format::EventType;
use uverbs_uapi::mlx5::flags::DevxEventChannelFlags;
use uverbs_uapi::mlx5::object::devx::subscribe_event as subscribing;
use uverbs_uapi::mlx5::object::devx_obj::async_query;
use uverbs_uapi::mlx5::object::{devx_async_cmd_fd, devx_async_event_fd};

use super::object::FirmwareObject;
use super::rules::Act;
use super::{HEADER, Request, object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::event_queue::{EventQueue, Source};
use crate::chardev::device::eventfd::EventFd;
use crate::chardev::device::subscriptions::{Subscription, Way};
use crate::chardev::objects::object::{Kind, Object};

/// Most bytes of unread answers (`MAX_ASYNC_BYTES_IN_USE`).
const MAX_UNREAD: usize = 1 << 20;
/// Most events of one subscription (`MAX_NUM_EVENTS`).
const MAX_EVENTS: usize = 16;

pub(crate) const ALLOC_ANSWERS: &[Attribute] =
    &[Attribute::new_descriptor(devx_async_cmd_fd::alloc::HANDLE, Kind::DevxAnswers)];

pub(crate) const ALLOC_EVENTS: &[Attribute] = &[
    Attribute::new_descriptor(devx_async_event_fd::alloc::HANDLE, Kind::DevxEvents),
    Attribute::flags(devx_async_event_fd::alloc::FLAGS).required(),
];

pub(crate) const QUERY: &[Attribute] = &[
    Attribute::any_handle(async_query::HANDLE),
    Attribute::input_min(async_query::CMD_IN, HEADER),
    Attribute::descriptor(async_query::FD, Kind::DevxAnswers),
    Attribute::input(async_query::WR_ID, 8),
    Attribute::constant(async_query::OUT_LEN),
];

pub(crate) const SUBSCRIBE: &[Attribute] = &[
    Attribute::descriptor(subscribing::FD_HANDLE, Kind::DevxEvents),
    Attribute::handle(subscribing::OBJ_HANDLE, Kind::DevxObj).optional(),
    Attribute::input_min(subscribing::TYPE_NUM_LIST, size_of::<u16>()),
    Attribute::input(subscribing::FD_NUM, 4).optional(),
    Attribute::input(subscribing::COOKIE, 8).optional(),
];

/// `MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC`: the dispatcher has created the file.
pub(crate) fn alloc_events(call: &mut Call<'_>) -> Result<(), Errno> {
    let omit = DevxEventChannelFlags::OMIT_DATA;
    let flags = call.flags(devx_async_event_fd::alloc::FLAGS, omit.bits())?;
    if flags == omit.bits() {
        call.omit_event_data();
    }
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY`. The query runs at once, and its answer waits in the file.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let length = call.constant(async_query::OUT_LEN, u16::MAX.into())? as usize;
    let mut request = Request::read(call, async_query::CMD_IN, length)?;
    let wr_id: u64 = call.input(async_query::WR_ID)?;
    let queue = call.event_queue(async_query::FD, Kind::DevxAnswers)?.ok_or(Errno::EINVAL)?;
    // The kernel has no pipe, and so no limit of a user's pipes.
    queue.make_space(size_of::<u64>() + length).map_err(|_| Errno::ENOMEM)?;
    if queue.unread_bytes() + length > MAX_UNREAD {
        return Err(Errno::EAGAIN);
    }
    let handle = call.handle(async_query::HANDLE)?;
    let (mut command, outcome) = object::run(call, Act::Query, handle, &mut request)?;
    if let Err(refusal) = outcome {
        command.refuse(&refusal);
    }
    let record = [&wr_id.to_ne_bytes()[..], &command.reply.output].concat();
    call.file.device.push(&queue, &record)
}

/// `MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT`.
pub(crate) fn subscribe(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?.devx.ok_or(Errno::EINVAL)?;
    let object = match call.optional_handle(subscribing::OBJ_HANDLE) {
        Some(handle) => Some(firmware_object(call.object(Kind::DevxObj, handle)?)?),
        None => None,
    };
    let kinds = event_types(call, object)?;
    let subscriptions: Result<Vec<_>, _> = kinds
        .iter()
        .map(|_| {
            let (file, way) = receiver(call)?;
            let queue_type = object.map_or(0, FirmwareObject::queue_type);
            Ok(Subscription { object: object.map(FirmwareObject::id), queue_type, file, way })
        })
        .collect();
    let number = object.map(|object| object.id().1);
    let mut routes = call.file.device.routes();
    for (kind, subscription) in kinds.into_iter().zip(subscriptions?) {
        routes.subscriptions.add((kind.0, number), subscription);
    }
    Ok(())
}

fn firmware_object(object: &Object) -> Result<&FirmwareObject, Errno> {
    match object {
        Object::Devx(object) => Ok(object),
        _ => Err(Errno::EINVAL),
    }
}

/// The types of events that a program names (`is_valid_events_legacy`; this device has no list of
/// them among its capabilities).
fn event_types(call: &Call<'_>, object: Option<&FirmwareObject>) -> Result<Vec<EventType>, Errno> {
    let list = call.bytes(subscribing::TYPE_NUM_LIST)?;
    let count = list.len() / size_of::<u16>();
    if list.len() % size_of::<u16>() != 0 || count > MAX_EVENTS {
        return Err(Errno::EINVAL);
    }
    let numbers = list.chunks_exact(2).map(|number| u16::from_ne_bytes([number[0], number[1]]));
    let allowed = if object.is_some() { OF_OBJECTS } else { &[EventType::PORT_CHANGE] };
    let find = |number: u16| allowed.iter().find(|kind| u16::from(kind.0) == number).copied();
    numbers.map(|number| find(number).ok_or(Errno::EINVAL)).collect()
}

/// `is_legacy_obj_event_num`.
const OF_OBJECTS: &[EventType] = &[
    EventType::COMPLETION,
    EventType::PATH_MIGRATED,
    EventType::COMMUNICATION_ESTABLISHED,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATASTROPHIC_ERROR,
    EventType::PATH_MIGRATION_FAILED,
    EventType::WQ_INVALID_REQUEST_ERROR,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATASTROPHIC_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_LIMIT,
    EventType::XRQ_ERROR,
    EventType::DCT_DRAINED,
    EventType::DCT_KEY_VIOLATION,
];

/// The file of a subscription, and the form of its events.
fn receiver(call: &Call<'_>) -> Result<(Weak<EventQueue>, Way), Errno> {
    let fd = call.given(subscribing::FD_HANDLE.id())?.data as i32;
    let file = call.state.event_files.file(fd, Kind::DevxEvents)?;
    let cookie = call.optional_input::<_, u64>(subscribing::COOKIE)?;
    let way = match call.optional_input::<_, i32>(subscribing::FD_NUM)? {
        Some(_) if cookie.is_some() => return Err(Errno::EINVAL),
        Some(eventfd) => {
            // The descriptor is the caller's.
            call.user.in_reach()?;
            Way::Signal(EventFd::duplicate(eventfd)?)
        }
        None if file.omits_data => Way::Cookie(cookie.unwrap_or(0), Arc::new(Source::default())),
        None => Way::Entry(cookie.unwrap_or(0)),
    };
    Ok((Arc::downgrade(&file.queue), way))
}
