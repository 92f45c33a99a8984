//! Rings, doorbell records and packets of random bytes: the device neither panics nor hangs.

use super::harness::*;
use super::loss::Dice;
use crate::core::*;
use crate::memory::HostMemory;
use crate::packet::{Addressing, Packet};

fn random_bytes(dice: &mut Dice, len: usize) -> Vec<u8> {
    (0..len).map(|_| dice.roll(256) as u8).collect()
}

/// Writes random bytes into the rings and doorbell records of a side.
fn scramble_queues(pair: &mut Pair, side: usize, key: Mkey, dice: &mut Dice) {
    let qp = pair.qps[side].clone();
    let memory = &pair.host(side).memory;
    memory.write(qp.send_ring, &random_wqes(dice, qp.qpn, key)).unwrap();
    let receives = random_bytes(dice, 1 << (LOG_RECEIVES + LOG_STRIDE));
    memory.write(qp.receive_ring, &receives).unwrap();
    memory.write(qp.record, &random_bytes(dice, 8)).unwrap();
}

/// Random bytes for a send ring. Half of the control segments have the right index, so that the
/// device parses what follows.
fn random_wqes(dice: &mut Dice, qpn: Qpn, key: Mkey) -> Vec<u8> {
    const OPCODES: [u8; 12] = [0, 1, 8, 9, 10, 11, 16, 17, 18, 20, 21, 37];
    let mut ring = random_bytes(dice, 64 << 8);
    for (slot, block) in ring.chunks_exact_mut(64).enumerate() {
        if dice.roll(2) == 0 {
            block[1..3].copy_from_slice(&(slot as u16).to_be_bytes());
            block[4..7].copy_from_slice(&qpn.0.to_be_bytes()[1..]);
            block[3] = OPCODES[dice.roll(12) as usize];
            block[7] = dice.roll(16) as u8;
        }
        if dice.roll(3) == 0 {
            block[24..28].copy_from_slice(&key.0.to_be_bytes());
        }
    }
    ring
}

/// Moves the QP of a side from the error state to RTS again. Returns whether it was in that state.
fn restart_after_error(
    pair: &mut Pair,
    side: usize,
    change: impl FnOnce(&mut QpAttributes),
) -> bool {
    if pair.state(side) != QpState::Error {
        return false;
    }
    let (gid, other) = (pair.world.hosts[1 - side].gid, pair.qps[1 - side].qpn);
    let qp = pair.qps[side].clone();
    let host = pair.host(side);
    let mut attributes = host.attributes(gid, other);
    change(&mut attributes);
    host.core.modify_qp(qp.qpn, QpState::Reset, &QpAttributes::default()).unwrap();
    host.make_rts(&qp, &attributes);
    true
}

fn few_retries(attributes: &mut QpAttributes) {
    attributes.retry_count = Some(1);
    attributes.rnr_retry = Some(1);
}

#[test]
fn the_device_survives_random_bytes_in_rings() {
    for seed in 0..12 {
        let mut dice = Dice::new(seed);
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcInitiator, QpType::RegUmr] {
            run_random_rings(qp_type, &mut dice);
        }
    }
}

fn run_random_rings(qp_type: QpType, dice: &mut Dice) {
    let mut pair = Pair::with_attributes(qp_type, |_, attributes| {
        few_retries(attributes);
        attributes.ack_timeout = Some(1);
    });
    let key = pair.host(0).region(4096, ALL).key;
    pair.host(1).region(4096, ALL);
    [0, 1].into_iter().for_each(|side| scramble_queues(&mut pair, side, key, dice));
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
            restart_after_error(&mut pair, side, few_retries);
        }
    }
}

/// A packet for `qpn`. Most are long enough for a base transport header, whose fields are
/// plausible.
fn random_packet(dice: &mut Dice, qpn: Qpn, expected_psn: u32, round: u64) -> Vec<u8> {
    let len = dice.roll(80) as usize;
    let mut bytes = random_bytes(dice, len);
    if bytes.len() >= 12 {
        bytes[1] &= 0xf0;
        bytes[0] =
            [dice.roll(0x18) as u8, 0xa0 | dice.roll(0x18) as u8, bytes[0]][(round % 3) as usize];
        bytes[2..4].copy_from_slice(&[0xff, 0xff]);
        bytes[5..8].copy_from_slice(&qpn.0.to_be_bytes()[1..]);
        let psn = expected_psn.wrapping_add(dice.roll(4) as u32).wrapping_sub(1);
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }
    bytes
}

#[test]
fn the_device_survives_random_packets() {
    let mut pair = Pair::new(QpType::Rc);
    let region = pair.host(1).region(4096, ALL);
    let post_receives = |pair: &mut Pair| {
        for _ in 0..4 {
            pair.post_receive(1, region);
        }
    };
    post_receives(&mut pair);
    let mut dice = Dice::new(7);
    let qpn = pair.qps[1].qpn;
    for round in 0..5_000u64 {
        let expected = pair.host(1).core.query_qp(qpn).unwrap().attributes.receive_psn;
        let bytes = random_packet(&mut dice, qpn, expected.unwrap(), round);
        let addressing = Addressing::roce(pair.world.hosts[0].gid, pair.world.hosts[1].gid);
        let now = pair.world.now;
        pair.host(1).core.receive(now, Packet::from_bytes(addressing, &bytes));
        pair.world.run_until_idle();
        pair.poll(1);
        if restart_after_error(&mut pair, 1, |_| ()) {
            pair.qps[1].received = 0;
            post_receives(&mut pair);
        }
    }
}

#[test]
fn the_device_survives_queues_in_unmapped_memory() {
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
