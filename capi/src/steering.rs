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
const VXLAN: u32 = 0x50;
/// Headers with specifications in libibverbs that are not supported here: ESP, tunnels, GRE, MPLS.
const OTHER_HEADERS: [u32; 6] = [0x34, 0x34 | INNER, VXLAN, 0x51, 0x60, 0x60 | INNER];
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
const ACTION_HANDLE: u32 = 0x1002;
const ACTION_COUNT: u32 = 0x1003;
/// `enum ibv_flow_flags`.
const DONT_TRAP: u32 = 1 << 1;
const EGRESS: u32 = 1 << 2;
/// Bytes of values that the kernel knows, where the program's struct may have more.
const IPV4_EXT_KNOWN: usize = 12;
const IPV6_KNOWN: usize = 39;
const VXLAN_KNOWN: usize = 4;
/// Bytes of the type and size at the head of a specification, and of the head with its padding.
const HEAD: usize = 6;
const PADDED_HEAD: usize = 8;

/// Describes the rule at `attr` to `builder`. The error is an errno.
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
        // SAFETY: each specification says how long it is, and has the struct of its type. As in
        // libibverbs, for most types the size only determines the place of the next specification.
        unsafe {
            let kind = at.cast::<u32>().read_unaligned();
            let size = at.add(4).cast::<u16>().read_unaligned().into();
            let bytes = std::slice::from_raw_parts(at, length(kind).unwrap_or(size));
            builder = add_spec(kind, bytes, builder)?;
            at = at.add(size);
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

/// Bytes of a specification of fixed length.
fn length(kind: u32) -> Option<usize> {
    Some(match kind {
        ETH => 40,
        IPV4 => 24,
        TCP | UDP | ACTION_COUNT => 16,
        ACTION_TAG => 12,
        ACTION_DROP => 8,
        _ => return None,
    })
}

/// Adds a specification. The errno is that of libibverbs (`ib_spec_to_kern_spec` in its cmd.c), or
/// of the kernel.
fn add_spec<'q>(
    kind: u32,
    bytes: &[u8],
    builder: FlowBuilder<'q>,
) -> Result<FlowBuilder<'q>, c_int> {
    let fixed = |head, size| Filters::of(bytes, head, size).ok_or(libc::EINVAL);
    Ok(match kind {
        ETH => builder.ethernet(ethernet(&fixed(HEAD, 16)?)),
        IPV4 => builder.ipv4(ipv4(&fixed(PADDED_HEAD, 8)?)),
        IPV4_EXT => builder.ipv4(ipv4_ext(&Filters::grown(bytes, IPV4_EXT_KNOWN)?)?),
        IPV6 => builder.ipv6(ipv6(&Filters::grown(bytes, IPV6_KNOWN)?)?),
        TCP => builder.tcp(ports(&fixed(HEAD, 4)?)),
        UDP => builder.udp(ports(&fixed(HEAD, 4)?)),
        ACTION_DROP => builder.drop_frames(),
        ACTION_TAG | ACTION_COUNT => act(kind, bytes, builder).ok_or(libc::EINVAL)?,
        _ => return Err(unsupported(kind, bytes)),
    })
}

/// Adds an action with an argument.
fn act<'q>(kind: u32, bytes: &[u8], builder: FlowBuilder<'q>) -> Option<FlowBuilder<'q>> {
    let argument = bytes.get(PADDED_HEAD..)?;
    if kind == ACTION_TAG {
        return Some(builder.tag(u32::from_ne_bytes(*argument.first_chunk()?)));
    }
    let address = usize::from_ne_bytes(*argument.first_chunk()?);
    let counters = std::ptr::with_exposed_provenance(address);
    // SAFETY: a specification of this type names a program's counters.
    Some(builder.count(&unsafe { CounterSet::library(counters) }?))
}

/// The errno for an unsupported specification: EOPNOTSUPP if libibverbs knows it.
fn unsupported(kind: u32, bytes: &[u8]) -> c_int {
    let known = match kind & !INNER {
        IPV4_EXT => IPV4_EXT_KNOWN,
        IPV6 => IPV6_KNOWN,
        VXLAN => VXLAN_KNOWN,
        _ => 0,
    };
    let is_inner = [ETH, IPV4, IPV4_EXT, IPV6, TCP, UDP].contains(&(kind ^ INNER));
    if !is_inner && kind != ACTION_HANDLE && !OTHER_HEADERS.contains(&kind) {
        return libc::EINVAL;
    }
    if known == 0 {
        return libc::EOPNOTSUPP;
    }
    Filters::grown(bytes, known).err().unwrap_or(libc::EOPNOTSUPP)
}

