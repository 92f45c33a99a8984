//! Importing the user context of another process, by its file descriptor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_uapi::mlx5::object::device::query_context as driver;
use uverbs_uapi::objects::device::query_context;

use super::Device;
use super::context::{Context, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::{Channel, KernelChannel};
use crate::host::command::Commands;
use crate::mlx5::DRIVER;

const VERB: &str = "import_device";

impl Context {
    /// Imports a user context of another process (ibv_import_device): `fd` is its open device node,
    /// sent over a Unix socket. Both processes may use each other's objects by kernel handle. The
    /// context is closed with the last descriptor.
    ///
    /// This process gets the asynchronous events of objects that it makes.
    ///
    /// # Errors
    /// `NotFound` for a descriptor that is not of an RDMA device; EINVAL if its owner never made a
    /// context; `Unsupported` on kernels before 5.9, and if the context has doorbell pages from the
    /// open (kernels before 5.7), because two processes would ring the same ones.
    #[doc(alias = "ibv_import_device")]
    pub fn import(fd: OwnedFd) -> Result<Self> {
        let file = File::from(fd);
        let (device, entry) = Device::of_file(VERB, &file)?;
        let channel = KernelChannel::adopt(&entry, file)?;
        Self::adopt(device, Arc::new(channel))
    }

    /// Uses the context that the file of `channel` already has.
    pub(crate) fn adopt(device: Device, channel: Arc<dyn Channel>) -> Result<Self> {
        let commands = Arc::new(Commands::new(channel, DRIVER));
        commands.require_invoke_write()?;
        let opened = query(&commands)?;
        if opened.limits.tot_bfregs != 0 {
            let cause = "the context's doorbell pages are fixed, and its owner uses them";
            return Err(Error::unsupported(VERB, cause));
        }
        Self::with(device, commands, opened)
    }
}

fn query(commands: &Commands) -> Result<Opened> {
    let mut opened = Opened::default();
    let mut request = commands.request::<query_context::Call>();
    request.output(query_context::NUM_COMP_VECTORS, &mut opened.completion_vectors);
    request.output(query_context::CORE_SUPPORT, &mut opened.core_support);
    request.output(driver::RESP_UCTX, &mut opened.limits);
    commands.send(VERB, &mut request).map_err(|error| match error.kind() {
        ErrorKind::Unsupported => {
            error.because("the kernel cannot tell what a context was made with")
        }
        _ => error,
    })?;
    Ok(opened)
}
