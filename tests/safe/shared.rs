//! Shared receive queues of slots: whichever queue pair uses a slot, the completion returns it.

use std::sync::atomic::{AtomicUsize, Ordering};

use uverbs::cq::CompletionOpcode;
use uverbs::events::EventType;
use uverbs::qp::{PathOptions, PostError, PostFlags, XrcTarget};
use uverbs::qp_type::{Rc, Xrc};
use uverbs::{CompletionQueue, QueuePair, SharedReceiveQueue, op};

use super::{REMOTE, SIGNALED, Safe, assert_exclusive, common, completion, pattern};

impl Safe {
    fn shared(&self, receives: u32) -> SharedReceiveQueue {
        self.pd.create_srq(receives).build().unwrap()
    }

    /// A client connected to a server that receives from `srq` and completes to `cq`.
    pub(super) fn served(
        &self,
        srq: &SharedReceiveQueue,
        cq: &CompletionQueue,
    ) -> (QueuePair<Rc>, QueuePair<Rc>) {
        let mut client = self.pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
        let server = self.pd.create_qp::<Rc>(cq.handle(), cq.handle());
        let mut server = server.shared_receive_queue(srq.handle()).access(REMOTE).build().unwrap();
        let (end_a, end_b) = (client.endpoint(), server.endpoint());
        client.connect(&end_b).unwrap();
        server.connect(&end_a).unwrap();
        (client, server)
    }

    fn fill(&self, srq: &mut SharedReceiveQueue, count: usize) {
        for _ in 0..count {
            srq.post(self.slab.take().unwrap()).unwrap();
        }
    }

    fn send(&self, client: &mut QueuePair<Rc>, text: &[u8]) {
        let mut slot = self.slab.take().unwrap();
        slot.write(text).unwrap();
        client.post_send(op::Send, slot, PostFlags::empty()).unwrap();
    }
}

/// The text of the next receive.
fn text(cq: &mut CompletionQueue) -> Vec<u8> {
    let done = completion(cq);
    assert_eq!(done.completion.opcode(), CompletionOpcode::Recv, "{done:?}");
    done.slot.expect("a receive has a slot").to_vec()
}

#[test]
fn slots_come_back_through_any_queue_pair_and_completion_queue() {
    let mut safe = Safe::new();
    let mut other = safe.pd.context().create_cq(64).build().unwrap();
    let mut srq = safe.shared(8);
    let (mut near, _a) = safe.served(&srq, &safe.cq);
    let (mut far, _b) = safe.served(&srq, &other);
    let theirs = safe.region();
    for round in 0..100u8 {
        safe.fill(&mut srq, 2);
        // Messages inside the CQE, in one packet, and in several packets.
        let length = [5, 40, 200, 1000][usize::from(round) % 4];
        safe.send(&mut near, &pattern(length, round));
        safe.send(&mut far, &pattern(length, !round));
        assert_eq!(text(&mut safe.cq), pattern(length, round));
        assert_eq!(text(&mut other), pattern(length, !round));
        // Signaled, and without a slot of its own: its completion returns those of the sends before
        // it.
        let theirs = theirs.remote(0).unwrap();
        for (qp, cq) in [(&mut near, &mut safe.cq), (&mut far, &mut other)] {
            qp.post_inline(op::Write(theirs), b"x", SIGNALED).unwrap();
            assert!(completion(cq).slot.is_none());
        }
        assert_eq!(safe.slab.free(), 32);
    }
}

#[test]
fn shared_receives_of_a_dropped_queue_pair_are_posted_again() {
    let mut safe = Safe::new();
    let mut srq = safe.shared(3);
    let (mut client, server) = safe.served(&srq, &safe.cq);
    let (mut other_client, _other) = safe.served(&srq, &safe.cq);
    safe.fill(&mut srq, 3);
    for _ in 0..3 {
        safe.send(&mut client, b"these bytes are not read");
    }
    // The sends are acknowledged, so all three receives have completed and wait in the queue.
    let mut slot = safe.slab.take().unwrap();
    slot.set_len(0);
    let theirs = safe.region();
    client.post_send(op::Write(theirs.remote(0).unwrap()), slot, SIGNALED).unwrap();
    drop(server);
    while completion(&mut safe.cq).completion.opcode() != CompletionOpcode::Write {}
    while safe.cq.poll().is_ok() {}
    srq.publish();
    safe.send(&mut other_client, b"found");
    assert_eq!(text(&mut safe.cq), b"found");
    drop((client, other_client, _other, srq));
    while safe.cq.poll().is_ok() {}
    assert_eq!(safe.all_slots().len(), 32);
}

