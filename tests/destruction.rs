//! Commands that destroy objects fail while the device exists: memory that the device may still
//! access must not be released before the context is closed. These tests have a separate process
//! without tests that fork, because after a fork a process cannot know when the kernel closes a
//! file.

mod common;

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{ALL_ACCESS, REMOTE, success};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::events::{EventSource, EventType};
use uverbs::flow::Ethernet;
use uverbs::memory::QueueMemory;
use uverbs::mw::WindowType;
use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::{RawPacket, Rc, Ud};
use uverbs::soft::{Errno, Fault, Moment, SoftDevice};
use uverbs::{Buffer, Context, DestroyError, Device, ErrorKind, ProtectionDomain, op, raw};

/// Errnos of failing commands. Neither proves that the device was removed.
const ERRNOS: [Errno; 2] = [Errno::ENODEV, Errno::EIO];
/// More failing commands than any destruction sends.
const MANY: usize = 50;

/// Allocates the program's buffers, and counts those that the library has not given back.
#[derive(Clone, Default)]
struct Arena {
    live: Arc<AtomicUsize>,
}

impl Arena {
    fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    fn buffer(&self, length: usize) -> Buffer {
        let layout = Layout::from_size_align(length.next_multiple_of(4096), 4096).unwrap();
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!start.is_null());
        let live = self.live.clone();
        live.fetch_add(1, Ordering::SeqCst);
        let address = start as usize;
        let give_back = move || {
            live.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: allocated above with this layout, and the buffer is gone.
            unsafe { std::alloc::dealloc(address as *mut u8, layout) };
        };
        // SAFETY: fresh memory that belongs to the buffer until it is given back.
        unsafe { Buffer::from_raw(start, layout.size(), give_back) }
    }

    fn for_queues(&self) -> QueueMemory {
        let arena = self.clone();
        QueueMemory::new(move |length, _| Ok(arena.buffer(length)))
    }
}

struct Bench {
    soft: Arc<SoftDevice>,
    context: Context,
    pd: ProtectionDomain,
    cq: raw::CompletionQueue,
    arena: Arena,
}

impl Bench {
    fn new() -> Self {
        let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
        let context = Device::from_shared_soft(soft.clone()).open().unwrap();
        let arena = Arena::default();
        let pd = context.alloc_pd().unwrap().with_queue_memory(&arena.for_queues());
        let cq = context.create_raw_cq(64).build().unwrap();
        Self { soft, context, pd, cq, arena }
    }

    fn let_commands_fail(&self, errno: Errno) {
        for _ in 0..MANY {
            self.soft.inject(Fault { moment: Moment::Call(0), errno });
        }
    }

    fn pair(&self) -> (raw::QueuePair<Rc>, raw::QueuePair<Rc>) {
        let build = || {
            self.pd.create_raw_qp::<Rc>(self.cq.handle(), self.cq.handle()).access(REMOTE).build()
        };
        let (mut a, mut b) = (build().unwrap(), build().unwrap());
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b).unwrap();
        b.connect(&end_a).unwrap();
        (a, b)
    }
}

/// Creates an object, makes its destruction fail with each errno, drops it, and closes the device.
fn assert_memory_is_kept_until_the_close<T>(
    what: &str,
    make: impl Fn(&Bench) -> T,
    destroy: impl Fn(T) -> Result<(), DestroyError<T>>,
) {
    for errno in ERRNOS {
        let bench = Bench::new();
        let object = make(&bench);
        let arena = bench.arena.clone();
        let live = arena.live();
        assert!(live > 0, "{what}: it has memory");
        let handles = bench.soft.handle_count();
        bench.let_commands_fail(errno);
        let failed = destroy(object).unwrap_err();
        assert_eq!(failed.error.errno(), errno as i32, "{what}");
        assert_ne!(failed.error.kind(), ErrorKind::DeviceGone, "{what}: {}", failed.error);
        assert!(failed.error.to_string().contains("kept until the device is closed"));
        assert_eq!(arena.live(), live, "{what} with {errno:?}: refused");
        drop(failed);
        assert_eq!(arena.live(), live, "{what} with {errno:?}: dropped");
        bench.soft.clear_faults();
        assert_eq!(bench.soft.handle_count(), handles, "{what}: the kernel has it");
        let Bench { soft, context, pd, cq, arena } = bench;
        drop((cq, pd));
        assert_eq!(arena.live(), live, "{what} with {errno:?}: before the close");
        drop(context);
        assert_eq!(arena.live(), 0, "{what} with {errno:?}: after the close");
        assert_eq!(soft.handle_count(), 0);
    }
}

