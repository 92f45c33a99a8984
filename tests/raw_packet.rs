//! Raw packet queue pairs: sending and receiving frames, the device's checks of them, and offloads.
//!
//! The tests need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod common;

#[path = "common/frames.rs"]
mod frames;

use common::{Setup, success};
use frames::{Wire, ip_sum, setup, tcp_header, udp_frame};
use uverbs::cq::{CompletionOpcode, Status};
use uverbs::flow::Ethernet;
use uverbs::qp::{
    EthChecksum, EthernetOffload, Field, Inline, PostError, PostFlags, QpAttributes, RateLimit,
    RunTimeDestination, RunTimeOperation, SendRequest, State, framed, segmented,
};
use uverbs::qp_type::RawPacket;
use uverbs::{ErrorKind, op, raw};
use uverbs_uapi::flags::RawPacketCaps;

const SIGNALED: PostFlags = PostFlags::SIGNALED;

fn ready(setup: &Setup) -> raw::QueuePair<RawPacket> {
    let mut qp = setup.builder::<RawPacket>().build().unwrap();
    qp.activate().unwrap();
    qp
}

#[test]
fn a_raw_packet_queue_pair_needs_only_a_port() {
    let Some(mut setup) = setup() else { return };
    let mut qp = setup.builder::<RawPacket>().build_in_reset().unwrap();
    let steps = [
        QpAttributes::to(State::Init).port(1),
        QpAttributes::to(State::Rtr),
        QpAttributes::to(State::Rts),
        QpAttributes::to(State::Err),
        QpAttributes::to(State::Reset),
        QpAttributes::to(State::Init).port(1),
    ];
    for step in steps {
        // This poll also removes completions from before a reset.
        assert!(setup.cq.poll().is_err());
        let wrong = qp.modify(&step.qkey(1)).unwrap_err();
        assert_eq!((wrong.kind(), wrong.is_from_kernel()), (ErrorKind::InvalidInput, false));
        qp.modify(&step).unwrap();
        assert_eq!(qp.state(), step.state.unwrap());
    }
    qp.activate().unwrap();
    assert_eq!((qp.state(), qp.query().unwrap().state), (State::Rts, State::Rts));
    qp.destroy().unwrap();
}

#[test]
fn calls_that_raw_packet_queue_pairs_lack_are_named_errors() {
    let setup = Setup::new();
    if setup.context.query_port(1).unwrap().link_layer() != uverbs::LinkLayer::Ethernet {
        let error = setup.builder::<RawPacket>().build().unwrap_err();
        assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Unsupported, false));
        assert!(error.cause().contains("for Ethernet ports, not for InfiniBand"), "{error}");
        return;
    }
    let srq = setup.pd.create_raw_srq(8).build().unwrap();
    let shared = setup.builder::<RawPacket>().shared_receive_queue(srq.handle());
    let error = shared.build().unwrap_err();
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Unsupported, false), "{error}");
}

#[test]
fn frames_are_sent_by_each_form_of_a_send() {
    let Some(mut setup) = setup() else { return };
    let mut qp = ready(&setup);
    let memory = setup.region(4096);
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5][..], &[7; 50]].concat();
    memory.view().write(0, &frame).unwrap();
    let sge = memory.sge(0, frame.len()).unwrap();
    let (head, rest) = frame.split_first_chunk().unwrap();
    let plain = EthernetOffload::default();
    // SAFETY: inline data; the region outlives the requests.
    unsafe {
        qp.post_send(1, op::EthernetSendHeader(plain, head), Inline(rest), SIGNALED).unwrap();
        assert_eq!(success(&mut setup.cq).wr_id, 1);
        if qp.inline_header() == 0 {
            qp.post_send(2, op::EthernetSend(plain), sge, SIGNALED).unwrap();
            assert_eq!(success(&mut setup.cq).wr_id, 2);
        } else {
            let refused = qp.post_send(2, op::EthernetSend(plain), sge, SIGNALED);
            assert_eq!(refused, Err(PostError::BadHeader));
        }
        // A list works whether or not the device wants headers inline.
        let request = SendRequest {
            wr_id: 3,
            operation: RunTimeOperation::Packet(plain),
            destination: RunTimeDestination::Connected,
            data: &[sge],
            inline: false,
            flags: SIGNALED,
        };
        qp.post_list([request]).unwrap();
        assert_eq!(success(&mut setup.cq).wr_id, 3);
    }
}

