//! Packets that are lost, delayed, duplicated, reordered or corrupted.

use std::sync::atomic::Ordering;
use std::time::Instant;

use uverbs::cq::{CompletionOpcode, Status, WorkCompletion};
use uverbs::events::EventType;
use uverbs::qp::{AckTimeout, AtomicResult, Datagram, Immediate, PathOptions, PostFlags, State};
use uverbs::qp_type::{Rc, Uc, Ud};
use uverbs::soft::fault::{FaultCounters, FaultPlan, PacketFault, Rule};
use uverbs::soft::prng::Prng;
use uverbs::{PollError, op, raw};

use crate::common::{completion, pattern, success};
use crate::network::{End, ends, pair, seed};

const SIGNALED: PostFlags = PostFlags::SIGNALED;
/// Two percent, in parts per million.
const TWO_PERCENT: u32 = 20_000;
const MILLISECOND: u64 = 1_000_000;
const MESSAGES: usize = 150;
/// Up to five packets.
const LONGEST: usize = 18_000;

fn lengths(seed: u64) -> Vec<usize> {
    let mut chance = Prng::new(seed);
    (0..MESSAGES).map(|_| chance.below(LONGEST as u64) as usize).collect()
}

/// Sends SENDs, RDMA WRITEs, RDMA READs and FETCH_ADDs of many lengths. Each must be executed once,
/// in order, with intact data.
fn reliable_traffic(plan: FaultPlan) -> FaultCounters {
    let mut both = ends(&plan);
    let lengths = lengths(plan.seed);
    let (mut a, mut b) = pair::<Rc>(&both, |qp| qp.max_send_wr(16).max_recv_wr(MESSAGES as u32));
    messages(&mut both, &mut a, &mut b, &lengths);
    one_sided(&mut both, &mut a, &lengths);
    let [one, two] = &both;
    let (one, two) = (*one.counters.lock().unwrap(), *two.counters.lock().unwrap());
    FaultCounters {
        seen: one.seen + two.seen,
        dropped: one.dropped + two.dropped,
        duplicated: one.duplicated + two.duplicated,
        corrupted: one.corrupted + two.corrupted,
        delayed: one.delayed + two.delayed,
    }
}

fn messages(
    [one, two]: &mut [End; 2],
    a: &mut raw::QueuePair<Rc>,
    b: &mut raw::QueuePair<Rc>,
    lengths: &[usize],
) {
    let from = one.setup.region(LONGEST * MESSAGES);
    let to = two.setup.region(LONGEST * MESSAGES);
    for (id, length) in lengths.iter().enumerate() {
        from.view().write(id * LONGEST, &pattern(*length, id as u8)).unwrap();
        let room = to.sge(id * LONGEST, LONGEST).unwrap();
        // SAFETY: the region outlives the queue pairs and is only looked at after the receive's
        // completion.
        unsafe { b.post_receive(id as u64, &[room]).unwrap() };
    }
    let (mut posted, mut sent) = (0, 0);
    while sent < lengths.len() {
        while posted < lengths.len().min(sent + 16) {
            let piece = from.sge(posted * LONGEST, lengths[posted]).unwrap();
            // SAFETY: the region outlives the queue pairs and is not written any more.
            unsafe { a.post_send(posted as u64, op::Send, piece, SIGNALED).unwrap() };
            posted += 1;
        }
        assert_eq!(success(&mut one.setup.cq).wr_id, sent as u64);
        sent += 1;
    }
    for (id, length) in lengths.iter().enumerate() {
        let received = success(&mut two.setup.cq);
        assert_eq!((received.wr_id, received.byte_len() as usize), (id as u64, *length));
        let mut got = vec![0; *length];
        to.view().read(id * LONGEST, &mut got).unwrap();
        assert_eq!(got, pattern(*length, id as u8), "message {id}");
    }
    assert_eq!(one.setup.cq.poll().unwrap_err(), PollError::Empty);
    assert_eq!(two.setup.cq.poll().unwrap_err(), PollError::Empty);
}

