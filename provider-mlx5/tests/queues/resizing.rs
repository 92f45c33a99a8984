//! Resizes: the poller follows the device to the new ring, even if the command failed.

use uverbs_mlx5::completion_queue::{CompletionQueue, PollError};
use uverbs_mlx5::format::{CqeOpcode, MiniCqe, MiniCqeFormat};
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::Nop;

use crate::device::{Cq, Cqe, Memory, NEAR_WRAPS, Rq, busy_send_queue, recv_queue, renew};

#[test]
fn resizing_follows_the_device_to_the_new_ring() {
    for start in NEAR_WRAPS {
        [(32, 64), (4, 64), (16, 128)].into_iter().for_each(|to| resizing_follows(start, to));
    }
}

/// To a ring of another size, on a CQ of which `start` CQEs were consumed.
fn resizing_follows(start: u32, (new_entries, new_size): (u32, usize)) {
    let mut cq = Cq::after(start, 8, 64);
    let mut rq = recv_queue(&cq, 64, 16, false);
    let mut next = 0u32;
    let mut produce = |cq: &mut Cq| {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(u64::from(next), &[]) }.expect("space");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, next));
        next += 1;
    };
    for _ in 0..21 {
        produce(&mut cq);
        cq.queue.poll().expect("a completion");
    }
    (0..3).for_each(|_| produce(&mut cq));
    let ring = Memory::new(new_entries as usize * new_size);
    cq.queue.prepare_resize(ring.dma(), new_entries, new_size as u32).expect("resize");
    assert!(cq.queue.prepare_resize(ring.dma(), new_entries, new_size as u32).is_err());
    let mark = Cqe { opcode: CqeOpcode::RESIZE, ..Cqe::recv(&rq.handle, 0) };
    cq.produce(mark);
    assert!(!cq.queue.resize_is_finished());
    (cq.ring, cq.entries, cq.cqe_size) = (ring, new_entries, new_size);
    (0..2).for_each(|_| produce(&mut cq));
    for id in 21..26 {
        assert_eq!(cq.queue.poll().expect("a completion").wr_id(), id);
    }
    assert!(cq.queue.poll().is_err() && cq.queue.resize_is_finished());
    for id in 26..200 {
        produce(&mut cq);
        assert_eq!(cq.queue.poll().expect("a completion").wr_id(), id);
        assert!(cq.queue.poll().is_err());
    }
    assert_eq!(cq.queue.dropped(), 0);
}

#[test]
fn a_resize_that_failed_and_is_executed_later_is_followed() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 2);
    let ring = Memory::new(16 * 64);
    cq.queue.prepare_resize(ring.dma(), 16, 64).expect("resize");
    cq.queue.cancel_resize();
    cq.produce(Cqe::send(&sq.handle, 0));
    assert!(cq.queue.poll().is_ok(), "still in the old ring");
    cq.produce(Cqe { opcode: CqeOpcode::RESIZE, ..Cqe::send(&sq.handle, 0) });
    (cq.ring, cq.entries) = (ring, 16);
    cq.produce(Cqe::send(&sq.handle, 1));
    assert!(cq.queue.poll().is_ok(), "in the new ring");
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    let next = Memory::new(32 * 64);
    cq.queue.prepare_resize(next.dma(), 32, 64).expect("it is finished");
}

/// A ring of `entries` for a resize whose command fails.
fn refused(cq: &mut Cq, entries: u32) -> Memory {
    let ring = prepared(cq, entries);
    cq.queue.cancel_resize();
    ring
}

fn prepared(cq: &mut Cq, entries: u32) -> Memory {
    let ring = Memory::new(entries as usize * 64);
    cq.queue.prepare_resize(ring.dma(), entries, 64).expect("resize");
    ring
}

/// The device executes the resize to this ring.
fn move_to(cq: &mut Cq, ring: Memory, entries: u32, sq: &Sq) {
    cq.produce(Cqe { opcode: CqeOpcode::RESIZE, ..Cqe::send(&sq.handle, 0) });
    (cq.ring, cq.entries) = (ring, entries);
}

type Sq = crate::device::Sq<uverbs_mlx5::send_queue::Rc>;

fn polled(queue: &mut CompletionQueue) -> Result<u64, PollError> {
    queue.poll().map(|done| done.wr_id())
}

