//! Send queue rules: order, signaling, fences, inline, wrap-around, flush order, states.

use uverbs_mlx5_format::{CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use crate::core::*;

#[test]
fn only_signaled_requests_complete_and_in_order() {
    let mut pair = Pair::new(QpType::Rc);
    let (from, to) = (pair.host(0).region(3000, ALL), pair.host(1).region(3000, ALL));
    let mut signaled = Vec::new();
    for n in 0..40u32 {
        let wr = Wr::write(to.address, to.key).from(from, 0, n * 70 + 1);
        let wr = if n % 3 == 0 { wr } else { wr.unsignaled() };
        let index = pair.post(0, &wr);
        signaled.extend((n % 3 == 0).then_some(index));
    }
    pair.world.run_until_idle();
    let done: Vec<u16> = pair.poll(0).iter().map(|d| d.index).collect();
    assert_eq!(done, signaled);
}

#[test]
fn one_doorbell_for_many_and_the_ring_wraps_around() {
    let mut pair = Pair::new(QpType::Rc);
    let (from, to) = (pair.host(0).region(64, ALL), pair.host(1).region(64, ALL));
    let payload = [0x5a; 150];
    let mut expected = 0;
    for _ in 0..60 {
        let qp = &mut pair.qps[0];
        let host = &mut pair.world.hosts[0];
        // Four blocks each, so that WQEs cross the end of the 256-block ring at every alignment.
        host.write_send(qp, &Wr::write(to.address, to.key).from(from, 0, 8).unsignaled());
        let big = with_length(Wr::write(to.address, to.key), &payload[..64 - 8]);
        host.write_send(qp, &big.unsignaled());
        let index =
            host.write_send(qp, &with_length(Wr::write(to.address, to.key), &payload[..40]));
        host.ring(qp);
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).index, index);
        expected += 1;
    }
    assert_eq!(expected, 60);
    assert_eq!(pair.host(1).bytes(to.address, 40), payload[..40]);
}

fn with_length(wr: Wr, data: &[u8]) -> Wr {
    wr.inline(data)
}

#[test]
fn inline_data_needs_no_key() {
    let mut pair = Pair::new(QpType::Rc);
    let to = pair.host(1).region(500, ALL);
    pair.post_receive(1, to);
    let data: Vec<u8> = (0..255).collect();
    pair.post(0, &Wr::send().inline(&data));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.one(1).bytes, 255);
    assert_eq!(pair.host(1).bytes(to.address, 255), data);
}

#[test]
fn messages_of_no_bytes() {
    let mut pair = Pair::new(QpType::Rc);
    let to = pair.host(1).region(8, ALL);
    pair.post_receive(1, to);
    pair.post(0, &Wr::send());
    pair.post(0, &Wr::write(0, Mkey(0xdead_be00)));
    pair.post(0, &Wr::read(0, Mkey(0xdead_be00)));
    pair.post(0, &Wr::new(Opcode::NOP));
    pair.world.run_until_idle();
    let done = pair.poll(0);
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|d| d.syndrome.is_none()), "{done:?}");
    assert_eq!(pair.one(1).bytes, 0);
}

#[test]
fn a_fence_waits_for_earlier_reads_only() {
    // Responses to READs are dropped at first: the fenced request must not start.
    let mut pair = Pair::new(QpType::Rc);
    let (local, remote) = (pair.host(0).region(64, ALL), pair.host(1).region(64, ALL));
    pair.post(0, &Wr::read(remote.address, remote.key).from(local, 0, 8));
    pair.post(0, &Wr::write(remote.address + 8, remote.key).inline(b"unfenced"));
    pair.post(0, &Wr::write(remote.address + 16, remote.key).inline(b"fenced..").fenced());
    pair.world.run_until_idle_with(&mut |packet| {
        let from_responder = packet.addressing.source.0[15] == 2;
        if from_responder { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!(pair.host(1).bytes(remote.address + 8, 8), b"unfenced");
    assert_eq!(pair.host(1).bytes(remote.address + 16, 8), [0; 8]);
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.host(1).bytes(remote.address + 16, 8), b"fenced..");
    assert_eq!(pair.poll(0).len(), 3);
}

#[test]
fn the_requester_bounds_its_outstanding_reads() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.max_read_atomic = Some(2);
        attributes.max_destination_read_atomic = Some(2);
    });
    let (local, remote) = (pair.host(0).region(64, ALL), pair.host(1).region(64, ALL));
    for _ in 0..20 {
        pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    }
    pair.world.run_until_idle();
    let done = pair.poll(0);
    assert_eq!(done.len(), 20);
    assert!(done.iter().all(|d| d.syndrome.is_none()));
}

#[test]
fn a_solicited_message_fires_a_cq_armed_for_solicited() {
    let mut pair = Pair::new(QpType::Rc);
    let to = pair.host(1).region(64, ALL);
    for _ in 0..2 {
        pair.post_receive(1, to);
    }
    let cq = pair.cqs[1].clone();
    pair.host(1).arm(&cq, true);
    pair.post(0, &Wr::send());
    pair.world.run_until_idle();
    assert_eq!(pair.host(1).events(), []);
    pair.post(0, &Wr::send().solicited());
    pair.world.run_until_idle();
    assert_eq!(pair.host(1).events(), [Event::Completion { cqn: cq.cqn }]);
    assert!(pair.poll(1)[1].solicited);
}

