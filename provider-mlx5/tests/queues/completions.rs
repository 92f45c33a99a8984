//! Completions of every kind, over several laps of the CQ.

use uverbs_mlx5::completion_queue::{
    CompletionOpcode, CompletionQueue, CompletionQueueConfig, PollError, Status, WorkCompletion,
};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{CqeFormat, CqeOpcode, MiniCqeFormat, Opcode, Syndrome};
use uverbs_mlx5::mmio::ArmRegister;
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, FetchAdd, LocalInvalidate, Nop, Rc, Read, UnbindWindow, WindowType,
};
use uverbs_mlx5::user_index::UserIndexTable;

use crate::device::{
    Cq, Cqe, Memory, NEAR_WRAPS, Random, busy_send_queue, recv_queue, send_queue, send_queue_with,
    shared_recv_queue,
};

const NONE: PostFlags = PostFlags::empty();

#[test]
fn every_completion_once_over_many_laps_polled_in_every_way() {
    for (cqe_size, start) in [64, 128].into_iter().flat_map(|size| NEAR_WRAPS.map(|at| (size, at)))
    {
        let mut cq = Cq::after(start, 8, cqe_size);
        let mut a = recv_queue(&cq, 64, 16, false);
        let mut b = recv_queue(&cq, 64, 16, false);
        let mut random = Random::new(4);
        let mut counters = [0u32; 2];
        let mut expected = std::collections::VecDeque::new();
        let mut polled = 0;
        while polled < if start == 0 { 20_000 } else { 500 } {
            while expected.len() < 7 && random.below(4) != 0 {
                let which = random.below(2);
                let rq = [&mut a, &mut b].into_iter().nth(which).expect("two");
                let id = u64::from(counters[which]) << 1 | which as u64;
                // SAFETY: no device writes to it.
                unsafe { rq.queue.build(id, &[]) }.expect("space");
                rq.queue.publish();
                cq.produce(Cqe::recv(&rq.handle, counters[which]));
                counters[which] += 1;
                expected.push_back(id);
            }
            match random.below(4) {
                0 => {
                    let got = cq.queue.poll().ok().map(|completion| completion.wr_id());
                    polled += u32::from(got.is_some());
                    assert_eq!(got, expected.pop_front());
                }
                1 => {
                    let before = cq.queue.consumer_index();
                    let mut batch = cq.queue.batch();
                    for _ in 0..random.below(5) {
                        let got = batch.next().ok().map(|completion| completion.wr_id());
                        polled += u32::from(got.is_some());
                        assert_eq!(got, expected.pop_front());
                    }
                    drop(batch);
                    let consumed = cq.queue.consumer_index();
                    assert!(consumed == before || cq.record.word(0) == consumed & 0xff_ffff);
                }
                2 => {
                    let most = random.below(5);
                    let mut got = Vec::new();
                    let count =
                        cq.queue.poll_up_to(most, |completion| got.push(completion.wr_id()));
                    assert_eq!(count, Ok(got.len()));
                    polled += got.len() as u32;
                    let wanted = expected.len().min(most);
                    assert_eq!(got, expected.drain(..wanted).collect::<Vec<_>>());
                    let consumed = cq.queue.consumer_index();
                    assert!(got.is_empty() || cq.record.word(0) == consumed & 0xff_ffff);
                }
                _ => {
                    let mut out = [WorkCompletion::default(); 3];
                    let count = cq.queue.poll_into(&mut out).expect("a healthy queue");
                    let got: Vec<u64> = out[..count].iter().map(|one| one.wr_id).collect();
                    let wanted = expected.len().min(3);
                    assert_eq!(got, expected.drain(..wanted).collect::<Vec<_>>());
                    polled += count as u32;
                }
            }
        }
        assert_eq!((cq.queue.dropped(), cq.queue.refused()), (0, 0));
        assert_eq!(cq.queue.consumer_index(), start.wrapping_add(polled));
    }
}

#[test]
fn what_is_lent_is_not_given_back_before_the_next_poll() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 3);
    (0..3).for_each(|i| cq.produce(Cqe::send(&sq.handle, i)));
    for lent in 0..3 {
        cq.queue.poll().expect("a completion");
        assert_eq!(cq.record.word(0), lent);
    }
    cq.queue.publish();
    assert_eq!(cq.record.word(0), 3);
}

