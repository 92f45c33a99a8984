//! Every state of a queue pair: its attributes in a query, the requests it accepts, and recovery.

mod common;

use common::{REMOTE, Setup, success};
use uverbs::ah::GRH_BYTES;
use uverbs::cq::{PollError, Status};
use uverbs::events::EventType;
use uverbs::qp::{
    AckTimeout, Datagram, Immediate, Inline, PostError, PostFlags, QpAttributes, RnrTimer, State,
};
use uverbs::qp_type::{QueuePairType, Rc, Uc, Ud};
use uverbs::{AddressVector, Buffer, Device, Endpoint, ErrorKind, LinkLayer, Mtu, op, raw};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// A device whose queue pairs can be drained, which mlx5_ib refuses.
fn draining() -> Device {
    common::soft_device(|builder| builder.send_queue_drain(true))
}

fn to_init() -> QpAttributes {
    QpAttributes::to(State::Init).port(1).pkey_index(0).access(REMOTE)
}

fn to_rtr(qp: &raw::QueuePair<Rc>, peer: &Endpoint) -> QpAttributes {
    QpAttributes::to(State::Rtr)
        .address(qp.address_of(peer).unwrap())
        .path_mtu(Mtu::B1024)
        .remote_qpn(peer.qpn)
        .receive_psn(0x123)
        .max_responder_reads(3)
        .min_rnr_timer(RnrTimer::from_code(20))
}

fn to_rts() -> QpAttributes {
    QpAttributes::to(State::Rts)
        .send_psn(0x456)
        .timeout(AckTimeout::from_code(15))
        .retry_count(5)
        .rnr_retry(4)
        .max_initiator_reads(2)
}

#[test]
fn connecting_to_a_gid_that_no_neighbour_answers_for_times_out() {
    if !common::is_soft() || common::on_infiniband() {
        return;
    }
    let device = |name| uverbs::soft::SoftDevice::builder(name).build().unwrap();
    let open = |name| Setup::on(Device::from_soft(device(name)).open().unwrap());
    let (near, far) = (open("near"), open("far"));
    let peer = far.builder::<Rc>().build().unwrap();
    let mut qp = near.builder::<Rc>().build().unwrap();
    let to = |gid: &str| uverbs::Endpoint { gid: Some(gid.parse().unwrap()), ..peer.endpoint() };
    for gid in ["::ffff:10.255.1.2", "::ffff:127.77.1.2"] {
        let error = qp.connect(&to(gid)).unwrap_err();
        assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
        assert!(error.cause().contains("no neighbour answers for"), "{error}");
    }
    let away = qp.address_of(&to("::ffff:127.77.1.2")).unwrap();
    let error = near.pd.create_ah(&away).unwrap_err();
    assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
    // No IPv6 neighbour can be reached from an IPv4 address.
    assert_eq!(qp.connect(&to("fe80::7777")).unwrap_err().errno(), libc::EINVAL);
    qp.connect(&peer.endpoint()).unwrap();
}

/// The error names the verb even if no command is sent to the kernel.
#[test]
fn errors_of_impossible_paths_name_the_verb() {
    let setup = Setup::new();
    let mut qp = setup.builder::<Rc>().build().unwrap();
    let other = match qp.endpoint().link_layer {
        LinkLayer::Ethernet => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    };
    let elsewhere = Endpoint { link_layer: other, ..qp.endpoint() };
    assert_eq!(qp.address_of(&elsewhere).unwrap_err().verb(), "address_of");
    assert_eq!(qp.connect(&elsewhere).unwrap_err().verb(), "connect");
    let error = setup.builder::<Rc>().port(77).without_gid().build().unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("create_qp", ErrorKind::InvalidInput), "{error}");
}

