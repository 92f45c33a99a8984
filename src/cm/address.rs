//! Converts socket addresses and address vectors to the connection manager's structs and back.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use uverbs_uapi::cm::address::{AF_INET, AF_INET6, SockaddrIn, SockaddrIn6, SockaddrStorage};
use uverbs_uapi::write::ah::AhAttr;

use crate::device::address::{AddressVector, Gid, GlobalRoute};

/// A string `HOST:PORT`, for functions that take [`ToSocketAddrs`]. Unlike a `str`, it may contain
/// the interface of a link-local address: `[fe80::1%eth0]:7471`.
///
/// ```
/// use std::net::ToSocketAddrs;
/// use uverbs::cm::Address;
/// let mut found = Address("[fe80::1%lo]:7471").to_socket_addrs()?;
/// assert!(matches!(found.next(), Some(std::net::SocketAddr::V6(v6)) if v6.scope_id() != 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'a>(pub &'a str);

impl ToSocketAddrs for Address<'_> {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        let parts = self.0.rsplit_once(':').and_then(|(host, port)| {
            let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = inside.or_else(|| (!host.contains(':')).then_some(host))?;
            Some((host, port.parse::<u16>().ok()?))
        });
        let no_port = || io::Error::new(io::ErrorKind::InvalidInput, "it is not HOST:PORT");
        // The system's resolver also parses the interface.
        parts.ok_or_else(no_port)?.to_socket_addrs()
    }
}

/// The address as the kernel's struct, and its length in bytes.
pub(super) fn storage(address: SocketAddr) -> (SockaddrStorage, u16) {
    let storage = match address {
        SocketAddr::V4(v4) => SockaddrStorage::new(&SockaddrIn {
            family: AF_INET,
            port: v4.port().into(),
            addr: v4.ip().octets(),
            reserved: [0; 8],
        }),
        SocketAddr::V6(v6) => SockaddrStorage::new(&SockaddrIn6 {
            family: AF_INET6,
            port: v6.port().into(),
            flowinfo: v6.flowinfo().into(),
            addr: v6.ip().octets(),
            scope_id: v6.scope_id(),
        }),
    };
    (storage, storage.len().unwrap_or_default())
}

/// The address, if it is an IP address.
pub(super) fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.get::<SockaddrIn>() {
        return Some(SocketAddrV4::new(Ipv4Addr::from(v4.addr), v4.port.get()).into());
    }
    let v6 = storage.get::<SockaddrIn6>()?;
    let address = Ipv6Addr::from(v6.addr);
    Some(SocketAddrV6::new(address, v6.port.get(), v6.flowinfo.get(), v6.scope_id).into())
}

/// Converts the kernel's address attributes.
pub(super) fn address_vector(attr: &AhAttr) -> AddressVector {
    AddressVector {
        port: attr.port_num,
        lid: attr.dlid,
        service_level: attr.sl,
        source_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        global: (attr.is_global != 0).then_some(GlobalRoute {
            destination: Gid(attr.grh.dgid),
            source_index: attr.grh.sgid_index,
            flow_label: attr.grh.flow_label,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        }),
    }
}

#[cfg(test)]
mod tests;
