//! Files for reading answers of queries and events of the firmware.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use uverbs_uapi::mlx5::object::devx::subscribe_event;
use uverbs_uapi::mlx5::object::{devx_async_cmd_fd, devx_async_event_fd};

use super::{Devx, DevxEventChannelFlags, too_long};
use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::host::events::ended;
use crate::host::system;

/// Bytes before an answer (the number of its query) and before an event (the cookie).
const PREFIX: usize = size_of::<u64>();
/// Bytes of an event queue's entry.
const EVENT: usize = 64;

/// Delivers the answers of [`query_async`](super::DevxObject::query_async).
#[derive(Debug)]
pub struct CommandChannel {
    file: OwnedFd,
}

/// Delivers subscribed events of the firmware.
#[derive(Debug)]
pub struct EventChannel {
    file: OwnedFd,
    context: Context,
    /// Bytes of an event.
    length: usize,
}

impl Devx {
    /// Opens a channel for answers.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "mlx5dv_devx_create_cmd_comp")]
    pub fn command_channel(&self) -> Result<CommandChannel> {
        use devx_async_cmd_fd::alloc;
        const VERB: &str = "devx_create_cmd_comp";
        let mut request = self.context.commands().request::<alloc::Call>();
        request.new_fd(alloc::HANDLE);
        self.context.commands().send(VERB, &mut request)?;
        Ok(CommandChannel { file: system::opened(VERB, request, alloc::HANDLE)? })
    }

    /// Opens a channel for events.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "mlx5dv_devx_create_event_channel")]
    pub fn event_channel(&self, flags: DevxEventChannelFlags) -> Result<EventChannel> {
        use devx_async_event_fd::alloc;
        const VERB: &str = "devx_create_event_channel";
        let mut request = self.context.commands().request::<alloc::Call>();
        request.new_fd(alloc::HANDLE);
        request.flags(alloc::FLAGS, flags.bits());
        self.context.commands().send(VERB, &mut request)?;
        let file = system::opened(VERB, request, alloc::HANDLE)?;
        let data = if flags.contains(DevxEventChannelFlags::OMIT_DATA) { 0 } else { EVENT };
        Ok(EventChannel { file, context: self.context.clone(), length: PREFIX + data })
    }
}

impl CommandChannel {
    pub(super) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Reads one answer: the number of the query in eight bytes, then the firmware's answer. Waits
    /// for one, unless the file is non-blocking. Returns the length in bytes.
    ///
    /// # Errors
    /// ENOSPC if `into` is too small for the answer, which stays in the channel. The software
    /// device returns ENOSPC only for less than eight bytes; otherwise it truncates the answer to
    /// `into`. The rest is lost or, if number and answer have more than 4,096 bytes, returned by
    /// the next read.
    #[doc(alias = "mlx5dv_devx_get_async_cmd_comp")]
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        const VERB: &str = "devx_get_async_cmd_comp";
        if into.len() < PREFIX {
            return Err(Error::os(VERB, Errno::ENOSPC));
        }
        read(VERB, &self.file, into)
    }
}

impl EventChannel {
    /// Subscribes to events of these types, of `object` or, without one, of the device. Each event
    /// carries `cookie`.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "mlx5dv_devx_subscribe_devx_event")]
    pub fn subscribe(&self, object: Option<u32>, types: &[u16], cookie: u64) -> Result<()> {
        use subscribe_event as method;
        const VERB: &str = "devx_subscribe_devx_event";
        let bytes: Vec<u8> = types.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let mut request = self.context.commands().request::<method::Call>();
        request.fd(method::FD_HANDLE, self.file.as_raw_fd());
        request.value(method::COOKIE, cookie);
        if let Some(handle) = object {
            request.handle(method::OBJ_HANDLE, handle);
        }
        let stored = request.input_bytes(method::TYPE_NUM_LIST, &bytes).map(drop);
        stored.map_err(|error| too_long(VERB, &error))?;
        self.context.commands().send(VERB, &mut request)
    }

    /// Lets events of one type, of `object` or, without one, of the device, signal an eventfd.
    ///
    /// # Errors
    /// `InvalidInput` for another file than an eventfd; errors of the kernel.
    #[doc(alias = "mlx5dv_devx_subscribe_devx_event_fd")]
    pub fn subscribe_eventfd(
        &self,
        eventfd: BorrowedFd<'_>,
        object: Option<u32>,
        number: u16,
    ) -> Result<()> {
        use subscribe_event as method;
        const VERB: &str = "devx_subscribe_devx_event_fd";
        check_eventfd(VERB, eventfd)?;
        let mut request = self.context.commands().request::<method::Call>();
        request.fd(method::FD_HANDLE, self.file.as_raw_fd());
        if let Some(handle) = object {
            request.handle(method::OBJ_HANDLE, handle);
        }
        request.value(method::TYPE_NUM_LIST, number);
        request.value(method::FD_NUM, eventfd.as_raw_fd());
        self.context.commands().send(VERB, &mut request)
    }

    /// Reads one event: its cookie in eight bytes, then the entry of the event queue, unless the
    /// channel omits it. Waits for one, unless the file is non-blocking. Returns the length in
    /// bytes.
    ///
    /// # Errors
    /// EINVAL if `into` is too small for an event; `EOVERFLOW` once after events were lost;
    /// `DeviceGone` (EIO) after the device was removed.
    #[doc(alias = "mlx5dv_devx_get_event")]
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        const VERB: &str = "devx_get_event";
        if into.len() < self.length {
            return Err(Error::os(VERB, Errno::EINVAL));
        }
        read(VERB, &self.file, into)
    }
}

impl AsFd for CommandChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Refuses a closed descriptor, and a file that /proc does not show as an eventfd. For either,
/// Linux 6.12 dereferences a null pointer: `MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT` of hw/mlx5/devx.c
/// releases `event_sub->ev_file` before it is set.
fn check_eventfd(verb: &'static str, file: BorrowedFd<'_>) -> Result<()> {
    fcntl(file, FcntlArg::F_GETFD).map_err(|errno| Error::os(verb, errno))?;
    match std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => {
            Err(Error::invalid(verb, "the file is not an eventfd"))
        }
        _ => Ok(()),
    }
}

fn read(verb: &'static str, file: &OwnedFd, into: &mut [u8]) -> Result<usize> {
    match nix::unistd::read(file, into) {
        Ok(0) | Err(Errno::EIO) => Err(ended(verb)),
        read => read.map_err(|errno| Error::os(verb, errno)),
    }
}
