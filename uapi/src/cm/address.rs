//! Addresses: binding to one, resolving one, querying the addresses of both sides.
//!
//! The older commands, [`BindIp`] and [`ResolveIp`], hold an IPv4 or IPv6 address in 28 bytes.
//! The newer ones hold an address of any family in 128 bytes; the kernel checks that their
//! `…_size` is the family's exact length.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::QueryOption;

/// `AF_INET`.
pub const AF_INET: u16 = 2;
/// `AF_INET6`.
pub const AF_INET6: u16 = 10;
/// `AF_IB`, the family of [`SockaddrIb`] (`include/linux/socket.h`).
pub const AF_IB: u16 = 27;

/// Bytes of a `sockaddr_in`.
pub const SOCKADDR_IN_LEN: u16 = 16;

crate::macros::abi_structs! {
    /// An IPv6 address, or an IPv4 address ([`SockaddrIn`]) in the first bytes: see `family`.
    struct SockaddrIn6 = "struct sockaddr_in6", 28 {
        /// [`AF_INET6`], or [`AF_INET`] if these bytes are a [`SockaddrIn`].
        @0 family: u16 as "sin6_family",
        @2 port: U16 as "sin6_port",
        @4 flowinfo: U32 as "sin6_flowinfo",
        @8 addr: [u8; 16] as "sin6_addr",
        /// Interface of a link-local address.
        @24 scope_id: u32 as "sin6_scope_id",
    }

    /// An IPv4 address.
    struct SockaddrIn = "struct sockaddr_in", 16 {
        /// [`AF_INET`].
        @0 family: u16 as "sin_family",
        @2 port: U16 as "sin_port",
        @4 addr: [u8; 4] as "sin_addr",
        @8 reserved: [u8; 8] as "",
    }

    /// Space for an address of any family.
    struct SockaddrStorage = "struct __kernel_sockaddr_storage", 128 {
        @0 family: u16 as "ss_family",
        /// Depends on the family.
        @2 data: [u8; 126] as "__data",
    }

    /// Binds an idle id to an IP address; has no answer.
    struct BindIp = "struct rdma_ucm_bind_ip", 40 {
        /// Unused.
        @0 response: u64,
        @8 addr: SockaddrIn6,
        @36 id: u32,
    }

    /// Binds an idle id to an address.
    struct Bind = "struct rdma_ucm_bind", 136 {
        @0 id: u32,
        /// Length of the family's address.
        @4 addr_size: u16,
        @6 reserved: u16,
        @8 addr: SockaddrStorage,
    }

    /// Resolves an IP address to a device, a port and a peer.
    struct ResolveIp = "struct rdma_ucm_resolve_ip", 64 {
        /// The local address; family 0 for none.
        @0 src_addr: SockaddrIn6,
        @28 dst_addr: SockaddrIn6,
        @56 id: u32,
        /// Milliseconds within which the neighbour must answer.
        @60 timeout_ms: u32,
    }

    /// Resolves an address to a device, a port and a peer.
    struct ResolveAddr = "struct rdma_ucm_resolve_addr", 272 {
        @0 id: u32,
        /// Milliseconds within which the neighbour must answer.
        @4 timeout_ms: u32,
        /// Length of the local address; 0 for none.
        @8 src_size: u16,
        /// Length of the peer's address.
        @10 dst_size: u16,
        /// Zero; the kernel checks it.
        @12 reserved: u32,
        @16 src_addr: SockaddrStorage,
        @144 dst_addr: SockaddrStorage,
    }

    /// Resolves the path to a peer whose address is resolved.
    struct ResolveRoute = "struct rdma_ucm_resolve_route", 8 {
        @0 id: u32,
        /// Zero fails with EINVAL.
        @4 timeout_ms: u32,
    }

    /// Asks for addresses, paths or GIDs of an id.
    struct Query = "struct rdma_ucm_query", 16 {
        @0 response: u64,
        @8 id: u32,
        /// What is asked for.
        @12 option: QueryOption,
    }

    /// An id's device and the addresses of both sides.
    struct QueryAddrResp = "struct rdma_ucm_query_addr_resp", 280 {
        /// GUID of the device; 0 while the id has none.
        @0 node_guid: U64,
        @8 port_num: u8,
        @9 reserved: u8,
        /// P_Key; 0 on RoCE.
        @10 pkey: U16,
        /// Length of the local address.
        @12 src_size: u16,
        /// Length of the peer's address.
        @14 dst_size: u16,
        @16 src_addr: SockaddrStorage,
        @144 dst_addr: SockaddrStorage,
        /// The kernel's index of the RDMA device.
        @272 ibdev_index: u32,
        @276 reserved1: u32,
    }
}

