//! Every completion status that a program can cause, on both sides.

use uverbs_mlx5_format::{CqeOpcode, Opcode, Syndrome};

use super::harness::*;
use crate::core::*;
use crate::packet;

/// Asserts that a side's oldest completion has this syndrome, that the later ones are flushed, and
/// that the QP is in the error state. Returns the oldest completion.
fn failed(pair: &mut Pair, side: usize, syndrome: Syndrome) -> Done {
    let done = pair.poll(side);
    let first = done.first().unwrap_or_else(|| panic!("side {side} has no completion"));
    assert_eq!(first.syndrome, Some(syndrome), "{done:?}");
    assert!(done[1..].iter().all(|d| d.syndrome == Some(Syndrome::FLUSHED)), "{done:?}");
    assert_eq!(pair.state(side), QpState::Error);
    first.clone()
}

fn events(pair: &mut Pair, side: usize) -> Vec<AsyncKind> {
    pair.host(side).async_events().into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn an_unreadable_gather_list_is_a_local_protection_error() {
    for wrong in ["key", "bounds", "domain"] {
        let mut pair = Pair::new(QpType::Rc);
        let host = pair.host(0);
        let mut from = host.region(4096, Access::empty());
        match wrong {
            "key" => from.key.0 ^= 1,
            "bounds" => from.address += 1,
            _ => {
                let pd = host.core.create_pd().unwrap();
                let map = crate::memory::PageMap::linear(from.address);
                let params = MkeyParams::region(pd, from.address, 4096, ALL, map);
                from.key = host.core.create_mkey(params).unwrap();
            }
        }
        let to = pair.host(1).region(4096, Access::LOCAL_WRITE);
        pair.post_receive(1, to);
        let index = pair.post(0, &Wr::send().all_of(from).unsignaled());
        pair.post(0, &Wr::send());
        pair.world.run_until_idle();
        let first = failed(&mut pair, 0, Syndrome::LOCAL_PROTECTION);
        assert_eq!((first.index, first.opcode), (index, CqeOpcode::REQUESTER_ERROR));
        assert_eq!(events(&mut pair, 0), [], "the completion reports it, so no event does");
    }
}

/// A QP connected to itself completes the refused request, and those before and after it, as a QP
/// with another peer does.
#[test]
fn a_queue_pair_that_is_its_own_peer_reports_refused_requests() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(4);
    let mut qp = host.qp(QpType::Rc, &cq);
    let attributes = host.attributes(host.gid, qp.qpn);
    host.make_rts(&qp, &attributes);
    let region = host.region(64, ALL);
    let wrong = Mkey(region.key.0 ^ 0xff);
    for key in [region.key, wrong, region.key] {
        host.post(&mut qp, &Wr::write(region.address, key).all_of(region));
    }
    world.run_until_idle();
    let syndromes: Vec<_> = world.hosts[0].poll_all(&mut cq).iter().map(|d| d.syndrome).collect();
    let expected = [None, Some(Syndrome::REMOTE_ACCESS), Some(Syndrome::FLUSHED)];
    assert_eq!(syndromes, expected);
    assert_eq!(world.hosts[0].state(&qp), QpState::Error);
}

