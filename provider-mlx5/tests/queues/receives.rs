//! Receive queues and shared receive queues over many laps.

use uverbs_mlx5::completion_queue::PollError;
use uverbs_mlx5::format::CqeFormat;
use uverbs_mlx5::mmio::InChild;
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{MAX_SGE_LENGTH, PostError, Sge};

use crate::device::{
    Cq, Cqe, Memory, Random, Rq, recv_queue, recv_queue_after, renew, shared_recv_queue,
};

const ONE: [Sge; 1] = [Sge::new(0x1000, 64, 7)];
const TERMINATOR: [u8; 16] = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn laps_of_a_receive_queue() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 8, 64, false);
    let mut random = Random::new(2);
    let (mut posted, mut completed) = (0u32, 0u32);
    while completed < 200_000 {
        // SAFETY: no device writes to it.
        let result = unsafe { rq.queue.build(u64::from(posted), &ONE) };
        rq.queue.publish();
        if posted - completed == 8 {
            assert_eq!(result, Err(PostError::Full));
        } else {
            result.expect("space");
            posted += 1;
        }
        while posted > completed && random.below(2) == 0 {
            cq.produce(Cqe::recv(&rq.handle, completed));
            let completion = cq.queue.poll().expect("a completion");
            assert_eq!((completion.wr_id(), completion.byte_len()), (u64::from(completed), 64));
            completed += 1;
        }
        assert_eq!(rq.queue.free_entries(), 8 - (posted - completed));
    }
    let mut ids = Vec::new();
    rq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, (u64::from(completed)..u64::from(posted)).collect::<Vec<_>>());
}

/// As for sends: `a_full_queue_near_the_counters_wrap_waits_for_its_completions`.
#[test]
fn a_full_receive_queue_near_the_counters_wrap_waits_for_its_completions() {
    [0x1_fff8, 0xffff_fff8].into_iter().for_each(a_full_receive_queue_waits);
}

/// On a queue whose counter starts at `start`.
fn a_full_receive_queue_waits(start: u32) {
    let mut cq = Cq::new(64, 64);
    let mut rq = recv_queue(&cq, 16, 64, false);
    // SAFETY: nothing was posted.
    unsafe { rq.queue.continue_at(start) };
    // SAFETY: no device writes to it.
    let post = |rq: &mut Rq| unsafe { rq.queue.post(1, &ONE) };
    for _ in 0..16 {
        assert_eq!(post(&mut rq), Ok(()));
    }
    assert_eq!(post(&mut rq), Err(PostError::Full));
    for completed in (0..16).map(|ahead| start.wrapping_add(ahead)) {
        cq.produce(Cqe::recv(&rq.handle, completed));
        assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(1));
        assert_eq!((post(&mut rq), post(&mut rq)), (Ok(()), Err(PostError::Full)));
        assert_eq!(rq.record.word(0), completed.wrapping_add(17) & 0xffff);
    }
}

/// A reset leaves the front anywhere in the ring; the device starts over at the first entry.
#[test]
fn receives_start_at_the_first_entry_after_a_reset() {
    let mut cq = Cq::new(64, 64);
    let mut rq = recv_queue(&cq, 4, 32, false);
    for posted in [0, 1, 3, 4, 6] {
        // SAFETY: no device writes to it, now and below.
        let post = |rq: &mut Rq, id| unsafe { rq.queue.post(id, &[Sge::new(id, 64, 7)]) };
        for id in 0..posted {
            if id >= 4 {
                cq.produce(Cqe::recv(&rq.handle, id as u32 - 4));
                assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(id - 4));
            }
            assert_eq!(post(&mut rq, id), Ok(()));
        }
        rq.handle = renew(&rq.handle);
        rq.queue.reset(rq.handle.clone());
        assert_eq!(post(&mut rq, 9), Err(PostError::BadState));
        rq.handle.set_state(QpState::Init);
        for id in 9..13 {
            assert_eq!(post(&mut rq, id), Ok(()));
            let entry = rq.ring.read((id as usize - 9) * 32, 16);
            assert_eq!(entry[8..], id.to_be_bytes(), "{posted}");
        }
        assert_eq!((post(&mut rq, 13), rq.record.word(0)), (Err(PostError::Full), 4));
        let mut ids = Vec::new();
        rq.queue.for_each_outstanding(|id| ids.push(id));
        assert_eq!(ids, [9, 10, 11, 12]);
        rq.handle = renew(&rq.handle);
        rq.queue.reset(rq.handle.clone());
        rq.handle.set_state(QpState::Init);
    }
}

