//! Shared receive queues and XRC.

use uverbs_mlx5_format::{CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use crate::core::*;

/// A connected pair; side 1 receives from an SRQ of 16 entries.
fn pair_with_srq() -> (Pair, SrqHandle) {
    pair_with(SrqOrder::Linked)
}

fn pair_with(order: SrqOrder) -> (Pair, SrqHandle) {
    let mut srq = None;
    let mut world = World::new(2);
    let cqs = [0, 1].map(|side| world.hosts[side].cq(8));
    let qps = [0, 1].map(|side| {
        let host = &mut world.hosts[side];
        let mut params = host.qp_params(QpType::Rc, &cqs[side], &cqs[side]);
        if side == 1 {
            let handle = host.ordered_srq(4, order);
            params.receive = ReceiveSource::Srq(handle.srqn);
            srq = Some(handle);
        }
        host.create(params)
    });
    world.connect(&qps, |_, _| {});
    (Pair { world, qps, cqs }, srq.unwrap())
}

fn post(pair: &mut Pair, srq: &mut SrqHandle, region: Region) {
    let sge = (region.address, region.len as u32, region.key);
    pair.world.hosts[1].post_srq(srq, &[sge]);
}

#[test]
fn receives_come_from_the_shared_queue_in_list_order() {
    let (mut pair, mut srq) = pair_with_srq();
    let inbox = pair.host(1).region(64, ALL);
    let mut indices = Vec::new();
    for n in 0..40u8 {
        post(&mut pair, &mut srq, inbox);
        pair.post(0, &Wr::send().inline(&[n]));
        pair.world.run_until_idle();
        let got = pair.one(1);
        assert_eq!((got.opcode, got.bytes), (CqeOpcode::RESPONDER_SEND, 1));
        assert_eq!(got.user_index, 0x1234, "the QP's, by which the driver finds QP and SRQ");
        indices.push(got.index);
        assert_eq!(pair.host(1).bytes(inbox.address, 1), [n]);
    }
    let expected: Vec<u16> = (0..40).map(|n| n % 16).collect();
    assert_eq!(indices, expected);
}

/// Receives of a cyclic queue are used in the order of the ring, and CQEs number them modulo 2^16.
#[test]
fn receives_of_a_cyclic_queue_come_in_the_order_of_the_ring() {
    for order in [SrqOrder::Cyclic, SrqOrder::BasicCyclic] {
        let (mut pair, mut srq) = pair_with(order);
        let inbox = pair.host(1).region(64, ALL);
        for n in 0..40u8 {
            post(&mut pair, &mut srq, inbox);
            // A link that would break a list.
            let link = srq.ring + (u64::from(n % 16) * 64) + 2;
            if order == SrqOrder::Cyclic {
                pair.world.hosts[1].memory_write(link, &0x7fffu16.to_be_bytes());
            }
            pair.post(0, &Wr::send().inline(&[n]));
            pair.world.run_until_idle();
            let got = pair.one(1);
            assert_eq!((got.opcode, got.index), (CqeOpcode::RESPONDER_SEND, n.into()), "{order:?}");
            assert_eq!(pair.host(1).bytes(inbox.address, 1), [n]);
        }
    }
}

#[test]
fn the_limit_event_is_raised_once() {
    let (mut pair, mut srq) = pair_with_srq();
    let inbox = pair.host(1).region(64, ALL);
    for _ in 0..8 {
        post(&mut pair, &mut srq, inbox);
    }
    pair.host(1).core.arm_srq(srq.srqn, 6).unwrap();
    assert_eq!(pair.host(1).core.query_srq(srq.srqn).unwrap().limit, 6);
    let mut events = Vec::new();
    for _ in 0..5 {
        pair.post(0, &Wr::send());
        pair.world.run_until_idle();
        events.push(pair.host(1).async_events().len());
    }
    assert_eq!(events, [0, 0, 1, 0, 0], "when fewer than the limit are left, once");
    let info = pair.host(1).core.query_srq(srq.srqn).unwrap();
    assert_eq!((info.limit, info.outstanding), (0, 3));
    // With fewer receives than the limit, the event is raised at once. A limit of 0 disarms. A
    // limit above the size of the queue is refused.
    pair.host(1).core.arm_srq(srq.srqn, 4).unwrap();
    let limit = (AsyncKind::SrqLimitReached, EventObject::Srq(srq.srqn));
    assert_eq!(pair.host(1).async_events(), [limit]);
    pair.host(1).core.arm_srq(srq.srqn, 3).unwrap();
    pair.host(1).core.arm_srq(srq.srqn, 0).unwrap();
    pair.post(0, &Wr::send());
    pair.world.run_until_idle();
    assert_eq!(pair.host(1).async_events(), []);
    assert!(pair.host(1).core.arm_srq(srq.srqn, 17).is_err());
}

#[test]
fn an_empty_srq_answers_with_rnr_naks() {
    let (mut pair, mut srq) = pair_with_srq();
    pair.post(0, &Wr::send());
    pair.world.pass(1_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.poll(0), []);
    let inbox = pair.host(1).region(64, ALL);
    post(&mut pair, &mut srq, inbox);
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(1).bytes, 0);
}

