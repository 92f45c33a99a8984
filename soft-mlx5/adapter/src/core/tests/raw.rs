//! Raw packet QPs: frames out, offloads, steering, frames in.

use uverbs_mlx5_format::{
    CqeChecksum, CqeOpcode, EthChecksum, EthSegment, L3Type, L4Type, Opcode, Syndrome, U16, U32,
};
use zerocopy::{FromBytes, IntoBytes};

use super::harness::*;
use crate::core::*;
use crate::packet::{ETHERNET_GROUP, Gid, Packet};

const DESTINATION: [u8; 6] = [0x24, 0x8a, 7, 1, 2, 3];

/// An Ethernet, IPv4 and UDP or TCP header with wrong checksums, for `payload` bytes.
fn headers(protocol: u8, payload: usize) -> Vec<u8> {
    let transport = if protocol == 6 { 20 } else { 8 };
    let mut header = [&DESTINATION[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    let total = (20 + transport + payload) as u16;
    header.extend_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8, 0, 7, 0x40, 0, 64]);
    header.extend_from_slice(&[protocol, 0xaa, 0xaa, 10, 0, 0, 1, 10, 0, 0, 2]);
    header.extend_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    match protocol {
        6 => {
            header.extend_from_slice(&[0, 0, 1, 0, 0, 0, 0, 0, 0x50, 0x99, 1, 0, 0xbb, 0xbb, 0, 0])
        }
        _ => {
            let length = (8 + payload) as u16;
            header.extend_from_slice(&[(length >> 8) as u8, length as u8, 0xbb, 0xbb]);
        }
    }
    header
}

/// A send with `header` inline in the Ethernet segment.
fn send(header: &[u8], change: impl FnOnce(&mut EthSegment)) -> Wr {
    let inline_header_size = U16::new(header.len() as u16);
    let mut segment = EthSegment { inline_header_size, ..EthSegment::default() };
    let start = header.len().min(2);
    segment.inline_header_start[..start].copy_from_slice(&header[..start]);
    change(&mut segment);
    let mut raw = segment.as_bytes().to_vec();
    raw.extend_from_slice(&header[start..]);
    raw.resize(raw.len().next_multiple_of(16), 0);
    Wr { raw, ..Wr::send() }
}

struct Wire {
    pair: Pair,
    inbox: Region,
}

impl Wire {
    fn new(params: impl FnMut(usize, &mut QpParams)) -> Self {
        let none = |_: usize, attributes: &mut QpAttributes| *attributes = QpAttributes::default();
        let mut pair = Pair::with(QpType::RawPacket, params, none);
        let inbox = pair.host(1).region(4096, ALL);
        pair.post_receive(1, inbox);
        Self { pair, inbox }
    }

    fn rule(&mut self, change: impl FnOnce(&mut FlowRule)) -> FlowId {
        let mut rule = FlowRule { target: Some(self.pair.qps[1].qpn), ..FlowRule::default() };
        change(&mut rule);
        self.pair.host(1).core.add_flow(rule).unwrap()
    }

    fn received(&mut self, len: u32) -> Vec<u8> {
        let at = self.inbox.address;
        self.pair.host(1).bytes(at, len.into())
    }

    /// The first CQE, with the fields that only completions of frames have.
    fn cqe(&mut self) -> uverbs_mlx5_format::Cqe {
        let ring = self.pair.cqs[1].ring;
        let bytes = self.pair.host(1).bytes(ring, 64);
        uverbs_mlx5_format::Cqe::read_from_bytes(&bytes).unwrap()
    }
}

fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn a_frame_arrives_at_the_qp_of_its_rule_with_checksums() {
    let mut wire = Wire::new(|_, _| {});
    let id = wire.rule(|rule| {
        rule.value.destination_mac = DESTINATION;
        rule.mask.destination_mac = [0xff; 6];
        rule.value.destination_port = U16::new(0x5678);
        rule.mask.destination_port = U16::new(0xffff);
        rule.flow_tag = Some(0x1234);
    });
    let payload = wire.pair.host(0).region(100, ALL);
    let data = wire.pair.host(0).fill(payload, 3);
    let wr = send(&headers(17, 100), |segment| segment.checksum_flags = EthChecksum::IP_CSUM);
    wire.pair.post(0, &wr.all_of(payload));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.one(0).syndrome, None);
    let got = wire.pair.one(1);
    assert_eq!((got.opcode, got.bytes, got.qpn), (CqeOpcode::RESPONDER_SEND, 142, 0x1234));
    let frame = wire.received(142);
    assert_eq!(frame[42..], data);
    assert_eq!(ones_sum(&frame[14..34]), 0xffff, "IP header");
    let pseudo = [&frame[26..34], &[0, 17, 0, 108], &frame[34..]].concat();
    assert_eq!(ones_sum(&pseudo), 0xffff, "UDP");
    let cqe = wire.cqe();
    let all = CqeChecksum::L2_OK | CqeChecksum::L3_OK | CqeChecksum::L4_OK;
    assert_eq!(cqe.checks.0, all);
    assert_eq!((cqe.header_types.l3(), cqe.header_types.l4()), (L3Type::IPV4, L4Type::UDP));
    assert_eq!(cqe.checksum.get(), ones_sum(&frame[14..]));
    let hits = wire.pair.host(1).core.flow_hits(id).unwrap();
    assert_eq!(hits, FlowHits { frames: 1, bytes: 142 });
}

#[test]
fn without_offload_wrong_checksums_are_sent_and_reported() {
    let mut wire = Wire::new(|_, _| {});
    wire.rule(|_| {});
    wire.pair.post(0, &send(&headers(17, 0), |_| {}).inline(&[1; 30]));
    wire.pair.world.run_until_idle();
    let got = wire.pair.one(1);
    let frame = wire.received(got.bytes);
    assert_eq!(frame[24..26], [0xaa, 0xaa]);
    assert_eq!(wire.cqe().checks.0, CqeChecksum::L2_OK);
}

#[test]
fn short_frames_are_padded_and_frames_without_a_rule_are_lost() {
    let mut wire = Wire::new(|_, _| {});
    let id = wire.rule(|rule| {
        rule.value.ether_type = U16::new(0x88b5);
        rule.mask.ether_type = U16::new(0xffff);
    });
    let frame = |kind: u8| [&DESTINATION[..], &[2; 6], &[0x88, kind, 1, 2, 3, 4]].concat();
    wire.pair.post(0, &send(&frame(0xb6), |_| {}));
    wire.pair.post(0, &send(&frame(0xb5), |_| {}));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.one(1).bytes, 60);
    assert_eq!(wire.received(18), frame(0xb5));
    let qpn = wire.pair.qps[1].qpn;
    let core = &mut wire.pair.host(1).core;
    assert!(matches!(core.destroy_qp(qpn), Err(CoreError::InUse { .. })));
    core.remove_flow(id).unwrap();
    assert!(core.remove_flow(id).is_err());
    core.destroy_qp(qpn).unwrap();
}

#[test]
fn a_large_send_is_segmented() {
    let mut wire = Wire::new(|_, _| {});
    wire.rule(|_| {});
    let inboxes = [0, 1].map(|_| {
        let inbox = wire.pair.host(1).region(2048, ALL);
        wire.pair.post_receive(1, inbox);
        inbox
    });
    let payload = wire.pair.host(0).region(2500, ALL);
    let data = wire.pair.host(0).fill(payload, 9);
    let mut wr = send(&headers(6, 2500), |segment| {
        segment.checksum_flags = EthChecksum::IP_CSUM;
        segment.mss = U16::new(1000);
    });
    wr.opcode = Opcode::TSO;
    wire.pair.post(0, &wr.all_of(payload));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.one(0).wqe_opcode, Opcode::TSO);
    let lens: Vec<u32> = wire.pair.poll(1).iter().map(|done| done.bytes).collect();
    assert_eq!(lens, [1054, 1054, 554]);
    let regions = [wire.inbox, inboxes[0], inboxes[1]];
    let mut whole = Vec::new();
    for (n, (region, len)) in regions.iter().zip(lens).enumerate() {
        let frame = wire.pair.host(1).bytes(region.address, len.into());
        assert_eq!(ones_sum(&frame[14..34]), 0xffff);
        let length = (frame.len() - 34) as u16;
        let pseudo = [&frame[26..34], &[0, 6], &length.to_be_bytes()[..], &frame[34..]].concat();
        assert_eq!(ones_sum(&pseudo), 0xffff);
        assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), 7 + n as u16, "identification");
        let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        assert_eq!(sequence, 0x100 + 1000 * n as u32);
        // ACK in each segment, FIN and PSH in the last, CWR in the first.
        assert_eq!(frame[47], [0x90, 0x10, 0x19][n]);
        whole.extend_from_slice(&frame[54..]);
    }
    assert_eq!(whole, data);
}

