//! Compares two encoders of requests: the queues, to which programs post, and the inspector's
//! general encoder.
//!
//! This module computes independently, from the rules of public drivers, which requests the queues
//! must refuse, and the WQEs of the others. The bytes must be the same.

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::*;
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::*;
use uverbs_mlx5_inspect::*;

use crate::work::{Request, queue, request};

/// The input chooses a queue and the requests posted to it.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    // An error means that the input was too short to choose from.
    let _ = if u.arbitrary().unwrap_or(true) { sends(&mut u) } else { receives(&mut u) };
}

fn sends(u: &mut Unstructured<'_>) -> Result<()> {
    let spec = queue(u)?;
    let requests =
        (0..u.int_in_range(1..=6)?).map(|_| request(u, &spec)).collect::<Result<Vec<_>>>()?;
    let buffers: Vec<Vec<Buffer<'_>>> = requests.iter().map(Request::buffers).collect();
    let works: Vec<Work<'_>> =
        requests.iter().zip(&buffers).map(|(request, data)| request.work(data)).collect();
    match post_sends(&spec, &works) {
        Ok(posted) => compare(&spec, &works, &posted),
        Err(SpecError::Queue(_)) => {
            let data = (spec.max_inline + 4).div_ceil(16).max(spec.max_sge);
            assert!(data + 1 + overhead(spec.service) > 63 || spec.max_inline > 1023);
        }
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

/// Most octowords before the data.
fn overhead(service: Service) -> u32 {
    match service {
        Service::Rc => 3,
        Service::Uc => 1,
        Service::Ud => 3,
        Service::Xrc => 4,
        Service::Dci => 6,
        Service::RawEthernet => 2,
    }
}

fn compare(spec: &SendQueueSpec, works: &[Work<'_>], posted: &Posted) {
    let mut next = spec.start;
    let mut fence = spec.small_fence;
    let mut wqes = posted.wqes.iter();
    let mut last = Vec::new();
    for (index, work) in works.iter().enumerate() {
        let free = spec.blocks - next.wrapping_sub(spec.start);
        let wqe = expected(spec, work).map(|wqe| in_place(spec, work, wqe, next, fence));
        let fits = |wqe: &Wqe| wqe.octowords() <= 63 && wqe.blocks() as u32 <= free;
        let Some(wqe) = wqe.filter(fits) else {
            let refused = posted.refused.expect("the request cannot be posted, and was");
            assert_eq!(refused.index, index, "{:?}", refused.reason);
            break;
        };
        let refused = posted.refused.filter(|refused| refused.index == index);
        assert_eq!(refused, None, "refused: {wqe}");
        let ours = wqes.next().expect("as many WQEs as requests");
        last = wqe.encode_blocks();
        assert_eq!(ours.bytes, last, "{wqe}");
        assert_eq!(ours.slot, next % spec.blocks);
        assert_legal(&wqe, spec.service);
        next = next.wrapping_add(wqe.blocks() as u32);
        fence = changes_keys(work);
    }
    assert!(wqes.next().is_none());
    assert_eq!(posted.end, next);
    rung(posted, &last);
}

/// Checks the doorbell: one of eight bytes, or a copy of the last WQE; none if nothing was posted.
fn rung(posted: &Posted, last: &[u8]) {
    if last.is_empty() {
        assert!(posted.mmio.is_empty());
        return;
    }
    assert_eq!(posted.doorbell_record, (posted.end & 0xffff).to_be_bytes());
    assert_eq!(posted.mmio.len(), 1);
    let stored = &posted.mmio[0];
    assert!(stored.len() == 8 || stored.len() == last.len());
    assert_eq!(stored[..], last[..stored.len()]);
}

/// Checks that the inspector has no findings about a WQE that a queue posts.
fn assert_legal(wqe: &Wqe, service: Service) {
    let findings = wqe.findings(service);
    // Findings about operands do not count: the program chooses them.
    let meant = |finding: &Finding| finding.text.contains("wrap") || finding.text.contains("GiB");
    let illegal =
        findings.iter().find(|finding| finding.severity == Severity::Illegal && !meant(finding));
    assert_eq!(illegal, None, "{wqe}");
}

pub(crate) fn changes_keys(work: &Work<'_>) -> bool {
    use RunTimeOperation as O;
    matches!(work.operation, O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_))
}

/// The WQE with its index in the queue.
fn in_place(spec: &SendQueueSpec, work: &Work<'_>, wqe: Wqe, index: u32, fence: bool) -> Wqe {
    let mut flags = ControlFlags(work.flags.bits());
    if fence && !work.flags.contains(PostFlags::FENCE) {
        flags = flags.with_fence(Fence::SMALL);
    }
    if spec.signal_all {
        flags = flags.with(ControlFlags::COMPLETION);
    }
    let (opcode, modifier) = (wqe.control.opcode(), wqe.control.opcode_modifier());
    let placed = Wqe::new(opcode, index as u16, spec.number).modifier(modifier).flags(flags);
    let placed = placed.immediate(wqe.control.immediate.get());
    Wqe { segments: wqe.segments, ..placed }.sealed()
}

/// The WQE of a request; `None` if it must be refused.
fn expected(spec: &SendQueueSpec, work: &Work<'_>) -> Option<Wqe> {
    use RunTimeOperation as O;
    let new = |opcode| Wqe::new(opcode, 0, 0);
    if matches!(work.operation, O::Nop) {
        return Some(new(Opcode::NOP));
    }
    if !has_operation(spec.service, &work.operation) {
        return None;
    }
    let wqe = addressed(spec, work)?;
    let wqe = |opcode| Wqe { segments: wqe.segments.clone(), ..new(opcode) };
    let remote = |at: Remote| RemoteAddressSegment::new(at.address, at.rkey);
    let number = |immediate: Immediate| u32::from_be_bytes(immediate.0);
    match work.operation {
        O::Nop => None,
        O::Send => data(spec, work, wqe(Opcode::SEND)),
        O::SendImmediate(imm) => {
            data(spec, work, wqe(Opcode::SEND_IMMEDIATE).immediate(number(imm)))
        }
        O::SendInvalidate(rkey) => data(spec, work, wqe(Opcode::SEND_INVALIDATE).immediate(rkey)),
        O::Write(at) => data(spec, work, wqe(Opcode::RDMA_WRITE).with(remote(at))),
        O::WriteImmediate(at, imm) => {
            let wqe = wqe(Opcode::RDMA_WRITE_IMMEDIATE).immediate(number(imm));
            data(spec, work, wqe.with(remote(at)))
        }
        O::Read(_) if work.data.iter().filter(|buffer| buffer.sge.length() > 0).count() > 30 => {
            None
        }
        O::Read(at) if !work.inline => data(spec, work, wqe(Opcode::RDMA_READ).with(remote(at))),
        O::Read(_) => None,
        O::CompareSwap(op) => {
            let operands = AtomicSegment::compare_swap(op.compare, op.swap);
            let wqe = wqe(Opcode::ATOMIC_COMPARE_SWAP).with(remote(op.remote));
            atomic(work, op.remote, wqe.with(operands))
        }
        O::FetchAdd(op) => {
            let wqe = wqe(Opcode::ATOMIC_FETCH_ADD).with(remote(op.remote));
            atomic(work, op.remote, wqe.with(AtomicSegment::fetch_add(op.add)))
        }
        O::MaskedCompareSwap(op) => {
            let operands = MaskedCompareSwap64 {
                swap: U64::new(op.swap),
                compare: U64::new(op.compare),
                swap_mask: U64::new(op.swap_mask),
                compare_mask: U64::new(op.compare_mask),
            };
            let wqe = wqe(Opcode::ATOMIC_MASKED_COMPARE_SWAP).modifier(9).with(remote(op.remote));
            atomic(work, op.remote, wqe.with(operands))
        }
        O::MaskedFetchAdd(op) => {
            let (add, field_boundary) = (U64::new(op.add), U64::new(op.field_boundary));
            let wqe = wqe(Opcode::ATOMIC_MASKED_FETCH_ADD).modifier(9).with(remote(op.remote));
            atomic(work, op.remote, wqe.with(MaskedFetchAdd64 { add, field_boundary }))
        }
        O::BindWindow(window) => bound(spec, &window),
        O::UnbindWindow(UnbindWindow { window, window_type, new_rkey }) => {
            Some(freed(window, window_type, new_rkey))
        }
        O::LocalInvalidate(key) => Some(freed(key, WindowType::Type2, 0)),
        O::Packet(offload) => packet(spec, work, offload),
        O::Segmented { offload, mss, header } => segments(spec, work, offload, mss, header),
    }
}

/// Whether queues of this service have the operation.
fn has_operation(service: Service, operation: &RunTimeOperation<'_>) -> bool {
    use RunTimeOperation as O;
    let is_connected = matches!(service, Service::Rc | Service::Uc | Service::Xrc | Service::Dci);
    match operation {
        O::Send | O::SendImmediate(_) => is_connected || service == Service::Ud,
        O::Write(_) | O::WriteImmediate(..) => is_connected,
        O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_) => {
            is_connected && service != Service::Dci
        }
        O::Packet(_) | O::Segmented { .. } => service == Service::RawEthernet,
        _ => is_connected && service != Service::Uc,
    }
}

/// A WQE with only the segment of its destination; `None` if the destination does not match the
/// service.
fn addressed(spec: &SendQueueSpec, work: &Work<'_>) -> Option<Wqe> {
    use RunTimeDestination as D;
    let wqe = Wqe::new(Opcode::SEND, 0, 0);
    match (spec.service, work.destination) {
        (Service::Rc | Service::Uc | Service::RawEthernet, D::Connected) => Some(wqe),
        (Service::Ud, D::Datagram(av)) | (Service::Dci, D::Dc(av)) => Some(wqe.with(*av)),
        (Service::Xrc, D::Xrc(srqn)) => Some(wqe.with(XrcSegment::new(srqn))),
        (Service::Xrc, D::Connected) if changes_keys(work) => Some(wqe),
        _ => None,
    }
}

fn data(spec: &SendQueueSpec, work: &Work<'_>, wqe: Wqe) -> Option<Wqe> {
    if work.inline {
        let bytes: Vec<u8> = work.data.iter().flat_map(|buffer| buffer.bytes).copied().collect();
        return inline(spec, &bytes, wqe);
    }
    let list: Vec<Sge> = work.data.iter().map(|buffer| buffer.sge).collect();
    gathered(spec, &list, wqe)
}

fn inline(spec: &SendQueueSpec, bytes: &[u8], mut wqe: Wqe) -> Option<Wqe> {
    if bytes.len() > spec.max_inline as usize {
        return None;
    }
    if !bytes.is_empty() {
        wqe.segments.push(Segment::inline(bytes));
    }
    Some(wqe)
}

fn gathered(spec: &SendQueueSpec, list: &[Sge], mut wqe: Wqe) -> Option<Wqe> {
    if list.len() > spec.max_sge as usize || list.iter().any(|sge| sge.length() >= 1 << 31) {
        return None;
    }
    for sge in list.iter().filter(|sge| sge.length() > 0) {
        wqe = wqe.with(DataSegment::new(sge.address(), sge.length(), sge.lkey()));
    }
    Some(wqe)
}

fn atomic(work: &Work<'_>, at: Remote, wqe: Wqe) -> Option<Wqe> {
    let [Buffer { sge, .. }] = work.data else { return None };
    let legal = !work.inline && sge.length() == 8 && at.address % 8 == 0;
    legal.then(|| wqe.with(DataSegment::new(sge.address(), 8, sge.lkey())))
}

fn bound(spec: &SendQueueSpec, window: &BindWindow) -> Option<Wqe> {
    if !(1..=1 << 31).contains(&window.length) {
        return None;
    }
    let type_2 = window.window_type == WindowType::Type2;
    let control = UmrControlSegment {
        // Inline, with an offset; a window of type 2 must be free.
        flags: 0x80 | 0x10 | if type_2 { 0x20 } else { 0 },
        klm_octowords: U16::new(4),
        // Free, key, length, start, local write, remote read and write, atomic; type 2: owner.
        mkey_mask: U64::new(0x203c_2041 | if type_2 { 0x4000 } else { 0 }),
        ..UmrControlSegment::default()
    };
    let owner = if type_2 { spec.number } else { 0xff_ffff };
    let context = MkeyContextSegment {
        access_flags: window.access.bits(),
        qpn_mkey: U32::new(owner << 8 | window.new_rkey & 0xff),
        start_address: U64::new(if window.zero_based { 0 } else { window.address }),
        length: U64::new(window.length),
        ..MkeyContextSegment::default()
    };
    let klm = Klm {
        byte_count: U32::new(window.length as u32),
        mkey: U32::new(window.lkey),
        address: U64::new(window.address),
    };
    let wqe = Wqe::new(Opcode::UMR, 0, 0).immediate(window.window).with(control).with(context);
    let empty = Klm::default;
    Some(wqe.with(klm).with(empty()).with(empty()).with(empty()))
}

fn freed(key: u32, window_type: WindowType, new_rkey: u32) -> Wqe {
    let type_2 = window_type == WindowType::Type2;
    let control = UmrControlSegment {
        // Inline, with an offset; a window of type 2 must belong to this QP.
        flags: 0x80 | 0x10 | if type_2 { 0x08 } else { 0 },
        // Free, key; type 2: owner.
        mkey_mask: U64::new(0x2000_2000 | if type_2 { 0x4000 } else { 0 }),
        ..UmrControlSegment::default()
    };
    let context = MkeyContextSegment {
        free: 0x40,
        qpn_mkey: U32::new(0xffff_ff00 | new_rkey & 0xff),
        ..MkeyContextSegment::default()
    };
    Wqe::new(Opcode::UMR, 0, 0).immediate(key).with(control).with(context)
}

fn eth_segment(offload: EthernetOffload) -> EthSegment {
    EthSegment {
        checksum_flags: offload.checksum,
        flow_table_metadata: U32::new(offload.metadata),
        ..EthSegment::default()
    }
}

fn packet(spec: &SendQueueSpec, work: &Work<'_>, offload: EthernetOffload) -> Option<Wqe> {
    let wqe = Wqe::new(Opcode::SEND, 0, 0);
    let mut segment = eth_segment(offload);
    if spec.min_inline_header == 0 {
        if let Some(tci) = offload.vlan {
            segment.inline_header_size = U16::new(0x8000);
            segment.inline_header_start = tci.to_be_bytes();
        }
        return data(spec, work, wqe.with(EthData { segment, rest: Vec::new() }));
    }
    let bytes: Vec<u8> = work.data.iter().flat_map(|buffer| buffer.bytes).copied().collect();
    if bytes.len() < 18 || offload.vlan.is_some() || work.data.len() > 63 {
        return None;
    }
    let wqe = wqe.with(EthData::new(segment, &bytes[..18]));
    if work.inline {
        return inline(spec, &bytes[18..], wqe);
    }
    let mut skip = 18;
    let cut = |buffer: &Buffer<'_>| {
        let taken = skip.min(buffer.sge.length());
        skip -= taken;
        let address = buffer.sge.address().wrapping_add(taken.into());
        Sge::new(address, buffer.sge.length() - taken, buffer.sge.lkey())
    };
    let list: Vec<Sge> = work.data.iter().map(cut).collect();
    gathered(spec, &list, wqe)
}

