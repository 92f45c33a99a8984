//! The send queue over many laps: space, wr_ids, and that posted WQEs are never overwritten.

use std::collections::VecDeque;

use uverbs_mlx5::completion_queue::PollError;
use uverbs_mlx5::format::{AddressVector, Opcode, U32};
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    BindWindow, Datagram, Header, Inline, LocalInvalidate, Nop, Rc, RunTimeDestination,
    RunTimeOperation, Send, SendRequest, Steps, Ud, WindowAccess, WindowType, Write,
};

use crate::device::{Cq, Cqe, Random, Sq, send_queue, send_queue_for};

const NONE: PostFlags = PostFlags::empty();

/// A request in flight: its counter, length in blocks, id, and bytes as posted.
struct InFlight {
    start: u32,
    blocks: u32,
    wr_id: u64,
    bytes: Vec<u8>,
}

fn bytes_at(sq: &Sq<Rc>, start: u32, blocks: u32, ring: u32) -> Vec<u8> {
    (0..blocks).flat_map(|i| sq.ring.read(((start + i) % ring) as usize * 64, 64)).collect()
}

/// Posts one request of a random kind.
fn post_random(sq: &mut Sq<Rc>, random: &mut Random, wr_id: u64) -> Result<(), PostError> {
    let data: Vec<u8> = (0..random.below(201)).map(|i| i as u8).collect();
    let sges: Vec<Sge> =
        (0..random.below(9)).map(|i| Sge::new(i as u64, random.below(3) as u32, 7)).collect();
    let remote = Remote::new(random.below(1 << 30) as u64, 9);
    let bind = BindWindow {
        window: 1,
        window_type: WindowType::Type2,
        new_rkey: 2,
        lkey: 3,
        address: 4,
        length: 5,
        access: WindowAccess::REMOTE_READ,
        zero_based: false,
    };
    // SAFETY: no device reads the data.
    unsafe {
        match random.below(6) {
            0 => sq.queue.post(wr_id, Send, Inline(&data), NONE),
            1 => sq.queue.post(wr_id, Write(remote), sges.as_slice(), NONE),
            2 => sq.queue.post(wr_id, Write(remote), Sge::new(1, 2, 3), NONE),
            3 => sq.queue.post(wr_id, bind, (), NONE),
            4 => sq.queue.post(wr_id, LocalInvalidate(5), (), NONE),
            _ => sq.queue.post(wr_id, Nop, (), PostFlags::SIGNALED),
        }
    }
}

/// Before a post, as the C library does on a queue that is kept full.
fn reopen_sometimes(sq: &mut Sq<Rc>, random: &mut Random) -> bool {
    let blocks = 1 + random.below(4) as u32;
    !sq.queue.is_open() && random.below(2) == 0 && sq.queue.reopen(blocks)
}

#[test]
fn laps_of_every_kind_of_request() {
    const RING: u32 = 32;
    let mut cq = Cq::new(128, 64);
    let mut sq = send_queue::<Rc>(&cq, RING);
    let mut random = Random::new(1);
    let mut in_flight: VecDeque<InFlight> = VecDeque::new();
    let (mut full, mut wr_id) = (0, 0);
    // Past the wrap of the 16-bit index.
    while sq.queue.head() < 70_000 {
        let start = sq.queue.head();
        let before = sq.ring.read(0, RING as usize * 64);
        let reopened = reopen_sometimes(&mut sq, &mut random);
        let posted = post_random(&mut sq, &mut random, wr_id);
        if reopened {
            sq.queue.recompute_fast_limit();
        }
        let was_full = posted.is_err();
        match posted {
            Ok(()) => {
                let blocks = sq.queue.head() - start;
                let bytes = bytes_at(&sq, start, blocks, RING);
                assert_eq!(u32::from(bytes[7] & 0x3f).div_ceil(4), blocks);
                assert_eq!(bytes[1..3], (start as u16).to_be_bytes());
                in_flight.push_back(InFlight { start, blocks, wr_id, bytes });
                wr_id += 1;
                let used: u32 = in_flight.iter().map(|request| request.blocks).sum();
                assert!(used <= RING, "more in the ring than fits");
            }
            Err(error) => {
                assert_eq!(error, PostError::Full);
                assert_eq!(sq.ring.read(0, RING as usize * 64), before, "a full queue wrote");
                full += 1;
            }
        }
        for request in &in_flight {
            let now = bytes_at(&sq, request.start, request.blocks, RING);
            assert_eq!(now, request.bytes, "request {} was touched", request.wr_id);
        }
        if random.below(20) == 0 || was_full && random.below(4) == 0 {
            complete_some(&mut cq, &sq, &mut random, &mut in_flight);
        }
    }
    assert!(full > 100, "the ring was never full");
}

