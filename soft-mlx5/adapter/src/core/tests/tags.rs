//! Tag matching.

use uverbs_mlx5_format::{
    ControlFlags, Cqe, CqeOpcode, DataSegment, MiniCqeFormat, Opcode, RendezvousHeader, Syndrome,
    TagEvent, TagHeader, TagMatchingSegment as Change, TagReport, U16, U32, U64,
};
use zerocopy::{FromBytes, IntoBytes};

use super::harness::*;
use crate::core::*;
use crate::prng::Prng;

const USER_INDEX: u32 = 0x777;
const LOG_TAGS: u8 = 3;

/// A CQE of the tag matching SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    opcode: CqeOpcode,
    event: TagEvent,
    place: u16,
    bytes: u32,
    index: u16,
    head: TagHeader,
}

impl Seen {
    fn report(&self) -> (u32, u16) {
        let report = TagReport::read_from_bytes(self.head.as_bytes()).unwrap();
        (report.success.get(), report.hardware_phase.get())
    }
}

/// A connected pair. Side 0 has a ring for receives; side 1 has a tag matching SRQ, and no ring
/// for sends unless asked for.
struct Tags {
    pair: Pair,
    srq: SrqHandle,
    /// The CQ of the SRQ.
    cq: CqHandle,
    command: QpHandle,
    outbox: Region,
    inbox: Region,
    next: u16,
}

impl Tags {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(sends: bool) -> Self {
        let mut world = World::new(2);
        let cqs = [0, 1].map(|side| world.hosts[side].cq(8));
        let cq = world.hosts[1].cq(8);
        let srq = world.hosts[1].tag_srq(4, params(&cq));
        let qps = [0, 1].map(|side| {
            let host = &mut world.hosts[side];
            let mut params = host.qp_params(QpType::Rc, &cqs[side], &cqs[side]);
            if side == 1 {
                params.receive = ReceiveSource::Srq(srq.srqn);
                params.send_ring = params.send_ring.filter(|_| sends);
                params.rendezvous = !sends;
            }
            host.create(params)
        });
        world.connect(&qps, |_, _| {});
        let command = command_qp(&mut world.hosts[1], &srq, &cq);
        let outbox = world.hosts[0].region(8192, ALL);
        let inbox = world.hosts[1].region(8192, ALL);
        Self { pair: Pair { world, qps, cqs }, srq, cq, command, outbox, inbox, next: 0 }
    }

    fn run(&mut self) -> Vec<Seen> {
        self.pair.world.run_until_idle();
        self.seen()
    }

    fn seen(&mut self) -> Vec<Seen> {
        let host = &mut self.pair.world.hosts[1];
        let cqes: Vec<Cqe> = std::iter::from_fn(|| host.poll_cqe(&mut self.cq)).collect();
        cqes.iter().map(seen).collect()
    }

    /// Changes the list, before anything else happens.
    fn change(&mut self, change: Change, buffer: Option<(u64, u32, Mkey)>) {
        let mut raw = change.as_bytes().to_vec();
        if change.operation == Change::OPERATION_APPEND && buffer.is_none() {
            raw.extend_from_slice(DataSegment::TERMINATOR.as_bytes());
        }
        let flags = ControlFlags::NONE;
        let sges = buffer.into_iter().collect();
        let wr = Wr { raw, sges, flags, ..Wr::new(Opcode::TAG_MATCHING) };
        self.pair.world.hosts[1].post(&mut self.command, &wr);
        self.pair.world.run_until_idle();
    }

    /// Appends an entry whose buffer is the first `len` bytes of the inbox; returns its index.
    fn append(&mut self, tag: u64, mask: u64, len: u32) -> u16 {
        let place = self.next;
        self.next = (place + 1) % (1 << LOG_TAGS);
        let change = Change {
            operation: Change::OPERATION_APPEND,
            index: U16::new(self.next),
            tag: U64::new(tag),
            mask: U64::new(mask),
            ..Change::default()
        };
        let inbox = self.inbox;
        self.change(change, (len > 0).then_some((inbox.address, len, inbox.key)));
        place
    }