#[test]
fn an_error_flushes_everything_in_order() {
    let mut pair = Pair::new(QpType::Rc);
    let to = pair.host(0).region(64, ALL);
    for _ in 0..5 {
        pair.post_receive(0, to);
    }
    let posted: Vec<u16> = (0..5).map(|_| pair.post(0, &Wr::send().unsignaled())).collect();
    pair.world.run_until_idle_with(&mut |_| Fate::Drop);
    let qpn = pair.qps[0].qpn;
    pair.host(0).core.modify_qp(qpn, QpState::Error, &QpAttributes::default()).unwrap();
    let done = pair.poll(0);
    assert!(done.iter().all(|d| d.syndrome == Some(Syndrome::FLUSHED)));
    let of = |opcode| -> Vec<u16> {
        done.iter().filter(|d| d.opcode == opcode).map(|d| d.index).collect()
    };
    assert_eq!(of(CqeOpcode::REQUESTER_ERROR), posted);
    assert_eq!(of(CqeOpcode::RESPONDER_ERROR), [0, 1, 2, 3, 4]);
    // Requests posted in the error state are flushed too. Receives have no doorbell: the device
    // finds them when it next reads the ring.
    let late = pair.post(0, &Wr::send());
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).index, late);
    pair.post_receive(0, to);
    pair.world.pass(30_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).index, 5);
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    pair.post_receive(0, to);
    pair.world.pass(30_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).index, 6, "the device still reads the ring after a long time");
}

#[test]
fn requests_posted_before_rts_wait_and_a_reset_drops_them() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(6);
    let mut qp = host.qp(QpType::Rc, &cq);
    let (gid, qpn) = (host.gid, qp.qpn);
    let attributes = host.attributes(gid, qpn);
    host.make_rtr(&qp, &attributes);
    host.post(&mut qp, &Wr::new(Opcode::NOP));
    world.run_until_idle();
    let host = &mut world.hosts[0];
    assert_eq!(host.poll(&mut cq), None);
    host.core.modify_qp(qpn, QpState::ReadyToSend, &QpAttributes::default()).unwrap();
    world.run_until_idle();
    let host = &mut world.hosts[0];
    assert_eq!(host.poll_all(&mut cq).len(), 1);
    host.core.modify_qp(qpn, QpState::Reset, &QpAttributes::default()).unwrap();
    assert_eq!(host.core.query_qp(qpn).unwrap().send_counter, 0);
}

#[test]
fn only_legal_transitions_are_allowed() {
    use QpState::*;
    let states = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError, Error];
    let legal = [
        (Reset, Init),
        (Init, Init),
        (Init, ReadyToReceive),
        (ReadyToReceive, ReadyToSend),
        (ReadyToSend, ReadyToSend),
        (ReadyToSend, SendQueueDrain),
        (SendQueueDrain, SendQueueDrain),
        (SendQueueDrain, ReadyToSend),
    ];
    let mut host = Host::new(1);
    let cq = host.cq(6);
    for from in [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrain, Error] {
        for to in states {
            let qp = host.qp(QpType::Rc, &cq);
            let attributes = host.attributes(host.gid, qp.qpn);
            let path = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrain];
            let steps = path.iter().position(|state| *state == from).unwrap_or(0);
            for state in &path[1..=steps] {
                host.core.modify_qp(qp.qpn, *state, &attributes).unwrap();
            }
            if from == Error {
                host.core.modify_qp(qp.qpn, Error, &QpAttributes::default()).unwrap();
            }
            let allowed = matches!(to, Reset | Error) || legal.contains(&(from, to));
            let result = host.core.modify_qp(qp.qpn, to, &QpAttributes::default());
            assert_eq!(result.is_ok(), allowed, "{from:?} to {to:?}: {result:?}");
            let left = if allowed { to } else { from };
            assert_eq!(host.state(&qp), left);
            host.core.destroy_qp(qp.qpn).unwrap();
        }
    }
}

#[test]
fn draining_finishes_begun_requests_and_starts_no_other() {
    let mut pair = Pair::new(QpType::Rc);
    let to = pair.host(1).region(64, ALL);
    pair.post_receive(1, to);
    pair.post(0, &Wr::send());
    let qpn = pair.qps[0].qpn;
    pair.world.run_until_idle_with(&mut |_| Fate::Drop);
    let drain = QpAttributes { drained_event: Some(true), ..QpAttributes::default() };
    pair.host(0).core.modify_qp(qpn, QpState::SendQueueDrain, &drain).unwrap();
    pair.post_receive(1, to);
    pair.post(0, &Wr::send());
    assert!(pair.host(0).core.query_qp(qpn).unwrap().draining);
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.poll(0).len(), 1);
    let drained = (AsyncKind::SqDrained, EventObject::Qp(qpn));
    assert_eq!(pair.host(0).async_events(), [drained]);
    assert!(!pair.host(0).core.query_qp(qpn).unwrap().draining);
    let back = QpAttributes::default();
    pair.host(0).core.modify_qp(qpn, QpState::ReadyToSend, &back).unwrap();
    pair.world.run_until_idle();
    assert_eq!(pair.poll(0).len(), 1);
}

#[test]
fn the_first_packet_in_rtr_establishes() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let cq = host.cq(6);
    let mut a = host.qp(QpType::Rc, &cq);
    let b = host.qp(QpType::Rc, &cq);
    let gid = host.gid;
    let (to_a, to_b) = (host.attributes(gid, a.qpn), host.attributes(gid, b.qpn));
    host.make_rts(&a, &to_b);
    host.make_rtr(&b, &to_a);
    host.post(&mut a, &Wr::write(0, Mkey(0)));
    host.post(&mut a, &Wr::write(0, Mkey(0)));
    world.run_until_idle();
    let established = (AsyncKind::CommunicationEstablished, EventObject::Qp(b.qpn));
    assert_eq!(world.hosts[0].async_events(), [established]);
}
