//! Reliable connections over wires that lose, duplicate and reorder packets; MTU boundaries and PSN
//! wrap-around.

use uverbs_mlx5_format::Opcode as WqeOpcode;

use super::harness::*;
use crate::core::*;
use crate::packet::{Aeth, Bth, Opcode, Operation, Packet, Psn, Syndrome};

/// A seeded generator of random numbers (xorshift64*).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % sides
    }
}

fn patient(_: usize, attributes: &mut QpAttributes) {
    attributes.ack_timeout = Some(8);
    attributes.mtu = Some(Mtu::M256);
}

const LEN: u64 = 16 << 10;

/// Runs random operations in both directions. Operations on the same memory are ordered. Asserts
/// that all complete and that memory is then equal to a model's.
fn exercise(seed: u64, first_psn: u32, fate: &mut dyn FnMut(&mut Dice, &Packet) -> Fate) {
    println!("seed {seed}, first PSN {first_psn:#x}");
    let mut dice = Dice::new(seed);
    let mut pair = Pair::with_attributes(QpType::Rc, |side, attributes| {
        patient(side, attributes);
        attributes.send_psn = Some(first_psn);
        attributes.receive_psn = Some(first_psn);
    });
    let (local, remote) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
    let inbox = pair.host(1).region(LEN, ALL);
    let mut here = pair.host(0).fill(local, seed as u8);
    let mut there = pair.host(1).fill(remote, !seed as u8);
    let mut posted = Vec::new();
    let mut received = Vec::new();
    let mut last_was_read = false;
    for _ in 0..40 {
        let len = (dice.roll(3000) + 1).min(LEN / 2);
        let (from, to) = (dice.roll(LEN - len + 1), dice.roll(LEN - len + 1));
        let (f, t, n) = (from as usize, to as usize, len as usize);
        let address = remote.address + to;
        let wr = match dice.roll(5) {
            0 => {
                pair.post_receive(1, inbox);
                received.push(len as u32);
                Wr::send().from(local, from, len as u32)
            }
            1 => {
                there[t..t + n].copy_from_slice(&here[f..f + n]);
                Wr::write(address, remote.key).from(local, from, len as u32)
            }
            2 => {
                there[t..t + n].copy_from_slice(&here[f..f + n]);
                pair.post_receive(1, inbox);
                received.push(len as u32);
                let wr = Wr::write(address, remote.key).from(local, from, len as u32);
                wr.immediate(WqeOpcode::RDMA_WRITE_IMMEDIATE, 3)
            }
            3 => {
                here[f..f + n].copy_from_slice(&there[t..t + n]);
                Wr::read(address, remote.key).from(local, from, len as u32)
            }
            _ => {
                let (f, t) = (f & !7, t & !7);
                let before = u64::from_ne_bytes(there[t..t + 8].try_into().unwrap());
                there[t..t + 8].copy_from_slice(&before.wrapping_add(9).to_ne_bytes());
                here[f..f + 8].copy_from_slice(&before.to_ne_bytes());
                let wr = Wr::fetch_add(remote.address + t as u64, remote.key, 9);
                wr.from(local, f as u64, 8)
            }
        };
        // Only a fence orders a request after earlier READs.
        let wr = if last_was_read { wr.fenced() } else { wr };
        last_was_read = wr.opcode == WqeOpcode::RDMA_READ || wr.opcode.is_atomic();
        posted.push(pair.post(0, &wr));
    }
    pair.world.pass(60_000_000_000, &mut |packet| fate(&mut dice, packet));
    let done = pair.poll(0);
    assert!(done.iter().all(|d| d.syndrome.is_none()), "seed {seed}: {done:?}");
    assert_eq!(done.iter().map(|d| d.index).collect::<Vec<_>>(), posted, "seed {seed}");
    let bytes: Vec<u32> = pair.poll(1).iter().map(|d| d.bytes).collect();
    assert_eq!(bytes, received, "seed {seed}");
    assert!(pair.host(0).bytes(local.address, LEN) == here, "seed {seed}: local memory");
    assert!(pair.host(1).bytes(remote.address, LEN) == there, "seed {seed}: remote memory");
}

#[test]
fn everything_arrives_over_a_good_wire() {
    for seed in 0..5 {
        exercise(seed, 100, &mut |_, _| Fate::Pass);
    }
}

#[test]
fn psns_wrap_around() {
    for seed in 0..5 {
        exercise(seed, 0xff_fff0, &mut |_, _| Fate::Pass);
        exercise(seed, 0xff_fff0, &mut |dice, _| chance(dice, 20, Fate::Drop));
    }
}