    fn report(&mut self, handled: u16) -> Seen {
        self.change(
            Change {
                operation: Change::OPERATION_NOP,
                flags: Change::FLAG_COMPLETION | Change::FLAG_SOFTWARE_COUNT,
                software_count: U16::new(handled),
                ..Change::default()
            },
            None,
        );
        one(self.run())
    }

    fn post_receives(&mut self, count: usize) {
        let sge = (self.inbox.address + 4096, 4096, self.inbox.key);
        for _ in 0..count {
            self.pair.world.hosts[1].post_srq(&mut self.srq, &[sge]);
        }
    }

    /// Sends a header and these bytes.
    fn send(&mut self, operation: u8, tag: u64, data: &[u8]) {
        let header = header(operation, tag);
        let bytes = [header.as_bytes(), data].concat();
        self.pair.world.hosts[0].memory_write(self.outbox.address, &bytes);
        let wr = Wr::send().from(self.outbox, 0, bytes.len() as u32);
        self.pair.post(0, &wr);
    }

    /// Sends a rendezvous for `len` bytes at offset 4096 of the outbox.
    fn rendezvous(&mut self, tag: u64, len: u32, rkey: u32) {
        let request = RendezvousHeader {
            address: U64::new(self.outbox.address + 4096),
            rkey: U32::new(rkey),
            length: U32::new(len),
        };
        self.send(TagHeader::RENDEZVOUS, tag, request.as_bytes());
    }

    fn inbox(&self, offset: u64, len: u64) -> Vec<u8> {
        self.pair.world.hosts[1].bytes(self.inbox.address + offset, len)
    }
}

fn params(cq: &CqHandle) -> TagParams {
    TagParams { cq: cq.cqn, user_index: USER_INDEX, log_entries: LOG_TAGS }
}

/// A command QP, which is connected to itself, as libmlx5 does it.
fn command_qp(host: &mut Host, srq: &SrqHandle, cq: &CqHandle) -> QpHandle {
    let mut params = host.qp_params(QpType::Rc, cq, cq);
    params.receive = ReceiveSource::Srq(srq.srqn);
    let command = host.create(params);
    let attributes = host.attributes(host.gid, command.qpn);
    host.make_rts(&command, &attributes);
    command
}

fn header(operation: u8, tag: u64) -> TagHeader {
    let context = U32::new(0xc0ffee);
    TagHeader { operation, context, tag: U64::new(tag), ..TagHeader::default() }
}

fn seen(cqe: &Cqe) -> Seen {
    assert_eq!((cqe.app, cqe.user_index()), (Cqe::TAG_MATCHING, USER_INDEX), "{cqe:?}");
    assert_eq!(cqe.flags_remote_qpn.grh(), 0);
    Seen {
        opcode: cqe.op_own.opcode(),
        event: TagEvent(cqe.app_op),
        place: cqe.app_info.get(),
        bytes: cqe.byte_count.get(),
        index: cqe.wqe_counter.get(),
        head: TagHeader::read_from_prefix(cqe.as_bytes()).unwrap().0,
    }
}

fn one(mut seen: Vec<Seen>) -> Seen {
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.remove(0)
}

fn event(opcode: CqeOpcode, event: TagEvent, place: u16, bytes: u32) -> Seen {
    Seen { opcode, event, place, bytes, index: 0, head: TagHeader::default() }
}

const SEND: CqeOpcode = CqeOpcode::RESPONDER_SEND;
const NO_PACKET: CqeOpcode = CqeOpcode::NO_PACKET;