/// A refused request after a READ without a response moves the QP to the error state: both are
/// flushed, and the READ's retries do not run out.
#[test]
fn a_queue_pair_that_is_its_own_peer_does_not_retry_in_the_error_state() {
    let mut world = World::new(1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(4);
    let mut qp = host.qp(QpType::Rc, &cq);
    let attributes = QpAttributes { retry_count: Some(0), ..host.attributes(host.gid, qp.qpn) };
    host.make_rts(&qp, &attributes);
    let region = host.region(64, ALL);
    host.post(&mut qp, &Wr::read(region.address, region.key).all_of(region));
    let wrong = Mkey(region.key.0 ^ 0xff);
    host.post(&mut qp, &Wr::write(region.address, wrong).all_of(region));
    world.run_until_idle();
    let syndromes: Vec<_> = world.hosts[0].poll_all(&mut cq).iter().map(|d| d.syndrome).collect();
    assert_eq!(syndromes, [Some(Syndrome::FLUSHED); 2]);
}

#[test]
fn requests_before_a_local_error_succeed_and_none_after_it_is_sent() {
    // A gather list that fails when its packets are built, and a WQE that fails when it is parsed.
    for unreadable in [false, true] {
        let mut pair = Pair::new(QpType::Rc);
        let (good, to) = (pair.host(0).region(3000, ALL), pair.host(1).region(3000, ALL));
        pair.host(0).fill(good, 1);
        let never = pair.host(1).region(8, ALL);
        let wrong_key = Region { key: Mkey(good.key.0 ^ 0xff), ..good };
        let (bad, syndrome) = if unreadable {
            (Wr::new(Opcode(0x3f)), Syndrome::LOCAL_QP_OPERATION)
        } else {
            (Wr::write(to.address, to.key).all_of(wrong_key), Syndrome::LOCAL_PROTECTION)
        };
        pair.post(0, &Wr::write(to.address, to.key).all_of(good));
        pair.post(0, &Wr::read(to.address, to.key).all_of(good));
        pair.post(0, &bad);
        pair.post(0, &Wr::write(never.address, never.key).inline(b"too late"));
        pair.world.run_until_idle();
        let done: Vec<_> = pair.poll(0).iter().map(|d| d.syndrome).collect();
        assert_eq!(done, [None, None, Some(syndrome), Some(Syndrome::FLUSHED)]);
        assert_eq!(pair.host(1).bytes(never.address, 8), [0; 8]);
    }
}

#[test]
fn a_message_that_is_too_long_is_a_local_length_error() {
    let mut pair = Pair::new(QpType::Rc);
    let key = pair.host(0).region(64, ALL).key;
    let half = 1u32 << 30;
    let mut wr = Wr::send();
    wr.sges = vec![(MEMORY_BASE, half, key), (MEMORY_BASE, 1, key)];
    pair.post(0, &wr);
    pair.world.run_until_idle();
    failed(&mut pair, 0, Syndrome::LOCAL_LENGTH);
}

#[test]
fn a_malformed_wqe_is_a_local_qp_operation_error() {
    let bad = [
        Wr::new(Opcode(0x3f)),
        Wr::new(Opcode::SET_PSV),
        // An incomplete segment, and inline data for a READ.
        Wr { raw: vec![0; 16], ..Wr::new(Opcode::ATOMIC_FETCH_ADD) },
        Wr::read(0x1000, Mkey(1)).inline(b"into nowhere"),
        Wr { raw: (0x8000_03ffu32).to_be_bytes().to_vec(), ..Wr::send() },
    ];
    for wr in bad {
        let mut pair = Pair::new(QpType::Rc);
        pair.post(0, &wr);
        pair.world.run_until_idle();
        let done = failed(&mut pair, 0, Syndrome::LOCAL_QP_OPERATION);
        assert_eq!(done.wqe_opcode, wr.opcode);
    }
}

#[test]
fn a_wrong_remote_key_or_address_is_a_remote_access_error() {
    for wrong in ["key", "bounds", "unknown key"] {
        for operation in ["write", "read", "atomic"] {
            let mut pair = Pair::new(QpType::Rc);
            let local = pair.host(0).region(64, ALL);
            let mut remote = pair.host(1).region(8, ALL);
            match wrong {
                "key" => remote.key.0 ^= 1,
                // The address of an atomic is a multiple of 8.
                "bounds" => remote.address += if operation == "atomic" { 8 } else { 1 },
                _ => remote.key = Mkey(0xffff_ff00),
            }
            let wr = match operation {
                "write" => Wr::write(remote.address, remote.key),
                "read" => Wr::read(remote.address, remote.key),
                _ => Wr::fetch_add(remote.address, remote.key, 1),
            };
            pair.post(0, &wr.from(local, 0, 8));
            pair.world.run_until_idle();
            failed(&mut pair, 0, Syndrome::REMOTE_ACCESS);
            assert_eq!(pair.state(1), QpState::Error);
            assert_eq!(events(&mut pair, 1), [AsyncKind::QpAccessError]);
        }
    }
}

#[test]
fn a_message_longer_than_the_receive_buffer_is_an_error_on_both_sides() {
    let mut pair = Pair::new(QpType::Rc);
    let (from, to) = (pair.host(0).region(4096, ALL), pair.host(1).region(4095, ALL));
    pair.post_receive(1, to);
    pair.post_receive(1, to);
    pair.post(0, &Wr::send().all_of(from));
    pair.world.run_until_idle();
    failed(&mut pair, 0, Syndrome::REMOTE_INVALID_REQUEST);
    failed(&mut pair, 1, Syndrome::LOCAL_LENGTH);
    assert_eq!(events(&mut pair, 1), []);
}

#[test]
fn an_atomic_on_an_unaligned_address_is_an_invalid_request() {
    let mut pair = Pair::new(QpType::Rc);
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(64, ALL));
    pair.post(0, &Wr::compare_swap(remote.address + 4, remote.key, 0, 1).all_of(local));
    pair.world.run_until_idle();
    failed(&mut pair, 0, Syndrome::REMOTE_INVALID_REQUEST);
    assert_eq!(events(&mut pair, 1), [AsyncKind::QpRequestError]);
}

