//! Generates legal WQEs from random bytes, for these tests and for the fuzz targets
//! (`testing/fuzz/harness` includes this file).

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::*;
use uverbs_mlx5_inspect::{EthData, Segment, Service, Wqe};

/// The opcodes that verbs programs post.
pub(crate) const OPCODES: [Opcode; 13] = [
    Opcode::NOP,
    Opcode::SEND,
    Opcode::SEND_IMMEDIATE,
    Opcode::SEND_INVALIDATE,
    Opcode::RDMA_WRITE,
    Opcode::RDMA_WRITE_IMMEDIATE,
    Opcode::RDMA_READ,
    Opcode::ATOMIC_COMPARE_SWAP,
    Opcode::ATOMIC_FETCH_ADD,
    Opcode::ATOMIC_MASKED_COMPARE_SWAP,
    Opcode::ATOMIC_MASKED_FETCH_ADD,
    Opcode::UMR,
    Opcode::TSO,
];

/// A WQE without findings on a queue of this service.
pub(crate) fn legal_wqe(u: &mut Unstructured<'_>, service: Service) -> Result<Wqe> {
    let opcode = *u.choose(&OPCODES)?;
    let opcode = if service.allows(opcode) { opcode } else { Opcode::SEND };
    let wqe = Wqe::new(opcode, u.arbitrary()?, u.int_in_range(0..=0xff_ffff)?);
    let wqe = wqe.flags(flags(u)?);
    match opcode {
        Opcode::NOP => Ok(wqe),
        Opcode::UMR => umr(u, wqe),
        _ if service == Service::RawEthernet => packet(u, wqe, opcode == Opcode::TSO),
        _ => message(u, wqe, service, opcode),
    }
    .map(Wqe::sealed)
}

fn flags(u: &mut Unstructured<'_>) -> Result<ControlFlags> {
    let completion = if u.arbitrary()? { ControlFlags::COMPLETION } else { ControlFlags::NONE };
    Ok(completion.with_fence(*u.choose(&[Fence::NONE, Fence::SMALL])?))
}

fn message(
    u: &mut Unstructured<'_>,
    mut wqe: Wqe,
    service: Service,
    opcode: Opcode,
) -> Result<Wqe> {
    if opcode.has_immediate() || opcode == Opcode::SEND_INVALIDATE {
        wqe = wqe.immediate(u.int_in_range(1..=u32::MAX)?);
    }
    if service == Service::Xrc {
        wqe = wqe.with(XrcSegment::new(u.int_in_range(0..=0xff_ffff)?));
    }
    if service.has_address() {
        wqe = wqe.with(address(u)?);
    }
    if opcode.has_remote_address() {
        wqe = wqe.with(RemoteAddressSegment::new(u.arbitrary::<u64>()? & !7, u.arbitrary()?));
    }
    let wqe = operands(u, wqe, opcode)?;
    payload(u, wqe, opcode)
}

fn address(u: &mut Unstructured<'_>) -> Result<AddressVector> {
    let av = AddressVector {
        remote_mac: u.arbitrary()?,
        remote_gid: u.arbitrary()?,
        hop_limit: 64,
        remote_lid_udp_port: U16::new(u.int_in_range(1..=u16::MAX)?),
        grh_gid_flow: U32::new(if u.arbitrary()? { AddressVector::GRH | 3 << 20 } else { 0 }),
        ..AddressVector::default()
    };
    Ok(av.for_datagram(u.int_in_range(0..=0xff_ffff)?, u.arbitrary()?))
}

fn operands(u: &mut Unstructured<'_>, wqe: Wqe, opcode: Opcode) -> Result<Wqe> {
    let [a, b, c, d]: [u64; 4] = match opcode.is_atomic() {
        true => u.arbitrary()?,
        false => [0; 4],
    };
    Ok(match opcode {
        Opcode::ATOMIC_COMPARE_SWAP => wqe.with(AtomicSegment::compare_swap(a, b)),
        Opcode::ATOMIC_FETCH_ADD => wqe.with(AtomicSegment::fetch_add(a)),
        Opcode::ATOMIC_MASKED_COMPARE_SWAP => {
            masked_compare_swap(wqe, u.arbitrary()?, [a, b, c, d])
        }
        Opcode::ATOMIC_MASKED_FETCH_ADD => masked_fetch_add(wqe, u.arbitrary()?, a, b),
        _ => wqe,
    })
}

