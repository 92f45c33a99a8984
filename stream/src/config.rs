//! Options of streams and listeners.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use uverbs::Context;
use uverbs::qp::AckTimeout;

use crate::{Listener, Stream};

/// Bytes of the largest ring: lengths are sent as the 32 bits of immediate data.
pub(crate) const MAX_RING: u32 = 1 << 30;
/// Most data messages in flight to the peer.
const MESSAGES: u32 = 112;
/// Receives for reports, besides those for data. Each report covers at least a quarter of the ring
/// or a quarter of the messages. So before the peer polls one, at most 8 of them can be in flight,
/// with one for the end of the data and one that wakes a reader.
pub(crate) const RESERVED: u32 = 16;
/// Receives that are posted.
pub(crate) const RECEIVES: u32 = MESSAGES + RESERVED;
/// Sends that may be outstanding.
pub(crate) const SENDS: u32 = 256;
/// Bytes that travel inside the work request.
pub(crate) const INLINE: u32 = 128;

const MAX_SLOT: u32 = 16 << 20;
const MIN_SLOTS: u32 = 4;
/// The kernel's default limit of a backlog (`net.rdma_ucm.max_backlog`).
const MAX_WAITING: u32 = 1024;

/// Options of streams and of listeners, in the manner of a builder. [`Stream::connect`] and
/// [`Listener::bind`] have the defaults.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use std::time::Duration;
/// use uverbs_stream::Config;
/// let context = uverbs::device("soft")?.open()?;
/// let config = Config::new().context(&context).receive_ring(1 << 20);
/// let listener = config.bind("127.0.0.1:0")?;
/// let stream = config.connect_timeout(Duration::from_secs(5)).connect(listener.local_addr()?);
/// # drop(stream);
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing happens until bind() or connect() is called"]
pub struct Config {
    pub(crate) context: Option<Context>,
    pub(crate) ring: u32,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) spin: Duration,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) ack_timeout: Option<AckTimeout>,
    pub(crate) retries: u8,
    pub(crate) linger: Duration,
    pub(crate) backlog: u32,
    pub(crate) half_open: u32,
    pub(crate) reuse_address: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            context: None,
            ring: 128 << 10,
            slots: 8,
            slot_bytes: 16 << 10,
            spin: Duration::ZERO,
            connect_timeout: None,
            ack_timeout: None,
            retries: 7,
            linger: Duration::from_secs(10),
            backlog: 0,
            half_open: 256,
            reuse_address: false,
        }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The device to use. Otherwise the address decides, among the kernel's devices, unless the
    /// environment variable `UVERBS_DEVICE` names the software device.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Bytes that the peer may send before they are read here: 1 to 2^30, rounded up to whole
    /// pages; 128 KiB by default.
    pub fn receive_ring(mut self, bytes: u32) -> Self {
        self.ring = bytes;
        self
    }

    /// Registered buffers that written bytes are sent from: `buffers` (at least 4) of `bytes` each
    /// (1 byte to 16 MiB); by default 8 of 16 KiB. One RDMA WRITE carries at most one buffer.
    /// Writes of up to 1 KiB, or of `bytes` if that is less, have 32 buffers of their own.
    pub fn send_buffers(mut self, buffers: u32, bytes: u32) -> Self {
        (self.slots, self.slot_bytes) = (buffers, bytes);
        self
    }

    /// How long a call that has to wait polls before it sleeps; the default is not to poll.
    /// Polling saves the wake-up and costs a processor. Tasks of tokio never poll.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long connecting may take, with all addresses of a name together. The time begins once
    /// the name is looked up, which it does not bound. Without a limit, connecting to a peer that
    /// does not answer fails after 74 seconds (16 attempts, 4.6 s apart; a kernel's timers make it
    /// up to 78).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The local ACK timeout of the queue pair, and how often (0 to 7) a packet is sent again: a
    /// peer that vanished is noticed by a write after about four times their product. The defaults
    /// are the connection manager's 1.07 s and 7.
    pub fn acknowledgement(mut self, timeout: AckTimeout, retries: u8) -> Self {
        (self.ack_timeout, self.retries) = (Some(timeout), retries);
        self
    }

    /// The longest time that dropping a stream waits until the peer's device has all written bytes;
    /// 10 seconds by default. In tasks dropping does not wait: the connection stays open for at
    /// most that time while the runtime runs. With zero, dropping aborts the connection: the peer
    /// gets `ConnectionReset`.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Connections that may wait to be accepted; by default the host's limit (1024).
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// The most peers for which a listener has queues, a ring and send buffers before they have
    /// confirmed their connection; 256 by default. A peer that never confirms counts for about a
    /// minute, until the connection manager gives it up. Peers of one address get at most three
    /// quarters of these places. When all are taken, the address with the most peers loses its
    /// oldest one, if that has been silent for 5 s, to an address with at least two fewer. Further
    /// peers wait without queues and buffers, as many as the [backlog](Self::backlog) allows. The
    /// listener refuses more.
    pub fn half_open(mut self, peers: u32) -> Self {
        self.half_open = peers;
        self
    }

    /// The most requests that a listener keeps without queues.
    pub(crate) fn most_waiting(&self) -> usize {
        let most = if self.backlog == 0 { MAX_WAITING } else { self.backlog };
        most as usize
    }

    /// Lets ids that connect bind to the same address, if they allow it too
    /// (`uverbs::cm::ListenerBuilder::reuse_address`). Another id
    /// cannot listen there.
    pub fn reuse_address(mut self) -> Self {
        self.reuse_address = true;
        self
    }

    /// Listens at `address`. If a name has several addresses, the first that works is used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes out of range; `AddrInUse`; `AddrNotAvailable` if the address is not
    /// this machine's, or a listener at all addresses has the port; `NotFound` if no RDMA device
    /// has the address or there is no connection manager; other errors of the kernel.
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::bind_with(self.check()?, address)
    }

    /// Connects to `address`. If a name has several addresses, the first that works is used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes out of range; `ConnectionRefused` with the peer's
    /// `uverbs::cm::Rejection` among the sources; `ConnectionReset` if the peer ends once it has
    /// accepted; `InvalidData` if the peer is not a stream; `TimedOut`; `NetworkUnreachable`;
    /// `NotFound` if no RDMA device leads to the address; other errors of the kernel.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<Stream> {
        Stream::connect_with(self.check()?, address)
    }

    pub(crate) fn check(&self) -> io::Result<&Self> {
        let refuse = |cause| Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        match self {
            Self { ring, .. } if *ring == 0 || *ring > MAX_RING => {
                refuse("a receive ring has 1 byte to 1 GiB")
            }
            Self { slots, .. } if !(MIN_SLOTS..=SENDS).contains(slots) => {
                refuse("there are 4 to 256 send buffers")
            }
            Self { slot_bytes, .. } if *slot_bytes == 0 || *slot_bytes > MAX_SLOT => {
                refuse("a send buffer has 1 byte to 16 MiB")
            }
            Self { retries, .. } if *retries > 7 => {
                refuse("a packet is sent again at most 7 times")
            }
            Self { half_open: 0, .. } => refuse("a listener has one half-open peer at least"),
            _ => Ok(self),
        }
    }
}
