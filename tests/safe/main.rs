//! The safe layer: each slot that is passed to a queue is returned, whatever happens.
#![forbid(unsafe_code)]

mod batches;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod parity;
mod shared;

use std::time::Instant;

use common::{ALL_ACCESS, REMOTE, pattern};
use uverbs::cq::{Status, WorkCompletion};
use uverbs::qp::{Inline, PostError, PostFlags};
use uverbs::qp_type::{QueuePairType, Rc, Uc};
use uverbs::{
    Buffer, Completion, CompletionQueue, Context, MemoryRegion, PollError, ProtectionDomain,
    QueuePair, Slab, op,
};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

struct Safe {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    slab: Slab,
}

impl Safe {
    fn new() -> Self {
        Self::on(&common::open())
    }

    fn on(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).build().unwrap();
        let slab = pd.create_slab(32, 1000).unwrap();
        Self { pd, cq, slab }
    }

    fn pair<T: QueuePairType + uverbs::qp_type::Connected>(&self) -> (QueuePair<T>, QueuePair<T>) {
        let build = || {
            let builder = self.pd.create_qp::<T>(self.cq.handle(), self.cq.handle());
            builder.access(REMOTE).build().unwrap()
        };
        let (mut a, mut b) = (build(), build());
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b).unwrap();
        b.connect(&end_a).unwrap();
        (a, b)
    }

    fn region(&self) -> MemoryRegion {
        self.pd.register(Buffer::new(4096).unwrap(), ALL_ACCESS).unwrap()
    }

    fn completion(&mut self) -> Done {
        completion(&mut self.cq)
    }

    /// All slots that are free.
    fn all_slots(&self) -> Vec<uverbs::Slot> {
        std::iter::from_fn(|| self.slab.take()).collect()
    }
}

/// A completion that does not borrow the queue.
#[derive(Debug)]
struct Done {
    slot: Option<uverbs::Slot>,
    completion: WorkCompletion,
}

impl From<Completion<'_>> for Done {
    fn from(done: Completion<'_>) -> Self {
        let (slot, completion) = done.copied();
        Self { slot, completion }
    }
}