#[test]
fn an_srq_with_broken_links_goes_into_error() {
    let (mut pair, mut srq) = pair_with_srq();
    let inbox = pair.host(1).region(64, ALL);
    post(&mut pair, &mut srq, inbox);
    pair.world.hosts[1].memory_write(srq.ring + 2, &0x7fffu16.to_be_bytes());
    pair.post(0, &Wr::send());
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_OPERATION));
    let kinds: Vec<_> = pair.host(1).async_events().into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&AsyncKind::SrqError), "{kinds:?}");
    assert!(kinds.contains(&AsyncKind::QpFatal), "{kinds:?}");
    assert!(pair.host(1).core.arm_srq(srq.srqn, 1).is_err(), "nothing but destroy works");
    assert!(pair.host(1).core.query_srq(srq.srqn).unwrap().in_error);
    let qpn = pair.qps[1].qpn;
    assert!(pair.host(1).core.destroy_srq(srq.srqn).is_err(), "still used");
    pair.host(1).core.destroy_qp(qpn).unwrap();
    pair.host(1).core.destroy_srq(srq.srqn).unwrap();
}

#[test]
fn the_last_wqe_event_comes_when_a_qp_in_error_holds_no_srq_receive() {
    let (mut pair, mut srq) = pair_with_srq();
    let inbox = pair.host(1).region(2000, ALL);
    let from = pair.host(0).region(2000, ALL);
    post(&mut pair, &mut srq, inbox);
    pair.post(0, &Wr::send().all_of(from));
    let mut sent = 0;
    pair.world.run_until_idle_with(&mut |_| {
        sent += 1;
        if sent == 1 { Fate::Pass } else { Fate::Drop }
    });
    let qpn = pair.qps[1].qpn;
    pair.host(1).core.modify_qp(qpn, QpState::Error, &QpAttributes::default()).unwrap();
    let got = pair.one(1);
    assert_eq!(got.syndrome, Some(Syndrome::FLUSHED), "the receive that was in use");
    let last = (AsyncKind::LastWqeReached, EventObject::Qp(qpn));
    assert_eq!(pair.host(1).async_events(), [last]);
}

#[test]
fn many_qps_share_one_queue() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(8);
    let mut srq = host.srq(6, None);
    let inbox = host.region(64, ALL);
    let mut senders = Vec::new();
    for _ in 0..10 {
        let mut params = host.qp_params(QpType::Rc, &cq, &cq);
        params.receive = ReceiveSource::Srq(srq.srqn);
        let receiver = host.create(params);
        let sender = host.qp(QpType::Rc, &cq);
        let gid = host.gid;
        let (to, back) = (host.attributes(gid, receiver.qpn), host.attributes(gid, sender.qpn));
        host.make_rts(&sender, &to);
        host.make_rts(&receiver, &back);
        host.post_srq(&mut srq, &[(inbox.address, 64, inbox.key)]);
        senders.push(sender);
    }
    for sender in &mut senders {
        host.post(sender, &Wr::send().unsignaled());
    }
    world.run_until_idle();
    let done = world.hosts[0].poll_all(&mut cq);
    let mut indices: Vec<u16> = done.iter().map(|d| d.index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..10).collect::<Vec<u16>>());
}

