//! The device is removed while a program posts, polls and waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use uverbs::events::EventType;
use uverbs::qp::{PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{ErrorKind, PollError, op, raw};

use crate::common::{PATIENCE, Setup};
use crate::network::open;

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn device() -> Arc<SoftDevice> {
    Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap())
}

/// Posts until a post reports the error state.
fn post_on(mut qp: raw::QueuePair<Rc>, posted: &AtomicU64) -> raw::QueuePair<Rc> {
    let start = Instant::now();
    while qp.state() != State::Err {
        // SAFETY: no memory is named.
        if unsafe { qp.post_send(1, op::Nop, (), SIGNALED) }.is_ok() {
            posted.fetch_add(1, Ordering::Relaxed);
        }
        assert!(start.elapsed() < PATIENCE, "posting goes on for ever");
        thread::yield_now();
    }
    // Further posts do no harm.
    for _ in 0..1000 {
        // SAFETY: no memory is named.
        let _ = unsafe { qp.post_send(1, op::Nop, (), SIGNALED) };
    }
    qp
}

fn poll_on(setup: &mut Setup) -> PollError {
    let start = Instant::now();
    loop {
        match setup.cq.poll() {
            Ok(_) => {}
            Err(PollError::Empty) => thread::yield_now(),
            Err(error) => return error,
        }
        assert!(start.elapsed() < PATIENCE, "polling goes on for ever");
    }
}

#[test]
fn removal_ends_posting_polling_and_waiting_in_errors() {
    for traffic in [0, 1, 100, 1000] {
        let soft = device();
        let mut setup = Setup::on(open(&soft));
        let context = setup.context.clone();
        let channel = context.create_completion_channel().unwrap();
        let (a, b) = setup.rc_pair();
        let posted = AtomicU64::new(0);
        let (a, error) = thread::scope(|scope| {
            let poster = scope.spawn(|| post_on(a, &posted));
            let poller = scope.spawn(|| poll_on(&mut setup));
            let completions = scope.spawn(|| channel.get_event().unwrap_err());
            let events = scope.spawn(|| {
                assert_eq!(context.get_event().unwrap().kind(), EventType::DEVICE_FATAL);
                context.get_event().unwrap_err()
            });
            let start = Instant::now();
            while posted.load(Ordering::Relaxed) < traffic {
                assert!(start.elapsed() < PATIENCE, "nothing is posted");
                thread::yield_now();
            }
            soft.remove();
            assert_eq!(events.join().unwrap().errno(), libc::EIO, "and the end");
            assert_eq!(completions.join().unwrap().errno(), libc::EIO);
            (poster.join().unwrap(), poller.join().unwrap())
        });
        assert_eq!(error, PollError::DeviceRemoved);
        assert_eq!(b.state(), State::Err);
        a.destroy().unwrap();
        b.destroy().unwrap();
        setup.cq.destroy().unwrap();
    }
}

#[test]
fn after_removal_every_verb_fails_and_every_destruction_succeeds() {
    let soft = device();
    let setup = Setup::on(open(&soft));
    let (mut qp, other) = setup.rc_pair();
    let region = setup.region(4096);
    let srq = setup.pd.create_raw_srq(8).build().unwrap();
    let window = setup.pd.alloc_mw(uverbs::mw::WindowType::Type2).unwrap();
    let xrcd = setup.context.open_xrcd().unwrap();
    soft.remove();
    let refused = [
        setup.context.alloc_pd().err(),
        setup.context.create_raw_cq(8).build().err(),
        setup.builder::<Rc>().build().err(),
        setup.pd.create_raw_srq(8).build().err(),
        setup.context.create_completion_channel().err(),
        qp.query().err(),
        qp.to_error().err(),
        srq.query().err(),
        open_error(&soft),
    ];
    for error in refused {
        let error = error.expect("the device is gone");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::DeviceGone, libc::EIO), "{error}");
    }
    // In any order that the handles' types allow.
    srq.destroy().unwrap();
    region.deregister().unwrap();
    qp.destroy().unwrap();
    window.dealloc().unwrap();
    xrcd.close().unwrap();
    other.destroy().unwrap();
    let Setup { context, pd, cq } = setup;
    pd.destroy().unwrap();
    cq.destroy().unwrap();
    drop(context);
    assert_eq!(soft.handle_count(), 0);
}

fn open_error(soft: &Arc<SoftDevice>) -> Option<uverbs::Error> {
    uverbs::Device::from_shared_soft(soft.clone()).open().err()
}