fn chance(dice: &mut Dice, one_in: u64, fate: Fate) -> Fate {
    if dice.roll(one_in) == 0 { fate } else { Fate::Pass }
}

#[test]
fn everything_arrives_over_a_wire_that_loses_packets() {
    for seed in 0..20 {
        exercise(seed, 100, &mut |dice, _| chance(dice, 15, Fate::Drop));
    }
}

#[test]
fn everything_arrives_once_over_a_wire_that_duplicates_packets() {
    for seed in 0..20 {
        exercise(seed, 100, &mut |dice, _| chance(dice, 4, Fate::Twice));
    }
}

#[test]
fn everything_arrives_over_a_wire_that_reorders_packets() {
    for seed in 0..20 {
        exercise(seed, 100, &mut |dice, _| chance(dice, 10, Fate::Late));
    }
}

#[test]
fn everything_arrives_over_a_wire_that_loses_duplicates_and_reorders_packets() {
    for seed in 0..20 {
        // The PSNs wrap around in another operation each time.
        exercise(100 + seed, 0xff_ff00 + 12 * seed as u32, &mut |dice, _| match dice.roll(40) {
            0 | 1 => Fate::Drop,
            2 | 3 => Fate::Twice,
            4 | 5 => Fate::Late,
            _ => Fate::Pass,
        });
    }
}

#[test]
fn an_atomic_whose_answer_is_lost_is_not_executed_twice() {
    let mut pair = Pair::with_attributes(QpType::Rc, patient);
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
    pair.post(0, &Wr::fetch_add(remote.address, remote.key, 5).all_of(local));
    let mut lost = 0;
    pair.world.pass(1_000_000_000, &mut |packet| {
        let answer = packet.view().is_ok_and(|v| v.operation == Operation::AtomicAcknowledge);
        lost += u32::from(answer);
        if answer && lost <= 3 { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!(lost, 4);
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.host(1).bytes(remote.address, 8), 5u64.to_ne_bytes());
}

#[test]
fn a_read_is_requested_again_from_the_first_missing_packet() {
    let mut pair = Pair::with_attributes(QpType::Rc, patient);
    let (local, remote) = (pair.host(0).region(2560, ALL), pair.host(1).region(2560, ALL));
    let data = pair.host(1).fill(remote, 1);
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    let (mut responses, mut requests) = (0, Vec::new());
    pair.world.pass(1_000_000_000, &mut |packet| {
        let view = packet.view().unwrap();
        if let Some(reth) = view.reth {
            requests.push((reth.address.get() - remote.address, reth.length.get()));
        }
        responses += u32::from(view.operation == Operation::ReadResponse);
        if view.operation == Operation::ReadResponse && responses == 4 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    });
    assert_eq!(requests, [(0, 2560), (768, 1792)]);
    assert!(pair.host(0).bytes(local.address, 2560) == data);
    assert_eq!(pair.one(0).bytes, 2560);
}

#[test]
fn a_sequence_error_is_reported_once_and_repaired_without_a_timeout() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
        attributes.ack_timeout = Some(0);
    });
    let (from, to) = (pair.host(0).region(2560, ALL), pair.host(1).region(2560, ALL));
    let data = pair.host(0).fill(from, 1);
    pair.post(0, &Wr::write(to.address, to.key).all_of(from));
    let mut requests = 0;
    let mut naks = 0;
    pair.world.run_until_idle_with(&mut |packet| {
        let view = packet.view().unwrap();
        naks += u32::from(
            view.operation == Operation::Acknowledge
                && view.aeth.unwrap().syndrome() != Syndrome::ACK,
        );
        requests += u32::from(view.operation == Operation::Write);
        if requests == 3 && view.operation == Operation::Write { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!((pair.one(0).syndrome, naks), (None, 1));
    assert!(pair.host(1).bytes(to.address, 2560) == data);
}

#[test]
fn delayed_acknowledgements_and_responses_are_ignored() {
    let mut pair = Pair::new(QpType::Rc);
    let (from, to) = (pair.host(0).region(64, ALL), pair.host(1).region(64, ALL));
    pair.post(0, &Wr::write(to.address, to.key).all_of(from));
    let mut kept = Vec::new();
    pair.world.run_until_idle_with(&mut |packet| {
        kept.push(packet.clone());
        Fate::Pass
    });
    pair.poll(0);
    for mut packet in kept {
        for shift in [0, 5, 0x80_0000, 0xff_fff0] {
            let bth = packet.bth_mut().unwrap();
            let psn = bth.psn() + shift;
            bth.set_psn(psn);
            for host in &mut pair.world.hosts {
                host.core.receive(0, packet.clone());
            }
        }
    }
    pair.world.run_until_idle();
    assert_eq!(pair.poll(0), []);
    assert_eq!((pair.state(0), pair.state(1)), (QpState::ReadyToSend, QpState::ReadyToSend));
}

#[test]
fn an_acknowledgement_of_a_packet_that_was_not_sent_is_ignored() {
    let mut pair = Pair::with_attributes(QpType::Rc, patient);
    let len = 256 * 100;
    let (from, to) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    pair.post(0, &Wr::write(to.address, to.key).all_of(from));
    let mut last = None;
    pair.world.run_until_idle_with(&mut |packet| {
        last = Some(packet.clone());
        Fate::Drop
    });
    let last = last.unwrap();
    let sent = last.bth().unwrap().psn();
    assert_eq!(sent, Psn::new(100 + 63), "the window is full");
    for psn in [Psn::new(100 + 99), sent.next()] {
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, 0xffff, pair.qps[0].qpn.0, psn);
        let mut forged = Packet::new();
        forged.start(last.addressing.reply(), bth).push(Aeth::new(Syndrome::ACK, 1));
        pair.host(0).core.receive(0, forged);
        pair.world.run_until_idle_with(&mut |_| panic!("the window moved"));
    }
    assert_eq!(pair.poll(0), []);
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).syndrome, None);
}

