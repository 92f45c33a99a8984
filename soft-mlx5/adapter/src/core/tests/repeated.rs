//! Requests, responses and NAKs that arrive more than once, or after a change of their key or queue
//! pair.

use uverbs_mlx5_format::Syndrome as Status;

use super::harness::*;
use super::loss::Dice;
use crate::core::*;
use crate::packet::{Addressing, Bth, Gid, Opcode, Packet, Psn, Reth, Syndrome};

/// A READ request of side 0's QP for the whole region, with this PSN.
fn read_request(pair: &Pair, psn: u32, region: Region) -> Packet {
    let from = Addressing::roce(pair.world.hosts[0].gid, Gid::default());
    let mut packet = Packet::new();
    let bth = Bth::new(Opcode::RC_READ_REQUEST, 0xffff, pair.qps[1].qpn.0, Psn::new(psn));
    packet.start(from, bth).push(Reth::new(region.address, region.key.0, region.len as u32));
    packet
}

fn is_response(packet: &Packet) -> bool {
    packet.view().is_ok_and(|view| view.operation.is_response())
}

fn is_refusal(packet: &Packet) -> bool {
    let syndrome = packet.view().ok().and_then(|view| view.aeth.map(|aeth| aeth.syndrome()));
    syndrome.is_some_and(|syndrome| syndrome != Syndrome::ACK)
}

/// A request with an old PSN needs the right to read like any other.
#[test]
fn a_repeated_read_needs_the_right_to_read() {
    for (rights, answers) in [(RemoteRights::all(), 1), (RemoteRights::WRITE, 0)] {
        let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
            attributes.remote_rights = Some(rights);
        });
        let secret = pair.host(1).region(64, ALL);
        let request = read_request(&pair, 99, secret);
        pair.host(1).core.receive(0, request);
        pair.host(1).core.step(0, 64);
        let sent = std::iter::from_fn(|| pair.host(1).core.take_packet()).count();
        assert_eq!(sent, answers, "{rights:?}");
        assert_eq!(pair.state(1), QpState::ReadyToSend);
    }
}

/// The key is invalidated while the responses are in transit, by SEND with invalidate or by the
/// program. The responder ends the READ with a NAK in place of the next response.
#[test]
fn a_read_that_is_refused_after_its_first_responses_is_a_remote_access_error() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
        attributes.ack_timeout = Some(0);
    });
    let len = 256 * 100;
    let (local, remote) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.host(0).core.step(0, 64);
    let request = pair.host(0).core.take_packet().unwrap();
    pair.host(1).core.receive(0, request);
    pair.host(1).core.step(0, 16);
    pair.host(1).core.destroy_mkey(remote.key).unwrap();
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Status::REMOTE_ACCESS));
}

/// A copy of a READ request arrives after the READ is complete, and the key is invalidated while
/// the copy is being answered. Nothing fails, because the requester waits for no response.
#[test]
fn a_repeated_read_whose_key_is_invalidated_meanwhile_is_dropped() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
    });
    let len = 256 * 100;
    let (local, remote) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    let data = pair.host(1).fill(remote, 1);
    let mut request = None;
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle_with(&mut |packet| {
        request = request.take().or((!is_response(packet)).then(|| packet.clone()));
        Fate::Pass
    });
    assert_eq!(pair.one(0).syndrome, None);
    let now = pair.world.now;
    pair.host(1).core.receive(now, request.unwrap());
    pair.host(1).core.step(now, 16);
    pair.host(1).core.destroy_mkey(remote.key).unwrap();
    pair.world.run_until_idle();
    assert_eq!(pair.state(1), QpState::ReadyToSend);
    let inbox = pair.host(1).region(len, ALL);
    pair.post_receive(1, inbox);
    pair.post(0, &Wr::send().all_of(local));
    pair.world.run_until_idle();
    assert_eq!((pair.one(0).syndrome, pair.one(1).syndrome), (None, None));
    assert!(pair.host(1).bytes(inbox.address, len) == data);
}

#[test]
fn a_request_does_not_wait_for_the_end_of_a_long_read_of_the_peer() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
    });
    let len = 256 * 1000;
    let (local, remote) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.host(0).core.step(0, 64);
    let request = pair.host(0).core.take_packet().unwrap();
    pair.host(1).core.receive(0, request);
    pair.host(1).core.step(0, 16);
    pair.post(1, &Wr::write(local.address, local.key).from(remote, 0, 8));
    pair.host(1).core.step(0, 64);
    let mut sent = std::iter::from_fn(|| pair.host(1).core.take_packet());
    assert!(sent.any(|packet| !is_response(&packet)), "only responses");
}

/// After each loss only the packets in transit are repeated, not the whole rest of the READ.
#[test]
fn a_lost_response_of_a_long_read_costs_few_packets() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
    });
    const PACKETS: u64 = 4096;
    let len = 256 * PACKETS;
    let (local, remote) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    let data = pair.host(1).fill(remote, 1);
    let after = Wr::read(remote.address, remote.key).from(local, 0, 8);
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.post(0, &after);
    let mut dice = Dice::new(1);
    let mut lost = 0;
    pair.world.pass(60_000_000_000, &mut |packet| {
        let loses = is_response(packet) && dice.roll(200) == 0;
        lost += u64::from(loses);
        if loses { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!(pair.poll(0).iter().filter(|done| done.syndrome.is_none()).count(), 2);
    assert!(pair.host(0).bytes(local.address, len) == data);
    let most = PACKETS + lost * 128 + 200;
    assert!(pair.world.crossed < most, "{} packets, {lost} lost", pair.world.crossed);
}

#[test]
fn an_rnr_nak_that_arrives_twice_costs_one_retry() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.rnr_retry = Some(2);
    });
    pair.post(0, &Wr::send());
    let mut requests = 0;
    pair.world.pass(1_000_000_000, &mut |packet| {
        requests += u32::from(!is_response(packet));
        if is_refusal(packet) { Fate::Twice } else { Fate::Pass }
    });
    assert_eq!(requests, 3, "the first time and two retries");
    assert_eq!(pair.one(0).syndrome, Some(Status::RNR_RETRY_EXCEEDED));
}

#[test]
fn a_sequence_error_that_arrives_twice_costs_one_retry() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
        attributes.retry_count = Some(1);
    });
    let len = 256 * 8;
    let (from, to) = (pair.host(0).region(len, ALL), pair.host(1).region(len, ALL));
    let data = pair.host(0).fill(from, 1);
    pair.post(0, &Wr::write(to.address, to.key).all_of(from));
    let mut requests = 0;
    pair.world.pass(1_000_000_000, &mut |packet| {
        requests += u32::from(!is_response(packet));
        match is_response(packet) {
            false if requests == 3 => Fate::Drop,
            true if is_refusal(packet) => Fate::Twice,
            _ => Fate::Pass,
        }
    });
    assert_eq!(pair.one(0).syndrome, None);
    assert!(pair.host(1).bytes(to.address, len) == data);
}
