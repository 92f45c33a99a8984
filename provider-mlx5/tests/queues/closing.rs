//! Queues that are closed or reset while their completions are still in the CQ.

use uverbs_mlx5::completion_queue::PollError;
use uverbs_mlx5::format::{CqeFormat, MiniCqe, MiniCqeFormat, Syndrome};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::{PostFlags, Sge};
use uverbs_mlx5::send_queue::{Nop, Rc};
use uverbs_mlx5::user_index::QueueHandle;

use crate::device::{
    Cq, Cqe, Memory, NEAR_WRAPS, Rq, Sq, busy_send_queue, recv_queue, renew, send_queue,
    send_queue_of, shared_recv_queue,
};

const NONE: PostFlags = PostFlags::empty();
const SHAPE: Shape = Shape { send_wqebbs: 8, recv_wqes: 8, shared_receive: false };

#[test]
fn completions_of_a_closed_queue_are_dropped() {
    let mut cq = Cq::new(8, 64);
    let (dead, alive) = (busy_send_queue(&cq, 8, 3), busy_send_queue(&cq, 8, 3));
    for i in 0..3 {
        cq.produce(Cqe::send(&dead.handle, i));
        cq.produce(Cqe::send(&alive.handle, i));
    }
    assert_eq!(cq.queue.poll().expect("one").qp_num(), dead.handle.state().number());
    dead.handle.close();
    for _ in 0..3 {
        assert_eq!(cq.queue.poll().expect("one").qp_num(), alive.handle.state().number());
    }
    assert!(cq.queue.poll().is_err());
    assert_eq!(cq.queue.dropped(), 2);
}

/// A poll that returns nothing still updates the consumer index, so the device can reuse the CQEs.
#[test]
fn dropped_completions_free_space_at_once() {
    let mut cq = Cq::new(8, 64);
    let dead = busy_send_queue(&cq, 8, 6);
    for i in 0..6 {
        cq.produce(Cqe::send(&dead.handle, i));
    }
    dead.handle.close();
    assert!(cq.queue.poll().is_err());
    assert_eq!((cq.queue.dropped(), cq.record.word(0)), (6, 6));
}