#[test]
fn changes_of_the_list_complete_if_asked_for() {
    let mut tags = Tags::new();
    tags.append(1, 1, 64);
    assert_eq!(tags.run(), [], "no completion was asked for");
    let remove = |index| Change {
        operation: Change::OPERATION_REMOVE,
        flags: Change::FLAG_COMPLETION,
        index: U16::new(index),
        ..Change::default()
    };
    for (place, success) in [(0, TagReport::SUCCESS), (0, 0), (999, 0)] {
        tags.change(remove(place), None);
        let done = one(tags.run());
        assert_eq!((done.opcode, done.event), (NO_PACKET, TagEvent::REMOVE));
        assert_eq!(done.report(), (success, 0), "entry {place}");
    }
    let done = tags.report(0);
    assert_eq!((done.event, done.report()), (TagEvent::NOOP, (TagReport::SUCCESS, 0)));
    let mut append = Change { operation: Change::OPERATION_APPEND, ..remove(2) };
    append.index = U16::new(2);
    tags.change(append, None);
    let done = one(tags.run());
    assert_eq!((done.event, done.report()), (TagEvent::APPEND, (TagReport::SUCCESS, 0)));
}

#[test]
fn a_short_message_lands_in_the_buffer_of_its_entry() {
    let mut tags = Tags::new();
    for round in 0..20 {
        tags.append(8, u64::MAX, 64);
        let place = tags.append(7, 7, 64);
        tags.send(TagHeader::EAGER, 0x107, b"hello");
        let done = one(tags.run());
        let expected = event(SEND, TagEvent::CONSUMED_MESSAGE, place, 5);
        assert_eq!(done, Seen { head: header(TagHeader::EAGER, 0x107), ..expected });
        assert_eq!(tags.inbox(0, 5), b"hello");
        // The other entry compares all bits of the tag.
        tags.send(TagHeader::EAGER, 8, &[round; 64]);
        assert_eq!(one(tags.run()).bytes, 64);
        assert_eq!(tags.inbox(0, 64), [round; 64]);
    }
}

#[test]
fn a_message_without_data_needs_no_buffer() {
    let mut tags = Tags::new();
    tags.append(7, 7, 0);
    tags.send(TagHeader::EAGER, 7, &[]);
    assert_eq!(one(tags.run()).bytes, 0);
    tags.append(7, 7, 0);
    tags.send(TagHeader::EAGER, 7, &[1]);
    assert_eq!(one(tags.run()).event, TagEvent::CANCELED);
}

#[test]
fn a_long_message_completes_twice() {
    let mut tags = Tags::new();
    let data: Vec<u8> = (0..3000).map(|n| n as u8).collect();
    let place = tags.append(7, 7, 3000);
    tags.send(TagHeader::EAGER, 7, &data);
    let first = event(NO_PACKET, TagEvent::CONSUMED, place, 0);
    let first = Seen { head: header(TagHeader::EAGER, 7), ..first };
    assert_eq!(tags.run(), [first, event(SEND, TagEvent::EXPECTED, place, 3000)]);
    assert_eq!(tags.inbox(0, 3000), data);
}

#[test]
fn other_messages_take_receives_of_the_queue_with_their_headers() {
    let mut tags = Tags::new();
    tags.post_receives(4);
    tags.append(7, 7, 64);
    let cases = [
        (TagHeader::EAGER, TagEvent::UNEXPECTED),
        (TagHeader::NO_TAG, TagEvent::NO_TAG),
        (TagHeader::FIN, TagEvent::NO_TAG),
        (TagHeader::RENDEZVOUS, TagEvent::UNEXPECTED),
    ];
    for (index, (operation, expected)) in cases.into_iter().enumerate() {
        tags.send(operation, 6, b"unknown");
        let done = one(tags.run());
        assert_eq!(done, Seen { index: index as u16, ..event(SEND, expected, 0, 23) });
        assert_eq!(tags.inbox(4096, 16), header(operation, 6).as_bytes());
        assert_eq!(tags.inbox(4096 + 16, 7), b"unknown");
    }
    tags.post_receives(1);
    tags.pair.post(0, &Wr::send().inline(&[TagHeader::EAGER; 15]));
    assert_eq!(one(tags.run()).event, TagEvent::NO_TAG, "too short for a header");
    assert_eq!(tags.report(0).report().1, 2, "messages without a tag are not unexpected");
}