/// The end of a lap reports its CQEs as drained. They stay polled even if the batch is leaked.
#[test]
fn a_forgotten_batch_does_not_go_back_a_lap() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 32);
    for id in 0..10 {
        // SAFETY: there is no data.
        unsafe { sq.queue.post(id, Nop, (), PostFlags::SIGNALED) }.expect("space");
    }
    (0..8).for_each(|i| cq.produce(Cqe::send(&sq.handle, i)));
    let mut batch = cq.queue.batch();
    for id in 0..8 {
        assert_eq!(batch.next().expect("a completion").wr_id(), id);
    }
    std::mem::forget(batch);
    assert_eq!(cq.queue.consumer_index(), 8);
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    (8..10).for_each(|i| cq.produce(Cqe::send(&sq.handle, i)));
    for id in 8..10 {
        assert_eq!(cq.queue.poll().expect("a completion").wr_id(), id);
    }
}

/// The program may catch the panic and poll on.
#[test]
fn a_completion_at_which_the_program_panicked_counts_as_polled() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    for id in 0..2 {
        // SAFETY: there is no data.
        unsafe { sq.queue.post(id, Nop, (), PostFlags::SIGNALED) }.expect("space");
        cq.produce(Cqe::send(&sq.handle, id as u32));
    }
    let poll = std::panic::AssertUnwindSafe(|| cq.queue.poll_up_to(2, |_| panic!("at the first")));
    assert!(std::panic::catch_unwind(poll).is_err());
    assert_eq!(cq.record.read(0, 4), [0, 0, 0, 1], "its place is given back");
    assert_eq!(cq.queue.poll().expect("the second").wr_id(), 1);
}

#[test]
fn an_empty_queue_is_not_written_to() {
    let mut cq = Cq::new(8, 64);
    cq.record.write(0, &[0xee; 4]);
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    assert_eq!(cq.queue.batch().next().map(drop), Err(PollError::Empty));
    assert_eq!(cq.queue.poll_up_to(4, |_| panic!("nothing is there")), Ok(0));
    assert_eq!(cq.record.read(0, 4), [0xee; 4]);
}

#[test]
fn fields() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 8, 16, false);
    let wanted = [
        (CqeOpcode::RESPONDER_SEND, CompletionOpcode::Recv, None, None),
        (CqeOpcode::RESPONDER_SEND_IMMEDIATE, CompletionOpcode::Recv, Some(7), None),
        (CqeOpcode::RESPONDER_WRITE_IMMEDIATE, CompletionOpcode::RecvWriteImmediate, Some(7), None),
        (CqeOpcode::RESPONDER_SEND_INVALIDATE, CompletionOpcode::Recv, None, Some(7)),
    ];
    for (index, (opcode, expected, immediate, rkey)) in wanted.into_iter().enumerate() {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(5, &[]) }.expect("space");
        rq.queue.publish();
        cq.produce(Cqe { opcode, immediate: 7, ..Cqe::recv(&rq.handle, index as u32) });
        let completion = cq.queue.poll().expect("a completion");
        assert_eq!(completion.opcode(), expected);
        assert_eq!(completion.immediate(), immediate.map(Immediate::from_u32));
        assert_eq!(completion.invalidated_rkey(), rkey);
        assert_eq!((completion.byte_len(), completion.user_context()), (64, 0xbeef));
        assert!(!completion.is_send() && completion.is_success());
        assert_eq!(completion.status().to_string(), "success");
    }
}

