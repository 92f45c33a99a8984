//! Options of streams and listeners.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use uverbs::Context;
use uverbs::qp::AckTimeout;

use crate::{Listener, Stream};

/// The size of the largest ring in bytes. Lengths are sent as 32 bits of immediate data.
pub(crate) const MAX_RING: u32 = 1 << 30;
/// Most data messages in flight to the peer.
const MESSAGES: u32 = 112;
/// Receives for reports, in addition to those for data. Each report covers at least a quarter of
/// the ring or a quarter of the messages, so at most 8 can be in flight before the peer polls one,
/// and with them one for the end of the data and one that wakes a reader.
pub(crate) const RESERVED: u32 = 16;
/// Receives that are posted.
pub(crate) const RECEIVES: u32 = MESSAGES + RESERVED;
/// Sends that may be outstanding.
pub(crate) const SENDS: u32 = 256;
/// The most bytes that a send has inline.
pub(crate) const INLINE: u32 = 128;

const MAX_SLOT: u32 = 16 << 20;
const MIN_SLOTS: u32 = 4;
/// The kernel's default limit of a backlog (`net.rdma_ucm.max_backlog`).
const MAX_WAITING: u32 = 1024;

/// A builder for streams and listeners. [`Stream::connect`] and [`Listener::bind`] use the
/// defaults.
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

    /// The device to use. By default the address selects one of the kernel's devices, unless the
    /// environment variable `UVERBS_DEVICE` names the software device.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// How many bytes the peer may send before they are read here: 1 to 2^30, rounded up to whole
    /// pages; 128 KiB by default.
    pub fn receive_ring(mut self, bytes: u32) -> Self {
        self.ring = bytes;
        self
    }

    /// The registered buffers from which written bytes are sent: `buffers` (4 to 256) of `bytes`
    /// each (1 byte to 16 MiB); by default 8 of 16 KiB. One RDMA WRITE carries at most one buffer.
    /// Writes of up to 1 KiB, or of up to `bytes` if that is less, have 32 additional buffers.
    pub fn send_buffers(mut self, buffers: u32, bytes: u32) -> Self {
        (self.slots, self.slot_bytes) = (buffers, bytes);
        self
    }

    /// How long a call that has to wait polls before it sleeps; by default it does not poll.
    /// Polling avoids the latency of a wake-up, but occupies a processor. Tokio streams never poll.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long connecting may take, for all addresses of a name together. It begins after the name
    /// is looked up; the lookup is not limited. By default there is no limit, and connecting to a
    /// peer that does not answer fails after 74 to 78 seconds (16 attempts, at least 4.6 s apart).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The local ACK timeout of the queue pair, and how often (0 to 7) a packet is sent again. If
    /// the peer's machine fails, a write notices that after about four times their product. The
    /// defaults are the connection manager's 1.07 s, and 7.
    pub fn acknowledgement(mut self, timeout: AckTimeout, retries: u8) -> Self {
        (self.ack_timeout, self.retries) = (Some(timeout), retries);
        self
    }

    /// How long dropping a stream waits, at most, until the peer's device has all written bytes; 10
    /// seconds by default. Dropping a tokio stream does not wait: the connection stays open for at
    /// most that time while the runtime runs. With zero, dropping aborts the connection, and the
    /// peer gets `ConnectionReset`.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// The most connection requests that may wait to be accepted; by default the host's limit (1024
    /// unless configured).
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// The most half-open peers: those that have not yet confirmed their connection, for which the
    /// listener already has queues, a ring and send buffers; 256 by default. A peer that never
    /// confirms counts for about a minute, until the connection manager gives up. Peers of one
    /// address can be at most three quarters of them. At the limit, the oldest peer of the address
    /// with the most is evicted, if it has been silent for 5 s, for a peer of an address with at
    /// least two fewer. Further peers wait without queues and buffers, as many as the
    /// [backlog](Self::backlog) allows; the listener refuses more.
    pub fn half_open(mut self, peers: u32) -> Self {
        self.half_open = peers;
        self
    }

    /// The most requests that wait without queues.
    pub(crate) fn most_waiting(&self) -> usize {
        let most = if self.backlog == 0 { MAX_WAITING } else { self.backlog };
        most as usize
    }

    /// Lets connecting ids bind to the listener's address, if they also allow it (see
    /// `uverbs::cm::ListenerBuilder::reuse_address`). No other id can listen on it.
    pub fn reuse_address(mut self) -> Self {
        self.reuse_address = true;
        self
    }

    /// Listens on `address`. If a name has several addresses, the first that works is used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes out of range; `AddrInUse`; `AddrNotAvailable` if the address is not
    /// one of this machine, or a listener on all addresses has the port; `NotFound` if no RDMA
    /// device has the address or there is no connection manager; other errors of the kernel.
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::bind_with(self.check()?, address)
    }

    /// Connects to `address`. If a name has several addresses, the first that works is used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes out of range; `ConnectionRefused` with the peer's
    /// `uverbs::cm::Rejection` among the sources; `ConnectionReset` if the peer ends just after it
    /// has accepted; `InvalidData` if the peer does not use this library's streams; `TimedOut`;
    /// `NetworkUnreachable`; `NotFound` if no RDMA device leads to the address; other errors of the
    /// kernel.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<Stream> {
        Stream::connect_with(self.check()?, address)
    }

    pub(crate) fn check(&self) -> io::Result<&Self> {
        let refuse = |cause| Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        match self {
            Self { ring, .. } if *ring == 0 || *ring > MAX_RING => {
                refuse("the receive ring must have 1 byte to 1 GiB")
            }
            Self { slots, .. } if !(MIN_SLOTS..=SENDS).contains(slots) => {
                refuse("there must be 4 to 256 send buffers")
            }
            Self { slot_bytes, .. } if *slot_bytes == 0 || *slot_bytes > MAX_SLOT => {
                refuse("a send buffer must have 1 byte to 16 MiB")
            }
            Self { retries, .. } if *retries > 7 => {
                refuse("a packet is sent again at most 7 times")
            }
            Self { half_open: 0, .. } => refuse("a listener needs at least one half-open peer"),
            _ => Ok(self),
        }
    }
}