/// Completes a few of the requests in flight, as if only the last of them were signaled.
fn complete_some(
    cq: &mut Cq,
    sq: &Sq<Rc>,
    random: &mut Random,
    in_flight: &mut VecDeque<InFlight>,
) {
    if in_flight.is_empty() {
        return;
    }
    let last = in_flight.drain(..=random.below(in_flight.len())).next_back().expect("one");
    cq.produce(Cqe::send(&sq.handle, last.start));
    let completion = cq.queue.poll().expect("a completion");
    assert_eq!(completion.wr_id(), last.wr_id);
    assert!(completion.is_success());
}

#[test]
fn a_full_queue_has_all_its_space_back_after_completions() {
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    for lap in 0..40_000u32 {
        for i in 0..8 {
            // SAFETY: there is no data.
            unsafe { sq.queue.post(i, Nop, (), NONE) }.expect("space");
        }
        // SAFETY: there is no data.
        let refused = unsafe { sq.queue.post(9, Nop, (), NONE) };
        assert_eq!(refused, Err(PostError::Full));
        cq.produce(Cqe::send(&sq.handle, lap * 8 + 7));
        assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 7);
    }
}

#[test]
fn outstanding_requests_are_listed() {
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    for i in 0..5 {
        let data = [0; 100];
        let inline = Inline(&data[..if i % 2 == 0 { 8 } else { 80 }]);
        // SAFETY: inline data is copied, so no memory is shared.
        unsafe { sq.queue.post(i, Send, inline, NONE) }.expect("space");
    }
    cq.produce(Cqe::send(&sq.handle, 1));
    assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 1);
    let mut ids = Vec::new();
    sq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, [2, 3, 4]);
}

/// For requests of any size, and each way of posting: alone, in a batch, in a list, from a
/// template.
#[test]
fn max_requests_is_the_exact_bound() {
    bound_is_exact(0, &[0, 1, 2, 3, 4, 5, 6]);
}

/// A SEND that is built step by step.
struct PlainSend(fn() -> u64);

impl Header for PlainSend {
    fn octowords(&self) -> usize {
        1
    }
    fn opcode(&self) -> Opcode {
        Opcode::SEND
    }
    fn immediate(&self) -> U32 {
        U32::ZERO
    }
    fn remote(&self) -> Remote {
        Remote { address: 0, rkey: 0 }
    }
    fn wr_id(&self) -> u64 {
        (self.0)()
    }
    fn mode(&self) -> u32 {
        0
    }
}

/// An iterator that announces one element, however many follow.
struct SaysOne<I>(I);

impl<I: Iterator> Iterator for SaysOne<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (1, Some(1))
    }
}

/// All requests are posted, or the first that is not is named.
#[test]
fn a_list_that_announces_one_request_may_have_any_number() {
    for count in 0..=6u64 {
        let cq = Cq::new(8, 64);
        let mut sq = send_queue::<Rc>(&cq, 4);
        let nop = |wr_id| SendRequest {
            wr_id,
            operation: RunTimeOperation::Nop,
            destination: RunTimeDestination::Connected,
            flags: NONE,
            inline: false,
            data: &[],
        };
        // SAFETY: there is no data.
        let posted = unsafe { sq.queue.post_list(SaysOne((0..count).map(nop))) };
        let refused = posted.err().map(|error| (error.index, error.reason));
        assert_eq!(refused, (count > 4).then_some((4, PostError::Full)));
        let fit = count.min(4);
        assert_eq!((u64::from(sq.queue.head()), u64::from(sq.record.word(4))), (fit, fit));
        let mut ids = Vec::new();
        sq.queue.for_each_outstanding(|id| ids.push(id));
        assert_eq!(ids, (0..fit).collect::<Vec<_>>());
    }
}

