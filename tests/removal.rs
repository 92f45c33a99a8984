//! The device is removed while a program uses it, and comes back.
//!
//! A kernel device is unbound from its driver, which needs root. The built-in one is removed.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use common::Setup;
use uverbs::events::{EventSource, EventType};
use uverbs::flow::Ethernet;
use uverbs::mw::WindowType;
use uverbs::qp::{Inline, PostFlags, State};
use uverbs::qp_type::{RawPacket, Ud};
use uverbs::soft::SoftDevice;
use uverbs::{Device, ErrorKind, Flow, PollError, op, raw};

/// A device that the test can remove.
enum Removable {
    Kernel { name: String, function: String },
    Soft(Arc<SoftDevice>),
}

/// The driver of kernel devices.
const DRIVER: &str = "/sys/bus/pci/drivers/mlx5_core";

impl Removable {
    fn new() -> Self {
        match std::env::var("UVERBS_TEST_DEVICE") {
            Ok(name) => {
                let link: PathBuf = format!("/sys/class/infiniband/{name}/device").into();
                let target = std::fs::read_link(link).expect("a PCI function");
                let function = target.file_name().expect("a name").to_string_lossy().into_owned();
                Self::Kernel { name, function }
            }
            Err(_) => {
                let soft = SoftDevice::builder("soft0").without_wire().build();
                Self::Soft(Arc::new(soft.expect("a software device starts")))
            }
        }
    }

    fn device(&self) -> Device {
        match self {
            Self::Kernel { name, .. } => uverbs::device(name).expect("the device is there"),
            Self::Soft(soft) => Device::from_shared_soft(soft.clone()),
        }
    }

    fn remove(&self) {
        match self {
            Self::Kernel { function, .. } => tell_driver("unbind", function),
            Self::Soft(soft) => soft.remove(),
        }
    }

    /// Binds a kernel device again and waits until it can be opened. A removed software device does
    /// not return.
    fn bring_back(&self) {
        let Self::Kernel { name, function } = self else { return };
        tell_driver("bind", function);
        let began = Instant::now();
        loop {
            match uverbs::device(name).and_then(|device| device.open()) {
                Ok(context) => return drop(context.alloc_pd().expect("a domain")),
                Err(error) => assert!(began.elapsed() < common::PATIENCE, "{error}"),
            }
            std::thread::yield_now();
        }
    }
}

fn tell_driver(what: &str, function: &str) {
    std::fs::write(format!("{DRIVER}/{what}"), function).expect("root may do this");
}

/// A raw packet queue pair and its steering rule, on an Ethernet port.
fn steered(setup: &Setup) -> Option<(Flow, raw::QueuePair<RawPacket>)> {
    let mut qp = setup.builder::<RawPacket>().build().ok()?;
    let flow = qp.create_flow().ethernet(Ethernet::default()).build();
    Some((flow.unwrap(), qp))
}

#[test]
fn removing_the_device_ends_every_wait_and_objects_can_be_destroyed() {
    let removable = Removable::new();
    let mut setup = Setup::on(removable.device().open().unwrap());
    let channel = setup.context.create_completion_channel().unwrap();
    let armed = setup.context.create_raw_cq(16).channel(&channel).build().unwrap();
    let (mut a, b) = setup.rc_pair();
    let datagrams = setup.builder::<Ud>().build().unwrap();
    let srq = setup.pd.create_raw_srq(16).build().unwrap();
    let window = setup.pd.alloc_mw(WindowType::Type2).unwrap();
    let steered = steered(&setup);
    let region = setup.region(4096);
    let waiting = [(); 3].map(|()| {
        let context = setup.context.clone();
        std::thread::spawn(move || context.get_event().map(|event| (event.kind(), event.source())))
    });
    removable.remove();
    let waited = waiting.map(|thread| thread.join().unwrap());
    let events: Vec<_> = waited.iter().flatten().copied().collect();
    assert_eq!(events, [(EventType::DEVICE_FATAL, EventSource::Device)], "one gets it");
    for ended in waited.into_iter().filter_map(Result::err) {
        assert_eq!((ended.kind(), ended.errno()), (ErrorKind::DeviceGone, libc::EIO));
    }
    let nothing = setup.context.get_event().unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::DeviceGone, "nothing comes after the end");
    assert_eq!(setup.context.try_get_event().unwrap_err().kind(), ErrorKind::DeviceGone);
    // SAFETY: inline data. The device's doorbell page no longer exists; the stores must be
    // harmless.
    let _ = unsafe { a.post_send(1, op::Send, Inline(b"x"), PostFlags::SIGNALED) };
    assert_eq!(a.state(), State::Err);
    assert_eq!(setup.cq.poll().unwrap_err(), PollError::DeviceRemoved);
    assert_eq!(setup.context.alloc_pd().unwrap_err().errno(), libc::EIO);
    assert_eq!(b.query().unwrap_err().errno(), libc::EIO);
    assert_eq!(srq.query().unwrap_err().errno(), libc::EIO);
    a.destroy().unwrap();
    b.destroy().unwrap();
    datagrams.destroy().unwrap();
    srq.destroy().unwrap();
    window.dealloc().unwrap();
    if let Some((rule, frames)) = steered {
        rule.destroy().unwrap();
        frames.destroy().unwrap();
    }
    region.deregister().unwrap();
    armed.destroy().unwrap();
    setup.cq.destroy().unwrap();
    setup.pd.destroy().unwrap();
    drop(setup.context);
    removable.bring_back();
}
