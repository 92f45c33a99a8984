//! Which doorbells are rung when, and with which bytes.

use uverbs_mlx5::completion_queue::{Arm, PollError};
use uverbs_mlx5::mmio::SharedBlueFlame;
use uverbs_mlx5::request::{PostFlags, Sge};
use uverbs_mlx5::send_queue::{Inline, Nop, Rc, Send};

use crate::device::{
    Cq, Cqe, Sq, busy_send_queue, recv_queue, send_queue, send_queue_with, shared_recv_queue,
};

const NONE: PostFlags = PostFlags::empty();

fn submit(sq: &mut Sq<Rc>, length: usize) {
    let data: Vec<u8> = (0..length).map(|i| i as u8).collect();
    // SAFETY: inline data is copied, so no memory is shared.
    unsafe { sq.queue.post(0, Send, Inline(&data), NONE) }.expect("space");
}

#[test]
fn single_requests_are_copied_to_alternating_halves_of_the_register() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    let mut at = 0;
    for (turn, length) in [8, 16, 44, 45, 100, 172, 3, 200].into_iter().enumerate() {
        sq.register.write(0, &[0xee; 512]);
        let start = sq.queue.head() as usize;
        submit(&mut sq, length);
        let blocks = sq.queue.head() as usize - start;
        let (half, other) = (at, at ^ 256);
        assert_eq!(sq.register.read(half, blocks * 64), sq.ring.read(start * 64, blocks * 64));
        assert!(sq.register.read(other, 256).iter().all(|byte| *byte == 0xee), "turn {turn}");
        assert!(sq.register.read(half + blocks * 64, 256 - blocks * 64).iter().all(|b| *b == 0xee));
        assert_eq!(sq.record.word(4), sq.queue.head());
        at ^= 256;
    }
}

#[test]
fn a_blueflame_copy_wraps_at_the_end_of_the_ring() {
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 4);
    for _ in 0..3 {
        submit(&mut sq, 8);
    }
    cq.produce(Cqe::send(&sq.handle, 2));
    cq.queue.poll().expect("a completion");
    sq.register.write(0, &[0; 512]);
    submit(&mut sq, 100);
    let wrapped = [sq.ring.read(192, 64), sq.ring.read(0, 64)].concat();
    assert_eq!(sq.register.read(256, 128), wrapped);
}

#[test]
fn several_requests_share_one_doorbell() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    let mut batch = sq.queue.batch().expect("the state allows it");
    for i in 0..5 {
        // SAFETY: no device reads the data.
        unsafe { batch.build(i, Send, Sge::new(1, 2, 3), NONE) }.expect("space");
    }
    batch.publish();
    assert_eq!(sq.record.word(4), 5);
    assert_eq!(sq.register.read(0, 8), sq.ring.read(4 * 64, 8), "the last control segment");
    assert!(sq.register.read(8, 504).iter().all(|byte| *byte == 0));
}

#[test]
fn unpublished_requests_are_published_with_the_next_post() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    let mut batch = sq.queue.batch().expect("the state allows it");
    // SAFETY: there is no data.
    unsafe { batch.build(1, Nop, (), NONE) }.expect("space");
    drop(batch);
    assert_eq!((sq.queue.unpublished_blocks(), sq.record.word(4)), (1, 0));
    submit(&mut sq, 8);
    assert_eq!((sq.queue.unpublished_blocks(), sq.record.word(4)), (0, 2));
    assert_eq!(sq.register.read(0, 8), sq.ring.read(64, 8));
    assert!(sq.register.read(8, 248).iter().all(|byte| *byte == 0), "a doorbell, no copy");
    submit(&mut sq, 8);
    assert_eq!(sq.register.read(256, 64), sq.ring.read(128, 64), "a copy again");
}

#[test]
fn a_register_without_blueflame_gets_doorbells_only() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 64, 0, false);
    for index in 0..3 {
        submit(&mut sq, 16);
        assert_eq!(sq.register.read(0, 8), sq.ring.read(index * 64, 8));
        assert!(sq.register.read(8, 504).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn publishing_nothing_rings_no_doorbell() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    sq.queue.publish();
    sq.queue.batch().expect("the state allows it").publish();
    assert_eq!(sq.record.word(4), 0);
    assert!(sq.register.read(0, 512).iter().all(|byte| *byte == 0));
}

#[test]
fn receive_doorbell_records_have_16_bits() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 4, 16, false);
    for i in 0..70_000u32 {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(1, &[Sge::new(1, 2, 3)]) }.expect("space");
        rq.queue.publish();
        assert_eq!((rq.record.word(0), rq.record.word(4)), ((i + 1) & 0xffff, 0));
        cq.produce(Cqe::recv(&rq.handle, i));
        cq.queue.poll().expect("a completion");
    }
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.build(1, &[]) }.expect("space");
    assert_eq!(srq.record.word(0), 0);
    srq.queue.publish();
    assert_eq!(srq.record.word(0), 1);
}