fn one_sided([one, two]: &mut [End; 2], a: &mut raw::QueuePair<Rc>, lengths: &[usize]) {
    let (mine, theirs) = (one.setup.region(3 * LONGEST), two.setup.region(LONGEST + 8));
    let counter = theirs.view().atomic_u64(0).unwrap();
    for (round, length) in lengths.iter().enumerate() {
        mine.view().write(0, &pattern(*length, round as u8)).unwrap();
        let target = theirs.remote(8).unwrap();
        let count = op::FetchAdd { remote: theirs.remote(0).unwrap(), add: 1 };
        let result =
            AtomicResult { address: mine.address() + 2 * LONGEST as u64, lkey: mine.lkey() };
        let back = mine.sge(LONGEST, *length).unwrap();
        // SAFETY: both regions outlive the requests and are touched after their completions only.
        unsafe {
            a.post_send(1, op::Write(target), mine.sge(0, *length).unwrap(), SIGNALED).unwrap();
            a.post_send(2, count, result, SIGNALED).unwrap();
            a.post_send(3, op::Read(target), back, SIGNALED | PostFlags::FENCE).unwrap();
        }
        for wr_id in 1..=3 {
            assert_eq!(success(&mut one.setup.cq).wr_id, wr_id);
        }
        let before = mine.view().atomic_u64(2 * LONGEST).unwrap().load(Ordering::Relaxed);
        assert_eq!(before, round as u64, "added once each time");
        assert_eq!(counter.load(Ordering::Relaxed), round as u64 + 1);
        let mut got = vec![0; *length];
        mine.view().read(LONGEST, &mut got).unwrap();
        assert_eq!(got, pattern(*length, round as u8), "round {round}");
    }
}

fn plan(seed: u64) -> FaultPlan {
    FaultPlan { seed, delay_range: (1000, 2 * MILLISECOND), ..FaultPlan::default() }
}

#[test]
fn rc_retransmits_lost_packets() {
    let counters = reliable_traffic(FaultPlan { drop: TWO_PERCENT, ..plan(seed(1)) });
    assert!(counters.dropped > 0, "{counters:?}");
}

#[test]
fn rc_ignores_duplicated_packets() {
    let counters = reliable_traffic(FaultPlan { duplicate: 2 * TWO_PERCENT, ..plan(seed(2)) });
    assert!(counters.duplicated > 0, "{counters:?}");
}

#[test]
fn rc_retransmits_corrupted_packets() {
    let counters = reliable_traffic(FaultPlan { corrupt: TWO_PERCENT, ..plan(seed(3)) });
    assert!(counters.corrupted > 0, "{counters:?}");
}

#[test]
fn rc_puts_reordered_packets_in_order() {
    let counters = reliable_traffic(FaultPlan { reorder: TWO_PERCENT, ..plan(seed(4)) });
    assert!(counters.delayed > 0, "{counters:?}");
}

#[test]
fn rc_waits_for_delayed_packets() {
    let counters = reliable_traffic(FaultPlan { delay: TWO_PERCENT, ..plan(seed(5)) });
    assert!(counters.delayed > 0, "{counters:?}");
}

#[test]
fn rc_survives_all_faults_at_once() {
    let half = TWO_PERCENT / 2;
    let counters = reliable_traffic(FaultPlan {
        drop: half,
        duplicate: half,
        corrupt: half,
        reorder: half,
        delay: half,
        ..plan(seed(6))
    });
    let (dropped, duplicated) = (counters.dropped, counters.duplicated);
    assert!(dropped + duplicated + counters.corrupted + counters.delayed > 0, "{counters:?}");
}

/// The wire may delay one packet until another has passed it. The first barrier may be the packet
/// that passes, but the second one arrives later.
const BARRIERS: u32 = 2;

/// Returns once every earlier packet of `a`'s device has arrived or is lost.
fn barrier([one, two]: &mut [End; 2], a: &mut raw::QueuePair<Rc>, b: &mut raw::QueuePair<Rc>) {
    for _ in 0..BARRIERS {
        // SAFETY: no memory is named.
        unsafe {
            b.post_receive(u64::MAX, &[]).unwrap();
            a.post_send(u64::MAX, op::Send, (), SIGNALED).unwrap();
        }
        success(&mut one.setup.cq);
    }
    assert!(two.setup.cq.capacity() > BARRIERS);
}

