//! Templates of any length write the bytes of their request, at every place in the ring.

use uverbs_mlx5::format::{AddressVector, EthChecksum};
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{Immediate, PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    Carries, Datagram, EthernetFrame, EthernetOffload, EthernetSendHeader, FetchAdd, Field, Inline,
    LocalInvalidate, Operation, Payload, RawEthernet, Rc, Send, SendImmediate, Takes, Template, To,
    Transport, Ud, Write, framed, template_blocks,
};

use crate::device::{Cq, Cqe, Random, Sq, send_queue, send_queue_with};

const NONE: PostFlags = PostFlags::empty();
const RING: u32 = 64;

/// A queue without requests whose counter is at `head`.
fn queue_at<T: Transport>(cq: &Cq, head: u32, half: u32) -> Sq<T> {
    let mut sq = send_queue_with::<T>(cq, RING, half, false);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(head, false) };
    sq.handle.set_state(QpState::Rts);
    sq
}

/// The requests from `head` on and the register's content, both without the queue's number.
fn posted<T: Transport>(sq: &Sq<T>, head: u32) -> (Vec<u8>, Vec<u8>) {
    let blocks = sq.queue.head().wrapping_sub(head);
    let at = |i| (head.wrapping_add(i) % RING) as usize * 64;
    let mut wqe: Vec<u8> = (0..blocks).flat_map(|i| sq.ring.read(at(i), 64)).collect();
    let mut copy = sq.register.read(0, wqe.len().min(256));
    wqe[4..7].fill(0);
    copy[4..7].fill(0);
    (wqe, copy)
}

/// Posts a request and its template, alone and in a batch, and compares.
fn compare<const BLOCKS: usize, T, O, P>(cq: &Cq, head: u32, operation: O, payload: P)
where
    T: Transport + Carries<O> + Carries<O::Held>,
    O: Operation + Takes<P>,
    P: Payload,
{
    for half in [256, 0] {
        let mut sq = queue_at::<T>(cq, head, half);
        // SAFETY: no device reads the data, here and below.
        unsafe { sq.queue.post(1, operation, payload, NONE) }.expect("space");
        let (wanted, register) = posted(&sq, head);
        let mut maker = queue_at::<T>(cq, 0, half);
        let template = maker.queue.long_template::<BLOCKS, _, _>(operation, payload, NONE);
        if wanted.len() > 64 * BLOCKS {
            assert_eq!(template.map(drop), Err(PostError::NotATemplate));
            continue;
        }
        let template = template.expect("short enough");
        assert_eq!(template.blocks(), wanted.len() / 64);

        let mut sq = queue_at::<T>(cq, head, half);
        // SAFETY: as above.
        unsafe { sq.queue.post_template(2, &template) }.expect("space");
        assert_eq!(posted(&sq, head), (wanted.clone(), register), "alone, {BLOCKS} at {head}");

        let mut sq = queue_at::<T>(cq, head, half);
        let mut batch = sq.queue.batch().expect("ready");
        // SAFETY: as above.
        unsafe {
            batch.build_template(3, &template).expect("space");
            batch.build_template(4, &template).expect("space");
        }
        let end = batch.head();
        batch.publish();
        let (both, _) = posted(&sq, head);
        let (first, second) = both.split_at(wanted.len());
        assert_eq!((first, &second[7..]), (&wanted[..], &wanted[7..]), "batch, {BLOCKS} at {head}");
        let counter = head.wrapping_add(template.blocks() as u32) as u16;
        assert_eq!(second[1..3], counter.to_be_bytes());
        let mut ids = Vec::new();
        sq.queue.for_each_outstanding(|id| ids.push(id));
        assert_eq!((ids, sq.queue.head()), (vec![3, 4], end));

        let mut sq = queue_at::<T>(cq, head, half);
        compare_encoded(&mut sq, head, &wanted);
    }
}

