//! Extended operations: masked atomics, memory windows of both types, memory of other devices.

mod common;

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use common::{ALL_ACCESS, Setup, success};
use uverbs::cq::{CompletionOpcode, Status};
use uverbs::mw::{WindowAccess, WindowType};
use uverbs::qp::{AtomicResult, Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, Buffer, ErrorKind, MemoryRegion, Remote, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn word(region: &MemoryRegion, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    region.view().read(offset, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

fn result(region: &MemoryRegion) -> AtomicResult {
    let sge = region.sge(0, 8).unwrap();
    AtomicResult { address: sge.address(), lkey: sge.lkey() }
}

#[test]
fn masked_swaps_compare_and_replace_only_masked_bits() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let (here, there) = (setup.region(64), setup.region(64));
    let remote = there.remote(8).unwrap();
    let start = 0x1111_2222_3333_4444u64;
    // Bits to compare, the value to compare with, and whether the swap happens.
    let cases = [
        (0xffff, 0x4444, 0x1111_2222_3333_9999),
        (0xffff, 0x4445, start),
        (0, 0x4445, 0x1111_2222_3333_9999),
        (0xffff_ffff_ffff_ffff, start, 0x1111_2222_3333_9999),
    ];
    for (compare_mask, compare, expected) in cases {
        there.view().write(8, &start.to_ne_bytes()).unwrap();
        let swap = 0x7777_8888_5555_9999;
        let operation =
            op::MaskedCompareSwap { remote, compare, compare_mask, swap, swap_mask: 0xffff };
        // SAFETY: both regions outlive the request and are accessed through their views.
        unsafe { a.post_send(1, operation, result(&here), SIGNALED).unwrap() };
        let done = success(&mut setup.cq);
        assert_eq!((done.opcode(), word(&here, 0)), (CompletionOpcode::CompareSwap, start));
        assert_eq!(word(&there, 8), expected, "{compare:#x} in {compare_mask:#x}");
    }
}

#[test]
fn masked_additions_do_not_carry_across_field_boundaries() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let (here, there) = (setup.region(64), setup.region(64));
    let remote = there.remote(0).unwrap();
    let start = 0x0001_ffff_00ff_fffeu64;
    let cases = [
        // One field of 64 bits.
        (0, 3u64, start + 3),
        // Four fields of 16 bits: the carry of each is lost.
        (0x8000_8000_8000_8000, 0x0001_0001_0001_0003, 0x0002_0000_0100_0001),
        // Two fields of 32 bits.
        (0x8000_0000_8000_0000, 0x0000_0001_0000_0002, 0x0002_0000_0100_0000),
    ];
    for (field_boundary, add, expected) in cases {
        there.view().write(0, &start.to_ne_bytes()).unwrap();
        let operation = op::MaskedFetchAdd { remote, add, field_boundary };
        // SAFETY: both regions outlive the request and are accessed through their views.
        unsafe { a.post_send(1, operation, result(&here), SIGNALED).unwrap() };
        let done = success(&mut setup.cq);
        assert_eq!((done.opcode(), word(&here, 0)), (CompletionOpcode::FetchAdd, start));
        assert_eq!(word(&there, 0), expected, "fields {field_boundary:#x}: {:#x}", word(&there, 0));
    }
}

/// Two connected queue pairs; the second one's end has memory to bind windows to.
struct Windows {
    setup: Setup,
    peer: raw::QueuePair<Rc>,
    owner: raw::QueuePair<Rc>,
    region: MemoryRegion,
}

impl Windows {
    fn new() -> Self {
        let setup = Setup::new();
        let (peer, owner) = setup.rc_pair();
        let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
        let region = setup.pd.register(Buffer::new(4096).unwrap(), access).unwrap();
        Self { setup, peer, owner, region }
    }

    /// Posts an operation without data on the owner's queue.
    fn own<O: uverbs::op::Operation + uverbs::op::Takes<()>>(&mut self, operation: O) -> Status
    where
        Rc: uverbs::op::Carries<O>,
    {
        // SAFETY: no memory is named.
        unsafe { self.owner.post_send(1, operation, (), SIGNALED).unwrap() };
        self.setup.completion().status
    }

    /// The status of a peer's write of one byte at `offset` of the region.
    fn write(&mut self, offset: usize, rkey: u32, byte: u8) -> Status {
        let remote = Remote::new(self.region.address() + offset as u64, rkey);
        // SAFETY: inline data; the region outlives the request.
        unsafe { self.peer.post_send(2, op::Write(remote), Inline(&[byte]), SIGNALED).unwrap() };
        self.setup.completion().status
    }

    fn byte(&self, offset: usize) -> u8 {
        self.region.view().to_vec()[offset]
    }
}

#[test]
fn rebinding_a_window_of_type_1_invalidates_its_old_key() {
    let mut windows = Windows::new();
    let mut window = windows.setup.pd.alloc_mw(WindowType::Type1).unwrap();
    let bind = window.bind(&windows.region, 0, 100, WindowAccess::REMOTE_WRITE).unwrap();
    assert_eq!(windows.own(bind), Status::Success);
    let first = window.rkey();
    assert_eq!(windows.write(99, first, 1), Status::Success);
    let bind = window.bind(&windows.region, 1000, 100, WindowAccess::REMOTE_WRITE).unwrap();
    assert_eq!(windows.own(bind), Status::Success);
    assert_ne!(window.rkey(), first);
    assert_eq!(windows.write(1099, window.rkey(), 2), Status::Success);
    assert_eq!(windows.write(99, first, 3), Status::RemoteAccess, "the old key");
    assert_eq!((windows.byte(99), windows.byte(1099)), (1, 2));
}

#[test]
fn a_window_of_type_1_is_unbound() {
    let mut windows = Windows::new();
    let mut window = windows.setup.pd.alloc_mw(WindowType::Type1).unwrap();
    let bind = window.bind(&windows.region, 0, 100, WindowAccess::REMOTE_WRITE).unwrap();
    assert_eq!(windows.own(bind), Status::Success);
    let unbind = window.unbind();
    assert_eq!(windows.own(unbind), Status::Success);
    assert_eq!(windows.write(0, window.rkey(), 1), Status::RemoteAccess);
    assert_eq!(windows.byte(0), 0);
    window.dealloc().unwrap();
}

#[test]
fn a_window_of_type_2_is_invalidated_by_its_owner() {
    let mut windows = Windows::new();
    let mut window = windows.setup.pd.alloc_mw(WindowType::Type2).unwrap();
    let bind = window.bind(&windows.region, 10, 100, WindowAccess::REMOTE_WRITE).unwrap();
    assert_eq!(windows.own(bind), Status::Success);
    assert_eq!(windows.write(10, window.rkey(), 1), Status::Success);
    // SAFETY: no memory is named.
    unsafe {
        windows.owner.post_send(1, op::LocalInvalidate(window.rkey()), (), SIGNALED).unwrap();
    }
    let done = success(&mut windows.setup.cq);
    assert_eq!(done.opcode(), CompletionOpcode::LocalInvalidate);
    assert_eq!(windows.write(10, window.rkey(), 2), Status::RemoteAccess);
    assert_eq!(windows.byte(10), 1);
}

#[test]
fn a_window_grants_only_its_bytes_and_rights() {
    let reach = |offset: usize, length: usize| {
        let mut windows = Windows::new();
        let mut window = windows.setup.pd.alloc_mw(WindowType::Type2).unwrap();
        let bind = window.bind(&windows.region, 8, 16, WindowAccess::REMOTE_READ).unwrap();
        assert_eq!(windows.own(bind), Status::Success);
        let remote = Remote::new(windows.region.address() + offset as u64, window.rkey());
        let into = windows.setup.region(64);
        let sge = into.sge(0, length).unwrap();
        // SAFETY: the region outlives the request and is not looked at.
        unsafe { windows.peer.post_send(3, op::Read(remote), sge, SIGNALED).unwrap() };
        let status = windows.setup.completion().status;
        let written = (status == Status::Success).then(|| windows.write(offset, window.rkey(), 1));
        (status, written)
    };
    assert_eq!(reach(8, 16), (Status::Success, Some(Status::RemoteAccess)));
    assert_eq!(reach(7, 16), (Status::RemoteAccess, None));
    assert_eq!(reach(8, 17), (Status::RemoteAccess, None));
}

#[test]
fn a_peer_can_invalidate_windows_of_type_2_only() {
    for kind in [WindowType::Type1, WindowType::Type2] {
        let mut windows = Windows::new();
        let mut window = windows.setup.pd.alloc_mw(kind).unwrap();
        let bind = window.bind(&windows.region, 0, 16, WindowAccess::REMOTE_WRITE).unwrap();
        assert_eq!(windows.own(bind), Status::Success);
        // SAFETY: no memory is named.
        unsafe {
            windows.owner.post_receive(4, &[]).unwrap();
            windows.peer.post_send(3, op::SendInvalidate(window.rkey()), (), SIGNALED).unwrap();
        }
        let done = windows.setup.completions(2);
        let good = done.iter().all(|done| done.status == Status::Success);
        assert_eq!(good, kind == WindowType::Type2, "{kind:?}: {done:?}");
    }
}

#[test]
fn a_region_with_bound_windows_is_not_deregistered() {
    // The syndrome depends on the device's firmware.
    if !common::is_soft() {
        return;
    }
    let setup = Setup::new();
    let (mut owner, _peer) = setup.rc_pair();
    let registration = setup.pd.registration().access(ALL_ACCESS | AccessFlags::MW_BIND);
    let mut region = registration.register(Buffer::new(4096).unwrap()).unwrap();
    let mut setup = setup;
    for kind in [WindowType::Type1, WindowType::Type2] {
        let mut window = setup.pd.alloc_mw(kind).unwrap();
        let bind = window.bind(&region, 0, 16, WindowAccess::REMOTE_WRITE).unwrap();
        // SAFETY: no memory is accessed through the window.
        unsafe { owner.post_send(1, bind, (), SIGNALED).unwrap() };
        success(&mut setup.cq);
        let held = region.deregister().unwrap_err();
        assert_eq!(held.error.errno(), libc::EBUSY, "{}", held.error);
        assert!(held.error.cause().contains("memory windows are bound"), "{}", held.error);
        region = *held.object;
        if kind == WindowType::Type2 {
            // SAFETY: as above.
            unsafe {
                owner.post_send(2, op::LocalInvalidate(window.rkey()), (), SIGNALED).unwrap()
            };
            success(&mut setup.cq);
        } else {
            window.dealloc().unwrap();
        }
    }
    region.deregister().unwrap();
}

/// A memfd in place of a dma-buf: a software device accepts it if its options say so.
fn memory_file(length: i64) -> OwnedFd {
    // SAFETY: a new descriptor of our own.
    let fd = unsafe { libc::memfd_create(c"dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    std::fs::File::from(fd.try_clone().unwrap()).set_len(length as u64).unwrap();
    fd
}

#[test]
fn a_dma_buf_is_registered_read_and_written_by_a_peer() {
    use std::os::unix::fs::FileExt;
    if !common::is_soft() {
        return;
    }
    let fd = memory_file(3 * 4096);
    let setup = Setup::new();
    // SAFETY: refused.
    let plain = unsafe { setup.pd.registration().register_dma_buf(fd.as_fd(), 0, 4096) };
    assert_eq!(plain.unwrap_err().errno(), libc::EINVAL, "a memfd is not a dma-buf");
    let device = common::soft_device(|builder| builder.memfds_as_dma_bufs());
    let mut setup = Setup::on(device.open().unwrap());
    let file = std::fs::File::from(fd.try_clone().unwrap());
    let registration = setup.pd.registration().access(ALL_ACCESS);
    let register = |offset, length| {
        let registration = registration.clone();
        // SAFETY: the file's memory belongs to the test, which reads it only after completions.
        unsafe { registration.register_dma_buf(fd.as_fd(), offset, length) }
    };
    let region = register(4096, 8192).unwrap();
    assert!(region.view().is_empty(), "it is not memory of this process");
    let (mut a, _b) = setup.rc_pair();
    let remote = region.remote(100).unwrap();
    // SAFETY: inline data; the region outlives the request.
    unsafe { a.post_send(1, op::Write(remote), Inline(b"into the file"), SIGNALED).unwrap() };
    success(&mut setup.cq);
    let mut bytes = [0; 13];
    file.read_exact_at(&mut bytes, 4096 + 100).unwrap();
    assert_eq!(&bytes, b"into the file");
    file.write_all_at(b"out of it", 8192 + 4000).unwrap();
    let into = setup.region(64);
    let read = op::Read(region.remote(4096 + 4000).unwrap());
    // SAFETY: the region outlives the request and is looked at after it.
    unsafe { a.post_send(2, read, into.sge(0, 9).unwrap(), SIGNALED).unwrap() };
    success(&mut setup.cq);
    assert_eq!(&into.view().to_vec()[..9], b"out of it");
    region.deregister().unwrap();
    // A length beyond the end, and a descriptor that is not a dma-buf.
    assert_eq!(register(8192, 4097).unwrap_err().errno(), libc::EINVAL);
    let null = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { registration.clone().register_dma_buf(null.as_fd(), 0, 4096) };
    let error = refused.unwrap_err();
    assert!(error.is_from_kernel() && error.kind() != ErrorKind::DeviceGone, "{error}");
}