/// Each of them gets an errno without an explanation from the kernel.
#[test]
fn errors_of_the_kernel_name_the_likely_cause() {
    let setup = Setup::new();
    let qp = setup.builder::<Rc>().build().unwrap();
    let mut address = qp.address_of(&qp.endpoint()).unwrap();
    if let Some(route) = &mut address.global {
        route.source_index = 200;
        let unused = setup.pd.create_ah(&address).unwrap_err();
        assert!(unused.cause().contains("no such source GID"), "{unused}");
        let rate = AddressVector { static_rate: 99, ..address };
        let refused = setup.pd.create_ah(&rate).unwrap_err().to_string();
        assert!(refused.contains("static_rate: 99"), "{refused}");
    }
    let shifted = setup.pd.registration().iova(1).register(Buffer::new(4096).unwrap());
    let shifted = shifted.unwrap_err();
    assert!(shifted.cause().contains("different offsets within a page"), "{shifted}");
    let mut member = setup.builder::<Ud>().build().unwrap();
    let infiniband = member.link_layer() == LinkLayer::InfiniBand;
    let (group, lid) = ("ff0e::77".parse().unwrap(), if infiniband { 0xc077 } else { 0 });
    member.attach_multicast(group, lid).unwrap();
    let mut busy = member.destroy().unwrap_err();
    assert!(busy.error.cure().contains("leave multicast groups"), "{busy}");
    busy.object.detach_multicast(group, lid).unwrap();
    busy.object.destroy().unwrap();
}