/// The device completes a request in its present ring, and the poller finds the completion.
fn complete(cq: &mut Cq, sq: &Sq, index: u32) {
    cq.produce(Cqe::send(&sq.handle, index));
    assert_eq!(polled(&mut cq.queue), Ok(u64::from(index)));
    assert_eq!(polled(&mut cq.queue), Err(PollError::Empty));
}

#[test]
fn a_resize_that_failed_and_is_executed_before_the_next_is_followed() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 3);
    let first = refused(&mut cq, 16);
    complete(&mut cq, &sq, 0);
    move_to(&mut cq, first, 16, &sq);
    let second = prepared(&mut cq, 32);
    complete(&mut cq, &sq, 1);
    assert!(!cq.queue.resize_is_finished());
    move_to(&mut cq, second, 32, &sq);
    complete(&mut cq, &sq, 2);
    assert!(cq.queue.resize_is_finished());
    assert_eq!((cq.queue.entries(), cq.queue.dropped()), (32, 0));
}

/// If several commands failed, the device may have executed any of them.
#[test]
fn each_of_several_resizes_that_failed_is_followed() {
    for executed in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2], &[]] {
        let mut cq = Cq::new(8, 64);
        let sq = busy_send_queue(&cq, 32, 8);
        let rings = [16, 32, 64].map(|entries| (refused(&mut cq, entries), entries));
        let mut index = 0;
        let mut next = |cq: &mut Cq| {
            complete(cq, &sq, index);
            index += 1;
        };
        next(&mut cq);
        for &which in executed {
            let (ring, entries) = rings[which];
            move_to(&mut cq, ring, entries, &sq);
            // The poller cannot know yet to which ring the device has moved.
            assert_eq!(polled(&mut cq.queue), Err(PollError::Empty));
            assert_eq!(cq.queue.poll_up_to(4, |_| ()), Ok(0));
            next(&mut cq);
            next(&mut cq);
            assert_eq!(cq.queue.entries(), entries, "{executed:?}");
        }
        assert_eq!((cq.queue.dropped(), cq.queue.refused()), (0, 0));
        assert!(cq.queue.resize_is_finished());
    }
}

/// A mark alone does not show which of several failed commands the device has executed.
#[test]
fn a_resize_has_begun_once_the_device_is_in_its_ring() {
    for executes_last in [false, true] {
        let mut cq = Cq::new(64, 64);
        let sq = busy_send_queue(&cq, 8, 1);
        let (first, last) = (refused(&mut cq, 16), refused(&mut cq, 32));
        assert_eq!((cq.queue.resize_has_begun(), cq.queue.device_entries()), (false, 64));
        let (ring, entries) = if executes_last { (last, 32) } else { (first, 16) };
        move_to(&mut cq, ring, entries, &sq);
        assert_eq!((cq.queue.resize_has_begun(), cq.queue.device_entries()), (false, 16));
        cq.produce(Cqe::send(&sq.handle, 0));
        let known = (cq.queue.resize_has_begun(), cq.queue.device_entries());
        assert_eq!(known, (executes_last, entries));
        assert_eq!(polled(&mut cq.queue), Ok(0));
        assert_eq!((cq.queue.entries(), cq.queue.device_entries()), (entries, entries));
    }
}

/// After a failed resize command, the poller follows a successful one before any completion
/// arrives, whether or not the device executed the failed one.
#[test]
fn a_resize_that_succeeded_is_followed_at_once() {
    for executed in [false, true] {
        let mut cq = Cq::new(8, 64);
        let sq = busy_send_queue(&cq, 8, 3);
        let first = refused(&mut cq, 16);
        complete(&mut cq, &sq, 0);
        let second = prepared(&mut cq, 32);
        if executed {
            move_to(&mut cq, first, 16, &sq);
        }
        move_to(&mut cq, second, 32, &sq);
        let third = prepared(&mut cq, 64);
        assert_eq!(cq.queue.entries(), 32, "{executed}");
        move_to(&mut cq, third, 64, &sq);
        complete(&mut cq, &sq, 1);
        assert!(cq.queue.resize_is_finished());
        assert_eq!((cq.queue.entries(), cq.queue.dropped(), cq.queue.refused()), (64, 0, 0));
    }
}