#[test]
fn scatter_lists_end_with_a_terminator() {
    let cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 8, 64, false);
    let sge = |i: u64| Sge::new(i, 16, 9);
    let empty = Sge::new(5, 0, 9);
    let lists = [
        vec![],
        vec![sge(1)],
        vec![empty],
        vec![sge(1), empty, sge(2)],
        vec![sge(1), sge(2), sge(3), sge(4)],
    ];
    for (index, list) in lists.iter().chain(lists.iter().take(3)).enumerate() {
        if index >= lists.len() {
            // As if the entry had held a longer list in the lap before.
            rq.ring.write(index * 64, &[0xcc; 64]);
        }
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(0, list) }.expect("space");
        rq.queue.publish();
        let entry = rq.ring.read(index * 64, 64);
        let real: Vec<&Sge> = list.iter().filter(|sge| sge.length() != 0).collect();
        for (sge, bytes) in real.iter().zip(entry.chunks(16)) {
            assert_eq!(bytes[..4], sge.length().to_be_bytes());
            assert_eq!(bytes[4..8], sge.lkey().to_be_bytes());
            assert_eq!(bytes[8..], sge.address().to_be_bytes());
        }
        if real.len() < 4 {
            assert_eq!(entry[16 * real.len()..][..16], TERMINATOR);
        }
    }
}

/// An empty list has its terminator in the place of the first SGE. A later list in the same entry
/// has one after its SGE all the same.
#[test]
fn a_list_in_an_entry_that_held_an_empty_list_has_a_terminator() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 2, 64, false);
    let lists: [&[Sge]; 6] = [&[], &[], &ONE, &ONE, &[], &ONE];
    for (index, list) in lists.into_iter().enumerate() {
        // SAFETY: no device writes to it.
        unsafe { rq.queue.build(0, list) }.expect("space");
        assert_eq!(rq.ring.read(index % 2 * 64 + 16 * list.len(), 16), TERMINATOR, "{index}");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, index as u32));
        cq.queue.poll().expect("a completion");
    }
}

#[test]
fn a_shared_list_in_an_entry_that_held_an_empty_list_has_a_terminator() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 4, 64, false);
    let mut entry = 0;
    for index in 0..16 {
        let list: &[Sge] = if index < 5 { &[] } else { &ONE };
        // SAFETY: no device writes to it.
        unsafe { srq.queue.build(0, list) }.expect("space");
        let end = entry as usize * 64 + 16 + 16 * list.len();
        assert_eq!(srq.ring.read(end, 16), TERMINATOR, "{index}");
        srq.queue.publish();
        cq.produce(Cqe::recv(&srq.qp, entry));
        cq.queue.poll().expect("a completion");
        entry = srq.next(entry);
    }
}