#[test]
fn an_operation_that_the_peers_qp_does_not_allow_is_an_invalid_request() {
    for right in [RemoteRights::READ, RemoteRights::WRITE, RemoteRights::ATOMIC] {
        let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
            attributes.remote_rights = Some(RemoteRights::all() - right);
        });
        let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
        let wr = match right {
            RemoteRights::READ => Wr::read(remote.address, remote.key),
            RemoteRights::WRITE => Wr::write(remote.address, remote.key),
            _ => Wr::fetch_add(remote.address, remote.key, 1),
        };
        pair.post(0, &wr.all_of(local));
        pair.world.run_until_idle();
        failed(&mut pair, 0, Syndrome::REMOTE_INVALID_REQUEST);
    }
}

#[test]
fn a_receive_buffer_without_write_access_is_an_error_on_both_sides() {
    let mut pair = Pair::new(QpType::Rc);
    let from = pair.host(0).region(100, ALL);
    let read_only = pair.host(1).region(100, Access::empty());
    pair.post_receive(1, read_only);
    pair.post(0, &Wr::send().all_of(from));
    pair.world.run_until_idle();
    failed(&mut pair, 0, Syndrome::REMOTE_OPERATION);
    failed(&mut pair, 1, Syndrome::LOCAL_PROTECTION);
}

#[test]
fn a_request_without_an_answer_exceeds_its_retries() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.retry_count = Some(3);
        attributes.ack_timeout = Some(10);
    });
    let mut sent = 0;
    pair.post(0, &Wr::send());
    pair.world.pass(1_000_000_000, &mut |_| {
        sent += 1;
        Fate::Drop
    });
    assert_eq!(sent, 4, "the first time and three retries");
    failed(&mut pair, 0, Syndrome::TRANSPORT_RETRY_EXCEEDED);
    assert_eq!(pair.state(1), QpState::ReadyToSend);
}

/// The specification allows one to four times the timeout between two attempts.
#[test]
fn each_retry_waits_twice_as_long_up_to_four_times_the_timeout() {
    const TIMEOUT: u64 = 4096 << 10;
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.retry_count = Some(4);
        attributes.ack_timeout = Some(10);
    });
    let mut sent = 0;
    let mut pass = |pair: &mut Pair, nanoseconds| {
        pair.world.pass(nanoseconds, &mut |_| {
            sent += 1;
            Fate::Drop
        });
        sent
    };
    pair.post(0, &Wr::send());
    assert_eq!(pass(&mut pair, 0), 1);
    for (retry, times) in (1..).zip([1, 2, 4, 4]) {
        assert_eq!(pass(&mut pair, times * TIMEOUT - 1), retry, "no attempt before {times}");
        assert_eq!(pass(&mut pair, 1), retry + 1, "an attempt after {times}");
    }
    assert_eq!(pair.poll(0), []);
    assert_eq!(pass(&mut pair, 4 * TIMEOUT), 5);
    failed(&mut pair, 0, Syndrome::TRANSPORT_RETRY_EXCEEDED);
}