#[test]
fn entries_wait_until_software_has_handled_unexpected_messages() {
    let mut tags = Tags::new();
    tags.post_receives(3);
    let before = tags.append(7, 7, 64);
    tags.send(TagHeader::EAGER, 1, &[]);
    tags.append(7, 7, 64);
    tags.append(2, 7, 64);
    assert_eq!(one(tags.run()).event, TagEvent::UNEXPECTED);
    tags.send(TagHeader::EAGER, 7, &[]);
    assert_eq!(one(tags.run()).place, before, "it was there before");
    tags.send(TagHeader::EAGER, 7, &[]);
    assert_eq!(one(tags.run()).event, TagEvent::UNEXPECTED, "it may belong to the first");
    assert_eq!(tags.report(1).report().1, 2);
    tags.send(TagHeader::EAGER, 2, &[]);
    assert_eq!(one(tags.run()).event, TagEvent::UNEXPECTED, "one is not handled");
    assert_eq!(tags.report(3).report().1, 3);
    tags.send(TagHeader::EAGER, 2, &[]);
    assert_eq!(one(tags.run()).event, TagEvent::CONSUMED_MESSAGE);
}

#[test]
fn a_message_that_waits_for_a_receive_is_counted_once() {
    let mut tags = Tags::new();
    tags.send(TagHeader::EAGER, 1, &[]);
    assert_eq!(tags.run(), []);
    tags.post_receives(1);
    tags.pair.world.pass(10_000_000, &mut |_| Fate::Pass);
    assert_eq!(one(tags.seen()).event, TagEvent::UNEXPECTED);
    assert_eq!(tags.report(1).report().1, 1);
}

#[test]
fn a_message_longer_than_the_buffer_is_refused() {
    for len in [65, 3000] {
        let mut tags = Tags::new();
        let place = tags.append(7, 7, 64);
        tags.send(TagHeader::EAGER, 7, &vec![1; len]);
        let done = tags.run();
        let canceled = event(NO_PACKET, TagEvent::CANCELED, place, 0);
        assert_eq!(done.last(), Some(&canceled), "{done:?}");
        assert_eq!(tags.pair.one(0).syndrome, Some(Syndrome::REMOTE_INVALID_REQUEST));
        assert_eq!(tags.pair.state(1), QpState::Error);
    }
}

#[test]
fn the_device_reads_the_data_of_a_rendezvous() {
    for len in [0u32, 1, 4000] {
        let mut tags = Tags::new();
        let answers = tags.pair.host(0).region(64, ALL);
        tags.pair.post_receive(0, answers);
        let data: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        tags.pair.world.hosts[0].memory_write(tags.outbox.address + 4096, &data);
        let place = tags.append(7, 7, 4096);
        let rkey = tags.outbox.key.0;
        tags.rendezvous(7, len, rkey);
        let first = event(NO_PACKET, TagEvent::CONSUMED, place, 0);
        let first = Seen { head: header(TagHeader::RENDEZVOUS, 7), ..first };
        assert_eq!(tags.run(), [first, event(SEND, TagEvent::EXPECTED, place, len)]);
        assert_eq!(tags.inbox(0, len.into()), data);
        let sent = tags.pair.poll(0);
        assert_eq!(sent.iter().map(|done| done.bytes).collect::<Vec<_>>(), [32, 32]);
        assert_eq!(sent[1].opcode, CqeOpcode::RESPONDER_SEND);
        let fin = tags.pair.host(0).bytes(answers.address, 32);
        let request = tags.pair.host(0).bytes(tags.outbox.address, 32);
        assert_eq!((fin[0], &fin[1..]), (TagHeader::FIN, &request[1..]));
        assert_eq!(tags.pair.poll(1), [], "the device's own requests do not complete");
    }
}