/// A copy keeps its fields after the device has overwritten the CQE.
#[test]
fn copies_keep_every_field() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 8, 16, false);
    let opcode = CqeOpcode::RESPONDER_SEND_INVALIDATE;
    let mut copies = [WorkCompletion::default(); 1];
    for index in 0..9 {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(u64::from(index), &[]) }.expect("space");
        rq.queue.publish();
        let at = cq.place(index);
        cq.produce(Cqe { opcode, immediate: 0x700 + index, ..Cqe::recv(&rq.handle, index) });
        let stamp = 0x0102_0304_0506_0708 + u64::from(index);
        cq.ring.write(at + 48, &stamp.to_be_bytes());
        cq.ring.write(at + 24, &[index as u8; 8]);
        let lent = cq.queue.poll().expect("a completion");
        let copy = lent.to_work_completion();
        assert_eq!((copy.timestamp(), lent.timestamp()), (stamp, stamp));
        assert_eq!(copy.invalidated_rkey(), Some(0x700 + index));
        assert_eq!(copy.to_bytes(), lent.to_bytes());
        assert_eq!(copy.flow_tag(), lent.flow_tag());
        assert_eq!(copy.checks(), lent.checks());
        assert_eq!(copy.receive_hash(), lent.receive_hash());
        assert_eq!((copy.wr_id(), copy.wqe_index()), (u64::from(index), index as u16));
        assert_eq!((copy.wr_id, copy.user_context), (lent.wr_id(), lent.user_context()));
        assert_eq!(format!("{copy:?}").replace("Work", ""), format!("{lent:?}"));
        if index > 0 {
            assert_eq!(copies[0].timestamp(), stamp - 1);
        }
        copies[0] = copy;
    }
    // SAFETY: no device writes to it.
    unsafe { rq.queue.build(9, &[]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe { opcode, immediate: 5, ..Cqe::recv(&rq.handle, 9) });
    assert_eq!(cq.queue.poll_into(&mut copies), Ok(1));
    assert_eq!(copies[0].invalidated_rkey(), Some(5));
}

#[test]
fn changes_of_keys_are_told_apart() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 64);
    let unbind = UnbindWindow { window: 1, window_type: WindowType::Type1, new_rkey: 2 };
    let starts = [0, 2];
    // SAFETY: there is no data.
    unsafe {
        sq.queue.post(1, LocalInvalidate(5), (), NONE).expect("space");
        sq.queue.post(2, unbind, (), NONE).expect("space");
    }
    let wanted = [CompletionOpcode::LocalInvalidate, CompletionOpcode::BindWindow];
    for (start, opcode) in starts.into_iter().zip(wanted) {
        cq.produce(Cqe { wqe_opcode: Opcode::UMR.0, ..Cqe::send(&sq.handle, start) });
        let completion = cq.queue.poll().expect("a completion");
        assert_eq!(completion.opcode(), opcode);
        assert_eq!(completion.to_work_completion().opcode(), opcode);
    }
}

/// A completion is lent until the next poll, and its blocks are free meanwhile.
#[test]
fn a_lent_completion_is_of_its_kind_when_its_blocks_are_filled_again() {
    let unbind = UnbindWindow { window: 1, window_type: WindowType::Type1, new_rkey: 2 };
    // Also where the next lap has another 16 bits' counters.
    for start in [0, 4, 0xfffc] {
        let mut cq = Cq::new(8, 64);
        let mut sq = send_queue::<Rc>(&cq, 4);
        // SAFETY: nothing was posted, and there is no data.
        unsafe {
            sq.queue.continue_at(start, false);
            sq.queue.post(1, LocalInvalidate(5), (), NONE).expect("space");
            sq.queue.post(2, unbind, (), NONE).expect("space");
        }
        cq.produce(Cqe { wqe_opcode: Opcode::UMR.0, ..Cqe::send(&sq.handle, start) });
        let lent = cq.queue.poll().expect("a completion");
        // SAFETY: there is no data.
        unsafe { sq.queue.post(3, unbind, (), NONE) }.expect("the space of the first one");
        assert_eq!(lent.opcode(), CompletionOpcode::LocalInvalidate, "{start:#x}");
        assert_eq!(lent.to_work_completion().opcode(), CompletionOpcode::LocalInvalidate);
    }
}

