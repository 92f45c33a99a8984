//! Dynamically connected: initiators and targets, sessions, keys, and what a peer may not do.

use std::collections::BTreeMap;

use uverbs_mlx5_format::{AddressVector, CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use crate::core::*;
use crate::packet::{
    Addressing, Aeth, Bth, DcConnectEth, DcEth, Opcode as Wire, Packet, Psn, Reth, Transport,
};
use crate::packet::{Operation, Syndrome as Answer};
use crate::prng::Prng;

const KEY: u64 = 0x1234_5678_9abc_def0;

/// A target with its queues.
struct Target {
    qpn: Qpn,
    cq: CqHandle,
    srq: SrqHandle,
}

/// Devices of which some have initiators and some have targets.
struct Net {
    world: World,
    initiators: Vec<(usize, QpHandle, CqHandle)>,
    targets: Vec<(usize, Target)>,
}

impl Net {
    /// One initiator on each of the first hosts, one target on each of the others.
    fn new(initiators: usize, targets: usize) -> Self {
        Self::with(initiators, targets, |_| {})
    }

    fn with(initiators: usize, targets: usize, change: impl Fn(&mut QpAttributes)) -> Self {
        let mut net = Self {
            world: World::new(initiators + targets),
            initiators: Vec::new(),
            targets: Vec::new(),
        };
        for host in 0..initiators {
            net.initiator(host, &change);
        }
        for host in initiators..initiators + targets {
            net.target(host, KEY, RemoteRights::all());
        }
        net
    }

    fn initiator(&mut self, at: usize, change: &dyn Fn(&mut QpAttributes)) -> usize {
        let host = &mut self.world.hosts[at];
        let cq = host.cq(8);
        let mut params = host.qp_params(QpType::DcInitiator, &cq, &cq);
        params.receive = ReceiveSource::None;
        let qp = host.create(params);
        let mut attributes = QpAttributes { path: None, ..host.attributes(host.gid, qp.qpn) };
        change(&mut attributes);
        host.make_rts(&qp, &attributes);
        self.initiators.push((at, qp, cq));
        self.initiators.len() - 1
    }

    fn target(&mut self, at: usize, key: u64, rights: RemoteRights) -> usize {
        let host = &mut self.world.hosts[at];
        let (cq, srq) = (host.cq(8), host.srq(6, None));
        let mut params = QpParams::new(QpType::DcTarget, host.pd, cq.cqn, cq.cqn);
        params.receive = ReceiveSource::Srq(srq.srqn);
        (params.access_key, params.user_index) = (key, 0x777);
        let qpn = host.core.create_qp(params).unwrap();
        let attributes = host.attributes(host.gid, qpn);
        let attributes = QpAttributes { remote_rights: Some(rights), ..attributes };
        host.core.modify_qp(qpn, QpState::Init, &QpAttributes::default()).unwrap();
        host.core.modify_qp(qpn, QpState::ReadyToReceive, &attributes).unwrap();
        self.targets.push((at, Target { qpn, cq, srq }));
        self.targets.len() - 1
    }

    fn vector(&self, target: usize, key: u64) -> AddressVector {
        let (at, target) = &self.targets[target];
        let remote_gid = self.world.hosts[*at].gid.0;
        let vector = AddressVector { remote_gid, hop_limit: 64, ..AddressVector::default() };
        vector.for_dc(target.qpn.0, key)
    }

    fn post(&mut self, initiator: usize, target: usize, wr: Wr) -> u16 {
        self.post_to(initiator, self.vector(target, KEY), wr)
    }

    fn post_to(&mut self, initiator: usize, vector: AddressVector, wr: Wr) -> u16 {
        let (at, qp, _) = &mut self.initiators[initiator];
        self.world.hosts[*at].post(qp, &wr.to(vector))
    }

    fn post_receive(&mut self, target: usize, region: Region) {
        let (at, target) = &mut self.targets[target];
        let sge = (region.address, region.len as u32, region.key);
        self.world.hosts[*at].post_srq(&mut target.srq, &[sge]);
    }

    fn region(&mut self, host: usize, len: u64) -> Region {
        self.world.hosts[host].region(len, ALL)
    }

    fn sent(&mut self, initiator: usize) -> Vec<Done> {
        let (at, _, cq) = &mut self.initiators[initiator];
        self.world.hosts[*at].poll_all(cq)
    }

    fn received(&mut self, target: usize) -> Vec<Done> {
        let (at, target) = &mut self.targets[target];
        self.world.hosts[*at].poll_all(&mut target.cq)
    }

    fn state(&self, initiator: usize) -> QpState {
        let (at, qp, _) = &self.initiators[initiator];
        self.world.hosts[*at].state(qp)
    }

    /// From ERR through RESET to RTS.
    fn revive(&mut self, initiator: usize) {
        let (at, qp, _) = &mut self.initiators[initiator];
        let host = &mut self.world.hosts[*at];
        let attributes = QpAttributes { path: None, ..host.attributes(host.gid, qp.qpn) };
        host.core.modify_qp(qp.qpn, QpState::Reset, &QpAttributes::default()).unwrap();
        host.memory_write(qp.record, &[0; 8]);
        (qp.sent, qp.received) = (0, 0);
        host.make_rts(qp, &attributes);
    }
}

fn no_receiver_retries(attributes: &mut QpAttributes) {
    (attributes.rnr_retry, attributes.retry_count) = (Some(1), Some(1));
}

#[test]
fn a_send_arrives_in_the_targets_queues() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send().inline(b"hello").solicited());
    net.world.run_until_idle();
    let [got] = net.received(0).try_into().unwrap();
    let (target, initiator) = (net.targets[0].1.qpn.0, net.initiators[0].1.qpn.0);
    assert_eq!((got.opcode, got.bytes), (CqeOpcode::RESPONDER_SEND, 5));
    assert_eq!((got.qpn, got.user_index, got.remote_qpn), (target, 0x777, initiator));
    assert!(got.solicited);
    assert_eq!(net.world.hosts[1].bytes(inbox.address, 5), b"hello");
    let [done] = net.sent(0).try_into().unwrap();
    assert_eq!((done.opcode, done.index, done.qpn), (CqeOpcode::REQUESTER, 0, initiator));
}

