//! Peers that are killed, and forks during traffic.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uverbs::cq::Status;
use uverbs::qp::{AckTimeout, Inline, PostFlags, State};
use uverbs::qp_type::Rc;
use uverbs::{Buffer, Endpoint, ErrorKind, ProtectionDomain, op, raw};

use crate::child::{Outcome, in_child};
use crate::common::{self, ALL_ACCESS, Setup, completion, success};
use crate::peer::{Peer, role, wait_for_parent};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn networked() -> Setup {
    Setup::on(uverbs::device("soft").unwrap().open().unwrap())
}

fn queue_pair(setup: &Setup) -> raw::QueuePair<Rc> {
    let builder = setup.builder::<Rc>();
    builder
        // Retries for two seconds in total, since a live peer may have to wait for a processor.
        .path(|path| (path.timeout, path.retry_count) = (AckTimeout::from_code(16), 7))
        .build()
        .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn endpoint(text: &str) -> Endpoint {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: [u8; Endpoint::BYTES] = std::array::from_fn(|index| digits(2 * index));
    Endpoint::from_bytes(&bytes).unwrap()
}

#[test]
#[ignore = "the other process of sends_to_a_killed_peer_fail_within_the_timeout"]
fn peer() {
    if role().is_none() {
        return;
    }
    let setup = networked();
    let mut qp = queue_pair(&setup);
    println!("\nendpoint {}", hex(&qp.endpoint().to_bytes()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for wr_id in 0..100 {
        // SAFETY: no memory is named.
        unsafe { qp.post_receive(wr_id, &[]).unwrap() };
    }
    qp.connect(&endpoint(line.trim())).unwrap();
    wait_for_parent();
}

#[test]
fn sends_to_a_killed_peer_fail_within_the_timeout() {
    let mut setup = networked();
    let mut qp = queue_pair(&setup);
    let mut peer = Peer::start("process::peer", "accepts");
    let theirs = endpoint(&peer.after("endpoint "));
    qp.connect(&theirs).unwrap();
    writeln!(peer.input.as_ref().unwrap(), "{}", hex(&qp.endpoint().to_bytes())).unwrap();
    peer.after("ready");
    // SAFETY: no memory is named.
    unsafe { qp.post_send(1, op::Send, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 1);
    drop(peer);
    for wr_id in 2..5 {
        // SAFETY: no memory is named.
        unsafe { qp.post_send(wr_id, op::Send, (), SIGNALED).unwrap() };
    }
    let noticed = completion(&mut setup.cq);
    assert_eq!((noticed.wr_id, noticed.status), (2, Status::RetryExceeded));
    for wr_id in 3..5 {
        let flushed = completion(&mut setup.cq);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
    assert_eq!(qp.state(), State::Err);
    qp.destroy().unwrap();
}

/// The parent's objects that a forked child inherits.
struct Inherited {
    setup: Setup,
    qp: raw::QueuePair<Rc>,
    region: uverbs::MemoryRegion,
}

/// The checks in the forked child: they panic on any deviation.
fn child(inherited: Inherited) {
    let Inherited { setup, mut qp, region } = inherited;
    let kinds = [
        setup.context.alloc_pd().unwrap_err().kind(),
        setup.context.create_raw_cq(4).build().unwrap_err().kind(),
        setup.builder::<Rc>().build().unwrap_err().kind(),
        qp.query().unwrap_err().kind(),
        qp.to_error().unwrap_err().kind(),
        setup.context.clock().unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::ForkedChild; 6]);
    let failed = qp.destroy().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::ForkedChild);
    drop(failed);
    assert_eq!(region.deregister().unwrap_err().error.kind(), ErrorKind::ForkedChild);
    drop(setup);
    let mut anew = networked();
    let mut qp = anew.builder::<Rc>().build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    // SAFETY: no memory is named.
    unsafe { qp.post_send(5, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut anew.cq).wr_id, 5);
}

fn echo(pd: &ProtectionDomain, cq: &mut raw::CompletionQueue, running: &AtomicBool) -> u64 {
    let build = || pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let (mut a, mut b) = (build(), build());
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let region = pd.register(Buffer::new(4096).unwrap(), ALL_ACCESS).unwrap();
    let mut round = 0u64;
    while running.load(Ordering::Relaxed) || round < 100 {
        // SAFETY: inline data; the region outlives the receive, which completes before the region
        // is read.
        unsafe {
            b.post_receive(2, &[region.sge(0, 8).unwrap()]).unwrap();
            a.post_send(1, op::Send, Inline(&round.to_ne_bytes()), SIGNALED).unwrap();
        }
        success(cq);
        success(cq);
        assert_eq!(region.view().to_vec()[..8], round.to_ne_bytes());
        round += 1;
    }
    round
}

#[test]
fn a_fork_does_not_disturb_the_parents_traffic_and_the_child_can_open_the_device() {
    let context = common::open();
    let running = AtomicBool::new(true);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut setup = Setup::on(context.clone());
            echo(&setup.pd, &mut setup.cq, &running)
        });
        let all_well = (0..5).all(|_| {
            let setup = Setup::on(context.clone());
            let (qp, peer) = setup.rc_pair();
            let region = setup.region(4096);
            let outcome = in_child(|| child(Inherited { setup, qp, region }));
            assert_eq!(peer.query().unwrap().state, State::Rts, "no child has destroyed anything");
            outcome == Outcome::Well
        });
        running.store(false, Ordering::Relaxed);
        assert!(traffic.join().unwrap() >= 100);
        assert!(all_well, "a child found something else than it should, or hung");
    });
}

/// Creates and destroys objects of each kind that takes a lock of the context, while `running`.
fn create_and_destroy(context: &uverbs::Context, pd: &ProtectionDomain, running: &AtomicBool) {
    let mut cq = context.create_raw_cq(16).build().unwrap();
    while running.load(Ordering::Relaxed) {
        let other = context.create_raw_cq(16).build().unwrap();
        let mut qp = pd.create_raw_qp::<Rc>(cq.handle(), other.handle()).build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        // SAFETY: no memory is named.
        unsafe { qp.post_send(1, op::Nop, (), SIGNALED).unwrap() };
        success(&mut cq);
    }
}

/// Stops the threads when dropped, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_child_does_not_wait_for_a_lock_that_another_thread_held() {
    let context = common::open();
    let running = AtomicBool::new(true);
    let pd = context.alloc_pd().unwrap();
    thread::scope(|scope| {
        let stop = Stop(&running);
        for _ in 0..3 {
            scope.spawn(|| create_and_destroy(&context, &pd, &running));
            // These threads open and close objects that the whole process shares.
            scope.spawn(|| {
                while running.load(Ordering::Relaxed) {
                    drop(uverbs::soft::SoftDevice::named("soft1").unwrap());
                }
            });
        }
        let outcomes = (0..40).map(|_| {
            let setup = Setup::on(context.clone());
            let qp = setup.builder::<Rc>().build().unwrap();
            let region = setup.region(4096);
            in_child(|| child(Inherited { setup, qp, region }))
        });
        let bad = outcomes.enumerate().find(|(_, outcome)| *outcome != Outcome::Well);
        drop(stop);
        assert_eq!(bad, None, "the fork of this number");
    });
}