#[test]
fn xrc_delivers_to_the_srq_named_by_the_sender() {
    let mut world = World::new(2);
    let mut send_cq = world.hosts[0].cq(6);
    let host = &mut world.hosts[1];
    let mut receive_cq = host.cq(6);
    let xrcd = host.core.create_xrcd().unwrap();
    let mut srqs = [0x51, 0x52]
        .map(|user_index| host.srq(4, Some(XrcSrqParams { xrcd, cq: receive_cq.cqn, user_index })));
    let mut params = host.qp_params(QpType::XrcTarget, &receive_cq, &receive_cq);
    params.receive = ReceiveSource::None;
    params.xrcd = Some(xrcd);
    // The SRQ's PD decides about keys, because the kernel creates the XRC target in another PD.
    params.pd = host.core.create_pd().unwrap();
    let target = host.create(params);
    assert!(matches!(host.core.destroy_xrcd(xrcd), Err(CoreError::InUse { users: 3, .. })));
    let params = world.hosts[0].qp_params(QpType::XrcInitiator, &send_cq, &send_cq);
    let mut initiator = world.hosts[0].create(params);
    let (a, b) = (world.hosts[0].gid, world.hosts[1].gid);
    let to = world.hosts[0].attributes(b, target.qpn);
    world.hosts[0].make_rts(&initiator, &to);
    let back = world.hosts[1].attributes(a, initiator.qpn);
    world.hosts[1].make_rtr(&target, &back);
    let inbox = world.hosts[1].region(5000, ALL);
    let remote = world.hosts[1].region(64, ALL);
    for srq in &mut srqs {
        world.hosts[1].post_srq(srq, &[(inbox.address, 5000, inbox.key)]);
    }
    let from = world.hosts[0].region(5000, ALL);
    let data = world.hosts[0].fill(from, 2);
    let named = |srq: &SrqHandle, wr: Wr| Wr { xrc: Some(srq.srqn.0), ..wr };
    world.hosts[0].post(&mut initiator, &named(&srqs[1], Wr::send().all_of(from)));
    let write = Wr::write(remote.address, remote.key).inline(b"xrc");
    let write = write.immediate(Opcode::RDMA_WRITE_IMMEDIATE, 5);
    world.hosts[0].post(&mut initiator, &named(&srqs[0], write));
    let read = Wr::read(remote.address, remote.key).from(from, 0, 3).fenced();
    world.hosts[0].post(&mut initiator, &named(&srqs[0], read));
    world.run_until_idle();
    let done = world.hosts[0].poll_all(&mut send_cq);
    assert!(done.len() == 3 && done.iter().all(|d| d.syndrome.is_none()), "{done:?}");
    let got = world.hosts[1].poll_all(&mut receive_cq);
    let got: Vec<_> = got.iter().map(|d| (d.user_index, d.bytes, d.qpn)).collect();
    assert_eq!(got, [(0x52, 5000, target.qpn.0), (0x51, 3, target.qpn.0)]);
    assert!(world.hosts[1].bytes(inbox.address, 5000) == data);
    assert_eq!(world.hosts[0].bytes(from.address, 3), b"xrc");
    // A request for an SRQ that does not exist, or that belongs to another XRC domain, fails.
    let stranger = SrqHandle { srqn: Srqn(0x7777), ..srqs[0].clone() };
    world.hosts[0].post(&mut initiator, &named(&stranger, Wr::send()));
    world.run_until_idle();
    let done = world.hosts[0].poll(&mut send_cq).unwrap();
    assert_eq!(done.syndrome, Some(Syndrome::REMOTE_INVALID_REQUEST));
}