#[test]
fn without_a_timeout_the_requester_waits_for_ever() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.ack_timeout = Some(0);
    });
    pair.post(0, &Wr::send());
    pair.world.pass(u64::MAX / 4, &mut |_| Fate::Drop);
    assert_eq!(pair.poll(0), []);
    assert_eq!(pair.state(0), QpState::ReadyToSend);
}

#[test]
fn a_send_without_a_receive_exceeds_its_rnr_retries() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.rnr_retry = Some(2);
    });
    let mut requests = 0;
    pair.post(0, &Wr::send());
    pair.world.pass(1_000_000_000, &mut |packet| {
        requests += u32::from(packet.bytes().len() == 12);
        Fate::Pass
    });
    assert_eq!(requests, 3);
    failed(&mut pair, 0, Syndrome::RNR_RETRY_EXCEEDED);
    assert_eq!(pair.state(1), QpState::ReadyToSend, "the responder only sent RNR NAKs");
}

#[test]
fn rnr_retry_seven_repeats_until_a_receive_is_posted() {
    for write in [false, true] {
        let mut pair = Pair::new(QpType::Rc);
        let (from, to) = (pair.host(0).region(2000, ALL), pair.host(1).region(2000, ALL));
        let data = pair.host(0).fill(from, 7);
        let wr = if write {
            Wr::write(to.address, to.key).immediate(Opcode::RDMA_WRITE_IMMEDIATE, 1)
        } else {
            Wr::send()
        };
        pair.post(0, &wr.all_of(from));
        pair.world.pass(50_000_000, &mut |_| Fate::Pass);
        assert_eq!(pair.poll(0), []);
        pair.post_receive(1, to);
        pair.world.pass(50_000_000, &mut |_| Fate::Pass);
        assert_eq!(pair.one(0).syndrome, None);
        assert_eq!(pair.one(1).bytes, 2000);
        assert!(pair.host(1).bytes(to.address, 2000) == data);
    }
}

/// Each loss costs a retry, unless the peer answers in between.
#[test]
fn a_wait_for_a_receive_outlasts_lost_packets() {
    let mut pair = Pair::new(QpType::Rc);
    let (from, to) = (pair.host(0).region(2000, ALL), pair.host(1).region(2000, ALL));
    let data = pair.host(0).fill(from, 7);
    pair.post(0, &Wr::send().all_of(from));
    let (mut packets, mut lost) = (0, 0);
    pair.world.pass(10_000_000_000, &mut |_| {
        packets += 1;
        let loses = packets % 50 == 0;
        lost += u32::from(loses);
        if loses { Fate::Drop } else { Fate::Pass }
    });
    assert!(lost > 100, "{lost} lost");
    assert_eq!(pair.poll(0), []);
    pair.post_receive(1, to);
    pair.world.pass(50_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).syndrome, None);
    assert!(pair.host(1).bytes(to.address, 2000) == data);
}

#[test]
fn a_peer_that_dies_without_a_receive_exceeds_the_retries() {
    let mut pair = Pair::new(QpType::Rc);
    pair.post(0, &Wr::send());
    pair.world.pass(50_000_000, &mut |_| Fate::Pass);
    assert_eq!(pair.poll(0), []);
    pair.world.pass(100_000_000_000, &mut |_| Fate::Drop);
    failed(&mut pair, 0, Syndrome::TRANSPORT_RETRY_EXCEEDED);
}

/// A NAK of side 1 for a PSN sequence error: the packet with the first PSN is missing.
fn sequence_error(pair: &mut Pair) {
    let (gid, qpn) = (pair.world.hosts[1].gid, pair.qps[0].qpn);
    let from = packet::Addressing {
        source_lid: 2,
        ..packet::Addressing::roce(gid, packet::Gid::default())
    };
    let psn = pair.host(0).attributes(gid, qpn).send_psn.unwrap();
    let mut nak = packet::Packet::new();
    let opcode = packet::Opcode::RC_ACKNOWLEDGE;
    nak.start(from, packet::Bth::new(opcode, 0xffff, qpn.0, packet::Psn::new(psn)));
    let syndrome = packet::Syndrome::Nak(packet::NakCode::PSN_SEQUENCE_ERROR);
    nak.push(packet::Aeth::new(syndrome, 0));
    pair.host(0).core.receive(0, nak);
}