#[test]
fn memory_of_regions_is_not_given_back_while_the_device_has_it() {
    let region = |b: &Bench| b.pd.register(b.arena.buffer(8192), ALL_ACCESS).unwrap();
    assert_memory_is_kept_until_the_close("region", region, |x| x.deregister().map(drop));
}

#[test]
fn rings_of_completion_queues_are_not_given_back_while_the_device_has_them() {
    let queue = |b: &Bench| {
        b.context.create_raw_cq(100).queue_memory(&b.arena.for_queues()).build().unwrap()
    };
    assert_memory_is_kept_until_the_close("completion queue", queue, |x| x.destroy());
}

#[test]
fn the_ring_of_a_resize_that_failed_is_kept_as_long_as_the_completion_queue() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let memory = bench.arena.for_queues();
        let mut cq = bench.context.create_raw_cq(100).queue_memory(&memory).build().unwrap();
        let live = bench.arena.live();
        bench.soft.inject(Fault { moment: Moment::Call(0), errno });
        assert_eq!(cq.resize(500).unwrap_err().errno(), errno as i32);
        assert_eq!(bench.arena.live(), live + 1, "the device may still move there");
        cq.resize(1000).unwrap();
        assert_eq!(bench.arena.live(), live + 2);
        cq.destroy().unwrap();
        assert!(bench.arena.live() < live, "all given back");
    }
}

#[test]
fn rings_of_queue_pairs_are_not_given_back_while_the_device_has_them() {
    assert_memory_is_kept_until_the_close("pair", |b| b.pair().0, |x| x.destroy());
    let datagrams =
        |b: &Bench| b.pd.create_raw_qp::<Ud>(b.cq.handle(), b.cq.handle()).build().unwrap();
    assert_memory_is_kept_until_the_close("datagrams", datagrams, |x| x.destroy());
}

#[test]
fn rings_of_shared_receive_queues_are_not_given_back_while_the_device_has_them() {
    let queue = |b: &Bench| b.pd.create_raw_srq(100).build().unwrap();
    assert_memory_is_kept_until_the_close("shared receive queue", queue, |x| x.destroy());
}

#[test]
fn queues_of_frames_to_send_are_not_given_back_while_the_device_has_them() {
    let sends = |b: &Bench| b.pd.create_tx_queue(16).build().unwrap();
    assert_memory_is_kept_until_the_close("frames to send", sends, |x| x.destroy());
}

/// A queue that could not be destroyed still receives frames, so its buffers are not free slots.
#[test]
fn buffers_of_a_frame_queue_that_could_not_be_destroyed_stay_taken() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let rx = bench.pd.create_rx_queue(16).build().unwrap();
        let slab = rx.slab().clone();
        let (free, live) = (slab.free(), bench.arena.live());
        bench.let_commands_fail(errno);
        drop(rx);
        bench.soft.clear_faults();
        assert_eq!(slab.free(), free, "the device may write to the others");
        drop(slab);
        assert_eq!(bench.arena.live(), live);
    }
}

#[test]
fn a_failed_destroy_returns_the_steering_rule() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let mut frames = bench
            .pd
            .create_raw_qp::<RawPacket>(bench.cq.handle(), bench.cq.handle())
            .build()
            .unwrap();
        let rule = frames.create_flow().ethernet(Ethernet::default()).build().unwrap();
        bench.let_commands_fail(errno);
        let failed = rule.destroy().unwrap_err();
        assert_eq!(failed.error.errno(), errno as i32);
        bench.soft.clear_faults();
        failed.object.destroy().unwrap();
        // The drop cannot destroy the rule, so the queue pair keeps it.
        let rule = frames.create_flow().ethernet(Ethernet::default()).build().unwrap();
        bench.let_commands_fail(errno);
        drop(rule);
        bench.soft.clear_faults();
        assert_eq!(frames.destroy().unwrap_err().error.kind(), ErrorKind::Busy);
    }
}

