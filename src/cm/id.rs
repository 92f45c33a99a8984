//! Ids: one end of a connection, a listener, or a datagram service.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uverbs_uapi::cm::address::{
    Bind, Query, QueryAddrResp, ResolveAddr, ResolveRoute, SockaddrStorage,
};
use uverbs_uapi::cm::connect::{Accept, ConnParam, Connect, Disconnect, Listen, Notify, Reject};
use uverbs_uapi::cm::id::{CreateId, DestroyId, MigrateId, SetOption};
use uverbs_uapi::cm::{
    Command, IdOption, OptionLevel, PortSpace as KernelSpace, QueryOption, RejectReason as Kernel,
};
use uverbs_uapi::enums::{EventType, QpType as KernelQpType};

use super::address::{socket_address, storage};
use super::channel::Channel;
use super::params::{ConnectOptions, kernel_ece, with_data};
use super::private_data::{LookupData, RejectData};
use super::refusal::{explain, explain_resolving, perhaps_removed};
use crate::device::context::Context;
use crate::device::layer::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::host::fork::{Lock, forked};
use crate::qp::{AckTimeout, Connected, Ece, QpType, QueuePair};
use uverbs_mlx5::mmio::Register;

/// The name space of an id's port number, and the type of its queue pairs (`enum rdma_port_space`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Datagrams with the Q_Key of IP over InfiniBand.
    Ipoib,
    /// InfiniBand service ids, for queue pairs of the given type.
    Ib(QpType),
}

impl PortSpace {
    pub(super) const fn kernel(self) -> (KernelSpace, KernelQpType) {
        match self {
            Self::Tcp => (KernelSpace::TCP, KernelQpType::RC),
            Self::Udp => (KernelSpace::UDP, KernelQpType::UD),
            Self::Ipoib => (KernelSpace::IPOIB, KernelQpType::UD),
            Self::Ib(qp_type) => (KernelSpace::IB, KernelQpType(qp_type as u8)),
        }
    }

    fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib | Self::Ib(QpType::Ud))
    }
}

/// Identifies an id, or a membership in a multicast group, in events. Keys are unique in the
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(u64);

impl IdKey {
    /// A new key, never 0, because the kernel drops events of a passive id whose user value is 0.
    /// The lowest bit is set if its events have parameters of datagrams instead of a connection.
    pub(super) fn new(is_datagram: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << 1 | u64::from(is_datagram))
    }

    pub(super) fn of_event(uid: u64) -> Self {
        Self(uid)
    }

    pub(super) fn uid(self) -> u64 {
        self.0
    }

    pub(super) fn is_datagram(self) -> bool {
        self.0 & 1 == 1
    }
}

/// One end of a connection, a listener, or a datagram service (`struct rdma_cm_id`).
///
/// Methods start an operation and return at once; an [event](super::Event) with this id's
/// [key](Id::key) reports the result. An id can connect once: after a refusal or a disconnect the
/// program needs a new one.
///
/// Dropping it destroys it: a connection is disconnected, a request is withdrawn or refused, and
/// events that were not taken are lost. The drop never waits for events. An id with a
/// [`Membership`](super::Membership) is destroyed when both are dropped.
#[derive(Debug)]
pub struct Id {
    handle: Arc<Handle>,
}