/// Completions of the messages that arrived before the barrier, in order.
fn arrivals(cq: &mut raw::CompletionQueue) -> Vec<WorkCompletion> {
    let (mut all, mut barriers) = (Vec::new(), 0);
    while barriers < BARRIERS {
        let received = success(cq);
        match received.wr_id {
            u64::MAX => barriers += 1,
            _ => all.push(received),
        }
    }
    all
}

#[test]
fn uc_loses_whole_messages_without_an_error() {
    let mut both = ends(&FaultPlan { drop: TWO_PERCENT, corrupt: TWO_PERCENT, ..plan(seed(7)) });
    let lengths = lengths(7);
    let (mut a, mut b) = pair::<Uc>(&both, |qp| qp.max_send_wr(16).max_recv_wr(MESSAGES as u32));
    let (mut fence_a, mut fence_b) = pair::<Rc>(&both, |qp| qp);
    let from = both[0].setup.region(LONGEST);
    let to = both[1].setup.region(LONGEST * MESSAGES);
    for id in 0..MESSAGES {
        // SAFETY: the region outlives the queue pairs and is only looked at after the receive's
        // completion.
        unsafe {
            b.post_receive(id as u64, &[to.sge(id * LONGEST, LONGEST).unwrap()]).unwrap();
        }
    }
    for (id, length) in lengths.iter().enumerate() {
        from.view().write(0, &pattern(*length, id as u8)).unwrap();
        let operation = op::SendImmediate(Immediate::from_u32(id as u32));
        // SAFETY: the region outlives the request and is not touched before its completion.
        unsafe {
            a.post_send(9, operation, from.sge(0, *length).unwrap(), SIGNALED).unwrap();
        }
        success(&mut both[0].setup.cq);
    }
    barrier(&mut both, &mut fence_a, &mut fence_b);
    let mut arrived = Vec::new();
    for received in arrivals(&mut both[1].setup.cq) {
        assert_eq!(received.wr_id, arrived.len() as u64, "no receive is skipped");
        let id = received.immediate().unwrap().to_u32() as usize;
        assert_eq!(received.byte_len() as usize, lengths[id]);
        let mut got = vec![0; lengths[id]];
        to.view().read(arrived.len() * LONGEST, &mut got).unwrap();
        assert_eq!(got, pattern(lengths[id], id as u8), "message {id}");
        arrived.push(id);
    }
    assert!(arrived.is_sorted_by(|one, next| one < next), "in order: {arrived:?}");
    assert!(arrived.len() < MESSAGES && !arrived.is_empty(), "{}", arrived.len());
    assert_eq!((a.state(), b.query().unwrap().state), (State::Rts, State::Rts));
}

#[test]
fn ud_loses_duplicates_and_reorders_datagrams_but_never_changes_them() {
    const LENGTH: usize = 300;
    let faults = FaultPlan { drop: TWO_PERCENT, corrupt: TWO_PERCENT, ..plan(seed(8)) };
    let faults = FaultPlan { duplicate: TWO_PERCENT, reorder: TWO_PERCENT, ..faults };
    let mut both = ends(&faults);
    let (mut fence_a, mut fence_b) = pair::<Rc>(&both, |qp| qp);
    let mut a = both[0].setup.builder::<Ud>().build().unwrap();
    let room = 4 * MESSAGES as u32;
    let mut b = both[1].setup.builder::<Ud>().max_recv_wr(room).build().unwrap();
    a.activate().unwrap();
    b.activate().unwrap();
    let to = both[1].setup.region(512 * room as usize);
    for id in 0..room as usize {
        // SAFETY: the region outlives the queue pairs and is only looked at after the receive's
        // completion.
        unsafe { b.post_receive(id as u64, &[to.sge(id * 512, 512).unwrap()]).unwrap() };
    }
    let there = both[0].setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
    let address = there.datagram_to(&b.endpoint());
    let from = both[0].setup.region(LENGTH);
    let sent = 2 * MESSAGES as u32;
    for id in 0..sent {
        from.view().write(0, &pattern(LENGTH, id as u8)).unwrap();
        let operation = op::To(Datagram(&address), op::SendImmediate(Immediate::from_u32(id)));
        let data = from.sge(0, LENGTH).unwrap();
        // SAFETY: the region outlives the request and is not touched before its completion.
        unsafe { a.post_send(9, operation, data, SIGNALED).unwrap() };
        success(&mut both[0].setup.cq);
    }
    barrier(&mut both, &mut fence_a, &mut fence_b);
    let mut seen = vec![0u32; sent as usize];
    for (place, received) in arrivals(&mut both[1].setup.cq).iter().enumerate() {
        assert_eq!(received.wr_id, place as u64, "no receive is skipped");
        let id = received.immediate().unwrap().to_u32();
        let mut got = vec![0; LENGTH];
        to.view().read(place * 512 + uverbs::ah::GRH_BYTES, &mut got).unwrap();
        assert_eq!(got, pattern(LENGTH, id as u8), "datagram {id}");
        seen[id as usize] += 1;
    }
    assert!(seen.contains(&0), "some are lost");
    assert!(seen.iter().any(|count| *count > 1), "some come twice");
}

