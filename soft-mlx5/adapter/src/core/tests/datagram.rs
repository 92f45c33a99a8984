//! UC and UD, multicast, and InfiniBand addressing.

use uverbs_mlx5_format::{AddressVector, CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use super::loss::Dice;
use crate::core::*;
use crate::packet::{Gid, Operation};

const QKEY: u32 = 0x1111_2222;

fn vector(gid: Gid, qpn: u32, qkey: u32) -> AddressVector {
    let mut vector = AddressVector::default().for_datagram(qpn, qkey);
    vector.remote_gid = gid.0;
    vector.hop_limit = 64;
    vector.traffic_class = 3;
    vector
}

fn datagrams() -> Pair {
    Pair::with_attributes(QpType::Ud, |_, attributes| {
        *attributes = QpAttributes {
            qkey: Some(QKEY),
            pkey_index: Some(0),
            send_psn: Some(0),
            ..QpAttributes::default()
        };
    })
}

fn to(pair: &Pair, side: usize, qkey: u32) -> AddressVector {
    vector(pair.world.hosts[side].gid, pair.qps[side].qpn.0, qkey)
}

fn datagram(vector: AddressVector) -> Wr {
    Wr { address_vector: Some(vector), ..Wr::send() }
}

#[test]
fn a_datagram_arrives_after_its_ip_header() {
    let mut pair = datagrams();
    let inbox = pair.host(1).region(200, ALL);
    pair.post_receive(1, inbox);
    let wr = datagram(to(&pair, 1, QKEY)).inline(b"hello").immediate(Opcode::SEND_IMMEDIATE, 77);
    pair.post(0, &wr);
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    let got = pair.one(1);
    assert_eq!((got.opcode, got.bytes), (CqeOpcode::RESPONDER_SEND_IMMEDIATE, 45));
    assert_eq!((got.immediate, got.remote_qpn, got.grh), (77, pair.qps[0].qpn.0, true));
    let buffer = pair.host(1).bytes(inbox.address, 45);
    assert_eq!(&buffer[40..], b"hello");
    assert_eq!(buffer[20], 0x45, "IPv4 in the second half");
    assert_eq!(buffer[32..40], [127, 0, 0, 1, 127, 0, 0, 2]);
}

#[test]
fn the_q_key_must_match_and_its_top_bit_selects_the_senders_q_key() {
    for (qkey, arrives) in [(QKEY, true), (QKEY ^ 1, false), (0x8000_0000, true)] {
        let mut pair = datagrams();
        let inbox = pair.host(1).region(200, ALL);
        pair.post_receive(1, inbox);
        let vector = to(&pair, 1, qkey);
        pair.post(0, &datagram(vector).inline(b"x"));
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).syndrome, None);
        assert_eq!(pair.poll(1).len(), usize::from(arrives), "{qkey:#x}");
        let violations = pair.host(1).core.counters().qkey_violations;
        assert_eq!(violations, u64::from(!arrives));
    }
}

/// The Q_Key of QP 1, `IB_QP1_QKEY` of the kernel's ib_mad.h.
const QP1_QKEY: u32 = 0x8001_0000;

#[test]
fn management_datagrams_carry_the_q_key_of_qp_1() {
    // The Q_Key that kernels post, another that they could post, and one that QP 1 does not accept.
    for (qkey, arrives) in [(0x8000_0000, true), (QP1_QKEY, true), (0x1234, false)] {
        let mut pair = Pair::with(
            QpType::Ud,
            |_, params| params.special = Some(1),
            |_, attributes| {
                let qkey = Some(QKEY);
                *attributes = QpAttributes { qkey, pkey_index: Some(0), ..Default::default() };
            },
        );
        let inbox = pair.host(1).region(300, ALL);
        pair.post_receive(1, inbox);
        let to = vector(pair.world.hosts[1].gid, 1, qkey);
        pair.post(0, &datagram(to).inline(b"a MAD"));
        let mut seen = Vec::new();
        pair.world.run_until_idle_with(&mut |packet| {
            let view = packet.view().unwrap();
            let deth = view.deth.unwrap();
            seen.push((view.bth.destination(), deth.source(), deth.qkey.get()));
            Fate::Pass
        });
        let carried = if qkey >> 31 == 1 { QP1_QKEY } else { qkey };
        assert_eq!(seen, [(1, 1, carried)]);
        let arrived = pair.poll(1);
        assert_eq!(arrived.len(), usize::from(arrives), "{qkey:#x}");
        // The CQE has the P_Key in place of immediate data (mlx5_ib's `handle_responder`).
        assert!(arrived.iter().all(|done| done.immediate == 0xffff), "{arrived:x?}");
    }
}