#[test]
fn every_operation_needs_its_right() {
    let rights = [RemoteRights::READ, RemoteRights::WRITE, RemoteRights::ATOMIC];
    for granted in (0..8).map(RemoteRights::from_bits_retain) {
        let mut net = Net::new(1, 1);
        let target = net.target(1, KEY, granted);
        let (there, here) = (net.region(1, 4096), net.region(0, 4096));
        let sent = net.world.hosts[0].fill(here, 3);
        let operations = [
            Wr::read(there.address, there.key).all_of(here),
            Wr::write(there.address, there.key).all_of(here),
            Wr::fetch_add(there.address, there.key, 5).from(here, 0, 8),
        ];
        for (operation, right) in operations.into_iter().zip(rights) {
            net.world.hosts[1].memory_write(there.address, &[9; 4096]);
            net.post(0, target, operation.clone());
            net.world.run_until_idle();
            let [done] = net.sent(0).try_into().unwrap();
            if granted.contains(right) {
                assert_eq!(done.syndrome, None, "{operation:?}");
            } else {
                assert_eq!(done.syndrome, Some(Syndrome::REMOTE_INVALID_REQUEST));
                assert_eq!(net.state(0), QpState::Error);
                assert_eq!(net.world.hosts[1].bytes(there.address, 4096), [9; 4096]);
                net.revive(0);
            }
            net.world.hosts[0].memory_write(here.address, &sent);
        }
        // Sends need none, and the target outlives all refusals.
        net.post_receive(target, there);
        net.post(0, target, Wr::send().all_of(here));
        net.world.run_until_idle();
        assert_eq!(net.sent(0)[0].syndrome, None);
        assert_eq!(net.world.hosts[1].bytes(there.address, 4096), sent);
        assert_eq!(net.world.hosts[1].async_events(), []);
    }
}