/// Posts an encoded request with a wrong index and queue number, which the queue must replace.
fn compare_encoded<T: Transport>(sq: &mut Sq<T>, head: u32, wanted: &[u8]) {
    let length = usize::from(wanted[7] & 63) * 16;
    let mut encoded = wanted[..length].to_vec();
    encoded[1..3].fill(0xff);
    encoded[4..7].fill(0xff);
    let mut batch = sq.queue.batch().expect("ready");
    // SAFETY: no device reads the data.
    unsafe {
        for wrong in [0, 7, 8, length - 16, length - 1] {
            assert_eq!(batch.build_encoded(5, &encoded[..wrong]), Err(PostError::BadOpcode));
        }
        batch.build_encoded(6, &encoded).expect("space");
    }
    batch.publish();
    let (written, _) = posted(sq, head);
    assert_eq!((&written[..length], written.len()), (&wanted[..length], wanted.len()));
    let number = sq.ring.read(head as usize % RING as usize * 64 + 4, 3);
    assert_ne!(number, [0xff; 3]);
    let mut ids = Vec::new();
    sq.queue.for_each_outstanding(|id| ids.push(id));
    assert_eq!(ids, [6]);
}

#[test]
fn templates_of_every_length_write_the_same_bytes_as_their_requests() {
    let cq = Cq::new(16, 64);
    let mut random = Random::new(31);
    let av = AddressVector::default().for_datagram(7, 8);
    for length in (1..=200).step_by(3) {
        let data: Box<[u8]> = (0..length).map(|i| i as u8 | 1).collect();
        let inline = Inline(&data);
        // The ring's end and the counter's wrap are at a random place of the request.
        let head = 0x1_0000 - random.below(RING as usize) as u32;
        let remote = Remote::new(0x1000, 7);
        compare::<1, Rc, _, _>(&cq, head, Send, inline);
        compare::<2, Rc, _, _>(&cq, head, Write(remote), inline);
        compare::<3, Rc, _, _>(&cq, head, SendImmediate(Immediate::from_u32(9)), inline);
        compare::<4, Rc, _, _>(&cq, head, Write(remote), inline);
        compare::<16, Rc, _, _>(&cq, head, Write(remote), inline);
        compare::<4, Ud, _, _>(&cq, head, To(Datagram(&av), Send), inline);
        let offload = EthernetOffload { checksum: EthChecksum::IP_CSUM, ..Default::default() };
        let header = EthernetSendHeader(offload, &[3; 18]);
        compare::<4, RawEthernet, _, _>(&cq, head, header, inline);
        if length >= 14 {
            let (frame, all) = framed(offload, &data, ());
            compare::<4, RawEthernet, _, _>(&cq, head, frame, all);
            let (frame, with_tail) = framed(offload, &data, Sge::new(1, 2, 3));
            compare::<3, RawEthernet, _, _>(&cq, head, frame, with_tail);
        }
    }
    let sges: Vec<Sge> = (1..=8).map(|i| Sge::new(64 * i, 64, 7)).collect();
    for count in 1..=8 {
        compare::<1, Rc, _, _>(&cq, 60, Send, &sges[..count]);
        compare::<3, Rc, _, _>(&cq, 62, Send, &sges[..count]);
    }
    let result = uverbs_mlx5::send_queue::AtomicResult { address: 64, lkey: 1 };
    let add = FetchAdd { remote: Remote::new(8, 1), add: 2 };
    compare::<1, Rc, _, _>(&cq, 63, add, result);
}

/// Sets a field and compares with a template that was created with the new bytes.
fn set_one<O: Operation, const BLOCKS: usize, const AT: usize, const N: usize>(
    old: &[u8],
    make: impl Fn(&[u8]) -> Template<O, BLOCKS>,
) {
    let field = Field::<N, AT>;
    let bytes: [u8; N] = std::array::from_fn(|i| 0x80 | (AT + i) as u8);
    let mut template = make(old);
    let before: Vec<_> = template.octowords().collect();
    let is_inside = AT + N <= old.len();
    assert_eq!(template.set(field, bytes), is_inside, "{AT} {N} of {}", old.len());
    let mut new = old.to_vec();
    if is_inside {
        new[AT..AT + N].copy_from_slice(&bytes);
    }
    let wanted: Vec<_> = make(&new).octowords().collect();
    let now: Vec<_> = template.octowords().collect();
    assert_eq!(now, wanted, "{AT} {N} of {}", old.len());
    assert!(now != before || !is_inside || N == 0);
}

macro_rules! set_all {
    ($old:expr, $make:expr, $($at:literal $count:literal),* $(,)?) => {
        $(set_one::<_, _, $at, $count>($old, $make);)*
    };
}