#[test]
fn rendezvous_that_the_device_cannot_serve_are_left_to_software() {
    for (sends, capacity) in [(true, 4096), (false, 99)] {
        let mut tags = Tags::with(sends);
        let place = tags.append(7, 7, capacity);
        let rkey = tags.outbox.key.0;
        tags.rendezvous(7, 100, rkey);
        let expected = TagEvent::CONSUMED_MESSAGE_SOFTWARE_RENDEZVOUS;
        let expected = event(SEND, expected, place, 32);
        assert_eq!(one(tags.run()), Seen { head: header(TagHeader::RENDEZVOUS, 7), ..expected });
        let request = tags.pair.host(0).bytes(tags.outbox.address, 32);
        assert_eq!(tags.inbox(0, 32), request);
    }
}

#[test]
fn a_malformed_rendezvous_is_refused() {
    for len in [0usize, 15, 49, 2000] {
        let mut tags = Tags::new();
        tags.append(7, 7, 4096);
        tags.send(TagHeader::RENDEZVOUS, 7, &vec![0; len]);
        assert_eq!(tags.run(), [], "the entry stays");
        assert_eq!(tags.pair.one(0).syndrome, Some(Syndrome::REMOTE_INVALID_REQUEST));
    }
}

#[test]
fn a_rendezvous_that_fails_is_canceled() {
    let mut tags = Tags::new();
    let place = tags.append(7, 7, 4096);
    tags.rendezvous(7, 100, 0x1234_5600);
    let done = tags.run();
    assert_eq!(done[1..], [event(NO_PACKET, TagEvent::CANCELED, place, 0)]);
    assert_eq!(tags.pair.state(1), QpState::Error);
    let again = Change { operation: Change::OPERATION_APPEND, ..Change::default() };
    for _ in 0..(1 << LOG_TAGS) - 1 {
        tags.append(1, 1, 0);
    }
    tags.change(again, None);
    tags.pair.world.run_until_idle();
    assert_eq!(tags.pair.world.hosts[1].state(&tags.command), QpState::ReadyToSend);
}

#[test]
fn matched_messages_are_canceled_with_their_connection() {
    type End = fn(&mut Core, Qpn);
    let ends: [End; 3] = [
        |core, qpn| core.destroy_qp(qpn).unwrap(),
        |core, qpn| core.modify_qp(qpn, QpState::Reset, &QpAttributes::default()).unwrap(),
        |core, qpn| core.modify_qp(qpn, QpState::Error, &QpAttributes::default()).unwrap(),
    ];
    for end in ends {
        for eager in [true, false] {
            let mut tags = Tags::new();
            let place = tags.append(7, 7, 4096);
            tags.run();
            let rkey = tags.outbox.key.0;
            if eager {
                tags.send(TagHeader::EAGER, 7, &[1; 4000]);
            } else {
                tags.rendezvous(7, 4000, rkey);
            }
            // The first packet arrives, and nothing after it.
            let mut left = 1;
            tags.pair.world.run_until_idle_with(&mut |_| {
                left -= 1;
                if left >= 0 { Fate::Pass } else { Fate::Drop }
            });
            assert_eq!(one(tags.seen()).event, TagEvent::CONSUMED);
            let qpn = tags.pair.qps[1].qpn;
            end(&mut tags.pair.world.hosts[1].core, qpn);
            assert_eq!(tags.seen(), [event(NO_PACKET, TagEvent::CANCELED, place, 0)]);
        }
    }
}

#[test]
fn a_tag_matching_queue_goes_after_its_users() {
    let mut tags = Tags::new();
    let (srqn, cqn) = (tags.srq.srqn, tags.cq.cqn);
    let core = &mut tags.pair.world.hosts[1].core;
    for qpn in [tags.command.qpn, tags.pair.qps[1].qpn] {
        assert!(core.destroy_srq(srqn).is_err());
        core.destroy_qp(qpn).unwrap();
    }
    assert!(core.destroy_cq(cqn).is_err());
    core.destroy_srq(srqn).unwrap();
    core.destroy_cq(cqn).unwrap();
}