#[test]
fn a_dropped_shared_queue_is_used_until_its_queue_pairs_are_dropped() {
    let mut safe = Safe::new();
    let mut srq = safe.shared(8);
    let (mut client, server) = safe.served(&srq, &safe.cq);
    safe.fill(&mut srq, 5);
    drop(srq);
    // The short message arrives inside the CQE, and is copied to its slot.
    for message in [&b"short"[..], &[7; 400]] {
        safe.send(&mut client, message);
        assert_eq!(text(&mut safe.cq), message);
    }
    assert_eq!(safe.slab.free(), 32 - 5, "two sends are pending, three receives are left");
    drop((client, server));
    while safe.cq.poll().is_ok() {}
    assert_eq!(safe.all_slots().len(), 32);
}

#[test]
fn leaked_shared_queues_still_receive_into_their_slots() {
    let mut safe = Safe::new();
    let mut srq = safe.shared(8);
    let (mut client, server) = safe.served(&srq, &safe.cq);
    safe.fill(&mut srq, 2);
    std::mem::forget((srq, server));
    safe.send(&mut client, b"still arrives");
    assert_eq!(text(&mut safe.cq), b"still arrives");
    drop(client);
    while safe.cq.poll().is_ok() {}
    assert_eq!(safe.all_slots().len(), 31, "one receive is out for ever");
}

#[test]
fn receives_of_a_leaked_batch_are_posted_with_the_next() {
    let mut safe = Safe::new();
    let mut srq = safe.shared(8);
    let (mut client, _server) = safe.served(&srq, &safe.cq);
    let mut batch = srq.batch();
    for _ in 0..3 {
        batch.build(safe.slab.take().unwrap()).unwrap();
    }
    std::mem::forget(batch);
    srq.post(safe.slab.take().unwrap()).unwrap();
    for message in [b"1", b"2", b"3", b"4"] {
        safe.send(&mut client, message);
        assert_eq!(text(&mut safe.cq), message);
    }
}

#[test]
fn failed_receives_return_their_shared_slots() {
    let mut safe = Safe::new();
    let mut srq = safe.shared(4);
    let (mut client, _server) = safe.served(&srq, &safe.cq);
    let small = safe.pd.create_slab(1, 16).unwrap();
    srq.post(small.take().unwrap()).unwrap();
    safe.send(&mut client, &[1; 100]);
    let mut lengths = [completion(&mut safe.cq), completion(&mut safe.cq)]
        .map(|done| (done.completion.status() as u8, done.slot.map(|slot| slot.len())));
    lengths.sort();
    let (local_length, remote_invalid) = (1, 9);
    assert_eq!(lengths, [(local_length, Some(0)), (remote_invalid, None)]);
    assert_eq!(small.free(), 1);
}

#[test]
fn an_extended_connection_delivers_slots() {
    let mut safe = Safe::new();
    let context = safe.pd.context().clone();
    let domain = context.open_xrcd().unwrap();
    let builder = safe.pd.create_srq(8);
    let mut srq = builder.xrc(&domain, safe.cq.handle()).build().unwrap();
    let mut sends = context.create_cq(16).build().unwrap();
    let initiator = safe.pd.create_qp::<Xrc>(sends.handle(), sends.handle());
    let mut initiator = initiator.build().unwrap();
    let path = PathOptions { access: REMOTE, ..PathOptions::default() };
    let mut target = domain.create_receiver(path).unwrap();
    target.connect(&initiator.endpoint()).unwrap();
    initiator.connect(&target.endpoint(srq.handle())).unwrap();
    safe.fill(&mut srq, 3);
    for length in [8, 500] {
        let mut slot = safe.slab.take().unwrap();
        slot.write(&pattern(length, 3)).unwrap();
        initiator.post_send(op::To(XrcTarget(srq.number()), op::Send), slot, SIGNALED).unwrap();
        assert_eq!(text(&mut safe.cq), pattern(length, 3));
        assert!(completion(&mut sends).slot.is_some());
    }
    target.destroy().unwrap();
    drop((initiator, srq));
    while safe.cq.poll().is_ok() {}
    assert_eq!(safe.all_slots().len(), 32);
}

