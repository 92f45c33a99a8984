//! A forked child uses its parent's queues, but its requests do not reach the device.

use uverbs::qp::{Datagram, Inline, PostError, PostFlags};
use uverbs::qp_type::{Rc, Ud};
use uverbs::{CompletionQueue, ErrorKind, PollError, op, raw};

use crate::child::{Outcome, in_child};
use crate::common::{Setup, success};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn is_empty(cq: &mut raw::CompletionQueue) -> bool {
    matches!(cq.poll(), Err(PollError::Empty))
}

fn safe_success(cq: &mut CompletionQueue) {
    while !cq.poll().is_ok_and(|done| done.completion.is_success()) {
        std::thread::yield_now();
    }
}

/// Posts until a post takes the slow path, which checks the state: after at most one lap of the
/// ring. Until then no post may fail.
fn post_until_refused(mut post: impl FnMut() -> Result<(), PostError>) {
    let refused = (0..10_000).find_map(|_| post().err());
    assert_eq!(refused, Some(PostError::ForkedChild));
}

#[test]
fn posts_of_a_child_ring_no_doorbell_and_fail_with_forked_child() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let region = setup.region(64);
    let sge = [region.sge(0, 64).unwrap()];
    let template = a.template(op::Send, Inline(b"12345678"), SIGNALED).unwrap();
    // The queues have been used, so the posts that follow take the fast path.
    // SAFETY: no memory is named, or a region's that lives to the end.
    unsafe {
        b.post_receive(1, &sge).unwrap();
        a.post_send(2, op::Send, (), SIGNALED).unwrap();
        success(&mut setup.cq);
        success(&mut setup.cq);
        b.post_receive(3, &sge).unwrap();
    }
    let outcome = in_child(|| {
        // SAFETY: as above.
        unsafe {
            assert_eq!(a.batch().unwrap_err(), PostError::ForkedChild);
            assert_eq!(b.receive_batch().unwrap_err(), PostError::ForkedChild);
            post_until_refused(|| a.post_send(4, op::Send, Inline(b"stale"), SIGNALED));
            post_until_refused(|| a.post_template(5, &template));
            post_until_refused(|| b.post_receive(6, &sge));
        }
        setup.cq.arm();
    });
    assert_eq!(outcome, Outcome::Well);
    // SAFETY: no memory is named.
    unsafe { a.post_send(7, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 7, "the first that the device has done since");
    assert!(is_empty(&mut setup.cq), "and its peer has received nothing");
    // SAFETY: no memory is named.
    unsafe { a.post_send(8, op::Send, (), SIGNALED).unwrap() };
    let mut done = [success(&mut setup.cq).wr_id, success(&mut setup.cq).wr_id];
    done.sort_unstable();
    assert_eq!(done, [3, 8]);
}

#[test]
fn the_parent_can_still_publish_a_batch_that_a_child_has_ended() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let mut batch = a.batch().unwrap();
    // SAFETY: no memory is named.
    unsafe { batch.build(1, op::Nop, (), SIGNALED).unwrap() };
    let mut batch = Some(batch);
    let outcome = in_child(|| batch.take().unwrap().publish());
    assert_eq!(outcome, Outcome::Well);
    assert!(is_empty(&mut setup.cq));
    batch.take().unwrap().publish();
    assert_eq!(success(&mut setup.cq).wr_id, 1);
    assert!(is_empty(&mut setup.cq));
}