#[test]
fn messages_match_in_order_on_a_lossy_wire() {
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let mut tags = Tags::new();
        let answers = tags.pair.host(0).region(64, ALL);
        let rkey = tags.outbox.key.0;
        let mut fate = Prng::new(!seed);
        for _ in 0..30 {
            tags.post_receives(1);
            tags.pair.post_receive(0, answers);
            let (tag, sent) = (prng.below(3), prng.below(3));
            let len = prng.below(3000) as u32;
            let place = tags.append(tag, 3, 4096);
            match prng.below(2) {
                0 => tags.rendezvous(sent, len, rkey),
                _ => tags.send(TagHeader::EAGER, sent, &vec![sent as u8; len as usize]),
            }
            tags.pair.world.pass(2_000_000_000, &mut |_| match fate.below(8) {
                0 => Fate::Drop,
                1 => Fate::Twice,
                _ => Fate::Pass,
            });
            let done = tags.seen();
            let last = done.last().unwrap();
            if tag == sent {
                assert_eq!((last.place, last.bytes), (place, len), "{done:?}");
            } else {
                assert_eq!(last.event, TagEvent::UNEXPECTED);
                // A later round would find the entry.
                let remove = Change { operation: Change::OPERATION_REMOVE, ..Change::default() };
                tags.change(Change { index: U16::new(place), ..remove }, None);
                let unexpected = tags.report(0).report().1;
                tags.report(unexpected);
            }
        }
        assert_eq!(tags.pair.state(1), QpState::ReadyToSend);
    }
}

#[test]
fn headers_are_not_lost_by_compression() {
    let mut tags = Tags::new();
    tags.pair.world.hosts[1].core.compress(tags.cq.cqn, MiniCqeFormat::HASH).unwrap();
    tags.post_receives(2);
    for tag in [1, 2] {
        tags.append(tag, u64::MAX, 64);
        tags.send(TagHeader::EAGER, tag, &[]);
    }
    let heads: Vec<TagHeader> = tags.run().iter().map(|seen| seen.head).collect();
    assert_eq!(heads, [1, 2].map(|tag| header(TagHeader::EAGER, tag)));
}

#[test]
fn only_queue_pairs_without_sends_have_the_rendezvous_offload() {
    let mut tags = Tags::new();
    let host = &mut tags.pair.world.hosts[1];
    let mut params = host.qp_params(QpType::Rc, &tags.cq, &tags.cq);
    (params.receive, params.rendezvous) = (ReceiveSource::Srq(tags.srq.srqn), true);
    assert!(matches!(host.core.create_qp(params.clone()), Err(CoreError::BadParameter { .. })));
    params.send_ring = None;
    host.core.create_qp(params).unwrap();
}

#[test]
fn only_command_qps_of_tag_matching_srqs_change_lists() {
    let mut pair = Pair::new(QpType::Rc);
    let raw = Change::default().as_bytes().to_vec();
    pair.post(0, &Wr { raw, ..Wr::new(Opcode::TAG_MATCHING) });
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::LOCAL_QP_OPERATION));

    let mut tags = Tags::new();
    let host = &mut tags.pair.world.hosts[1];
    let mut params = host.qp_params(QpType::Ud, &tags.cq, &tags.cq);
    params.receive = ReceiveSource::Srq(tags.srq.srqn);
    assert!(host.core.create_qp(params).is_err());
    // There is no entry after the last place.
    let append = Change { operation: Change::OPERATION_APPEND, ..Change::default() };
    tags.change(Change { index: U16::new(1 << LOG_TAGS), ..append }, None);
    tags.pair.world.run_until_idle();
    assert_eq!(tags.pair.world.hosts[1].state(&tags.command), QpState::Error);
}
