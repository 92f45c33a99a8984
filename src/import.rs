//! Opening a device by a file descriptor that another process opened.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_uapi::mlx5::object::device::query_context as driver;
use uverbs_uapi::objects::device::query_context;

use crate::channel::{Channel, KernelChannel};
use crate::command::Commands;
use crate::context::{Context, Opened};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};

const VERB: &str = "import_device";

impl Context {
    /// Takes over a user context that another process made (ibv_import_device): `fd` is its open device
    /// node, sent over a Unix socket. What either process makes, both may use by number; the context ends
    /// when the last descriptor is closed.
    ///
    /// Asynchronous events of objects made here arrive here.
    ///
    /// # Errors
    /// `NotFound` for a descriptor that is no RDMA device's; EINVAL if its owner never made a context;
    /// `Unsupported` on kernels before 5.9, and where doorbell pages are fixed when a device is opened
    /// (kernels before 5.7): two processes would ring the same ones.
    pub fn import(fd: OwnedFd) -> Result<Self> {
        let file = File::from(fd);
        let (device, entry) = Device::of_file(VERB, &file)?;
        let channel = KernelChannel::adopt(&entry, file)?;
        Self::adopt(device, Arc::new(channel))
    }

    /// Works on the context that `channel` has already.
    pub(crate) fn adopt(device: Device, channel: Arc<dyn Channel>) -> Result<Self> {
        let commands = Arc::new(Commands::new(channel));
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

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::channel::SoftSource;

    fn shared_file(kernel: uverbs_soft::chardev::Kernel) -> (Device, Arc<dyn Channel>) {
        let soft = uverbs_soft::chardev::SoftDevice::builder("soft0").without_wire().kernel(kernel);
        let soft = Arc::new(soft.build().unwrap());
        let channel = Arc::new(SoftSource::new(soft.clone()).open().unwrap());
        (Device::from_shared_soft(soft), channel)
    }

    #[test]
    fn two_contexts_work_on_one_open_file() {
        let (device, channel) = shared_file(uverbs_soft::chardev::Kernel::CURRENT);
        assert_eq!(Context::adopt(device.clone(), channel.clone()).unwrap_err().errno(), 22);
        let first = Context::open(device.clone(), channel.clone()).unwrap();
        let second = Context::adopt(device, channel).unwrap();
        assert_eq!(first.driver_limits().bf_reg_size, second.driver_limits().bf_reg_size);
        assert!(!first.is_same(&second));
        let (one, other) = (first.alloc_pd().unwrap(), second.alloc_pd().unwrap());
        assert_ne!(one.number(), other.number());
        drop(first);
        drop(one);
        let cq = second.create_cq(16).build().unwrap();
        let mut qp = other.create_qp::<crate::qp::Rc>(cq.handle(), cq.handle()).build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
    }

    #[test]
    fn fixed_doorbell_pages_are_not_shared() {
        let (device, channel) = shared_file(uverbs_soft::chardev::Kernel::STATIC_UAR);
        let _first = Context::open(device.clone(), channel.clone()).unwrap();
        let error = Context::adopt(device, channel).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }

    #[test]
    fn a_file_that_is_no_device_is_refused() {
        let file = File::open("/dev/null").unwrap();
        assert_eq!(Context::import(file.into()).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
