//! Sending commands: typed requests through the channel, and typed answers.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use uverbs_uapi::enums::DriverId;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::objects::{Attr, Method, kind};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::{WriteCmd, WriteCommand};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::{Access, Channel};
use crate::host::fork::{Process, forked};
use crate::host::system::{self, Call, Mapping};

/// How often a command is sent again when a signal interrupts it; then the error is `Interrupted`.
/// The kernel undoes an interrupted command before it returns EINTR, so sending it again is safe.
const INTERRUPTED_TRIES: u32 = 100;

/// Detects the removal of a device, independently of failing commands.
pub(crate) trait Removal: fmt::Debug + Send + Sync {
    /// Whether the kernel has reported that the device, and every object of this open file, is
    /// gone.
    fn device_is_gone(&self) -> bool;
}

/// The sender of commands to an open device.
#[derive(Debug)]
pub(crate) struct Commands {
    channel: Arc<dyn Channel>,
    /// In every command, so that the kernel can check whose driver data it has.
    driver: DriverId,
    /// Not set while the device is being opened; then there are no objects.
    removal: OnceLock<Arc<dyn Removal>>,
    /// The process that opened the device. A forked child shares the file, and could destroy the
    /// parent's objects.
    process: Process,
}

impl Commands {
    pub(crate) fn new(channel: Arc<dyn Channel>, driver: DriverId) -> Self {
        Self { channel, driver, removal: OnceLock::new(), process: Process::current() }
    }

    /// Sets `removal`.
    pub(crate) fn watch(&self, removal: Arc<dyn Removal>) {
        // A context is opened once.
        let _ = self.removal.set(removal);
    }

    /// Whether the kernel has reported that the device is gone.
    pub(crate) fn device_is_gone(&self) -> bool {
        self.removal.get().is_some_and(|removal| removal.device_is_gone())
    }

    pub(crate) fn shared_channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    pub(crate) fn channel(&self) -> &dyn Channel {
        &*self.channel
    }

    /// Refuses forked children. Verbs that create objects call it before they use shared state of a
    /// context, whose locks may be held for ever in a child.
    pub(crate) fn require_opener(&self, verb: &'static str) -> Result<()> {
        if Process::current() == self.process { Ok(()) } else { Err(forked(verb)) }
    }

    /// An empty request to the method `M`.
    pub(crate) fn request<'a, M: Method>(&self) -> Request<'a, M> {
        Request::new(self.driver)
    }

    /// Sends a request.
    pub(crate) fn send<M>(&self, verb: &'static str, request: &mut Request<'_, M>) -> Result<()> {
        self.require_opener(verb)?;
        self.send_raw(verb, request).map_err(|error| self.explain(error))
    }

    /// Sends a request that creates an object, and returns its handle.
    pub(crate) fn create<M>(
        &self,
        verb: &'static str,
        mut request: Request<'_, M>,
        attribute: Attr<M, kind::NewHandle>,
    ) -> Result<u32> {
        request.new_handle(attribute);
        self.send(verb, &mut request)?;
        Ok(request.created(attribute).unwrap_or_default())
    }

    /// Sends a request that destroys an object. If the device is gone, all its objects are gone
    /// too, which counts as success. In that case the request is sent a second time, which waits
    /// until the kernel has destroyed the objects (see `events/end.rs`).
    ///
    /// # Errors
    /// Errors of the kernel. After one, whatever its errno, the device may still use the object's
    /// memory.
    pub(crate) fn destroy<M>(
        &self,
        verb: &'static str,
        request: &mut Request<'_, M>,
    ) -> Result<()> {
        let is_gone = |error: &Error| error.kind() == ErrorKind::DeviceGone;
        match self.send(verb, request) {
            Err(error) if is_gone(&error) => match self.send(verb, request) {
                Err(error) if is_gone(&error) => Ok(()),
                other => other,
            },
            other => other,
        }
    }

    /// Destroys the object with this handle, by a method whose only argument is the handle.
    ///
    /// # Errors
    /// As for [`Commands::destroy`].
    pub(crate) fn destroy_handle<M: Method>(
        &self,
        verb: &'static str,
        attribute: Attr<M, kind::Handle>,
        handle: u32,
    ) -> Result<()> {
        let mut request = self.request::<M>();
        request.handle(attribute, handle);
        self.destroy(verb, &mut request)
    }

    /// As [`Commands::destroy_handle`], by a method with an answer `A`, the number of events that
    /// the kernel has delivered.
    ///
    /// # Errors
    /// As for [`Commands::destroy`].
    pub(crate) fn destroy_with_events<M: Method, A: FromBytes + IntoBytes>(
        &self,
        verb: &'static str,
        (attribute, answer): (Attr<M, kind::Handle>, Attr<M, kind::Out>),
        handle: u32,
    ) -> Result<()> {
        let mut events = A::new_zeroed();
        let mut request = self.request::<M>();
        request.handle(attribute, handle);
        request.output(answer, &mut events);
        self.destroy(verb, &mut request)
    }

