//! The bytes of a WQE depend neither on the way of posting nor on the place in the ring.

use uverbs_mlx5::format::{AddressVector, Opcode};
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    Carries, Datagram, EthernetOffload, EthernetSend, Inline, Payload, RawEthernet, Rc, Read,
    RunTimeDestination, RunTimeOperation, Send, SendImmediate, SendRequest, Takes, To, Ud, Write,
    WriteImmediate, framed, segmented,
};

use crate::device::{Cq, Random, Sq, send_queue_of, send_queue_with};
use uverbs_mlx5::queue_state::{QpState, Shape};

const RING: u32 = 16;

/// The ways to post a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Single,
    /// Through a register without BlueFlame, which takes doorbells only.
    DoorbellOnly,
    Batch,
    List,
    /// A list in which a NOP follows the request.
    ListOfTwo,
    Template,
}

const WAYS: [Way; 6] =
    [Way::Single, Way::DoorbellOnly, Way::Batch, Way::List, Way::ListOfTwo, Way::Template];

/// Posts one operation in one way; false if the operation cannot be posted in this way. Generic,
/// because without optimisation the stack frame has space for every copy of a request.
fn typed<O, P>(sq: &mut Sq<Rc>, way: Way, id: u64, request: (O, P, PostFlags)) -> bool
where
    Rc: Carries<O>,
    O: Takes<P, Held = O>,
    P: Payload,
{
    let (operation, payload, flags) = request;
    // SAFETY: no device reads the data.
    unsafe {
        match way {
            Way::Single | Way::DoorbellOnly => sq.queue.post(id, operation, payload, flags),
            Way::Template => match sq.queue.template(operation, payload, flags) {
                Ok(template) => sq.queue.post_template(id, &template),
                Err(_) => return false,
            },
            _ => {
                let mut batch = sq.queue.batch().expect("ready");
                let posted = batch.build(id, operation, payload, flags);
                batch.publish();
                posted
            }
        }
        .expect("space");
    }
    true
}

/// Posts a request in one way; false if it cannot be posted in this way.
fn post(sq: &mut Sq<Rc>, way: Way, request: &SendRequest<'_>, bytes: &[u8]) -> bool {
    use RunTimeOperation as O;
    let (id, flags) = (request.wr_id, request.flags);
    macro_rules! typed {
        ($operation:expr) => {
            match request.inline {
                true => typed(sq, way, id, ($operation, Inline(bytes), flags)),
                false => typed(sq, way, id, ($operation, request.data, flags)),
            }
        };
    }
    if matches!(way, Way::List | Way::ListOfTwo) {
        let nop = SendRequest { operation: O::Nop, data: &[], inline: false, ..*request };
        let list = [*request, nop];
        let count = if way == Way::List { 1 } else { 2 };
        // SAFETY: no device reads the data, and inline data is readable.
        unsafe { sq.queue.post_list(&list[..count]) }.expect("space");
        return true;
    }
    match request.operation {
        O::Send => typed!(Send),
        O::SendImmediate(data) => typed!(SendImmediate(data)),
        O::Write(remote) => typed!(Write(remote)),
        O::WriteImmediate(remote, data) => typed!(WriteImmediate(remote, data)),
        O::Read(remote) => typed(sq, way, id, (Read(remote), request.data, flags)),
        other => panic!("{other:?} is not tested here"),
    }
}

fn operation(random: &mut Random, inline: bool) -> RunTimeOperation<'static> {
    let remote = Remote::new(random.below(1 << 20) as u64, random.below(1 << 20) as u32);
    let data = Immediate::from_u32(random.below(1 << 20) as u32);
    match random.below(if inline { 4 } else { 5 }) {
        0 => RunTimeOperation::Send,
        1 => RunTimeOperation::SendImmediate(data),
        2 => RunTimeOperation::Write(remote),
        3 => RunTimeOperation::WriteImmediate(remote, data),
        _ => RunTimeOperation::Read(remote),
    }
}

/// A queue without requests whose counter is at `head`.
fn queue_at(cq: &Cq, head: u32, half: u32) -> Sq<Rc> {
    let shape = Shape { send_wqebbs: RING, recv_wqes: 0, shared_receive: false };
    let handle = cq.table.register(shape, &cq.monitors(), None, 0).expect("an index");
    handle.set_state(QpState::Rts);
    handle.set_number(0x123);
    let mut sq = send_queue_of(handle, [RING, RING], half, false);
    // SAFETY: nothing was posted.
    unsafe { sq.queue.continue_at(head, false) };
    sq
}

