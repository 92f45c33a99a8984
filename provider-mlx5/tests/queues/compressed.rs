//! Compressed CQEs: sessions of mini-CQEs under one title.

use uverbs_mlx5::completion_queue::{Completion, PollError};
use uverbs_mlx5::format::{CqeFormat, CqeOpcode, MiniCqe, MiniCqeFormat, Opcode, Syndrome};
use uverbs_mlx5::request::PostFlags;
use uverbs_mlx5::send_queue::{Rc, Send};

use crate::device::{Cq, Cqe, NEAR_WRAPS, Random, busy_send_queue, recv_queue, send_queue};

const NONE: PostFlags = PostFlags::empty();

#[test]
fn compressed_sessions_over_several_laps() {
    NEAR_WRAPS.into_iter().for_each(sessions_over_several_laps);
}

/// On a CQ of which `start` CQEs were consumed.
fn sessions_over_several_laps(start: u32) {
    let mut cq = Cq::with(32, 64, MiniCqeFormat::CHECKSUM).moved_to(start);
    let mut rq = recv_queue(&cq, 64, 16, false);
    let mut random = Random::new(5);
    let mut next = 0u32;
    for _ in 0..if start == 0 { 500 } else { 20 } {
        let count = 2 + random.below(20) as u32;
        let ids: Vec<u64> = (0..count).map(|i| u64::from(next + i)).collect();
        for id in &ids {
            // SAFETY: no device writes to it.
            unsafe { rq.queue.build(*id, &[]) }.expect("space");
            rq.queue.publish();
        }
        let minis: Vec<MiniCqe> = (0..count)
            .map(|i| MiniCqe::with_checksum(next as u16 ^ i as u16, 0, 100 + i))
            .collect();
        cq.produce_session(Cqe::recv(&rq.handle, next), &minis);
        // An ordinary CQE behind the session.
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(u64::from(next + count), &[]) }.expect("space");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, next + count));
        let mut batch = cq.queue.batch();
        for (i, id) in ids.iter().enumerate() {
            let completion = batch.next().expect("a completion");
            assert_eq!((completion.wr_id(), completion.byte_len()), (*id, 100 + i as u32));
            assert_eq!(completion.to_bytes()[20..22], (next as u16 ^ i as u16).to_be_bytes());
        }
        let completion = batch.next().expect("a completion");
        assert_eq!((completion.wr_id(), completion.byte_len()), (u64::from(next + count), 64));
        assert!(batch.next().is_err());
        drop(batch);
        next += count + 1;
        assert_eq!(cq.record.word(0), start.wrapping_add(next) & 0xff_ffff);
    }
    assert_eq!(cq.queue.dropped(), 0);
}

/// Each byte of a completion is the title's, except those of its mini-CQE and the last one. Also
/// where the session wraps around the ring's end.
#[test]
fn completions_of_a_session_repeat_its_title() {
    let replaced = |offset: &usize| matches!(offset, 12..16 | 32..36 | 44..48 | 60..62);
    for cqe_size in [64, 128] {
        let mut cq = Cq::with(16, cqe_size, MiniCqeFormat::HASH);
        let mut rq = recv_queue(&cq, 16, 16, false);
        for start in [0u32, 10] {
            for id in 0..10 {
                // SAFETY: no device writes to it.
                unsafe { rq.queue.build(id, &[]) }.expect("space");
            }
            rq.queue.publish();
            let at = cq.place(start);
            let minis: Vec<_> = (0..10).map(|i| MiniCqe::with_hash(!i, 100 + i)).collect();
            cq.produce_session(Cqe::recv(&rq.handle, start), &minis);
            for offset in (0..63).filter(|offset| !replaced(offset)) {
                cq.ring.write(at + offset, &[0x80 | offset as u8]);
            }
            let mut expected = cq.ring.read(at, 64);
            for i in 0..10u32 {
                let completion = cq.queue.poll().expect("a completion");
                let lap = ((start + i) / 16) as u8;
                expected[12..16].copy_from_slice(&(!i).to_be_bytes());
                expected[44..48].copy_from_slice(&(100 + i).to_be_bytes());
                expected[60..62].copy_from_slice(&((start + i) as u16).to_be_bytes());
                expected[63] = 0x20 | lap;
                assert_eq!(completion.to_bytes()[..], expected, "{i} from {start}");
            }
        }
    }
}

