//! Connecting to an address in one call.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use uverbs_mlx5::mmio::Register;

use super::channel::Channel;
use super::connection::{Connection, Link, Resources};
use super::event::{Event, EventKind, Reply};
use super::id::{Id, PortSpace};
use super::infiniband::IbAddress;
use super::params::{ConnectOptions, QpOptions};
use super::private_data::RequestData;
use crate::device::context::Context;
use crate::device::layer::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::qp::qp_type::Rc;
use crate::qp::{AccessFlags, QueuePair};

/// Time limit for address and route resolution, unless the caller's timeout is shorter, as in
/// librdmacm's programs.
const RESOLVE: Duration = Duration::from_secs(2);

/// Connects to a listener at `address`, on the device that has a route to it, and returns a
/// connected queue pair. [`Connector`] has options, and [`cm`](super) an example. Each call opens
/// the device; with [`Connector::context`], several connections share one open file.
///
/// # Errors
/// As [`Connector::connect`].
#[doc(alias = "rdma_create_ep")]
#[doc(alias = "rdma_getaddrinfo")]
pub fn connect(address: impl ToSocketAddrs) -> Result<Connection> {
    Connector::new().connect(address)
}

/// Requests that may be outstanding in the queues that [`Connector::connect`] and
/// [`ListenerBuilder::bind`](super::ListenerBuilder::bind) make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depths {
    pub(super) send: u32,
    pub(super) receive: u32,
}

impl Default for Depths {
    fn default() -> Self {
        Self { send: 128, receive: 128 }
    }
}

impl Depths {
    /// Makes a queue pair with its own protection domain and completion queue.
    pub(super) fn make(self, id: &Id) -> Result<(QueuePair<Rc>, Resources)> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(self.send.saturating_add(self.receive)).build()?;
        let qp = id.create_qp::<Rc, _>(&pd, cq.handle(), cq.handle())?;
        let qp = qp.max_send_wr(self.send).max_recv_wr(self.receive).build()?;
        Ok((qp, Resources { cq, pd }))
    }
}

/// Options of the connecting side.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use std::time::Duration;
/// use uverbs::cm::{Connector, Listener, RequestData};
/// let context = uverbs::device("soft")?.open()?;
/// let mut listener = Listener::builder().context(&context).bind("127.0.0.1:0")?;
/// let address = listener.local_address()?;
/// let server = std::thread::spawn(move || listener.accept());
/// let connection = Connector::new()
///     .context(&context)
///     .timeout(Duration::from_secs(10))
///     .private_data(RequestData::of(b"hello"))
///     .connect(address)?;
/// let peer = server.join().unwrap()?;
/// assert_eq!(peer.private_data()[..5], *b"hello");
/// # drop(connection);
/// # }
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is connected until connect() is called"]
pub struct Connector {
    options: ConnectOptions,
    qp: QpOptions,
    depths: Depths,
    context: Option<Context>,
    source: Option<SocketAddr>,
    timeout: Option<Duration>,
    type_of_service: Option<u8>,
}

impl Connector {
    /// A connector with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the device. By default the address decides, among the kernel's devices, unless the
    /// environment variable `UVERBS_DEVICE` names the software device.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Sets the local address to connect from; its port may be 0.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Limits the time to connect, without name resolution. By default, connecting to a peer that
    /// does not answer fails after 74 to 78 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets private data for the peer.
    pub fn private_data(mut self, data: RequestData) -> Self {
        self.options.private_data = data;
        self
    }