/// The kernel's id.
pub(super) struct Handle {
    number: u32,
    pub(super) key: IdKey,
    /// The channel of its events. Locked while a command runs, so that the id does not migrate
    /// meanwhile.
    channel: Lock<Channel>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Handle {
    pub(super) fn new(channel: &Channel, number: u32, key: IdKey) -> Self {
        Self { number, key, channel: Lock::new(channel.clone()) }
    }

    /// Runs a command of this id.
    pub(super) fn ask<C: Command>(
        &self,
        verb: &'static str,
        body: impl FnOnce(u32) -> C,
    ) -> Result<C::Response> {
        let channel = self.channel.lock().ok_or_else(|| forked(verb))?;
        channel.manager().ask(verb, body(self.number)).map_err(perhaps_removed)
    }

    fn run<C: Command>(&self, verb: &'static str, body: impl FnOnce(u32) -> C) -> Result<()> {
        self.ask(verb, body).map(drop).map_err(|error| explain(error, None))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(channel) = self.channel.lock() else { return };
        // In a forked child the id belongs to the parent.
        if !channel.manager().is_here() {
            return;
        }
        let body = DestroyId { id: self.number, ..DestroyId::default() };
        if let Err(error) = channel.manager().ask("destroy_id", body) {
            tracing::warn!(%error, id = self.number, "id not destroyed");
        }
    }
}

impl Id {
    pub(super) fn create(channel: &Channel, port_space: PortSpace) -> Result<Self> {
        let key = IdKey::new(port_space.is_datagram());
        let (ps, qp_type) = port_space.kernel();
        let body = CreateId { uid: key.uid(), ps, qp_type, ..CreateId::default() };
        let number = channel.manager().ask("create_id", body)?.id;
        Ok(Self::of(Handle::new(channel, number, key)))
    }

    pub(super) fn of(handle: Handle) -> Self {
        Self { handle: Arc::new(handle) }
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Its key in events.
    pub fn key(&self) -> IdKey {
        self.handle.key
    }

    /// The channel of its events.
    ///
    /// # Errors
    /// `ForkedChild`.
    pub fn channel(&self) -> Result<Channel> {
        self.handle.channel.lock().map(|channel| channel.clone()).ok_or_else(|| forked("channel"))
    }

    /// Binds it to a local address. Port 0 chooses a free port.
    ///
    /// # Errors
    /// `NotFound` if no RDMA device has the address; EADDRINUSE if another id is bound to the port,
    /// or EADDRNOTAVAIL if one of the two ids is bound to all addresses; EINVAL if this id is bound
    /// already.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let (addr, addr_size) = storage(address);
        let bound = self.handle.ask("bind_addr", |id| Bind { id, addr_size, reserved: 0, addr });
        bound.map_err(|error| explain(error, Some(address)))
    }

    /// Finds the device and the hardware address for `destination`, from the local address `source`
    /// if given: [`AddressResolved`](super::EventKind::AddressResolved) or
    /// [`AddressError`](super::EventKind::AddressError) follows. `timeout` limits the wait for the
    /// neighbour's answer; it is rounded up to milliseconds.
    ///
    /// # Errors
    /// `NotFound` if no RDMA device has a route to it or has the address `source`; EADDRNOTAVAIL if
    /// no local port is free; EINVAL if the id has already begun to resolve.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let (src_addr, src_size) = source.map_or((SockaddrStorage::default(), 0), storage);
        let (dst_addr, dst_size) = storage(destination);
        let timeout_ms = milliseconds(timeout);
        let resolving = self.handle.ask("resolve_addr", |id| ResolveAddr {
            id,
            timeout_ms,
            src_size,
            dst_size,
            reserved: 0,
            src_addr,
            dst_addr,
        });
        resolving.map_err(|error| explain_resolving(error, source, destination))
    }