#[test]
fn errors_carry_their_syndromes_and_move_the_state() {
    let mut cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let mut rq = recv_queue(&cq, 8, 16, false);
    // SAFETY: there is no data.
    unsafe {
        sq.queue.post(1, Nop, (), NONE).expect("space");
        sq.queue.post(2, Nop, (), NONE).expect("space");
        rq.queue.build(3, &[]).expect("space");
    }
    rq.queue.publish();
    cq.produce(Cqe::send(&sq.handle, 0).failed(0x88, Syndrome::REMOTE_ACCESS.0));
    cq.produce(Cqe::send(&sq.handle, 1).failed(0xf9, Syndrome::FLUSHED.0));
    cq.produce(Cqe::recv(&rq.handle, 0).failed(0, 0x77));
    let completion = cq.queue.poll().expect("a completion");
    assert_eq!((completion.wr_id(), completion.status()), (1, Status::RemoteAccess));
    assert_eq!(
        (completion.vendor_syndrome().0, completion.syndrome()),
        (0x88, Syndrome::REMOTE_ACCESS)
    );
    assert_eq!(sq.handle.state().state(), QpState::Err);
    let completion = cq.queue.poll().expect("a completion");
    assert_eq!((completion.wr_id(), completion.status()), (2, Status::Flushed));
    let completion = cq.queue.poll().expect("a completion");
    assert_eq!((completion.wr_id(), completion.status()), (3, Status::General));
    assert_eq!(sq.queue.free_blocks(), 8);
    // Requests are still taken, to be flushed.
    // SAFETY: there is no data.
    unsafe { sq.queue.post(4, Nop, (), NONE) }.expect("space");
}

#[test]
fn inline_data_reaches_the_receives_buffers() {
    for (cqe_size, format, length) in [
        (64, CqeFormat::INLINE_32, 24),
        (128, CqeFormat::INLINE_32, 32),
        (128, CqeFormat::INLINE_64, 50),
    ] {
        for shared in [false, true] {
            let mut cq = Cq::new(8, cqe_size);
            let target = Memory::new(256);
            let data: Vec<u8> = (1..=length).collect();
            let address =
                |offset: usize| target.ptr().as_ptr().expose_provenance() as u64 + offset as u64;
            let sges = [Sge::new(address(0), 10, 7), Sge::new(address(100), 100, 7)];
            // SAFETY: leaked memory, which this test's device and poller alone write to.
            let cqe = unsafe {
                if shared {
                    let mut srq = shared_recv_queue(&cq, 4, 64, true);
                    srq.queue.build(9, &sges).expect("space");
                    srq.queue.publish();
                    let cqe = Cqe::recv(&srq.qp, 0).inline(format, &data);
                    std::mem::forget(srq);
                    cqe
                } else {
                    let mut rq = recv_queue(&cq, 4, 64, true);
                    rq.queue.build(9, &sges).expect("space");
                    rq.queue.publish();
                    let cqe = Cqe::recv(&rq.handle, 0).inline(format, &data);
                    std::mem::forget(rq);
                    cqe
                }
            };
            cq.produce(cqe);
            let completion = cq.queue.poll().expect("a completion");
            assert_eq!((completion.wr_id(), completion.status()), (9, Status::Success));
            assert_eq!(target.read(0, 10), data[..10]);
            assert_eq!(target.read(100, data.len() - 10), data[10..]);
            let mut copy = [0; 64];
            assert_eq!(completion.copy_inline(&mut copy), Some(data.len()));
            assert_eq!(copy[..data.len()], data);
        }
    }
}

/// By `poll` and by `poll_into`, into one buffer or two.
#[test]
fn inline_data_over_many_laps() {
    let mut random = Random::new(9);
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 16, 32, true);
    let memory = Memory::new(64);
    let address = memory.ptr().as_ptr().expose_provenance() as u64;
    for index in 0..400u32 {
        // One buffer, or two of which the first is too short.
        let first = [32, 5][random.below(2)];
        let sges = [Sge::new(address, first, 1), Sge::new(address + u64::from(first), 32, 1)];
        let count = if first == 32 { 1 } else { 2 };
        memory.write(0, &[0; 64]);
        // SAFETY: leaked memory.
        unsafe { rq.queue.build(u64::from(index), &sges[..count]) }.expect("space");
        rq.queue.publish();
        let length = random.below(33);
        let data: Vec<u8> = (0..length).map(|at| (at as u32 + index) as u8 | 1).collect();
        cq.produce(Cqe::recv(&rq.handle, index).inline(CqeFormat::INLINE_32, &data));
        let in_a_batch = random.below(2) == 0;
        let mut out = [WorkCompletion::default()];
        let (id, status, bytes) = if in_a_batch {
            assert_eq!(cq.queue.poll_into(&mut out), Ok(1));
            (out[0].wr_id, out[0].status, out[0].byte_len())
        } else {
            let done = cq.queue.poll().expect("a completion");
            (done.wr_id(), done.status(), done.byte_len())
        };
        assert_eq!((id, status, bytes), (index.into(), Status::Success, length as u32));
        assert_eq!(memory.read(0, 64), [data, vec![0; 64 - length]].concat());
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
        assert_eq!(cq.queue.consumer_index(), index + 1);
    }
}