#[test]
fn vlan_tags_are_inserted_stripped_and_reported() {
    let mut wire = Wire::new(|_, params| params.strip_vlan = true);
    wire.rule(|rule| {
        (rule.value.vlan, rule.mask.vlan) = (U16::new(0x0123), U16::new(0xfff));
        (rule.value.tagged, rule.mask.tagged) = (1, 1);
    });
    let header = headers(17, 30);
    let mut wr = send(&[], |segment| {
        segment.inline_header_size = U16::new(EthSegment::INSERT_VLAN);
        segment.inline_header_start = 0x2123u16.to_be_bytes();
    });
    wr.inline = Some([&header[..], &[5; 30]].concat());
    wire.pair.post(0, &wr);
    wire.pair.world.run_until_idle();
    let got = wire.pair.one(1);
    assert_eq!(got.bytes, 72);
    assert_eq!(wire.received(42), header);
    let cqe = wire.cqe();
    assert!(cqe.header_types.vlan_stripped());
    assert_eq!(cqe.vlan_info.get(), 0x2123);
    assert_eq!(cqe.header_types.l3(), L3Type::IPV4, "found after the tag");
}

#[test]
fn the_check_sequence_follows_the_frame_if_requested() {
    let mut wire = Wire::new(|_, params| params.scatter_check_sequence = true);
    wire.rule(|_| {});
    wire.pair.post(0, &send(&headers(17, 40), |_| {}).inline(&[7; 40]));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.one(1).bytes, 86);
    let frame = wire.received(86);
    // A CRC over data and its CRC has a fixed residue (IEEE 802.3 3.2.9).
    assert_eq!(crc32fast::hash(&frame), 0x2144_df1c);
}