#[test]
fn fields_are_set_at_every_offset() {
    let cq = Cq::new(16, 64);
    for length in [1, 16, 44, 45, 100, 150, 200] {
        let old: Box<[u8]> = (0..length).map(|i| i as u8 & 0x7f).collect();
        let make_write = |data: &[u8]| {
            let mut sq = queue_at::<Rc>(&cq, 0, 256);
            let write = Write(Remote::new(1, 2));
            sq.queue.long_template::<4, _, _>(write, Inline(data), NONE).expect("four blocks")
        };
        let make_header = |data: &[u8]| {
            let mut sq = queue_at::<RawEthernet>(&cq, 0, 256);
            let operation = EthernetSendHeader(EthernetOffload::default(), &[1; 18]);
            sq.queue.long_template::<5, _, _>(operation, Inline(data), NONE).expect("five blocks")
        };
        let make_frame = |data: &[u8]| {
            let mut sq = queue_at::<RawEthernet>(&cq, 0, 256);
            let (operation, data) = framed(EthernetOffload::default(), data, Sge::new(1, 2, 3));
            sq.queue.long_template::<4, _, _>(operation, data, NONE).expect("four blocks")
        };
        macro_rules! everywhere {
            ($make:expr) => {
                set_all!(
                    &old, $make, 0 0, 0 1, 0 2, 0 4, 0 6, 1 1, 2 8, 3 16, 4 4, 5 4, 6 4, 6 6, 8 4,
                    10 3, 11 2, 12 4, 12 8, 13 1, 12 16, 12 32, 14 16, 17 1, 18 2, 26 8, 27 7, 28 16, 40 15, 33 33,
                    43 2, 44 1, 60 8, 75 14, 92 8, 99 1, 99 2, 0 100, 0 200, 120 30, 149 1, 142 16,
                    184 16, 192 8, 199 1, 200 1, 1000 8
                );
            };
        }
        everywhere!(make_write);
        everywhere!(make_header);
        if length >= 16 {
            everywhere!(make_frame);
        }
    }
}

#[test]
fn whole_data_and_the_tail_are_replaced() {
    let cq = Cq::new(16, 64);
    let mut sq = queue_at::<Rc>(&cq, 0, 256);
    for length in (1..=200).step_by(3) {
        let (old, new) = (vec![1; length], vec![2; length]);
        let write = Write(Remote::new(1, 2));
        let make = |sq: &mut Sq<Rc>, data: &[u8]| {
            sq.queue.long_template::<4, _, _>(write, Inline(data), NONE).expect("four blocks")
        };
        let (mut template, wanted) = (make(&mut sq, &old), make(&mut sq, &new));
        assert!(template.set_inline(&new));
        assert!(template.octowords().eq(wanted.octowords()), "{length}");
        assert!(!template.set_inline(&new[1..]) && !template.set_inline(&[]));
        assert!(!template.set_sge(Sge::new(1, 2, 3)));
        assert!(template.octowords().eq(wanted.octowords()), "{length}");
    }
    let mut raw = queue_at::<RawEthernet>(&cq, 0, 256);
    let mut make = |sge| {
        let (frame, data) = framed(EthernetOffload::default(), &[7; 60], sge);
        raw.queue.long_template::<2, _, _>(frame, data, NONE).expect("two blocks")
    };
    let (mut template, wanted) = (make(Sge::new(1, 2, 3)), make(Sge::new(4, 5, 6)));
    assert!(template.set_sge(Sge::new(4, 5, 6)));
    assert!(!template.set_sge(Sge::new(4, 0, 6)) && !template.set_inline(&[7; 60]));
    assert!(template.octowords().eq(wanted.octowords()));
    assert_eq!(template_blocks::<EthernetFrame<'_>>(60), template.blocks());
}

#[test]
fn templates_refuse_unsuitable_requests() {
    let cq = Cq::new(16, 64);
    let mut sq = queue_at::<Rc>(&cq, 0, 256);
    let queue = &mut sq.queue;
    let key = queue.long_template::<4, _, _>(LocalInvalidate(1), (), NONE).map(drop);
    assert_eq!(key, Err(PostError::NotATemplate));
    let empty = queue.long_template::<4, _, _>(Send, Inline(&[]), NONE).map(drop);
    assert_eq!(empty, Err(PostError::NotATemplate));
    let none = queue.long_template::<0, _, _>(Send, Inline(&[1]), NONE).map(drop);
    assert_eq!(none, Err(PostError::NotATemplate));
    let long = queue.long_template::<16, _, _>(Send, Inline(&[1; 201]), NONE).map(drop);
    assert_eq!(long, Err(PostError::InlineTooLong));
    let mut raw = queue_at::<RawEthernet>(&cq, 0, 256);
    let frame = |offload, start| framed(offload, start, ());
    let (short, data) = frame(EthernetOffload::default(), &[0; 13]);
    let refused = raw.queue.long_template::<4, _, _>(short, data, NONE).map(drop);
    assert_eq!(refused, Err(PostError::BadHeader));
    let tagged = EthernetOffload { vlan: Some(1), ..Default::default() };
    let (tagged, data) = frame(tagged, &[0; 60]);
    let refused = raw.queue.long_template::<4, _, _>(tagged, data, NONE).map(drop);
    assert_eq!(refused, Err(PostError::VlanWithHeader));
    let (long, data) = frame(EthernetOffload::default(), &[0; 203]);
    let refused = raw.queue.long_template::<4, _, _>(long, data, NONE).map(drop);
    assert_eq!(refused, Err(PostError::InlineTooLong));
}

/// A posted template has the WQE counter of its place: at the wrap of the 16-bit counter, and after
/// batches that were dropped, forgotten or published.
#[test]
fn a_posted_template_has_the_counter_of_its_place() {
    const RING: u32 = 16;
    const END: u32 = 0x6_0000;
    let mut cq = Cq::new(64, 64);
    let mut sq = send_queue::<Rc>(&cq, RING);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(END - 3 * RING, false) };
    let data = Inline(&[7; 8][..]);
    let template = sq.queue.template(Send, data, PostFlags::SIGNALED).expect("one block");
    for turn in 0..120_u32 {
        let requests = turn % 5;
        // SAFETY: inline data is copied, so no memory is shared.
        unsafe {
            let mut batch = sq.queue.batch().expect("ready");
            for _ in 0..requests {
                batch.build(1, Send, data, PostFlags::SIGNALED).expect("space");
            }
            match turn % 3 {
                0 => drop(batch),
                1 => std::mem::forget(batch),
                _ => batch.publish(),
            }
            let at = sq.queue.head();
            sq.queue.post_template(2, &template).expect("space");
            let first = sq.ring.read((at % RING) as usize * 64, 4);
            let [high, low] = (at as u16).to_be_bytes();
            assert_eq!(first, [0, high, low, 0x0a], "turn {turn} at {at:#x}");
        }
        cq.produce(Cqe::send(&sq.handle, sq.queue.head() - 1));
        cq.queue.poll().expect("the last one completes all");
    }
    assert!(sq.queue.head() > END + RING);
}