#[test]
fn data_and_atomics_do_what_they_do_over_a_connection() {
    let mut net = Net::new(1, 1);
    let (there, here) = (net.region(1, 10_000), net.region(0, 10_000));
    let data = net.world.hosts[0].fill(here, 7);
    net.post(0, 0, Wr::write(there.address, there.key).all_of(here));
    net.world.run_until_idle();
    assert_eq!(net.world.hosts[1].bytes(there.address, 10_000), data);
    net.world.hosts[0].memory_write(here.address, &[0; 10_000]);
    net.post(0, 0, Wr::read(there.address, there.key).all_of(here));
    net.world.run_until_idle();
    assert_eq!(net.world.hosts[0].bytes(here.address, 10_000), data);
    net.world.hosts[1].memory_write(there.address, &40u64.to_ne_bytes());
    net.post(0, 0, Wr::fetch_add(there.address, there.key, 2).from(here, 0, 8));
    net.post(0, 0, Wr::compare_swap(there.address, there.key, 42, 7).from(here, 8, 8));
    net.world.run_until_idle();
    assert_eq!(net.world.hosts[1].bytes(there.address, 8), 7u64.to_ne_bytes());
    let old = [40u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat();
    assert_eq!(net.world.hosts[0].bytes(here.address, 16), old);
    assert_eq!(net.sent(0).len(), 4);
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    let wr = Wr::write(there.address, there.key).all_of(here);
    net.post(0, 0, wr.immediate(Opcode::RDMA_WRITE_IMMEDIATE, 0xabcd));
    net.world.run_until_idle();
    let [got] = net.received(0).try_into().unwrap();
    assert_eq!(got.opcode, CqeOpcode::RESPONDER_WRITE_IMMEDIATE);
    assert_eq!((got.immediate, got.bytes), (0xabcd, 10_000));
}

#[test]
fn a_wrong_key_reaches_nothing() {
    for key in [0, KEY + 1, !KEY, KEY.swap_bytes(), KEY & 0xffff_ffff] {
        let mut net = Net::with(1, 1, no_receiver_retries);
        let inbox = net.region(1, 64);
        net.post_receive(0, inbox);
        net.post_to(0, net.vector(0, key), Wr::send().inline(b"evil"));
        net.post_to(0, net.vector(0, KEY), Wr::send().inline(b"behind"));
        net.world.pass(2_000_000_000, &mut |_| Fate::Pass);
        let done = net.sent(0);
        let syndromes: Vec<_> = done.iter().map(|done| done.syndrome).collect();
        let retries = Some(Syndrome::TRANSPORT_RETRY_EXCEEDED);
        assert_eq!(syndromes, [retries, Some(Syndrome::FLUSHED)]);
        assert_eq!(done.iter().map(|done| done.index).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(net.received(0), []);
        net.revive(0);
        net.post(0, 0, Wr::send().inline(b"right"));
        net.world.run_until_idle();
        assert_eq!(net.received(0).len(), 1, "the receive is still there");
    }
}

#[test]
fn a_number_that_is_no_targets_reaches_nothing() {
    let mut net = Net::with(2, 1, no_receiver_retries);
    let other = net.initiators[1].1.qpn.0;
    let here = net.vector(0, KEY);
    let there = AddressVector { remote_gid: net.world.hosts[1].gid.0, ..here };
    for (vector, number) in [(here, 0x99_9999), (here, 2), (there, other)] {
        net.post_to(0, vector.for_dc(number, KEY), Wr::send());
        net.world.pass(2_000_000_000, &mut |_| Fate::Pass);
        assert_eq!(net.sent(0)[0].syndrome, Some(Syndrome::TRANSPORT_RETRY_EXCEEDED));
        net.revive(0);
    }
}

#[test]
fn many_initiators_share_one_target() {
    let mut net = Net::new(4, 1);
    // Two initiators of one host, too.
    net.initiator(0, &|_| {});
    let inbox = net.region(4, 64);
    let mut expected = BTreeMap::new();
    for round in 0..10u32 {
        for n in 0..net.initiators.len() {
            net.post_receive(0, inbox);
            net.post(0, 0, Wr::send().unsignaled());
            net.post_receive(0, inbox);
            let wr = Wr::send().immediate(Opcode::SEND_IMMEDIATE, round);
            net.post(n, 0, wr);
            *expected.entry(net.initiators[n].1.qpn.0).or_insert(0) += 1;
            *expected.entry(net.initiators[0].1.qpn.0).or_insert(0) += 1;
        }
        net.world.run_until_idle();
    }
    let mut got = BTreeMap::new();
    for done in net.received(0) {
        *got.entry(done.remote_qpn).or_insert(0) += 1;
    }
    assert_eq!(got, expected);
}

#[test]
fn requests_to_alternating_targets_stay_in_order() {
    let mut net = Net::new(1, 3);
    let inboxes = [1, 2, 3].map(|host| net.region(host, 64));
    let mut expected = [const { Vec::new() }; 3];
    for n in 0..60u32 {
        let target = (n * 7 % 5 % 3) as usize;
        net.post_receive(target, inboxes[target]);
        net.post(0, target, Wr::send().immediate(Opcode::SEND_IMMEDIATE, n));
        expected[target].push(n);
    }
    net.world.run_until_idle();
    for (target, expected) in expected.iter().enumerate() {
        let got: Vec<_> = net.received(target).iter().map(|done| done.immediate).collect();
        assert_eq!(got, *expected);
    }
    let indices: Vec<_> = net.sent(0).iter().map(|done| done.index).collect();
    assert_eq!(indices.len(), 60);
    assert!(indices.is_sorted(), "{indices:?}");
}

#[test]
fn loss_duplication_and_delay_lose_and_repeat_nothing() {
    for seed in 0..12 {
        let mut chance = Prng::new(seed);
        let mut net = Net::new(2, 2);
        let inboxes = [2, 3].map(|host| net.region(host, 4096));
        let counters = [2, 3].map(|host| net.region(host, 8));
        let here = [0, 1].map(|host| net.region(host, 4096));
        let mut adds = [0u64; 2];
        let mut sends = [const { Vec::new() }; 2];
        let mut fate = {
            let mut chance = Prng::new(seed + 1000);
            move |_: &Packet| match chance.next() % 12 {
                0 => Fate::Drop,
                1 => Fate::Twice,
                2 => Fate::Late,
                _ => Fate::Pass,
            }
        };
        for n in 0..50u32 {
            let (from, to) = ((chance.next() % 2) as usize, (chance.next() % 2) as usize);
            let wr = if chance.next() % 2 == 0 {
                let add = chance.next() % 100;
                adds[to] += add;
                let counter = counters[to];
                Wr::fetch_add(counter.address, counter.key, add).from(here[from], 0, 8)
            } else {
                net.post_receive(to, inboxes[to]);
                sends[to].push(n);
                let wr = Wr::send().immediate(Opcode::SEND_IMMEDIATE, n);
                wr.from(here[from], 0, (chance.next() % 4000) as u32 + 1)
            };
            net.post(from, to, wr);
            if chance.next() % 3 == 0 {
                net.world.run_until_idle_with(&mut fate);
            }
        }
        net.world.pass(20_000_000_000, &mut fate);
        for to in [0, 1] {
            let mut got: Vec<_> = net.received(to).iter().map(|done| done.immediate).collect();
            got.sort_unstable();
            assert_eq!(got, sends[to], "seed {seed}");
            let counter = net.world.hosts[to + 2].bytes(counters[to].address, 8);
            assert_eq!(counter, adds[to].to_ne_bytes(), "seed {seed}");
        }
        let done: Vec<_> = [0, 1].into_iter().flat_map(|from| net.sent(from)).collect();
        assert_eq!(done.len(), 50, "seed {seed}");
        assert!(done.iter().all(|done| done.syndrome.is_none()), "seed {seed}");
    }
}

#[test]
fn a_target_without_receives_is_waited_for() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post(0, 0, Wr::send().inline(b"late"));
    net.world.pass(1_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.sent(0), []);
    net.post_receive(0, inbox);
    net.world.pass(1_000_000, &mut |_| Fate::Pass);
    assert_eq!((net.sent(0).len(), net.received(0).len()), (1, 1));

    let mut net = Net::with(1, 1, no_receiver_retries);
    net.post(0, 0, Wr::send());
    net.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.sent(0)[0].syndrome, Some(Syndrome::RNR_RETRY_EXCEEDED));
}