#[test]
fn a_failed_frame_stops_only_the_send_queue() {
    let Some(mut setup) = setup() else { return };
    let mut qp = ready(&setup);
    let memory = setup.region(64);
    let head = [2; 18];
    let send = op::EthernetSendHeader(EthernetOffload::default(), &head);
    let unknown = uverbs::Sge::new(0x1000, 64, 0xdead_be00);
    // SAFETY: the device refuses the key before it looks at the memory; the region outlives the
    // request.
    unsafe {
        qp.post_receive(9, &[memory.sge(0, 64).unwrap()]).unwrap();
        qp.post_send(1, send, unknown, SIGNALED).unwrap();
    }
    let failed = setup.completion();
    assert_eq!((failed.wr_id, failed.status), (1, Status::LocalProtection));
    assert_eq!((qp.state(), qp.query().unwrap().state), (State::Sqe, State::Sqe));
    // Linux has no transition from SQE to RTS for raw packet queue pairs (`modify_raw_packet_qp`):
    // the program must reset them.
    qp.to_error().unwrap();
    assert_eq!(setup.completion().status, Status::Flushed);
    qp.modify(&QpAttributes::to(State::Reset)).unwrap();
    assert!(setup.cq.poll().is_err());
    qp.activate().unwrap();
    // SAFETY: inline data.
    unsafe { qp.post_send(2, send, Inline(&[0; 46]), SIGNALED).unwrap() };
    assert_eq!(success(&mut setup.cq).wr_id, 2);
}

#[test]
fn a_rate_limit_without_packet_pacing_is_a_named_error() {
    if !common::is_soft() {
        return;
    }
    let device = common::soft_device(|builder| builder.without_packet_pacing());
    let setup = Setup::on(device.open().unwrap());
    let Ok(_) = setup.builder::<RawPacket>().build() else { return };
    let mut qp = ready(&setup);
    let error = qp.modify_rate_limit(RateLimit::kbits_per_second(1000)).unwrap_err();
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Unsupported, false), "{error}");
    let burst = RateLimit { max_burst: 1000, ..RateLimit::default() };
    assert_eq!(qp.modify_rate_limit(burst).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(qp.state(), State::Rts);
}

#[test]
fn headers_are_sent_inline_if_the_device_requires_it() {
    if !common::is_soft() {
        return;
    }
    let device = common::soft_device(|builder| builder.inline_headers());
    let mut wire = Wire::on(Setup::on(device.open().unwrap()), |builder| builder);
    assert_eq!(wire.from.inline_header(), 18);
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let frame = udp_frame(wire.mac, 1, &[3; 90]);
    let (whole, plain) = (wire.memory.sge(0, frame.len()).unwrap(), EthernetOffload::default());
    // SAFETY: it is refused.
    let refused = unsafe { wire.from.post_send(1, op::EthernetSend(plain), whole, SIGNALED) };
    assert_eq!(refused, Err(PostError::BadHeader));
    wire.receive();
    wire.send(plain, &frame);
    assert_eq!(wire.arrived().1, frame);
}

#[test]
fn the_software_device_paces_by_default() {
    if !common::is_soft() {
        return;
    }
    let Some(setup) = setup() else { return };
    let pacing = setup.context.attributes().unwrap().pacing().unwrap();
    assert_eq!(pacing.kbits_per_second, 1..=100_000_000);
    let mut qp = ready(&setup);
    qp.modify_rate_limit(RateLimit::kbits_per_second(1000)).unwrap();
    let error = qp.modify_rate_limit(RateLimit::kbits_per_second(100_000_001)).unwrap_err();
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::InvalidInput, false));
}

