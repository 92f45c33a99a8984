//! Addresses of ids, and the IP stack's functions that rdma_cm uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::address::{
    AF_IB, AF_INET, AF_INET6, SockaddrIb, SockaddrIn, SockaddrIn6, SockaddrStorage,
};

use super::{CmaError, DeviceNumber, is_any, service_id};
use uverbs_soft_packet::{Addressing, Gid};

/// The partition of which every port is a member.
const DEFAULT_PKEY: u16 = 0xffff;
/// The bit of a P_Key for full membership.
const MEMBERSHIP: u16 = 0x8000;

/// An address of a family that rdma_cm supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// InfiniBand: a GID and a service id.
    Ib(SockaddrIb),
}

impl Address {
    /// The address in a `SockaddrStorage`; `None` if its family is unknown.
    pub fn read(storage: &SockaddrStorage) -> Option<Self> {
        Some(match storage.family {
            AF_INET => {
                let address: SockaddrIn = storage.get()?;
                let ip = Ipv4Addr::from(address.addr);
                Self::Ip(SocketAddrV4::new(ip, address.port.get()).into())
            }
            AF_INET6 => {
                let SockaddrIn6 { port, flowinfo, addr, scope_id, .. } = storage.get()?;
                Self::Ip(
                    SocketAddrV6::new(addr.into(), port.get(), flowinfo.get(), scope_id).into(),
                )
            }
            AF_IB => Self::Ib(storage.get()?),
            _ => return None,
        })
    }

    /// The address in the ABI's form.
    pub fn storage(&self) -> SockaddrStorage {
        match self {
            Self::Ip(SocketAddr::V4(v4)) => SockaddrStorage::new(&SockaddrIn {
                family: AF_INET,
                port: v4.port().into(),
                addr: v4.ip().octets(),
                ..SockaddrIn::default()
            }),
            Self::Ip(SocketAddr::V6(v6)) => SockaddrStorage::new(&SockaddrIn6 {
                family: AF_INET6,
                port: v6.port().into(),
                flowinfo: v6.flowinfo().into(),
                addr: v6.ip().octets(),
                scope_id: v6.scope_id(),
            }),
            Self::Ib(ib) => SockaddrStorage::new(ib),
        }
    }

    /// Address family, as numbered in the ABI.
    pub fn family(&self) -> u16 {
        match self {
            Self::Ip(SocketAddr::V4(_)) => AF_INET,
            Self::Ip(SocketAddr::V6(_)) => AF_INET6,
            Self::Ib(_) => AF_IB,
        }
    }

    /// The wildcard address of this family.
    pub fn any(&self) -> Self {
        match self {
            Self::Ip(SocketAddr::V4(_)) => {
                Self::Ip(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
            }
            Self::Ip(SocketAddr::V6(v6)) => {
                let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
                Self::Ip(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, scope).into())
            }
            Self::Ib(ib) => {
                Self::Ib(SockaddrIb { family: AF_IB, pkey: ib.pkey, ..SockaddrIb::default() })
            }
        }
    }

    /// Whether it is the wildcard address (`cma_any_addr`).
    pub fn is_any(&self) -> bool {
        match self {
            Self::Ip(ip) => is_any(ip.ip()),
            Self::Ib(ib) => is_any(IpAddr::from(ib.addr)),
        }
    }

    /// The address as a GID (`rdma_ip2gid`).
    pub fn gid(&self) -> Gid {
        match self {
            Self::Ip(ip) => gid_of(ip.ip()),
            Self::Ib(ib) => Gid(ib.addr),
        }
    }

    /// The address's port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(ip) => ip.port(),
            Self::Ib(ib) => (ib.sid.get() & ib.sid_mask.get()) as u16,
        }
    }

    /// The service id of the address in a port space (`rdma_get_service_id`).
    pub fn service_id(&self, space: PortSpace) -> u64 {
        match self {
            Self::Ip(ip) => service_id(space, ip.port()),
            Self::Ib(ib) => ib.sid.get(),
        }
    }

    /// The address as an IP address: a GID is an IPv6 address, or contains an IPv4 address.
    pub(super) fn as_ip(&self) -> SocketAddr {
        match self {
            Self::Ip(ip) => *ip,
            Self::Ib(ib) => {
                let v6 = Ipv6Addr::from(ib.addr);
                let ip = v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::from);
                SocketAddr::new(ip, self.port())
            }
        }
    }

    /// Whether an InfiniBand address is in the default partition, with full or limited membership.
    pub(super) fn has_default_pkey(&self) -> bool {
        !matches!(self, Self::Ib(ib) if ib.pkey.get() | MEMBERSHIP != DEFAULT_PKEY)
    }

    pub(super) fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Ib(_) => None,
        }
    }

    pub(super) fn set_port(&mut self, port: u16) {
        match self {
            Self::Ip(ip) => ip.set_port(port),
            Self::Ib(ib) => {
                ib.sid = (ib.sid.get() & !0xffff | u64::from(port)).into();
                ib.sid_mask = u64::MAX.into();
            }
        }
    }
}

/// The GID of an IP address.
pub(super) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from_ipv4(v4),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// A device and one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The device.
    pub device: DeviceNumber,
    /// The GID of the address.
    pub gid: Gid,
}

/// A route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The device through which the packets leave.
    pub device: DeviceNumber,
    /// The local source address.
    pub source: IpAddr,
    /// Addressing of the packets: GIDs, LIDs, the neighbour's MAC address, hop limit.
    pub addressing: Addressing,
}

/// The functions of the IP stack that rdma_cm uses.
pub trait Addresses {
    /// Whether binding to this address means all addresses. In the kernel this is also so for the
    /// addresses of the loopback interface. An implementation whose devices have loopback addresses
    /// excludes those.
    fn is_wildcard(&self, address: IpAddr) -> bool {
        is_any(address)
    }

    /// The device with a local address.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if the machine does not have the address, ENODEV if no device has it.
    fn interface_of(&self, address: IpAddr) -> Result<Interface, CmaError>;

    /// The route to an address, from the local address `source` if one is given. The wildcard
    /// address leads to the machine itself. Where each process acts as a machine of its own, the
    /// port and its port space determine to which process it leads.
    ///
    /// # Errors
    /// ENETUNREACH if there is no route, ENODEV if it leaves through no RDMA device.
    fn route(
        &self,
        source: Option<IpAddr>,
        destination: SocketAddr,
        space: PortSpace,
    ) -> Result<Route, CmaError>;

    /// Whether the neighbour to which `device` sends these packets answers.
    fn answers(&self, now: u64, device: DeviceNumber, to: &Addressing) -> bool;
}
