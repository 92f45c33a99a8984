//! Conditions of steering rules on header fields.

use std::net::{Ipv4Addr, Ipv6Addr};

use uverbs_uapi::enums::FlowSpecType;
use uverbs_uapi::write::flow::{
    FlowEthFilter, FlowIpv4Filter, FlowIpv6Filter, FlowSpecEth, FlowSpecHdr, FlowSpecIpv4,
    FlowSpecIpv6, FlowSpecTcpUdp, FlowTcpUdpFilter,
};

/// A condition on a header field: where the mask has a 1, the field must have the value's bit. The
/// default matches every value; `value.into()` matches exactly this value.
///
/// Some devices support only masks of all ones or all zeros (ibv_create_flow(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masked<T> {
    /// The required bits.
    pub value: T,
    /// The bits that are compared.
    pub mask: T,
}

impl<T> Masked<T> {
    /// Compares the bits of `mask` with `value`.
    pub const fn under(value: T, mask: T) -> Self {
        Self { value, mask }
    }
}

impl Default for Masked<u32> {
    fn default() -> Self {
        Self::under(0, 0)
    }
}

macro_rules! whole {
    ($($type:ty: $none:expr, $ones:expr;)*) => {$(
        impl Default for Masked<$type> {
            fn default() -> Self {
                Self::under($none, $none)
            }
        }

        impl From<$type> for Masked<$type> {
            fn from(value: $type) -> Self {
                Self { value, mask: $ones }
            }
        }
    )*};
}

whole! {
    u8: 0, u8::MAX;
    u16: 0, u16::MAX;
    [u8; 6]: [0; 6], [0xff; 6];
    Ipv4Addr: Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST;
    Ipv6Addr: Ipv6Addr::UNSPECIFIED, Ipv6Addr::from_bits(u128::MAX);
}

/// Conditions on the Ethernet header. A VLAN tag is compared even if it is stripped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ethernet {
    /// Destination MAC address.
    pub destination: Masked<[u8; 6]>,
    /// Source MAC address.
    pub source: Masked<[u8; 6]>,
    /// The EtherType after VLAN tags.
    pub ether_type: Masked<u16>,
    /// Control information of the outermost VLAN tag: priority (3 bits), drop eligible, VLAN number
    /// (12). With a mask other than 0 the rule takes tagged frames only.
    pub vlan: Masked<u16>,
}

/// Conditions on the IPv4 header. The default matches all IPv4 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv4 {
    /// Source address.
    pub source: Masked<Ipv4Addr>,
    /// Destination address.
    pub destination: Masked<Ipv4Addr>,
    /// Protocol number.
    pub protocol: Masked<u8>,
    /// Type of service.
    pub type_of_service: Masked<u8>,
}

/// Conditions on the IPv6 header. The default matches all IPv6 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv6 {
    /// Source address.
    pub source: Masked<Ipv6Addr>,
    /// Destination address.
    pub destination: Masked<Ipv6Addr>,
    /// Flow label, 20 bits.
    pub flow_label: Masked<u32>,
    /// Protocol number of the next header.
    pub next_header: Masked<u8>,
    /// Traffic class.
    pub traffic_class: Masked<u8>,
}

/// Conditions on TCP or UDP ports. The default matches all packets of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ports {
    /// Source port.
    pub source: Masked<u16>,
    /// Destination port.
    pub destination: Masked<u16>,
}

/// The header of the part `T`.
pub(super) fn head<T>(kind: FlowSpecType) -> FlowSpecHdr {
    FlowSpecHdr { kind, size: size_of::<T>() as u16, reserved: 0 }
}

impl Ethernet {
    pub(super) fn spec(self) -> FlowSpecEth {
        let filter = |dst_mac, src_mac, ether_type: u16, vlan: u16| FlowEthFilter {
            dst_mac,
            src_mac,
            ether_type: ether_type.into(),
            vlan_tag: vlan.into(),
        };
        let Self { destination: to, source: from, ether_type: kind, vlan } = self;
        FlowSpecEth {
            hdr: head::<FlowSpecEth>(FlowSpecType::ETH),
            val: filter(to.value, from.value, kind.value, vlan.value),
            mask: filter(to.mask, from.mask, kind.mask, vlan.mask),
        }
    }
}

impl Ipv4 {
    pub(super) fn spec(self) -> FlowSpecIpv4 {
        let filter = |from: Ipv4Addr, to: Ipv4Addr, proto, tos| FlowIpv4Filter {
            src_ip: from.to_bits().into(),
            dst_ip: to.to_bits().into(),
            proto,
            tos,
            ..FlowIpv4Filter::default()
        };
        let Self { source: from, destination: to, protocol, type_of_service: tos } = self;
        FlowSpecIpv4 {
            hdr: head::<FlowSpecIpv4>(FlowSpecType::IPV4),
            val: filter(from.value, to.value, protocol.value, tos.value),
            mask: filter(from.mask, to.mask, protocol.mask, tos.mask),
        }
    }
}

impl Ipv6 {
    pub(super) fn spec(self) -> FlowSpecIpv6 {
        let filter =
            |from: Ipv6Addr, to: Ipv6Addr, label: u32, next_hdr, traffic_class| FlowIpv6Filter {
                src_ip: from.octets(),
                dst_ip: to.octets(),
                flow_label: label.into(),
                next_hdr,
                traffic_class,
                ..FlowIpv6Filter::default()
            };
        let Self { source: from, destination: to, flow_label, next_header, traffic_class } = self;
        FlowSpecIpv6 {
            hdr: head::<FlowSpecIpv6>(FlowSpecType::IPV6),
            val: filter(
                from.value,
                to.value,
                flow_label.value,
                next_header.value,
                traffic_class.value,
            ),
            mask: filter(from.mask, to.mask, flow_label.mask, next_header.mask, traffic_class.mask),
        }
    }
}

impl Ports {
    pub(super) fn spec(self, kind: FlowSpecType) -> FlowSpecTcpUdp {
        let filter =
            |from: u16, to: u16| FlowTcpUdpFilter { dst_port: to.into(), src_port: from.into() };
        FlowSpecTcpUdp {
            hdr: head::<FlowSpecTcpUdp>(kind),
            val: filter(self.source.value, self.destination.value),
            mask: filter(self.source.mask, self.destination.mask),
        }
    }
}
