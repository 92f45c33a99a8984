//! A hostile device: it completes requests that are not outstanding, and changes lent CQEs.

use std::mem::offset_of;

use uverbs_mlx5::completion_queue::{
    Completion, CompletionOpcode, CompletionQueue, ENCODED, PollError, Status, WorkCompletion,
};
use uverbs_mlx5::format::{self, CqeFormat, CqeOpcode, OpOwn, Opcode, Syndrome};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::{PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, CompareSwap, FetchAdd, Inline, MaskedCompareSwap, MaskedFetchAdd, Nop, Rc, Read,
    Send, Write,
};

use crate::device::{
    Cq, Cqe, Memory, Sq, busy_send_queue, recv_queue, renew, send_queue_of, send_queue_with,
    shared_recv_queue,
};

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

/// Polls a completion of a request that is not outstanding.
fn assert_refused(queue: &mut CompletionQueue) {
    assert_eq!(queue.poll().map(|done| done.wr_id()), Err(PollError::NotOutstanding));
}

#[test]
fn changing_a_lent_completion_does_not_lead_outside_the_ring() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 4, 16, false);
    // SAFETY: no data.
    unsafe { rq.queue.build(1, &[]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0));
    let ring = cq.ring;
    let lent = cq.queue.poll().expect("one");
    // Inline data of 64 bytes would be before the first entry, outside the ring.
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
    unsafe { rq.queue.build(1, &[sge]) }.expect("space");
    rq.queue.publish();
    let cqe = Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &DATA);
    cq.produce(cqe.clone());
    assert_eq!(status(&mut cq.queue), Status::Success);
    assert_eq!(memory.read(0, 20), DATA);
    // The program has its memory back; the entry in the ring still names it.
    memory.write(0, &[0; 20]);
    cq.produce(cqe);
    assert_refused(&mut cq.queue);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

#[test]
fn a_completion_of_a_receive_not_posted_in_this_lap_writes_nothing() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let (memory, sge) = target();
    for index in 0..4 {
        // SAFETY: leaked memory.
        unsafe { rq.queue.build(1, &[sge]) }.expect("space");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, index));
        assert_eq!(status(&mut cq.queue), Status::Success);
    }
    // The next receive was not posted: the entry still holds the receive of a lap ago.
    cq.produce(Cqe::recv(&rq.handle, 4).inline(CqeFormat::INLINE_32, &DATA));
    assert_refused(&mut cq.queue);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

#[test]
fn a_read_completed_twice_is_written_once() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 8, 256, true);
    let (memory, sge) = target();
    let read = Read(Remote::new(0, 0));
    // SAFETY: leaked memory.
    unsafe { sq.queue.post(1, read, sge, PostFlags::SIGNALED) }.expect("space");
    let cqe = Cqe { wqe_opcode: Opcode::RDMA_READ.0, ..Cqe::send(&sq.handle, 0) };
    let cqe = cqe.inline(CqeFormat::INLINE_32, &DATA);
    cq.produce(cqe.clone());
    assert_eq!(status(&mut cq.queue), Status::Success);
    assert_eq!(memory.read(0, 20), DATA);
    memory.write(0, &[0; 20]);
    cq.produce(cqe);
    assert_refused(&mut cq.queue);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