#[test]
fn frames_are_sent_at_their_rate_limit() {
    if !common::is_soft() {
        return;
    }
    let device = common::soft_device(|builder| builder.packet_pacing(100..=1_000_000));
    let mut setup = Setup::on(device.open().unwrap());
    let mut qp = ready(&setup);
    for wrong in [99, 1_000_001] {
        let error = qp.modify_rate_limit(RateLimit::kbits_per_second(wrong)).unwrap_err();
        assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::InvalidInput, false));
        assert!(error.cause().contains("100 to 1000000 kbit/s"), "{error}");
    }
    let burst = RateLimit { max_burst: 1000, ..RateLimit::kbits_per_second(800) };
    assert_eq!(qp.modify_rate_limit(burst).unwrap_err().kind(), ErrorKind::Unsupported);
    // At 800 kbit/s a frame of 94 bytes takes 940 us. The first does not wait.
    qp.modify_rate_limit(RateLimit::kbits_per_second(800)).unwrap();
    let send = op::EthernetSendHeader(EthernetOffload::default(), &[2; 18]);
    let start = std::time::Instant::now();
    for wr_id in 0..11 {
        // SAFETY: inline data.
        unsafe { qp.post_send(wr_id, send, Inline(&[7; 76]), SIGNALED).unwrap() };
    }
    for wr_id in 0..11 {
        assert_eq!(success(&mut setup.cq).wr_id, wr_id);
    }
    let least = std::time::Duration::from_micros(94 * 100);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    qp.modify_rate_limit(RateLimit::default()).unwrap();
    // Other types of queue pairs have no rate limit here.
    let (mut connected, _peer) = setup.rc_pair();
    let limited = connected.modify(&QpAttributes::default().rate_limit(1000)).unwrap_err();
    assert_eq!(limited.kind(), ErrorKind::Unsupported, "{limited}");
}

fn at(address: [u8; 6]) -> Ethernet {
    Ethernet { destination: address.into(), ..Ethernet::default() }
}

#[test]
fn the_device_fills_in_checksums_and_vlan_tags_and_checks_received_frames() {
    let Some(mut wire) = Wire::new(|builder| builder.strip_vlan()) else { return };
    let rule = wire.to.create_flow().ethernet(at(wire.mac)).tag(0x12_3456).build().unwrap();
    let frame = udp_frame(wire.mac, 4711, b"twelve bytes, and enough not to be padded");
    let tagged = EthernetOffload {
        checksum: EthChecksum::IP_CSUM,
        vlan: (wire.from.inline_header() == 0).then_some(0x2123),
        metadata: 0,
    };
    wire.receive();
    wire.send(tagged, &frame);
    let (done, bytes) = wire.arrived();
    assert_eq!((done.opcode(), done.flow_tag()), (CompletionOpcode::Recv, 0x12_3456));
    assert!(done.ip_checksum_ok());
    assert_eq!(done.vlan(), tagged.vlan);
    assert_eq!(bytes.len(), frame.len());
    assert_eq!(ip_sum(&bytes), 0xffff, "the sum of a good header");
    assert_ne!(bytes[40..42], frame[40..42], "the UDP checksum is filled in");
    let same = |range: std::ops::Range<usize>| bytes[range.clone()] == frame[range];
    assert!(same(0..24) && same(26..40) && same(42..frame.len()));
    // Without offload the device sends the program's wrong checksums.
    wire.receive();
    wire.send(EthernetOffload::default(), &frame);
    let (done, bytes) = wire.arrived();
    assert!(!done.ip_checksum_ok());
    assert_eq!((done.vlan(), bytes), (None, frame));
    rule.destroy().unwrap();
}

#[test]
fn a_frame_too_long_for_its_receive_fails_only_that_receive() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let frame = udp_frame(wire.mac, 4711, b"more than the first receive can hold");
    // The receive is one byte too short.
    let short = wire.memory.sge(0, frame.len() - 1).unwrap();
    // SAFETY: the region outlives the queue pair.
    unsafe { wire.to.post_receive(7, &[short]).unwrap() };
    wire.receive();
    wire.send(EthernetOffload::default(), &frame);
    let refused = wire.setup.completion();
    assert_eq!((refused.wr_id, refused.status), (7, Status::LocalLength));
    assert_eq!((wire.to.state(), wire.to.query().unwrap().state), (State::Rts, State::Rts));
    wire.send(EthernetOffload::default(), &frame);
    assert_eq!(wire.arrived().1, frame);
    // Later receives succeed.
    wire.receive();
    wire.send(EthernetOffload::default(), &frame);
    assert_eq!(wire.arrived().1, frame);
}