/// Nothing is left of a request whose id panics.
#[test]
fn steps_whose_id_panics_begin_no_request() {
    let cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let (mut steps, common) = (Steps::NEW, sq.queue.common(|_| NONE));
    sq.post_nops(1);
    let mut build = |id: fn() -> u64| {
        // SAFETY: a SEND demands nothing of its data, and no device reads it.
        let name = || unsafe { sq.queue.name(&mut steps, &common, PlainSend(id)) };
        let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(name));
        // SAFETY: no device reads it.
        built.is_ok_and(|named| named && unsafe { sq.queue.add(0x1000, 8, 0) })
    };
    assert!(!build(|| panic!("no id")));
    assert!(build(|| 7));
    // SAFETY: the data is there.
    assert!(unsafe { sq.queue.publish_steps() });
    assert_eq!(sq.queue.head(), 2);
    let mut ids = Vec::new();
    sq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, [0, 7]);
}

/// The queue was opened for two blocks, because a datagram with data has two.
#[test]
fn a_datagram_without_data_is_all_that_a_reopened_queue_had_space_for() {
    let address = AddressVector::default().for_datagram(7, 8);
    for is_taken_back in [false, true] {
        let mut cq = Cq::new(16, 64);
        let mut sq = send_queue_for::<Ud>(&cq, 64, 4);
        for i in 0..4 {
            // SAFETY: there is no data, here and below.
            unsafe { sq.queue.post(i, Nop, (), NONE) }.expect("space");
        }
        cq.produce(Cqe::send(&sq.handle, 0));
        cq.queue.poll().expect("a completion");
        let (mut steps, common) = (Steps::NEW, sq.queue.common(|_| NONE));
        assert!(sq.queue.reopen(2));
        // SAFETY: nothing else was built.
        unsafe {
            assert!(sq.queue.name(&mut steps, &common, PlainSend(|| 7)));
            assert!(sq.queue.add_destination(&steps, Datagram(&address)));
            if is_taken_back {
                assert!(sq.queue.take_back().is_some());
                sq.queue.post(7, Nop, (), NONE).expect("space");
            } else {
                assert!(sq.queue.publish_long());
            }
            assert_eq!(sq.queue.post(8, Nop, (), NONE), Err(PostError::Full));
        }
    }
}

/// The second post is the first of a lap of the 16-bit counter, and looks for space.
#[test]
fn steps_in_a_new_lap_of_the_counter_are_counted() {
    let cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(0xffff, false) };
    let (mut steps, common) = (Steps::NEW, sq.queue.common(|_| NONE));
    for _ in 0..2 {
        // SAFETY: inline data is copied, so no memory is shared.
        assert_eq!(unsafe { sq.queue.post(1, Send, Inline(&[1; 8]), NONE) }, Ok(()));
    }
    assert!(sq.queue.has_no_steps());
    // SAFETY: a SEND demands nothing of its data, and no device reads it.
    let built = unsafe {
        sq.queue.name(&mut steps, &common, PlainSend(|| 7)) && sq.queue.add(0x1000, 8, 0)
    };
    assert!(built && !sq.queue.has_no_steps());
    // SAFETY: the data is there.
    assert!(unsafe { sq.queue.publish_steps() });
    assert_eq!(sq.queue.head(), 0x1_0002);
}

/// The queue starts just before its 16-bit counter wraps. The request with index 0xffff frees its
/// block as others do.
#[test]
fn a_full_queue_near_the_counters_wrap_waits_for_its_completions() {
    [0x1_fff8, 0xffff_fff8].into_iter().for_each(a_full_queue_waits);
}