    /// Finds the path: [`RouteResolved`](super::EventKind::RouteResolved) or
    /// [`RouteError`](super::EventKind::RouteError) follows.
    ///
    /// # Errors
    /// EINVAL unless the address is resolved.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let timeout_ms = milliseconds(timeout);
        self.handle.run("resolve_route", |id| ResolveRoute { id, timeout_ms })
    }

    /// Listens: [`ConnectRequest`](super::EventKind::ConnectRequest)s follow. Up to `backlog` of
    /// them may wait to be taken; 0 is the host's limit (1024 by default). The kernel drops further
    /// requests, and their peers retry after 4 seconds.
    ///
    /// # Errors
    /// EADDRINUSE or EADDRNOTAVAIL, as from [`bind`](Self::bind); EINVAL for an id that has begun
    /// to connect.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.handle.run("listen", |id| Listen { id, backlog })
    }

    /// Requests a connection of `qp` to the peer:
    /// [`ConnectResponse`](super::EventKind::ConnectResponse),
    /// [`Rejected`](super::EventKind::Rejected) or [`Unreachable`](super::EventKind::Unreachable)
    /// follows, `Unreachable` after 74 to 78 seconds.
    ///
    /// # Errors
    /// EINVAL unless the route is resolved; `InvalidInput` for a queue pair of another device.
    #[doc(alias = "rdma_connect")]
    pub fn connect<T: Connected, L: Layer, R: Register>(
        &self,
        qp: &QueuePair<T, L, R>,
        options: &ConnectOptions,
    ) -> Result<()> {
        self.require_own("connect", qp.context())?;
        self.request(options.param(qp.number(), qp.context())?, options.ece)
    }

    /// Looks up a datagram service: [`Found`](super::EventKind::Found) or
    /// [`Unreachable`](super::EventKind::Unreachable) follows.
    ///
    /// # Errors
    /// EINVAL unless the route is resolved.
    #[doc(alias = "rdma_connect")]
    pub fn lookup(&self, data: &LookupData) -> Result<()> {
        self.request(with_data(0, data), None)
    }

    fn request(&self, conn_param: ConnParam, ece: Option<Ece>) -> Result<()> {
        let ece = kernel_ece(ece);
        self.handle.run("connect", |id| Connect { conn_param, id, reserved: 0, ece })
    }

    /// Accepts with these parameters, or confirms a connection with empty ones.
    pub(super) fn accept(&self, conn_param: ConnParam, ece: Option<Ece>) -> Result<()> {
        let (uid, ece) = (self.key().uid(), kernel_ece(ece));
        self.handle.run("accept", |id| Accept { uid, conn_param, id, reserved: 0, ece })
    }

    pub(super) fn reject(&self, reason: Kernel, data: &RejectData) -> Result<()> {
        let (private_data, private_data_len) = data.field();
        let reserved = [0; 2];
        self.handle.run("reject", |id| Reject {
            id,
            private_data_len,
            reason,
            reserved,
            private_data,
        })
    }

    /// Ends the connection, or answers the peer's disconnect. Both sides get
    /// [`Disconnected`](super::EventKind::Disconnected); this side gets it when the peer has called
    /// this too, or dropped its id.
    ///
    /// It does not wait for requests in flight: poll their completions first, or move the queue
    /// pair to ERR to flush them.
    ///
    /// # Errors
    /// EINVAL if it was never connected.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.handle.run("disconnect", |id| Disconnect { id })
    }

    /// Tells the connection manager that a message arrived on the queue pair before the peer's
    /// confirmation did (the event `COMM_EST`): [`Established`](super::EventKind::Established)
    /// follows at once.
    ///
    /// # Errors
    /// EISCONN if it is already established.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<()> {
        self.handle.run("notify", |id| Notify { id, event: EventType::COMM_EST })
    }

    /// Moves it to another channel, with its events that were not taken. Ids of connection requests
    /// do not move with their listener, so they cannot be accepted on the other channel: migrate a
    /// listener before it listens.
    ///
    /// # Errors
    /// Errors of the kernel; the id stays on its channel.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &Channel) -> Result<()> {
        use std::os::fd::{AsFd, AsRawFd};
        const VERB: &str = "migrate_id";
        let mut channel = self.handle.channel.lock().ok_or_else(|| forked(VERB))?;
        let fd = channel.as_fd().as_raw_fd() as u32;
        let body = MigrateId { response: 0, id: self.handle.number, fd };
        to.manager().ask(VERB, body).map_err(perhaps_removed)?;
        *channel = to.clone();
        Ok(())
    }

    /// Sets the IP type of service of the connection's packets. Call it before resolving the route.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_type_of_service(&self, tos: u8) -> Result<()> {
        self.set(IdOption::TOS, &mut [tos])
    }

    /// Sets whether other ids may bind to the same address and port, if they allow it too. Call it
    /// before binding. An id can listen only while no other id is bound to the address; others may
    /// bind afterwards.
    ///
    /// # Errors
    /// EINVAL for `false` after binding.
    pub fn set_reuse_address(&self, allowed: bool) -> Result<()> {
        self.set(IdOption::REUSEADDR, &mut i32::from(allowed).to_ne_bytes())
    }

    /// Sets whether a listener on an IPv6 address refuses IPv4 requests. Call it before listening.
    ///
    /// # Errors
    /// EINVAL while it listens.
    pub fn set_ipv6_only(&self, only: bool) -> Result<()> {
        self.set(IdOption::AFONLY, &mut i32::from(only).to_ne_bytes())
    }

    /// Sets the local ACK timeout of the queue pair, for reliable connections only. Call it before
    /// resolving the route or, on the accepting side, before accepting.
    ///
    /// # Errors
    /// EINVAL for other queue pair types.
    pub fn set_ack_timeout(&self, timeout: AckTimeout) -> Result<()> {
        self.set(IdOption::ACK_TIMEOUT, &mut [timeout.code()])
    }

    #[doc(alias = "rdma_set_option")]
    fn set(&self, option: IdOption, value: &mut [u8]) -> Result<()> {
        const VERB: &str = "set_option";
        let body = SetOption {
            id: self.handle.number,
            level: OptionLevel::ID,
            optname: option.0,
            ..SetOption::default()
        };
        let channel = self.handle.channel.lock().ok_or_else(|| forked(VERB))?;
        channel.manager().run(VERB, body, value).map_err(perhaps_removed)
    }

    pub(super) fn query(&self) -> Result<QueryAddrResp> {
        let option = QueryOption::ADDR;
        self.handle.ask("query_addr", |id| Query { response: 0, id, option })
    }

    /// The local address, once bound or resolved.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_address(&self) -> Result<Option<SocketAddr>> {
        Ok(socket_address(&self.query()?.src_addr))
    }

    /// The peer's address, once resolved or connected.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_address(&self) -> Result<Option<SocketAddr>> {
        Ok(socket_address(&self.query()?.dst_addr))
    }

    /// The port of the device, from 1, once the id is bound to a device.
    ///
    /// # Errors
    /// `BadState` if it is not bound to a device; errors of the kernel.
    pub fn device_port(&self) -> Result<u8> {
        let found = self.query()?;
        require_device(&found)?;
        Ok(found.port_num)
    }

    /// The device that it is bound to. Binding to a local address, resolving an address, or a
    /// peer's request binds it to a device. The channel opens the device at the first call and
    /// keeps it open.
    ///
    /// # Errors
    /// `BadState` if it is not bound to a device; as [`Device::open`](crate::Device::open).
    pub fn context(&self) -> Result<Context> {
        let found = self.query()?;
        require_device(&found)?;
        self.channel()?.context(found.node_guid.get())
    }

    /// Fails if a queue pair of `context` is on another device than the id. On the id's device its
    /// number would be that of another queue pair or of none, so no message would arrive.
    pub(super) fn require_own(&self, verb: &'static str, context: &Context) -> Result<()> {
        let guid = self.query()?.node_guid.get();
        if guid == 0 || guid == context.attributes()?.node_guid().0 {
            return Ok(());
        }
        Err(Error::invalid(verb, "the queue pair is on another device than the id")
            .cure_with("make it on the device of the id (Id::context)"))
    }
}

fn require_device(found: &QueryAddrResp) -> Result<()> {
    if found.node_guid.get() != 0 {
        return Ok(());
    }
    let cause = "the id is not bound to a device";
    Err(Error::new("query_addr", ErrorKind::BadState, cause)
        .cure_with("resolve an address first, or bind to one that is not a wildcard"))
}

/// Milliseconds, rounded up to at least 1: the kernel refuses a timeout of 0.
pub(super) fn milliseconds(time: Duration) -> u32 {
    time.as_nanos().div_ceil(1_000_000).clamp(1, i32::MAX as u128) as u32
}
