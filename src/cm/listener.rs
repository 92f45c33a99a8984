//! The short way to accept.

use std::collections::HashMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use uverbs_mlx5::mmio::{BlueFlame, Register};

use super::channel::Channel;
use super::connection::{Connection, Link, Resources};
use super::connector::{Depths, addresses};
use super::event::{Event, EventKind};
use super::id::{Id, IdKey, PortSpace};
use super::infiniband::IbAddress;
use super::params::AcceptOptions;
use super::private_data::ReplyData;
use super::request::ConnectionRequest;
use crate::device::context::Context;
use crate::device::layer::{Layer, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::qp::qp_type::Rc;
use crate::qp::{AccessFlags, QueuePair};

/// Listens at `address`; port 0 is any free one. [`Listener::builder`] has the options.
///
/// # Errors
/// As [`ListenerBuilder::bind`].
#[doc(alias = "rdma_create_ep")]
pub fn listen(address: impl ToSocketAddrs) -> Result<Listener> {
    Listener::builder().bind(address)
}

/// Makes the queue pair of a request.
type Make<L, X, R> = Box<dyn FnMut(&ConnectionRequest) -> Result<(QueuePair<Rc, L, R>, X)> + Send>;

/// A listener for reliable connections.
///
/// Requests are accepted as they come. A peer that asks and then says no more does not keep others
/// waiting: [`Listener::accept`] gives the connections in the order in which they are established.
///
/// It is readable ([`AsFd`]) while there is something for [`Listener::try_accept`] to do.
pub struct Listener<L: Layer = Safe, X = Resources, R: Register = BlueFlame> {
    id: Id,
    channel: Channel,
    options: AcceptOptions,
    make: Make<L, X, R>,
    /// Accepted, but not confirmed by the peer.
    pending: HashMap<IdKey, Pending<L, X, R>>,
}

impl<L: Layer, X, R: Register> fmt::Debug for Listener<L, X, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("Listener");
        parts.field("id", &self.id).field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

struct Pending<L: Layer, X, R: Register> {
    id: Id,
    qp: QueuePair<Rc, L, R>,
    resources: X,
    private_data: Vec<u8>,
}

/// Options of a listener.
#[derive(Debug, Clone, Default)]
#[must_use = "nothing listens until bind() is called"]
pub struct ListenerBuilder {
    options: AcceptOptions,
    depths: Depths,
    backlog: u32,
    context: Option<Context>,
    reuse_address: bool,
    ipv6_only: bool,
}

impl ListenerBuilder {
    /// The device to use. Otherwise requests are taken from all of the kernel's devices that have
    /// the address, unless the environment variable `UVERBS_DEVICE` names the software device.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Requests that may wait for [`Listener::accept`]; the host's limit (1024) if not said.
    pub fn backlog(mut self, requests: u32) -> Self {
        self.backlog = requests;
        self
    }

    /// Others may listen at the same address, if they say so too.
    pub fn reuse_address(mut self) -> Self {
        self.reuse_address = true;
        self
    }

    /// A listener on an IPv6 address leaves IPv4 alone.
    pub fn ipv6_only(mut self) -> Self {
        self.ipv6_only = true;
        self
    }

    /// The program's own data for each peer.
    pub fn private_data(mut self, data: ReplyData) -> Self {
        self.options.private_data = data;
        self
    }

    /// What remote operations may do; nothing if not said.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.options.qp.access = access;
        self
    }

    /// Sends and receives that may be outstanding per connection; 128 each if not said.
    pub fn queue_depths(mut self, send: u32, receive: u32) -> Self {
        self.depths = Depths { send, receive };
        self
    }

    /// Everything else that is agreed to.
    pub fn options(mut self, change: impl FnOnce(&mut AcceptOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Binds and listens: to the first of the addresses that a name has which works. Each
    /// connection gets a protection domain and a completion queue of its own.
    ///
    /// # Errors
    /// `NotFound` if no RDMA device has the address, or there is no connection manager; EADDRINUSE
    /// (software devices of several processes do not know each other's ports: the first gets all);
    /// errors of the kernel.
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<Listener> {
        let depths = self.depths;
        self.bind_with(address, move |request| depths.make(request.id()))
    }

    /// As [`ListenerBuilder::bind`], at a GID.
    ///
    /// # Errors
    /// As there.
    pub fn bind_ib(self, address: IbAddress) -> Result<Listener> {
        let (channel, depths) = (self.channel()?, self.depths);
        let id = self.listen_at(&channel, |id| id.bind_ib(address))?;
        Ok(self.listening(id, channel, move |request| depths.make(request.id())))
    }

    /// As [`ListenerBuilder::bind`], with queue pairs that `make` makes: on the device of the
    /// request ([`ConnectionRequest::context`]), in RESET or INIT. What it returns beside one is in
    /// [`Connection::resources`]. An error refuses the peer and is returned by
    /// [`Listener::accept`].
    ///
    /// # Errors
    /// As there.
    pub fn bind_with<L: Layer, X, R: Register>(
        self,
        address: impl ToSocketAddrs,
        make: impl FnMut(&ConnectionRequest) -> Result<(QueuePair<Rc, L, R>, X)> + Send + 'static,
    ) -> Result<Listener<L, X, R>> {
        let channel = self.channel()?;
        let id = self.listen(&channel, addresses(address)?)?;
        Ok(self.listening(id, channel, make))
    }

    fn channel(&self) -> Result<Channel> {
        match &self.context {
            Some(context) => Channel::of(context),
            None => Channel::open(),
        }
    }

    fn listening<L: Layer, X, R: Register>(
        self,
        id: Id,
        channel: Channel,
        make: impl FnMut(&ConnectionRequest) -> Result<(QueuePair<Rc, L, R>, X)> + Send + 'static,
    ) -> Listener<L, X, R> {
        let (options, make) = (self.options, Box::new(make));
        Listener { id, channel, options, make, pending: HashMap::new() }
    }

    fn listen(&self, channel: &Channel, addresses: Vec<SocketAddr>) -> Result<Id> {
        let mut failed = Error::invalid("bind_addr", "the name has no address");
        for address in addresses {
            match self.listen_at(channel, |id| id.bind(address)) {
                Ok(id) => return Ok(id),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn listen_at(&self, channel: &Channel, bind: impl FnOnce(&Id) -> Result<()>) -> Result<Id> {
        let id = channel.create_id(PortSpace::Tcp)?;
        if self.reuse_address {
            id.set_reuse_address(true)?;
        }
        if self.ipv6_only {
            id.set_ipv6_only(true)?;
        }
        bind(&id)?;
        id.listen(self.backlog)?;
        Ok(id)
    }
}

impl Listener {
    /// Options, and then [`bind`](ListenerBuilder::bind).
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }
}

impl<L: Layer, X, R: Register> Listener<L, X, R> {
    /// The address that it listens at, with the port that was chosen.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn local_address(&self) -> Result<SocketAddr> {
        let address = self.id.local_address()?;
        address.ok_or_else(|| Error::invalid("query_addr", "the listener has no IP address"))
    }

    /// The id that listens.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The channel of the listener and of connections that are not established yet.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for the next connection that is established.
    ///
    /// A peer that gives up meanwhile is no error.
    ///
    /// # Errors
    /// What making the queue pair says, of a peer that is refused then; `DeviceGone` once the
    /// listener's device is removed; `Interrupted` by a signal. Another call goes on.
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&mut self) -> Result<Connection<L, X, R>> {
        loop {
            let event = self.channel.next_event()?;
            if let Some(connection) = self.step(event)? {
                return Ok(connection);
            }
        }
    }

    /// As [`Listener::accept`], until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`; as there.
    pub fn accept_until(&mut self, deadline: Instant) -> Result<Connection<L, X, R>> {
        loop {
            let event = self.channel.next_event_until(deadline)?;
            if let Some(connection) = self.step(event)? {
                return Ok(connection);
            }
        }
    }

    /// As [`Listener::accept`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if no connection is established; as there.
    pub fn try_accept(&mut self) -> Result<Connection<L, X, R>> {
        loop {
            let event = self.channel.try_next_event()?;
            if let Some(connection) = self.step(event)? {
                return Ok(connection);
            }
        }
    }

    /// Takes an event; gives the connection that it establishes.
    pub(crate) fn step(&mut self, event: Event) -> Result<Option<Connection<L, X, R>>> {
        match event.kind {
            EventKind::ConnectRequest(request) => self.take(request).map(|()| None),
            EventKind::Established => match self.pending.remove(&event.id) {
                Some(pending) => self.finish(pending).map(Some),
                None => Ok(None),
            },
            EventKind::DeviceRemoval if event.id == self.id.key() => {
                let cause = "the device was removed";
                Err(Error::new("accept", ErrorKind::DeviceGone, cause))
            }
            other => {
                if let Some(error) = other.into_failure() {
                    tracing::debug!(%error, "a peer gave up");
                    self.pending.remove(&event.id);
                }
                Ok(None)
            }
        }
    }

    /// Accepts a request; a peer that has given up is forgotten.
    fn take(&mut self, request: ConnectionRequest) -> Result<()> {
        let (mut qp, resources) = (self.make)(&request)?;
        let private_data = request.private_data().to_vec();
        match self.agree(request, &mut qp) {
            Ok(id) => {
                let pending = Pending { id, qp, resources, private_data };
                self.pending.insert(pending.id.key(), pending);
            }
            Err(error) => tracing::warn!(%error, "a peer was not accepted"),
        }
        Ok(())
    }

    fn agree(&self, request: ConnectionRequest, qp: &mut QueuePair<Rc, L, R>) -> Result<Id> {
        request.accept(qp, &self.options)
    }

    /// Gives the connection a channel of its own.
    fn finish(&self, pending: Pending<L, X, R>) -> Result<Connection<L, X, R>> {
        let Pending { id, qp, resources, private_data } = pending;
        let channel = self.channel.open_another()?;
        id.migrate(&channel)?;
        let link = Link::new(id, channel, private_data);
        Ok(Connection { link, qp, resources })
    }
}

/// Readable while there may be a connection to accept.
impl<L: Layer, X, R: Register> AsFd for Listener<L, X, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