/// A program that polls the ring itself leaves the poller's index behind, and the mark with it.
#[test]
fn a_resize_that_succeeded_needs_no_mark() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 16, 9);
    (0..9).for_each(|index| cq.produce(Cqe::send(&sq.handle, index)));
    let ring = prepared(&mut cq, 32);
    move_to(&mut cq, ring, 32, &sq);
    assert_eq!((cq.queue.resize_has_begun(), cq.queue.device_entries()), (true, 32));
}

/// A resize CQE does not say which ring follows. A CQ with only such a CQE counts as drained.
#[test]
fn a_cq_between_two_rings_drains() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 2);
    let first = refused(&mut cq, 16);
    refused(&mut cq, 32);
    complete(&mut cq, &sq, 0);
    move_to(&mut cq, first, 16, &sq);
    sq.handle.close();
    assert_eq!(polled(&mut cq.queue), Err(PollError::Empty));
    assert!(sq.handle.has_drained());
}

/// Completions of before the reset may be in a ring that the poller has not reached yet.
#[test]
fn a_reset_drops_completions_in_the_ring_of_a_failed_resize() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 1);
    let Rq { mut queue, handle, .. } = recv_queue(&cq, 8, 16, false);
    // SAFETY: no memory is named.
    unsafe { queue.build(1, &[]) }.expect("space");
    queue.publish();
    let ring = refused(&mut cq, 16);
    move_to(&mut cq, ring, 16, &sq);
    cq.produce(Cqe::recv(&handle, 0));
    let next = renew(&handle);
    queue.reset(next.clone());
    next.set_state(uverbs_mlx5::queue_state::QpState::Init);
    // SAFETY: no memory is named.
    unsafe { queue.build(2, &[]) }.expect("space");
    queue.publish();
    cq.produce(Cqe::recv(&next, 0));
    assert_eq!(polled(&mut cq.queue), Ok(2), "of after the reset");
    assert_eq!((cq.queue.dropped(), cq.queue.refused()), (1, 0));
}

/// A batch reaches the new ring. It gives the entries back when it ends.
#[test]
fn a_reset_during_a_batch_over_two_rings_drops_completions_in_the_new_ring() {
    for entries in [4, 16] {
        let mut cq = Cq::new(8, 64);
        let other = busy_send_queue(&cq, 8, 2);
        let mut sq = busy_send_queue(&cq, 8, 1);
        let ring = prepared(&mut cq, entries);
        cq.produce(Cqe::send(&other.handle, 0));
        move_to(&mut cq, ring, entries, &sq);
        cq.produce(Cqe::send(&other.handle, 1));
        cq.produce(Cqe::send(&sq.handle, 0));
        let mut batch = cq.queue.batch();
        assert_eq!([0; 2].map(|_| batch.next().map(|done| done.wr_id())), [Ok(0), Ok(1)]);
        sq.handle = renew(&sq.handle);
        sq.queue.reset(sq.handle.clone());
        drop(batch);
        assert!(cq.queue.resize_is_finished());
        sq.handle.set_state(uverbs_mlx5::queue_state::QpState::Rts);
        // SAFETY: there is no data.
        unsafe { sq.queue.post(77, Nop, (), PostFlags::SIGNALED) }.expect("space");
        assert_eq!(polled(&mut cq.queue), Err(PollError::Empty), "of before the reset");
        cq.produce(Cqe::send(&sq.handle, 0));
        assert_eq!(polled(&mut cq.queue), Ok(77));
        assert_eq!((cq.queue.dropped(), cq.queue.refused()), (1, 0));
    }
}

/// The eighth completion of a compressed session has 0x50 bytes, and that number is the last byte
/// of an entry in which there is no CQE.
#[test]
fn bytes_of_a_compressed_session_are_no_mark() {
    let mut cq = Cq::with(32, 64, MiniCqeFormat::HASH);
    let rq = recv_queue(&cq, 64, 16, false);
    refused(&mut cq, 64);
    cq.produce_session(Cqe::recv(&rq.handle, 0), &[MiniCqe::with_hash(1, 0x50); 12]);
    assert!(!cq.queue.resize_has_begun(), "the device is in the old ring");
    cq.produce(Cqe { opcode: CqeOpcode::RESIZE, ..Cqe::recv(&rq.handle, 0) });
    assert!(cq.queue.resize_has_begun(), "behind the session there is a mark");
    assert_eq!(cq.queue.entries(), 32);
}