#[test]
fn inline_data_for_a_closed_queue_is_not_copied() {
    let mut cq = Cq::new(8, 64);
    let target = Memory::new(64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let address = target.ptr().as_ptr().expose_provenance() as u64;
    // SAFETY: leaked memory.
    unsafe { rq.queue.build(9, &[Sge::new(address, 64, 7)]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &[5; 20]));
    rq.handle.close();
    assert!(cq.queue.poll().is_err());
    assert_eq!(target.read(0, 64), [0; 64]);
}

#[test]
fn shared_receives_of_a_closed_queue_are_posted_again() {
    let mut cq = Cq::new(8, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    for id in 0..3 {
        // SAFETY: no device writes to it.
        unsafe { srq.queue.build(id, &[]) }.expect("space");
    }
    let other = cq.table.register(SHAPE, &cq.monitors(), Some(&srq.handle), 0).expect("an index");
    // All receives, so that no entry is free, and one of them twice, as a hostile device might.
    for index in [1, 0, 2, 1] {
        cq.produce(Cqe::recv(&srq.qp, index));
    }
    srq.qp.close();
    assert!(cq.queue.poll().is_err());
    // SAFETY: no device writes to it.
    let full = unsafe { srq.queue.build(3, &[]) };
    assert!(full.is_err(), "the program has had no completion for any of the three");
    srq.queue.publish();
    assert_eq!(srq.record.word(0), 6);
    let mut ids = Vec::new();
    for index in [3, 0, 1, 2] {
        cq.produce(Cqe::recv(&other, index));
        ids.extend(cq.queue.poll().map(|completion| completion.wr_id()));
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2], "each once");
}

#[test]
fn late_completions_post_nothing_to_the_next_srq() {
    let mut cq = Cq::new(8, 64);
    let srq_shape = Shape { send_wqebbs: 0, recv_wqes: 4, shared_receive: true };
    // A basic SRQ has no CQ of its own: its queue pairs have.
    let srq = cq.table.register(srq_shape, &[], None, 0).expect("an index");
    let qp = cq.table.register(SHAPE, &cq.monitors(), Some(&srq), 0).expect("an index");
    cq.produce(Cqe::recv(&qp, 0));
    drop((qp, srq));
    // A new SRQ of the same size, as after a reconnect.
    let mut next = shared_recv_queue(&cq, 4, 32, false);
    for id in 0..3 {
        // SAFETY: no device writes to it.
        unsafe { next.queue.build(id, &[]) }.expect("space");
    }
    assert!(cq.queue.poll().is_err(), "its queue is gone");
    let mut posted = 0;
    next.queue.for_each_outstanding(|_| posted += 1);
    assert_eq!(posted, 3, "the device still has all of them");
}

/// A queue of `SHAPE` with one request outstanding.
fn busy(handle: &QueueHandle) -> Sq<Rc> {
    handle.set_state(QpState::Rts);
    let mut sq = send_queue_of(handle.clone(), [8, 8], 256, false);
    sq.post_nops(1);
    sq
}

#[test]
fn an_index_is_reused_only_after_the_cq_was_drained() {
    let mut cq = Cq::new(8, 64);
    let first = cq.table.register(SHAPE, &cq.monitors(), None, 1).expect("an index");
    let index = first.user_index();
    cq.produce(Cqe::send(&first, 0));
    drop(first);
    let second = cq.table.register(SHAPE, &cq.monitors(), None, 2).expect("an index");
    assert_ne!(second.user_index(), index, "its completion is still in the CQ");
    assert!(cq.queue.poll().is_err(), "the completion is dropped, and the CQ drained");
    let third = cq.table.register(SHAPE, &cq.monitors(), None, 3).expect("an index");
    assert_eq!(third.user_index(), index);
    let _queue = busy(&third);
    cq.produce(Cqe::send(&third, 0));
    assert_eq!(cq.queue.poll().expect("one").user_context(), 3);
}

#[test]
fn a_cq_that_is_never_empty_drains_in_two_laps() {
    NEAR_WRAPS.into_iter().for_each(drains_in_two_laps);
}

fn drains_in_two_laps(start: u32) {
    let mut cq = Cq::after(start, 8, 64);
    let mut alive = busy_send_queue(&cq, 8, 1);
    let dying = cq.table.register(SHAPE, &cq.monitors(), None, 1).expect("an index");
    cq.produce(Cqe::send(&alive.handle, 0));
    dying.close();
    let mut polls = 0;
    while !dying.has_drained() {
        alive.post_nops(1);
        cq.produce(Cqe::send(&alive.handle, polls + 1));
        cq.queue.poll().expect("one");
        polls += 1;
        assert!(polls <= 16, "not drained after two laps");
    }
    assert!(polls > 7, "drained before a lap was over");
}

/// The program has polled into the second lap itself, and then a queue was closed.
#[test]
fn a_cq_that_follows_its_program_is_not_drained_within_a_lap() {
    let mut cq = Cq::new(8, 64);
    let mut alive = busy_send_queue(&cq, 32, 8);
    let dying = cq.table.register(SHAPE, &cq.monitors(), None, 1).expect("an index");
    cq.produced = 12;
    cq.record.write(0, &12u32.to_be_bytes());
    (0..8).for_each(|index| cq.produce(Cqe::send(&alive.handle, index)));
    dying.close();
    cq.queue.follow_record();
    for polled in 0..8 {
        assert!(!dying.has_drained(), "{} CQEs are unread", 8 - polled);
        alive.post_nops(1);
        cq.queue.poll().expect("one");
        cq.produce(Cqe::send(&alive.handle, 8 + polled));
    }
    for _ in 0..16 {
        cq.queue.poll().expect("one");
        alive.post_nops(1);
        cq.produce(Cqe::send(&alive.handle, alive.queue.head() - 1));
    }
    assert!(dying.has_drained());
}

#[test]
fn a_cq_that_was_dropped_counts_as_drained() {
    let cq = Cq::new(8, 64);
    let handle = cq.table.register(SHAPE, &cq.monitors(), None, 1).expect("an index");
    handle.close();
    assert!(!handle.has_drained());
    drop(cq);
    assert!(handle.has_drained());
}

/// Completions of before a reset are recognised by their place in the ring, whatever they name.
#[test]
fn a_reset_queue_can_post_at_once_and_older_completions_are_dropped() {
    NEAR_WRAPS.into_iter().for_each(completions_of_before_a_reset_are_dropped);
}

fn completions_of_before_a_reset_are_dropped(start: u32) {
    let mut cq = Cq::after(start, 8, 64);
    let (mut sq, mut other) = (send_queue::<Rc>(&cq, 8), send_queue::<Rc>(&cq, 8));
    for lap in 0..20 {
        other.post_nops(1);
        sq.handle.set_state(QpState::Rts);
        for id in 0..4 {
            // SAFETY: there is no data.
            unsafe { sq.queue.post(100 * lap + id, Nop, (), NONE) }.expect("space");
        }
        cq.produce(Cqe::send(&sq.handle, 0));
        cq.produce(Cqe::send(&other.handle, lap as u32));
        cq.produce(Cqe::send(&sq.handle, 2));
        sq.handle = renew(&sq.handle);
        sq.queue.reset(sq.handle.clone());
        sq.handle.set_state(QpState::Rts);
        assert_eq!(sq.record.word(4), 0);
        // SAFETY: there is no data.
        unsafe { sq.queue.post(77, Nop, (), NONE) }.expect("space");
        cq.produce(Cqe::send(&sq.handle, 0));
        assert_eq!(cq.queue.poll().expect("one").qp_num(), other.handle.state().number());
        assert_eq!(cq.queue.poll().expect("one").wr_id(), 77, "lap {lap}");
        assert!(cq.queue.poll().is_err());
        assert_eq!(cq.queue.dropped(), 2 * (lap + 1));
        sq.handle = renew(&sq.handle);
        sq.queue.reset(sq.handle.clone());
    }
}

/// A queue with two CQs is reset. Each CQ drops its own older completions, whenever it is polled.
#[test]
fn each_cq_of_a_reset_queue_drops_its_own_older_completions() {
    // Nothing was posted after the reset, so a completion that is not dropped is refused.
    const NOT_DROPPED: Result<(), PollError> = Err(PollError::NotOutstanding);
    let mut sends = Cq::new(8, 64);
    let mut receives = Cq::on(&sends.table, 8, 64);
    let monitors = [sends.monitors(), receives.monitors()].concat();
    let mut handle = sends.table.register(SHAPE, &monitors, None, 5).expect("an index");
    for _ in 0..5 {
        sends.produce(Cqe::send(&handle, 1));
        receives.produce(Cqe::recv(&handle, 1));
        handle = renew(&handle);
        sends.produce(Cqe::send(&handle, 2));
        assert_eq!(sends.queue.poll().map(drop), NOT_DROPPED);
        assert_eq!(sends.queue.poll().map(drop), Err(PollError::Empty));
        receives.produce(Cqe::recv(&handle, 3));
        sends.produce(Cqe::send(&handle, 4));
        assert_eq!(sends.queue.poll().map(drop), NOT_DROPPED, "while the other CQ lags");
        assert_eq!(receives.queue.poll().map(drop), NOT_DROPPED);
        assert_eq!(receives.queue.poll().map(drop), Err(PollError::Empty));
    }
}

/// The removed CQEs are between other queues' CQEs, across the ring's end, in either CQE size.
#[test]
fn remove_closed_removes_the_cqes_of_a_reset_queue() {
    for (size, start) in [64, 128].into_iter().flat_map(|size| NEAR_WRAPS.map(|at| (size, at))) {
        let mut cq = Cq::after(start, 8, size);
        let (mut sq, mut other) = (send_queue::<Rc>(&cq, 8), send_queue::<Rc>(&cq, 8));
        for lap in 0..40u32 {
            sq.handle.set_state(QpState::Rts);
            let first = lap % 3;
            for id in 0..first {
                complete_one(&mut cq, &mut other, u64::from(100 + id));
            }
            (0..2).for_each(|id| complete_one(&mut cq, &mut sq, id));
            complete_one(&mut cq, &mut other, 200);
            complete_one(&mut cq, &mut sq, 2);
            complete_one(&mut cq, &mut other, 201);
            sq.handle = renew(&sq.handle);
            sq.queue.reset(sq.handle.clone());
            sq.handle.set_state(QpState::Rts);
            cq.queue.remove_closed();
            assert_eq!(cq.record.word(0), cq.queue.consumer_index() & 0xff_ffff);
            assert_eq!(cq.queue.dropped(), 3 * u64::from(lap + 1));
            // Completions of after the reset are not removed.
            complete_one(&mut cq, &mut sq, 77);
            let expected = (100..100 + u64::from(first)).chain([200, 201, 77]);
            for wr_id in expected {
                assert_eq!(cq.queue.poll().expect("one").wr_id(), wr_id, "lap {lap}");
            }
            assert!(cq.queue.poll().is_err());
        }
    }
}

/// Posts a request and completes it.
fn complete_one(cq: &mut Cq, sq: &mut Sq<Rc>, wr_id: u64) {
    let index = sq.queue.head();
    // SAFETY: there is no data.
    unsafe { sq.queue.post(wr_id, Nop, (), PostFlags::SIGNALED) }.expect("space");
    cq.produce(Cqe::send(&sq.handle, index));
}

#[test]
fn a_queue_that_was_reset_and_closed_stays_closed() {
    let mut cq = Cq::new(8, 64);
    let handle = cq.table.register(SHAPE, &cq.monitors(), None, 5).expect("an index");
    cq.produce(Cqe::send(&handle, 1));
    let handle = renew(&handle);
    cq.produce(Cqe::send(&handle, 2));
    handle.close();
    assert!(cq.queue.poll().is_err());
    assert_eq!(cq.queue.dropped(), 2);
    let index = handle.user_index();
    drop(handle);
    let next = cq.table.register(SHAPE, &cq.monitors(), None, 6).expect("an index");
    assert_eq!(next.user_index(), index, "used again once drained, by only one queue");
    let other = cq.table.register(SHAPE, &cq.monitors(), None, 7).expect("an index");
    assert_ne!(other.user_index(), index);
}

#[test]
fn completions_of_a_thousand_queues_find_their_queue() {
    let mut cq = Cq::new(8, 64);
    let handles: Vec<_> = (0..1000)
        .map(|i| cq.table.register(SHAPE, &cq.monitors(), None, i).expect("an index"))
        .collect();
    for (i, handle) in handles.iter().enumerate().rev().step_by(7) {
        let _queue = busy(handle);
        cq.produce(Cqe::send(handle, 0));
        assert_eq!(cq.queue.poll().expect("one").user_context(), i as u64);
    }
}

/// The table has one place for each value of the index's lower 16 bits, of which queues use all but
/// the first and the last. With more queues than that, two queues share a place.
#[test]
fn queues_that_share_a_place_in_the_table_are_distinguished() {
    let mut cq = Cq::new(8, 64);
    let (table, monitors) = (cq.table.clone(), cq.monitors());
    let register = |context| table.register(SHAPE, &monitors, None, context).expect("an index");
    let first = register(1);
    let none = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
    let others: Vec<_> = (2..(1 << 16) - 1).map(|i| table.register(none, &[], None, i)).collect();
    let second = register(2);
    assert_eq!(second.user_index(), first.user_index() | 1 << 16);
    let mut complete = |handle: &QueueHandle, counter| {
        cq.produce(Cqe::send(handle, counter));
        cq.queue.poll().map(|done| done.user_context())
    };
    let [mut queue, mut other] = [&first, &second].map(busy);
    queue.post_nops(3);
    other.post_nops(3);
    assert_eq!([complete(&first, 0), complete(&second, 0)], [Ok(1), Ok(2)]);
    assert_eq!([complete(&second, 1), complete(&first, 1)], [Ok(2), Ok(1)]);
    assert_eq!(complete(&second, 1), Err(PollError::NotOutstanding));
    let index = second.user_index();
    second.close();
    assert_eq!([complete(&second, 2), complete(&first, 2)], [Err(PollError::Empty), Ok(1)]);
    drop((other, second));
    let third = register(3);
    assert_eq!(third.user_index(), index, "used again");
    let _other = busy(&third);
    assert_eq!([complete(&third, 0), complete(&first, 3)], [Ok(3), Ok(1)]);
    drop(others);
}

#[test]
fn every_kind_of_completion_finds_its_queue_at_a_shared_place() {
    let mut cq = Cq::with(32, 64, MiniCqeFormat::HASH);
    let queues = |cq: &Cq| {
        let receives = recv_queue(cq, 16, 16, false);
        (busy_send_queue(cq, 8, 2), receives, shared_recv_queue(cq, 8, 32, false))
    };
    let first = queues(&cq);
    let none = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
    let others: Vec<_> = (0..1 << 16).map(|i| cq.table.register(none, &[], None, i)).collect();
    for (sends, mut receives, mut shared) in [first, queues(&cq)] {
        post_receives(&mut receives, 100..107);
        // SAFETY: no memory is named.
        unsafe { shared.queue.post(107, &[]) }.expect("space");
        let (syndrome, send, receive) = (Syndrome::FLUSHED.0, &sends.handle, &receives.handle);
        cq.produce(Cqe::recv(receive, 0));
        cq.produce_session(Cqe::recv(receive, 1), &[MiniCqe::with_hash(0, 60); 4]);
        cq.produce(Cqe::recv(receive, 5).inline(CqeFormat::INLINE_32, &[5; 20]));
        cq.produce(Cqe::recv(receive, 6).failed(0, syndrome));
        cq.produce(Cqe::recv(&shared.qp, 0));
        for id in 100..108 {
            let done = cq.queue.poll().expect("a completion");
            assert_eq!((done.wr_id(), done.is_success()), (id, id != 106));
            let queue = if id == 107 { &shared.qp } else { receive };
            assert!(core::ptr::eq(done.state(), queue.state()));
        }
        cq.produce(Cqe::send(send, 0));
        cq.produce(Cqe::send(send, 1).failed(0, syndrome));
        for is_success in [true, false] {
            let done = cq.queue.poll().expect("a completion");
            assert_eq!(done.is_success(), is_success);
            assert!(core::ptr::eq(done.state(), send.state()));
        }
        for refused in [Cqe::send(send, 1), Cqe::recv(receive, 6), Cqe::recv(&shared.qp, 0)] {
            cq.produce(refused.clone());
            cq.produce(refused.failed(0, syndrome));
            let polled = [(); 3].map(|()| cq.queue.poll().map(|_| ()));
            let error = Err(PollError::NotOutstanding);
            assert_eq!(polled, [error, error, Err(PollError::Empty)]);
        }
        for handle in [&sends.handle, &receives.handle, &shared.qp] {
            handle.close();
            cq.produce(Cqe::send(handle, 2));
            cq.produce(Cqe::recv(handle, 2));
        }
        assert_eq!(cq.queue.poll().map(|_| ()), Err(PollError::Empty));
    }
    assert_eq!(cq.queue.dropped(), 12);
    drop(others);
}

#[test]
fn closing_and_reusing_while_another_thread_polls() {
    let mut cq = Cq::new(64, 64);
    let (table, monitors) = (cq.table.clone(), cq.monitors());
    let mut alive = send_queue::<Rc>(&cq, 64);
    let alive_number = alive.handle.state().number();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..20_000 {
                let handle = table.register(SHAPE, &monitors, None, i).expect("an index");
                assert!(place(handle.user_index()) < 4096, "indices are not reused");
                handle.close();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        // The device also writes completions with arbitrary indices.
        let (mut index, mut sent) = (0, 0);
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            index = (index + 1) % 600;
            let stray = Cqe { user_index: place(index).into(), ..Cqe::send(&alive.handle, sent) };
            if index % 3 == 0 {
                alive.post_nops(1);
                cq.produce(Cqe::send(&alive.handle, sent));
                sent += 1;
            } else {
                cq.produce(stray);
            }
            if let Ok(completion) = cq.queue.poll() {
                assert!(completion.qp_num() == alive_number && index % 3 == 0);
            }
            assert!(cq.queue.poll().is_err());
        }
    });
}