/// One atomic of each kind: their data segments follow different numbers of other segments.
#[test]
fn an_atomic_completed_twice_is_written_once() {
    let remote = Remote::new(8, 9);
    let add = MaskedFetchAdd { remote, add: 1, field_boundary: 0 };
    let swap = MaskedCompareSwap { remote, compare: 1, compare_mask: 1, swap: 2, swap_mask: 3 };
    for kind in 0..4 {
        let mut cq = Cq::new(8, 64);
        let mut sq = send_queue_with::<Rc>(&cq, 8, 256, true);
        let (memory, sge) = target();
        let result = AtomicResult { address: sge.address(), lkey: 7 };
        let flags = PostFlags::SIGNALED;
        // SAFETY: leaked memory.
        unsafe {
            match kind {
                0 => sq.queue.post(1, FetchAdd { remote, add: 1 }, result, flags),
                1 => sq.queue.post(1, CompareSwap { remote, compare: 1, swap: 2 }, result, flags),
                2 => sq.queue.post(1, add, result, flags),
                _ => sq.queue.post(1, swap, result, flags),
            }
        }
        .expect("space");
        let opcodes = [
            Opcode::ATOMIC_FETCH_ADD,
            Opcode::ATOMIC_COMPARE_SWAP,
            Opcode::ATOMIC_MASKED_FETCH_ADD,
            Opcode::ATOMIC_MASKED_COMPARE_SWAP,
        ];
        let cqe = Cqe { wqe_opcode: opcodes[kind].0, ..Cqe::send(&sq.handle, 0) };
        let cqe = cqe.inline(CqeFormat::INLINE_32, &[7; 8]);
        cq.produce(cqe.clone());
        assert_eq!(status(&mut cq.queue), Status::Success);
        assert_eq!(memory.read(0, 16), [[7; 8], [0; 8]].concat(), "kind {kind}");
        // The program has its memory back; the request in the ring still names it.
        memory.write(0, &[0; 8]);
        cq.produce(cqe);
        assert_refused(&mut cq.queue);
        assert_eq!(memory.read(0, 16), [0; 16], "kind {kind}");
    }
}

#[test]
fn a_completion_of_the_middle_of_a_request_is_refused() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 8, 256, true);
    let (memory, sge) = target();
    // Inline data that looks like an RDMA READ of one SGE from its second block on.
    let mut data = [0; 128];
    let forged = &mut data[64 - 36..];
    forged[..8].copy_from_slice(&[0, 0, 0, 0x10, 0, 0, 0, 3]);
    forged[32..36].copy_from_slice(&64u32.to_be_bytes());
    forged[40..48].copy_from_slice(&sge.address().to_be_bytes());
    let write = Write(Remote::new(0, 0));
    // SAFETY: inline data.
    unsafe { sq.queue.post(1, write, Inline(&data), PostFlags::SIGNALED) }.expect("space");
    assert_eq!(sq.ring.read(64, 8), [0, 0, 0, 0x10, 0, 0, 0, 3]);
    cq.produce(Cqe::send(&sq.handle, 1).inline(CqeFormat::INLINE_32, &DATA));
    assert_refused(&mut cq.queue);
    assert_eq!(memory.read(0, 20), [0; 20]);
}

/// The device cannot complete a built request before the doorbell is rung.
#[test]
fn a_completion_of_an_unpublished_request_frees_no_space() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 4, 256, false);
    let mut batch = sq.queue.batch().expect("ready");
    for i in 0..4 {
        // SAFETY: there is no data.
        unsafe { batch.build(i, Nop, (), PostFlags::SIGNALED) }.expect("space");
    }
    cq.produce(Cqe::send(&sq.handle, 2));
    assert_refused(&mut cq.queue);
    // SAFETY: there is no data.
    let fifth = unsafe { batch.build(4, Nop, (), PostFlags::SIGNALED) };
    assert_eq!(fifth, Err(PostError::Full));
    std::mem::forget(batch);
    assert_eq!(sq.queue.free_blocks(), 4);
}

type Poll = fn(&mut CompletionQueue) -> Result<u64, PollError>;

/// Fails like [`CompletionQueue::poll`] if there was no completion.
fn one(count: Result<usize, PollError>) -> Result<(), PollError> {
    if count? == 1 { Ok(()) } else { Err(PollError::Empty) }
}

/// Each way to poll one completion.
const WAYS: [Poll; 4] = [
    |queue| queue.poll().map(|done| done.wr_id()),
    |queue| queue.batch().next().map(|done| done.wr_id()),
    |queue| {
        let mut id = 0;
        one(queue.poll_up_to(1, |done| id = done.wr_id())).map(|()| id)
    },
    |queue| {
        let mut out = [WorkCompletion::default()];
        one(queue.poll_into(&mut out)).map(|()| out[0].wr_id)
    },
];