#[test]
fn packets_of_an_earlier_session_are_not_executed_again() {
    let mut net = Net::new(1, 2);
    let counter = net.region(1, 8);
    let here = net.region(0, 8);
    let mut kept = Vec::new();
    let mut to_first = |packet: &Packet| {
        if packet.addressing.destination == net_gid(1) {
            kept.push(packet.clone());
        }
        Fate::Pass
    };
    let add = |net: &mut Net, to| {
        let wr = Wr::fetch_add(counter.address, counter.key, 1).from(here, 0, 8);
        net.post(0, to, if to == 0 { wr } else { Wr::read(0, Mkey(0)) });
    };
    add(&mut net, 0);
    net.world.run_until_idle_with(&mut to_first);
    add(&mut net, 1);
    net.world.run_until_idle_with(&mut to_first);
    let first_session = kept.clone();
    assert_eq!(first_session.len(), 3, "connect, request, disconnect");
    let count = |net: &Net| net.world.hosts[1].bytes(counter.address, 8)[0];
    assert_eq!(count(&net), 1);
    // All of it again: the CONNECT makes a session, with another number.
    for packet in &first_session {
        net.world.hosts[1].core.receive(net.world.now, packet.clone());
        net.world.run_until_idle();
    }
    assert_eq!(count(&net), 1);
    // Again while the initiator is back: nothing of its session changes.
    add(&mut net, 0);
    net.world.run_until_idle();
    assert_eq!(count(&net), 2);
    for packet in &first_session {
        net.world.hosts[1].core.receive(net.world.now, packet.clone());
        net.world.run_until_idle();
    }
    add(&mut net, 0);
    net.world.run_until_idle();
    assert_eq!(count(&net), 3);
    assert!(net.sent(0).iter().all(|done| done.syndrome.is_none()));
}

