//! Wrong handles and ids: safe code may pass any, and no queue may access memory outside its ring.

use std::panic::{AssertUnwindSafe, catch_unwind};

use uverbs_mlx5::completion_queue::PollError;
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::CqeFormat;
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{Inline, Nop, Rc, RequestId, Send, SendQueue};
use uverbs_mlx5::user_index::{QueueHandle, RegisterError, UserIndexTable};

use crate::device::{
    Cq, Cqe, Memory, recv_queue, renew, send_queue, send_queue_for, send_queue_of,
    shared_recv_queue, try_send_queue,
};

const NONE: PostFlags = PostFlags::empty();

fn try_recv_queue(handle: &QueueHandle) -> Result<RecvQueue, QueueError> {
    let record = Memory::new(8);
    RecvQueue::new(RecvQueueConfig {
        memory: Memory::new(4096).dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::new(record.ptr().cast()) },
        handle: handle.clone(),
        stride: 32,
        head_octowords: 0,
        scatter_to_cqe: true,
    })
}

/// The poller finds a request's ring by its handle. With two rings for one handle it might read the
/// wrong ring.
#[test]
fn a_handle_has_one_queue_of_each_kind() {
    let cq = Cq::new(8, 64);
    let (sq, rq) = (send_queue::<Rc>(&cq, 8), recv_queue(&cq, 8, 32, true));
    let again = |handle: &QueueHandle| try_send_queue::<Rc>(handle.clone(), 8).map(drop);
    assert_eq!(again(&sq.handle), Err(QueueError::InUse));
    assert_eq!(try_recv_queue(&rq.handle).map(drop), Err(QueueError::InUse));
    let srq = shared_recv_queue(&cq, 8, 32, true);
    assert_eq!(try_recv_queue(&srq.handle).map(drop), Err(QueueError::InUse));
    drop((sq.queue, rq.queue));
    assert_eq!(again(&sq.handle), Err(QueueError::InUse));
    assert_eq!(try_recv_queue(&rq.handle).map(drop), Err(QueueError::InUse));
}

/// The requests of the queue that is gone are still outstanding. In the ring of another one their
/// entries were never written, so they could name any memory.
#[test]
fn a_request_of_a_dropped_queue_writes_nothing_by_the_ring_of_another() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let sge = |memory: Memory| Sge::new(memory.ptr().as_ptr().expose_provenance() as u64, 64, 7);
    let (lent, other) = (Memory::new(64), Memory::new(64));
    // SAFETY: leaked memory.
    unsafe { rq.queue.build(1, &[sge(lent)]) }.expect("space");
    rq.queue.publish();
    drop(rq.queue);
    // What the memory of the next ring happens to hold.
    let ring = Memory::new(4 * 16);
    let (address, record) = (sge(other).address(), Memory::new(8));
    ring.write(0, &[&64u32.to_be_bytes()[..], &[0; 4], &address.to_be_bytes()].concat());
    let next = RecvQueue::new(RecvQueueConfig {
        memory: ring.dma(),
        // SAFETY: leaked.
        doorbell: unsafe { DoorbellWord::new(record.ptr().cast()) },
        handle: rq.handle.clone(),
        stride: 16,
        head_octowords: 0,
        scatter_to_cqe: true,
    });
    cq.produce(Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &[5; 20]));
    drop(cq.queue.poll());
    assert_eq!(other.read(0, 20), [0; 20]);
    assert_eq!(next.map(drop), Err(QueueError::InUse));
}

/// The pollers of several CQs would change the same words, and none would know when the index is
/// free again.
#[test]
fn a_queue_that_was_registered_without_a_completion_queue_completes_nothing() {
    let mut cq = Cq::new(8, 64);
    let shape = Shape { send_wqebbs: 8, recv_wqes: 4, shared_receive: false };
    let handle = cq.table.register(shape, &[], None, 0).expect("an index");
    handle.set_state(QpState::Rts);
    let mut sq = send_queue_of::<Rc>(handle, [8, 8], 256, false);
    sq.post_nops(1);
    for cqe in [Cqe::send(&sq.handle, 0), Cqe::recv(&sq.handle, 0)] {
        cq.produce(cqe);
        let refused = cq.queue.poll().map(|done| done.wr_id());
        assert_eq!(refused, Err(PollError::NotOutstanding));
    }
    let mut outstanding = 0;
    sq.queue.for_each_outstanding(|_| outstanding += 1);
    assert_eq!(outstanding, 1);
}

/// A drain that has not happened would free the index of a queue whose completions are still there:
/// they would complete requests of the next queue.
#[test]
fn a_lap_ends_only_at_the_end_of_the_ring() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    sq.post_nops(2);
    cq.produce(Cqe::send(&sq.handle, 0));
    cq.produce(Cqe::send(&sq.handle, 1));
    sq.handle.close();
    cq.queue.begin_lap();
    cq.queue.begin_lap();
    assert!(!sq.handle.has_drained());
    assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Err(PollError::Empty));
    assert!(sq.handle.has_drained());
}