#[test]
fn slots_and_queues_of_another_pd_are_refused() {
    let safe = Safe::new();
    let context = safe.pd.context().clone();
    let mut srq = safe.shared(2);
    let foreign = context.alloc_pd().unwrap().create_slab(1, 64).unwrap();
    let refused = srq.post(foreign.take().unwrap()).unwrap_err();
    assert_eq!(refused.reason, PostError::ForeignMemory);
    for _ in 0..srq.capacity() {
        srq.post(safe.slab.take().unwrap()).unwrap();
    }
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"mine").unwrap();
    let refused = srq.post(slot).unwrap_err();
    assert_eq!((refused.reason, &refused.slot[..]), (PostError::Full, &b"mine"[..]));
}

#[test]
fn the_limit_of_a_safe_queue_is_armed_and_fires() {
    let mut safe = Safe::new();
    let context = safe.pd.context().clone();
    let mut srq = safe.shared(8);
    let (mut client, server) = safe.served(&srq, &safe.cq);
    safe.fill(&mut srq, 3);
    srq.arm_limit(3).unwrap();
    assert_eq!(srq.query().unwrap().limit, 3);
    safe.send(&mut client, b"x");
    assert_eq!(text(&mut safe.cq), b"x");
    let event = context.get_event().unwrap();
    let event =
        if event.kind() == EventType::COMM_EST { context.get_event().unwrap() } else { event };
    assert_eq!(event.kind(), EventType::SRQ_LIMIT_REACHED);
    drop(event);
    drop((client, server));
    srq.destroy().unwrap();
}

#[test]
fn two_pollers_of_a_shared_queue_never_get_the_same_slot() {
    const MESSAGES: usize = 600;
    let safe = Safe::new();
    let mut srq = safe.shared(16);
    let mut cqs = [(), ()].map(|()| safe.pd.context().create_cq(64).build().unwrap());
    let pairs = cqs.each_ref().map(|cq| safe.served(&srq, cq));
    let arrived = AtomicUsize::new(0);
    let (slab, receives) = (&safe.slab, safe.pd.create_slab(8, 200).unwrap());
    std::thread::scope(|scope| {
        for ((cq, (mut client, server)), mark) in cqs.iter_mut().zip(pairs).zip(1u64..) {
            let arrived = &arrived;
            scope.spawn(move || {
                let (mut sent, mut outstanding, mut received) = (0, 0, 0);
                while received < MESSAGES || outstanding > 0 {
                    if sent < MESSAGES && outstanding < 4 {
                        if let Some(mut slot) = slab.take() {
                            slot.write(&pattern(16 + sent % 100, mark as u8)).unwrap();
                            client.post_send(op::Send, slot, SIGNALED).unwrap();
                            (sent, outstanding) = (sent + 1, outstanding + 1);
                        }
                    }
                    let Ok(done) = cq.poll() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let mut slot = done.slot.expect("each carries one");
                    if done.completion.opcode() == CompletionOpcode::Recv {
                        assert_eq!(slot[..], pattern(slot.len(), mark as u8));
                        received += 1;
                        arrived.fetch_add(1, Ordering::Relaxed);
                    } else {
                        outstanding -= 1;
                    }
                    assert_exclusive(&mut slot, mark);
                }
                drop((client, server));
            });
        }
        let start = std::time::Instant::now();
        while arrived.load(Ordering::Relaxed) < 2 * MESSAGES {
            while let Some(slot) = receives.take() {
                srq.post(slot).unwrap();
            }
            assert!(start.elapsed() < common::PATIENCE, "messages do not arrive");
            std::thread::yield_now();
        }
    });
    drop(srq);
    for cq in &mut cqs {
        while cq.poll().is_ok() {}
    }
    drop(cqs);
    assert_eq!(safe.all_slots().len(), 32);
    assert_eq!(std::iter::from_fn(|| receives.take()).collect::<Vec<_>>().len(), 8);
}