fn net_gid(host: u8) -> crate::packet::Gid {
    crate::packet::Gid::from_ipv4([127, 0, 0, host + 1].into())
}

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
fn sessions_are_bounded_and_old_ones_end_for_new_ones() {
    let mut net = Net::new(1, 1);
    let mut accepted = 0;
    for number in 1..=1100 {
        let packet = connect(&net, number, KEY, 5);
        net.world.hosts[1].core.receive(net.world.now, packet);
        let [answer] = answers(&mut net).try_into().unwrap();
        accepted += u32::from(answer.view().unwrap().dceth.unwrap().session.get() != 0);
    }
    assert_eq!(accepted, 1024);
    // The program's own initiator waits for a place, and gets it.
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send());
    net.world.pass(500_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.received(0), []);
    net.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.received(0).len(), 1);
}

#[test]
fn a_stranger_without_the_key_is_not_even_answered() {
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
fn a_session_belongs_to_the_address_that_made_it() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    let packet = connect(&net, 77, KEY, 5);
    net.world.hosts[1].core.receive(0, packet);
    let [answer] = answers(&mut net).try_into().unwrap();
    let session = answer.view().unwrap().dceth.unwrap().session.get();
    let send = |net: &Net, number, session| {
        let mut packet = forged(net, Wire(Transport::Dc.base() | 4), number, KEY, session);
        packet.bth_mut().unwrap().set_psn(Psn::new(78));
        packet
    };
    // Another initiator, another host, another session.
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
    // Of the message's packets only the first ones arrive; then the host is gone.
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
fn a_message_that_is_too_long_ends_the_session_alone() {
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
fn an_initiator_that_was_silent_connects_anew() {
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

#[test]
fn local_requests_need_no_target_and_bad_ones_fail_alone() {
    let mut net = Net::new(1, 1);
    let (at, qp, _) = &mut net.initiators[0];
    net.world.hosts[*at].post(qp, &Wr::new(Opcode::NOP));
    net.world.run_until_idle();
    assert_eq!(net.sent(0)[0].syndrome, None);
    assert_eq!(net.world.crossed, 0);
    // A source GID that the port does not have.
    let mut vector = net.vector(0, KEY);
    vector.grh_gid_flow.set(9 << 20);
    net.post_to(0, vector, Wr::send());
    net.world.run_until_idle();
    assert_eq!(net.sent(0)[0].syndrome, Some(Syndrome::LOCAL_QP_OPERATION));
    assert_eq!(net.state(0), QpState::Error);
}

#[test]
fn ports_of_infiniband_are_told_apart_by_lid() {
    let mut net = Net { world: World::new(0), initiators: Vec::new(), targets: Vec::new() };
    let config = CoreConfig { link: LinkLayer::InfiniBand, ..CoreConfig::default() };
    net.world.hosts = (1..=3).map(|number| Host::with(number, config.clone())).collect();
    for host in 0..2 {
        net.initiator(host, &|_| {});
    }
    net.target(2, KEY, RemoteRights::all());
    let inbox = net.region(2, 4096);
    let mut vector = net.vector(0, KEY);
    (vector.remote_gid, vector.remote_lid_udp_port) = ([0; 16], 3.into());
    for from in [0, 1, 0] {
        net.post_receive(0, inbox);
        let here = net.region(from, 3000);
        let data = net.world.hosts[from].fill(here, from as u8);
        net.post_to(from, vector, Wr::send().all_of(here));
        net.world.run_until_idle();
        let [got] = net.received(0).try_into().unwrap();
        assert_eq!((got.bytes, got.remote_qpn), (3000, net.initiators[from].1.qpn.0));
        assert_eq!(net.world.hosts[2].bytes(inbox.address, 3000), data);
        assert_eq!(net.sent(from)[0].syndrome, None);
    }
}

#[test]
fn a_target_needs_a_shared_queue_and_goes_in_any_order() {
    let mut net = Net::new(1, 1);
    let host = &mut net.world.hosts[1];
    let cq = host.cq(4);
    let params = QpParams::new(QpType::DcTarget, host.pd, cq.cqn, cq.cqn);
    assert!(host.core.create_qp(params).is_err());
    let inbox = net.region(1, 64);
    net.post_receive(0, inbox);
    net.post(0, 0, Wr::send());
    net.world.run_until_idle();
    let (_, target) = &net.targets[0];
    let core = &mut net.world.hosts[1].core;
    assert!(core.destroy_srq(target.srq.srqn).is_err());
    assert!(core.destroy_cq(target.cq.cqn).is_err());
    core.destroy_qp(target.qpn).unwrap();
    core.destroy_srq(target.srq.srqn).unwrap();
    core.destroy_cq(target.cq.cqn).unwrap();
    net.post(0, 0, Wr::send());
    net.world.pass(10_000_000_000, &mut |_| Fate::Pass);
    let done = net.sent(0);
    assert_eq!(done[1].syndrome, Some(Syndrome::TRANSPORT_RETRY_EXCEEDED));
}

/// An acknowledgement of something else than the CONNECT makes no session: the request that waits
/// fails when the target is not heard, and the queue does not stand still.
#[test]
fn only_the_acknowledgement_of_a_connect_makes_a_session() {
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

/// Connecting again and again gives an initiator no more turns than another one has.
#[test]
fn sessions_take_turns_however_often_one_begins_anew() {
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
        let mut packet = forged(net, Wire(Transport::Dc.base() | 0x0c), number, KEY, session);
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