/// An InfiniBand address (`struct sockaddr_ib` of `include/rdma/ib.h`; no exported header has it).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct SockaddrIb {
    /// [`AF_IB`].
    pub family: u16,
    /// P_Key.
    pub pkey: U16,
    /// Flow label of 20 bits.
    pub flowinfo: U32,
    /// GID; all zero for any.
    pub addr: [u8; 16],
    /// Service id.
    pub sid: U64,
    /// The significant bits of the service id.
    pub sid_mask: U64,
    /// Scope.
    pub scope_id: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SockaddrIb>() == 48);
    assert!(offset_of!(SockaddrIb, pkey) == 2);
    assert!(offset_of!(SockaddrIb, flowinfo) == 4);
    assert!(offset_of!(SockaddrIb, addr) == 8);
    assert!(offset_of!(SockaddrIb, sid) == 24);
    assert!(offset_of!(SockaddrIb, sid_mask) == 32);
    assert!(offset_of!(SockaddrIb, scope_id) == 40);
};

/// An address that fits a [`SockaddrStorage`].
pub trait Sockaddr: FromBytes + IntoBytes + Immutable {
    /// The family that these bytes belong to.
    const FAMILY: u16;
}

impl Sockaddr for SockaddrIn {
    const FAMILY: u16 = AF_INET;
}

impl Sockaddr for SockaddrIn6 {
    const FAMILY: u16 = AF_INET6;
}

impl Sockaddr for SockaddrIb {
    const FAMILY: u16 = AF_IB;
}

/// Length that the kernel requires for an address of the family (`rdma_addr_size` in
/// `drivers/infiniband/core/addr.c`).
pub const fn address_len(family: u16) -> Option<u16> {
    match family {
        AF_INET => Some(SOCKADDR_IN_LEN),
        AF_INET6 => Some(size_of::<SockaddrIn6>() as u16),
        AF_IB => Some(size_of::<SockaddrIb>() as u16),
        _ => None,
    }
}

impl SockaddrStorage {
    /// The address, with zeros after it.
    pub fn new<A: Sockaddr>(address: &A) -> Self {
        let mut storage = Self::default();
        storage.as_mut_bytes()[..size_of::<A>()].copy_from_slice(address.as_bytes());
        storage
    }

    /// The address, if it is of this family.
    pub fn get<A: Sockaddr>(&self) -> Option<A> {
        (self.family == A::FAMILY).then(|| A::read_from_prefix(self.as_bytes()).ok())?.map(first)
    }

    /// Length of the address, if the family is known.
    pub const fn len(&self) -> Option<u16> {
        address_len(self.family)
    }

    /// Whether there is no address.
    pub const fn is_empty(&self) -> bool {
        self.family == 0
    }
}

fn first<A, B>((first, _): (A, B)) -> A {
    first
}

impl QueryAddrResp {
    /// Lengths in use, newest kernel first: the whole struct, then the part before `ibdev_index`.
    /// The kernel fills `ibdev_index` if the caller's buffer has space for all of it.
    pub const LENGTHS: [usize; 2] = [size_of::<Self>(), core::mem::offset_of!(Self, ibdev_index)];
}
