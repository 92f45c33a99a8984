//! DEVX channels: files from which programs read the answers of asynchronous queries, and firmware
//! events.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::slice;

use uverbs::devx::{CommandChannel, DevxEventChannelFlags, EventChannel};

use super::devx::{Object, devx};
use crate::abi::*;
use crate::post::{bytes, bytes_mut};
use crate::result::{code, failed, null, refused};

/// Bytes before an answer or an event: the query's `wr_id`, or the subscription's cookie.
const HEADER: usize = 8;

/// `struct mlx5dv_devx_cmd_comp`, followed by the library's channel.
#[repr(C)]
pub(crate) struct Answers {
    fd: c_int,
    library: CommandChannel,
}

/// `struct mlx5dv_devx_event_channel`, followed by the library's channel.
#[repr(C)]
pub(crate) struct Events {
    fd: c_int,
    library: EventChannel,
}

/// `mlx5dv_devx_create_cmd_comp`.
pub(crate) unsafe extern "C" fn create_cmd_comp(context: *mut ibv_context) -> *mut Answers {
    // SAFETY: the caller's context.
    match unsafe { devx(context) }.command_channel() {
        Ok(library) => {
            Box::into_raw(Box::new(Answers { fd: library.as_fd().as_raw_fd(), library }))
        }
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_devx_destroy_cmd_comp`.
pub(crate) unsafe extern "C" fn destroy_cmd_comp(channel: *mut Answers) {
    // SAFETY: from `create_cmd_comp`, and freed once.
    unsafe { crate::observe::free(channel) };
}

/// `mlx5dv_devx_obj_query_async`.
pub(crate) unsafe extern "C" fn obj_query_async(
    object: *mut Object,
    input: *const c_void,
    input_length: usize,
    output_length: usize,
    wr_id: u64,
    channel: *mut Answers,
) -> c_int {
    // SAFETY: the caller's object, channel and memory.
    let (object, channel, command) =
        unsafe { (Object::of(object), &*channel, bytes(input.cast(), input_length)) };
    let Some(object) = object else { return refused(libc::EINVAL) };
    code(object.query_async(command, output_length as u64, wr_id, &channel.library))
}

/// `mlx5dv_devx_get_async_cmd_comp`: waits, unless the program has set O_NONBLOCK on the
/// descriptor. 0 or an errno; EINVAL if less than the answer's header was read.
pub(crate) unsafe extern "C" fn get_async_cmd_comp(
    channel: *mut Answers,
    into: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's channel and memory.
    let (channel, into) = unsafe { (&*channel, bytes_mut(into.cast(), length)) };
    match channel.library.read(into) {
        Ok(length) if length < HEADER => refused(libc::EINVAL),
        Ok(_) => 0,
        Err(error) => failed(&error),
    }
}

/// `mlx5dv_devx_create_event_channel`.
pub(crate) unsafe extern "C" fn create_event_channel(
    context: *mut ibv_context,
    flags: u32,
) -> *mut Events {
    let flags = DevxEventChannelFlags::from_bits_retain(flags);
    // SAFETY: the caller's context.
    match unsafe { devx(context) }.event_channel(flags) {
        Ok(library) => Box::into_raw(Box::new(Events { fd: library.as_fd().as_raw_fd(), library })),
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_devx_destroy_event_channel`.
pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut Events) {
    // SAFETY: from `create_event_channel`, and freed once.
    unsafe { crate::observe::free(channel) };
}

/// `mlx5dv_devx_subscribe_devx_event`. The size of the list is in bytes.
pub(crate) unsafe extern "C" fn subscribe_devx_event(
    channel: *mut Events,
    object: *mut Object,
    bytes_of_types: u16,
    types: *const u16,
    cookie: u64,
) -> c_int {
    let count = usize::from(bytes_of_types) / size_of::<u16>();
    // SAFETY: the caller's channel, object and list.
    let (channel, object, types) = unsafe {
        let types = if count == 0 { &[] } else { slice::from_raw_parts(types, count) };
        (&*channel, Object::handle(object), types)
    };
    code(channel.library.subscribe(object, types, cookie))
}

/// `mlx5dv_devx_subscribe_devx_event_fd`.
pub(crate) unsafe extern "C" fn subscribe_devx_event_fd(
    channel: *mut Events,
    fd: c_int,
    object: *mut Object,
    number: u16,
) -> c_int {
    if fd < 0 {
        return refused(libc::EBADF);
    }
    // SAFETY: the caller's channel, object and descriptor.
    let (channel, object, fd) =
        unsafe { (&*channel, Object::handle(object), BorrowedFd::borrow_raw(fd)) };
    code(channel.library.subscribe_eventfd(fd, object, number))
}

/// `mlx5dv_devx_get_event`: bytes of the event, or −1 with errno.
pub(crate) unsafe extern "C" fn get_event(
    channel: *mut Events,
    into: *mut c_void,
    length: usize,
) -> isize {
    // SAFETY: the caller's channel and memory.
    let (channel, into) = unsafe { (&*channel, bytes_mut(into.cast(), length)) };
    match channel.library.read(into) {
        Ok(length) if length >= HEADER => length as isize,
        Ok(_) => {
            refused(libc::EINVAL);
            -1
        }
        Err(error) => {
            failed(&error);
            -1
        }
    }
}