/// Sessions that follow each other, of each format, at any position of the ring and of the
/// counters, with plain completions and errors between them. Each completion has the fields of its
/// mini-CQE, whether it is polled alone or in a batch.
#[test]
fn sessions_that_wait_keep_their_own_fields() {
    let formats =
        [MiniCqeFormat::HASH, MiniCqeFormat::CHECKSUM, MiniCqeFormat::CHECKSUM_STRIDE_INDEX];
    for (format, seed) in formats.into_iter().cycle().zip(0..60) {
        let mut random = Random::new(seed);
        let cqe_size = [64, 128][random.below(2)];
        let start = (1 << 24) - random.below(300) as u32;
        let mut cq = Cq::with(64, cqe_size, format).moved_to(start);
        let mut rq = recv_queue(&cq, 64, 16, false);
        let mut next = 0u32;
        for _ in 0..40 {
            let first = next;
            while next - first < 40 {
                let count = [0, 2, 3, 7, 8, 9, 16, 23][random.below(8)];
                for id in next..next + count.max(1) {
                    // SAFETY: no device writes to it.
                    unsafe { rq.queue.build(u64::from(id), &[]) }.expect("space");
                }
                rq.queue.publish();
                let mini = |id: u32| match format {
                    MiniCqeFormat::HASH => MiniCqe::with_hash(!id, 100 + id),
                    _ => MiniCqe::with_checksum(!id as u16, id as u16, 100 + id),
                };
                let title = Cqe::recv(&rq.handle, next);
                if count == 0 {
                    let opcode = CqeOpcode::RESPONDER_ERROR;
                    let error = [0, Syndrome::FLUSHED.0];
                    cq.produce(Cqe { opcode, error, ..title });
                } else {
                    let minis: Vec<_> = (next..next + count).map(mini).collect();
                    cq.produce_session(title, &minis);
                }
                next += count.max(1);
            }
            let check = |completion: &Completion<'_>, id: u32| {
                assert_eq!((completion.wr_id(), completion.wqe_index()), (id.into(), id as u16));
                if completion.is_success() {
                    assert_eq!(completion.byte_len(), 100 + id);
                    let bytes = completion.to_bytes();
                    match format {
                        MiniCqeFormat::HASH => assert_eq!(completion.receive_hash().0, !id),
                        _ => assert_eq!(bytes[20..22], (!id as u16).to_be_bytes()),
                    }
                }
            };
            let alone = random.below(2) == 0;
            if alone {
                (first..next).for_each(|id| check(&cq.queue.poll().expect("a completion"), id));
            } else {
                let mut batch = cq.queue.batch();
                (first..next).for_each(|id| check(&batch.next().expect("a completion"), id));
            }
            assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
            assert_eq!(cq.queue.consumer_index(), start.wrapping_add(next));
        }
        assert_eq!((cq.queue.dropped(), cq.queue.refused()), (0, 0));
    }
}

#[test]
fn compressed_sends_and_the_other_formats() {
    let mut cq = Cq::with(32, 64, MiniCqeFormat::CHECKSUM_STRIDE_INDEX);
    let mut sq = send_queue::<Rc>(&cq, 32);
    let mut rq = recv_queue(&cq, 8, 16, false);
    for id in 0..9 {
        // SAFETY: there is no data.
        unsafe { sq.queue.post(id, Send, (), NONE) }.expect("space");
    }
    let opcode = Opcode::SEND;
    let minis = [0, 2, 8].map(|index| MiniCqe::requester(index, opcode));
    cq.produce_session(Cqe::send(&sq.handle, 0), &minis);
    let ids: Vec<u64> = (0..3).map(|_| cq.queue.poll().expect("one").wr_id()).collect();
    assert_eq!(ids, [0, 2, 8]);
    assert_eq!(sq.queue.free_blocks(), 32);
    for id in 0..8 {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(id, &[]) }.expect("space");
        rq.queue.publish();
    }
    let minis = [5u16, 7].map(|stride| MiniCqe::with_checksum(0xabcd, stride, 60));
    cq.produce_session(Cqe::recv(&rq.handle, 0), &minis);
    let indices: Vec<u16> = (0..2).map(|_| cq.queue.poll().expect("one").wqe_index()).collect();
    assert_eq!(indices, [5, 7]);

    let mut cq = Cq::with(32, 64, MiniCqeFormat::HASH);
    let mut rq = recv_queue(&cq, 8, 16, false);
    // SAFETY: no device writes to it.
    unsafe { rq.queue.build(1, &[]) }.expect("space");
    rq.queue.publish();
    cq.produce_session(Cqe::recv(&rq.handle, 0), &[MiniCqe::with_hash(0x1234_5678, 60)]);
    assert_eq!(cq.queue.poll().expect("one").receive_hash().0, 0x1234_5678);
}

#[test]
fn a_session_that_claims_too_much_ends_with_the_ring() {
    let mut cq = Cq::with(8, 64, MiniCqeFormat::HASH);
    let sq = busy_send_queue(&cq, 8, 1);
    let title = Cqe { byte_count: u32::MAX, ..Cqe::send(&sq.handle, 0) };
    cq.produce(Cqe { format: CqeFormat::COMPRESSED, ..title });
    // All name one request, which is no longer outstanding after the first.
    let polls: Vec<_> = (0..9).map(|_| cq.queue.poll().map(drop)).collect();
    assert_eq!(polls[0], Ok(()));
    assert_eq!(polls[1..8], [Err(PollError::NotOutstanding); 7]);
    assert_eq!(polls[8], Err(PollError::Empty));
}

/// It is decompressed only once those before it are polled.
#[test]
fn a_session_that_claims_too_much_spares_the_one_before_it() {
    let mut cq = Cq::with(8, 64, MiniCqeFormat::HASH);
    let mut rq = recv_queue(&cq, 4, 16, false);
    for id in 0..4 {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(id, &[]) }.expect("space");
    }
    rq.queue.publish();
    let minis: Vec<_> = (0..3).map(|i| MiniCqe::with_hash(i, 100 + i)).collect();
    cq.produce_session(Cqe::recv(&rq.handle, 0), &minis);
    let title = Cqe { byte_count: u32::MAX, ..Cqe::recv(&rq.handle, 3) };
    cq.produce(Cqe { format: CqeFormat::COMPRESSED, ..title });
    let ids: Vec<_> = (0..4).map(|_| cq.queue.poll().map(|done| done.wr_id())).collect();
    assert_eq!(ids, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::NotOutstanding));
}