/// Waits for the next completion.
fn completion(cq: &mut CompletionQueue) -> Done {
    let start = Instant::now();
    loop {
        match cq.poll() {
            Ok(completion) => return completion.into(),
            Err(PollError::Empty) => assert!(start.elapsed() < common::PATIENCE, "nothing came"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn sends_and_receives_return_their_slots() {
    let mut safe = Safe::new();
    let (mut a, mut b) = safe.pair::<Rc>();
    for round in 0..100u8 {
        let mut receive = safe.slab.take().unwrap();
        receive.set_tag(7);
        b.post_receive(receive).unwrap();
        let mut send = safe.slab.take().unwrap();
        let text = pattern(usize::from(round) * 10, round);
        send.write(&text).unwrap();
        a.post_send(op::Send, send, SIGNALED).unwrap();
        assert_eq!(safe.slab.free(), 30);
        let (one, two) = (safe.completion(), safe.completion());
        let received = if one.slot.as_ref().unwrap().tag() == 7 { one } else { two };
        let mut slot = received.slot.unwrap();
        assert_eq!(slot[..], text);
        slot.set_tag(0);
    }
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_slot_is_empty_at_first_and_no_longer_than_its_capacity() {
    let slab = Safe::new().slab;
    let mut slot = slab.take().unwrap();
    assert!(slot.is_empty());
    let capacity = slot.capacity();
    assert_eq!((slot.set_len(capacity + 1), slot.len()), (capacity, capacity));
    slot.fill(7);
    drop(slot);
    let mut again = slab.take().unwrap();
    assert!(again.is_empty());
    assert_eq!((again.set_len(2), &again[..]), (2, &[7; 2][..]), "the last use's bytes");
}

#[test]
fn results_of_reads_and_atomics_are_in_their_slots() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    theirs.view().write(0, &pattern(500, 1)).unwrap();
    let mut slot = safe.slab.take().unwrap();
    assert_eq!(slot.set_len(500), 500);
    a.post_send(op::Read(theirs.remote(0).unwrap()), slot, SIGNALED).unwrap();
    assert_eq!(safe.completion().slot.unwrap()[..], pattern(500, 1));
    theirs.view().write(8, &41u64.to_ne_bytes()).unwrap();
    let add = op::FetchAdd { remote: theirs.remote(8).unwrap(), add: 1 };
    a.post_atomic(add, safe.slab.take().unwrap(), SIGNALED).unwrap();
    assert_eq!(safe.completion().slot.unwrap()[..], 41u64.to_ne_bytes());
    a.post_inline(op::Write(theirs.remote(0).unwrap()), b"inline", SIGNALED).unwrap();
    let done = safe.completion();
    assert!(done.slot.is_none() && done.completion.status() == Status::Success);
}

#[test]
fn a_signaled_send_releases_the_unsignaled_slots_before_it() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    for _ in 0..50 {
        for i in 0..10 {
            let mut slot = safe.slab.take().unwrap();
            slot.write(&[i]).unwrap();
            let flags = if i == 9 { SIGNALED } else { PostFlags::empty() };
            a.post_send(op::Write(theirs.remote(i as usize).unwrap()), slot, flags).unwrap();
        }
        assert_eq!(safe.slab.free(), 22);
        drop(safe.completion().slot.unwrap());
        assert_eq!(safe.slab.free(), 32);
    }
    assert_eq!(theirs.view().to_vec()[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn a_refused_send_leaves_the_chain_of_unsignaled_slots_unchanged() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let odd = op::FetchAdd { remote: theirs.remote(4).unwrap(), add: 1 };
    let write = || op::Write(theirs.remote(0).unwrap());
    for round in 0..4 {
        a.post_send(write(), safe.slab.take().unwrap(), PostFlags::empty()).unwrap();
        a.post_send(write(), safe.slab.take().unwrap(), PostFlags::empty()).unwrap();
        for flags in [SIGNALED, PostFlags::empty()] {
            let refused = a.post_atomic(odd, safe.slab.take().unwrap(), flags).unwrap_err();
            assert_eq!(refused.reason, PostError::BadAtomic);
            let mut batch = a.batch().unwrap();
            assert!(batch.build_atomic(odd, refused.slot, flags).is_err());
            drop(batch);
            a.post_inline(write(), &[0; 1000], flags).unwrap_err();
        }
        assert_eq!(safe.slab.free(), 30, "two are in flight");
        // The signaled request that releases them has a slot, or inline data.
        if round % 2 == 0 {
            a.post_send(write(), safe.slab.take().unwrap(), SIGNALED).unwrap();
        } else {
            a.post_inline(write(), b"inline", SIGNALED).unwrap();
        }
        drop(safe.completion());
        assert_eq!(safe.slab.free(), 32);
    }
}

#[test]
fn a_failed_unsignaled_send_releases_its_slot_once() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"nowhere").unwrap();
    let nowhere = uverbs::Remote::new(0x1000, 0xdead_be00);
    a.post_send(op::Write(nowhere), slot, PostFlags::empty()).unwrap();
    let failed = safe.completion();
    assert_eq!(failed.completion.status(), Status::RemoteAccess);
    assert!(failed.slot.is_none());
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"flushed").unwrap();
    a.post_send(op::Write(nowhere), slot, SIGNALED).unwrap();
    let flushed = safe.completion();
    assert_eq!(flushed.completion.status(), Status::Flushed);
    assert_eq!(flushed.slot.as_deref(), Some(&b"flushed"[..]));
    drop(flushed);
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn dropped_queue_pairs_release_their_slots() {
    let mut safe = Safe::new();
    let (mut a, mut b) = safe.pair::<Rc>();
    for _ in 0..8 {
        b.post_receive(safe.slab.take().unwrap()).unwrap();
    }
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"x").unwrap();
    a.post_send(op::Send, slot, PostFlags::empty()).unwrap();
    while safe.completion().completion.qp_num() != b.number() {}
    drop(a);
    drop(b);
    assert_eq!(safe.cq.poll().err(), Some(PollError::Empty));
    assert_eq!(safe.all_slots().len(), 32);
}

#[test]
fn slots_of_a_dropped_queue_pair_are_released_by_its_poller() {
    let mut safe = Safe::new();
    let (mut a, b) = safe.pair::<Uc>();
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"x").unwrap();
    a.post_send(op::Send, slot, SIGNALED).unwrap();
    drop(a);
    drop(b);
    // Until the CQ has been polled past the completion, a poller might be returning the slot.
    assert!(std::iter::from_fn(|| safe.slab.take()).collect::<Vec<_>>().len() <= 32);
    while safe.cq.poll().is_ok() {}
    assert_eq!(std::iter::from_fn(|| safe.slab.take()).collect::<Vec<_>>().len(), 32);
}

#[test]
fn slots_are_released_if_the_completion_queue_is_dropped_first() {
    let safe = Safe::new();
    let (mut a, mut b) = safe.pair::<Rc>();
    b.post_receive(safe.slab.take().unwrap()).unwrap();
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"x").unwrap();
    a.post_send(op::Send, slot, SIGNALED).unwrap();
    let Safe { pd, cq, slab } = safe;
    drop(cq);
    drop((a, b));
    drop(pd);
    assert_eq!(std::iter::from_fn(|| slab.take()).collect::<Vec<_>>().len(), 32);
}

