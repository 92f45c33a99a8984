//! The flow specifications of a steering rule, which follow the `ibv_flow_attr` of
//! `ibv_create_flow`.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};

use uverbs::flow::{Ethernet, FlowBuilder, FlowKind, Ipv4, Ipv6, Masked, Ports};

use crate::abi::*;
use crate::flow::CounterSet;

/// `enum ibv_flow_spec_type`.
const ETH: u32 = 0x20;
const IPV4: u32 = 0x30;
const IPV6: u32 = 0x31;
const IPV4_EXT: u32 = 0x32;
const TCP: u32 = 0x40;
const UDP: u32 = 0x41;
/// Bit of the type of a header inside another packet.
const INNER: u32 = 0x100;
/// Headers that libibverbs has specifications for, and that are not matched here: ESP, tunnels,
/// GRE, MPLS.
const OTHER_HEADERS: [u32; 6] = [0x34, 0x34 | INNER, 0x50, 0x51, 0x60, 0x60 | INNER];
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
const ACTION_HANDLE: u32 = 0x1002;
const ACTION_COUNT: u32 = 0x1003;
/// `enum ibv_flow_flags`.
const DONT_TRAP: u32 = 1 << 1;
const EGRESS: u32 = 1 << 2;
/// Bytes of the type and size at the head of a specification.
const HEAD: usize = 6;

/// Describes the rule at `attr` to `builder`, or says with which errno it is refused.
///
/// # Safety
/// `attr` is a program's struct, followed by `num_of_specs` specifications.
pub(crate) unsafe fn describe<'q>(
    attr: *const ibv_flow_attr,
    builder: FlowBuilder<'q>,
) -> Result<FlowBuilder<'q>, c_int> {
    // SAFETY: the caller's promise.
    let own = unsafe { *attr };
    let kind = kind(own.r#type).ok_or(libc::EINVAL)?;
    let mut builder = builder.kind(kind).priority(own.priority).port(own.port);
    if own.flags & !(DONT_TRAP | EGRESS) != 0 {
        return Err(libc::EINVAL);
    }
    if own.flags & DONT_TRAP != 0 {
        builder = builder.pass_on();
    }
    if own.flags & EGRESS != 0 {
        builder = builder.egress();
    }
    // SAFETY: the specifications follow the struct.
    let mut at = unsafe { attr.add(1) }.cast::<u8>();
    for _ in 0..own.num_of_specs {
        // SAFETY: each specification says how long it is.
        unsafe {
            let size = at.add(4).cast::<u16>().read_unaligned();
            builder = add_spec(std::slice::from_raw_parts(at, size.into()), builder)?;
            at = at.add(size.into());
        }
    }
    Ok(builder)
}

fn kind(code: u32) -> Option<FlowKind> {
    Some(match code {
        0 => FlowKind::Normal,
        1 => FlowKind::AllDefault,
        2 => FlowKind::MulticastDefault,
        3 => FlowKind::Sniffer,
        _ => return None,
    })
}

/// Adds a specification. The errno is EINVAL if its type is unknown or it is too short.
fn add_spec<'q>(bytes: &[u8], builder: FlowBuilder<'q>) -> Result<FlowBuilder<'q>, c_int> {
    let kind = u32::from_ne_bytes(*bytes.first_chunk().ok_or(libc::EINVAL)?);
    if is_unsupported(kind, bytes) {
        return Err(libc::EOPNOTSUPP);
    }
    added(kind, bytes, builder).ok_or(libc::EINVAL)
}

/// Whether a specification asks for something that is known but not matched here.
fn is_unsupported(kind: u32, bytes: &[u8]) -> bool {
    let is_asked = |mut mask: std::ops::Range<usize>| {
        mask.any(|place| bytes.get(place).is_some_and(|byte| *byte != 0))
    };
    match kind {
        ACTION_HANDLE => true,
        // Time to live and fragments; the hop limit.
        IPV4_EXT => is_asked(30..32),
        IPV6 => is_asked(86..87),
        _ if OTHER_HEADERS.contains(&kind) => true,
        _ => [ETH, IPV4, IPV4_EXT, IPV6, TCP, UDP].contains(&(kind ^ INNER)),
    }
}