/// The next post publishes them: by any function, with any list, and also after a page fault.
#[test]
fn receives_of_a_leaked_shared_batch_are_posted_with_the_next() {
    for at in 0..6 * 4 * 2 {
        let (way, built, list) = (at % 6, at / 6 % 4, at as usize / 24);
        let mut cq = Cq::new(16, 64);
        let mut srq = shared_recv_queue(&cq, 8, 64, false);
        let data = [ONE[0]; 2];
        let data = &data[..1 + list];
        let mut entry = 0;
        for round in 0..20 {
            let mut expected = Vec::new();
            if way == 5 {
                // SAFETY: no device writes to it.
                unsafe { srq.queue.post(7, data) }.expect("space");
            }
            let mut batch = srq.queue.batch();
            for wr_id in 0..built {
                // SAFETY: no device writes to it.
                unsafe { batch.build(wr_id, data) }.expect("space");
                expected.push(wr_id);
            }
            std::mem::forget(batch);
            if way == 5 {
                // It hit a page fault, so it is posted again.
                cq.produce(Cqe::recv(&srq.qp, entry).page_fault());
                entry = srq.next(entry);
                assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
                srq.queue.publish();
                expected.push(7);
            }
            // SAFETY: no device writes to it.
            unsafe {
                match way {
                    0 => srq.queue.post(9, data).expect("space"),
                    1 => srq.queue.build(9, data).expect("space"),
                    2 if srq.queue.post_fast(|| (9, ONE[0])) => {}
                    2 => srq.queue.post(9, data).expect("space"),
                    _ => srq.queue.batch().build(9, data).expect("space"),
                }
            }
            srq.queue.publish();
            expected.push(9);
            let mut ids = Vec::new();
            for _ in &expected {
                cq.produce(Cqe::recv(&srq.qp, entry));
                ids.push(cq.queue.poll().expect("a completion").wr_id());
                entry = srq.next(entry);
            }
            assert_eq!(ids, expected, "way {way}, round {round}");
        }
        for id in 0..7 {
            // SAFETY: no device writes to it.
            unsafe { srq.queue.build(id, data) }.expect("all entries are free");
        }
    }
}

/// At the fork another thread may have been giving an entry back, for which the child would wait.
#[test]
fn a_forked_child_posts_no_shared_receive_again() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 8, 64, false);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.post(7, &ONE) }.expect("space");
    cq.produce(Cqe::recv(&srq.qp, 0).page_fault());
    assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
    // SAFETY: leaked memory, and no other thread uses the queues.
    cq.table.disown(unsafe { InChild::new() });
    srq.queue.publish();
    // SAFETY: no device writes to it.
    let posted = unsafe { srq.queue.post(8, &ONE) };
    assert_eq!((posted, srq.record.word(0)), (Err(PostError::ForkedChild), 1));
}

/// The device was never told of the receives. What it says of one must not keep the next post from
/// returning.
#[test]
fn a_page_fault_of_a_leaked_shared_batch_posts_its_receive_again() {
    for built in 1..4 {
        let mut cq = Cq::new(16, 64);
        let mut srq = shared_recv_queue(&cq, 8, 64, false);
        let mut batch = srq.queue.batch();
        for wr_id in 0..built {
            // SAFETY: no device writes to it.
            unsafe { batch.build(wr_id, &ONE) }.expect("space");
        }
        std::mem::forget(batch);
        cq.produce(Cqe::recv(&srq.qp, 0).page_fault());
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
        // SAFETY: no device writes to it.
        unsafe { srq.queue.post(9, &ONE) }.expect("space");
        let (mut entry, mut ids) = (0, Vec::new());
        for _ in 0..=built {
            entry = srq.next(entry);
            cq.produce(Cqe::recv(&srq.qp, entry));
            ids.push(cq.queue.poll().expect("a completion").wr_id());
        }
        assert_eq!(ids, (1..built).chain([0, 9]).collect::<Vec<_>>());
    }
}

/// As above, whatever the device says of each receive: that it is complete, or unused, or nothing.
#[test]
fn a_leaked_shared_batch_hides_no_entry_from_later_posts() {
    for (posted, built) in [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 3)] {
        for said in 0..3u64.pow(built) {
            let said: Vec<_> = (0..built).map(|place| said / 3u64.pow(place) % 3).collect();
            // More completions fill places of the free list that the batch has emptied.
            if said.iter().filter(|what| **what == COMPLETE).count() <= posted + 1 {
                leaked_batch(posted, &said, false);
                leaked_batch(posted, &said, posted > 0);
            }
        }
    }
}

const COMPLETE: u64 = 1;
const UNUSED: u64 = 2;