/// The data segments of a request: an inline segment or SGEs, padded to octowords.
fn expected(request: &SendRequest<'_>, bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    if request.inline && !bytes.is_empty() {
        data.extend((0x8000_0000 | bytes.len() as u32).to_be_bytes());
        data.extend(bytes);
    }
    for sge in request.data.iter().filter(|sge| !request.inline && sge.length() != 0) {
        data.extend(sge.length().to_be_bytes());
        data.extend(sge.lkey().to_be_bytes());
        data.extend(sge.address().to_be_bytes());
    }
    data.resize(data.len().next_multiple_of(16), 0);
    data
}

#[test]
fn every_way_of_posting_writes_the_same_bytes_at_every_offset() {
    let cq = Cq::new(16, 64);
    let mut random = Random::new(14);
    let mut templates = 0;
    for round in 0..600_u32 {
        let inline = random.below(2) == 0;
        let length = random.below(201);
        // An allocation of exactly this length, so that sanitizers find a read beyond the end.
        let bytes: Box<[u8]> = (0..length).map(|i| (i + round as usize) as u8 | 1).collect();
        let own = Sge::new(bytes.as_ptr().expose_provenance() as u64, length as u32, 7);
        let sge = |i: usize| Sge::new(i as u64 * 64, (random.below(4) * 64) as u32, 9);
        let sges: Vec<Sge> = (0..round as usize % 9).map(sge).collect();
        let data = if inline { std::slice::from_ref(&own) } else { &sges };
        let flags = PostFlags::from_bits_truncate(random.below(256) as u8);
        let request = SendRequest {
            wr_id: u64::from(round),
            operation: operation(&mut random, inline),
            destination: RunTimeDestination::Connected,
            flags,
            inline,
            data,
        };
        // Every offset in the ring; the 16-bit counter wraps in between.
        let head = (u32::from(u16::MAX) - 20).wrapping_add(round);
        let mut first: Option<(Vec<u8>, u32)> = None;
        for way in WAYS {
            let mut sq = queue_at(&cq, head, if way == Way::DoorbellOnly { 0 } else { 256 });
            if !post(&mut sq, way, &request, &bytes) {
                continue;
            }
            templates += u32::from(way == Way::Template);
            let blocks = sq.queue.head().wrapping_sub(head) - u32::from(way == Way::ListOfTwo);
            let at = |i| (head.wrapping_add(i) % RING) as usize * 64;
            let wqe: Vec<u8> = (0..blocks).flat_map(|i| sq.ring.read(at(i), 64)).collect();
            let ds = usize::from(wqe[7] & 0x3f);
            let wanted = expected(&request, &bytes);
            assert!(ds * 16 >= wanted.len() && ds.div_ceil(4) == blocks as usize, "{way:?}");
            assert_eq!(wqe[ds * 16 - wanted.len()..ds * 16], wanted, "{way:?} {request:?}");
            assert!(wqe[ds * 16..].iter().all(|byte| *byte == 0), "{way:?} leaves old bytes");
            let copied = matches!(way, Way::Single | Way::List | Way::Template) && blocks <= 4;
            if copied {
                assert_eq!(sq.register.read(0, wqe.len()), wqe, "{way:?} to the register");
            }
            match &first {
                None => first = Some((wqe, blocks)),
                Some(first) => {
                    assert_eq!((&wqe, blocks), (&first.0, first.1), "{way:?} {request:?}")
                }
            }
        }
    }
    assert!(templates > 20, "{templates} templates");
}

/// Posts a datagram twice alone, the first time on an unused queue, then in a batch, and compares
/// each WQE's only block with the header.
fn compare_with_header<P: Payload>(cq: &Cq, half: u32, payload: P)
where
    for<'a> To<Datagram<'a>, Send>: Takes<P>,
{
    let av = AddressVector::default().for_datagram(7, 8);
    let mut sq: Sq<Ud> = send_queue_with(cq, RING, half, false);
    let message = To(Datagram(&av), Send);
    // SAFETY: there is no data.
    unsafe {
        for id in 0..2 {
            sq.queue.post(id, message, payload, PostFlags::empty()).expect("space");
        }
        let mut batch = sq.queue.batch().expect("ready");
        batch.build(2, message, payload, PostFlags::empty()).expect("space");
        batch.publish();
    }
    assert_eq!(sq.queue.head(), 3);
    for place in 0..3 {
        let wqe = sq.ring.read(64 * usize::from(place), 64);
        assert_eq!(wqe[..4], [0, 0, place, Opcode::SEND.0]);
        assert_eq!((wqe[7], &wqe[16..]), (4, zerocopy::IntoBytes::as_bytes(&av)));
    }
    if half > 0 {
        assert_eq!(sq.register.read(256, 64), sq.ring.read(64, 64));
    }
}

