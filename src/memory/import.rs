//! Domains and regions that another process made on the same open file.

use uverbs_uapi::mlx5::object::pd::query as query_pd;
use uverbs_uapi::objects::mr::query as query_mr;

use super::MemoryRegion;
use super::pd::ProtectionDomain;
use crate::device::context::Context;
use crate::error::{Error, Result};

impl Context {
    /// A domain that another process made on the same open file (ibv_import_pd), by its
    /// [`ProtectionDomain::kernel_handle`]. Dropping or destroying it leaves the domain to its
    /// owner; once that frees it, what is asked of it here fails.
    ///
    /// # Errors
    /// `Unsupported` on kernels before 5.9; ENOENT or EINVAL where no domain has the handle.
    #[doc(alias = "ibv_import_pd")]
    pub fn import_pd(&self, handle: u32) -> Result<ProtectionDomain> {
        let mut number = 0u32;
        let mut request = self.commands().request::<query_pd::Call>();
        request.handle(query_pd::HANDLE, handle);
        request.output(query_pd::RESP_PDN, &mut number);
        let sent = self.commands().send("import_pd", &mut request);
        sent.map_err(|error| error.asked(format!("handle {handle}")))?;
        Ok(ProtectionDomain::imported(self, handle, number))
    }
}

impl ProtectionDomain {
    /// A region that another process registered in this domain (ibv_import_mr), by its
    /// [`MemoryRegion::kernel_handle`]: keys and addresses for work requests, no memory to look at.
    ///
    /// Dropping or deregistering it leaves the region to its owner. Once the owner deregisters it,
    /// requests that name it fail.
    ///
    /// # Errors
    /// `Unsupported` on kernels that cannot tell (before 5.9); ENOENT or EINVAL where no region has
    /// the handle.
    #[doc(alias = "ibv_import_mr")]
    pub fn import_region(&self, handle: u32) -> Result<MemoryRegion> {
        const VERB: &str = "import_mr";
        const UNTOLD: u64 = u64::MAX;
        let (mut lkey, mut rkey, mut length, mut iova) = (0u32, 0u32, 0u64, UNTOLD);
        let commands = self.context().commands();
        let sent = {
            let mut request = commands.request::<query_mr::Call>();
            request.handle(query_mr::HANDLE, handle);
            request.output(query_mr::RESP_LKEY, &mut lkey);
            request.output(query_mr::RESP_RKEY, &mut rkey);
            request.output(query_mr::RESP_LENGTH, &mut length);
            request.output(query_mr::RESP_IOVA, &mut iova).optional();
            commands.send(VERB, &mut request)
        };
        sent.map_err(|error| error.asked(format!("handle {handle}")))?;
        if iova == UNTOLD {
            return Err(Error::unsupported(
                VERB,
                "the kernel does not tell the region's addresses",
            ));
        }
        Ok(MemoryRegion::imported(self, handle, (lkey, rkey), (iova, length)))
    }
}

#[cfg(all(test, feature = "soft"))]
#[allow(unsafe_code, reason = "tests fork, and post raw requests")]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;
    use crate::device::Device;
    use crate::error::ErrorKind;
    use crate::host::channel::Channel;
    use crate::host::channel::SoftSource;

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
        let cq = second.create_raw_cq(16).build().unwrap();
        let mut qp = other
            .create_raw_qp::<crate::qp::qp_type::Rc>(cq.handle(), cq.handle())
            .build()
            .unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
    }

    #[test]
    fn domains_and_regions_of_one_are_used_by_the_other_and_stay_the_owners() {
        use crate::qp::op;
        use crate::qp::qp_type::Rc;
        use crate::qp::{Inline, PostFlags};
        use crate::{AccessFlags, Buffer};
        let (device, channel) = shared_file(uverbs_soft::chardev::Kernel::CURRENT);
        let owner = Context::open(device.clone(), channel.clone()).unwrap();
        let other = Context::adopt(device, channel).unwrap();
        let pd = owner.alloc_pd().unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = pd.register(Buffer::new(4096).unwrap(), access).unwrap();

        let theirs = other.import_pd(pd.kernel_handle()).unwrap();
        assert_eq!(theirs.number(), pd.number());
        let mut seen = theirs.import_region(region.kernel_handle().unwrap()).unwrap();
        assert_eq!((seen.lkey(), seen.rkey()), (region.lkey(), region.rkey()));
        assert_eq!((seen.address(), seen.len()), (region.address(), region.len()));
        assert!(seen.view().to_vec().is_empty(), "its memory is the owner's");
        assert_eq!(seen.change_access(access).unwrap_err().kind(), ErrorKind::Unsupported);

        let mut cq = other.create_raw_cq(16).build().unwrap();
        let builder = theirs.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        let mut qp = builder.access(AccessFlags::REMOTE_WRITE).build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        let (target, text) = (op::Write(seen.remote(9).unwrap()), Inline(b"imported"));
        // SAFETY: inline data; the region outlives the request.
        unsafe { qp.post_send(1, target, text, PostFlags::SIGNALED) }.unwrap();
        while cq.poll().is_err() {}
        assert_eq!(&region.view().to_vec()[9..17], b"imported");

        assert!(theirs.import_region(4711).is_err() && other.import_pd(4711).is_err());
        seen.deregister().unwrap();
        drop(qp);
        theirs.destroy().unwrap();
        // Both still are their owner's.
        region.deregister().unwrap();
        pd.destroy().unwrap();
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