/// `said` is what the device says of each receive of the batch. If `is_faulted`, the first one that
/// was posted before is unused.
fn leaked_batch(posted: usize, said: &[u64], is_faulted: bool) {
    let mut cq = Cq::new(64, 64);
    let mut srq = shared_recv_queue(&cq, 8, 64, false);
    // SAFETY: no device writes to it.
    (0..posted).for_each(|id| unsafe { srq.queue.post(id as u64, &ONE) }.expect("space"));
    let mut batch = srq.queue.batch();
    for place in 0..said.len() {
        // SAFETY: no device writes to it.
        unsafe { batch.build((posted + place) as u64, &ONE) }.expect("space");
    }
    std::mem::forget(batch);
    let mut expected: Vec<_> = (0..(posted + said.len()) as u64).chain([9]).collect();
    let of_batch = said.iter().enumerate().map(|(place, what)| (posted + place, *what));
    for (entry, what) in of_batch.chain([(0, if is_faulted { UNUSED } else { 0 })]) {
        let cqe = Cqe::recv(&srq.qp, entry as u32);
        match what {
            COMPLETE => {
                cq.produce(cqe);
                assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(entry as u64));
                expected.retain(|id| *id != entry as u64);
            }
            UNUSED => {
                cq.produce(cqe.page_fault());
                assert_eq!(cq.queue.poll().map(drop), Err(PollError::Empty));
            }
            _ => {}
        }
    }
    // SAFETY: no device writes to it.
    unsafe { srq.queue.post(9, &ONE) }.expect("space");
    let mut ids = Vec::new();
    for entry in 0..8 {
        cq.produce(Cqe::recv(&srq.qp, entry));
        ids.extend(cq.queue.poll().map(|done| done.wr_id()));
    }
    ids.sort_unstable();
    assert_eq!(ids, expected, "{posted} posted, {said:?}, {is_faulted}");
    for id in 0..7 {
        // SAFETY: no device writes to it.
        unsafe { srq.queue.post(id, &ONE) }.expect("all entries are free");
    }
}

/// Lists of random lengths, posted singly and in batches: each ends with a terminator, whatever the
/// entry held before. It may have held a part of a list that was refused.
#[test]
fn lists_of_any_length_have_a_terminator_whatever_the_entry_held() {
    const MOST: usize = 8;
    let sges: [Sge; MOST + 1] = std::array::from_fn(|at| Sge::new(0x1000, 64 + at as u32, 7));
    let mut cq = Cq::new(64, 64);
    let mut rq = recv_queue(&cq, 8, 16 * MOST as u32, false);
    let mut random = Random::new(7);
    for index in 0..8000 {
        let length = random.below(MOST + 2);
        let mut list = sges;
        let unusual = random.below(2 * MOST);
        if let Some(sge) = list.get_mut(unusual) {
            *sge = sge.with_length(u32::MAX);
        }
        // SAFETY: no device writes to it.
        let posted = unsafe {
            if random.below(2) == 0 {
                rq.queue.build(0, &list[..length])
            } else {
                rq.queue.batch().expect("a state for it").build(0, &list[..length])
            }
        };
        if length > MOST || unusual < length {
            let too_many = length > MOST;
            let reason = if too_many { PostError::TooManySge } else { PostError::SgeTooLong };
            assert_eq!(posted, Err(reason));
            continue;
        }
        posted.expect("space");
        let head = rq.queue.head().wrapping_sub(1);
        let entry = rq.ring.read(head as usize % 8 * 16 * MOST, 16 * MOST);
        let (held, rest) = entry.split_at(16 * length);
        for (sge, length) in held.chunks(16).zip(64u32..) {
            assert_eq!(sge[..4], length.to_be_bytes(), "{index}");
        }
        assert!(rest.is_empty() || rest[..16] == TERMINATOR, "{index}: {length}");
        rq.queue.publish();
        cq.produce(Cqe::recv(&rq.handle, head));
        cq.queue.poll().expect("a completion");
    }
}