#[test]
fn the_best_priority_wins_equal_rules_share_and_dont_trap_rules_pass_on() {
    let mut wire = Wire::new(|_, _| {});
    let own = wire.pair.qps[1].clone();
    let ether = |rule: &mut FlowRule, priority| {
        rule.priority = priority;
        rule.mask.ether_type = U16::new(0xffff);
        rule.value.ether_type = U16::new(0x800);
    };
    let hits = |wire: &mut Wire, id| wire.pair.host(1).core.flow_hits(id).unwrap().frames;
    let late = wire.rule(|rule| ether(rule, 2));
    let first = wire.rule(|rule| ether(rule, 1));
    let twin = wire.rule(|rule| ether(rule, 1));
    let watcher = wire.rule(|rule| {
        rule.passes_on = true;
        rule.target = Some(own.qpn);
    });
    let drop = wire.rule(|rule| {
        ether(rule, 3);
        rule.target = None;
    });
    wire.pair.post(0, &send(&headers(17, 20), |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    let found = [late, first, twin, watcher, drop].map(|id| hits(&mut wire, id));
    assert_eq!(found, [0, 1, 1, 1, 0]);
    // One receive was posted, so the second copy is lost. Two rules with the same match and QP make
    // only one copy.
    assert_eq!(wire.pair.one(1).bytes, 62);
    assert_eq!(wire.pair.host(1).core.counters().datagrams_lost, 1);
}

#[test]
fn rules_with_the_same_match_have_the_same_tag_and_action() {
    let mut wire = Wire::new(|_, _| {});
    let target = Some(wire.pair.qps[1].qpn);
    let core = &mut wire.pair.host(1).core;
    let mut rule = FlowRule { target, flow_tag: Some(7), ..FlowRule::default() };
    rule.mask.ether_type = U16::new(0xffff);
    rule.value.ether_type = U16::new(0x800);
    let conflict =
        |made: Result<FlowId, CoreError>| matches!(made, Err(CoreError::FlowConflict(_)));
    let first = core.add_flow(rule).unwrap();
    assert!(conflict(core.add_flow(FlowRule { flow_tag: Some(8), ..rule })));
    assert!(conflict(core.add_flow(FlowRule { flow_tag: Some(0), ..rule })));
    assert!(conflict(core.add_flow(FlowRule { target: None, ..rule })));
    core.add_flow(FlowRule { priority: 1, flow_tag: Some(8), ..rule }).unwrap();
    let untagged = core.add_flow(FlowRule { flow_tag: None, ..rule }).unwrap();
    core.remove_flow(first).unwrap();
    // The entry keeps its tag as long as one of its rules exists.
    assert!(conflict(core.add_flow(FlowRule { flow_tag: Some(8), ..rule })));
    wire.pair.post(0, &send(&headers(17, 20), |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.cqe().opcode_qpn_flow_tag.get() & 0xff_ffff, 7, "the first rule's");
    let core = &mut wire.pair.host(1).core;
    core.remove_flow(untagged).unwrap();
    core.add_flow(FlowRule { flow_tag: None, ..rule }).unwrap();
    assert!(conflict(core.add_flow(FlowRule { flow_tag: Some(8), ..rule })), "no tag means 0");
    core.add_flow(FlowRule { flow_tag: Some(0), ..rule }).unwrap();
    rule.value.destination_port = U16::new(1);
    assert!(matches!(core.add_flow(rule), Err(CoreError::BadParameter { .. })));
}

#[test]
fn the_oldest_mask_of_a_priority_wins() {
    let mut wire = Wire::new(|_, _| {});
    let target = Some(wire.pair.qps[1].qpn);
    let core = &mut wire.pair.host(1).core;
    let rule = |bits: u8, value: u16| {
        let mut rule = FlowRule { target, ..FlowRule::default() };
        rule.mask.destination_port = U16::new(0xffff);
        rule.value.destination_port = U16::new(value);
        rule.mask.source_ip[15] = bits;
        rule
    };
    let other = core.add_flow(rule(0, 1)).unwrap();
    let later_mask = core.add_flow(rule(1, 0x5678)).unwrap();
    // This rule is newer than the previous one, but its mask is older.
    let wins = core.add_flow(rule(0, 0x5678)).unwrap();
    wire.pair.post(0, &send(&headers(17, 20), |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    let core = &wire.pair.host(1).core;
    let hits = [other, later_mask, wins].map(|id| core.flow_hits(id).unwrap().frames);
    assert_eq!(hits, [0, 0, 1]);
}

#[test]
fn frames_loop_back_to_own_rules_and_macs_of_stations_select_the_host() {
    let mut wire = Wire::new(|_, _| {});
    let header = headers(17, 20);
    let own = wire.pair.qps[0].qpn;
    let inbox = wire.pair.host(0).region(256, ALL);
    wire.pair.post_receive(0, inbox);
    wire.pair.host(0).core.add_flow(FlowRule { target: Some(own), ..Default::default() }).unwrap();
    wire.pair.post(0, &send(&header, |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.poll(0).len(), 2, "sent and received");
    // The MAC address of host 1: the frame goes only there.
    let mut there = header;
    there[..6].copy_from_slice(&[2, 0, 127, 0, 0, 2]);
    wire.rule(|_| {});
    wire.pair.post(0, &send(&there, |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    assert_eq!((wire.pair.poll(0).len(), wire.pair.poll(1).len()), (1, 1));
}

/// A QP spreads frames over other QPs' queues. The hash selects the queue, and is in the CQE.
#[test]
fn frames_are_spread_over_receive_queues_by_their_hash() {
    let mut wire = Wire::new(|_, _| {});
    let receiver = wire.pair.qps[1].qpn;
    let (pd, cq) = {
        let info = wire.pair.host(1).core.query_qp(receiver).unwrap();
        (info.params.pd, info.params.receive_cq)
    };
    let hash = RssHash { key: [0x5a; RSS_KEY], select: 1 << 30 | 0xf };
    let header = headers(17, 20);
    let frame = [&header[..], &[0; 20]].concat();
    let (value, kind) = hash.of(&frame).unwrap();
    // Only the table's entry for this hash has a queue.
    let place = value as usize % 4;
    let table = (0..4).map(|at| if at == place { receiver } else { Qpn(0xff_fff0) }).collect();
    let receive = ReceiveSource::Spread(Spread { table, hash: Some(hash) });
    let params = QpParams { receive, ..QpParams::new(QpType::RawPacket, pd, cq, cq) };
    let spreading = wire.pair.host(1).core.create_qp(params).unwrap();
    wire.rule(|rule| (rule.target, rule.flow_tag) = (Some(spreading), Some(9)));
    wire.pair.post(0, &send(&header, |_| {}).inline(&[0; 20]));
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.poll(1).len(), 1);
    let cqe = wire.cqe();
    assert_eq!((cqe.rss_hash.get(), cqe.rss_hash_type), (value, kind));
    assert_eq!(cqe.opcode_qpn_flow_tag.get() & 0xff_ffff, 9);
    let gone = wire.pair.host(1).core.destroy_qp(spreading);
    assert!(matches!(gone, Err(CoreError::InUse { .. })), "a rule has it as target");
}

#[test]
fn bad_requests_are_errors_of_the_send_queue() {
    for (wr, syndrome) in [
        (send(&[1; 10], |_| {}), Syndrome::LOCAL_QP_OPERATION),
        (
            Wr { opcode: Opcode::TSO, ..send(&headers(6, 9), |_| {}).inline(&[0; 9]) },
            Syndrome::LOCAL_QP_OPERATION,
        ),
        (
            Wr { opcode: Opcode::RDMA_WRITE, ..send(&headers(6, 0), |_| {}) },
            Syndrome::LOCAL_QP_OPERATION,
        ),
        (
            send(&[], |segment| segment.inline_header_size = U16::new(900)),
            Syndrome::LOCAL_QP_OPERATION,
        ),
    ] {
        let mut wire = Wire::new(|_, _| {});
        wire.pair.post(0, &wr);
        wire.pair.world.run_until_idle();
        assert_eq!(wire.pair.one(0).syndrome, Some(syndrome));
        assert_eq!(wire.pair.state(0), QpState::SendQueueError);
    }
}

#[test]
fn a_frame_longer_than_its_receive_fails_only_that_receive() {
    // With the check sequence it is four bytes too long.
    for (keeps_sequence, payload) in [(false, 4090), (true, 4052)] {
        let mut wire = Wire::new(|_, params| params.scatter_check_sequence = keeps_sequence);
        wire.rule(|_| {});
        let inbox = wire.inbox;
        wire.pair.post_receive(1, inbox);
        let long = wire.pair.host(0).region(payload, ALL);
        let mut wr = send(&headers(17, payload as usize), |_| {});
        wr.sges = vec![(long.address, payload as u32, long.key)];
        wire.pair.post(0, &wr);
        wire.pair.post(0, &send(&headers(17, 30), |_| {}).inline(&[9; 30]));
        wire.pair.world.run_until_idle();
        let done = wire.pair.poll(1);
        let syndromes: Vec<_> = done.iter().map(|done| done.syndrome).collect();
        assert_eq!(syndromes, [Some(Syndrome::LOCAL_LENGTH), None]);
        assert_eq!(wire.pair.state(1), QpState::ReadyToSend);
        assert_eq!(wire.pair.host(1).core.counters().receives_too_short, 1);
    }
}

#[test]
fn a_frame_for_memory_without_write_access_moves_the_qp_to_error() {
    let mut wire = Wire::new(|_, _| {});
    wire.rule(|_| {});
    let qp = &mut wire.pair;
    let first = wire.inbox;
    qp.post_receive(1, Region { key: Mkey(first.key.0 ^ 0x100), ..first });
    qp.post_receive(1, first);
    for _ in 0..3 {
        qp.post(0, &send(&headers(17, 30), |_| {}).inline(&[9; 30]));
    }
    qp.world.run_until_idle();
    let syndromes: Vec<_> = qp.poll(1).iter().map(|done| done.syndrome).collect();
    assert_eq!(syndromes, [None, Some(Syndrome::LOCAL_PROTECTION), Some(Syndrome::FLUSHED)]);
    assert_eq!(qp.state(1), QpState::Error);
}

#[test]
fn a_large_send_beyond_its_maximum_is_a_length_error() {
    let mut wire = Wire::new(|_, _| {});
    let payload = wire.pair.host(0).region(100, ALL);
    let mut wr = send(&headers(6, 100), |segment| segment.mss = U16::new(1));
    wr.opcode = Opcode::TSO;
    // SGEs of 2 GiB: more one-byte segments than 32 bits can count.
    wr.sges = vec![(payload.address, 0, payload.key); 2];
    wire.pair.post(0, &wr);
    wire.pair.world.run_until_idle();
    assert_eq!(wire.pair.one(0).syndrome, Some(Syndrome::LOCAL_LENGTH));
}

#[test]
fn a_rate_limit_spaces_frames_and_ends_at_once_when_lifted() {
    let mut host = Host::with(1, CoreConfig { frames_by_front_end: true, ..Default::default() });
    let mut cq = host.cq(16);
    let params = host.qp_params(QpType::RawPacket, &cq, &cq);
    let mut qp = host.create(params);
    host.make_rts(&qp, &QpAttributes::default());
    let limit = |rate| QpAttributes { rate_limit: Some(rate), ..QpAttributes::default() };
    // A frame of 125 bytes takes a millisecond.
    host.core.modify_qp(qp.qpn, QpState::ReadyToSend, &limit(1000)).unwrap();
    for _ in 0..5 {
        host.post(&mut qp, &send(&headers(17, 83), |_| {}).inline(&[9; 83]));
    }
    let leave = |host: &mut Host, now: u64| {
        let next = host.core.step(now, 16).next_wake;
        let frames = std::iter::from_fn(|| host.core.take_frame());
        (frames.map(|frame| frame.len()).collect::<Vec<_>>(), next)
    };
    assert_eq!(leave(&mut host, 0), (vec![125], Some(1_000_000)));
    assert_eq!(leave(&mut host, 999_999), (vec![], Some(1_000_000)));
    assert_eq!(leave(&mut host, 1_000_000), (vec![125], Some(2_000_000)));
    // A late step does not catch up: it sends no more frames than one on time.
    assert_eq!(leave(&mut host, 9_000_000), (vec![125], Some(10_000_000)));
    assert_eq!(leave(&mut host, 9_500_000).0, []);
    host.core.modify_qp(qp.qpn, QpState::ReadyToSend, &limit(0)).unwrap();
    assert_eq!(leave(&mut host, 9_500_001).0, [125, 125]);
    assert_eq!(host.poll_all(&mut cq).len(), 5);
}

#[test]
fn a_front_end_can_take_and_deliver_frames() {
    let mut host = Host::with(1, CoreConfig { frames_by_front_end: true, ..Default::default() });
    let mut cq = host.cq(4);
    let send_only = {
        let mut params = host.qp_params(QpType::RawPacket, &cq, &cq);
        params.receive = ReceiveSource::None;
        host.create(params)
    };
    let receive_only = host.qp_params(QpType::RawPacket, &cq, &cq);
    let mut receive_only = {
        let qp = host.create(receive_only.clone());
        host.core.destroy_qp(qp.qpn).unwrap();
        let without = QpParams { send_ring: None, ..receive_only };
        QpHandle { qpn: host.core.create_qp(without).unwrap(), ..qp }
    };
    let mut send_only = send_only;
    host.make_rts(&send_only, &QpAttributes::default());
    host.make_rts(&receive_only, &QpAttributes::default());
    let inbox = host.region(256, ALL);
    host.post_receive(&mut receive_only, &[(inbox.address, 256, inbox.key)]);
    host.post(&mut send_only, &send(&headers(17, 30), |_| {}).inline(&[9; 30]));
    host.core.step(0, 16);
    assert!(host.core.take_packet().is_none());
    let frame = host.core.take_frame().unwrap();
    let steered = Steered { flow_tag: 5, hash: Some((0xfeed, 0x44)) };
    assert!(!host.core.deliver_frame(1, send_only.qpn, &frame, steered), "no receive queue");
    assert!(host.core.deliver_frame(1, receive_only.qpn, &frame, steered));
    assert!(!host.core.deliver_frame(1, receive_only.qpn, &frame, steered), "no receive left");
    let done = host.poll_all(&mut cq);
    assert_eq!((done.len(), done[1].bytes, done[1].qpn), (2, 72, 5));
    let raw = host.bytes(cq.ring + 64, 64);
    let cqe = uverbs_mlx5_format::Cqe::read_from_bytes(&raw).unwrap();
    assert_eq!((cqe.rss_hash, cqe.rss_hash_type), (U32::new(0xfeed), 0x44));
}

#[test]
fn hostile_frames_are_survived() {
    let mut wire = Wire::new(|_, params| params.strip_vlan = true);
    wire.rule(|_| {});
    let mut seed = 0x1234_5678_u32;
    for len in 0..200usize {
        let mut frame: Vec<u8> = (0..len)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            })
            .collect();
        let kinds: [&[u8]; 4] =
            [&[8, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0, 0, 1, 8, 0, 0x4f], &[0x88, 0xa8]];
        let kind = kinds[len % 4];
        if let Some(place) = frame.get_mut(12..12 + kind.len()) {
            place.copy_from_slice(kind);
        }
        let mut packet = Packet::new();
        packet.start_frame(crate::packet::Addressing::roce(Gid::default(), ETHERNET_GROUP), &frame);
        let inbox = wire.inbox;
        wire.pair.post_receive(1, inbox);
        wire.pair.host(1).core.receive(0, packet);
        wire.pair.poll(1);
    }
    assert_eq!(wire.pair.state(1), QpState::ReadyToSend);
}