/// rxe sends both: an RNR NAK for the packet without a receive, and a sequence error NAK for the
/// packet after it.
#[test]
fn a_sequence_error_after_an_rnr_nak_costs_no_retry() {
    let mut pair = Pair::new(QpType::Rc);
    pair.post(0, &Wr::send());
    for _ in 0..20 {
        pair.world.pass(100_000, &mut |_| Fate::Pass);
        sequence_error(&mut pair);
    }
    let to = pair.host(1).region(64, ALL);
    pair.post_receive(1, to);
    pair.world.pass(100_000, &mut |_| Fate::Pass);
    assert_eq!(pair.one(0).syndrome, None);
}

#[test]
fn sequence_errors_without_an_rnr_nak_between_them_use_up_the_retries() {
    let mut pair = Pair::new(QpType::Rc);
    pair.post(0, &Wr::send());
    pair.world.pass(100_000, &mut |_| Fate::Pass);
    for _ in 0..20 {
        sequence_error(&mut pair);
        pair.world.pass(100_000, &mut |_| Fate::Drop);
    }
    failed(&mut pair, 0, Syndrome::TRANSPORT_RETRY_EXCEEDED);
}

#[test]
fn more_outstanding_reads_than_the_responder_allows_are_refused() {
    let mut pair = Pair::with_attributes(QpType::Rc, |side, attributes| {
        attributes.max_read_atomic = Some(8);
        attributes.max_destination_read_atomic = Some(if side == 1 { 1 } else { 8 });
        attributes.mtu = Some(Mtu::M256);
    });
    let (local, remote) = (pair.host(0).region(60_000, ALL), pair.host(1).region(60_000, ALL));
    for _ in 0..3 {
        pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    }
    pair.world.run_until_idle();
    let done = pair.poll(0);
    assert!(done.iter().any(|d| d.syndrome == Some(Syndrome::REMOTE_INVALID_REQUEST)), "{done:?}");
}

#[test]
fn a_read_from_a_requester_of_depth_zero_is_an_error() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.max_read_atomic = Some(0);
    });
    let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle();
    failed(&mut pair, 0, Syndrome::LOCAL_QP_OPERATION);
}

#[test]
fn a_response_of_the_wrong_length_or_kind_is_a_bad_response() {
    for kind in [Opcode::RDMA_READ, Opcode::ATOMIC_FETCH_ADD] {
        let mut pair = Pair::new(QpType::Rc);
        let (local, remote) = (pair.host(0).region(8, ALL), pair.host(1).region(8, ALL));
        let wr = match kind {
            Opcode::RDMA_READ => Wr::read(remote.address, remote.key),
            _ => Wr::fetch_add(remote.address, remote.key, 1),
        };
        pair.post(0, &wr.all_of(local));
        pair.host(0).core.step(0, 64);
        let request = pair.host(0).core.take_packet().unwrap();
        let psn = request.bth().unwrap().psn();
        let opcode = packet::Opcode::read_response(packet::Transport::Rc, packet::Position::Only);
        let mut forged = packet::Packet::new();
        let bth = packet::Bth::new(opcode, 0xffff, pair.qps[0].qpn.0, psn);
        forged.start(request.addressing.reply(), bth);
        forged.push(packet::Aeth::new(packet::Syndrome::ACK, 0));
        forged.payload(12);
        pair.host(0).core.receive(0, forged);
        pair.world.run_until_idle();
        failed(&mut pair, 0, Syndrome::BAD_RESPONSE);
    }
}

#[test]
fn migration_without_an_alternate_path_fails() {
    let mut pair = Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.retry_count = Some(0);
        attributes.ack_timeout = Some(8);
        attributes.alternate_path = attributes.path;
        attributes.migration = Some(MigrationState::Rearm);
    });
    pair.post(0, &Wr::send());
    pair.world.pass(1_000_000_000, &mut |_| Fate::Drop);
    failed(&mut pair, 0, Syndrome::TRANSPORT_RETRY_EXCEEDED);
    assert_eq!(events(&mut pair, 0), [AsyncKind::PathMigrationFailed]);
}