#[test]
fn a_datagram_keeps_the_mac_address_and_source_port_of_its_address_vector() {
    for (port, label, expected) in
        [(0xc123, 7, 0xc123), (0, 0x2_2b3b, 0xeb33), (0, 0xf_ffff, 0xffc0), (0, 0, 0xc000)]
    {
        let mut pair = datagrams();
        let mut vector = to(&pair, 1, QKEY);
        vector.remote_mac = [2, 0, 0, 0, 0, 9];
        vector.remote_lid_udp_port = port.into();
        vector.grh_gid_flow = u32::into(label);
        pair.post(0, &datagram(vector).inline(b"x"));
        let mut routes = Vec::new();
        pair.world.run_until_idle_with(&mut |packet| {
            routes.push(packet.addressing);
            Fate::Pass
        });
        let [route] = routes[..] else { panic!("{routes:?}") };
        assert_eq!(route.destination_mac, [2, 0, 0, 0, 0, 9]);
        assert_eq!(route.source_port(), expected, "{label:#x}");
    }
}

#[test]
fn a_datagram_without_a_receive_is_lost() {
    let mut pair = datagrams();
    let vector = to(&pair, 1, QKEY);
    pair.post(0, &datagram(vector).inline(b"x"));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.state(1), QpState::ReadyToSend);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_an_error_of_the_send_queue_only() {
    let mut pair = datagrams();
    let from = pair.host(0).region(4097, ALL);
    let vector = to(&pair, 1, QKEY);
    pair.post(0, &datagram(vector).all_of(from));
    pair.post(0, &datagram(vector).inline(b"x"));
    pair.world.run_until_idle();
    let done: Vec<_> = pair.poll(0).iter().map(|d| d.syndrome.unwrap()).collect();
    assert_eq!(done, [Syndrome::LOCAL_LENGTH, Syndrome::FLUSHED]);
    assert_eq!(pair.state(0), QpState::SendQueueError);
    // The QP still receives, and can return to RTS.
    let inbox = pair.host(0).region(200, ALL);
    pair.post_receive(0, inbox);
    let back = to(&pair, 0, QKEY);
    pair.post(1, &datagram(back).inline(b"y"));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).bytes, 41);
    let qpn = pair.qps[0].qpn;
    pair.host(0).core.modify_qp(qpn, QpState::ReadyToSend, &QpAttributes::default()).unwrap();
    pair.post(0, &datagram(vector).inline(b"z"));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
}

#[test]
fn operations_that_ud_lacks_are_errors() {
    for opcode in [Opcode::RDMA_WRITE, Opcode::RDMA_READ, Opcode::SEND_INVALIDATE] {
        let mut pair = datagrams();
        let vector = to(&pair, 1, QKEY);
        pair.post(0, &Wr { opcode, ..datagram(vector) });
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).syndrome, Some(Syndrome::LOCAL_QP_OPERATION));
    }
}