#[test]
fn the_refused_transition_to_sqd_is_a_named_error() {
    if !common::is_soft() {
        return;
    }
    let setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let error = a.modify(&QpAttributes::to(State::Sqd)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert!(error.cause().contains("no transition into SQD"), "{error}");
    assert_eq!(a.state(), State::Rts);
}

#[test]
fn a_query_returns_each_state_and_its_attributes() {
    if !common::is_soft() {
        return;
    }
    let mut setup = Setup::on(draining().open().unwrap());
    let mut qp = setup.builder::<Rc>().build_in_reset().unwrap();
    let own = qp.endpoint();
    let steps = [
        to_init(),
        to_rtr(&qp, &own),
        to_rts(),
        QpAttributes::to(State::Sqd),
        QpAttributes::to(State::Rts),
        QpAttributes::to(State::Err),
        QpAttributes::to(State::Reset),
        to_init(),
    ];
    assert_eq!(qp.query().unwrap().state, State::Reset);
    for step in steps {
        // This poll also removes completions of before a reset.
        assert!(setup.cq.poll().is_err());
        qp.modify(&step).unwrap();
        let (asked, info) = (step.state.unwrap(), qp.query().unwrap());
        assert_eq!((info.state, qp.state()), (asked, asked));
        if matches!(asked, State::Init | State::Rtr | State::Rts | State::Sqd) {
            assert_eq!((info.port, info.pkey_index), (1, 0), "{asked}");
        }
        if matches!(asked, State::Rtr | State::Rts | State::Sqd) {
            // READ and atomic rights that were set in INIT take effect in RTR, as with mlx5_ib.
            assert_eq!(info.access, REMOTE, "{asked}");
            assert_eq!((info.remote_qpn, info.path_mtu), (own.qpn, Some(Mtu::B1024)));
            assert_eq!((info.min_rnr_timer.code(), info.receive_psn), (20, 0x123), "{asked}");
        }
        if matches!(asked, State::Rts | State::Sqd) {
            assert_eq!((info.timeout.code(), info.retry_count, info.rnr_retry), (15, 5, 4));
            assert_eq!(info.send_psn, 0x456, "{asked}");
        }
    }
}

#[test]
fn a_drained_send_queue_can_be_modified_and_continues() {
    if !common::is_soft() {
        return;
    }
    let mut setup = Setup::on(draining().open().unwrap());
    let (mut a, _b) = setup.rc_pair();
    let theirs = setup.region(64);
    let write = op::Write(theirs.remote(0).unwrap());
    for wr_id in 0..5 {
        // SAFETY: inline data; the region outlives the requests.
        unsafe { a.post_send(wr_id, write, Inline(&[wr_id as u8]), SIGNALED).unwrap() };
    }
    a.modify(&QpAttributes::to(State::Sqd).drained_notify(true)).unwrap();
    let event = setup.context.get_event().unwrap();
    assert_eq!(event.kind(), EventType::SQ_DRAINED);
    event.acknowledge();
    // At the event, the requests that the device had begun are complete. Later ones wait.
    let mut done = 0;
    while let Ok(completion) = setup.cq.poll() {
        assert_eq!(completion.wr_id(), done);
        done += 1;
    }
    let info = a.query().unwrap();
    assert_eq!((info.state, info.draining), (State::Sqd, false));
    // SAFETY: inline data; the region outlives the request.
    unsafe { a.post_send(5, write, Inline(b"later"), SIGNALED).unwrap() };
    // In SQD, attributes can be changed that RTS does not allow to change.
    a.modify(&QpAttributes::default().retry_count(3)).unwrap();
    assert!(setup.cq.poll().is_err() && done <= 5);
    assert_ne!(&theirs.view().to_vec()[..5], b"later");
    a.modify(&QpAttributes::to(State::Rts)).unwrap();
    for wr_id in done..=5 {
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    assert_eq!(&theirs.view().to_vec()[..5], b"later");
    assert_eq!(a.query().unwrap().retry_count, 3);
}

#[test]
fn a_refused_drain_leaves_the_queue_pair_in_rts() {
    if !common::is_soft() {
        return;
    }
    let mut setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let error = a.modify(&QpAttributes::to(State::Sqd)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert_eq!((a.state(), a.query().unwrap().state), (State::Rts, State::Rts));
    // SAFETY: no memory is named.
    unsafe { a.post_send(1, op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 1);
}

/// Moves a queue pair from SQE to RTS.
fn recover<T: QueuePairType>(qp: &mut raw::QueuePair<T>) {
    assert_eq!((qp.state(), qp.query().unwrap().state), (State::Sqe, State::Sqe));
    let back = QpAttributes::to(State::Rts).current_state(State::Sqe);
    qp.modify(&back).unwrap();
    assert_eq!((qp.state(), qp.query().unwrap().state), (State::Rts, State::Rts));
}

#[test]
fn a_ud_queue_pair_in_sqe_receives_and_recovers() {
    let mut setup = Setup::new();
    let build = || {
        let mut qp = setup.builder::<Ud>().build().unwrap();
        qp.activate().unwrap();
        let again = qp.activate().unwrap_err();
        assert_eq!((again.verb(), again.kind()), ("activate", ErrorKind::BadState), "{again}");
        qp
    };
    let (mut a, mut b) = (build(), build());
    let memory = setup.region(1 << 14);
    let there = setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
    let back = setup.pd.create_ah(&b.address_of(&a.endpoint()).unwrap()).unwrap();
    let (to_b, to_a) = (
        there.datagram(b.number(), b.endpoint().qkey),
        back.datagram(a.number(), a.endpoint().qkey),
    );
    // SAFETY: the region outlives the requests and is read only through its view.
    unsafe {
        a.post_receive(1, &[memory.sge(0, 4096).unwrap()]).unwrap();
        let long = memory.sge(4096, 8192).unwrap();
        a.post_send(2, op::To(Datagram(&to_b), op::Send), long, SIGNALED).unwrap();
        a.post_send(3, op::To(Datagram(&to_b), op::Send), Inline(b"flushed"), SIGNALED).unwrap();
    }
    assert_eq!(setup.completion().status, Status::LocalLength);
    let flushed = setup.completion();
    assert_eq!((flushed.wr_id, flushed.status), (3, Status::Flushed));
    // Only the send queue has stopped.
    // SAFETY: inline data.
    unsafe {
        b.post_send(4, op::To(Datagram(&to_a), op::Send), Inline(b"hello"), SIGNALED).unwrap()
    };
    let done = setup.completions(2);
    assert_eq!((done[0].wr_id, done[0].status), (1, Status::Success));
    assert_eq!(&memory.view().to_vec()[GRH_BYTES..GRH_BYTES + 5], b"hello");
    recover(&mut a);
    // SAFETY: inline data.
    unsafe {
        a.post_send(5, op::To(Datagram(&to_b), op::Send), Inline(b"again"), SIGNALED).unwrap()
    };
    let done = success(&mut setup.cq);
    assert_eq!(done.wr_id, 5);
}

#[test]
fn a_uc_queue_pair_recovers_from_sqe() {
    let mut setup = Setup::new();
    let (mut a, _b) = setup.pair::<Uc>(|builder| builder);
    let theirs = setup.region(64);
    let unknown = uverbs::Sge::new(0x1000, 8, 0xdead_be00);
    // SAFETY: the device refuses the key before it looks at the memory.
    unsafe { a.post_send(1, op::Write(theirs.remote(0).unwrap()), unknown, SIGNALED).unwrap() };
    assert_eq!(setup.completion().status, Status::LocalProtection);
    recover(&mut a);
    // SAFETY: inline data.
    unsafe {
        a.post_send(2, op::Write(theirs.remote(0).unwrap()), Inline(b"again"), SIGNALED).unwrap();
    }
    assert_eq!(success(&mut setup.cq).wr_id, 2);
}

#[test]
fn flushed_completions_polled_after_the_recovery_do_not_change_the_state() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<Uc>(|builder| builder);
    let theirs = setup.region(64);
    let write = op::Write(theirs.remote(0).unwrap());
    let unknown = uverbs::Sge::new(0x1000, 8, 0xdead_be00);
    // SAFETY: the device refuses the key before it looks at the memory; inline data.
    unsafe {
        let mut batch = a.batch().unwrap();
        batch.build(1, write, unknown, SIGNALED).unwrap();
        batch.build(2, write, Inline(b"flushed"), SIGNALED).unwrap();
        batch.publish();
    }
    // One doorbell covers both requests, so the device flushes the second before the transition.
    assert_eq!(setup.completion().status, Status::LocalProtection);
    recover(&mut a);
    assert_eq!(setup.completion().status, Status::Flushed);
    assert_eq!(a.state(), State::Rts);
    // SAFETY: inline data.
    unsafe { a.post_send(3, write, Inline(b"again"), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 3);
    // A queue pair in ERR stays there: completions of its sends do not change the state.
    // SAFETY: the device flushes the request before it looks at the memory.
    unsafe {
        b.to_error().unwrap();
        b.post_send(4, write, unknown, SIGNALED).unwrap();
    }
    assert_eq!(setup.completion().status, Status::Flushed);
    assert_eq!((b.state(), b.query().unwrap().state), (State::Err, State::Err));
}

#[test]
fn a_uc_queue_pair_without_receives_drops_messages_and_continues() {
    let mut setup = Setup::new();
    let (mut a, mut b) = setup.pair::<Uc>(|builder| builder);
    let theirs = setup.region(64);
    let lost = op::WriteImmediate(theirs.remote(0).unwrap(), Immediate([1; 4]));
    // SAFETY: inline data, or no memory at all.
    unsafe {
        a.post_send(1, lost, Inline(b"x"), SIGNALED).unwrap();
        assert_eq!(success(&mut setup.cq).wr_id, 1);
        a.post_send(2, op::SendImmediate(Immediate([2; 4])), (), SIGNALED).unwrap();
        assert_eq!(success(&mut setup.cq).wr_id, 2);
    }
    // Once the peer's own message has arrived, the peer has handled all earlier ones.
    // SAFETY: inline data, or no memory at all.
    unsafe {
        a.post_receive(3, &[]).unwrap();
        b.post_send(4, op::Send, (), SIGNALED).unwrap();
    }
    assert_eq!(setup.completions(2)[0].wr_id, 3);
    // SAFETY: inline data, or no memory at all.
    unsafe {
        b.post_receive(5, &[]).unwrap();
        a.post_send(6, op::SendImmediate(Immediate([6; 4])), (), SIGNALED).unwrap();
    }
    let done = setup.completions(2);
    assert_eq!((done[0].wr_id, done[0].immediate()), (5, Some(Immediate([6; 4]))));
}

#[test]
fn attributes_of_another_state_are_refused_without_a_command() {
    let setup = Setup::new();
    let (mut a, _b) = setup.rc_pair();
    let before = a.query().unwrap();
    for wrong in [
        QpAttributes::default().retry_count(3),
        QpAttributes::default().path_mtu(Mtu::B256),
        QpAttributes::to(State::Init),
        QpAttributes::to(State::Rts).current_state(State::Sqe),
    ] {
        let error = a.modify(&wrong).unwrap_err();
        assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::InvalidInput, false));
    }
    assert_eq!(a.query().unwrap(), before);
}

/// The queue pair goes through RESET with and without older completions in its CQ.
#[test]
fn a_queue_pair_is_reset_and_used_again_without_a_poll_in_between() {
    let mut setup = Setup::new();
    let mut qp = setup.builder::<Rc>().build().unwrap();
    let own = qp.endpoint();
    for round in 0..40 {
        qp.modify(&QpAttributes::to(State::Reset)).unwrap();
        assert_eq!(qp.state(), State::Reset);
        qp.modify(&to_init()).unwrap();
        qp.connect(&own).unwrap();
        // Every second round leaves completions in the CQ.
        for id in 0..4 * (round % 2) {
            // SAFETY: no memory is named.
            unsafe { qp.post_send(1000 + id, op::Nop, (), SIGNALED).unwrap() };
        }
        if round % 4 == 3 {
            assert_eq!(success(&mut setup.cq).wr_id, 1000);
        }
        if round % 2 == 0 {
            // SAFETY: no memory is named.
            unsafe { qp.post_send(round, op::Nop, (), SIGNALED).unwrap() };
            assert_eq!(success(&mut setup.cq).wr_id, round, "no completion of before the reset");
        }
    }
}

/// Another thread owns the completion queue, and polls it at any time.
#[test]
fn a_reset_waits_for_no_thread_that_polls() {
    let setup = Setup::new();
    let receives = setup.context.create_raw_cq(16).build().unwrap();
    let builder = setup.pd.create_raw_qp::<Rc>(setup.cq.handle(), receives.handle());
    let mut qp = builder.access(REMOTE).build().unwrap();
    let (own, mut cq) = (qp.endpoint(), setup.cq);
    let (sender, lives) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for life in lives {
                // Completions of before a reset are not reported, however late they are polled.
                while success(&mut cq).wr_id != life {}
            }
        });
        for life in 1..=10 {
            qp.connect(&own).unwrap();
            for id in [life, 100, 100] {
                // SAFETY: no memory is named.
                unsafe { qp.post_send(id, op::Nop, (), SIGNALED).unwrap() };
            }
            if life < 10 {
                qp.modify(&QpAttributes::to(State::Reset)).unwrap();
            }
        }
        sender.send(10).unwrap();
        drop(sender);
    });
}