/// The same on a shared queue, whose entries begin with a link. An SGE may also be empty, and is
/// left out then.
#[test]
fn shared_lists_of_any_length_have_a_terminator_whatever_the_entry_held() {
    const MOST: usize = 7;
    const STRIDE: usize = 16 * (MOST + 1);
    let sges: [Sge; MOST + 1] = std::array::from_fn(|at| Sge::new(0x1000, 64 + at as u32, 7));
    let mut cq = Cq::new(64, 64);
    let mut srq = shared_recv_queue(&cq, 4, STRIDE as u32, false);
    let mut random = Random::new(8);
    let mut entry = 0;
    for index in 0..8000 {
        let mut list = sges;
        let unusual = random.below(2 * MOST);
        let is_long = random.below(2) == 0;
        if let Some(sge) = list.get_mut(unusual) {
            *sge = sge.with_length(if is_long { u32::MAX } else { 0 });
        }
        let list = &list[..random.below(MOST + 2)];
        // SAFETY: no device writes to it.
        let posted = unsafe {
            if random.below(2) == 0 {
                srq.queue.build(0, list)
            } else {
                srq.queue.batch().build(0, list)
            }
        };
        if list.len() > MOST || is_long && unusual < list.len() {
            let too_many = list.len() > MOST;
            let reason = if too_many { PostError::TooManySge } else { PostError::SgeTooLong };
            assert_eq!(posted, Err(reason));
            continue;
        }
        posted.expect("space");
        let held = srq.ring.read(entry as usize * STRIDE + 16, 16 * MOST);
        let real: Vec<_> = list.iter().map(Sge::length).filter(|length| *length != 0).collect();
        let (sges, rest) = held.split_at(16 * real.len());
        for (sge, length) in sges.chunks(16).zip(&real) {
            assert_eq!(sge[..4], length.to_be_bytes(), "{index}");
        }
        assert!(rest.is_empty() || rest[..16] == TERMINATOR, "{index}: {real:?}");
        srq.queue.publish();
        cq.produce(Cqe::recv(&srq.qp, entry));
        cq.queue.poll().expect("a completion");
        entry = srq.next(entry);
    }
}

/// In a striding queue with linked WQEs, each entry begins with the link, which belongs to the
/// device. The scatter list follows it, for posts and for copies of inline data.
#[test]
fn scatter_lists_of_linked_striding_entries_follow_the_link() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue_after(&cq, 4, 64, true, 1);
    let buffer = Memory::new(64);
    let address = buffer.ptr().as_ptr().expose_provenance() as u64;
    rq.ring.write(64, &[0xee; 16]);
    let lists = [vec![], vec![Sge::new(address, 32, 9)], vec![Sge::new(1, 2, 3); 3]];
    for list in &lists {
        // SAFETY: leaked memory.
        unsafe { rq.queue.build(7, list) }.expect("space");
        rq.queue.publish();
    }
    let entries = rq.ring.read(0, 192);
    assert_eq!(entries[16..32], TERMINATOR);
    assert_eq!(entries[64..80], [0xee; 16], "the link");
    assert_eq!(entries[80..84], 32u32.to_be_bytes());
    assert_eq!(entries[96..112], TERMINATOR);
    assert_eq!(entries[144..192], entries[144..160].repeat(3), "three SGEs fill an entry");
    // SAFETY: no device writes to it.
    let refused = unsafe { rq.queue.build(0, &[Sge::new(1, 2, 3); 4]) };
    assert_eq!(refused, Err(PostError::TooManySge));

    rq.queue.publish();
    cq.produce(Cqe::recv(&rq.handle, 0));
    assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 7);
    cq.produce(Cqe::recv(&rq.handle, 1).inline(CqeFormat::INLINE_32, b"hello"));
    assert_eq!(cq.queue.poll().expect("a completion").byte_len(), 5);
    assert_eq!(buffer.read(0, 5), b"hello");
}