/// A successful CQE without and with inline data, and an error CQE.
fn forms(cqe: &Cqe) -> [Cqe; 3] {
    let inline = cqe.clone().inline(CqeFormat::INLINE_32, &DATA);
    [cqe.clone(), inline, cqe.clone().failed(0, Syndrome::REMOTE_ABORTED.0)]
}

/// In every form of CQE and every way of polling: completions of old, future and unpublished
/// requests, and repeated ones.
#[test]
fn a_send_that_is_not_outstanding_completes_nothing() {
    for poll in WAYS {
        for form in 0..3 {
            let mut cq = Cq::new(16, 64);
            // Also in the last lap before the 16-bit counter wraps.
            for lap in [0u32, 0xfff8, 0xffff] {
                let mut sq = busy_send_queue(&cq, 8, 0);
                let mut done = 0;
                while done < lap {
                    let now = (lap - done).min(8);
                    sq.post_nops(now);
                    done += now;
                    cq.produce(Cqe::send(&sq.handle, done - 1));
                    assert_eq!(poll(&mut cq.queue), Ok(u64::from(done) - 1));
                }
                sq.post_nops(5);
                cq.produce(Cqe::send(&sq.handle, lap + 2));
                assert_eq!(poll(&mut cq.queue), Ok(u64::from(lap) + 2));
                let (refused, space) = (cq.queue.refused(), sq.queue.free_blocks());
                let mut batch = sq.queue.batch().expect("ready");
                // SAFETY: there is no data.
                unsafe { batch.build(9, Nop, (), PostFlags::SIGNALED) }.expect("space");
                for lie in [0, 1, 2, 5, 6, 8, 10, 100, 0x7fff, 0x8002, 0xffff, 0xfffe] {
                    let cqe = forms(&Cqe::send(&sq.handle, lap.wrapping_add(lie)))[form].clone();
                    cq.produce(cqe);
                    let polled = poll(&mut cq.queue);
                    assert_eq!(polled, Err(PollError::NotOutstanding), "{lap:#x} + {lie:#x}");
                }
                batch.abort();
                assert_eq!(cq.queue.refused() - refused, 12);
                assert_eq!(sq.queue.free_blocks(), space);
                assert_eq!(sq.handle.state().state(), QpState::Rts);
                for real in [3, 4] {
                    cq.produce(Cqe::send(&sq.handle, lap + real));
                    assert_eq!(poll(&mut cq.queue), Ok(u64::from(lap + real)));
                }
            }
        }
    }
}

#[test]
fn a_receive_that_is_not_outstanding_completes_nothing() {
    for poll in WAYS {
        for form in 0..3 {
            let mut cq = Cq::new(16, 64);
            let mut rq = recv_queue(&cq, 4, 16, true);
            let (memory, sge) = target();
            for id in 0..3 {
                // SAFETY: leaked memory.
                unsafe { rq.queue.build(id, &[sge]) }.expect("space");
            }
            cq.produce(forms(&Cqe::recv(&rq.handle, 0))[form].clone());
            assert_eq!(poll(&mut cq.queue), Err(PollError::NotOutstanding), "never published");
            rq.queue.publish();
            cq.produce(Cqe::recv(&rq.handle, 0));
            assert_eq!(poll(&mut cq.queue), Ok(0));
            for lie in [0, 3, 4, 5, 7, 8, 0x8001, 0xffff] {
                cq.produce(forms(&Cqe::recv(&rq.handle, lie))[form].clone());
                assert_eq!(poll(&mut cq.queue), Err(PollError::NotOutstanding), "{lie:#x}");
            }
            assert_eq!(rq.queue.free_entries(), 2);
            assert_eq!(memory.read(0, 64), [0; 64]);
            assert_eq!(rq.handle.state().state(), QpState::Init);
            cq.produce(Cqe::recv(&rq.handle, 1));
            assert_eq!(poll(&mut cq.queue), Ok(1));
        }
    }
}