/// Posts requests until both queues are full, and counts them.
fn fill(qp: &mut raw::QueuePair<Rc>) -> (usize, usize) {
    // SAFETY: no memory is named.
    let send = |qp: &mut raw::QueuePair<Rc>| unsafe { qp.post_send(1, op::Nop, (), SIGNALED) };
    // SAFETY: as above.
    let receive = |qp: &mut raw::QueuePair<Rc>| unsafe { qp.post_receive(2, &[]) };
    let until_full = |result: Result<(), PostError>| result.map_err(|why| assert_full(&why)).ok();
    let sends = std::iter::from_fn(|| until_full(send(qp))).count();
    (sends, std::iter::from_fn(|| until_full(receive(qp))).count())
}

fn assert_full(why: &PostError) {
    assert_eq!(*why, PostError::Full);
    assert!(why.to_string().contains("poll its CQ"), "the cure: {why}");
}

/// Consumes completions from before a reset. Each poll must return `Empty`, and this number of
/// polls would notice an overrun.
fn consume_old_completions(cq: &mut raw::CompletionQueue) {
    assert!((0..3000).all(|_| cq.poll().map(drop) == Err(PollError::Empty)));
}

/// Sends and receives that a queue pair for 10 and 4 accepts, if its CQ for 15 entries holds the
/// completions of `before` full queue pairs.
fn places(before: usize) -> (usize, usize) {
    match before {
        0 => (10, 4),
        1 => (0, 1),
        _ => (0, 0),
    }
}