#[test]
fn a_failed_destroy_returns_objects_without_memory() {
    for errno in ERRNOS {
        let bench = Bench::new();
        let window = bench.pd.alloc_mw(WindowType::Type2).unwrap();
        let domain = bench.context.alloc_pd().unwrap();
        let xrcd = bench.context.open_xrcd().unwrap();
        bench.let_commands_fail(errno);
        let window = window.dealloc().unwrap_err().object;
        let domain = domain.destroy().unwrap_err().object;
        let xrcd = xrcd.close().unwrap_err().object;
        bench.soft.clear_faults();
        window.dealloc().unwrap();
        domain.destroy().unwrap();
        xrcd.close().unwrap();
    }
}

#[test]
fn the_device_still_writes_where_a_region_could_not_be_deregistered() {
    for errno in ERRNOS {
        let mut bench = Bench::new();
        let (mut a, _b) = bench.pair();
        let buffer = bench.arena.buffer(4096);
        let (start, live) = (buffer.as_ptr(), bench.arena.live());
        let region = bench.pd.register(buffer, ALL_ACCESS).unwrap();
        let target = region.remote(100).unwrap();
        bench.let_commands_fail(errno);
        drop(region);
        bench.soft.clear_faults();
        // SAFETY: inline data; the kernel still has the region.
        unsafe { a.post_send(1, op::Write(target), Inline(b"x"), PostFlags::SIGNALED).unwrap() };
        success(&mut bench.cq);
        // SAFETY: the buffer has not been given back, and the write is complete.
        assert_eq!(unsafe { start.add(100).read_volatile() }, b'x');
        assert_eq!(bench.arena.live(), live);
    }
}

#[test]
fn a_removal_gives_memory_back_at_once_and_keeps_its_event() {
    let bench = Bench::new();
    let region = bench.pd.register(bench.arena.buffer(4096), ALL_ACCESS).unwrap();
    let (a, b) = bench.pair();
    bench.soft.remove();
    let live = bench.arena.live();
    region.deregister().unwrap();
    assert!(bench.arena.live() < live, "given back at once");
    a.destroy().unwrap();
    b.destroy().unwrap();
    let fd = bench.context.events_fd();
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1), "readable, although it was read ahead");
    assert_eq!(bench.context.get_event().unwrap().kind(), EventType::DEVICE_FATAL);
    assert_eq!(bench.context.try_get_event().unwrap_err().kind(), ErrorKind::DeviceGone);
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1), "and at the end");
}

#[test]
fn only_the_last_event_of_a_removal_says_that_objects_are_gone() {
    use uverbs::soft::{AsyncKind, EventObject};
    for errno in ERRNOS {
        let bench = Bench::new();
        let region = bench.pd.register(bench.arena.buffer(4096), ALL_ACCESS).unwrap();
        let live = bench.arena.live();
        // mlx5_ib reports a firmware failure in this way, with a port. All objects still exist.
        bench.soft.raise(AsyncKind::DeviceFatal, EventObject::Port(1)).unwrap();
        bench.let_commands_fail(errno);
        let failed = region.deregister().unwrap_err();
        assert_ne!(failed.error.kind(), ErrorKind::DeviceGone, "{}", failed.error);
        assert_eq!(bench.arena.live(), live);
        bench.soft.raise(AsyncKind::DeviceFatal, EventObject::Device).unwrap();
        let before = bench.soft.ioctl_count();
        failed.object.deregister().unwrap();
        assert_eq!(bench.soft.ioctl_count(), before + 2, "sent again, to wait for the kernel");
        assert!(bench.arena.live() < live);
    }
}

#[test]
fn events_of_destroyed_objects_are_dropped_and_others_stay_in_order() {
    use uverbs::soft::{AsyncKind, EventObject, Qpn};
    let bench = Bench::new();
    let (a, b) = bench.pair();
    let raise = |number| {
        bench.soft.raise(AsyncKind::QpAccessError, EventObject::Qp(Qpn(number))).unwrap();
    };
    raise(a.number());
    raise(b.number());
    bench.let_commands_fail(Errno::EIO);
    let a = a.destroy().unwrap_err().object;
    bench.soft.clear_faults();
    a.destroy().unwrap();
    let event = bench.context.try_get_event().unwrap();
    assert_eq!(event.source(), EventSource::QueuePair(b.id()), "the event of `a` went with `a`");
    drop(event);
    assert_eq!(bench.context.try_get_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut fds = [PollFd::new(bench.context.events_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0), "nothing is there any more");
}