/// The values of a header, and their masks.
struct Filters<'a> {
    values: &'a [u8],
    masks: &'a [u8],
}

impl<'a> Filters<'a> {
    /// Value and mask after the head, `size` bytes each. `None` if the specification is shorter.
    fn of(bytes: &'a [u8], head: usize, size: usize) -> Option<Self> {
        let (values, rest) = bytes.get(head..)?.split_at_checked(size)?;
        Some(Self { values, masks: rest.get(..size)? })
    }

    /// Value and mask of a struct that may differ in size between releases (`get_filters_size` in
    /// libibverbs' cmd.c). Their size follows from that of the specification. The mask must be zero
    /// after the known bytes.
    fn grown(bytes: &'a [u8], known: usize) -> Result<Self, c_int> {
        let size = bytes.len().saturating_sub(PADDED_HEAD) / 2;
        let filters = Self::of(bytes, PADDED_HEAD, size).ok_or(libc::EINVAL)?;
        let unknown = filters.masks.get(known..).ok_or(libc::EINVAL)?;
        if unknown.iter().any(|byte| *byte != 0) { Err(libc::EOPNOTSUPP) } else { Ok(filters) }
    }

    /// A field. Value and mask must be long enough.
    fn field<const N: usize>(&self, offset: usize) -> Masked<[u8; N]> {
        let of = |bytes: &[u8]| std::array::from_fn(|place| bytes[offset + place]);
        Masked::under(of(self.values), of(self.masks))
    }

    /// Fails if one of these bytes, which no rule here matches, has a mask.
    fn not_asked(&self, mut bytes: std::ops::Range<usize>) -> Result<(), c_int> {
        if bytes.any(|place| self.masks[place] != 0) { Err(libc::EOPNOTSUPP) } else { Ok(()) }
    }
}

fn change<T, U>(masked: Masked<T>, change: impl Fn(T) -> U) -> Masked<U> {
    Masked::under(change(masked.value), change(masked.mask))
}

/// `struct ibv_flow_eth_filter`.
fn ethernet(filters: &Filters<'_>) -> Ethernet {
    Ethernet {
        destination: filters.field(0),
        source: filters.field(6),
        ether_type: change(filters.field(12), u16::from_be_bytes),
        vlan: change(filters.field(14), u16::from_be_bytes),
    }
}

/// `struct ibv_flow_ipv4_filter`.
fn ipv4(filters: &Filters<'_>) -> Ipv4 {
    let address = |offset| change(filters.field::<4>(offset), Ipv4Addr::from);
    Ipv4 { source: address(0), destination: address(4), ..Ipv4::default() }
}

/// `struct ibv_flow_ipv4_ext_filter`, without the time to live and the fragments.
fn ipv4_ext(filters: &Filters<'_>) -> Result<Ipv4, c_int> {
    filters.not_asked(10..12)?;
    let byte = |offset| change(filters.field(offset), |[byte]| byte);
    Ok(Ipv4 { protocol: byte(8), type_of_service: byte(9), ..ipv4(filters) })
}

/// `struct ibv_flow_ipv6_filter`, without the hop limit.
fn ipv6(filters: &Filters<'_>) -> Result<Ipv6, c_int> {
    filters.not_asked(38..39)?;
    let address = |offset| change(filters.field::<16>(offset), Ipv6Addr::from);
    let byte = |offset| change(filters.field(offset), |[byte]| byte);
    Ok(Ipv6 {
        source: address(0),
        destination: address(16),
        flow_label: change(filters.field(32), u32::from_be_bytes),
        next_header: byte(36),
        traffic_class: byte(37),
    })
}

/// `struct ibv_flow_tcp_udp_filter`.
fn ports(filters: &Filters<'_>) -> Ports {
    Ports {
        destination: change(filters.field(0), u16::from_be_bytes),
        source: change(filters.field(2), u16::from_be_bytes),
    }
}
