//! A device that is removed while in use.

use nix::errno::Errno;
use uverbs_uapi::write::device::QueryDevice;
use uverbs_uapi::write::pd::{AllocPd, DeallocPd};

use crate::core::{AsyncKind, EventObject};

use super::bench::{Client, Memory, QpRequest, alone, read_async};

fn read(fd: i32) -> isize {
    let mut record = [0u8; 16];
    // SAFETY: `record` has 16 bytes.
    unsafe { libc::read(fd, record.as_mut_ptr().cast(), 16) }
}

/// The result of poll(2) without waiting.
fn pollable(fd: i32) -> i16 {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    assert!(unsafe { libc::poll(&mut poll, 1, 0) } >= 0);
    poll.revents
}

#[test]
fn after_removal_only_destruction_works() {
    let (device, client) = alone();
    let (events, channel) = (client.async_events(), client.comp_channel());
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd_handle = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, Some(channel), 0).unwrap();
    let qp = client.create_qp(&QpRequest::rc(&ring, &uar, pd_handle, cq.handle)).unwrap();

    device.remove();
    assert!(device.is_removed());
    assert_eq!(read_async(events), Some((0, 8)), "DEVICE_FATAL");
    let _ = device.raise(AsyncKind::PortActive, EventObject::Port(1));
    assert_eq!(pollable(events), 0, "nothing follows, and no end either");
    assert_eq!((read(channel), pollable(channel)), (0, libc::POLLHUP));
    uar.ring(0x800, [1; 8]);
    assert_eq!(client.write(&QueryDevice::default()).unwrap_err(), Errno::EIO);
    assert_eq!(client.write(&AllocPd::default()).unwrap_err(), Errno::EIO);
    assert_eq!(client.create_cq(&cq_memory, &uar, None, 0).unwrap_err(), Errno::EIO);
    assert_eq!(client.map(0x50_0000, 4096, libc::PROT_READ).unwrap_err(), Errno::EIO);

    assert_eq!(client.write(&DeallocPd { pd_handle }), Ok(()), "in any order");
    assert_eq!(client.destroy_cq(cq.handle), Ok((0, 0)));
    assert_eq!(client.destroy_qp(qp.handle), Ok(0));
    assert_eq!(client.destroy_qp(qp.handle), Err(Errno::ENOENT));

    let late = Client::bare(&device);
    assert_eq!(late.get_context(&super::bench::context_request(), &mut [0; 72]), Err(Errno::EIO));
    for fd in [events, channel] {
        // SAFETY: the descriptors are this test's own.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn closing_the_file_ends_its_channels() {
    let (_device, client) = alone();
    let channel = client.comp_channel();
    drop(client);
    assert_eq!(read(channel), 0);
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(channel) };
}