/// Of an SRQ: into one buffer, into two, or into one that is too short; each completed twice.
#[test]
fn inline_data_of_shared_receives_over_many_laps() {
    let mut random = Random::new(9);
    let mut cq = Cq::new(8, 64);
    let mut srq = shared_recv_queue(&cq, 8, 64, true);
    let memory = Memory::new(64);
    let address = memory.ptr().as_ptr().expose_provenance() as u64;
    for index in 0..400u32 {
        let (first, count) = [(32, 1), (5, 2), (5, 1)][random.below(3)];
        let sges = [Sge::new(address, first, 1), Sge::new(address + u64::from(first), 32, 1)];
        memory.write(0, &[0; 64]);
        // SAFETY: leaked memory.
        unsafe { srq.queue.post(u64::from(index), &sges[..count]) }.expect("space");
        let length = random.below(33);
        let data: Vec<u8> = (0..length).map(|at| (at as u32 + index) as u8 | 1).collect();
        let cqe = Cqe::recv(&srq.qp, index % 8).inline(CqeFormat::INLINE_32, &data);
        cq.produce(cqe.clone());
        let fits = count == 2 || length <= first as usize;
        let (status, written) = match fits {
            true => (Status::Success, length),
            false => (Status::LocalLength, first as usize),
        };
        let done = cq.queue.poll().expect("a completion");
        let expected = (index.into(), status, length as u32);
        assert_eq!((done.wr_id(), done.status(), done.byte_len()), expected);
        let mut copy = [0; 32];
        assert_eq!(done.copy_inline(&mut copy), Some(length));
        assert_eq!(copy[..length], data);
        assert_eq!(memory.read(0, 64), [&data[..written], &vec![0; 64 - written]].concat());
        memory.write(0, &[0; 64]);
        cq.produce(cqe);
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::NotOutstanding));
        assert_eq!(memory.read(0, 64), [0; 64], "the program has its memory back");
    }
}

#[test]
fn inline_data_that_does_not_fit_is_a_length_error_and_stays_within_the_buffers() {
    let mut cq = Cq::new(8, 64);
    let target = Memory::new(64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    let address = target.ptr().as_ptr().expose_provenance() as u64;
    // SAFETY: leaked memory.
    unsafe { rq.queue.build(9, &[Sge::new(address, 10, 7)]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &[5; 20]));
    assert_eq!(cq.queue.poll().expect("a completion").status(), Status::LocalLength);
    assert_eq!((target.read(0, 10), target.read(10, 54)), (vec![5; 10], vec![0; 54]));
}

#[test]
fn inline_data_of_a_null_region_goes_nowhere() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 4, 16, true);
    // SAFETY: the region swallows what is written to it.
    unsafe { rq.queue.build(9, &[Sge::new(0x10, 100, 0xdead)]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &[5; 20]));
    assert_eq!(cq.queue.poll().expect("a completion").status(), Status::Success);
}