/// On a queue whose counter starts at `start`.
fn a_full_queue_waits(start: u32) {
    let mut cq = Cq::new(64, 64);
    let mut sq = send_queue::<Rc>(&cq, 16);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(start, false) };
    let post = |sq: &mut Sq<Rc>| {
        // SAFETY: inline data is copied, so no memory is shared.
        unsafe { sq.queue.post(1, Send, Inline(&[1; 8]), PostFlags::SIGNALED) }
    };
    for _ in 0..16 {
        assert_eq!(post(&mut sq), Ok(()));
    }
    assert_eq!(post(&mut sq), Err(PostError::Full));
    for completed in [7, 15].map(|ahead| start.wrapping_add(ahead)) {
        cq.produce(Cqe::send(&sq.handle, completed));
        assert_eq!(cq.queue.poll().map(|done| done.wr_id()), Ok(1));
        for _ in 0..8 {
            assert_eq!(post(&mut sq), Ok(()), "after {completed:#x}");
        }
        assert_eq!(post(&mut sq), Err(PostError::Full));
    }
}

/// Without batches and lists, on queues whose 32-bit counter starts at its half and near its end.
/// At the end of a lap of the counter's 16 bits the fast path's place is above them.
#[test]
fn a_batch_that_fills_the_ring_up_to_the_counters_16_bits_has_no_space_left() {
    const RING: u32 = 8;
    let cq = Cq::new(8, 64);
    let mut sq = send_queue::<Rc>(&cq, RING);
    // SAFETY: nothing was posted, and no device reads the ring.
    unsafe { sq.queue.continue_at((1 << 16) - RING, false) };
    let (one, empty) = (Sge::new(1, 2, 3), Sge::new(1, 0, 3));
    let mut batch = sq.queue.batch().unwrap();
    for id in 0..RING.into() {
        // SAFETY: no device reads the data.
        unsafe { batch.build(id, Write(Remote::new(1, 2)), one, NONE) }.unwrap();
    }
    let before = sq.ring.read(0, 64);
    for data in [empty, one] {
        // SAFETY: as above.
        let built = unsafe { batch.build(9, Write(Remote::new(1, 2)), data, NONE) };
        assert_eq!(built, Err(PostError::Full));
        assert_eq!(sq.ring.read(0, 64), before);
    }
    batch.publish();
    assert_eq!(sq.queue.head(), 1 << 16);
}

#[test]
fn max_requests_is_the_exact_bound_without_batches() {
    bound_is_exact(0x8000_0000, &[0, 1, 2, 4, 6]);
    bound_is_exact(0xffff_ffe9, &[0, 1, 2, 4, 6]);
}

/// Posts in these ways on a queue whose counter starts at `head`.
fn bound_is_exact(head: u32, ways: &[usize]) {
    let mut cq = Cq::new(64, 64);
    let mut sq = send_queue_for::<Rc>(&cq, 16, 4);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(head, false) };
    let long = [1; 80];
    let mut random = Random::new(9);
    // The first block of each outstanding request.
    let mut outstanding = VecDeque::new();
    let mut template = sq.queue.template(Send, Inline(&long[..8]), NONE).expect("one block");
    assert!(template.set_inline(&[2; 8]));
    let longer = sq.queue.long_template::<2, _, _>(Send, Inline(&long), NONE).expect("two blocks");
    for _ in 0..20_000 {
        let way = ways[random.below(ways.len())];
        let start = sq.queue.head();
        let short = Inline(&long[..8]);
        let reopened = reopen_sometimes(&mut sq, &mut random);
        // SAFETY: inline data is copied, so no memory is shared.
        let posted = unsafe {
            match way {
                0 => sq.queue.post(1, Send, short, NONE),
                1 => sq.queue.post(1, Send, Inline(&long[..60]), NONE),
                2 => sq.queue.post_template(1, &template),
                3 => one_of_batch(&mut sq, Inline(&long[..random.below(80)])),
                4 => sq.queue.post(1, LocalInvalidate(7), (), NONE),
                6 => sq.queue.post_template(1, &longer),
                _ => in_a_list(&mut sq),
            }
        };
        if reopened {
            sq.queue.recompute_fast_limit();
        }
        let blocks = sq.queue.head().wrapping_sub(start);
        if outstanding.len() == 4 {
            assert_eq!((posted, blocks), (Err(PostError::Full), 0), "way {way}");
        } else {
            assert_eq!(posted, Ok(()), "way {way}, {} outstanding", outstanding.len());
            assert!(blocks >= 1);
            outstanding.push_back(start);
        }
        if random.below(3) == 0 && !outstanding.is_empty() {
            let last = outstanding.drain(..=random.below(outstanding.len())).next_back();
            cq.produce(Cqe::send(&sq.handle, last.expect("one")));
            cq.queue.poll().expect("a completion");
        }
        assert_eq!(sq.queue.free_requests() as usize, 4 - outstanding.len());
    }
}