#[test]
fn members_of_a_multicast_group_get_its_datagrams() {
    let group = Gid::from_ipv4([239, 1, 2, 3].into());
    let mut pair = datagrams();
    let inboxes = [0, 1].map(|side| pair.host(side).region(200, ALL));
    for side in [0, 1] {
        pair.post_receive(side, inboxes[side]);
        pair.post_receive(side, inboxes[side]);
    }
    let (a, b) = (pair.qps[0].qpn, pair.qps[1].qpn);
    pair.host(1).core.attach_multicast(b, group).unwrap();
    pair.host(1).core.attach_multicast(b, group).unwrap();
    pair.post(0, &datagram(vector(group, 0xff_ffff, QKEY)).inline(b"all"));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).opcode, CqeOpcode::REQUESTER, "not attached itself");
    assert_eq!(pair.one(1).bytes, 43);
    pair.host(0).core.attach_multicast(a, group).unwrap();
    pair.post(0, &datagram(vector(group, 0xff_ffff, QKEY)).inline(b"all"));
    pair.world.run_until_idle();
    assert_eq!(pair.poll(0).len(), 2, "its own copy, too");
    assert_eq!(pair.poll(1).len(), 1);
    assert!(matches!(pair.host(1).core.destroy_qp(b), Err(CoreError::InUse { .. })));
    pair.host(1).core.detach_multicast(b, group).unwrap();
    assert!(pair.host(1).core.detach_multicast(b, group).is_err());
    pair.host(1).core.destroy_qp(b).unwrap();
}

#[test]
fn unreliable_connections_carry_sends_and_writes() {
    let mut pair = Pair::new(QpType::Uc);
    let (from, to) = (pair.host(0).region(5000, ALL), pair.host(1).region(5000, ALL));
    let inbox = pair.host(1).region(5000, ALL);
    let data = pair.host(0).fill(from, 4);
    pair.post_receive(1, inbox);
    pair.post_receive(1, inbox);
    pair.post(0, &Wr::send().all_of(from));
    let write = Wr::write(to.address, to.key).all_of(from);
    pair.post(0, &write.immediate(Opcode::RDMA_WRITE_IMMEDIATE, 1));
    pair.world.run_until_idle();
    assert!(pair.poll(0).iter().all(|d| d.syndrome.is_none()));
    let got: Vec<_> = pair.poll(1).iter().map(|d| (d.opcode, d.bytes)).collect();
    let send = (CqeOpcode::RESPONDER_SEND, 5000);
    assert_eq!(got, [send, (CqeOpcode::RESPONDER_WRITE_IMMEDIATE, 5000)]);
    assert!(pair.host(1).bytes(inbox.address, 5000) == data);
    assert!(pair.host(1).bytes(to.address, 5000) == data);
}

#[test]
fn a_uc_message_with_a_missing_packet_is_lost_and_the_next_one_arrives() {
    for lost in 1..=5 {
        let mut pair = Pair::new(QpType::Uc);
        let from = pair.host(0).region(5000, ALL);
        let inbox = pair.host(1).region(5000, ALL);
        pair.post_receive(1, inbox);
        pair.post(0, &Wr::send().all_of(from));
        pair.post(0, &Wr::send().inline(b"next"));
        let mut sent = 0;
        pair.world.run_until_idle_with(&mut |_| {
            sent += 1;
            if sent == lost { Fate::Drop } else { Fate::Pass }
        });
        assert_eq!(pair.poll(0).len(), 2, "the sender gets no error");
        let got = pair.one(1);
        assert_eq!((got.bytes, got.index), (4, 0), "the receive of the lost message is used again");
        assert_eq!(pair.host(1).bytes(inbox.address, 4), b"next");
    }
}

