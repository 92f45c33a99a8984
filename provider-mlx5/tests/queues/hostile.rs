//! A device that lies: about what it completes, and in completions that are already lent.

use std::mem::offset_of;

use uverbs_mlx5::completion_queue::{Completion, CompletionQueue, Status};
use uverbs_mlx5::format::{self, CqeFormat, CqeOpcode, OpOwn};
use uverbs_mlx5::request::{PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{Inline, Nop, Rc, Read, Write};

use crate::device::{Cq, Cqe, Memory, recv_queue, send_queue_with};

const DATA: [u8; 20] = [5; 20];

/// Memory that a request names, and the entry that names it.
fn target() -> (Memory, Sge) {
    let memory = Memory::new(64);
    let address = memory.ptr().as_ptr().expose_provenance() as u64;
    (memory, Sge::new(address, 64, 7))
}

fn status(queue: &mut CompletionQueue) -> Status {
    queue.poll().expect("a completion").status()
}

#[test]
fn a_lent_completion_cannot_be_made_to_lead_outside_the_ring() {
    let mut cq = Cq::new(8, 64);
    let rq = recv_queue(&cq, 4, 16, false);
    cq.produce(Cqe::recv(&rq.handle, 0));
    let ring = cq.ring;
    let lent = cq.queue.poll().expect("one");
    // The 64 bytes before the first entry are not the ring's.
    let lie = OpOwn::new(CqeOpcode::RESPONDER_SEND, CqeFormat::INLINE_64, false, false);
    ring.write(offset_of!(format::Cqe, op_own), &[lie.0]);
    assert_eq!(Completion::copy_inline(&lent, &mut [0; 64]), None);
    assert_eq!(lent.format(), CqeFormat::NO_INLINE);
}

#[test]
fn a_receive_completed_twice_is_written_once() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let (memory, sge) = target();
    // SAFETY: leaked memory.
    unsafe { rq.queue.post(1, &[sge]) }.expect("room");
    rq.queue.publish();
    let cqe = Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &DATA);
    cq.produce(cqe.clone());
    assert_eq!(status(&mut cq.queue), Status::Success);
    assert_eq!(memory.read(0, 20), DATA);
    // The program has its memory back; the entry in the ring still names it.
    memory.write(0, &[0; 20]);
    cq.produce(cqe);
    assert_eq!(status(&mut cq.queue), Status::LocalLength);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

#[test]
fn a_receive_of_the_last_lap_is_not_written() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let (memory, sge) = target();
    for index in 0..4 {
        // SAFETY: leaked memory.
        unsafe { rq.queue.post(1, &[sge]) }.expect("room");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, index));
        assert_eq!(status(&mut cq.queue), Status::Success);
    }
    // Next in turn, and never posted: the ring holds what was posted a lap ago.
    cq.produce(Cqe::recv(&rq.handle, 4).inline(CqeFormat::INLINE_32, &DATA));
    assert_eq!(status(&mut cq.queue), Status::LocalLength);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

#[test]
fn a_read_completed_twice_is_written_once() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 8, 256, true);
    let (memory, sge) = target();
    let read = Read(Remote::new(0, 0));
    // SAFETY: leaked memory.
    unsafe { sq.queue.submit(1, read, sge, PostFlags::SIGNALED) }.expect("room");
    let cqe = Cqe { wqe_opcode: 0x10, ..Cqe::send(&sq.handle, 0) };
    let cqe = cqe.inline(CqeFormat::INLINE_32, &DATA);
    cq.produce(cqe.clone());
    assert_eq!(status(&mut cq.queue), Status::Success);
    assert_eq!(memory.read(0, 20), DATA);
    memory.write(0, &[0; 20]);
    cq.produce(cqe);
    assert_eq!(status(&mut cq.queue), Status::LocalLength);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

#[test]
fn the_middle_of_a_request_is_no_request() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 8, 256, true);
    let (memory, sge) = target();
    // Inline data that looks like an RDMA READ of one piece from its second block on.
    let mut data = [0; 128];
    let forged = &mut data[64 - 36..];
    forged[..8].copy_from_slice(&[0, 0, 0, 0x10, 0, 0, 0, 3]);
    forged[32..36].copy_from_slice(&64u32.to_be_bytes());
    forged[40..48].copy_from_slice(&sge.address().to_be_bytes());
    let write = Write(Remote::new(0, 0));
    // SAFETY: inline data.
    unsafe { sq.queue.submit(1, write, Inline(&data), PostFlags::SIGNALED) }.expect("room");
    assert_eq!(sq.ring.read(64, 8), [0, 0, 0, 0x10, 0, 0, 0, 3]);
    cq.produce(Cqe::send(&sq.handle, 1).inline(CqeFormat::INLINE_32, &DATA));
    assert_eq!(status(&mut cq.queue), Status::LocalLength);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

/// What a batch has built the device cannot have completed before it is told.
#[test]
fn a_completion_of_what_was_never_rung_makes_no_room() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 4, 256, false);
    let mut batch = sq.queue.batch().expect("ready");
    for i in 0..4 {
        // SAFETY: there is no data.
        unsafe { batch.post(i, Nop, (), PostFlags::SIGNALED) }.expect("room");
    }
    cq.produce(Cqe::send(&sq.handle, 2));
    assert_eq!(status(&mut cq.queue), Status::Success);
    // SAFETY: there is no data.
    let fifth = unsafe { batch.post(4, Nop, (), PostFlags::SIGNALED) };
    assert_eq!(fifth, Err(PostError::Full));
    std::mem::forget(batch);
    assert_eq!(sq.queue.free_blocks(), 4);
}