/// # Safety
/// As for a post.
unsafe fn one_of_batch(sq: &mut Sq<Rc>, data: Inline<'_>) -> Result<(), PostError> {
    let mut batch = sq.queue.batch()?;
    // SAFETY: passed on to the caller.
    let posted = unsafe { batch.build(1, Send, data, NONE) };
    batch.publish();
    posted
}

/// # Safety
/// As for a post.
unsafe fn in_a_list(sq: &mut Sq<Rc>) -> Result<(), PostError> {
    let request = SendRequest {
        wr_id: 1,
        operation: RunTimeOperation::Nop,
        destination: RunTimeDestination::Connected,
        flags: NONE,
        inline: false,
        data: &[],
    };
    // SAFETY: passed on to the caller.
    unsafe { sq.queue.post_list([request]) }.map_err(|error| error.reason)
}

#[test]
fn a_batch_that_is_aborted_counts_no_requests() {
    let cq = Cq::new(64, 64);
    let mut sq = send_queue_for::<Rc>(&cq, 16, 4);
    for forget in [false, true, false] {
        let mut batch = sq.queue.batch().expect("ready");
        for i in 0..5 {
            // SAFETY: inline data is copied, so no memory is shared.
            let posted = unsafe { batch.build(i, Send, Inline(&[0; 100]), NONE) };
            assert_eq!(posted, if i < 4 { Ok(()) } else { Err(PostError::Full) });
        }
        if forget {
            std::mem::forget(batch)
        } else {
            batch.abort()
        }
        assert_eq!((sq.queue.free_requests(), sq.queue.head()), (4, 0));
    }
}

/// Publishing requests of before a forgotten batch does not raise the number of requests.
#[test]
fn publishing_after_a_forgotten_batch_does_not_raise_the_bound() {
    for way in 0..3 {
        let cq = Cq::new(64, 64);
        let mut sq = send_queue_for::<Rc>(&cq, 64, 4);
        let mut batch = sq.queue.batch().expect("ready");
        // SAFETY: there is no data, or it is inline, here and below.
        unsafe { batch.build(0, Nop, (), NONE) }.expect("space");
        drop(batch);
        let mut batch = sq.queue.batch().expect("ready");
        for i in 1..4 {
            // SAFETY: as above.
            unsafe { batch.build(i, Send, Inline(&[0; 200]), NONE) }.expect("space");
        }
        std::mem::forget(batch);
        match way {
            0 => sq.queue.publish(),
            1 => sq.queue.batch().expect("ready").publish(),
            _ => sq.queue.recheck_state(),
        }
        // SAFETY: as above.
        let posted = (1..20).take_while(|i| unsafe { sq.queue.post(*i, Nop, (), NONE) }.is_ok());
        assert_eq!(posted.count(), 3, "way {way}");
    }
}

#[test]
fn a_completion_of_an_index_that_is_not_outstanding_is_refused() {
    let mut cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    for i in 0..8 {
        // SAFETY: there is no data.
        unsafe { sq.queue.post(i, Nop, (), NONE) }.expect("space");
    }
    for lie in [8, 100, 0x8000, 0xffff] {
        cq.produce(Cqe::send(&sq.handle, lie));
        assert_eq!(cq.queue.poll().map(drop), Err(PollError::NotOutstanding));
        assert_eq!(sq.queue.free_blocks(), 0, "index {lie}");
    }
    cq.produce(Cqe::send(&sq.handle, 7));
    cq.queue.poll().expect("a completion");
    assert_eq!(sq.queue.free_blocks(), 8);
}