#[test]
fn results_of_reads_and_atomics_that_came_inline() {
    for (cqe_size, format) in [(64, CqeFormat::INLINE_32), (128, CqeFormat::INLINE_64)] {
        let mut cq = Cq::new(8, cqe_size);
        let mut sq = send_queue_with::<Rc>(&cq, 4, 256, true);
        let target = Memory::new(256);
        let address = target.ptr().as_ptr().expose_provenance() as u64;
        let sges: Vec<Sge> = (0..4).map(|i| Sge::new(address + 20 * i, 6, 7)).collect();
        // So that the read wraps around the ring's end.
        for start in 0..3 {
            // SAFETY: there is no data.
            unsafe { sq.queue.post(0, Nop, (), NONE) }.expect("space");
            cq.produce(Cqe::send(&sq.handle, start));
            cq.queue.poll().expect("a completion");
        }
        let remote = Remote::new(8, 9);
        let result = AtomicResult { address: address + 200, lkey: 7 };
        let add = FetchAdd { remote, add: 1 };
        // SAFETY: leaked memory.
        unsafe {
            sq.queue.post(1, Read(remote), sges.as_slice(), NONE).expect("space");
            sq.queue.post(2, add, result, NONE).expect("space");
        }
        let data: Vec<u8> = (1..=24).collect();
        let read = Cqe { wqe_opcode: Opcode::RDMA_READ.0, ..Cqe::send(&sq.handle, 3) };
        let atomic = Cqe { wqe_opcode: Opcode::ATOMIC_FETCH_ADD.0, ..Cqe::send(&sq.handle, 5) };
        cq.produce(read.inline(format, &data));
        cq.produce(atomic.inline(format, &1000u64.to_ne_bytes()));
        let completion = cq.queue.poll().expect("a completion");
        assert_eq!((completion.wr_id(), completion.opcode()), (1, CompletionOpcode::Read));
        assert!(completion.is_success());
        for (i, chunk) in data.chunks(6).enumerate() {
            assert_eq!(target.read(20 * i, 6), chunk);
        }
        let completion = cq.queue.poll().expect("a completion");
        assert_eq!((completion.wr_id(), completion.opcode()), (2, CompletionOpcode::FetchAdd));
        assert_eq!(target.read(200, 8), 1000u64.to_ne_bytes());
    }
}

#[test]
fn without_scatter_to_cqe_inline_data_stays_in_the_cqe() {
    let mut cq = Cq::new(8, 64);
    let mut rq = recv_queue(&cq, 4, 16, false);
    // SAFETY: no device writes to it.
    unsafe { rq.queue.build(9, &[Sge::new(0x10, 100, 7)]) }.expect("space");
    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0).inline(CqeFormat::INLINE_32, &[5; 20]));
    let completion = cq.queue.poll().expect("a completion");
    let mut copy = [0; 8];
    assert_eq!(completion.copy_inline(&mut copy), Some(20));
    assert_eq!((copy, completion.is_success()), ([5; 8], true));
}

#[test]
fn nonsense_is_dropped() {
    let mut cq = Cq::new(8, 64);
    let sq = busy_send_queue(&cq, 8, 4);
    let strange = |opcode| Cqe { opcode, ..Cqe::send(&sq.handle, 0) };
    cq.produce(strange(CqeOpcode::NO_PACKET));
    cq.produce(strange(CqeOpcode(9)));
    cq.produce(strange(CqeOpcode::SIGNATURE_ERROR));
    cq.produce(Cqe { user_index: 0x12_3456, ..Cqe::send(&sq.handle, 0) });
    cq.produce(Cqe { user_index: 0, ..Cqe::send(&sq.handle, 0) });
    let at = cq.place(cq.produced);
    cq.produce(Cqe::send(&sq.handle, 0));
    // The format of 64 inline bytes, which a CQE of 64 bytes cannot have.
    cq.ring.write(at + 63, &[2 << 2]);
    cq.produce(Cqe::send(&sq.handle, 3));
    assert_eq!(cq.queue.poll().expect("a completion").wqe_index(), 3);
    assert_eq!(cq.queue.dropped(), 6);
}

/// With a larger ring, the consumer index of 24 bits could not tell the laps apart.
#[test]
fn a_ring_of_more_than_half_the_counter_is_refused() {
    let memory = Memory::new(4096);
    let make = |entries| {
        CompletionQueue::new(CompletionQueueConfig {
            memory: memory.dma(),
            entries,
            cqe_size: 64,
            // SAFETY: leaked.
            doorbell: unsafe { DoorbellWord::pair(Memory::new(8).ptr().cast()) },
            // SAFETY: leaked.
            arm: unsafe { ArmRegister::new(Memory::new(8).ptr().cast()) },
            number: 0,
            table: &UserIndexTable::new(),
            mini_format: Some(MiniCqeFormat::HASH),
            null_lkey: None,
        })
        .map(drop)
    };
    assert_eq!(make(1 << 24), Err(QueueError::BadLimits));
    assert_eq!(make(1 << 23), Err(QueueError::BadMemory), "its memory is too small here");
    assert_eq!(make(64), Ok(()));
}