    /// Commands fail with EIO or ENODEV after the device was removed, but also if the firmware
    /// fails while all objects still exist. So neither the errno nor the number of failures proves
    /// that the device is gone.
    fn explain(&self, error: Error) -> Error {
        if !matches!(error.errno(), libc::EIO | libc::ENODEV) {
            return error;
        }
        if self.removal.get().is_none_or(|removal| removal.device_is_gone()) {
            return error.with_kind(ErrorKind::DeviceGone);
        }
        error
            .with_kind(ErrorKind::Refused)
            .because("the command failed, and the kernel has not said that the device is gone")
            .cure_with(
                "try again; memory of an object that cannot be destroyed is kept until the \
                 device is closed",
            )
    }

    fn send_raw<M>(&self, verb: &'static str, request: &mut Request<'_, M>) -> Result<()> {
        let mut tries = 0;
        loop {
            match self.channel.ioctl(Call::new(request)) {
                Err(error) if is_interrupted(&error) && tries < INTERRUPTED_TRIES => tries += 1,
                Ok(()) => {
                    request.mark_executed();
                    return Ok(());
                }
                Err(error) => return Err(Error::io(verb, &error)),
            }
        }
    }

    /// Sends a write command without driver data.
    pub(crate) fn write<C: WriteCommand>(
        &self,
        verb: &'static str,
        core: &C,
    ) -> Result<C::Response> {
        self.write_with(verb, core, &[], &mut [])
    }

    /// Sends a write command with driver data.
    pub(crate) fn write_with<C: WriteCommand>(
        &self,
        verb: &'static str,
        core: &C,
        driver_in: &[u8],
        driver_out: &mut [u8],
    ) -> Result<C::Response> {
        let mut response = C::Response::new_zeroed();
        let mut request = Request::write(self.driver, core, &mut response);
        request.driver_data(driver_in, driver_out).map_err(|error| too_long(verb, &error))?;
        self.send(verb, &mut request)?;
        Ok(response)
    }

    /// Sends a write command that opens a file. `fd` finds the descriptor in the answer.
    pub(crate) fn write_opening<C: WriteCommand>(
        &self,
        verb: &'static str,
        core: &C,
        (driver_in, driver_out): (&[u8], &mut [u8]),
        fd: impl FnOnce(&C::Response) -> i32,
    ) -> Result<(C::Response, OwnedFd)> {
        let answer = self.write_with(verb, core, driver_in, driver_out)?;
        system::opened_by_write(verb, answer, fd)
    }

    /// Sends a write command. The driver answers with a `D`.
    pub(crate) fn write_for<C: WriteCommand, D>(
        &self,
        verb: &'static str,
        core: &C,
    ) -> Result<(C::Response, D)>
    where
        D: FromBytes + IntoBytes + Immutable,
    {
        let mut driver = D::new_zeroed();
        let response = self.write_with(verb, core, &[], driver.as_mut_bytes())?;
        Ok((response, driver))
    }

    /// Sends a write command with the data `driver`. The driver answers with a `D`.
    pub(crate) fn write_driver<C: WriteCommand, D>(
        &self,
        verb: &'static str,
        core: &C,
        driver: &(impl IntoBytes + Immutable),
    ) -> Result<(C::Response, D)>
    where
        D: FromBytes + IntoBytes + Immutable,
    {
        let mut answer = D::new_zeroed();
        let response = self.write_with(verb, core, driver.as_bytes(), answer.as_mut_bytes())?;
        Ok((response, answer))
    }

    pub(crate) fn mmap(
        &self,
        verb: &'static str,
        length: usize,
        access: Access,
        offset: u64,
    ) -> Result<Mapping> {
        self.require_opener(verb)?;
        let mapped = self.channel.mmap(length, access, offset).map(|mapping| match access {
            Access::Read => mapping,
            Access::Write | Access::ReadWrite => mapping.hidden_from_children(),
        });
        mapped.map_err(|errno| Error::os(verb, errno).asked(format!("mmap at {offset:#x}")))
    }

    /// Checks that the kernel accepts write commands by ioctl. Like libibverbs, it sends a command
    /// with only its number, which a kernel with the method refuses as too short (ENOSPC).
    pub(crate) fn require_invoke_write(&self) -> Result<()> {
        let mut probe = self.request::<invoke_write::Call>();
        probe.constant(invoke_write::WRITE_CMD, WriteCmd::QUERY_DEVICE.0);
        match self.send_raw("open_device", &mut probe) {
            Err(error) if matches!(error.errno(), libc::ENOTTY | libc::EPROTONOSUPPORT) => {
                Err(error
                    .with_kind(ErrorKind::KernelTooOld)
                    .because("the kernel does not carry write commands in the verbs ioctl")
                    .cure_with("use Linux 5.0 or later"))
            }
            _ => Ok(()),
        }
    }
}

fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

fn too_long(verb: &'static str, error: &uverbs_uapi::request::TooLong) -> Error {
    Error::invalid(verb, error.to_string())
}
