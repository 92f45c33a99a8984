//! DC sessions: their number, their end, and packets of other peers.

use super::*;
use crate::packet::{Headers, Position};

const SEND_ONLY: Wire = Wire::send(Transport::Dc, Position::Only, Headers::empty());
const READ_REQUEST: Wire = Wire::RC_READ_REQUEST.on(Transport::Dc);

/// A packet of an initiator at host 0 that does not exist.
fn forged(net: &Net, opcode: Wire, number: u32, key: u64, session: u32) -> Packet {
    let mut packet = Packet::new();
    let (at, target) = &net.targets[0];
    let addressing = crate::packet::Addressing::roce(net_gid(0), net.world.hosts[*at].gid);
    let mut bth = Bth::new(opcode, 0xffff, target.qpn.0, Psn::new(number));
    bth.set_ack_request(true);
    packet.start(addressing, bth);
    packet.push(DcEth::new(key, number, session));
    packet
}

fn connect(net: &Net, number: u32, key: u64, attempt: u64) -> Packet {
    let mut packet = forged(net, Wire::DC_CONNECT, number, key, 0);
    packet.push(DcConnectEth::new(attempt));
    packet
}

fn answers(net: &mut Net) -> Vec<Packet> {
    let host = net.targets[0].0;
    net.world.hosts[host].core.step(net.world.now, 64);
    std::iter::from_fn(|| net.world.hosts[host].core.take_packet()).collect()
}

#[test]
fn sessions_are_bounded_and_idle_ones_end() {
    let mut net = Net::new(1, 1);
    let mut accepted = 0;
    for number in 1..=1100 {
        let packet = connect(&net, number, KEY, 5);
        net.world.hosts[1].core.receive(net.world.now, packet);
        let [answer] = answers(&mut net).try_into().unwrap();
        accepted += u32::from(answer.view().unwrap().dceth.unwrap().session.get() != 0);
    }
    assert_eq!(accepted, 1024);
    // This device's initiator waits until a session ends, and then connects.
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send());
    net.world.pass(500_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.received(0), []);
    net.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.received(0).len(), 1);
}

#[test]
fn a_packet_without_the_access_key_gets_no_answer() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    let dropped = net.world.hosts[1].core.counters().dropped;
    let mut sent = 0;
    for low in 0..0x20u8 {
        for (key, session) in [(0, 0), (!KEY, 1), (KEY, 0), (KEY, 1), (KEY, u32::MAX)] {
            let opcode = Wire(Transport::Dc.base() | low);
            if key == KEY && opcode == Wire::DC_CONNECT {
                continue;
            }
            let mut packet = forged(&net, opcode, 77, key, session);
            let headers = opcode.describe().map_or(28, |(.., headers)| headers.size());
            packet.bytes_mut().resize(headers, 0);
            net.world.hosts[1].core.receive(0, packet);
            sent += 1;
        }
    }
    assert_eq!(answers(&mut net), []);
    assert_eq!(net.world.hosts[1].core.counters().dropped, dropped + sent);
    assert_eq!(net.received(0), []);
}

#[test]
fn a_session_belongs_to_the_address_that_connected() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    let packet = connect(&net, 77, KEY, 5);
    net.world.hosts[1].core.receive(0, packet);
    let [answer] = answers(&mut net).try_into().unwrap();
    let session = answer.view().unwrap().dceth.unwrap().session.get();
    let send = |net: &Net, number, session| {
        let mut packet = forged(net, SEND_ONLY, number, KEY, session);
        packet.bth_mut().unwrap().set_psn(Psn::new(78));
        packet
    };
    // A packet of another initiator, of another host, and of another session.
    for change in 0..3 {
        let number = if change == 0 { 78 } else { 77 };
        let mut packet = send(&net, number, session ^ u32::from(change == 2));
        if change == 1 {
            packet.addressing.source = net_gid(9);
        }
        net.world.hosts[1].core.receive(0, packet);
        assert_eq!((answers(&mut net).len(), net.received(0).len()), (0, 0));
    }
    let packet = send(&net, 77, session);
    net.world.hosts[1].core.receive(0, packet);
    assert_eq!((answers(&mut net).len(), net.received(0).len()), (1, 1));
}

#[test]
fn the_receive_of_a_peer_that_vanished_is_used_again() {
    let mut net = Net::new(2, 1);
    let inbox = net.region(2, 4096);
    let here = net.region(0, 4096);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send().all_of(here));
    // Only the first packets of the message arrive; then the sender vanishes.
    let mut passed = 0;
    net.world.run_until_idle_with(&mut |packet| {
        passed += u32::from(packet.addressing.source == net_gid(0));
        if passed > 3 { Fate::Drop } else { Fate::Pass }
    });
    let (at, qp, _) = net.initiators[0].clone();
    let mut gone = |packet: &Packet| {
        if packet.addressing.source == net_gid(0) { Fate::Drop } else { Fate::Pass }
    };
    net.world.hosts[at].core.destroy_qp(qp.qpn).unwrap();
    net.world.run_until_idle_with(&mut gone);
    net.post(1, 0, Wr::send().inline(b"next"));
    net.world.pass(1_000_000_000, &mut gone);
    assert_eq!(net.received(0), []);
    net.world.pass(2_000_000_000, &mut gone);
    let [got] = net.received(0).try_into().unwrap();
    assert_eq!((got.bytes, got.remote_qpn), (4, net.initiators[1].1.qpn.0));
    assert_eq!(net.world.hosts[2].bytes(inbox.address, 4), b"next");
}