#[test]
fn a_datagram_without_data_has_one_block() {
    let cq = Cq::new(16, 64);
    for half in [0, 256] {
        compare_with_header(&cq, half, ());
        compare_with_header::<&[Sge]>(&cq, half, &[]);
    }
}

/// Posts an operation alone and in a batch, twice each so that the second time the fast path is
/// open, and compares the octowords behind a header of `header` octowords.
fn compare_data<T, O, P>(cq: &Cq, header: usize, (operation, payload): (O, P), data: &[u8])
where
    T: Carries<O>,
    O: Takes<P>,
    P: Payload,
{
    for head in 0..RING {
        let mut sq: Sq<T> = send_queue_with(cq, RING, 256, false);
        // SAFETY: nothing was posted.
        unsafe { sq.queue.continue_at(head, false) };
        for way in 0..4_u64 {
            let start = sq.queue.head();
            // SAFETY: no device reads the data.
            unsafe {
                if way < 2 {
                    sq.queue.post(way, operation, payload, PostFlags::empty()).expect("space");
                } else {
                    let mut batch = sq.queue.batch().expect("ready");
                    batch.build(way, operation, payload, PostFlags::empty()).expect("space");
                    batch.publish();
                }
            }
            let blocks = sq.queue.head().wrapping_sub(start);
            let at = |i| (start.wrapping_add(i) % RING) as usize * 64;
            let wqe: Vec<u8> = (0..blocks).flat_map(|i| sq.ring.read(at(i), 64)).collect();
            let octowords = header + data.len() / 16;
            assert_eq!((usize::from(wqe[7]), blocks), (octowords, octowords.div_ceil(4) as u32));
            assert_eq!(wqe[16 * header..16 * octowords], *data, "way {way} at {head}");
        }
    }
}

/// As libmlx5 leaves them out: its loops skip SGEs of no length (providers/mlx5/qp.c,
/// `_mlx5_post_send` and `_mlx5_send_wr_set_sge_list`). Recorded vectors have them for RC.
#[test]
fn empty_sges_are_left_out_after_every_header() {
    let cq = Cq::new(16, 64);
    let mut random = Random::new(31);
    let (address, remote) = (AddressVector::default().for_datagram(7, 8), Remote::new(1, 2));
    for round in 0..60_u64 {
        let sge = |i: u64| Sge::new(64 * i, 64 * random.below(2) as u32, 9);
        let sges: Vec<Sge> = (0..round % 5).map(sge).collect();
        let list = SendRequest {
            wr_id: 0,
            operation: RunTimeOperation::Send,
            destination: RunTimeDestination::Connected,
            flags: PostFlags::empty(),
            inline: false,
            data: &sges,
        };
        let data = expected(&list, &[]);
        let sges = sges.as_slice();
        compare_data::<Rc, _, _>(&cq, 2, (Read(remote), sges), &data);
        compare_data::<Ud, _, _>(&cq, 4, (To(Datagram(&address), Send), sges), &data);
        compare_data::<RawEthernet, _, _>(&cq, 2, (EthernetSend::default(), sges), &data);
        let header: &[u8] = &[7; 54];
        // 16 bytes of the Ethernet segment are fields and the header's first two bytes.
        let rest = [&header[2..], &[0; 12][..], &data].concat();
        let packet = segmented(EthernetOffload::default(), 1460, header, sges);
        compare_data::<RawEthernet, _, _>(&cq, 2, packet, &rest);
        let frame = framed(EthernetOffload::default(), header, sges);
        compare_data::<RawEthernet, _, _>(&cq, 2, frame, &rest);
    }
    let one = (Send, Sge::new(1, 0, 2));
    compare_data::<Rc, _, _>(&cq, 1, one, &[]);
    compare_data::<Ud, _, _>(&cq, 4, (To(Datagram(&address), Send), one.1), &[]);
    compare_data::<Rc, _, _>(&cq, 2, (Write(remote), Inline(&[])), &[]);
}

/// Without optimisation, a stack frame has space for every inlined copy of a request.
#[test]
fn a_post_needs_little_stack() {
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let posting = small.spawn(every_way_of_posting_writes_the_same_bytes_at_every_offset);
    posting.expect("a thread").join().expect("no panic");
}
