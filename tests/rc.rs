//! Every operation of a reliable connection, end to end.

mod common;

use std::sync::atomic::Ordering;

use common::{Setup, completion, pattern, success};
use uverbs::cq::{CompletionOpcode, Status};
use uverbs::qp::{AtomicResult, Immediate, Inline, PostError, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{MemoryRegion, PollError, Sge, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

#[test]
fn a_send_arrives_in_the_posted_receive() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let (from, to) = (setup.region(4096), setup.region(4096));
    from.view().write(0, &pattern(1000, 1)).unwrap();
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        b.post_receive(2, &[to.sge(0, 4096).unwrap()]).unwrap();
        a.post_send(1, op::Send, from.sge(0, 1000).unwrap(), SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_eq!((done[0].status, done[0].opcode()), (Status::Success, CompletionOpcode::Send));
    assert_eq!((done[1].status, done[1].opcode()), (Status::Success, CompletionOpcode::Recv));
    assert_eq!((done[1].byte_len(), done[1].qp_num()), (1000, b.number()));
    assert_eq!(to.view().to_vec()[..1000], pattern(1000, 1));
    assert_eq!(setup.cq.poll().unwrap_err(), PollError::Empty);
}

#[test]
fn sends_carry_immediate_data() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let to = setup.region(4096);
    // SAFETY: the region outlives the request and is not touched meanwhile.
    unsafe {
        b.post_receive(2, &[to.sge(0, 64).unwrap()]).unwrap();
        let operation = op::SendImmediate(Immediate([1, 2, 3, 4]));
        a.post_send(1, operation, Inline(b"inline"), SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_eq!(done[1].immediate(), Some(Immediate([1, 2, 3, 4])));
    assert_eq!(done[1].byte_len(), 6);
    assert_eq!(&to.view().to_vec()[..6], b"inline");
}

#[test]
fn writes_and_reads_need_no_receive() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let (mine, theirs) = (setup.region(1 << 16), setup.region(1 << 16));
    let data = pattern(50_000, 3);
    mine.view().write(0, &data).unwrap();
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        let remote = theirs.remote(100).unwrap();
        a.post_send(1, op::Write(remote), mine.sge(0, 50_000).unwrap(), SIGNALED).unwrap();
    }
    assert_eq!(success(&mut setup.cq).opcode(), CompletionOpcode::Write);
    let mut written = vec![0; 50_000];
    theirs.view().read(100, &mut written).unwrap();
    assert_eq!(written, data);
    mine.view().fill(0, 1 << 16, 0).unwrap();
    // SAFETY: as above.
    unsafe {
        let remote = theirs.remote(100).unwrap();
        a.post_send(2, op::Read(remote), mine.sge(0, 50_000).unwrap(), SIGNALED).unwrap();
    }
    assert_eq!(success(&mut setup.cq).opcode(), CompletionOpcode::Read);
    assert_eq!(mine.view().to_vec()[..50_000], data);
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let theirs = setup.region(4096);
    // SAFETY: the region outlives the requests and is not touched meanwhile.
    unsafe {
        b.post_receive(2, &[]).unwrap();
        let operation = op::WriteImmediate(theirs.remote(8).unwrap(), Immediate::from_u32(7));
        a.post_send(1, operation, Inline(b"there"), SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_eq!(done[1].opcode(), CompletionOpcode::RecvWriteImmediate);
    assert_eq!((done[1].immediate(), done[1].byte_len()), (Some(Immediate::from_u32(7)), 5));
    assert_eq!(&theirs.view().to_vec()[8..13], b"there");
}

#[test]
fn atomics_return_the_old_value() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let (mine, theirs) = (setup.region(4096), setup.region(4096));
    let word = theirs.view().atomic_u64(64).unwrap();
    word.store(40, Ordering::Relaxed);
    let result = AtomicResult { address: mine.address() + 8, lkey: mine.lkey() };
    let remote = theirs.remote(64).unwrap();
    // SAFETY: both regions outlive the requests; the result is read only after its completion.
    unsafe { a.post_send(1, op::FetchAdd { remote, add: 2 }, result, SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).opcode(), CompletionOpcode::FetchAdd);
    assert_eq!(mine.view().atomic_u64(8).unwrap().load(Ordering::Relaxed), 40);
    assert_eq!(word.load(Ordering::Relaxed), 42);
    for (compare, expected) in [(41, 42), (42, 99)] {
        // SAFETY: as above.
        unsafe {
            let swap = op::CompareSwap { remote, compare, swap: 99 };
            a.post_send(2, swap, result, SIGNALED).unwrap();
        }
        assert_eq!(success(&mut setup.cq).opcode(), CompletionOpcode::CompareSwap);
        assert_eq!(mine.view().atomic_u64(8).unwrap().load(Ordering::Relaxed), 42);
        assert_eq!(word.load(Ordering::Relaxed), expected);
    }
    let unaligned = theirs.remote(4).unwrap();
    // SAFETY: nothing is posted.
    let refused =
        unsafe { a.post_send(3, op::FetchAdd { remote: unaligned, add: 1 }, result, SIGNALED) };
    assert_eq!(refused, Err(PostError::BadAtomic));
}

#[test]
fn a_nop_completes() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    // SAFETY: no memory is named.
    unsafe { a.post_send(5, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!((success(&mut setup.cq).wr_id, setup.cq.poll().is_err()), (5, true));
}

#[test]
fn sges_are_gathered_and_scattered_and_empty_ones_skipped() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<uverbs::qp_type::Rc>(|builder| {
        builder.max_send_wr(16).max_send_sge(5).max_recv_wr(16).max_recv_sge(4)
    });
    let (from, to) = (setup.region(4096), setup.region(4096));
    from.view().write(0, &pattern(4096, 9)).unwrap();
    let piece = |region: &uverbs::MemoryRegion, offset, length| region.sge(offset, length).unwrap();
    let gather = [
        piece(&from, 0, 100),
        piece(&from, 1000, 0),
        piece(&from, 2000, 1),
        piece(&from, 3000, 500),
    ];
    let scatter =
        [piece(&to, 0, 50), piece(&to, 100, 0), piece(&to, 1000, 300), piece(&to, 2000, 500)];
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        b.post_receive(2, &scatter).unwrap();
        a.post_send(1, op::Send, &gather[..], SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_eq!((done[0].status, done[1].byte_len()), (Status::Success, 601));
    let source = pattern(4096, 9);
    let sent = [&source[..100], &source[2000..2001], &source[3000..3500]].concat();
    let got = to.view().to_vec();
    let received = [&got[..50], &got[1000..1300], &got[2000..2251]].concat();
    assert_eq!(received, sent);
}

#[test]
fn the_rings_wrap_many_times() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<uverbs::qp_type::Rc>(|builder| {
        builder.max_send_wr(8).max_send_sge(3).max_recv_wr(8)
    });
    let (from, to) = (setup.region(4096), setup.region(4096));
    for round in 0..1000u64 {
        let length = (round % 200) as usize;
        from.view().write(0, &pattern(length, round as u8)).unwrap();
        // SAFETY: both regions outlive the request, which completes before they are touched again.
        unsafe {
            b.post_receive(2 * round + 1, &[to.sge(0, 4096).unwrap()]).unwrap();
            let half = length / 2;
            let pieces = [from.sge(0, half).unwrap(), from.sge(half, length - half).unwrap()];
            a.post_send(2 * round, op::Send, &pieces[..], SIGNALED).unwrap();
        }
        let done = setup.completions(2);
        assert_eq!((done[0].wr_id, done[1].wr_id), (2 * round, 2 * round + 1));
        assert_eq!(done[1].byte_len() as usize, length);
        assert_eq!(to.view().to_vec()[..length], pattern(length, round as u8));
    }
}

#[test]
fn unsignaled_sends_are_retired_by_the_next_signaled_one() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.pair::<uverbs::qp_type::Rc>(|builder| builder.max_send_wr(16));
    let theirs = setup.region(4096);
    let granted = a.capacities().max_send_wr;
    for round in 0..20 {
        for i in 0..granted {
            let flags = if i + 1 == granted { SIGNALED } else { PostFlags::empty() };
            let remote = theirs.remote(i as usize * 8).unwrap();
            // SAFETY: inline data; the target outlives the requests and is only looked at
            // afterwards.
            unsafe { a.post_send(round, op::Write(remote), Inline(&[i as u8; 8]), flags).unwrap() };
        }
        assert_eq!(success(&mut setup.cq).wr_id, round);
        assert_eq!(setup.cq.poll().unwrap_err(), PollError::Empty);
    }
    assert_eq!(theirs.view().to_vec()[8..16], [1; 8]);
}

#[test]
fn a_full_queue_refuses_requests_and_stays_unchanged() {
    let mut setup = Setup::new();
    let mut a = setup.builder::<uverbs::qp_type::Rc>().max_send_wr(4).build().unwrap();
    let peer = a.endpoint();
    a.connect(&peer).unwrap();
    let mut batch = a.batch().unwrap();
    let mut posted = 0;
    // SAFETY: no memory is named.
    while unsafe { batch.build(posted, op::Nop, (), SIGNALED) } != Err(PostError::Full) {
        posted += 1;
        assert!(posted < 1000);
    }
    batch.publish();
    assert!(posted >= 4);
    for wr_id in 0..posted {
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    // SAFETY: no memory is named.
    unsafe { a.post_send(77, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 77);
}

#[test]
fn a_batch_rings_one_doorbell() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let theirs = setup.region(4096);
    let mut batch = a.batch().unwrap();
    for i in 0..32u64 {
        let remote = theirs.remote(i as usize * 16).unwrap();
        // SAFETY: inline data; the target outlives the requests.
        unsafe { batch.build(i, op::Write(remote), Inline(&[i as u8; 16]), SIGNALED).unwrap() };
    }
    batch.publish();
    for i in 0..32 {
        assert_eq!(success(&mut setup.cq).wr_id, i);
    }
    assert_eq!(theirs.view().to_vec()[31 * 16], 31);
}

#[test]
fn inline_data_has_a_limit_and_is_copied_by_the_post() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.pair::<uverbs::qp_type::Rc>(|builder| builder.max_inline_data(200));
    let theirs = setup.region(4096);
    let most = a.capacities().max_inline_data as usize;
    assert!(most >= 200);
    for length in [0, 1, 11, 12, 13, 59, 60, 61, 200, most] {
        let mut data = pattern(length, length as u8);
        // SAFETY: inline data; the target outlives the requests.
        unsafe {
            a.post_send(1, op::Write(theirs.remote(0).unwrap()), Inline(&data), SIGNALED).unwrap()
        };
        data.fill(0);
        success(&mut setup.cq);
        assert_eq!(theirs.view().to_vec()[..length], pattern(length, length as u8), "{length}");
    }
    // SAFETY: nothing is posted.
    let refused = unsafe {
        a.post_send(1, op::Write(theirs.remote(0).unwrap()), Inline(&vec![0; most + 1]), SIGNALED)
    };
    assert_eq!(refused, Err(PostError::InlineTooLong));
}

#[test]
fn short_reads_and_messages_reach_their_buffers_with_128_byte_cqes() {
    let context = common::open();
    let mut setup = Setup::on(context);
    setup.cq = setup.context.create_raw_cq(64).wide_entries().build().unwrap();
    let (mut a, mut b) = setup.pair::<uverbs::qp_type::Rc>(|builder| builder.signal_all());
    let (mine, theirs) = (setup.region(4096), setup.region(4096));
    for length in [1usize, 31, 32, 33, 64, 65] {
        theirs.view().write(0, &pattern(length, 7)).unwrap();
        mine.view().fill(0, 4096, 0).unwrap();
        // SAFETY: both regions outlive the requests and are not touched meanwhile.
        unsafe {
            let read = op::Read(theirs.remote(0).unwrap());
            a.post_send(1, read, mine.sge(0, length).unwrap(), PostFlags::empty()).unwrap();
        }
        success(&mut setup.cq);
        assert_eq!(mine.view().to_vec()[..length], pattern(length, 7), "read of {length}");
        // SAFETY: as above.
        unsafe {
            b.post_receive(2, &[mine.sge(1000, 100).unwrap()]).unwrap();
            a.post_send(1, op::Send, theirs.sge(0, length).unwrap(), PostFlags::empty()).unwrap();
        }
        setup.completions(2);
        assert_eq!(mine.view().to_vec()[1000..1000 + length], pattern(length, 7));
    }
}

#[test]
fn states_decide_what_may_be_posted() {
    let mut setup = Setup::new();
    let mut a = setup.builder::<uverbs::qp_type::Rc>().build_in_reset().unwrap();
    // SAFETY: no memory is named.
    unsafe {
        assert_eq!(a.post_receive(1, &[]), Err(PostError::BadState));
        assert_eq!(a.post_send(1, op::Nop, (), SIGNALED), Err(PostError::BadState));
    }
    let peer = a.endpoint();
    a.modify(
        &uverbs::qp::QpAttributes::to(uverbs::qp::State::Init)
            .port(1)
            .pkey_index(0)
            .access(common::REMOTE),
    )
    .unwrap();
    // SAFETY: no memory is named.
    unsafe {
        a.post_receive(1, &[]).unwrap();
        assert_eq!(a.post_send(1, op::Nop, (), SIGNALED), Err(PostError::BadState));
    }
    a.connect(&peer).unwrap();
    // SAFETY: no memory is named.
    unsafe { a.post_send(2, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 2);
    a.to_error().unwrap();
    // SAFETY: no memory is named.
    unsafe { a.post_send(3, op::Nop, (), SIGNALED).unwrap() };
    let flushed = completion(&mut setup.cq);
    let other = completion(&mut setup.cq);
    let mut ids = [flushed.wr_id, other.wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 3]);
    assert_eq!((flushed.status, other.status), (Status::Flushed, Status::Flushed));
}

#[test]
fn a_send_with_invalidate_needs_a_window() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let to = setup.region(4096);
    // SAFETY: the region outlives the request.
    unsafe {
        b.post_receive(2, &[to.sge(0, 64).unwrap()]).unwrap();
        // No window has this key, so the responder refuses the invalidation.
        a.post_send(1, op::SendInvalidate(0xdead_be00), Inline(b"x"), SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_ne!(done[0].status, Status::Success, "{done:?}");
}

#[test]
fn single_receives_and_a_batch_of_receives_arrive_in_order() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let to = setup.region(4096);
    // SAFETY: the region outlives the receives and is not touched before they complete.
    unsafe {
        b.post_receive(1, &[to.sge(0, 64).unwrap()]).unwrap();
        let mut batch = b.receive_batch().unwrap();
        batch.build(2, &[to.sge(64, 64).unwrap()]).unwrap();
        batch.build(3, &[to.sge(128, 64).unwrap()]).unwrap();
        batch.publish();
        for wr_id in 11..14 {
            a.post_send(wr_id, op::Send, Inline(b"here"), SIGNALED).unwrap();
        }
    }
    let done = setup.completions(6);
    let ids: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(ids, [1, 2, 3, 11, 12, 13].map(|id| (id, Status::Success)));
    assert_eq!(&to.view().to_vec()[128..132], b"here");
}

#[test]
fn a_list_mixes_run_time_operations() {
    use uverbs::qp::{RunTimeDestination, RunTimeOperation, SendRequest};
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let (mine, theirs) = (setup.region(4096), setup.region(4096));
    mine.view().write(0, b"of a list").unwrap();
    let piece = [mine.sge(0, 9).unwrap()];
    let write = |wr_id, offset| SendRequest {
        wr_id,
        operation: RunTimeOperation::Write(theirs.remote(offset).unwrap()),
        destination: RunTimeDestination::Connected,
        flags: SIGNALED,
        inline: wr_id == 1,
        data: &piece,
    };
    let bad = SendRequest { destination: RunTimeDestination::Xrc(1), ..write(9, 0) };
    // SAFETY: both regions outlive the requests; inline data is read from the region at once.
    let refused = unsafe { a.post_list([write(1, 0), write(2, 16), bad, write(3, 32)]) };
    let refused = refused.unwrap_err();
    assert_eq!((refused.index, refused.reason), (2, PostError::BadDestination));
    assert_eq!(setup.completions(2).iter().map(|done| done.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(&theirs.view().to_vec()[16..25], b"of a list");
    assert_eq!(theirs.view().to_vec()[32..41], [0; 9]);
}

#[test]
fn a_template_is_posted_by_any_queue_pair_of_its_type() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.rc_pair();
    let theirs = setup.region(4096);
    let mut template =
        a.template(op::Write(theirs.remote(0).unwrap()), Inline(b"at first"), SIGNALED).unwrap();
    // SAFETY: inline data; the target outlives the requests.
    unsafe {
        a.post_template(1, &template).unwrap();
        success(&mut setup.cq);
        assert!(template.set_inline(b"and more"));
        template.set_remote(theirs.remote(16).unwrap());
        let mut batch = a.batch().unwrap();
        batch.build_template(2, &template).unwrap();
        batch.publish();
        assert_eq!(success(&mut setup.cq).wr_id, 2);
        // `b` writes its own number into the WQE, so the completion is `b`'s.
        template.set_remote(theirs.remote(32).unwrap());
        b.post_template(3, &template).unwrap();
        let done = success(&mut setup.cq);
        assert_eq!((done.wr_id, done.qp_num()), (3, b.number()));
        template.set_remote(theirs.remote(48).unwrap());
        let mut batch = b.batch().unwrap();
        batch.build_template(4, &template).unwrap();
        batch.publish();
        assert_eq!(success(&mut setup.cq).wr_id, 4);
    }
    assert_eq!(&theirs.view().to_vec()[..8], b"at first");
    for at in [16, 32, 48] {
        assert_eq!(&theirs.view().to_vec()[at..at + 8], b"and more");
    }
    assert_eq!(setup.cq.poll().unwrap_err(), PollError::Empty);
}

/// Posts a READ or atomic, then a fenced SEND of its result, and returns the message that the peer
/// received. The requester's CQ is not polled in between, so a result in a CQE is not copied to
/// memory.
fn forwarded(
    change: impl Fn(raw::QpBuilder<Rc>) -> raw::QpBuilder<Rc>,
    operation: impl Fn(&mut raw::QueuePair<Rc>, &MemoryRegion, Sge),
) -> Vec<u8> {
    let mut setup = Setup::new();
    let mut sends = setup.context.create_raw_cq(16).build().unwrap();
    let builder =
        setup.pd.create_raw_qp::<Rc>(sends.handle(), sends.handle()).access(common::REMOTE);
    let mut a = change(builder).build().unwrap();
    let mut b = setup.builder::<Rc>().build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    let (remote, local, to) = (setup.region(64), setup.region(64), setup.region(64));
    remote.view().write(0, b"fresh!!!").unwrap();
    local.view().write(0, b"stale...").unwrap();
    let buffer = local.sge(0, 8).unwrap();
    // SAFETY: the regions outlive the requests and are not touched until these have completed.
    unsafe {
        b.post_receive(1, &[to.sge(0, 64).unwrap()]).unwrap();
        operation(&mut a, &remote, buffer);
        a.post_send(3, op::Send, buffer, SIGNALED | PostFlags::FENCE).unwrap();
    }
    assert_eq!(success(&mut setup.cq).wr_id, 1);
    assert_eq!([2, 3], [success(&mut sends).wr_id, success(&mut sends).wr_id]);
    assert_eq!(local.view().to_vec()[..8], *b"fresh!!!", "after its completion");
    to.view().to_vec()[..8].to_vec()
}

fn read_first(qp: &mut raw::QueuePair<Rc>, remote: &MemoryRegion, buffer: Sge) {
    // SAFETY: as in `forwarded`.
    unsafe { qp.post_send(2, op::Read(remote.remote(0).unwrap()), buffer, SIGNALED).unwrap() };
}

fn add_first(qp: &mut raw::QueuePair<Rc>, remote: &MemoryRegion, buffer: Sge) {
    let result = AtomicResult { address: buffer.address(), lkey: buffer.lkey() };
    let add = op::FetchAdd { remote: remote.remote(0).unwrap(), add: 1 };
    // SAFETY: as in `forwarded`.
    unsafe { qp.post_send(2, add, result, SIGNALED).unwrap() };
}

#[test]
fn a_fenced_send_has_the_results_of_earlier_reads_and_atomics() {
    for first in [read_first, add_first] {
        assert_eq!(forwarded(|builder| builder, first), b"fresh!!!");
        assert_eq!(forwarded(raw::QpBuilder::signal_all, first), b"fresh!!!");
        assert_eq!(forwarded(|b| b.signal_all().no_scatter_to_cqe(), first), b"fresh!!!");
    }
}

/// The documentation of `scatter_reads_to_cqe` warns of this.
#[test]
fn a_fence_does_not_wait_for_a_result_in_an_unpolled_cqe() {
    if !common::is_soft() {
        return;
    }
    for first in [read_first, add_first] {
        assert_eq!(forwarded(raw::QpBuilder::scatter_reads_to_cqe, first), b"stale...");
        assert_eq!(forwarded(|b| b.signal_all().scatter_reads_to_cqe(), first), b"stale...");
    }
}

#[test]
fn a_template_refuses_requests_that_do_not_fit() {
    let setup = Setup::new();
    let mut a =
        setup.pair::<Rc>(|builder| builder.max_inline_data(200).max_send_wr(16).max_send_sge(2)).0;
    let memory = setup.region(64);
    let remote = memory.remote(0).unwrap();
    let inline = |a: &mut raw::QueuePair<Rc>, length| {
        a.template(op::Write(remote), Inline(&[0; 256][..length]), SIGNALED).map(drop)
    };
    for length in [1, 7, 8, 28] {
        assert_eq!(inline(&mut a, length), Ok(()), "{length}");
    }
    for length in [29, 200] {
        assert_eq!(inline(&mut a, length), Err(PostError::NotATemplate), "{length}");
    }
    assert_eq!(inline(&mut a, 256), Err(PostError::InlineTooLong));
    assert!(a.template(op::Send, Inline(&[0; 44]), SIGNALED).is_ok());
    let refused = a.template(op::Send, Inline(&[0; 45]), SIGNALED).map(drop);
    assert_eq!(refused, Err(PostError::NotATemplate));
    let two = [memory.sge(0, 8).unwrap(), memory.sge(8, 8).unwrap()];
    assert!(a.template(op::Send, &two[..], SIGNALED).is_ok(), "one block");
    let many = [two[0]; 64];
    assert_eq!(a.template(op::Send, &many[..], SIGNALED).map(drop), Err(PostError::TooManySge));
}

#[test]
fn posting_to_a_queue_that_the_queue_pair_lacks_is_an_error() {
    let setup = Setup::new();
    let srq = setup.pd.create_raw_srq(4).build().unwrap();
    let builder = setup.builder::<uverbs::qp_type::Rc>().shared_receive_queue(srq.handle());
    let mut a = builder.build().unwrap();
    // SAFETY: nothing is posted.
    assert_eq!(unsafe { a.post_receive(1, &[]) }, Err(PostError::NoQueue));
    assert_eq!(a.receive_batch().unwrap_err(), PostError::NoQueue);
    let mut b =
        setup.builder::<uverbs::qp_type::Rc>().max_send_wr(0).max_send_sge(0).build().unwrap();
    let peer = b.endpoint();
    b.connect(&peer).unwrap();
    // SAFETY: nothing is posted.
    assert_eq!(unsafe { b.post_send(1, op::Nop, (), SIGNALED) }, Err(PostError::NoQueue));
    assert_eq!(b.batch().unwrap_err(), PostError::NoQueue);
    assert_eq!(b.template(op::Nop, (), SIGNALED).unwrap_err(), PostError::NoQueue);
}