fn masked_compare_swap(wqe: Wqe, is_wide: bool, values: [u64; 4]) -> Wqe {
    if is_wide {
        let [swap, compare, swap_mask, compare_mask] = values.map(U64::new);
        let segment = MaskedCompareSwap64 { swap, compare, swap_mask, compare_mask };
        return wqe.modifier(extended_atomic_modifier(3)).with(segment);
    }
    let [swap, compare, swap_mask, compare_mask] = values.map(|value| U32::new(value as u32));
    let segment = MaskedCompareSwap32 { swap, compare, swap_mask, compare_mask };
    wqe.modifier(extended_atomic_modifier(2)).with(segment)
}

fn masked_fetch_add(wqe: Wqe, is_wide: bool, add: u64, boundary: u64) -> Wqe {
    if is_wide {
        let segment = MaskedFetchAdd64 { add: U64::new(add), field_boundary: U64::new(boundary) };
        return wqe.modifier(extended_atomic_modifier(3)).with(segment);
    }
    let segment = MaskedFetchAdd32 {
        add: U32::new(add as u32),
        field_boundary: U32::new(boundary as u32),
        ..MaskedFetchAdd32::default()
    };
    wqe.modifier(extended_atomic_modifier(2)).with(segment)
}

/// Data segments, which together do not exceed the largest message.
fn payload(u: &mut Unstructured<'_>, mut wqe: Wqe, opcode: Opcode) -> Result<Wqe> {
    if opcode.is_atomic() {
        let size = extended_atomic_size(wqe.control.opcode_modifier()).unwrap_or(8) as u32;
        let address = u.int_in_range(0..=1 << 60)?;
        return Ok(wqe.with(DataSegment::new(address, size, u.arbitrary()?)));
    }
    if opcode != Opcode::RDMA_READ && u.arbitrary()? {
        let length = u.int_in_range(1..=700)?;
        let mut bytes = vec![0; length];
        u.fill_buffer(&mut bytes)?;
        wqe.segments.push(Segment::inline(&bytes));
        return Ok(wqe);
    }
    for _ in 0..u.int_in_range(0..=20)? {
        let length = u.int_in_range(1..=1 << 25)?;
        let entry = DataSegment::new(u.int_in_range(0..=1 << 60)?, length, u.arbitrary()?);
        wqe = wqe.with(entry);
    }
    Ok(wqe)
}

fn packet(u: &mut Unstructured<'_>, wqe: Wqe, tso: bool) -> Result<Wqe> {
    let length = if tso { u.int_in_range(14..=100)? } else { u.int_in_range(0..=30)? };
    let mut header = vec![0; length];
    u.fill_buffer(&mut header)?;
    let segment = EthSegment {
        checksum_flags: if u.arbitrary()? { EthChecksum::IP_CSUM } else { EthChecksum::NONE },
        mss: U16::new(if tso { u.int_in_range(1..=9000)? } else { 0 }),
        ..EthSegment::default()
    };
    payload(u, wqe.with(EthData::new(segment, &header)), Opcode::SEND)
}

fn umr(u: &mut Unstructured<'_>, wqe: Wqe) -> Result<Wqe> {
    let control = UmrControlSegment {
        flags: UmrControlSegment::FLAG_INLINE,
        klm_octowords: U16::new(4),
        mkey_mask: U64::new(UmrControlSegment::MASK_FREE),
        ..UmrControlSegment::default()
    };
    let context =
        MkeyContextSegment { qpn_mkey: U32::new(u.arbitrary()?), ..MkeyContextSegment::default() };
    let mut wqe = wqe.immediate(u.int_in_range(1..=u32::MAX)?).with(control).with(context);
    for _ in 0..4 {
        wqe = wqe.with(Klm {
            byte_count: U32::new(u.int_in_range(1..=1 << 30)?),
            // 0x400 here would mean that the translation is interleaved.
            mkey: U32::new(u.arbitrary::<u32>()? | 1),
            address: U64::new(u.arbitrary()?),
        });
    }
    Ok(wqe)
}