/// Two CQs have a completion of the same SRQ entry, or one CQ has it twice.
#[test]
fn a_shared_receive_completes_once_whichever_cq_is_polled() {
    for form in 0..3 {
        let mut cqs = [Cq::new(16, 64), Cq::new(16, 64)];
        let mut srq = shared_recv_queue(&cqs[0], 4, 64, true);
        let (memory, sge) = target();
        // SAFETY: leaked memory.
        unsafe { srq.queue.post(7, &[sge]) }.expect("space");
        let shape = Shape { send_wqebbs: 1, recv_wqes: 0, shared_receive: false };
        // Both CQs have the same table, as CQs of one context do.
        let table = cqs[0].table.clone();
        let other = cqs[1].adopt(&table);
        let qp = cqs[0].table.register(shape, &other, Some(&srq.handle), 3).expect("an index");
        cqs[0].produce(Cqe::recv(&srq.qp, 0));
        assert_eq!(cqs[0].queue.poll().map(|done| done.wr_id()), Ok(7));
        cqs[1].produce(forms(&Cqe::recv(&qp, 0))[form].clone());
        assert_refused(&mut cqs[1].queue);
        cqs[0].produce(forms(&Cqe::recv(&srq.qp, 0))[form].clone());
        assert_refused(&mut cqs[0].queue);
        assert_eq!(memory.read(0, 64), [0; 64]);
        assert_eq!((cqs[0].queue.refused(), cqs[1].queue.refused()), (1, 1));
    }
}

/// The device writes a queue's completion into a CQ that is not the queue's.
#[test]
fn a_completion_in_a_foreign_cq_completes_nothing() {
    let mut cqs = [Cq::new(16, 64), Cq::new(16, 64)];
    let table = cqs[0].table.clone();
    cqs[1].adopt(&table);
    let sq = busy_send_queue(&cqs[0], 8, 2);
    for cqe in forms(&Cqe::send(&sq.handle, 0)) {
        cqs[1].produce(cqe);
        assert_refused(&mut cqs[1].queue);
    }
    cqs[0].produce(Cqe::send(&sq.handle, 0));
    assert_eq!(cqs[0].queue.poll().map(|done| done.wr_id()), Ok(0));
}

const SHAPE: Shape = Shape { send_wqebbs: 8, recv_wqes: 8, shared_receive: false };

/// The CQ has polled an earlier queue with the index and shared block of a queue that now completes
/// to another CQ.
#[test]
fn a_completion_in_the_cq_of_an_earlier_queue_of_the_index_completes_nothing() {
    let mut cqs = [Cq::new(16, 64), Cq::new(16, 64)];
    let table = cqs[0].table.clone();
    cqs[1].adopt(&table);
    let mut life = |[poller, foreign]: [usize; 2]| {
        let handle = table.register(SHAPE, &cqs[poller].monitors(), None, 3).expect("an index");
        handle.set_state(QpState::Rts);
        let index = handle.user_index();
        let mut sq = send_queue_of::<Rc>(handle, [8, 8], 256, false);
        sq.post_nops(2);
        cqs[foreign].produce(Cqe::send(&sq.handle, 0));
        assert_refused(&mut cqs[foreign].queue);
        cqs[poller].produce(Cqe::send(&sq.handle, 0));
        assert_eq!(cqs[poller].queue.poll().map(|done| done.wr_id()), Ok(0));
        drop(sq);
        assert!(cqs[poller].queue.poll().is_err(), "drained");
        index
    };
    let index = life([0, 1]);
    for cqs in [[1, 0], [0, 1], [0, 1], [1, 0]] {
        assert_eq!(life(cqs), index, "used again");
    }
}