#[test]
fn a_late_rnr_nak_does_not_stop_the_queue_for_ever() {
    let mut pair = Pair::with_attributes(QpType::Rc, patient);
    let inbox = pair.host(1).region(64, ALL);
    pair.post(0, &Wr::send());
    // The RNR NAK is delayed until the request was sent again and found a receive.
    let mut not_ready = None;
    pair.world.run_until_idle_with(&mut |packet| {
        let response = packet.view().is_ok_and(|view| view.operation.is_response());
        not_ready = not_ready.take().or(response.then(|| packet.clone()));
        if response { Fate::Drop } else { Fate::Pass }
    });
    pair.post_receive(1, inbox);
    pair.world.now = pair.world.next_wake().unwrap();
    let now = pair.world.now;
    let mut late = None;
    pair.world.run_until_idle_with(&mut |packet| {
        let response = packet.view().is_ok_and(|view| view.operation.is_response());
        late = late.take().or(response.then(|| packet.clone()));
        if response { Fate::Drop } else { Fate::Pass }
    });
    pair.host(0).core.receive(now, not_ready.unwrap());
    pair.host(0).core.receive(now, late.unwrap());
    assert_eq!(pair.one(0).syndrome, None);
    pair.post_receive(1, inbox);
    pair.post(0, &Wr::send());
    pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.poll(1).len(), 2);
}

#[test]
fn messages_of_lengths_around_the_mtu_arrive() {
    for mtu in [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096] {
        let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
            attributes.mtu = Some(mtu);
        });
        let size = u64::from(mtu.bytes()) * 3;
        let (from, to) = (pair.host(0).region(size, ALL), pair.host(1).region(size, ALL));
        let back = pair.host(0).region(size, ALL);
        let data = pair.host(0).fill(from, 3);
        for packets in 1..=3u32 {
            for len in packets * mtu.bytes() - 1..=(packets * mtu.bytes() + 1).min(size as u32) {
                pair.post(0, &Wr::write(to.address, to.key).from(from, 0, len));
                pair.post(0, &Wr::read(to.address, to.key).from(back, 0, len).fenced());
                pair.world.run_until_idle();
                assert_eq!(pair.poll(0).len(), 2, "{len} bytes over {mtu:?}");
                let got = pair.host(0).bytes(back.address, len.into());
                assert!(got == data[..len as usize], "{len} bytes over {mtu:?}");
            }
        }
    }
}

#[test]
fn many_queue_pairs_make_progress_together() {
    let mut world = World::new(2);
    let mut pairs = Vec::new();
    for _ in 0..200 {
        let cq = [0, 1].map(|side| world.hosts[side].cq(4));
        let qp = [0, 1].map(|side| world.hosts[side].qp(QpType::Rc, &cq[side]));
        for side in [0, 1] {
            let gid = world.hosts[1 - side].gid;
            let attributes = world.hosts[side].attributes(gid, qp[1 - side].qpn);
            world.hosts[side].make_rts(&qp[side], &attributes);
        }
        let [a, _] = qp;
        pairs.push((a, cq));
    }
    let (from, to) = (world.hosts[0].region(5000, ALL), world.hosts[1].region(5000, ALL));
    for (qp, _) in &mut pairs {
        for _ in 0..3 {
            world.hosts[0].post(qp, &Wr::write(to.address, to.key).all_of(from));
        }
    }
    world.run_until_idle();
    for (_, [cq, _]) in &mut pairs {
        assert_eq!(world.hosts[0].poll_all(cq).len(), 3);
    }
}