#[test]
fn a_cut_link_ends_in_retry_exceeded_within_the_timeout() {
    let mut both = ends(&plan(seed(9)));
    let timeout = AckTimeout::from_code(10);
    let (mut a, b) =
        pair::<Rc>(&both, |qp| qp.path(|path| (path.timeout, path.retry_count) = (timeout, 2)));
    both[0].cut.store(true, Ordering::Relaxed);
    let start = Instant::now();
    for wr_id in 0..3 {
        // SAFETY: no memory is named.
        unsafe { a.post_send(wr_id, op::Send, (), SIGNALED).unwrap() };
    }
    let first = completion(&mut both[0].setup.cq);
    assert_eq!((first.wr_id, first.status), (0, Status::RetryExceeded));
    assert_eq!(first.opcode(), CompletionOpcode::Send);
    // The first try and two retries, with an ACK timeout of 4.096 us * 2^10 each.
    assert!(start.elapsed().as_micros() >= 3 * 4194, "{:?}", start.elapsed());
    for wr_id in 1..3 {
        let flushed = completion(&mut both[0].setup.cq);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
    assert_eq!((a.state(), a.query().unwrap().state), (State::Err, State::Err));
    assert_eq!(b.query().unwrap().state, State::Rts, "the peer has noticed nothing");
    a.destroy().unwrap();
}

/// The message stops after its first packet. Without the change to ERR the receive would be lost,
/// because it has no completion.
#[test]
fn a_shared_receive_in_progress_is_flushed_by_a_change_to_err() {
    let lost = |nth| Rule { opcode: None, nth, fault: PacketFault::Drop };
    let rules = (2..100).map(lost).collect();
    let mut both = ends(&FaultPlan { rules, ..plan(seed(10)) });
    let (from, to) = (both[0].setup.region(LONGEST), both[1].setup.region(LONGEST));
    let mut srq = both[1].setup.pd.create_raw_srq(1).build().unwrap();
    // SAFETY: the region outlives the queue, and is not accessed.
    unsafe { srq.post(77, &[to.sge(0, LONGEST).unwrap()]).unwrap() };
    let once = |path: &mut PathOptions| {
        (path.timeout, path.retry_count) = (AckTimeout::from_code(10), 0);
    };
    let mut a = both[0].setup.builder::<Rc>().path(once).build().unwrap();
    let b = both[1].setup.builder::<Rc>().shared_receive_queue(srq.handle());
    let mut b = b.build().unwrap();
    a.connect(&b.endpoint()).unwrap();
    b.connect(&a.endpoint()).unwrap();
    // SAFETY: the region outlives the queue pair.
    unsafe { a.post_send(1, op::Send, from.sge(0, LONGEST).unwrap(), SIGNALED).unwrap() };
    assert_eq!(completion(&mut both[0].setup.cq).status, Status::RetryExceeded);
    b.to_error().unwrap();
    let flushed = completion(&mut both[1].setup.cq);
    assert_eq!((flushed.wr_id, flushed.status), (77, Status::Flushed));
    let last = both[1].setup.context.get_event().unwrap();
    assert_eq!(last.kind(), EventType::QP_LAST_WQE_REACHED);
    drop(last);
    b.destroy().unwrap();
    assert_eq!(srq.outstanding_receives(), 0);
}