#[test]
fn indices_that_differ_in_one_byte_are_distinguished() {
    let mut cq = Cq::new(16, 64);
    let register = |_| cq.table.register(SHAPE, &cq.monitors(), None, 3).expect("an index");
    let mut queues: Vec<_> = (0..600).map(register).step_by(256).collect();
    queues.iter().for_each(|handle| handle.set_state(QpState::Rts));
    let mut queues: Vec<_> =
        queues.drain(..).map(|handle| send_queue_of::<Rc>(handle, [8, 8], 256, false)).collect();
    for (round, at) in [0, 1, 2, 0, 0, 2, 1].into_iter().enumerate() {
        let sq = &mut queues[at];
        let id = 100 * round as u64;
        // SAFETY: there is no data.
        unsafe { sq.queue.post(id, Nop, (), PostFlags::SIGNALED) }.expect("space");
        let counter = sq.queue.head().wrapping_sub(1);
        let done = Cqe::send(&sq.handle, counter);
        let stray = Cqe { user_index: done.user_index ^ 0xff, ..done.clone() };
        cq.produce(done);
        assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(id), "round {round}");
        cq.produce(stray);
        assert!(cq.queue.poll().is_err());
    }
}

/// Completes a send or a receive by a CQE of this form whose user index has the bits `above` set,
/// and checks that it completes once, and in its own CQ only.
fn complete_with(above: u32, poll: Poll, form: usize, is_send: bool) {
    let mut cqs = [Cq::new(16, 64), Cq::new(16, 64)];
    let table = cqs[0].table.clone();
    cqs[1].adopt(&table);
    let (sq, mut rq) = (busy_send_queue(&cqs[0], 8, 2), recv_queue(&cqs[0], 4, 16, false));
    for id in [0, 1] {
        // SAFETY: no data.
        unsafe { rq.queue.build(id, &[]) }.expect("space");
    }
    rq.queue.publish();
    let done = if is_send { Cqe::send(&sq.handle, 1) } else { Cqe::recv(&rq.handle, 1) };
    let forged = forms(&Cqe { user_index: done.user_index | above, ..done.clone() })[form].clone();
    cqs[1].produce(forged.clone());
    assert_ne!(poll(&mut cqs[1].queue), Ok(1), "another CQ's: {above:#x}");
    cqs[0].produce(forged);
    cqs[0].produce(done);
    assert_eq!(poll(&mut cqs[0].queue), Ok(1), "{above:#x}");
    assert_ne!(poll(&mut cqs[0].queue), Ok(1), "{above:#x}");
}

/// The upper byte of an index says nothing while there are as many places as queues, and the byte
/// above it counts segments. A request completes once, whatever they are.
#[test]
fn bytes_above_the_place_of_an_index_complete_nothing_else() {
    for above in [0x01, 0x12, 0xff, 0x7f00, 0xff01] {
        for (poll, form) in WAYS.into_iter().flat_map(|poll| [0, 1, 2].map(|form| (poll, form))) {
            for is_send in [true, false] {
                complete_with(above << 16, poll, form, is_send);
            }
        }
    }
}

/// The value that marks blocks in which no request starts, in the table of wr_ids.
const MARK: u64 = 0xffff_ffff_9d3a_c571;

/// A program may use the mark's value as a wr_id.
#[test]
fn any_number_may_be_a_wr_id() {
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 4, 256, false);
    let write = Write(Remote::new(0, 0));
    for lap in 0..3 {
        // SAFETY: inline data is copied, so no memory is shared.
        unsafe {
            sq.queue.post(MARK, write, Inline(&[0; 80]), PostFlags::SIGNALED).expect("space");
            sq.queue.post(MARK, Nop, (), PostFlags::SIGNALED).expect("space");
        }
        let start = lap * 3;
        cq.produce(Cqe::send(&sq.handle, start + 1));
        assert_refused(&mut cq.queue);
        for index in [start, start + 2] {
            cq.produce(Cqe::send(&sq.handle, index));
            assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(MARK));
        }
    }
}

/// A NOP, which asks for a completion.
const ENCODED_NOP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0];

/// Posts a request that the program has encoded.
fn post_encoded(sq: &mut Sq<Rc>, wr_id: u64) {
    let mut batch = sq.queue.batch().expect("ready");
    // SAFETY: a NOP names no memory.
    unsafe { batch.build_encoded(wr_id, &ENCODED_NOP) }.expect("space");
    batch.publish();
}

