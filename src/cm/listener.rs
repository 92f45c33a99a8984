//! Listening at an address, and accepting connections.

use std::any::Any;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use uverbs_mlx5::mmio::{BlueFlame, Register};

use super::channel::Channel;
use super::connection::{Connection, Link, Resources};
use super::connector::{Depths, addresses};
use super::event::{Event, EventKind};
use super::half_open::{HalfOpen, Source};
use super::id::{Id, IdKey, PortSpace};
use super::infiniband::IbAddress;
use super::params::AcceptOptions;
use super::private_data::{RejectData, ReplyData};
use super::request::ConnectionRequest;
use crate::device::context::Context;
use crate::device::layer::{Layer, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::qp::qp_type::Rc;
use crate::qp::{AccessFlags, QueuePair};

/// Listens at `address`; port 0 chooses a free port. [`Listener::builder`] has options, and
/// [`cm`](super) an example.
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
/// It accepts requests as they arrive, and [`Listener::accept`] returns connections in the order in
/// which they are established. So a peer that requests a connection and then falls silent does not
/// delay others.
///
/// Its file ([`AsFd`]) is readable while there is an event for [`Listener::try_accept`]. It does
/// not become readable when a silent peer's time is over, so a program that waits for the file also
/// calls [`Listener::try_accept`] every few seconds.
pub struct Listener<L: Layer = Safe, X = Resources, R: Register = BlueFlame> {
    id: Id,
    channel: Channel,
    /// The next connection's channel. Opened before an event is taken, so that no event is lost if
    /// there is no free file descriptor.
    next: Option<Channel>,
    options: AcceptOptions,
    make: Make<L, X, R>,
    /// Accepted peers that have not confirmed, and waiting requests. The kernel does not report
    /// that a waiting peer has given up; accepting its request then fails.
    half_open: HalfOpen<IdKey, Pending<L, X, R>, ConnectionRequest>,
    /// The first panic of `make` for a peer that waited; the next call continues it.
    panic: Option<Box<dyn Any + Send>>,
    /// Whether the device was removed; no further event follows.
    is_removed: bool,
}

impl<L: Layer, X, R: Register> fmt::Debug for Listener<L, X, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("id", &self.id).finish_non_exhaustive()
    }
}

struct Pending<L: Layer, X, R: Register> {
    id: Id,
    qp: QueuePair<Rc, L, R>,
    resources: X,
    private_data: Vec<u8>,
}

/// Options of a listener.
#[derive(Debug, Clone)]
#[must_use = "nothing listens until bind() is called"]
pub struct ListenerBuilder {
    options: AcceptOptions,
    depths: Depths,
    backlog: u32,
    half_open: u32,
    context: Option<Context>,
    reuse_address: bool,
    ipv6_only: bool,
}

/// Default limit of waiting requests, as in the kernel (sysctl `net.rdma_ucm.max_backlog`).
const MAX_WAITING: u32 = 1024;

/// Default limit of peers that have not confirmed.
const HALF_OPEN: u32 = 256;

impl Default for ListenerBuilder {
    fn default() -> Self {
        let (options, depths, backlog, context, reuse_address, ipv6_only) = Default::default();
        let half_open = HALF_OPEN;
        Self { options, depths, backlog, half_open, context, reuse_address, ipv6_only }
    }
}

impl ListenerBuilder {
    /// Sets the device. By default the listener accepts requests on all of the kernel's devices
    /// that have the address, unless the environment variable `UVERBS_DEVICE` names the software
    /// device.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Limits the requests that may wait for [`Listener::accept`]; by default the host's limit
    /// (1024).
    pub fn backlog(mut self, requests: u32) -> Self {
        self.backlog = requests;
        self
    }

    /// Limits the peers that have a queue pair but have not confirmed the connection; 256 by
    /// default. A peer that never confirms keeps its place for about a minute, until the connection
    /// manager gives it up. Peers of one address get at most three quarters of the places. When all
    /// are taken, a peer of an address with at least two fewer replaces the oldest peer of the
    /// address with the most, if that peer has been silent for 5 s. Further requests wait without a
    /// queue pair, up to the [backlog](Self::backlog). The listener refuses the rest
    /// ([`RejectReason::BY_PROGRAM`](super::RejectReason::BY_PROGRAM)), with the private data "too
    /// many peers wait".
    pub fn half_open(mut self, peers: u32) -> Self {
        self.half_open = peers;
        self
    }

    /// Lets connecting ids bind to the same address, if they allow it too
    /// ([`Id::set_reuse_address`]). No other id can listen at it.
    pub fn reuse_address(mut self) -> Self {
        self.reuse_address = true;
        self
    }

    /// Lets a listener on an IPv6 address refuse IPv4 requests.
    pub fn ipv6_only(mut self) -> Self {
        self.ipv6_only = true;
        self
    }

    /// Sets private data for each peer.
    pub fn private_data(mut self, data: ReplyData) -> Self {
        self.options.private_data = data;
        self
    }