#[test]
fn a_message_that_is_too_long_ends_only_its_session() {
    let mut net = Net::new(2, 1);
    let inbox = net.region(2, 16);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send().inline(&[1; 17]));
    net.world.run_until_idle();
    assert_eq!(net.sent(0)[0].syndrome, Some(Syndrome::REMOTE_INVALID_REQUEST));
    assert_eq!(net.received(0)[0].syndrome, Some(Syndrome::LOCAL_LENGTH));
    for from in [1, 0] {
        if from == 0 {
            net.revive(0);
        }
        net.post_receive(0, inbox);
        net.post(from, 0, Wr::send().inline(&[2; 16]));
        net.world.run_until_idle();
        assert_eq!(net.received(0)[0].bytes, 16);
    }
}

#[test]
fn an_idle_initiator_connects_again() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    let mut connects = 0;
    for pause in [0, 1_000, 400_000_000, 600_000_000, 5_000_000_000] {
        net.world.pass(pause, &mut |_| Fate::Pass);
        net.post_receive(0, inbox);
        net.post(0, 0, Wr::send());
        net.world.run_until_idle_with(&mut |packet| {
            connects += u32::from(packet.bth().unwrap().opcode() == Wire::DC_CONNECT);
            Fate::Pass
        });
        assert_eq!(net.received(0).len(), 1);
    }
    assert_eq!(connects, 3);
}

/// Only the acknowledgement of the CONNECT establishes a session. Any other acknowledgement is
/// ignored, and the waiting request fails when the retries end.
#[test]
fn only_the_acknowledgement_of_a_connect_establishes_a_session() {
    for other in [-1, 1, 5] {
        let mut net = Net::with(1, 1, |attributes| attributes.retry_count = Some(2));
        net.post(0, 0, Wr::send().inline(b"lost"));
        let mut connect = None;
        net.world.run_until_idle_with(&mut |packet| {
            connect.get_or_insert_with(|| packet.clone());
            Fate::Drop
        });
        let connect = connect.unwrap();
        let view = connect.view().unwrap();
        let (attempt, psn) = (view.dc_connect.unwrap().number(), view.bth.psn().get() as i32);
        let (initiator, target) = (net.initiators[0].1.qpn.0, net.targets[0].1.qpn.0);
        let mut lie = Packet::new();
        let way = Addressing::roce(net_gid(1), net_gid(0));
        let psn = Psn::new((psn + other) as u32 & 0xff_ffff);
        lie.start(way, Bth::new(Wire::DC_ACKNOWLEDGE, 0xffff, initiator, psn));
        lie.push(DcEth::new(attempt, target, 9));
        lie.push(Aeth::new(Answer::ACK, 0));
        net.world.hosts[0].core.receive(net.world.now, lie);
        net.world.pass(60_000_000_000, &mut |_| Fate::Drop);
        let [done] = net.sent(0).try_into().unwrap();
        assert_eq!(done.syndrome, Some(Syndrome::TRANSPORT_RETRY_EXCEEDED));
        assert_eq!(net.state(0), QpState::Error);
    }
}

/// An initiator that reconnects again and again gets no larger share than the others.
#[test]
fn sessions_take_turns_however_often_one_reconnects() {
    let mut net = Net::new(1, 1);
    let data = net.region(1, 1 << 20);
    let read = |net: &mut Net, number: u32, attempt| {
        let packet = connect(net, number, KEY, attempt);
        net.world.hosts[1].core.receive(0, packet);
        let session = loop {
            let sent = std::iter::from_fn(|| net.world.hosts[1].core.take_packet());
            let mut headers = sent.map(|packet| *packet.view().unwrap().dceth.unwrap());
            if let Some(header) = headers.find(|header| header.key.get() == attempt) {
                break header.session.get();
            }
        };
        let mut packet = forged(net, READ_REQUEST, number, KEY, session);
        packet.bth_mut().unwrap().set_psn(Psn::new(number + 1));
        packet.push(Reth::new(data.address, data.key.0, data.len as u32));
        net.world.hosts[1].core.receive(0, packet);
    };
    (1..=30).for_each(|attempt| read(&mut net, 77, attempt));
    read(&mut net, 78, 1 << 40);
    let mut shares = [0; 2];
    for _ in 0..10 {
        for packet in answers(&mut net) {
            let view = packet.view().unwrap();
            assert_eq!(view.operation, Operation::ReadResponse);
            shares[usize::from(view.dceth.unwrap().key.get() == 1 << 40)] += 1;
        }
    }
    assert!(shares[1] * 3 > shares[0], "{shares:?}");
}
