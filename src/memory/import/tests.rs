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
    let mut qp =
        other.create_raw_qp::<crate::qp::qp_type::Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
}

#[test]
fn imported_domains_and_regions_work_and_stay_their_owners() {
    use crate::mw::{WindowAccess, WindowType};
    use crate::qp::op;
    use crate::qp::qp_type::Rc;
    use crate::qp::{Inline, PostFlags};
    use crate::{AccessFlags, Buffer};
    let (device, channel) = shared_file(uverbs_soft::chardev::Kernel::CURRENT);
    let owner = Context::open(device.clone(), channel.clone()).unwrap();
    let other = Context::adopt(device, channel).unwrap();
    let pd = owner.alloc_pd().unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND;
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

    // Its rights are not known: the device checks them.
    let mut window = theirs.alloc_mw(WindowType::Type2).unwrap();
    window.bind(&seen, 0, 64, WindowAccess::REMOTE_READ).unwrap();
    drop(window);

    assert!(theirs.import_region(4711).is_err() && other.import_pd(4711).is_err());
    seen.deregister().unwrap();
    drop(qp);
    theirs.destroy().unwrap();
    // The owner can still destroy both.
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
fn a_file_that_is_not_a_device_is_refused() {
    let file = File::open("/dev/null").unwrap();
    assert_eq!(Context::import(file.into()).unwrap_err().kind(), ErrorKind::NotFound);
}