/// The same sysfs counter as mlx5_ib's.
#[test]
fn frames_that_are_too_long_are_counted_by_the_port() {
    if !common::is_soft() || frames::setup().is_none() {
        return;
    }
    let soft = uverbs::soft::SoftDevice::builder("counted").build().unwrap();
    let open = uverbs::Device::from_soft(soft.clone()).open().unwrap();
    let mut wire = Wire::on(common::Setup::on(open), |builder| builder);
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let frame = udp_frame(wire.mac, 4711, b"too long");
    let short = wire.memory.sge(0, frame.len() - 1).unwrap();
    let name = "class/infiniband/counted/ports/1/hw_counters/resp_local_length_error";
    for count in 1..=3 {
        // SAFETY: the region outlives the queue pair.
        unsafe { wire.to.post_receive(7, &[short]).unwrap() };
        wire.send(EthernetOffload::default(), &frame);
        assert_eq!(wire.setup.completion().status, Status::LocalLength);
        assert_eq!(soft.sysfs().read(name), Some(&*format!("{count}\n")));
    }
}

#[test]
fn frame_templates_are_sent_with_their_fields_and_tail() {
    const NUMBER: Field<4, 42> = Field;
    const LAST: Field<2, 98> = Field;
    let Some(mut wire) = Wire::new(|builder| builder.max_inline_data(200)) else { return };
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let mut frame = udp_frame(wire.mac, 4711, &[7; 82]);
    let tail = common::pattern(40, 3);
    wire.memory.view().write(0, &tail).unwrap();
    let sge = wire.memory.sge(0, tail.len()).unwrap();
    frame.truncate(100);
    let checksum = EthernetOffload::default();
    let (whole, data) = framed(checksum, &frame, ());
    let mut whole = wire.to.long_template::<3, _, _>(whole, data, PostFlags::empty()).unwrap();
    let (tailed, data) = framed(checksum, &frame, sge);
    let mut tailed = wire.to.long_template::<3, _, _>(tailed, data, PostFlags::empty()).unwrap();
    for number in 1..4_u32 {
        assert!(whole.set(NUMBER, number.to_be_bytes()) && whole.set(LAST, *b"ok"));
        assert!(tailed.set(NUMBER, number.to_be_bytes()) && tailed.set(LAST, *b"ok"));
        frame[42..46].copy_from_slice(&number.to_be_bytes());
        frame[98..100].copy_from_slice(b"ok");
        wire.receive();
        wire.receive();
        // SAFETY: the region outlives the requests, and is not written meanwhile.
        unsafe {
            wire.to.post_template(1, &whole).unwrap();
            let mut batch = wire.to.batch().unwrap();
            batch.build_template(2, &tailed).unwrap();
            batch.publish();
        }
        for wanted in [frame.clone(), [&frame[..], &tail].concat()] {
            assert_eq!(wire.arrived().1, wanted);
        }
    }
}

