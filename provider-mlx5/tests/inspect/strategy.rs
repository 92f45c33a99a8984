//! Strategies for legal WQEs of every service and opcode.

use proptest::collection::vec;
use proptest::prelude::*;
use uverbs_mlx5::format::*;
use uverbs_mlx5::inspect::{EthData, Segment, Service, Wqe};

pub(crate) fn service() -> impl Strategy<Value = Service> {
    prop::sample::select(Service::ALL.as_slice())
}

/// A legal WQE, with the service of its queue.
pub(crate) fn wqe() -> impl Strategy<Value = (Service, Wqe)> {
    service().prop_flat_map(|service| {
        prop::sample::select(opcodes(service))
            .prop_flat_map(move |opcode| of_opcode(service, opcode))
            .prop_map(move |wqe| (service, wqe))
    })
}

/// The opcodes of verbs that a service has.
pub(crate) fn opcodes(service: Service) -> Vec<Opcode> {
    let verbs = [
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
    verbs.into_iter().filter(|opcode| service.allows(*opcode)).collect()
}

fn of_opcode(service: Service, opcode: Opcode) -> BoxedStrategy<Wqe> {
    match opcode {
        Opcode::NOP => (any::<u16>(), 0u32..1 << 24)
            .prop_map(|(index, qpn)| Wqe::new(Opcode::NOP, index, qpn).sealed())
            .boxed(),
        Opcode::UMR => umr().boxed(),
        Opcode::SEND | Opcode::TSO if service == Service::RawEthernet => packet(opcode).boxed(),
        _ => message(service, opcode).boxed(),
    }
}

fn control(opcode: Opcode) -> impl Strategy<Value = Wqe> {
    let fence = prop::sample::select(vec![Fence::NONE, Fence::SMALL]);
    (any::<u16>(), 0u32..1 << 24, any::<bool>(), fence).prop_map(
        move |(index, qpn, signaled, fence)| {
            let completion = if signaled { ControlFlags::COMPLETION } else { ControlFlags::NONE };
            Wqe::new(opcode, index, qpn).flags(completion.with_fence(fence))
        },
    )
}

fn message(service: Service, opcode: Opcode) -> impl Strategy<Value = Wqe> {
    let parts = (control(opcode), 1u32.., address(), 0u32..1 << 24, remote());
    (parts, operands(opcode), payload(opcode)).prop_map(
        move |((wqe, immediate, address, srqn, remote), (modifier, operands), data)| {
            let mut wqe = wqe.modifier(modifier);
            if opcode.has_immediate() || opcode == Opcode::SEND_INVALIDATE {
                wqe = wqe.immediate(immediate);
            }
            if service == Service::Xrc {
                wqe = wqe.with(XrcSegment::new(srqn));
            }
            if service.has_address() {
                wqe = wqe.with(address);
            }
            if opcode.has_remote_address() {
                wqe = wqe.with(remote);
            }
            wqe.segments.extend(operands);
            wqe.segments.extend(data);
            wqe.sealed()
        },
    )
}

fn remote() -> impl Strategy<Value = RemoteAddressSegment> {
    (any::<u64>(), any::<u32>())
        .prop_map(|(address, rkey)| RemoteAddressSegment::new(address & !7, rkey))
}

fn address() -> impl Strategy<Value = AddressVector> {
    (any::<[u8; 6]>(), any::<[u8; 16]>(), 0u32..1 << 24, any::<u32>(), any::<bool>(), 1u16..)
        .prop_map(|(mac, gid, qpn, qkey, grh, lid)| {
            let av = AddressVector {
                remote_mac: mac,
                remote_gid: gid,
                hop_limit: 64,
                remote_lid_udp_port: U16::new(lid),
                grh_gid_flow: U32::new(if grh { AddressVector::GRH | 3 << 20 } else { 0 }),
                ..AddressVector::default()
            };
            av.for_datagram(qpn, qkey)
        })
}

fn operands(opcode: Opcode) -> BoxedStrategy<(u8, Option<Segment>)> {
    let two = (any::<u64>(), any::<u64>());
    match opcode {
        Opcode::ATOMIC_COMPARE_SWAP => {
            two.prop_map(|(a, b)| (0, Some(AtomicSegment::compare_swap(a, b).into()))).boxed()
        }
        Opcode::ATOMIC_FETCH_ADD => {
            two.prop_map(|(a, _)| (0, Some(AtomicSegment::fetch_add(a).into()))).boxed()
        }
        Opcode::ATOMIC_MASKED_COMPARE_SWAP => (any::<bool>(), any::<[u64; 4]>())
            .prop_map(|(wide, value)| masked_compare_swap(wide, value))
            .boxed(),
        Opcode::ATOMIC_MASKED_FETCH_ADD => {
            (any::<bool>(), two).prop_map(|(wide, value)| masked_fetch_add(wide, value)).boxed()
        }
        _ => Just((0, None)).boxed(),
    }
}

fn masked_compare_swap(wide: bool, value: [u64; 4]) -> (u8, Option<Segment>) {
    if wide {
        let [swap, compare, swap_mask, compare_mask] = value.map(U64::new);
        let segment = MaskedCompareSwap64 { swap, compare, swap_mask, compare_mask };
        (extended_atomic_modifier(3), Some(segment.into()))
    } else {
        let [swap, compare, swap_mask, compare_mask] = value.map(|word| U32::new(word as u32));
        let segment = MaskedCompareSwap32 { swap, compare, swap_mask, compare_mask };
        (extended_atomic_modifier(2), Some(segment.into()))
    }
}

fn masked_fetch_add(wide: bool, (add, boundary): (u64, u64)) -> (u8, Option<Segment>) {
    if wide {
        let segment = MaskedFetchAdd64 { add: U64::new(add), field_boundary: U64::new(boundary) };
        (extended_atomic_modifier(3), Some(segment.into()))
    } else {
        let segment = MaskedFetchAdd32 {
            add: U32::new(add as u32),
            field_boundary: U32::new(boundary as u32),
            ..MaskedFetchAdd32::default()
        };
        (extended_atomic_modifier(2), Some(segment.into()))
    }
}

/// Data segments that together stay below the largest message.
fn payload(opcode: Opcode) -> BoxedStrategy<Vec<Segment>> {
    let entry = (0u64..1 << 60, 1u32..1 << 26, any::<u32>());
    let entry = entry.prop_map(|(address, length, lkey)| DataSegment::new(address, length, lkey));
    let entry = entry.prop_map(Segment::from);
    if opcode.is_atomic() {
        let result = (0u64..1 << 60, any::<u32>());
        return result.prop_map(|(at, key)| vec![DataSegment::new(at, 8, key).into()]).boxed();
    }
    let entries = vec(entry, 0..30);
    if opcode == Opcode::RDMA_READ {
        return entries.boxed();
    }
    let inline = vec(any::<u8>(), 1..800).prop_map(|data| vec![Segment::inline(&data)]);
    prop_oneof![entries, inline].boxed()
}

fn packet(opcode: Opcode) -> impl Strategy<Value = Wqe> {
    let header = if opcode == Opcode::TSO { 14..100usize } else { 0..30 };
    let data = payload(Opcode::SEND);
    (control(opcode), vec(any::<u8>(), header), 1u16..9000, any::<bool>(), data).prop_map(
        move |(wqe, header, mss, checksum, data)| {
            let segment = EthSegment {
                checksum_flags: if checksum { EthChecksum::IP_CSUM } else { EthChecksum::NONE },
                mss: U16::new(if opcode == Opcode::TSO { mss } else { 0 }),
                ..EthSegment::default()
            };
            let mut wqe = wqe.with(EthData::new(segment, &header));
            wqe.segments.extend(data);
            wqe.sealed()
        },
    )
}

fn umr() -> impl Strategy<Value = Wqe> {
    let klm = (1u32..1 << 31, any::<u32>(), any::<u64>()).prop_map(|(length, mkey, address)| Klm {
        byte_count: U32::new(length),
        // 0x400 in this place would say that the translation is interleaved.
        mkey: U32::new(mkey | 1),
        address: U64::new(address),
    });
    (control(Opcode::UMR), 1u32.., any::<u32>(), vec(klm, 4)).prop_map(|(wqe, key, qpn, list)| {
        let control = UmrControlSegment {
            flags: UmrControlSegment::FLAG_INLINE,
            klm_octowords: U16::new(4),
            mkey_mask: U64::new(UmrControlSegment::MASK_FREE),
            ..UmrControlSegment::default()
        };
        let context =
            MkeyContextSegment { qpn_mkey: U32::new(qpn), ..MkeyContextSegment::default() };
        let mut wqe = wqe.immediate(key).with(control).with(context);
        wqe.segments.extend(list.into_iter().map(Segment::from));
        wqe.sealed()
    })
}