/// The device takes six bits of a request's length. It would take the blocks behind that for
/// requests, and they have bytes of the packet.
#[test]
fn a_packet_does_not_become_longer_than_a_request() {
    let cq = Cq::new(8, 64);
    let mut raw = queue_at::<RawEthernet>(&cq, 0, 256);
    let (frame, data) = framed(EthernetOffload::default(), &[7; 60], ());
    let template = raw.queue.long_template::<20, _, _>(frame, data, NONE);
    let mut template = template.expect("short enough");
    let longest = 63 * 16 - EthernetFrame::DATA_START;
    assert!(template.set_length(longest));
    for bytes in [longest + 1, 20 * 64 - EthernetFrame::DATA_START, usize::MAX] {
        assert!(!template.set_length(bytes), "{bytes}");
    }
    assert_eq!(template.blocks(), 16);
}

/// With one SGE or several, which would become bytes of the packet.
#[test]
fn a_packet_followed_by_sges_keeps_its_length() {
    let cq = Cq::new(8, 64);
    let mut raw = queue_at::<RawEthernet>(&cq, 0, 256);
    let sges = [Sge::new(1, 2, 3), Sge::new(4, 5, 6), Sge::new(7, 8, 9)];
    for count in 1..=sges.len() {
        let (frame, data) = framed(EthernetOffload::default(), &[7; 40], &sges[..count]);
        let template = raw.queue.long_template::<4, _, _>(frame, data, NONE);
        let mut template = template.expect("short enough");
        let before: Vec<_> = template.octowords().collect();
        assert!(!template.set_length(60), "{count} SGEs");
        assert!(!template.set_length(18), "{count} SGEs");
        assert!(template.octowords().eq(before), "{count} SGEs");
    }
    let (frame, data) = framed(EthernetOffload::default(), &[7; 40], &sges[..0]);
    let template = raw.queue.long_template::<4, _, _>(frame, data, NONE);
    assert!(template.expect("short enough").set_length(60));
}
