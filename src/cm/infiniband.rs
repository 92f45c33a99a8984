//! InfiniBand addresses without IP (`AF_IB`).

use std::time::Duration;

use uverbs_uapi::cm::address::{AF_IB, Bind, ResolveAddr, SockaddrIb, SockaddrStorage};

use super::id::{Id, PortSpace, milliseconds};
use super::refusal::explain;
use crate::device::address::Gid;
use crate::error::Result;

/// A service at a GID (`struct sockaddr_ib`). It needs no IP address, and so no IPoIB interface.
///
/// Over RoCE, binding to a GID and resolving the route fail with ENODEV.
#[doc(alias = "sockaddr_ib")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct IbAddress {
    /// GID of a port; [`Gid::ZERO`] means every local port.
    pub gid: Gid,
    /// The P_Key of the partition.
    pub pkey: u16,
    /// The service id: the port space and, in the lowest 16 bits, the port.
    pub service_id: u64,
}

impl IbAddress {
    /// A port of a port space, in the default partition. As a local port, 0 chooses a free one.
    pub const fn new(gid: Gid, space: PortSpace, port: u16) -> Self {
        let service_id = (space.kernel().0.0 as u64) << 16 | port as u64;
        Self { gid, pkey: 0xffff, service_id }
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.service_id as u16
    }

    fn storage(self) -> SockaddrStorage {
        SockaddrStorage::new(&SockaddrIb {
            family: AF_IB,
            pkey: self.pkey.into(),
            addr: self.gid.0,
            sid: self.service_id.into(),
            sid_mask: u64::MAX.into(),
            ..SockaddrIb::default()
        })
    }

    fn of(storage: &SockaddrStorage) -> Option<Self> {
        let SockaddrIb { pkey, addr, sid, .. } = storage.get()?;
        Some(Self { gid: Gid(addr), pkey: pkey.get(), service_id: sid.get() })
    }
}

/// Length of an address in bytes.
const SIZE: u16 = size_of::<SockaddrIb>() as u16;

impl Id {
    /// As [`bind`](Self::bind), at a GID.
    ///
    /// # Errors
    /// As `bind`; EPROTONOSUPPORT if the service id is not of the id's port space.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_ib(&self, address: IbAddress) -> Result<()> {
        let body = |id| Bind { id, addr_size: SIZE, reserved: 0, addr: address.storage() };
        let bound = self.handle().ask("bind_addr", body);
        bound.map_err(|error| explain(error, None))
    }

    /// As [`resolve_address`](Self::resolve_address), to a GID.
    ///
    /// # Errors
    /// As `resolve_address`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_ib_address(&self, destination: IbAddress, timeout: Duration) -> Result<()> {
        let resolving = self.handle().ask("resolve_addr", |id| ResolveAddr {
            id,
            timeout_ms: milliseconds(timeout),
            dst_size: SIZE,
            dst_addr: destination.storage(),
            ..ResolveAddr::default()
        });
        resolving.map_err(|error| explain(error, None))
    }

    /// The local address, if it is an InfiniBand address.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn local_ib_address(&self) -> Result<Option<IbAddress>> {
        Ok(IbAddress::of(&self.query()?.src_addr))
    }

    /// The peer's address, if it is an InfiniBand address.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn peer_ib_address(&self) -> Result<Option<IbAddress>> {
        Ok(IbAddress::of(&self.query()?.dst_addr))
    }
}