/// Unpolled completions of before a reset reduce the number of requests that can be posted.
#[test]
fn resets_without_polls_never_overrun() {
    let setup = Setup::new();
    let mut cq = setup.context.create_raw_cq(15).build().unwrap();
    let builder = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    let mut qp = builder.max_send_wr(10).max_recv_wr(4).build().unwrap();
    let own = qp.endpoint();
    for life in 0..40 {
        qp.connect(&own).unwrap();
        assert_eq!(fill(&mut qp), places(life % 10), "life {life}");
        qp.to_error().unwrap();
        qp.reset().unwrap();
        if life % 10 == 9 {
            consume_old_completions(&mut cq);
        }
    }
}

/// A CQ with entries for two full queue pairs bounds only the third reset.
#[test]
fn a_reset_queue_pair_can_post_as_many_requests_as_its_cq_has_free_entries() {
    let setup = Setup::new();
    let mut cq = setup.context.create_raw_cq(31).build().unwrap();
    let builder = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    let mut qp = builder.max_send_wr(10).max_recv_wr(4).build().unwrap();
    let own = qp.endpoint();
    let mut lives = Vec::new();
    for _ in 0..4 {
        qp.connect(&own).unwrap();
        lives.push(fill(&mut qp));
        qp.to_error().unwrap();
        qp.reset().unwrap();
    }
    assert_eq!(lives, [(10, 4), (10, 4), (0, 3), (0, 0)]);
    qp.connect(&own).unwrap();
    assert_eq!(fill(&mut qp), (0, 0));
    consume_old_completions(&mut cq);
    assert_eq!(fill(&mut qp), (10, 4), "after a poll without a reset");
}

