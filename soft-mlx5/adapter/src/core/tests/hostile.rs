//! Rings, doorbell records and packets of random bytes: the device neither panics nor hangs.

use super::harness::*;
use super::loss::Dice;
use crate::core::*;
use crate::memory::HostMemory;
use crate::packet::{Addressing, Packet};

fn random_bytes(dice: &mut Dice, len: usize) -> Vec<u8> {
    (0..len).map(|_| dice.roll(256) as u8).collect()
}

#[test]
fn random_bytes_in_the_rings_are_survived() {
    for seed in 0..12 {
        let mut dice = Dice::new(seed);
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcInitiator, QpType::RegUmr] {
            let mut pair = Pair::with(
                qp_type,
                |_, _| {},
                |_, attributes| {
                    attributes.retry_count = Some(1);
                    attributes.rnr_retry = Some(1);
                    attributes.ack_timeout = Some(1);
                },
            );
            let region = pair.host(0).region(4096, ALL);
            pair.host(1).region(4096, ALL);
            for side in [0, 1] {
                let qp = pair.qps[side].clone();
                let host = pair.host(side);
                let mut ring = random_bytes(&mut dice, 64 << 8);
                // Half of the control segments have the right index, so that the device parses what
                // follows.
                for slot in 0..256usize {
                    if dice.roll(2) == 0 {
                        let at = slot * 64;
                        ring[at + 1..at + 3].copy_from_slice(&(slot as u16).to_be_bytes());
                        ring[at + 4..at + 7].copy_from_slice(&qp.qpn.0.to_be_bytes()[1..]);
                        ring[at + 3] =
                            [0, 1, 8, 9, 10, 11, 16, 17, 18, 20, 21, 37][dice.roll(12) as usize];
                        ring[at + 7] = dice.roll(16) as u8;
                    }
                    if dice.roll(3) == 0 {
                        let at = slot * 64 + 24;
                        ring[at..at + 4].copy_from_slice(&region.key.0.to_be_bytes());
                    }
                }
                host.memory.write(qp.send_ring, &ring).unwrap();
                let receives = random_bytes(&mut dice, 1 << (LOG_RECEIVES + LOG_STRIDE));
                host.memory.write(qp.receive_ring, &receives).unwrap();
                host.memory.write(qp.record, &random_bytes(&mut dice, 8)).unwrap();
            }
            for round in 0..6u32 {
                for side in [0, 1] {
                    let qp = pair.qps[side].clone();
                    let counter = (round * 40 + dice.roll(40) as u32).to_be_bytes();
                    pair.host(side).memory.write(qp.record + 4, &counter).unwrap();
                    pair.host(side).core.ring_sq(qp.qpn).unwrap();
                }
                pair.world.pass(100_000_000, &mut |_| Fate::Pass);
                for side in [0, 1] {
                    pair.poll(side);
                    let qp = pair.qps[side].clone();
                    if pair.state(side) == QpState::Error {
                        let gid = pair.world.hosts[1 - side].gid;
                        let other = pair.qps[1 - side].qpn;
                        let mut attributes = pair.host(side).attributes(gid, other);
                        attributes.retry_count = Some(1);
                        attributes.rnr_retry = Some(1);
                        let reset = QpAttributes::default();
                        pair.host(side).core.modify_qp(qp.qpn, QpState::Reset, &reset).unwrap();
                        pair.host(side).make_rts(&qp, &attributes);
                    }
                }
            }
        }
    }
}

#[test]
fn random_packets_are_survived() {
    let mut pair = Pair::new(QpType::Rc);
    let region = pair.host(1).region(4096, ALL);
    for _ in 0..4 {
        pair.post_receive(1, region);
    }
    let mut dice = Dice::new(7);
    let qpn = pair.qps[1].qpn.0;
    for round in 0..5_000u64 {
        let len = dice.roll(80) as usize;
        let mut bytes = random_bytes(&mut dice, len);
        if bytes.len() >= 12 {
            bytes[1] &= 0xf0;
            bytes[0] = [dice.roll(0x18) as u8, 0xa0 | dice.roll(0x18) as u8, bytes[0]]
                [(round % 3) as usize];
            bytes[2..4].copy_from_slice(&[0xff, 0xff]);
            bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
            let expected = pair.host(1).core.query_qp(Qpn(qpn)).unwrap().attributes.receive_psn;
            let psn = expected.unwrap().wrapping_add(dice.roll(4) as u32).wrapping_sub(1);
            bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        }
        let addressing = Addressing::roce(pair.world.hosts[0].gid, pair.world.hosts[1].gid);
        let packet = Packet::from_bytes(addressing, &bytes);
        let now = pair.world.now;
        pair.host(1).core.receive(now, packet);
        pair.world.run_until_idle();
        pair.poll(1);
        if pair.state(1) == QpState::Error {
            let (gid, other, qp) = (pair.world.hosts[0].gid, pair.qps[0].qpn, pair.qps[1].clone());
            let attributes = pair.host(1).attributes(gid, other);
            pair.host(1).core.modify_qp(qp.qpn, QpState::Reset, &QpAttributes::default()).unwrap();
            pair.host(1).make_rts(&qp, &attributes);
            pair.qps[1].received = 0;
            for _ in 0..4 {
                pair.post_receive(1, region);
            }
        }
    }
}

#[test]
fn queues_in_unmapped_memory_are_survived() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let cq = host.cq(4);
    let mut params = host.qp_params(QpType::Rc, &cq, &cq);
    params.doorbell_record = 0x10;
    params.send_ring = Some(SendRing { buffer: crate::memory::PageMap::linear(8), log_blocks: 4 });
    let qp = host.create(params);
    let attributes = host.attributes(host.gid, qp.qpn);
    host.make_rts(&qp, &attributes);
    host.core.ring_sq(qp.qpn).unwrap();
    world.run_until_idle();
    let host = &mut world.hosts[0];
    host.core.modify_qp(qp.qpn, QpState::Error, &QpAttributes::default()).unwrap();
    world.pass(1_000_000_000, &mut |_| Fate::Pass);
}