#[test]
fn invalid_receives_are_refused_and_change_nothing() {
    let mut cq = Cq::new(16, 64);
    let mut rq = recv_queue(&cq, 4, 32, false);
    let mut srq = shared_recv_queue(&cq, 4, 64, false);
    let long = [Sge::new(0, MAX_SGE_LENGTH + 1, 1)];
    let many = [ONE[0]; 4];
    let (ring, before) = (srq.ring, srq.ring.read(0, 256));
    // SAFETY: no device writes to it, now and below.
    unsafe {
        assert_eq!(rq.queue.build(0, &long), Err(PostError::SgeTooLong));
        assert_eq!(rq.queue.build(0, &[ONE[0], long[0]]), Err(PostError::SgeTooLong));
        assert_eq!(rq.queue.build(0, &many[..3]), Err(PostError::TooManySge));
        assert_eq!(srq.queue.build(0, &long), Err(PostError::SgeTooLong));
        assert_eq!(srq.queue.build(0, &many), Err(PostError::TooManySge));
        rq.handle.set_state(QpState::Reset);
        rq.queue.recheck_state();
        assert_eq!(rq.queue.build(0, &ONE), Err(PostError::BadState));
        assert_eq!((rq.queue.head(), rq.queue.outstanding()), (0, 0));
        assert_eq!(ring.read(0, 256), before);
        rq.handle.set_state(QpState::Err);

        let lists = [&ONE[..], &[], &long];
        let mut batch = rq.queue.batch().expect("not in RESET");
        let built = lists.map(|data| batch.build(1, data));
        assert_eq!(built, [Ok(()), Ok(()), Err(PostError::SgeTooLong)]);
        batch.publish();
        let mut batch = srq.queue.batch();
        let built = lists.map(|data| batch.build(1, data));
        assert_eq!(built, [Ok(()), Ok(()), Err(PostError::SgeTooLong)]);
        batch.publish();
        assert_eq!((rq.record.word(0), srq.record.word(0)), (2, 2));
    }
    cq.produce(Cqe::recv(&rq.handle, 0));
    assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 1);
}

#[test]
fn laps_of_a_shared_receive_queue_in_any_order() {
    const ENTRIES: u32 = 16;
    let mut cq = Cq::new(64, 64);
    let mut srq = shared_recv_queue(&cq, ENTRIES, 64, false);
    let mut random = Random::new(3);
    // The device's position in the list of links.
    let mut device_head = 0;
    let mut held: Vec<(u32, u64)> = Vec::new();
    let mut posted = 0;
    for wr_id in 0..100_000u64 {
        // SAFETY: no device writes to it.
        match unsafe { srq.queue.build(wr_id, &ONE) } {
            Ok(()) => {
                srq.queue.publish();
                held.push((device_head, wr_id));
                device_head = srq.next(device_head);
                posted += 1;
                assert_eq!(srq.record.word(0), posted & 0xffff);
                assert!(held.len() < ENTRIES as usize);
            }
            Err(error) => {
                assert_eq!((error, held.len()), (PostError::Full, ENTRIES as usize - 1));
            }
        }
        while !held.is_empty() && random.below(3) == 0 {
            let (index, wr_id) = held.swap_remove(random.below(held.len()));
            cq.produce(Cqe::recv(&srq.qp, index));
            let completion = cq.queue.poll().expect("a completion");
            assert_eq!((completion.wr_id(), completion.user_context()), (wr_id, 2));
        }
    }
    let mut outstanding = Vec::new();
    srq.queue.for_each_outstanding(|id| outstanding.push(id));
    outstanding.sort_unstable();
    let mut expected: Vec<u64> = held.iter().map(|(_, wr_id)| *wr_id).collect();
    expected.sort_unstable();
    assert_eq!(outstanding, expected);
}

#[test]
fn an_entry_that_was_not_posted_completes_nothing() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.build(42, &ONE) }.expect("space");
    for index in [3, 0, 0, 1, 4] {
        cq.produce(Cqe::recv(&srq.qp, index));
    }
    let nothing = Err(PollError::NotOutstanding);
    let polls: Vec<_> = (0..5).map(|_| cq.queue.poll().map(|done| done.wr_id())).collect();
    assert_eq!(polls, [nothing, Ok(42), nothing, nothing, nothing]);
    assert_eq!((cq.queue.refused(), cq.queue.dropped()), (4, 0));
}

