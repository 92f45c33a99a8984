//! Posts every legal request: each operation of each service, with every combination of flags,
//! every number of entries and every length of inline data. The resulting WQE must decode to that
//! request, without findings. Illegal requests must be refused.

use uverbs_mlx5::format::{AddressVector, EthChecksum, Fence, Opcode};
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::*;
use uverbs_mlx5_inspect::{
    Buffer, Segment, SendQueueSpec, Service, Severity, Work, Wqe, post_sends,
};

const MAX_SGE: u32 = 16;
const MAX_INLINE: u32 = 300;
const BYTES: [u8; MAX_INLINE as usize] = [0xa5; MAX_INLINE as usize];

/// The data that a request can have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    /// Data in memory or inline.
    Either,
    /// Data in memory.
    Memory,
    /// The buffer of an atomic's result.
    Result,
    Nothing,
}

type Case = (Opcode, RunTimeOperation<'static>, Carries);

fn operations() -> Vec<Case> {
    use RunTimeOperation as O;
    let remote = Remote::new(0x2000, 9);
    let immediate = Immediate([1, 2, 3, 4]);
    let (compare, swap) = (5, 6);
    let (compare_mask, swap_mask) = (!0, !0);
    let masked = MaskedCompareSwap { remote, compare, compare_mask, swap, swap_mask };
    let bind = BindWindow {
        window: 0x100,
        window_type: WindowType::Type2,
        new_rkey: 0x101,
        lkey: 7,
        address: 0x1000,
        length: 64,
        access: WindowAccess::REMOTE_READ,
        zero_based: false,
    };
    let unbind = UnbindWindow { window: 0x101, window_type: WindowType::Type2, new_rkey: 0x102 };
    let offload = EthernetOffload { checksum: EthChecksum::IP_CSUM, ..EthernetOffload::default() };
    let header: &[u8] = &BYTES[..54];
    vec![
        (Opcode::NOP, O::Nop, Carries::Nothing),
        (Opcode::SEND, O::Send, Carries::Either),
        (Opcode::SEND_IMMEDIATE, O::SendImmediate(immediate), Carries::Either),
        (Opcode::SEND_INVALIDATE, O::SendInvalidate(8), Carries::Either),
        (Opcode::RDMA_WRITE, O::Write(remote), Carries::Either),
        (Opcode::RDMA_WRITE_IMMEDIATE, O::WriteImmediate(remote, immediate), Carries::Either),
        (Opcode::RDMA_READ, O::Read(remote), Carries::Memory),
        (
            Opcode::ATOMIC_COMPARE_SWAP,
            O::CompareSwap(CompareSwap { remote, compare, swap }),
            Carries::Result,
        ),
        (Opcode::ATOMIC_FETCH_ADD, O::FetchAdd(FetchAdd { remote, add: 1 }), Carries::Result),
        (Opcode::ATOMIC_MASKED_COMPARE_SWAP, O::MaskedCompareSwap(masked), Carries::Result),
        (
            Opcode::ATOMIC_MASKED_FETCH_ADD,
            O::MaskedFetchAdd(MaskedFetchAdd { remote, add: 1, field_boundary: 0 }),
            Carries::Result,
        ),
        (Opcode::UMR, O::BindWindow(bind), Carries::Nothing),
        (Opcode::UMR, O::UnbindWindow(unbind), Carries::Nothing),
        (Opcode::UMR, O::LocalInvalidate(8), Carries::Nothing),
        (Opcode::SEND, O::Packet(offload), Carries::Either),
        (Opcode::TSO, O::Segmented { offload, mss: 1000, header }, Carries::Memory),
    ]
}

/// Whether the service has the operation. Raw Ethernet has only packets and NOP, and other services
/// have no packets. Only RC, UC and XRC change keys.
fn is_legal(service: Service, (opcode, operation, _): &Case) -> bool {
    use RunTimeOperation as O;
    let raw = service == Service::RawEthernet;
    match operation {
        O::Nop => true,
        O::Packet(_) | O::Segmented { .. } => raw,
        O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_) => {
            matches!(service, Service::Rc | Service::Uc | Service::Xrc)
        }
        _ => !raw && service.allows(*opcode),
    }
}

fn spec(service: Service, min_inline_header: u8) -> SendQueueSpec {
    SendQueueSpec {
        service,
        number: 0x123,
        blocks: 16,
        start: 14,
        small_fence: false,
        signal_all: false,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        min_inline_header,
    }
}

fn destination<'a>(service: Service, address: &'a AddressVector) -> RunTimeDestination<'a> {
    match service {
        Service::Rc | Service::Uc | Service::RawEthernet => RunTimeDestination::Connected,
        Service::Ud => RunTimeDestination::Datagram(address),
        Service::Xrc => RunTimeDestination::Xrc(0x55),
        Service::Dci => RunTimeDestination::Dc(address),
    }
}

/// Posts the request and returns the WQE, or `None` if it was refused.
fn posted(spec: &SendQueueSpec, work: &Work<'_>) -> Option<Wqe> {
    let posted = post_sends(spec, &[*work]).expect("such a queue can be made");
    let [wqe] = &posted.wqes[..] else { return None };
    let decoded = Wqe::decode(&wqe.bytes, spec.service).expect("a WQE");
    assert_eq!(decoded.encode_blocks(), wqe.bytes, "zeros behind: {work:?}");
    Some(decoded)
}