#[test]
fn the_renewed_handle_of_a_reset_queue_is_in_use() {
    let cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let new = renew(&sq.handle);
    sq.queue.reset(new.clone());
    let made = try_send_queue::<Rc>(new, 8).map(drop);
    assert_eq!(made, Err(QueueError::InUse));
}

/// The first queues of two tables have the same index, so an index alone does not identify a queue.
#[test]
fn a_reset_accepts_only_a_handle_of_the_same_queue() {
    let cq = Cq::new(8, 64);
    let (mut sq, mut rq) = (send_queue::<Rc>(&cq, 8), recv_queue(&cq, 8, 32, false));
    let other = UserIndexTable::new();
    let shape = Shape { send_wqebbs: 1, recv_wqes: 1, shared_receive: false };
    let handles = [(); 2].map(|()| other.register(shape, &[], None, 0).expect("an index"));
    let indices = handles.each_ref().map(QueueHandle::user_index);
    assert_eq!(indices, [sq.handle.user_index(), rq.handle.user_index()]);
    let [first, second] = handles;
    assert!(catch_unwind(AssertUnwindSafe(|| sq.queue.reset(first))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| rq.queue.reset(second))).is_err());
}

/// Both handles that such a second reset makes would give the index back, and then two queues would
/// have it: completions of one would complete requests of the other.
#[test]
fn a_handle_is_renewed_once() {
    let mut cq = Cq::new(8, 64);
    let sq = send_queue::<Rc>(&cq, 8);
    let next = renew(&sq.handle);
    assert!(catch_unwind(AssertUnwindSafe(|| renew(&sq.handle))).is_err());
    drop((next, sq));
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    let shape = Shape { send_wqebbs: 8, recv_wqes: 0, shared_receive: false };
    let register = || cq.table.register(shape, &[], None, 0).expect("an index");
    let handles = [(); 3].map(|()| register());
    let [first, second, third] = handles.each_ref().map(QueueHandle::user_index);
    assert!(first != second && second != third && first != third);
}

/// Otherwise the other table could free the SRQ's shared block while this table's poller reads it.
#[test]
fn a_shared_receive_queue_of_another_table_is_refused() {
    let (cq, other) = (Cq::new(8, 64), Cq::new(8, 64));
    let srq = shared_recv_queue(&other, 8, 32, false);
    let shape = Shape { send_wqebbs: 8, recv_wqes: 0, shared_receive: false };
    let made = cq.table.register(shape, &cq.monitors(), Some(&srq.handle), 0).map(drop);
    assert_eq!(made, Err(RegisterError::OtherTable));
}

#[test]
fn a_queue_of_more_entries_than_the_device_counts_is_refused() {
    let table = UserIndexTable::new();
    let register = |send_wqebbs, recv_wqes| {
        let shape = Shape { send_wqebbs, recv_wqes, shared_receive: false };
        table.register(shape, &[], None, 0).map(drop)
    };
    for most in [1 << 31, u32::MAX, (1 << 16) + 1] {
        assert_eq!(register(most, 0), Err(RegisterError::TooLarge));
        assert_eq!(register(0, most), Err(RegisterError::TooLarge));
    }
    assert_eq!(register(1 << 16, 1 << 16), Ok(()));
}

#[derive(Clone, Copy)]
struct Panics;

impl RequestId for Panics {
    fn take(self) -> u64 {
        panic!("no id")
    }
}

/// Space was found for its two blocks, of which none is used.
#[test]
fn a_long_post_whose_id_panics_leaves_the_requests_bounded() {
    let cq = Cq::new(8, 64);
    let mut sq = send_queue_for::<Rc>(&cq, 8, 1);
    let long = Inline(&[0; 80]);
    // SAFETY: inline data is copied, so no memory is shared.
    let post = || unsafe { sq.queue.post_as(Panics, Send, long, NONE) };
    assert!(catch_unwind(AssertUnwindSafe(post)).is_err());
    // SAFETY: there is no data.
    let posted = [1, 2].map(|id| unsafe { sq.queue.post(id, Nop, (), NONE) });
    assert_eq!(posted, [Ok(()), Err(PostError::Full)]);
}

/// Otherwise the next doorbell would publish a block without a request.
#[test]
fn a_post_whose_id_panics_posts_nothing() {
    let cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    sq.post_nops(1);
    let post = |queue: &mut SendQueue<Rc>| {
        // SAFETY: there is no data.
        catch_unwind(AssertUnwindSafe(|| unsafe { queue.post_as(Panics, Nop, (), NONE) })).is_err()
    };
    assert!(post(&mut sq.queue));
    assert_eq!((sq.queue.head(), sq.record.word(0)), (1, 0));
    sq.post_nops(1);
    assert_eq!((sq.queue.head(), sq.record.word(4)), (2, 2));
    assert_eq!(sq.ring.word(64), 1 << 8, "the index of the second request, in the second block");
    assert_eq!(sq.ring.word(128), 0, "and nothing behind it");
    let mut ids = Vec::new();
    sq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, [0, 1]);
}