#[test]
fn a_large_packet_is_segmented() {
    let Some(mut wire) = Wire::new(|builder| builder) else { return };
    if wire.setup.context.attributes().unwrap().max_segmented_packet().is_none() {
        let refused = wire.setup.builder::<RawPacket>().segmentation(54).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        return;
    }
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let mut from = wire.setup.builder::<RawPacket>().segmentation(54).build().unwrap();
    from.activate().unwrap();
    let data = common::pattern(2500, 1);
    wire.memory.view().write(0, &data).unwrap();
    let (header, sge) = (tcp_header(wire.mac, 1000), [wire.memory.sge(0, data.len()).unwrap()]);
    let offload = EthernetOffload { checksum: EthChecksum::IP_CSUM, ..EthernetOffload::default() };
    for _ in 0..3 {
        wire.receive();
    }
    let (operation, payload) = segmented(offload, 1000, &header, &sge);
    // SAFETY: the region outlives the request, and is not written meanwhile.
    unsafe { from.post_send(9, operation, payload, SIGNALED).unwrap() };
    let done = success(&mut wire.setup.cq);
    assert_eq!((done.wr_id, done.opcode()), (9, CompletionOpcode::Segmented));
    for (index, part) in data.chunks(1000).enumerate() {
        let (done, bytes) = wire.arrived();
        assert!(done.ip_checksum_ok());
        assert_eq!(bytes[38..42], (1000 + 1000 * index as u32).to_be_bytes(), "sequence number");
        assert_eq!(&bytes[54..], part);
    }
    let too_long = [0; 2000];
    let (operation, payload) = segmented(offload, 1000, &too_long, &sge);
    // SAFETY: it is refused.
    let refused = unsafe { from.post_send(10, operation, payload, SIGNALED) };
    assert_eq!(refused, Err(PostError::BadSegmentation));
    let tagged = EthernetOffload { vlan: Some(7), ..offload };
    let (operation, payload) = segmented(tagged, 1000, &too_long[..54], &sge);
    // SAFETY: it is refused.
    let refused = unsafe { from.post_send(11, operation, payload, SIGNALED) };
    assert_eq!(refused, Err(PostError::VlanWithHeader));
    let operation = op::EthernetSendHeader(tagged, &[0; 18]);
    // SAFETY: as above.
    let refused = unsafe { from.post_send(12, operation, Inline(&[0; 42]), SIGNALED) };
    assert_eq!(refused, Err(PostError::VlanWithHeader));
}

#[test]
fn frame_check_sequences_are_delivered_on_request() {
    let Some(setup) = setup() else { return };
    let caps = setup.context.attributes().unwrap().raw_packets();
    let wanting = setup.builder::<RawPacket>().keep_check_sequence().build();
    if !caps.contains(RawPacketCaps::SCATTER_FCS) {
        assert_eq!(wanting.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    drop(wanting);
    let Some(mut wire) = Wire::new(|builder| builder.keep_check_sequence()) else { return };
    let _rule = wire.to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let frame = udp_frame(wire.mac, 1, &[0; 30]);
    wire.receive();
    wire.send(EthernetOffload::default(), &frame);
    let (_, bytes) = wire.arrived();
    let (body, sequence) = bytes.split_at(frame.len());
    assert_eq!((body, sequence.len()), (&frame[..], 4));
    assert_ne!(sequence, [0; 4]);
}

#[test]
fn safe_raw_packet_queue_pairs_send_and_receive_slots() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let setup = &wire.setup;
    let mut cq = setup.context.create_cq(64).build().unwrap();
    let create = || {
        let builder = setup.pd.create_qp::<RawPacket>(cq.handle(), cq.handle());
        let mut qp = builder.build().unwrap();
        qp.activate().unwrap();
        qp
    };
    let (mut from, mut to) = (create(), create());
    let rule = to.create_flow().ethernet(at(wire.mac)).build().unwrap();
    let slab = setup.pd.create_slab(2, 2048).unwrap();
    to.post_receive(slab.take().unwrap()).unwrap();
    let frame = udp_frame(wire.mac, 5, &[9; 60]);
    let (head, rest) = frame.split_first_chunk().unwrap();
    let mut slot = slab.take().unwrap();
    let offload = EthernetOffload::default();
    slot.write(rest).unwrap();
    from.post_send(op::EthernetSendHeader(offload, head), slot, SIGNALED).unwrap();
    let mut slots = Vec::new();
    let start = std::time::Instant::now();
    while slots.len() < 2 {
        if let Ok(done) = cq.poll() {
            assert!(done.completion.is_success());
            slots.extend(done.slot.map(|slot| slot.to_vec()));
        }
        assert!(start.elapsed() < common::PATIENCE);
    }
    slots.sort_by_key(Vec::len);
    assert_eq!(slots, [rest.to_vec(), frame.clone()]);
    to.try_destroy().unwrap_err();
    drop(rule);
}