/// Also for any wr_id, and if the block held another request in an earlier lap.
#[test]
fn completions_report_which_requests_the_program_encoded() {
    const BY_PROGRAM: CompletionOpcode = CompletionOpcode::Other(ENCODED);
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue_with::<Rc>(&cq, 4, 256, false);
    let next = |cq: &mut Cq, sq: &Sq<Rc>, index| {
        cq.produce(Cqe::send(&sq.handle, index));
        cq.queue.poll().map(|done| (done.wr_id(), done.opcode()))
    };
    post_encoded(&mut sq, 5);
    assert_eq!(
        next(&mut cq, &sq, 0).map(|(id, opcode)| (id, opcode == BY_PROGRAM)),
        Ok((5, false))
    );
    sq.queue.tell_encoded();
    for id in [6, 7, MARK] {
        post_encoded(&mut sq, id);
    }
    let mut ids = Vec::new();
    sq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, [6, 7, MARK]);
    // The completion of the last request retires all three.
    assert_eq!(next(&mut cq, &sq, 3), Ok((MARK, BY_PROGRAM)));
    for index in 4..8 {
        // SAFETY: a NOP names no memory.
        unsafe { sq.queue.post(MARK, Nop, (), PostFlags::SIGNALED).expect("space") };
        let done = next(&mut cq, &sq, index).map(|(id, opcode)| (id, opcode == BY_PROGRAM));
        assert_eq!(done, Ok((MARK, false)), "{index}");
    }
    post_encoded(&mut sq, 9);
    assert_eq!(next(&mut cq, &sq, 8), Ok((9, BY_PROGRAM)));
}

/// Also if a request with the same counter was encoded by the program before the reset, or in an
/// earlier queue that had the same tables.
#[test]
fn a_reset_forgets_which_requests_the_program_encoded() {
    for closes in [false, true] {
        let mut cq = Cq::new(16, 64);
        let mut sq = send_queue_with::<Rc>(&cq, 4, 256, false);
        sq.queue.tell_encoded();
        for round in 0..3 {
            post_encoded(&mut sq, 5);
            cq.produce(Cqe::send(&sq.handle, 0));
            assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(5), "round {round}");
            assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
            if closes {
                sq.handle.close();
                assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
                drop(sq);
                sq = send_queue_with::<Rc>(&cq, 4, 256, false);
                sq.queue.tell_encoded();
            } else {
                sq.handle = renew(&sq.handle);
                sq.queue.reset(sq.handle.clone());
                sq.handle.set_state(QpState::Rts);
            }
            // SAFETY: a NOP names no memory.
            unsafe { sq.queue.post(MARK, Nop, (), PostFlags::SIGNALED).expect("space") };
            let mut ids = Vec::new();
            sq.queue.for_each_outstanding(|id| ids.push(id));
            assert_eq!(ids, [MARK], "round {round}");
            cq.produce(Cqe::send(&sq.handle, 0));
            let done = cq.queue.poll().map(|done| (done.wr_id(), done.opcode()));
            assert!(
                matches!(done, Ok((MARK, opcode)) if opcode != CompletionOpcode::Other(ENCODED))
            );
            assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
            sq.handle = renew(&sq.handle);
            sq.queue.reset(sq.handle.clone());
            sq.handle.set_state(QpState::Rts);
        }
    }
}