/// Unpolled completions of a destroyed queue pair count in the same way.
#[test]
fn queue_pairs_created_one_after_another_without_polls_never_overrun() {
    let setup = Setup::new();
    let mut cq = setup.context.create_raw_cq(15).build().unwrap();
    for life in 0..20 {
        let builder = setup.pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        let mut qp = builder.max_send_wr(10).max_recv_wr(4).build().unwrap();
        let own = qp.endpoint();
        qp.connect(&own).unwrap();
        assert_eq!(fill(&mut qp), places(life % 5), "life {life}");
        qp.to_error().unwrap();
        drop(qp);
        if life % 5 == 4 {
            consume_old_completions(&mut cq);
        }
    }
}

/// The same in the safe layer, where no slot may be lost.
#[test]
fn safe_resets_without_polls_never_overrun() {
    let setup = Setup::new();
    let mut cq = setup.context.create_cq(15).build().unwrap();
    let builder = setup.pd.create_qp::<Rc>(cq.handle(), cq.handle());
    let mut qp = builder.max_send_wr(10).max_recv_wr(4).build().unwrap();
    let slab = setup.pd.create_slab(40, 64).unwrap();
    let own = qp.endpoint();
    for life in 0..20 {
        qp.connect(&own).unwrap();
        let slot = || slab.take().expect("a slot");
        let sent = (0..11).filter(|_| qp.post_send(op::Send, slot(), SIGNALED).is_ok()).count();
        let received = (0..5).filter(|_| qp.post_receive(slot()).is_ok()).count();
        let posted = (sent, received);
        assert_eq!(posted, places(life % 5), "life {life}");
        qp.to_error().unwrap();
        qp.reset().unwrap();
        if life % 5 == 4 {
            assert!((0..3000).all(|_| cq.poll().map(drop) == Err(PollError::Empty)));
            assert_eq!(slab.free(), 40);
        }
    }
}