#[test]
fn leaked_queue_pairs_still_receive_into_their_slots() {
    let mut safe = Safe::new();
    let (mut a, mut b) = safe.pair::<Rc>();
    b.post_receive(safe.slab.take().unwrap()).unwrap();
    std::mem::forget(b);
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"still arrives").unwrap();
    a.post_send(op::Send, slot, SIGNALED).unwrap();
    let mut texts = [safe.completion(), safe.completion()].map(|done| done.slot.unwrap().to_vec());
    texts.sort();
    assert_eq!(texts, [b"still arrives".to_vec(), b"still arrives".to_vec()]);
    assert_eq!(safe.slab.free(), 32);
}

#[test]
fn a_refused_post_returns_its_slot_unchanged() {
    let safe = Safe::new();
    let builder = safe.pd.create_qp::<Rc>(safe.cq.handle(), safe.cq.handle());
    let mut unconnected = builder.build().unwrap();
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"mine").unwrap();
    let refused = unconnected.post_send(op::Send, slot, SIGNALED).unwrap_err();
    assert_eq!(refused.reason, PostError::BadState);
    assert_eq!(&refused.slot[..], b"mine");
    let small = safe.pd.create_slab(1, 4).unwrap().take().unwrap();
    let add = op::FetchAdd { remote: uverbs::Remote::new(0, 0), add: 1 };
    assert_eq!(
        unconnected.post_atomic(add, small, SIGNALED).unwrap_err().reason,
        PostError::BadAtomic
    );
}

#[test]
fn slabs_live_as_long_as_their_slots() {
    let safe = Safe::new();
    let mut slot = safe.slab.take().unwrap();
    slot.write(b"outlives").unwrap();
    let Safe { pd, cq, slab } = safe;
    drop((pd, cq, slab));
    assert_eq!(&slot[..], b"outlives");
    let moved = std::thread::spawn(move || slot.len()).join().unwrap();
    assert_eq!(moved, 8);
}