#[test]
fn arming_writes_the_record_and_the_register() {
    let mut cq = Cq::new(16, 64);
    let sq = busy_send_queue(&cq, 8, 3);
    cq.queue.arm(Arm::Any);
    assert_eq!((cq.record.word(4), cq.arm.word(0), cq.arm.word(4)), (0, 0, 0x77));
    for i in 0..3 {
        cq.produce(Cqe::send(&sq.handle, i));
        cq.queue.poll().expect("a completion");
    }
    cq.queue.acknowledge_event();
    cq.queue.arm(Arm::Solicited);
    assert_eq!(cq.record.word(0), 3, "the consumer index is published");
    assert_eq!((cq.record.word(4), cq.arm.word(0)), (0x1100_0003, 0x1100_0003));
    (0..3).for_each(|_| cq.queue.acknowledge_event());
    cq.queue.arm(Arm::Any);
    assert_eq!(cq.record.word(4), 3, "the sequence number has two bits");
}

#[test]
fn writes_of_two_threads_to_a_shared_register_do_not_mix() {
    let cq = Cq::new(16, 64);
    let memory = crate::device::Memory::new(512);
    // SAFETY: leaked, and used only under the lock.
    let register = unsafe { uverbs_mlx5::mmio::BlueFlame::new(memory.ptr(), 256) };
    let shared = SharedBlueFlame::new(register);
    let queues: Vec<_> =
        (0..2).map(|_| crate::device::send_queue_on(&cq, 1024, shared.clone())).collect();
    std::thread::scope(|scope| {
        for (mut queue, ring) in queues {
            scope.spawn(move || {
                for i in 0..1000u32 {
                    // SAFETY: inline data is copied, so no memory is shared.
                    unsafe { queue.post(0, Send, Inline(&i.to_ne_bytes()), NONE) }.expect("space");
                }
                assert_eq!(ring.read(999 * 64 + 20, 4), 999u32.to_ne_bytes());
            });
        }
    });
    // Whichever thread wrote last, each half holds one whole request.
    for half in [0, 256] {
        let data = memory.read(half, 64);
        let index = u32::from(u16::from_be_bytes([data[1], data[2]]));
        assert_eq!(data[20..24], index.to_ne_bytes());
    }
}

/// The WQE counter wraps to 0 at the end of a lap, and the queue's own counter does not wrap.
/// Checked for batches and posts of requests of one and two blocks. Some have the wr_id that marks
/// blocks in which no request starts.
#[test]
fn the_16_bit_counter_may_wrap_at_the_end_of_a_lap() {
    const RING: u32 = 8;
    const END: u32 = 0x6_0000;
    for blocks in [1, 2] {
        for in_batches in [true, false] {
            let mut cq = Cq::new(64, 64);
            let mut sq = send_queue::<Rc>(&cq, RING);
            // SAFETY: nothing was posted.
            unsafe { sq.queue.continue_at(END - 2 * RING, false) };
            for counter in (END - 2 * RING..END + RING).step_by(blocks as usize) {
                let data = [counter as u8; 60];
                let data = Inline(if blocks == 1 { &data[..8] } else { &data });
                let id = 0xffff_ffff_9d3a_c571_u64.wrapping_add(u64::from(counter % 2));
                // SAFETY: inline data is copied, so no memory is shared.
                let posted = unsafe {
                    if in_batches {
                        let mut batch = sq.queue.batch().expect("ready");
                        let posted = batch.build(id, Send, data, PostFlags::SIGNALED);
                        assert_eq!(batch.head(), counter + blocks);
                        batch.publish();
                        posted
                    } else {
                        sq.queue.post(id, Send, data, PostFlags::SIGNALED)
                    }
                };
                assert_eq!((posted, sq.queue.head()), (Ok(()), counter + blocks));
                let first = sq.ring.read((counter % RING) as usize * 64, 4);
                assert_eq!(first[1..3], (counter as u16).to_be_bytes());
                assert_eq!(sq.record.word(4), (counter + blocks) & 0xffff);
                if blocks == 2 {
                    cq.produce(Cqe::send(&sq.handle, counter + 1));
                    let lie = cq.queue.poll().map(|done| done.wr_id());
                    assert_eq!(lie, Err(PollError::NotOutstanding), "{counter:#x}");
                }
                cq.produce(Cqe::send(&sq.handle, counter));
                assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(id), "{counter:#x}");
            }
        }
    }
}