fn segments(
    spec: &SendQueueSpec,
    work: &Work<'_>,
    offload: EthernetOffload,
    mss: u16,
    header: &[u8],
) -> Option<Wqe> {
    let too_short = header.len() < 14.max(spec.min_inline_header.into());
    let too_long = header.len().saturating_sub(2) > spec.max_inline as usize;
    if work.inline || too_short || too_long || mss == 0 || offload.vlan.is_some() {
        return None;
    }
    let segment = EthSegment { mss: U16::new(mss), ..eth_segment(offload) };
    let list: Vec<Sge> = work.data.iter().map(|buffer| buffer.sge).collect();
    gathered(spec, &list, Wqe::new(Opcode::TSO, 0, 0).with(EthData::new(segment, header)))
}

fn receives(u: &mut Unstructured<'_>) -> Result<()> {
    let (log_entries, log_stride) = (u.int_in_range(0..=6)?, u.int_in_range(4..=9)?);
    let (entries, stride) = (1 << log_entries, 1 << log_stride);
    let spec = RecvQueueSpec { entries, stride, start: u.arbitrary()?, striding: false };
    let entry = |u: &mut Unstructured<'_>| {
        let length = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=9)? };
        Ok(Sge::new(u.arbitrary()?, length, u.arbitrary()?))
    };
    let mut lists: Vec<Vec<Sge>> = Vec::new();
    for _ in 0..u.int_in_range(1..=8)? {
        let count = u.int_in_range(0..=6)?;
        lists.push((0..count).map(|_| entry(u)).collect::<Result<_>>()?);
    }
    let borrowed: Vec<&[Sge]> = lists.iter().map(Vec::as_slice).collect();
    let posted = post_receives(&spec, &borrowed).expect("the queue can be made");
    for (index, list) in lists.iter().enumerate() {
        let max_sge = spec.stride as usize / OCTOWORD;
        let illegal = list.len() > max_sge || list.iter().any(|sge| sge.length() >= 1 << 31);
        if illegal || index as u32 == spec.entries {
            assert_eq!(posted.refused.map(|refused| refused.index), Some(index));
            assert_eq!(posted.wqes.len(), index);
            return Ok(());
        }
        let full = list.iter().filter(|sge| sge.length() > 0);
        let full = full.map(|sge| DataSegment::new(sge.address(), sge.length(), sge.lkey()));
        let wqe = ReceiveWqe::new(&full.collect::<Vec<_>>(), spec.stride as usize);
        // Up to the terminator: the device reads nothing after it.
        let used = (wqe.list().len() + 1).min(max_sge) * OCTOWORD;
        assert_eq!(posted.wqes[index].bytes[..used], wqe.encode()[..used], "{wqe}");
        let meant = |finding: &Finding| finding.text.contains("wrap");
        assert!(wqe.findings().iter().all(meant), "{wqe}");
    }
    assert_eq!(posted.refused, None);
    assert_eq!(posted.end, spec.start.wrapping_add(lists.len() as u32));
    Ok(())
}
