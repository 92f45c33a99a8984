//! Resizes of completion queues that are armed, hold compressed sessions, or get completions of
//! another thread meanwhile.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use common::{PATIENCE, Setup, success};
use uverbs::cq::Compression;
use uverbs::qp::{PostError, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{CompletionChannel, ErrorKind, PollError, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;
/// Capacities for resizes, growing and shrinking. The smallest holds all that is in flight.
const SIZES: [u32; 5] = [64, 500, 100, 2000, 70];

fn nop(qp: &mut raw::QueuePair<Rc>, wr_id: u64) -> Result<(), PostError> {
    // SAFETY: no memory is named.
    unsafe { qp.post_send(wr_id, op::Nop, (), SIGNALED) }
}

/// Waits for the event of the queue and acknowledges it.
fn take_event(setup: &Setup, channel: &CompletionChannel) {
    let start = Instant::now();
    loop {
        match channel.try_get_event() {
            Ok(event) => return event.acknowledge(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        setup.context.poll_idle();
        assert!(start.elapsed() < PATIENCE, "no event");
    }
}

#[test]
fn a_queue_stays_armed() {
    let mut setup = Setup::new();
    let channel = setup.context.create_completion_channel().unwrap();
    setup.cq = setup.context.create_raw_cq(300).channel(&channel).build().unwrap();
    let (mut a, _b) = setup.rc_pair();
    for (wr_id, entries) in (0..).zip(SIZES) {
        setup.cq.arm();
        setup.cq.resize(entries).unwrap();
        nop(&mut a, wr_id).unwrap();
        take_event(&setup, &channel);
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
        // Armed between the resize and the first poll of the new ring.
        setup.cq.resize(entries + 1000).unwrap();
        setup.cq.arm();
        nop(&mut a, wr_id).unwrap();
        take_event(&setup, &channel);
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
        assert_eq!(setup.cq.poll().map(drop), Err(PollError::Empty));
    }
    assert_eq!(channel.try_get_event().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn completions_of_a_thread_that_posts_meanwhile_arrive_in_order() {
    const COUNT: u64 = 10_000;
    let mut setup = Setup::new();
    setup.cq = setup.context.create_raw_cq(64).build().unwrap();
    let (a, _b) = setup.pair::<Rc>(|builder| builder.max_send_wr(16));
    let stop = &AtomicBool::new(false);
    let post = move |mut qp: raw::QueuePair<Rc>| {
        let mut wr_id = 0;
        while wr_id < COUNT && !stop.load(Ordering::Relaxed) {
            match nop(&mut qp, wr_id) {
                Ok(()) => wr_id += 1,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    thread::yield_now();
                }
            }
        }
        qp
    };
    thread::scope(|scope| {
        let poster = scope.spawn(move || post(a));
        let (mut next, mut resized, mut sizes) = (0, 0, SIZES.iter().cycle());
        let mut last = Instant::now();
        while next < COUNT {
            match setup.cq.poll() {
                Ok(done) => {
                    assert_eq!(done.wr_id(), next);
                    (next, last) = (next + 1, Instant::now());
                }
                Err(error) => assert_eq!(error, PollError::Empty),
            }
            if next % 50 == 7 {
                // `resize` fails until the completions of the previous resize are polled.
                resized += u32::from(setup.cq.resize(*sizes.next().unwrap()).is_ok());
            }
            setup.context.poll_idle();
            if last.elapsed() > PATIENCE {
                stop.store(true, Ordering::Relaxed);
                panic!("{next} completions, {resized} resizes");
            }
        }
        assert!(resized > 100, "{resized} resizes");
        poster.join().unwrap().destroy().unwrap();
    });
}

#[test]
fn sessions_that_are_not_polled_yet_stay() {
    let Some(compressed) = compressed() else { return };
    let (setup, mut cq) = compressed;
    let build = |cq: &raw::CompletionQueue| {
        let builder = setup.pd.create_raw_qp::<Rc>(setup.cq.handle(), cq.handle());
        builder.max_send_wr(64).max_recv_wr(64).build().unwrap()
    };
    let (mut a, mut b) = (build(&cq), build(&cq));
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let mut sends = setup.cq;
    let mut next = 0;
    for (round, entries) in (0..20).zip(SIZES.iter().cycle()) {
        // One doorbell, so that the device gathers completions into compressed sessions. Some are
        // polled before the resize, so that it happens inside a session.
        let mut batch = a.batch().unwrap();
        for wr_id in next..next + 40 {
            // SAFETY: no memory is named.
            unsafe {
                b.post_receive(wr_id, &[]).unwrap();
                batch.build(wr_id, op::Send, (), SIGNALED).unwrap();
            }
        }
        batch.publish();
        (next..next + 40).for_each(|wr_id| assert_eq!(success(&mut sends).wr_id, wr_id));
        for at in 0..40 {
            if at == round {
                cq.resize(*entries).unwrap();
            }
            assert_eq!(success(&mut cq).wr_id, next);
            next += 1;
        }
        assert_eq!(cq.poll().map(drop), Err(PollError::Empty));
    }
}

/// A completion queue that compresses, where the device can.
fn compressed() -> Option<(Setup, raw::CompletionQueue)> {
    let setup = Setup::new();
    let made = setup.context.create_raw_cq(64).compressed(Compression::Hash).build();
    assert!(made.is_ok() || !common::is_soft());
    made.ok().map(|cq| (setup, cq))
}