/// Adds a specification that is matched here.
fn added<'q>(kind: u32, bytes: &[u8], builder: FlowBuilder<'q>) -> Option<FlowBuilder<'q>> {
    Some(match kind {
        ETH => builder.ethernet(ethernet(bytes.get(HEAD..)?)?),
        IPV4 => builder.ipv4(ipv4(bytes.get(8..)?, 8)?),
        IPV4_EXT => builder.ipv4(ipv4(bytes.get(8..)?, 12)?),
        IPV6 => builder.ipv6(ipv6(bytes.get(8..)?)?),
        TCP => builder.tcp(ports(bytes.get(HEAD..)?)?),
        UDP => builder.udp(ports(bytes.get(HEAD..)?)?),
        ACTION_TAG => builder.tag(u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?)),
        ACTION_DROP => builder.drop_frames(),
        ACTION_COUNT => {
            let address = usize::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
            let counters = std::ptr::with_exposed_provenance(address);
            // SAFETY: a specification of this type names a program's counters.
            builder.count(&unsafe { CounterSet::library(counters) }?)
        }
        _ => return None,
    })
}

/// The value at `offset`, and its mask, which is `mask` bytes after it.
fn masked<const N: usize>(bytes: &[u8], offset: usize, mask: usize) -> Option<Masked<[u8; N]>> {
    let at = |offset: usize| bytes.get(offset..)?.first_chunk().copied();
    Some(Masked::under(at(offset)?, at(offset + mask)?))
}

fn change<T, U>(masked: Masked<T>, change: impl Fn(T) -> U) -> Masked<U> {
    Masked::under(change(masked.value), change(masked.mask))
}

/// `struct ibv_flow_eth_filter` twice: values, then masks.
fn ethernet(bytes: &[u8]) -> Option<Ethernet> {
    Some(Ethernet {
        destination: masked(bytes, 0, 16)?,
        source: masked(bytes, 6, 16)?,
        ether_type: change(masked(bytes, 12, 16)?, u16::from_be_bytes),
        vlan: change(masked(bytes, 14, 16)?, u16::from_be_bytes),
    })
}

/// As [`ethernet`]: `struct ibv_flow_ipv4_filter` or `ibv_flow_ipv4_ext_filter`, of `size` bytes.
fn ipv4(bytes: &[u8], size: usize) -> Option<Ipv4> {
    let address = |offset| Some(change(masked::<4>(bytes, offset, size)?, Ipv4Addr::from));
    let mut fields = Ipv4 { source: address(0)?, destination: address(4)?, ..Ipv4::default() };
    if size > 8 {
        fields.protocol = change(masked::<1>(bytes, 8, size)?, |[byte]| byte);
        fields.type_of_service = change(masked::<1>(bytes, 9, size)?, |[byte]| byte);
    }
    Some(fields)
}

/// As [`ethernet`]: `struct ibv_flow_ipv6_filter`.
fn ipv6(bytes: &[u8]) -> Option<Ipv6> {
    const SIZE: usize = 40;
    let address = |offset| Some(change(masked::<16>(bytes, offset, SIZE)?, Ipv6Addr::from));
    let byte = |offset| Some(change(masked::<1>(bytes, offset, SIZE)?, |[byte]| byte));
    Some(Ipv6 {
        source: address(0)?,
        destination: address(16)?,
        flow_label: change(masked(bytes, 32, SIZE)?, u32::from_be_bytes),
        next_header: byte(36)?,
        traffic_class: byte(37)?,
    })
}

/// As [`ethernet`]: `struct ibv_flow_tcp_udp_filter`.
fn ports(bytes: &[u8]) -> Option<Ports> {
    Some(Ports {
        destination: change(masked(bytes, 0, 4)?, u16::from_be_bytes),
        source: change(masked(bytes, 2, 4)?, u16::from_be_bytes),
    })
}