/// Posts the request and checks that the WQE matches it.
fn check(spec: &SendQueueSpec, opcode: Opcode, work: &Work<'_>) {
    let wqe = posted(spec, work).unwrap_or_else(|| panic!("refused: {work:?} on {spec:?}"));
    let found = wqe.findings(spec.service);
    assert!(
        found.iter().all(|finding| finding.severity < Severity::Illegal),
        "{work:?}: {found:?}"
    );
    let flags = wqe.control.flags;
    assert_eq!(wqe.control.opcode(), opcode, "{work:?}");
    assert_eq!(flags.is_signaled(), work.flags.contains(PostFlags::SIGNALED), "{work:?}");
    assert_eq!(flags.is_solicited(), work.flags.contains(PostFlags::SOLICITED), "{work:?}");
    assert_eq!(
        flags.fence() == Fence::SMALL_AND_FENCE,
        work.flags.contains(PostFlags::FENCE),
        "{work:?}"
    );
    let carried: usize = wqe.segments.iter().map(carried).sum();
    let asked: usize = work.data.iter().map(|buffer| buffer.sge.length() as usize).sum();
    if !matches!(opcode, Opcode::NOP | Opcode::UMR | Opcode::TSO) {
        assert_eq!(carried, asked, "{work:?}: {wqe}");
    }
}

/// Bytes of the message that a segment contains or refers to.
fn carried(segment: &Segment) -> usize {
    match segment {
        Segment::Data(data) => data.byte_count.get() as usize,
        Segment::Inline(inline) => {
            assert!(inline.data().iter().all(|byte| *byte == BYTES[0]));
            inline.data().len()
        }
        Segment::Eth(eth) => eth.header().len(),
        _ => 0,
    }
}

fn for_each_legal(mut test: impl FnMut(&SendQueueSpec, &Case, Work<'_>)) {
    let address = AddressVector { remote_lid_udp_port: 4.into(), ..AddressVector::default() };
    let address = address.for_datagram(0x77, 0x1111);
    for service in Service::ALL {
        for case in operations().iter().filter(|case| is_legal(service, case)) {
            let destination = destination(service, &address);
            let operation = case.1;
            let flags = PostFlags::SIGNALED;
            let work = Work { operation, destination, flags, inline: false, data: &[] };
            test(&spec(service, 0), case, work);
        }
    }
}

#[test]
fn flags_and_entries() {
    let entries = [Buffer { sge: Sge::new(0x1000, 8, 7), bytes: &BYTES[..8] }; MAX_SGE as usize];
    let mut checked = 0;
    for_each_legal(|spec, (opcode, _, carries), work| {
        let counts = match carries {
            Carries::Either | Carries::Memory => 0..=MAX_SGE as usize,
            Carries::Result => 1..=1,
            Carries::Nothing => 0..=0,
        };
        for (flags, count) in
            (0..8).flat_map(|flags| counts.clone().map(move |count| (flags, count)))
        {
            let bits = [PostFlags::SIGNALED, PostFlags::SOLICITED, PostFlags::FENCE];
            let chosen = bits.into_iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0);
            let flags = chosen.map(|(_, flag)| flag).collect();
            check(spec, *opcode, &Work { flags, data: &entries[..count], ..work });
            checked += 1;
        }
    });
    assert!(checked > 3000, "{checked}");
}

#[test]
fn inline_data_of_every_length() {
    for_each_legal(|spec, (opcode, _, carries), work| {
        let one =
            |length: u32| Buffer { sge: Sge::new(0, length, 0), bytes: &BYTES[..length as usize] };
        for length in 0..=MAX_INLINE {
            let halves = [one(length / 2), one(0), one(length - length / 2)];
            for data in [&[one(length)][..], &halves] {
                let work = Work { inline: true, data, ..work };
                match carries {
                    Carries::Either => check(spec, *opcode, &work),
                    Carries::Memory | Carries::Result => assert!(posted(spec, &work).is_none()),
                    Carries::Nothing => {}
                }
            }
        }
    });
}

#[test]
fn packets_with_their_headers_inline() {
    let operation = RunTimeOperation::Packet(EthernetOffload::default());
    let destination = RunTimeDestination::Connected;
    let spec = spec(Service::RawEthernet, 18);
    for (length, inline) in (18..=MAX_INLINE).flat_map(|length| [(length, false), (length, true)]) {
        let buffer = Buffer { sge: Sge::new(0x1000, length, 7), bytes: &BYTES[..length as usize] };
        let (flags, data) = (PostFlags::empty(), &[buffer][..]);
        check(&spec, Opcode::SEND, &Work { operation, destination, flags, inline, data });
    }
}

#[test]
fn all_else_is_refused() {
    let address = AddressVector::default();
    let buffer = [Buffer { sge: Sge::new(0x1000, 8, 7), bytes: &BYTES[..8] }];
    for service in Service::ALL {
        for case in operations() {
            let (flags, operation) = (PostFlags::empty(), case.1);
            let of = |service| destination(service, &address);
            let work =
                |destination| Work { operation, destination, flags, inline: false, data: &buffer };
            let taken = posted(&spec(service, 0), &work(of(service))).is_some();
            assert_eq!(taken, is_legal(service, &case), "{operation:?} on {service}");
            for other in Service::ALL {
                let same =
                    std::mem::discriminant(&of(other)) == std::mem::discriminant(&of(service));
                let needs_none = matches!(case.2, Carries::Nothing);
                if !same && !needs_none {
                    let misdirected = posted(&spec(service, 0), &work(of(other)));
                    assert!(misdirected.is_none(), "{operation:?} on {service} to {:?}", of(other));
                }
            }
        }
    }
}