/// The place of an index in the table, or the index of a place. Low places are used first.
fn place(index: u32) -> u16 {
    (index as u16).to_be()
}

fn renew_recv(rq: &mut Rq) {
    rq.handle = renew(&rq.handle);
    rq.queue.reset(rq.handle.clone());
    rq.handle.set_state(QpState::Rtr);
}

fn post_receives(rq: &mut Rq, ids: std::ops::Range<u64>) {
    for id in ids {
        // SAFETY: no memory is named.
        unsafe { rq.queue.build(id, &[]) }.expect("space");
    }
    rq.queue.publish();
}

/// The program resets the queue after it has polled some completions of a compressed session.
#[test]
fn the_rest_of_a_compressed_session_is_dropped_after_a_reset() {
    for polled in 0..=12 {
        let mut cq = Cq::with(32, 64, MiniCqeFormat::HASH);
        let mut rq = recv_queue(&cq, 16, 16, false);
        post_receives(&mut rq, 100..112);
        cq.produce_session(Cqe::recv(&rq.handle, 0), &[MiniCqe::with_hash(0, 60); 12]);
        for id in 0..polled {
            assert_eq!(cq.queue.poll().expect("one").wr_id(), 100 + id);
        }
        renew_recv(&mut rq);
        post_receives(&mut rq, 200..212);
        cq.produce(Cqe::recv(&rq.handle, 0));
        let next = cq.queue.poll().map(|completion| completion.wr_id());
        assert_eq!(next, Ok(200), "after {polled}");
        assert_eq!(cq.queue.dropped(), 12 - polled);
        assert!(cq.queue.poll().is_err());
    }
}
