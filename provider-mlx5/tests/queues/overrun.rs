//! CQs that can overrun: their empty polls look for the event that reports it.

use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_mlx5::completion_queue::{PollError, WorkCompletion};
use uverbs_mlx5::format::CqeOpcode;
use uverbs_mlx5::queue_state::Shape;

use crate::device::{Cq, Cqe, Memory, busy_send_queue, renew};

#[test]
fn an_overrun_is_reported_after_the_remaining_completions() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 1);
    cq.produce(Cqe::send(&sq.handle, 0));
    cq.queue.monitor().set_overrun();
    assert!(cq.queue.poll().is_ok());
    for _ in 0..3 {
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::Overrun));
    }
    cq.queue.monitor().set_device_removed();
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::DeviceRemoved));
    assert_eq!(cq.queue.poll_into(&mut [WorkCompletion::default()]), Err(PollError::DeviceRemoved));
}

/// How often a CQ looks for events in `polls` empty polls.
fn looks_in(cq: &mut Cq, polls: u32) -> u32 {
    let looks = std::sync::Arc::new(AtomicU32::new(0));
    let seen = looks.clone();
    cq.queue.watch_events(move || {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    for _ in 0..polls {
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    }
    looks.load(Ordering::Relaxed)
}

#[test]
fn a_queue_that_can_overrun_looks_for_events() {
    let mut cq = Cq::new(16, 64);
    let shape = Shape { send_wqebbs: 16, recv_wqes: 16, shared_receive: false };
    let one = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
    one.set_capacity(8, 7);
    assert_eq!(looks_in(&mut cq, 5000), 0, "it holds 15");
    let two = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
    two.set_capacity(1, 0);
    assert_eq!(looks_in(&mut cq, 4 * 1024), 4, "16 can be outstanding");
    // Completions of before a reset may be in the CQ together with later ones.
    two.set_capacity(0, 0);
    assert_eq!(looks_in(&mut cq, 5000), 0);
    let before = one;
    let one = renew(&before);
    drop((before, two));
    assert_eq!(looks_in(&mut cq, 1024), 1);
    // The CQ was polled since: registering a queue notices that no old completion is left.
    let three = cq.table.register(shape, &cq.monitors(), None, 1).expect("an index");
    assert_eq!(looks_in(&mut cq, 5000), 0);
    drop((one, three));
}

/// The receives of an SRQ count once for each CQ, however many queue pairs consume them.
#[test]
fn shared_receives_count_once() {
    let mut cq = Cq::new(16, 64);
    let srq = Shape { send_wqebbs: 0, recv_wqes: 16, shared_receive: true };
    let srq = cq.table.register(srq, &[], None, 1).expect("an index");
    srq.set_capacity(0, 10);
    let shape = Shape { send_wqebbs: 1, recv_wqes: 0, shared_receive: false };
    let register =
        |cq: &Cq| cq.table.register(shape, &cq.monitors(), Some(&srq), 1).expect("an index");
    let pairs = [register(&cq), register(&cq), register(&cq)];
    pairs.iter().for_each(|pair| pair.set_capacity(1, 0));
    assert_eq!(looks_in(&mut cq, 5000), 0, "13 can be outstanding");
    srq.set_capacity(0, 13);
    assert_eq!(looks_in(&mut cq, 2048), 2, "16 can be outstanding");
}

const PAIR: Shape = Shape { send_wqebbs: 16, recv_wqes: 16, shared_receive: false };

/// A closed queue counts until the CQ has been polled past its completions.
#[test]
fn a_closed_queue_stops_counting_once_polled() {
    let mut cq = Cq::new(16, 64);
    let one = cq.table.register(PAIR, &cq.monitors(), None, 1).expect("an index");
    one.set_capacity(16, 0);
    drop(one);
    assert_eq!(looks_in(&mut cq, 8000), 1);
    // Requests of before a reset stop counting too.
    let before = cq.table.register(PAIR, &cq.monitors(), None, 1).expect("an index");
    before.set_capacity(8, 0);
    let next = renew(&before);
    drop(before);
    assert_eq!(looks_in(&mut cq, 8000), 1);
    drop(next);
}

/// An SRQ's receives count for the CQs of its queue pairs, as long as there are any.
#[test]
fn receives_of_an_srq_count_where_it_is_consumed() {
    let mut cq = Cq::new(16, 64);
    let shape = Shape { send_wqebbs: 0, recv_wqes: 16, shared_receive: true };
    let srq = cq.table.register(shape, &[], None, 1).expect("an index");
    srq.set_capacity(0, 16);
    let shape = Shape { send_wqebbs: 1, recv_wqes: 0, shared_receive: false };
    let register = |cq: &Cq| cq.table.register(shape, &cq.monitors(), Some(&srq), 1);
    let [one, two] = [(); 2].map(|()| register(&cq).expect("an index"));
    drop(one);
    assert_eq!(looks_in(&mut cq, 4 * 1024), 4, "one is left");
    let next = renew(&two);
    drop(two);
    assert_eq!(looks_in(&mut cq, 4 * 1024), 4, "after a reset");
    drop(next);
    assert_eq!(looks_in(&mut cq, 8000), 1, "none is left");
    let three = register(&cq).expect("an index");
    assert_eq!(looks_in(&mut cq, 1024), 1);
    drop((srq, three));
    assert_eq!(looks_in(&mut cq, 8000), 1, "and no SRQ");
}

/// A CQ that is made smaller may no longer hold all outstanding requests.
#[test]
fn a_queue_that_shrinks_looks_for_events() {
    let mut cq = Cq::new(32, 64);
    let sq = busy_send_queue(&cq, 16, 0);
    sq.handle.set_capacity(16, 0);
    assert_eq!(looks_in(&mut cq, 5000), 0, "it holds 31");
    for (entries, looks) in [(16, 2), (32, 0)] {
        let ring = Memory::new(entries as usize * 64);
        cq.queue.prepare_resize(ring.dma(), entries, 64).expect("resize");
        cq.produce(Cqe { opcode: CqeOpcode::RESIZE, ..Cqe::send(&sq.handle, 0) });
        (cq.ring, cq.entries) = (ring, entries);
        assert_eq!(looks_in(&mut cq, 2048), looks, "{entries}");
    }
}

/// While the program handles a batch of completions, their CQEs still occupy the ring. So a CQ that
/// is polled in batches has space for fewer outstanding requests.
#[test]
fn a_cq_that_is_polled_in_batches_has_space_for_fewer_requests() {
    let mut cq = Cq::new(16, 64);
    let mut sq = busy_send_queue(&cq, 16, 0);
    sq.handle.set_capacity(13, 0);
    for (at, batch, looks) in [(0, 1, 0), (1, 3, 0), (4, 4, 2), (8, 1, 2)] {
        sq.post_nops(batch);
        (0..batch).for_each(|i| cq.produce(Cqe::send(&sq.handle, at + i)));
        let mut out = [WorkCompletion::default(); 8];
        assert_eq!(cq.queue.poll_into(&mut out), Ok(batch as usize));
        assert_eq!(looks_in(&mut cq, 2048), looks, "batches of {batch}");
    }
}