    /// Sets the peers' rights; none by default.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.options.qp.access = access;
        self
    }

    /// Sends and receives that may be outstanding per connection; 128 each by default.
    pub fn queue_depths(mut self, send: u32, receive: u32) -> Self {
        self.depths = Depths { send, receive };
        self
    }

    /// Changes any other parameter of accepting.
    pub fn options(mut self, change: impl FnOnce(&mut AcceptOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Binds and listens. If a name has several addresses, they are tried in order. Each connection
    /// gets its own protection domain and completion queue.
    ///
    /// # Errors
    /// `NotFound` if no RDMA device has the address, or there is no connection manager; EADDRINUSE
    /// (software devices of all processes share the ports of 127.0.0.1 in a network namespace);
    /// `InvalidInput` if [`half_open`](Self::half_open) is 0; errors of the kernel.
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<Listener> {
        let depths = self.depths;
        self.bind_with(address, move |request| depths.make(request.id()))
    }

    /// As [`ListenerBuilder::bind`], at a GID.
    ///
    /// # Errors
    /// As [`ListenerBuilder::bind`].
    pub fn bind_ib(self, address: IbAddress) -> Result<Listener> {
        let (channel, depths) = (self.channel()?, self.depths);
        let id = self.listen_at(&channel, |id| id.bind_ib(address))?;
        Ok(self.listening(id, channel, move |request| depths.make(request.id())))
    }

    /// As [`ListenerBuilder::bind`], with queue pairs that `make` creates in RESET or INIT, on the
    /// device of the request ([`ConnectionRequest::context`]). The second value that `make` returns
    /// becomes [`Connection::resources`]. If `make` fails, the peer is refused and
    /// [`Listener::accept`] returns the error. If `make` fails for a request that waited
    /// ([`half_open`](Self::half_open)), the error may only be logged, because the same call
    /// returns another, established connection; if it panics then, the next call panics.
    ///
    /// A peer may send before [`Listener::accept`] returns its connection, and the connection may
    /// fail later. A program with a common completion queue has to keep such messages of queue
    /// pairs (`qp_num`) that it does not know yet: see `examples/cm_tasks.rs`.
    ///
    /// # Errors
    /// As [`ListenerBuilder::bind`].
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
        if self.half_open == 0 {
            return Err(Error::invalid("listen", "no peer may be half open")
                .cure_with("give half_open at least 1"));
        }
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
        let waiting = if self.backlog == 0 { MAX_WAITING } else { self.backlog };
        let half_open = HalfOpen::new(self.half_open as usize, waiting as usize, Instant::now());
        let (options, make) = (self.options, Box::new(make));
        let (next, panic, is_removed) = Default::default();
        Listener { id, channel, next, options, make, half_open, panic, is_removed }
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
    /// Starts building a listener.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }
}

impl<L: Layer, X, R: Register> Listener<L, X, R> {
    /// Its address, with the chosen port.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn local_address(&self) -> Result<SocketAddr> {
        let address = self.id.local_address()?;
        address.ok_or_else(|| Error::invalid("query_addr", "the listener has no IP address"))
    }

    /// The listening id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The channel of the listener and of half-open connections.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for the next established connection.
    ///
    /// # Errors
    /// Errors of making a queue pair, whose peer is refused; `Interrupted` by a signal. The
    /// listener stays usable after both. `DeviceGone` from every call after the listener's device
    /// was removed. A listener at all addresses has no device of its own and continues to wait.
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&mut self) -> Result<Connection<L, X, R>> {
        self.accept_by(None)
    }

    /// As [`Listener::accept`], until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`; as [`Listener::accept`].
    pub fn accept_until(&mut self, deadline: Instant) -> Result<Connection<L, X, R>> {
        self.accept_by(Some(deadline))
    }

    /// As [`Listener::accept`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if no connection is established; as [`Listener::accept`].
    pub fn try_accept(&mut self) -> Result<Connection<L, X, R>> {
        loop {
            self.prepare()?;
            let event = self.arrived()?.map_or_else(|| self.channel.try_next_event(), Ok)?;
            if let Some(connection) = self.step(event)? {
                return Ok(connection);
            }
        }
    }

    fn accept_by(&mut self, deadline: Option<Instant>) -> Result<Connection<L, X, R>> {
        loop {
            self.prepare()?;
            let Some(event) = self.next_event(deadline)? else { continue };
            if let Some(connection) = self.step(event)? {
                return Ok(connection);
            }
        }
    }

    /// When a silent peer may lose its place.
    pub(crate) fn next_eviction(&self) -> Option<Instant> {
        self.half_open.next_eviction()
    }

    /// The next event; `None` if a silent peer may lose its place before one arrives.
    fn next_event(&mut self, deadline: Option<Instant>) -> Result<Option<Event>> {
        if let Some(event) = self.arrived()? {
            return Ok(Some(event));
        }
        let eviction = self.next_eviction();
        let Some(until) = deadline.into_iter().chain(eviction).min() else {
            return self.channel.next_event().map(Some);
        };
        match self.channel.next_event_until(until) {
            Err(error) if error.kind() == ErrorKind::TimedOut && deadline != Some(until) => {
                Ok(None)
            }
            event => event.map(Some),
        }
    }

    /// Takes an event that has arrived. If there is none, no confirmation is waiting to be handled,
    /// so peers that have been silent for too long lose their places.
    pub(crate) fn arrived(&mut self) -> Result<Option<Event>> {
        let now = Instant::now();
        match self.channel.try_next_event() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.half_open.heard(now);
                self.accept_waiting().map(|()| None)
            }
            event => event.map(Some),
        }
    }

    /// Continues a panic of `make` from an earlier call, and opens the next connection's channel.
    ///
    /// # Errors
    /// `DeviceGone` if the device was removed; as [`Channel::open`].
    pub(crate) fn prepare(&mut self) -> Result<()> {
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
        self.require_device()?;
        if self.next.is_none() {
            self.next = Some(self.channel.open_another()?);
        }
        Ok(())
    }

    fn require_device(&self) -> Result<()> {
        let removed = || Error::new("accept", ErrorKind::DeviceGone, "the device was removed");
        if self.is_removed { Err(removed()) } else { Ok(()) }
    }

    /// Handles an event. Returns the connection that it establishes, if it does.
    pub(crate) fn step(&mut self, event: Event) -> Result<Option<Connection<L, X, R>>> {
        match event.kind {
            EventKind::ConnectRequest(request) => self.accept_or_queue(request).map(|()| None),
            // A peer that disconnects was connected: its confirmation was lost, but it may have
            // sent messages.
            EventKind::Established | EventKind::Disconnected(_) => {
                let Some(pending) = self.half_open.remove(event.id) else { return Ok(None) };
                let connection = self.finish(pending);
                self.fill_place();
                let connection = connection?;
                let agreed = connection.link.take(event);
                tracing::debug!(?agreed, "a connection is established");
                Ok(Some(connection))
            }
            EventKind::DeviceRemoval if event.id == self.id.key() => {
                self.is_removed = true;
                self.require_device().map(|()| None)
            }
            other => {
                if let Some(error) = other.into_failure() {
                    tracing::debug!(%error, "a peer gave up");
                    if self.half_open.remove(event.id).is_some() {
                        self.fill_place();
                    }
                }
                Ok(None)
            }
        }
    }

    /// Accepts a request if another peer of its source may be half open. Otherwise the request
    /// waits, or one request is refused.
    fn accept_or_queue(&mut self, request: ConnectionRequest) -> Result<()> {
        if let Err(refused) = self.half_open.queue(request.source(), request) {
            refuse(refused);
        }
        self.accept_waiting()
    }

    fn accept_waiting(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(taken) = self.take_next() {
            result = result.and(taken);
        }
        result
    }

    /// Accepts waiting requests in the place of a peer that is no longer half open. This cannot
    /// wait for the next event, because there may be none. A panic of `make` is kept for the next
    /// call, because this call has to return its connection.
    fn fill_place(&mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.take_next())) {
                Ok(None) => return,
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(error))) => {
                    tracing::warn!(%error, "a peer that waited was not accepted");
                }
                Err(panic) => _ = self.panic.get_or_insert(panic),
            }
        }
    }

    /// Accepts the next waiting request, if there is a place for it.
    fn take_next(&mut self) -> Option<Result<()>> {
        let (source, request, silent) = self.half_open.open_next()?;
        drop(silent);
        Some(self.take(source, request))
    }

    /// Accepts a request. If the peer has given up, this is logged and not an error.
    fn take(&mut self, source: Source, request: ConnectionRequest) -> Result<()> {
        // Uncounted while `make` runs, because it may panic.
        self.half_open.give_up(source);
        let (mut qp, resources) = (self.make)(&request)?;
        let private_data = request.private_data().to_vec();
        match request.accept(&mut qp, &self.options) {
            Ok(id) => {
                let (key, pending) = (id.key(), Pending { id, qp, resources, private_data });
                self.half_open.begin(source);
                self.half_open.add(key, source, pending, Instant::now());
                Ok(())
            }
            // A queue pair of another device is the program's mistake. Other errors may be the
            // peer's fault: its request decides the path MTU, for example.
            Err(error) if !error.is_from_kernel() && error.verb() == "accept" => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a peer was not accepted");
                Ok(())
            }
        }
    }

    /// Moves the connection to its own channel.
    fn finish(&mut self, pending: Pending<L, X, R>) -> Result<Connection<L, X, R>> {
        let Pending { id, qp, resources, private_data } = pending;
        let channel = self.next.take().map_or_else(|| self.channel.open_another(), Ok)?;
        id.migrate(&channel)?;
        let link = Link::new(id, channel, private_data);
        Ok(Connection { link, qp, resources })
    }
}

fn refuse(request: ConnectionRequest) {
    const CAUSE: &[u8] = b"too many peers wait";
    tracing::warn!("a peer was refused: too many wait");
    let told = request.reject(&RejectData::new(CAUSE).unwrap_or_default());
    tracing::debug!(?told, "the peer was told why");
}

/// Readable while there is an event for [`Listener::try_accept`].
impl<L: Layer, X, R: Register> AsFd for Listener<L, X, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
