//! The safe queue pair has the features of the raw one: templates, lists, reset, shared doorbells.

use uverbs::cq::Status;
use uverbs::qp::{PostError, PostFlags, RunTimeDestination, RunTimeOperation, State};
use uverbs::qp_type::Rc;
use uverbs::{QueuePair, Slab, Slot, SlotRequest, op};

use super::common::REMOTE;
use super::{SIGNALED, Safe};

fn filled(slab: &Slab, bytes: &[u8]) -> Slot {
    let mut slot = slab.take().unwrap();
    slot.write(bytes).unwrap();
    slot
}

fn request(operation: RunTimeOperation<'_>, slot: Slot, flags: PostFlags) -> SlotRequest<'_> {
    SlotRequest { operation, destination: RunTimeDestination::Connected, flags, slot }
}

#[test]
fn an_inline_template_is_posted_with_other_data_and_other_addresses() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let at = |offset| theirs.remote(offset).unwrap();
    let mut template = a.template(op::Write(at(0)), b"template", SIGNALED).unwrap();
    // The template's completion also returns the unsignaled slot posted before it.
    a.post_send(op::Write(at(100)), filled(&safe.slab, b"slot"), PostFlags::empty()).unwrap();
    a.post_template(&template).unwrap();
    assert!(safe.completion().slot.is_none());
    assert_eq!(safe.slab.free(), 32);
    assert!(template.set_inline(b"anything") && !template.set_inline(b"longer than it was"));
    let mut batch = a.batch().unwrap();
    for offset in [8, 16] {
        template.set_remote(at(offset));
        batch.build_template(&template).unwrap();
    }
    batch.publish();
    for _ in 0..2 {
        assert_eq!(safe.completion().completion.status, Status::Success);
    }
    assert_eq!(&theirs.view().to_vec()[..24], b"templateanythinganything");
    let long = a.template(op::Write(at(0)), &[0; 29], SIGNALED).unwrap_err();
    assert_eq!(long, PostError::NotATemplate);
}

#[test]
fn a_list_of_slots_is_posted_up_to_the_first_refused_one() {
    let mut safe = Safe::new();
    let (mut a, _b) = safe.pair::<Rc>();
    let theirs = safe.region();
    let at = |offset| theirs.remote(offset).unwrap();
    let count = op::FetchAdd { remote: at(0), add: 2 };
    let slot = || filled(&safe.slab, &40u64.to_ne_bytes());
    let mut list = vec![
        request(RunTimeOperation::Write(at(0)), slot(), PostFlags::empty()),
        request(RunTimeOperation::FetchAdd(count), slot(), SIGNALED),
        request(RunTimeOperation::LocalInvalidate(1), slot(), SIGNALED),
        request(RunTimeOperation::Read(at(0)), slot(), SIGNALED),
    ]
    .into_iter();
    let refused = a.post_list(&mut list).unwrap_err();
    assert_eq!((refused.reason, refused.slot.len()), (PostError::BadOpcode, 8));
    assert_eq!(safe.completion().slot.unwrap()[..], 40u64.to_ne_bytes(), "what was there before");
    a.post_list(list).unwrap();
    assert_eq!(safe.completion().slot.unwrap()[..], 42u64.to_ne_bytes());
    drop(refused);
    assert_eq!(safe.slab.free(), 32);
    a.post_list([]).unwrap();
}

#[test]
fn a_list_that_is_refused_at_once_returns_its_first_slot() {
    let safe = Safe::new();
    let builder = safe.pd.create_qp::<Rc>(safe.cq.handle(), safe.cq.handle());
    let mut qp = builder.build().unwrap();
    let first = filled(&safe.slab, b"first");
    let refused = qp.post_list([request(RunTimeOperation::Send, first, SIGNALED)]).unwrap_err();
    assert_eq!((refused.reason, &refused.slot[..]), (PostError::BadState, &b"first"[..]));
}

#[test]
fn a_reset_returns_the_slots_and_the_queue_pair_works_again() {
    let mut safe = Safe::new();
    let builder = safe.pd.create_qp(safe.cq.handle(), safe.cq.handle()).access(REMOTE);
    let mut qp: QueuePair<Rc> = builder.build().unwrap();
    let own = qp.endpoint();
    assert!(qp.context().is_same(safe.pd.context()) && qp.capacities().max_send_wr >= 128);
    for round in 0..3u8 {
        qp.connect(&own).unwrap();
        (0..4).for_each(|_| qp.post_receive(safe.slab.take().unwrap()).unwrap());
        qp.post_send(op::Send, filled(&safe.slab, &[round; 9]), SIGNALED).unwrap();
        let slots = [safe.completion(), safe.completion()].map(|done| done.slot.unwrap());
        assert!(slots.iter().all(|slot| slot[..] == [round; 9]));
        drop(slots);
        assert_eq!(safe.slab.free(), 29, "three receives wait");
        qp.reset().unwrap();
        assert_eq!((qp.state(), qp.outstanding_receives()), (State::Reset, 0));
        assert!(safe.cq.poll().is_err());
        assert_eq!(safe.slab.free(), 32);
    }
}

#[test]
fn safe_queue_pairs_share_a_doorbell_register() {
    let mut safe = Safe::new();
    let domain = safe.pd.context().alloc_thread_domain().unwrap();
    let build = || {
        let builder = safe.pd.create_qp::<Rc>(safe.cq.handle(), safe.cq.handle());
        builder.build_in(&domain).unwrap()
    };
    let (mut a, mut b) = (build(), build());
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    b.post_receive(safe.slab.take().unwrap()).unwrap();
    a.post_send(op::Send, filled(&safe.slab, b"shared"), SIGNALED).unwrap();
    for _ in 0..2 {
        assert_eq!(&safe.completion().slot.unwrap()[..], b"shared");
    }
}