#[test]
fn states_in_which_sends_are_refused() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        sq.handle.set_state(state);
        // SAFETY: there is no data.
        let refused = unsafe { sq.queue.post(1, Nop, (), NONE) };
        assert_eq!(refused, Err(PostError::BadState), "{state:?}");
        assert_eq!(sq.queue.batch().map(drop), Err(PostError::BadState));
    }
    assert_eq!((sq.queue.head(), sq.record.word(4)), (0, 0));
    for state in [QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err] {
        sq.handle.set_state(state);
        // SAFETY: there is no data.
        unsafe { sq.queue.post(1, Nop, (), NONE) }.expect("the state allows it");
    }
}

/// A post does not check the state. `recheck_state` does, after a change.
#[test]
fn a_queue_that_was_reset_refuses_the_next_send() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let template = sq.queue.template(Send, Sge::new(1, 2, 3), NONE).expect("one block");
    // SAFETY: there is no data.
    unsafe { sq.queue.post(1, Nop, (), NONE) }.expect("ready");
    sq.handle.set_state(QpState::Reset);
    sq.queue.recheck_state();
    // SAFETY: there is no data, and no device reads the template's.
    unsafe {
        assert_eq!(sq.queue.post(2, Nop, (), NONE), Err(PostError::BadState));
        assert_eq!(sq.queue.post_template(2, &template), Err(PostError::BadState));
        assert_eq!(sq.queue.batch().map(drop), Err(PostError::BadState));
        sq.handle.set_state(QpState::Rts);
        sq.queue.post_template(2, &template).expect("ready again");
    }
    assert_eq!((sq.queue.head(), sq.record.word(4)), (2, 2));
}

/// A queue whose state refuses posts rings no doorbell, not even for requests of a dropped batch.
#[test]
fn a_list_that_is_refused_for_the_state_rings_no_doorbell() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let mut batch = sq.queue.batch().expect("ready");
    // SAFETY: there is no data.
    unsafe { batch.build(1, Nop, (), NONE) }.expect("space");
    drop(batch);
    sq.handle.set_state(QpState::Reset);
    sq.queue.recheck_state();
    let request = SendRequest {
        wr_id: 2,
        operation: RunTimeOperation::Send,
        destination: RunTimeDestination::Connected,
        flags: NONE,
        inline: false,
        data: &[],
    };
    for count in [1, 2] {
        // SAFETY: there is no data.
        let refused = unsafe { sq.queue.post_list(std::iter::repeat_n(&request, count)) };
        assert_eq!(refused.map_err(|refused| refused.reason), Err(PostError::BadState));
        assert_eq!(sq.record.word(4), 0);
    }
}

/// The last request takes one block or two.
#[test]
fn the_doorbell_has_the_control_segment_of_the_last_request_of_a_batch() {
    let cq = Cq::new(16, 64);
    let sges = [Sge::new(1, 2, 3); 4];
    for longer_last in [false, true] {
        let mut sq = send_queue::<Rc>(&cq, 16);
        let mut batch = sq.queue.batch().expect("ready");
        // SAFETY: no device reads the data.
        unsafe {
            batch.build(1, Send, Sge::new(1, 2, 3), NONE).expect("space");
            batch.build(2, Send, &sges[..], NONE).expect("space");
            if !longer_last {
                batch.build(3, Nop, (), NONE).expect("space");
            }
        }
        batch.publish();
        let last = if longer_last { 1 } else { 3 };
        assert_eq!(sq.register.read(0, 8), sq.ring.read(64 * last, 8), "{longer_last}");
    }
}