/// Also for requests of one SGE, which check only the limit of the fast path.
#[test]
fn a_shared_receive_queue_accepts_as_many_receives_as_granted() {
    let mut cq = Cq::new(32, 64);
    let mut srq = shared_recv_queue(&cq, 16, 64, false);
    let two = [ONE[0]; 2];
    let mut posted: u32 = 0;
    for (granted, outstanding) in [(15, 0), (4, 0), (9, 4), (2, 9), (15, 1), (15, 15)] {
        for index in 0..16 {
            if posted > outstanding {
                cq.produce(Cqe::recv(&srq.qp, index));
                posted -= u32::from(cq.queue.poll().is_ok());
            }
        }
        srq.handle.set_granted_receives(granted);
        let mut left = 0;
        srq.queue.for_each_outstanding(|_| left += 1);
        let mut count = left;
        loop {
            let data = if count % 3 == 0 { &two[..] } else { &ONE[..] };
            // SAFETY: no device writes to it.
            match unsafe { srq.queue.post(0, data) } {
                Ok(()) => count += 1,
                Err(error) => break assert_eq!(error, PostError::Full),
            }
        }
        assert_eq!(count, granted.max(left), "{granted} granted, {left} left");
        posted = count;
    }
}

#[test]
fn a_failed_shared_receive_queue_refuses_posts() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 8, 64, false);
    for data in [&ONE[..], &[ONE[0]; 2]] {
        // SAFETY: no device writes to it.
        unsafe { srq.queue.post(1, data) }.expect("space");
    }
    srq.handle.fail_shared_receives();
    // Also after a receive that the device did not use was posted again, which raises the limit of
    // the fast path.
    cq.produce(Cqe::recv(&srq.qp, 0).page_fault());
    assert!(cq.queue.poll().is_err());
    srq.queue.publish();
    for data in [&ONE[..], &[ONE[0]; 2], &[]] {
        // SAFETY: no device writes to it.
        assert_eq!(unsafe { srq.queue.post(1, data) }, Err(PostError::BadState));
        // SAFETY: no device writes to it.
        let built = unsafe { srq.queue.batch().build(1, data) };
        assert_eq!(built, Err(PostError::BadState));
    }
}

#[test]
fn an_xrc_srq_is_found_by_its_own_index() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.build(42, &ONE) }.expect("space");
    cq.produce(Cqe::recv(&srq.handle, 0));
    let completion = cq.queue.poll().expect("a completion");
    assert_eq!((completion.wr_id(), completion.user_context()), (42, 1));
}

#[test]
fn a_page_fault_posts_the_receive_again() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    // SAFETY: no device writes to it.
    unsafe { srq.queue.post(42, &ONE) }.expect("space");
    cq.produce(Cqe::recv(&srq.qp, 0).page_fault());
    assert!(cq.queue.poll().is_err(), "not a completion");
    let mut outstanding = Vec::new();
    srq.queue.for_each_outstanding(|id| outstanding.push(id));
    assert_eq!(outstanding, [42]);
    srq.queue.publish();
    assert_eq!(srq.record.word(0), 2);
    assert_eq!(srq.ring.read(32 + 16, 16), srq.ring.read(16, 16), "the same scatter list");
    cq.produce(Cqe::recv(&srq.qp, 1));
    assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 42);
    // All three entries are free again.
    for id in 0..3 {
        // SAFETY: no device writes to it.
        unsafe { srq.queue.build(id, &ONE) }.expect("space");
    }
}

#[test]
fn receives_are_posted_again_even_if_the_whole_ring_hit_page_faults() {
    let mut cq = Cq::new(16, 64);
    let mut srq = shared_recv_queue(&cq, 4, 32, false);
    for wr_id in 40..43 {
        // SAFETY: no device writes to it.
        unsafe { srq.queue.build(wr_id, &ONE) }.expect("space");
    }
    srq.queue.publish();
    for index in 0..3 {
        cq.produce(Cqe::recv(&srq.qp, index).page_fault());
    }
    assert!(cq.queue.poll().is_err(), "not a completion");
    srq.queue.publish();
    assert_eq!(srq.record.word(0), 6);
    let mut outstanding = Vec::new();
    srq.queue.for_each_outstanding(|id| outstanding.push(id));
    outstanding.sort_unstable();
    assert_eq!(outstanding, [40, 41, 42]);
}