    /// Sets the peer's rights; none by default.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.qp.access = access;
        self
    }

    /// Sends and receives that may be outstanding; 128 each by default.
    pub fn queue_depths(mut self, send: u32, receive: u32) -> Self {
        self.depths = Depths { send, receive };
        self
    }

    /// Sets the IP type of service of the packets.
    pub fn type_of_service(mut self, tos: u8) -> Self {
        self.type_of_service = Some(tos);
        self
    }

    /// Changes any other parameter of the request.
    pub fn options(mut self, change: impl FnOnce(&mut ConnectOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Changes any other option of the queue pair.
    pub fn qp(mut self, change: impl FnOnce(&mut QpOptions)) -> Self {
        change(&mut self.qp);
        self
    }

    /// Connects, and returns when the connection is established. If a name has several addresses,
    /// they are tried in order.
    ///
    /// # Errors
    /// `NotFound` if no RDMA device has a route to the address; ENETUNREACH if there is no route;
    /// `TimedOut` if the host or the program does not answer; ECONNREFUSED with the peer's
    /// [`Rejection`](super::Rejection) as the source; errors of creating the queue pair.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        let depths = self.depths;
        self.connect_with(address, move |id| depths.make(id))
    }

    /// As [`Connector::connect`], to a GID. [`Connector::source`] is only for IP addresses.
    ///
    /// # Errors
    /// As [`Connector::connect`]; ENODEV over RoCE.
    pub fn connect_ib(&self, address: IbAddress) -> Result<Connection> {
        let depths = self.depths;
        self.connect_to(address.into(), self.deadline(), &mut move |id| depths.make(id))
    }

    /// As [`Connector::connect`], with a queue pair that `make` creates in RESET or INIT, on the
    /// device of its argument, the id ([`Id::context`], [`Id::device_port`]). The second value that
    /// `make` returns becomes [`Connection::resources`].
    ///
    /// # Errors
    /// As [`Connector::connect`]; errors of `make`.
    pub fn connect_with<L: Layer, X, R: Register>(
        &self,
        address: impl ToSocketAddrs,
        mut make: impl FnMut(&Id) -> Result<(QueuePair<Rc, L, R>, X)>,
    ) -> Result<Connection<L, X, R>> {
        let addresses = addresses(address)?;
        let deadline = self.deadline();
        let mut failed = Error::invalid("connect", "the name has no address");
        for address in addresses {
            match self.connect_to(address.into(), deadline, &mut make) {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }

    fn connect_to<L: Layer, X, R: Register>(
        &self,
        address: Destination,
        deadline: Option<Instant>,
        make: &mut impl FnMut(&Id) -> Result<(QueuePair<Rc, L, R>, X)>,
    ) -> Result<Connection<L, X, R>> {
        let mut connecting = self.begin(address)?;
        loop {
            let event = match deadline {
                Some(deadline) => connecting.channel.next_event_until(deadline),
                None => connecting.channel.next_event(),
            };
            match event {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(connecting.timed_out(error));
                }
                event => {
                    if let Some(reply) = connecting.step(event?, make)? {
                        return connecting.finish(reply);
                    }
                }
            }
        }
    }

    /// Starts to connect.
    pub(crate) fn begin<L: Layer, X, R: Register>(
        &self,
        address: Destination,
    ) -> Result<Connecting<L, X, R>> {
        let channel = match &self.context {
            Some(context) => Channel::of(context)?,
            None => Channel::open()?,
        };
        let id = channel.create_id(PortSpace::Tcp)?;
        if let Some(tos) = self.type_of_service {
            id.set_type_of_service(tos)?;
        }
        let resolve = self.timeout.unwrap_or(RESOLVE).min(RESOLVE);
        match address {
            Destination::Ip(address) => id.resolve_address(self.source, address, resolve)?,
            Destination::InfiniBand(address) => id.resolve_ib_address(address, resolve)?,
        }
        let (options, qp) = (self.options, self.qp);
        Ok(Connecting { id, channel, address, resolve, options, qp, made: None })
    }

    /// The function that makes the queue pairs of [`Connector::connect`].
    #[cfg(feature = "tokio")]
    pub(crate) fn maker(&self) -> impl FnMut(&Id) -> Result<(QueuePair<Rc>, Resources)> + use<> {
        let depths = self.depths;
        move |id| depths.make(id)
    }
}

pub(super) fn addresses(address: impl ToSocketAddrs) -> Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs().map_err(|error| {
        let error = Error::io("getaddrinfo", &error);
        error.cure_with(
            "check the name; an address is HOST:PORT, such as 10.0.0.1:7471, and a cm::Address if \
             it has an interface ([fe80::1%eth0]:7471)",
        )
    })?;
    Ok(found.collect())
}

/// The address to connect to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    Ip(SocketAddr),
    InfiniBand(IbAddress),
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl From<IbAddress> for Destination {
    fn from(address: IbAddress) -> Self {
        Self::InfiniBand(address)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::InfiniBand(address) => {
                write!(f, "{}, service {:#x}", address.gid, address.service_id)
            }
        }
    }
}

/// A connection that is not established yet. Each event moves it one step further.
#[derive(Debug)]
pub(crate) struct Connecting<L: Layer, X, R: Register> {
    id: Id,
    pub(crate) channel: Channel,
    address: Destination,
    resolve: Duration,
    options: ConnectOptions,
    qp: QpOptions,
    made: Option<(QueuePair<Rc, L, R>, X)>,
}

impl<L: Layer, X, R: Register> Connecting<L, X, R> {
    /// Handles an event and starts the next step. Returns the peer's reply when it has arrived.
    pub(crate) fn step(
        &mut self,
        event: Event,
        make: &mut impl FnMut(&Id) -> Result<(QueuePair<Rc, L, R>, X)>,
    ) -> Result<Option<Reply>> {
        match event.kind {
            EventKind::AddressResolved => self.id.resolve_route(self.resolve).map(|()| None),
            EventKind::RouteResolved => self.request(make).map(|()| None),
            EventKind::ConnectResponse(reply) => Ok(Some(reply)),
            other => match other.into_failure() {
                Some(error) => Err(error.asked(self.address.to_string())),
                None => Ok(None),
            },
        }
    }

    fn request(
        &mut self,
        make: &mut impl FnMut(&Id) -> Result<(QueuePair<Rc, L, R>, X)>,
    ) -> Result<()> {
        let made = make(&self.id)?;
        self.id.connect(&made.0, &self.options)?;
        self.made = Some(made);
        Ok(())
    }

    /// Establishes the connection.
    pub(crate) fn finish(self, reply: Reply) -> Result<Connection<L, X, R>> {
        let Some((mut qp, resources)) = self.made else {
            return Err(Error::invalid("connect", "a response to no request"));
        };
        if let Some(ece) = reply.ece {
            qp.set_ece(ece)?;
        }
        self.id.establish(&mut qp, &self.qp)?;
        let link = Link::new(self.id, self.channel, reply.private_data);
        Ok(Connection { link, qp, resources })
    }

    fn timed_out(&self, error: Error) -> Error {
        let waited = match self.made {
            None => "its address could not be resolved in time",
            Some(_) => "the peer did not answer in time",
        };
        error.asked(self.address.to_string()).because(waited)
    }
}