#[test]
fn the_poller_may_be_another_thread_than_the_poster() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let remote = theirs.remote(0).unwrap();
    let slab = safe.slab.clone();
    const COUNT: usize = 2000;
    std::thread::scope(|scope| {
        let poster = scope.spawn(move || {
            for i in 0..COUNT {
                let start = Instant::now();
                let mut slot = loop {
                    if let Some(slot) = slab.take() {
                        break slot;
                    }
                    assert!(start.elapsed() < common::PATIENCE, "no thread polls");
                    std::thread::yield_now();
                };
                slot.write(&(i as u64).to_ne_bytes()).unwrap();
                a.post_send(op::Write(remote), slot, SIGNALED).unwrap();
            }
            a
        });
        for i in 0..COUNT {
            let done = safe.completion();
            assert_eq!(done.slot.unwrap()[..], (i as u64).to_ne_bytes());
        }
        drop(poster.join().unwrap());
    });
    assert_eq!(safe.slab.free(), 32);
}

/// The peer writes and the view writes different bytes of the same words at the same time.
#[test]
fn a_view_and_a_peers_writes_do_not_change_each_others_bytes() {
    const WRITTEN: std::ops::Range<usize> = 5..19;
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let remote = theirs.remote(WRITTEN.start).unwrap();
    let (before, after) = (0..WRITTEN.start, WRITTEN.end..WRITTEN.end + 9);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            for round in 0..20_000_u32 {
                for own in [before.clone(), after.clone()] {
                    let bytes = pattern(own.len(), round as u8);
                    theirs.view().write(own.start, &bytes).unwrap();
                    let mut back = vec![0; own.len()];
                    theirs.view().read(own.start, &mut back).unwrap();
                    assert_eq!(back, bytes);
                }
            }
        });
        let mut round = 0_u8;
        while !looks.is_finished() {
            round = round.wrapping_add(1);
            let mut slot = safe.slab.take().unwrap();
            slot.write(&[round; WRITTEN.end - WRITTEN.start]).unwrap();
            a.post_send(op::Write(remote), slot, SIGNALED).unwrap();
            safe.completion();
            assert!(theirs.view().to_vec()[WRITTEN].iter().all(|byte| *byte == round));
        }
    });
}

#[test]
fn inline_data_needs_no_slot_and_has_a_limit() {
    let safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let _: Inline<'_> = Inline(b"");
    let long = [0; 4096];
    let refused = a.post_inline(op::Write(theirs.remote(0).unwrap()), &long, SIGNALED);
    assert_eq!(refused, Err(PostError::InlineTooLong));
}

#[test]
fn slots_of_another_domain_are_refused() {
    let safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    // Another PD of this context, and one of another context.
    let others = [safe.pd.context().alloc_pd().unwrap(), common::open().alloc_pd().unwrap()];
    for pd in others {
        let slab = pd.create_slab(3, 64).unwrap();
        let add = op::FetchAdd { remote: uverbs::Remote::new(0, 0), add: 1 };
        let slot = || slab.take().unwrap();
        let refused = [
            a.post_send(op::Send, slot(), SIGNALED).unwrap_err(),
            a.post_receive(slot()).unwrap_err(),
            a.post_atomic(add, slot(), SIGNALED).unwrap_err(),
        ];
        assert!(refused.iter().all(|refused| refused.reason == PostError::ForeignMemory));
        drop(refused);
        assert_eq!(slab.free(), 3);
    }
}

/// Checks that no other owner of the same slot writes to it meanwhile.
fn assert_exclusive(slot: &mut uverbs::Slot, mark: u64) {
    slot.set_len(8);
    slot.copy_from_slice(&mark.to_ne_bytes());
    slot.set_tag(mark);
    std::thread::yield_now();
    assert_eq!((&slot[..], slot.tag()), (&mark.to_ne_bytes()[..], mark), "given out twice");
}

