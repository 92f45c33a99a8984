//! Several slots with one doorbell, several completions with one update of the consumer index.

use std::panic::{AssertUnwindSafe, catch_unwind};

use uverbs::cq::{CompletionOpcode, Status};
use uverbs::qp::{PostError, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{QueuePair, Slab, Slot, op};

use super::common::{self, REMOTE, pattern};
use super::{SIGNALED, Safe};

fn filled(slab: &Slab, bytes: &[u8]) -> Slot {
    let mut slot = slab.take().unwrap();
    slot.write(bytes).unwrap();
    slot
}

impl Safe {
    /// A queue pair connected to itself with space for `sends` requests.
    fn own(&self, sends: u32) -> QueuePair<Rc> {
        let builder = self.pd.create_qp(self.cq.handle(), self.cq.handle());
        let builder = builder.access(REMOTE).max_send_wr(sends);
        let mut qp = builder.build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        qp
    }
}

#[test]
fn batches_of_sends_and_receives_arrive_in_order_and_return_all_slots() {
    let mut safe = Safe::new();
    let (mut a, mut b) = safe.pair::<Rc>();
    for round in 0..20u8 {
        let mut receives = b.receive_batch().unwrap();
        (0..8).for_each(|_| receives.build(safe.slab.take().unwrap()).unwrap());
        receives.publish();
        let mut batch = a.batch().unwrap();
        for i in 0..8u8 {
            let slot = filled(&safe.slab, &pattern(60 + usize::from(i), round));
            let flags = if i % 4 == 3 { SIGNALED } else { PostFlags::empty() };
            batch.build(op::Send, slot, flags).unwrap();
        }
        batch.publish();
        let (mut sent, mut lengths) = (0, Vec::new());
        while sent < 2 || lengths.len() < 8 {
            let done = safe.completion();
            let slot = done.slot.unwrap();
            match done.completion.opcode() {
                CompletionOpcode::Recv => {
                    assert_eq!(slot[..], pattern(slot.len(), round));
                    lengths.push(slot.len());
                }
                _ => sent += 1,
            }
        }
        assert_eq!(lengths, (60..68).collect::<Vec<_>>());
        assert_eq!(safe.slab.free(), 32);
    }
}

#[test]
fn a_batch_has_every_kind_of_request_that_a_post_has() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let mut batch = a.batch().unwrap();
    let first = filled(&safe.slab, &40u64.to_ne_bytes());
    batch.build(op::Write(theirs.remote(0).unwrap()), first, PostFlags::empty()).unwrap();
    let add = op::FetchAdd { remote: theirs.remote(0).unwrap(), add: 2 };
    batch.build_atomic(add, safe.slab.take().unwrap(), SIGNALED).unwrap();
    batch.build_inline(op::Write(theirs.remote(8).unwrap()), b"inline", SIGNALED).unwrap();
    drop(batch);
    assert_eq!(safe.completion().slot.unwrap()[..], 40u64.to_ne_bytes());
    assert!(safe.completion().slot.is_none());
    let bytes = theirs.view().to_vec();
    assert_eq!((&bytes[..8], &bytes[8..14]), (&42u64.to_ne_bytes()[..], &b"inline"[..]));
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_batch_returns_a_refused_slot_and_publishes_the_requests_before_it() {
    let mut safe = Safe::new();
    let mut qp = safe.own(4);
    let theirs = safe.region();
    let other = safe.pd.context().alloc_pd().unwrap().create_slab(1, 64).unwrap();
    let remote = theirs.remote(0).unwrap();
    let mut batch = qp.batch().unwrap();
    batch.build(op::Write(remote), filled(&safe.slab, b"good"), SIGNALED).unwrap();
    let refused = batch.build(op::Write(remote), filled(&other, b"bad"), SIGNALED).unwrap_err();
    assert_eq!((refused.reason, &refused.slot[..]), (PostError::ForeignMemory, &b"bad"[..]));
    let full = loop {
        match batch.build(op::Write(remote), filled(&safe.slab, b"more"), SIGNALED) {
            Ok(()) => {}
            Err(refused) => break refused,
        }
    };
    assert_eq!((full.reason, &full.slot[..]), (PostError::Full, &b"more"[..]));
    drop((batch, full));
    let posted = 32 - safe.slab.free();
    assert!(posted >= 4, "{posted}");
    for _ in 0..posted {
        assert_eq!(safe.completion().completion.status, Status::Success);
    }
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_leaked_batch_loses_its_slots_and_returns_none_twice() {
    let mut safe = Safe::new();
    let mut qp = safe.own(16);
    let theirs = safe.region();
    let remote = theirs.remote(0).unwrap();
    let mut batch = qp.batch().unwrap();
    for i in 0..3u8 {
        batch.build(op::Write(remote), filled(&safe.slab, &[i; 8]), SIGNALED).unwrap();
    }
    std::mem::forget(batch);
    let mut receives = qp.receive_batch().unwrap();
    receives.build(safe.slab.take().unwrap()).unwrap();
    std::mem::forget(receives);
    qp.post_send(op::Write(remote), filled(&safe.slab, b"only one"), SIGNALED).unwrap();
    assert_eq!(&safe.completion().slot.unwrap()[..], b"only one");
    assert_eq!(theirs.view().to_vec()[..8], *b"only one");
    assert!(safe.cq.poll().is_err());
    drop(qp);
    assert!(safe.cq.poll().is_err());
    // The leaked receive may be in the queue already.
    assert!((28..=29).contains(&safe.all_slots().len()));
}

/// The completion of the signaled send would have released the slot of the unsignaled one before
/// the batch.
#[test]
fn slots_that_a_leaked_batch_would_have_released_are_lost() {
    let mut safe = Safe::new();
    let mut qp = safe.own(16);
    let theirs = safe.region();
    let remote = theirs.remote(0).unwrap();
    let unsignaled = PostFlags::empty();
    qp.post_send(op::Write(remote), filled(&safe.slab, b"before"), unsignaled).unwrap();
    let mut batch = qp.batch().unwrap();
    batch.build(op::Write(remote), filled(&safe.slab, b"leaked"), SIGNALED).unwrap();
    batch.build(op::Write(remote), filled(&safe.slab, b"other"), unsignaled).unwrap();
    std::mem::forget(batch);
    qp.post_send(op::Write(remote), filled(&safe.slab, b"next"), SIGNALED).unwrap();
    assert_eq!(&safe.completion().slot.unwrap()[..], b"next");
    assert_eq!(safe.slab.free(), 30);
}

#[test]
fn poll_up_to_returns_at_most_the_requested_completions() {
    let mut safe = Safe::new();
    let mut qp = safe.own(16);
    let theirs = safe.region();
    for i in 0..10u8 {
        let mut slot = filled(&safe.slab, &[i]);
        slot.set_tag(i.into());
        qp.post_send(op::Write(theirs.remote(i.into()).unwrap()), slot, SIGNALED).unwrap();
    }
    let start = std::time::Instant::now();
    let mut tags = Vec::new();
    while tags.len() < 10 {
        let before = tags.len();
        let count = safe.cq.poll_up_to(3, |done| {
            assert!(done.completion.is_success());
            tags.extend(done.slot.map(|slot| slot.tag()));
        });
        assert_eq!(count, Ok(tags.len() - before));
        assert!(count.unwrap() <= 3 && start.elapsed() < common::PATIENCE);
    }
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
    assert_eq!(safe.cq.poll_up_to(3, |_| panic!("there is none")), Ok(0));
    assert_eq!(safe.cq.poll_up_to(0, |_| panic!("none wanted")), Ok(0));
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_panic_in_poll_up_to_repeats_no_completion() {
    let mut safe = Safe::new();
    let mut qp = safe.own(16);
    let theirs = safe.region();
    for i in 0..4u8 {
        let mut slot = filled(&safe.slab, &[i]);
        slot.set_tag(i.into());
        qp.post_send(op::Write(theirs.remote(0).unwrap()), slot, SIGNALED).unwrap();
    }
    let start = std::time::Instant::now();
    let mut tags = Vec::new();
    while tags.len() < 4 {
        assert!(start.elapsed() < common::PATIENCE, "{tags:?}");
        let cq = &mut safe.cq;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            cq.poll_up_to(4, |done| {
                tags.push(done.slot.as_ref().unwrap().tag());
                std::panic::resume_unwind(Box::new("enough"));
            })
        }));
        // The closure panicked, or there was no completion yet.
        assert!(polled.is_err() || polled.is_ok_and(|count| count == Ok(0)));
    }
    assert_eq!(tags, [0, 1, 2, 3]);
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_batch_of_shared_receives_is_used_by_every_queue_pair() {
    let mut safe = Safe::new();
    let mut srq = safe.pd.create_srq(8).build().unwrap();
    let pairs = [safe.served(&srq, &safe.cq), safe.served(&srq, &safe.cq)];
    let foreign = safe.pd.context().alloc_pd().unwrap().create_slab(1, 64).unwrap();
    let mut batch = srq.batch();
    (0..6).for_each(|_| batch.build(safe.slab.take().unwrap()).unwrap());
    let refused = batch.build(foreign.take().unwrap()).unwrap_err();
    assert_eq!(refused.reason, PostError::ForeignMemory);
    drop(batch);
    let mut texts = Vec::new();
    for (mut client, server) in pairs {
        for i in 0..3u8 {
            client.post_send(op::Send, filled(&safe.slab, &[i; 3]), SIGNALED).unwrap();
            let done = [safe.completion(), safe.completion()];
            let received =
                done.into_iter().find(|done| done.completion.opcode() == CompletionOpcode::Recv);
            texts.push(received.unwrap().slot.unwrap().to_vec());
        }
        drop((client, server));
    }
    assert_eq!(texts, [[0; 3], [1; 3], [2; 3], [0; 3], [1; 3], [2; 3]]);
}

#[test]
fn both_layers_work_side_by_side() {
    let mut safe = Safe::new();
    let mut cq = safe.pd.context().create_raw_cq(16).build().unwrap();
    let raw = || safe.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    // The first queue pair of each layer: their user indices may be equal.
    let mut one = raw().build().unwrap();
    let mut other = safe.own(4);
    let own = one.endpoint();
    one.connect(&own).unwrap();
    let theirs = safe.region();
    let nothing = op::Write(theirs.remote(0).unwrap());
    other.post_inline(nothing, b"x", SIGNALED).unwrap();
    other.post_send(nothing, filled(&safe.slab, b"y"), SIGNALED).unwrap();
    assert!(safe.completion().slot.is_none());
    assert_eq!(&safe.completion().slot.unwrap()[..], b"y");
    assert!(cq.poll().is_err() && safe.cq.poll().is_err());
}