#[test]
fn both_sides_migrate_to_the_alternate_path_when_retries_end() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.retry_count = Some(1);
        attributes.ack_timeout = Some(8);
        let mut path = attributes.path.unwrap();
        path.traffic_class = 9;
        attributes.alternate_path = Some(path);
        attributes.migration = Some(MigrationState::Armed);
    });
    let to = pair.host(1).region(64, ALL);
    pair.post(0, &Wr::write(to.address, to.key).inline(b"over"));
    pair.world.pass(1_000_000_000, &mut |packet| {
        if packet.addressing.traffic_class == 9 { Fate::Pass } else { Fate::Drop }
    });
    assert_eq!(pair.host(1).bytes(to.address, 4), b"over");
    assert_eq!(pair.one(0).syndrome, None);
    for side in [0, 1] {
        let migrated = (AsyncKind::PathMigrated, EventObject::Qp(pair.qps[side].qpn));
        assert_eq!(pair.host(side).async_events(), [migrated]);
        let info = pair.world.hosts[side].core.query_qp(pair.qps[side].qpn).unwrap();
        assert_eq!(info.attributes.migration, Some(MigrationState::Migrated));
    }
}

#[test]
fn counters_count_each_kind_of_loss() {
    let mut pair = Pair::with_attributes(QpType::Rc, patient);
    let to = pair.host(1).region(64, ALL);
    pair.post(0, &Wr::write(to.address, to.key).inline(b"x"));
    let mut lost = 0;
    pair.world.pass(1_000_000_000, &mut |_| {
        lost += 1;
        if lost == 2 { Fate::Drop } else { Fate::Pass }
    });
    pair.post(0, &Wr::send());
    pair.world.pass(1_000, &mut |_| Fate::Pass);
    let (here, there) = (pair.host(0).core.counters(), pair.host(1).core.counters());
    assert_eq!((here.timeouts, there.duplicates, there.rnr_naks), (1, 1, 1));
    assert_eq!((here.sent, here.received), (3, 2));
}

#[test]
fn a_received_message_is_acknowledged_although_the_qp_is_destroyed_at_once() {
    for state in [None, Some(QpState::Reset), Some(QpState::Error)] {
        let mut pair = Pair::new(QpType::Rc);
        let inbox = pair.host(1).region(64, ALL);
        pair.post_receive(1, inbox);
        pair.post(0, &Wr::send());
        pair.host(0).core.step(0, 64);
        let packet = pair.host(0).core.take_packet().unwrap();
        pair.host(1).core.receive(0, packet);
        assert_eq!(pair.one(1).syndrome, None);
        let qpn = pair.qps[1].qpn;
        match state {
            Some(state) => {
                let nothing = QpAttributes::default();
                pair.host(1).core.modify_qp(qpn, state, &nothing).unwrap();
            }
            None => pair.host(1).core.destroy_qp(qpn).unwrap(),
        }
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).syndrome, None);
    }
}

#[test]
fn a_long_message_does_not_hold_up_a_short_one_of_another_qp() {
    let mut world = World::new(2);
    let mut cqs = [0, 1].map(|_| world.hosts[0].cq(4));
    let mut qps: Vec<QpHandle> = Vec::new();
    for cq in &cqs {
        let other = world.hosts[1].cq(4);
        let a = world.hosts[0].qp(QpType::Rc, cq);
        let b = world.hosts[1].qp(QpType::Rc, &other);
        let (here, there) = (world.hosts[0].gid, world.hosts[1].gid);
        let to = world.hosts[0].attributes(there, b.qpn);
        let back = world.hosts[1].attributes(here, a.qpn);
        world.hosts[0].make_rts(&a, &to);
        world.hosts[1].make_rts(&b, &back);
        qps.push(a);
    }
    let (from, to) = (world.hosts[0].region(1 << 20, ALL), world.hosts[1].region(1 << 20, ALL));
    world.hosts[0].post(&mut qps[0], &Wr::write(to.address, to.key).all_of(from));
    world.hosts[0].post(&mut qps[1], &Wr::write(to.address, to.key).from(from, 0, 8));
    let mut packets = 0;
    world.run_until_idle_with(&mut |packet| {
        packets += 1;
        let view = packet.view().unwrap();
        let short = view.payload.len() == 8;
        assert!(!short || packets <= 2 * 16, "behind {packets} packets");
        Fate::Pass
    });
    assert!(packets > 1024);
    for cq in &mut cqs {
        assert_eq!(world.hosts[0].poll_all(cq).len(), 1);
    }
}