/// Over a wire that loses packets, some messages are lost. Each of the others arrives once, whole
/// and in order, in the next receive. WRITEs without immediate data are between them. A wire that
/// reorders packets may also reorder messages of one packet, because any first packet is accepted.
#[test]
fn a_uc_message_arrives_whole_or_not_at_all() {
    const MESSAGES: usize = 40;
    const LEN: u64 = 3000;
    for seed in 0..60 {
        let (mut dice, reorders) = (Dice::new(seed), seed % 2 == 1);
        let mut pair = Pair::with_attributes(QpType::Uc, |_, attributes| {
            attributes.mtu = Some(Mtu::M256);
            attributes.send_psn = Some(0xff_ffb0);
            attributes.receive_psn = Some(0xff_ffb0);
        });
        let (from, to) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
        let inbox = pair.host(1).region(LEN * MESSAGES as u64, ALL);
        let data = pair.host(0).fill(from, seed as u8);
        let mut sent = Vec::new();
        for number in 0..MESSAGES as u64 {
            let part = Region { address: inbox.address + number * LEN, len: LEN, ..inbox };
            pair.post_receive(1, part);
            let len = 1 + dice.roll([256, LEN][number as usize % 2]);
            let wr = match dice.roll(3) {
                0 => Wr::write(to.address, to.key),
                _ => Wr::send().immediate(Opcode::SEND_IMMEDIATE, number as u32),
            };
            if wr.opcode == Opcode::SEND_IMMEDIATE {
                sent.push((number as u32, len as u32));
            }
            pair.post(0, &wr.from(from, 0, len as u32));
        }
        pair.world.run_until_idle_with(&mut |_| match dice.roll(12) {
            0 => Fate::Drop,
            1 if reorders => Fate::Late,
            _ => Fate::Pass,
        });
        assert_eq!(pair.poll(0).len(), MESSAGES, "seed {seed}: the sender gets no error");
        for (place, done) in pair.poll(1).iter().enumerate() {
            let message = (done.immediate, done.bytes);
            assert_eq!((done.syndrome, done.index), (None, place as u16), "seed {seed}");
            let found = sent.iter().position(|sent| *sent == message);
            let found = found.unwrap_or_else(|| panic!("seed {seed}: {message:?}"));
            sent.drain(if reorders { found } else { 0 }..=found);
            let got = pair.host(1).bytes(inbox.address + place as u64 * LEN, done.bytes.into());
            assert!(got == data[..got.len()], "seed {seed}: {message:?}");
        }
        assert_eq!(pair.state(1), QpState::ReadyToSend);
    }
}

#[test]
fn a_read_over_uc_is_an_error() {
    let mut pair = Pair::new(QpType::Uc);
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::LOCAL_QP_OPERATION));
}

#[test]
fn infiniband_routes_by_lid() {
    let config = CoreConfig { link: LinkLayer::InfiniBand, ..CoreConfig::default() };
    let mut world = World {
        hosts: vec![Host::with(1, config.clone()), Host::with(2, config)],
        now: 0,
        crossed: 0,
    };
    let mut cqs = [0, 1].map(|side| world.hosts[side].cq(6));
    let mut qps = [0, 1].map(|side| world.hosts[side].qp(QpType::Rc, &cqs[side]));
    world.connect(&qps, |side, attributes| {
        let destination_lid = 2 - side as u16;
        let path = AddressPath { destination_lid, service_level: 5, ..AddressPath::default() };
        attributes.path = Some(path);
    });
    let inbox = world.hosts[1].region(64, ALL);
    world.hosts[1].post_receive(&mut qps[1], &[(inbox.address, 64, inbox.key)]);
    world.hosts[0].post(&mut qps[0], &Wr::send().inline(b"by LID"));
    let mut seen = Vec::new();
    world.run_until_idle_with(&mut |packet| {
        let (to, view) = (packet.addressing, packet.view().unwrap());
        seen.push((to.source_lid, to.destination_lid, to.global, view.operation));
        Fate::Pass
    });
    let answer = (2, 1, false, Operation::Acknowledge);
    assert_eq!(seen, [(1, 2, false, Operation::Send), answer]);
    assert_eq!(world.hosts[1].poll(&mut cqs[1]).unwrap().bytes, 6);
    assert_eq!(world.hosts[0].poll(&mut cqs[0]).unwrap().syndrome, None);
}