#[test]
fn queue_pairs_destroyed_or_reset_during_polls_return_each_slot_once() {
    const ROUNDS: u64 = 150;
    let Safe { pd, mut cq, slab } = Safe::new();
    let (handle, source) = (cq.handle().clone(), slab.clone());
    let theirs = pd.register(Buffer::new(4096).unwrap(), ALL_ACCESS).unwrap();
    let remote = theirs.remote(0).unwrap();
    std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            for round in 0..ROUNDS {
                let build = || {
                    let builder = pd.create_qp::<Rc>(&handle, &handle);
                    builder.access(REMOTE).build().unwrap()
                };
                let (mut a, mut b) = (build(), build());
                let (end_a, end_b) = (a.endpoint(), b.endpoint());
                a.connect(&end_b).unwrap();
                b.connect(&end_a).unwrap();
                for step in 0..round % 16 {
                    let Some(mut slot) = source.take() else { break };
                    assert_exclusive(&mut slot, round << 8 | step);
                    let unsignaled = PostFlags::empty();
                    let posted = match step % 4 {
                        0 => b.post_receive(slot),
                        1 => a.post_send(op::Write(remote), slot, unsignaled),
                        2 => a.post_send(op::Read(remote), slot, SIGNALED),
                        _ => a.post_send(op::Send, slot, SIGNALED),
                    };
                    posted.unwrap();
                }
                // Some with requests in flight, some in the error state, some one after the other.
                if round % 3 == 0 {
                    a.to_error().unwrap();
                }
                if round % 4 == 1 {
                    a.reset().unwrap();
                    b.reset().unwrap();
                    b.to_init().unwrap();
                    source.take().into_iter().for_each(|slot| b.post_receive(slot).unwrap());
                }
                let (first, second) = if round % 2 == 0 { (a, b) } else { (b, a) };
                drop(first);
                drop(second);
            }
        });
        let mut mark = ROUNDS << 8;
        while !killer.is_finished() {
            if let Ok(done) = cq.poll() {
                mark += 1;
                done.slot.into_iter().for_each(|mut slot| assert_exclusive(&mut slot, mark));
            }
        }
        killer.join().unwrap();
    });
    while cq.poll().is_ok() {}
    let all: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
    assert_eq!(all.len(), 32);
}

/// A loop that drops received slots instead of posting them again empties its receive queue.
/// `receives_run_low` reports it.
#[test]
fn a_receive_queue_that_runs_low_is_reported() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).build().unwrap();
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let slab = pd.create_slab(8, 64).unwrap();
    for _ in 0..4 {
        qp.post_receive(slab.take().unwrap()).unwrap();
    }
    assert!(!qp.receives_run_low(), "no mark is set");
    qp.set_low_water_mark(3);
    for left in (0..4).rev() {
        assert_eq!(qp.receives_run_low(), left < 2, "{left} will be left");
        qp.post_send(op::Send, slab.take().unwrap(), PostFlags::SIGNALED).unwrap();
        let mut done = 0;
        while done < 2 {
            // The slot is dropped, as if the program forgot to post it again.
            done += usize::from(cq.poll().is_ok());
            std::thread::yield_now();
        }
        assert_eq!(qp.outstanding_receives(), left);
        assert_eq!(slab.free(), 8 - left as usize);
    }
    assert!(qp.receives_run_low());
}

/// Slots of a destroyed queue pair count as free once no poller can be returning them.
#[test]
fn free_counts_the_slots_of_a_destroyed_queue_pair() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).build().unwrap();
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let slab = pd.create_slab(8, 64).unwrap();
    for _ in 0..4 {
        qp.post_receive(slab.take().unwrap()).unwrap();
    }
    assert_eq!(slab.free(), 4);
    qp.destroy().unwrap();
    assert!(cq.poll().is_err());
    assert_eq!(slab.free(), 8);
}

#[test]
fn receives_outstanding_on_a_shared_queue_are_counted() {
    let context = common::open();
    let pd = context.alloc_pd().unwrap();
    let mut srq = pd.create_srq(8).build().unwrap();
    let slab = pd.create_slab(8, 64).unwrap();
    for count in 0..5 {
        assert_eq!(srq.outstanding_receives(), count);
        srq.post(slab.take().unwrap()).unwrap();
    }
}