#[test]
fn datagrams_and_shared_receives_of_a_child_reach_no_device() {
    let mut setup = Setup::new();
    let mut qp = setup.builder::<Ud>().build().unwrap();
    qp.activate().unwrap();
    let mut srq = setup.pd.create_raw_srq(16).build().unwrap();
    let region = setup.region(64);
    let sge = [region.sge(0, 64).unwrap()];
    let address = setup.pd.create_ah(&qp.address_of(&qp.endpoint()).unwrap()).unwrap();
    let to = address.datagram(qp.number(), qp.endpoint().qkey);
    let outstanding = srq.outstanding_receives();
    let outcome = in_child(|| {
        // SAFETY: inline data; the region lives to the end.
        unsafe {
            post_until_refused(|| {
                qp.post_send(1, op::To(Datagram(&to), op::Send), Inline(b"stale"), SIGNALED)
            });
            let _ = srq.post(2, &sge);
        }
    });
    assert_eq!(outcome, Outcome::Well);
    assert_eq!(srq.outstanding_receives(), outstanding);
    // SAFETY: no memory is named.
    unsafe { qp.post_send(3, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 3);
    assert!(is_empty(&mut setup.cq));
}

#[test]
fn safe_posts_of_a_child_are_refused_and_its_batches_ring_no_doorbell() {
    let context = crate::common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).build().unwrap();
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let mut srq = pd.create_srq(8).build().unwrap();
    let slab = pd.create_slab(16, 64).unwrap();
    let mut slots: Vec<_> = (0..8).map(|_| slab.take().unwrap()).collect();
    qp.post_receive(slots.pop().unwrap()).unwrap();
    qp.post_send(op::Send, slots.pop().unwrap(), SIGNALED).unwrap();
    safe_success(&mut cq);
    safe_success(&mut cq);
    let mut batch = qp.batch().unwrap();
    batch.build(op::Send, slots.pop().unwrap(), SIGNALED).unwrap();
    let mut batch = Some(batch);
    let outcome = in_child(|| {
        drop(batch.take());
        let refused = srq.post(slots.pop().unwrap()).unwrap_err();
        assert_eq!(refused.reason, PostError::ForkedChild);
        assert_eq!(slab.take().map(|slot| slot.capacity()), Some(64), "still memory of its own");
        cq.arm();
    });
    assert_eq!(outcome, Outcome::Well);
    std::mem::forget(batch);
    let outcome = in_child(|| {
        let refused = qp.post_send(op::Send, slots.pop().unwrap(), SIGNALED).unwrap_err();
        assert_eq!(refused.reason, PostError::ForkedChild);
        let refused = qp.post_receive(refused.slot).unwrap_err();
        assert_eq!(refused.reason, PostError::ForkedChild);
        assert_eq!(qp.batch().unwrap_err(), PostError::ForkedChild);
    });
    assert_eq!(outcome, Outcome::Well);
    qp.post_receive(slots.pop().unwrap()).unwrap();
    qp.post_send(op::Send, slots.pop().unwrap(), SIGNALED).unwrap();
    safe_success(&mut cq);
    safe_success(&mut cq);
    assert!(matches!(cq.poll(), Err(PollError::Empty)), "nothing of the child's");
}

/// In a new PID namespace a child can have the same process id as its parent.
#[test]
fn a_child_with_the_process_id_of_its_parent_is_recognised() {
    // SAFETY: no memory is involved.
    let unshare = |flags| unsafe { libc::unshare(flags) } == 0;
    let in_namespace =
        || unshare(libc::CLONE_NEWPID) || unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID);
    let outcome = in_child(|| {
        if !in_namespace() {
            let why = "pid namespaces need CAP_SYS_ADMIN, or user namespaces for everybody";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            return eprintln!("skipped: {why}");
        }
        let outcome = in_child(|| {
            assert_eq!(std::process::id(), 1);
            let setup = Setup::new();
            assert!(in_namespace());
            let outcome = in_child(|| {
                assert_eq!(std::process::id(), 1);
                let refused = setup.context.create_raw_cq(4).build().unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ForkedChild, "{refused}");
                drop(setup);
                Setup::new().context.create_raw_cq(4).build().unwrap();
            });
            assert_eq!(outcome, Outcome::Well);
        });
        assert_eq!(outcome, Outcome::Well);
    });
    assert_eq!(outcome, Outcome::Well);
}