/// Marks that a batch wrote before it was aborted or forgotten must not be used for later requests.
#[test]
fn any_number_may_be_a_wr_id_after_an_aborted_batch() {
    let write = Write(Remote::new(0, 0));
    for way in 0..16 {
        let (aborts, in_a_batch, at_ring_end) = (way & 1 == 0, way & 2 == 0, way & 4 == 0);
        let is_encoded = way & 8 == 0;
        let mut cq = Cq::new(16, 64);
        let mut sq = send_queue_with::<Rc>(&cq, 8, 256, false);
        let skipped = if at_ring_end { 7 } else { 0 };
        sq.post_nops(skipped);
        if skipped > 0 {
            cq.produce(Cqe::send(&sq.handle, skipped - 1));
            cq.queue.poll().expect("a completion");
        }
        if is_encoded {
            sq.queue.tell_encoded();
        }
        let mut batch = sq.queue.batch().expect("ready");
        // SAFETY: inline data is copied, so no memory is shared; a NOP names none.
        unsafe {
            if is_encoded {
                batch.build_encoded(1, &ENCODED_NOP).expect("space");
            } else {
                batch.build(1, write, Inline(&[0; 80]), PostFlags::SIGNALED).expect("space");
            }
        }
        if aborts {
            batch.abort()
        } else {
            std::mem::forget(batch)
        }
        for index in 0..4 {
            // SAFETY: there is no data.
            unsafe {
                if in_a_batch {
                    let mut batch = sq.queue.batch().expect("ready");
                    batch.build(MARK, Nop, (), PostFlags::SIGNALED).expect("space");
                    batch.publish();
                } else {
                    sq.queue.post(MARK, Nop, (), PostFlags::SIGNALED).expect("space");
                }
            }
            cq.produce(Cqe::send(&sq.handle, skipped + index));
            let polled = cq.queue.poll().map(|done| done.wr_id());
            assert_eq!(polled, Ok(MARK), "way {way}, request {index}");
        }
    }
}

/// If an error follows other completions in one call, the next call returns it.
#[test]
fn an_error_after_other_completions_is_not_lost() {
    let mut cq = Cq::new(16, 64);
    let sq = busy_send_queue(&cq, 8, 3);
    let produce = |cq: &mut Cq, at: u32| {
        for index in [at, at, at + 1] {
            cq.produce(Cqe::send(&sq.handle, index));
        }
    };
    produce(&mut cq, 0);
    let mut out = [WorkCompletion::default(); 4];
    assert_eq!(cq.queue.poll_into(&mut out), Ok(1));
    assert_eq!(cq.queue.poll_into(&mut out), Err(PollError::NotOutstanding));
    assert_eq!(cq.queue.poll_up_to(4, |done| assert_eq!(done.wr_id(), 1)), Ok(1));
    cq.produce(Cqe::send(&sq.handle, 2));
    cq.produce(Cqe::send(&sq.handle, 2));
    assert_eq!(cq.queue.poll_up_to(4, |done| assert_eq!(done.wr_id(), 2)), Ok(1));
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::NotOutstanding));
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    assert_eq!(cq.queue.refused(), 2);
}

/// A block of a completed request is the first of another one, in the next lap, which is built and
/// not published. The CQE has the block's number of the lap before.
#[test]
fn a_completion_of_the_middle_of_a_completed_request_is_refused() {
    for (poll, is_published) in WAYS.into_iter().zip([false, true].into_iter().cycle()) {
        for form in 0..3 {
            let mut cq = Cq::new(8, 64);
            let mut sq = send_queue_with::<Rc>(&cq, 4, 256, true);
            let (memory, sge) = target();
            let long = Inline(&[1; 80]);
            // SAFETY: inline data is copied, and no device reads or writes the rest, here and
            // below.
            unsafe { sq.queue.post(1, Send, long, PostFlags::SIGNALED) }.expect("space");
            sq.post_nops(2);
            cq.produce(Cqe::send(&sq.handle, 0));
            assert_eq!(poll(&mut cq.queue), Ok(1));
            let mut batch = sq.queue.batch().expect("ready");
            // SAFETY: as above.
            unsafe {
                batch.build(4, Nop, (), PostFlags::SIGNALED).expect("space");
                batch.build(5, Read(Remote::new(0, 0)), sge, PostFlags::SIGNALED).expect("space");
            }
            if is_published {
                batch.publish();
            } else {
                drop(batch);
            }
            cq.produce(forms(&Cqe::send(&sq.handle, 1))[form].clone());
            let polled = poll(&mut cq.queue);
            assert_eq!(memory.read(0, 20), [0; 20], "published {is_published}, form {form}");
            assert_eq!(polled, Err(PollError::NotOutstanding), "{is_published}, form {form}");
        }
    }
}