/// Within batches, the 16-bit counter wraps and requests of two blocks cross the ring's end.
#[test]
fn batches_write_the_same_bytes_as_single_posts() {
    let mut cq = Cq::new(16, 64);
    let (mut one, mut many) = (send_queue::<Rc>(&cq, 32), send_queue::<Rc>(&cq, 32));
    let mut random = Random::new(5);
    while one.queue.head() < 3 << 16 {
        let mut requests = Vec::new();
        let mut batch = many.queue.batch().expect("the state allows it");
        for id in 0..1 + random.below(8) as u64 {
            let data = vec![id as u8; random.below(80)];
            let segment = if data.is_empty() { 0 } else { 4 + data.len() };
            requests.push((one.queue.head() as usize, 32 + segment));
            let operation = Write(Remote::new(id, 7));
            // SAFETY: inline data is copied, so no memory is shared.
            unsafe {
                one.queue.post(id, operation, Inline(&data), NONE).expect("space");
                batch.build(id, operation, Inline(&data), NONE).expect("space");
            }
        }
        batch.publish();
        let head = one.queue.head();
        assert_eq!((many.queue.head(), many.record.word(4)), (head, head & 0xffff));
        let rings = [&one, &many].map(|sq| sq.ring.read(0, 32 * 64));
        for (start, bytes) in requests {
            // All bytes except the queues' numbers and the padding after inline data.
            for at in (0..4).chain(7..bytes).map(|at| (start * 64 + at) % (32 * 64)) {
                assert_eq!(rings[0][at], rings[1][at], "byte {at} of the ring");
            }
        }
        for sq in [&mut one, &mut many] {
            // A last request of one block, whose completion retires all.
            // SAFETY: there is no data.
            unsafe { sq.queue.post(0, Nop, (), NONE) }.expect("space");
            let last = sq.queue.head() - 1;
            cq.produce(Cqe::send(&sq.handle, last));
            cq.queue.poll().expect("a completion");
        }
    }
}

#[test]
fn an_aborted_batch_leaves_nothing() {
    let cq = Cq::new(16, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    // SAFETY: there is no data, now and below.
    unsafe {
        let mut batch = sq.queue.batch().expect("the state allows it");
        batch.build(1, Nop, (), NONE).expect("space");
        batch.abort();
        assert_eq!((sq.queue.head(), sq.queue.unpublished_blocks()), (0, 0));
        assert_eq!(sq.record.word(4), 0);
        sq.queue.post(2, Nop, (), NONE).expect("space");
    }
    assert_eq!((sq.queue.head(), sq.record.word(4)), (1, 1));
}

#[test]
fn a_template_writes_the_same_bytes_as_its_request() {
    let mut cq = Cq::new(64, 64);
    let mut sq = send_queue::<Rc>(&cq, 8);
    let (old, new): (Vec<u8>, Vec<u8>) = ((1..17).collect(), (21..37).collect());
    let (from, to) = (Remote::new(0x1000, 7), Remote::new(0x2040, 7));
    let mut inline = sq.queue.template(Write(from), Inline(&old), NONE).expect("one block");
    let mut gather = sq.queue.template(Send, Sge::new(1, 2, 3), NONE).expect("one block");
    assert!(inline.set_inline(&new));
    inline.set_remote(to);
    assert!(gather.set_sge(Sge::new(4, 5, 6)));
    assert!(!inline.set_inline(&new[1..]) && !inline.set_sge(Sge::new(4, 5, 6)));
    assert!(!gather.set_inline(&new) && !gather.set_sge(Sge::new(4, 0, 6)));
    // SAFETY: no device reads the data.
    unsafe {
        sq.queue.post(1, Write(to), Inline(&new), NONE).expect("space");
        sq.queue.post_template(2, &inline).expect("space");
        sq.queue.post(3, Send, Sge::new(4, 5, 6), NONE).expect("space");
        sq.queue.post_template(4, &gather).expect("space");
    }
    for at in [0, 128] {
        let (mut by_template, mut posted) = (sq.ring.read(at + 64, 64), sq.ring.read(at, 64));
        assert_eq!(by_template[1..3], ((at / 64 + 1) as u16).to_be_bytes());
        by_template[1..3].fill(0);
        posted[1..3].fill(0);
        assert_eq!(by_template, posted);
    }
    cq.produce(Cqe::send(&sq.handle, 3));
    assert_eq!(cq.queue.poll().expect("a completion").wr_id(), 4);
}
