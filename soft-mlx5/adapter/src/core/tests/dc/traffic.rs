//! DC requests: their effect, their rights and keys, and packet loss.

use super::*;

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
        // Sends need no right, and the target still works after all refusals.
        net.post_receive(target, there);
        net.post(0, target, Wr::send().all_of(here));
        net.world.run_until_idle();
        assert_eq!(net.sent(0)[0].syndrome, None);
        assert_eq!(net.world.hosts[1].bytes(there.address, 4096), sent);
        assert_eq!(net.world.hosts[1].async_events(), []);
    }
}

#[test]
fn dc_operations_have_the_same_effect_as_rc_operations() {
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
fn requests_with_a_wrong_access_key_fail() {
    for key in [0, KEY + 1, !KEY, KEY.swap_bytes(), KEY & 0xffff_ffff] {
        let mut net = Net::with(1, 1, one_retry);
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
fn requests_to_a_number_of_no_dc_target_fail() {
    let mut net = Net::with(2, 1, one_retry);
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
    // Among them two initiators of one host.
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
fn lost_duplicated_and_delayed_packets_lose_and_repeat_no_request() {
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
fn an_initiator_waits_for_a_target_without_receives() {
    let mut net = Net::new(1, 1);
    let inbox = net.region(1, 64);
    net.post(0, 0, Wr::send().inline(b"late"));
    net.world.pass(1_000_000, &mut |_| Fate::Pass);
    assert_eq!(net.sent(0), []);
    net.post_receive(0, inbox);
    net.world.pass(1_000_000, &mut |_| Fate::Pass);
    assert_eq!((net.sent(0).len(), net.received(0).len()), (1, 1));

    let mut net = Net::with(1, 1, one_retry);
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
    // The same packets again: the CONNECT makes a session with another number.
    for packet in &first_session {
        net.world.hosts[1].core.receive(net.world.now, packet.clone());
        net.world.run_until_idle();
    }
    assert_eq!(count(&net), 1);
    // Once more while the initiator has a new session, which they must not change.
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

#[test]
fn local_requests_need_no_target_and_invalid_ones_fail_alone() {
    let mut net = Net::new(1, 1);
    let (at, qp, _) = &mut net.initiators[0];
    net.world.hosts[*at].post(qp, &Wr::new(Opcode::NOP));
    net.world.run_until_idle();
    assert_eq!(net.sent(0)[0].syndrome, None);
    assert_eq!(net.world.crossed, 0);
    // The port does not have this source GID.
    let mut vector = net.vector(0, KEY);
    vector.grh_gid_flow.set(9 << 20);
    net.post_to(0, vector, Wr::send());
    net.world.run_until_idle();
    assert_eq!(net.sent(0)[0].syndrome, Some(Syndrome::LOCAL_QP_OPERATION));
    assert_eq!(net.state(0), QpState::Error);
}

#[test]
fn infiniband_ports_are_distinguished_by_lid() {
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
fn a_target_needs_an_srq_and_both_are_destroyed_in_any_order() {
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
