//! Listening for streams.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use uverbs::ErrorKind;
use uverbs::cm::{
    AcceptOptions, Channel, ConnectionRequest, Event, EventKind, HalfOpen, Id, IdKey, PortSpace,
    RejectData, Source,
};

use crate::config::Config;
use crate::connect::{channel, qp_options};
use crate::handshake::Offer;
use crate::lookup::{addresses, in_words_of_sockets};
use crate::prepared::Prepared;
use crate::shared::Shared;
use crate::stream::Stream;

/// Listens for streams, as [`TcpListener`](std::net::TcpListener) does.
///
/// Any thread may accept. Dropping or [closing](Listener::close) the listener refuses peers that
/// /// have not been accepted; accepted streams stay open.
#[derive(Debug)]
pub struct Listener {
    /// `None` once the listener is closed.
    id: Mutex<Option<Id>>,
    /// Peers are dropped after the lock is released, because destroying their objects takes system
    /// calls.
    peers: Mutex<Peers>,
    channel: Channel,
    /// Locked from taking an event until it is handled. Otherwise a thread could handle the end of
    /// a connection before another thread has handled its beginning, or has moved the connection,
    /// with such events, to its own channel.
    ///
    /// Contains the channel for the next connection. It is opened before an event is taken, so that
    /// no event is lost if no file descriptor is free.
    handling: Mutex<Option<Channel>>,
    /// Readable once the listener is closed.
    closed: EventFd,
    is_nonblocking: AtomicBool,
    address: SocketAddr,
    config: Config,
}

/// Peers whose connection is not yet established.
#[derive(Debug)]
struct Peers {
    /// Peers that were accepted and have not confirmed, those for which a thread is creating
    /// queues, and the requests that wait until there are fewer such peers. If a waiting peer gives
    /// up, the kernel reports that only when the peer is accepted.
    half_open: HalfOpen<IdKey, Pending, (ConnectionRequest, Offer)>,
    /// Whether the listener is closed. Other threads may still be handling requests.
    is_closed: bool,
}

#[derive(Debug)]
struct Pending {
    id: Id,
    prepared: Prepared,
    peer: Offer,
}

/// What to do after an event. Objects are destroyed and peers rejected only when other threads can
/// take the next event.
#[derive(Debug)]
enum Step {
    Nothing,
    Connected(Established),
    /// The peer gave up.
    Ended(Pending),
    Refused(ConnectionRequest, &'static str),
    /// The device is gone.
    Removed,
}

/// A connection that has been established.
#[derive(Debug)]
struct Established {
    pending: Pending,
    /// Where its further events arrive.
    channel: uverbs::Result<Channel>,
    /// Whether the peer has disconnected meanwhile.
    has_left: bool,
}

impl Listener {
    /// Listens on `address`; port 0 chooses a free port. [`Config`] has options.
    ///
    /// # Errors
    /// As [`Config::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Config::new().bind(address)
    }

    pub(crate) fn bind_with(config: &Config, address: impl ToSocketAddrs) -> io::Result<Self> {
        let channel = channel(config)?;
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in addresses(address)? {
            match listen(&channel, config, address) {
                Ok(id) => return Self::new(id, channel, config),
                Err(error) => failed = not_bound(error),
            }
        }
        Err(failed)
    }

    fn new(id: Id, channel: Channel, config: &Config) -> io::Result<Self> {
        let address = id.local_address()?.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            id: Mutex::new(Some(id)),
            peers: Mutex::new(Peers {
                half_open: HalfOpen::new(
                    config.half_open as usize,
                    config.most_waiting(),
                    Instant::now(),
                ),
                is_closed: false,
            }),
            channel,
            handling: Mutex::default(),
            closed: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            is_nonblocking: AtomicBool::new(false),
            address,
            config: config.clone(),
        })
    }

    /// The address that it listens on, with the port that was chosen.
    ///
    /// # Errors
    /// None: it is a `Result` because [`TcpListener`](std::net::TcpListener) returns one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Whether [`Listener::accept`] fails with `WouldBlock` instead of waiting. The listener is
    /// readable ([`AsFd`]) when it may succeed.
    ///
    /// # Errors
    /// None: it is a `Result` because [`TcpListener`](std::net::TcpListener) returns one.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the next stream, and returns it with the peer's address. Peers that give up
    /// meanwhile, or use another protocol, are skipped.
    ///
    /// # Errors
    /// `NotConnected` if the device is removed, which closes the listener; `InvalidInput` (EINVAL)
    /// once the listener is closed; `WouldBlock` if it is non-blocking and no stream is ready;
    /// `Interrupted` by a signal; errors of creating a stream's queues, after which its peer is
    /// refused.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match self.try_accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.is_nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let watch = |file| PollFd::new(file, PollFlags::POLLIN);
            let mut files = [watch(self.channel.as_fd()), watch(self.closed.as_fd())];
            poll(&mut files, self.until_eviction())?;
        }
    }

    /// When a half-open peer that has not answered may be evicted for another one.
    pub(crate) fn next_eviction(&self) -> Option<Instant> {
        lock(&self.peers).half_open.next_eviction()
    }

    /// The time until [`Self::next_eviction`], rounded up.
    fn until_eviction(&self) -> PollTimeout {
        let eviction = self.next_eviction();
        let left = eviction.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map(|left| left + Duration::from_millis(1));
        left.map_or(PollTimeout::NONE, |left| left.try_into().unwrap_or(PollTimeout::MAX))
    }

    fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let shared = self.try_accept_shared()?;
        let peer = shared.peer;
        Ok((Stream::new(Arc::new(shared)), peer))
    }

    /// Accepts the next connection if there is one, without waiting.
    pub(crate) fn try_accept_shared(&self) -> io::Result<Shared> {
        loop {
            if lock(&self.id).is_none() {
                return Err(Errno::EINVAL.into());
            }
            if let Some(shared) = self.try_step()? {
                return Ok(shared);
            }
        }
    }

    /// Handles an event that has arrived, then accepts waiting peers if others have ended. That
    /// must happen now, because there may be no later event to cause it.
    fn try_step(&self) -> io::Result<Option<Shared>> {
        let handled = self.take_event();
        match (handled, self.take_waiting()) {
            (Ok(Some(stream)), Err(error)) => {
                tracing::warn!(%error, "a peer that waited was not accepted");
                Ok(Some(stream))
            }
            (handled, waiting) => waiting.and(handled),
        }
    }

    /// Takes an event, and finishes its handling after other threads can take the next one.
    /// `WouldBlock` means that everything peers had sent before has been handled.
    fn take_event(&self) -> io::Result<Option<Shared>> {
        match self.step()? {
            Step::Nothing => Ok(None),
            Step::Ended(peer) => {
                drop(peer);
                Ok(None)
            }
            Step::Refused(request, cause) => {
                refuse(request, cause);
                Ok(None)
            }
            Step::Connected(established) => established.finish(&self.config).map(Some),
            Step::Removed => {
                // No further event would wake waiting threads.
                self.close();
                Err(io::Error::new(io::ErrorKind::NotConnected, "the device was removed"))
            }
        }
    }

    /// Takes an event, and handles it before another thread takes the next one.
    fn step(&self) -> io::Result<Step> {
        let now = Instant::now();
        let mut own = lock(&self.handling);
        if own.is_none() {
            *own = Some(self.channel.open_another()?);
        }
        let event = self.channel.try_next_event().map_err(io::Error::from);
        if event.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            lock(&self.peers).half_open.heard(now);
        }
        self.handle(event?, &mut own)
    }

    /// An endless iterator over accepted streams.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Stops listening: peers are refused, and calls of [`Listener::accept`] fail, including those
    /// that wait.
    pub fn close(&self) {
        let id = lock(&self.id).take();
        drop(id);
        let mut peers = lock(&self.peers);
        peers.is_closed = true;
        let ended = peers.half_open.clear();
        drop(peers);
        if let Err(error) = self.closed.write(1) {
            tracing::warn!(%error, "a thread that accepts may not notice the close");
        }
        drop(ended);
    }

    /// Handles an event. If it establishes a connection, the connection takes the channel in `own`.
    fn handle(&self, event: Event, own: &mut Option<Channel>) -> io::Result<Step> {
        match event.kind {
            EventKind::ConnectRequest(request) => Ok(self.take(request)),
            EventKind::Established => self.establish(event.id, own, false),
            // The peer's confirmation was lost, but it has connected, and may have sent data.
            EventKind::Disconnected(_) => self.establish(event.id, own, true),
            EventKind::DeviceRemoval if lock(&self.id).as_ref().map(Id::key) == Some(event.id) => {
                Ok(Step::Removed)
            }
            other => Ok(other.into_failure().map_or(Step::Nothing, |error| {
                tracing::debug!(%error, "a peer gave up");
                lock(&self.peers).half_open.remove(event.id).map_or(Step::Nothing, Step::Ended)
            })),
        }
    }

    /// Queues a request until one more peer may be half-open. Refuses a request of another
    /// protocol.
    fn take(&self, request: ConnectionRequest) -> Step {
        let peer = match Offer::decode(request.private_data()) {
            Ok(peer) => peer,
            Err(cause) => return Step::Refused(request, cause),
        };
        let mut peers = lock(&self.peers);
        if peers.is_closed {
            return Step::Refused(request, "the listener is closed");
        }
        match peers.half_open.queue(request.source(), (request, peer)) {
            Ok(()) => Step::Nothing,
            Err((refused, _)) => Step::Refused(refused, "too many peers wait"),
        }
    }

    /// Accepts waiting requests while more peers may be half-open. It handles all of them before it
    /// returns the first error, because the program may not accept again before a further event.
    fn take_waiting(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            // A separate statement, so that the lock is released here.
            let next = lock(&self.peers).half_open.open_next();
            let Some((source, (request, peer), silent)) = next else { return result };
            drop(silent);
            let prepared = Prepared::new(request.id(), &self.config);
            // Locked while the peer is accepted, because another thread may get its event at once.
            let mut peers = lock(&self.peers);
            match prepared {
                Ok(_) if peers.is_closed => peers.half_open.give_up(source),
                Ok(prepared) => {
                    let failed = peers.accept((source, request), prepared, peer, &self.config);
                    drop(peers);
                    drop(failed);
                }
                // Dropping the request refuses the peer.
                Err(error) => {
                    peers.half_open.give_up(source);
                    result = result.and(Err(error));
                }
            }
        }
    }

    /// Moves an established connection to an event channel of its own, with its further events.
    fn establish(&self, id: IdKey, own: &mut Option<Channel>, has_left: bool) -> io::Result<Step> {
        // A separate statement, so that the lock is released here.
        let pending = lock(&self.peers).half_open.remove(id);
        let Some(pending) = pending else { return Ok(Step::Nothing) };
        let channel = own.take().map_or_else(|| self.channel.open_another(), Ok);
        let channel = channel.and_then(|channel| pending.id.migrate(&channel).map(|()| channel));
        Ok(Step::Connected(Established { pending, channel, has_left }))
    }
}

impl Established {
    fn finish(self, config: &Config) -> io::Result<Shared> {
        let Pending { id, prepared, peer } = self.pending;
        let shared = Shared::new((id, self.channel?), prepared, &peer, config)?;
        if self.has_left {
            shared.lock()?.disconnected();
        }
        Ok(shared)
    }
}

impl Peers {
    /// Accepts a request. Returns the prepared objects if the peer has given up.
    fn accept(
        &mut self,
        (source, request): (Source, ConnectionRequest),
        mut prepared: Prepared,
        peer: Offer,
        config: &Config,
    ) -> Option<Prepared> {
        let options = AcceptOptions {
            private_data: prepared.offer.reply(),
            qp: qp_options(config),
            ..AcceptOptions::default()
        };
        match request.accept(&mut prepared.qp, &options) {
            Ok(id) => {
                let (key, pending) = (id.key(), Pending { id, prepared, peer });
                self.half_open.add(key, source, pending, Instant::now());
                None
            }
            Err(error) => {
                self.half_open.give_up(source);
                tracing::warn!(%error, "a peer was not accepted");
                Some(prepared)
            }
        }
    }
}

fn refuse(request: ConnectionRequest, cause: &str) {
    tracing::warn!(cause, "a peer was refused");
    let told = request.reject(&RejectData::new(cause.as_bytes()).unwrap_or_default());
    tracing::debug!(?told, "the peer was told why");
}

fn listen(channel: &Channel, config: &Config, address: SocketAddr) -> uverbs::Result<Id> {
    let id = channel.create_id(PortSpace::Tcp)?;
    if config.reuse_address {
        id.set_reuse_address(true)?;
    }
    id.bind(address)?;
    id.listen(config.backlog)?;
    Ok(id)
}

/// If one of two addresses is a wildcard, the kernel reports a port in use as EADDRNOTAVAIL, for
/// which a socket would return `AddrInUse`.
fn not_bound(error: uverbs::Error) -> io::Error {
    match error.kind() {
        ErrorKind::Busy => io::Error::new(io::ErrorKind::AddrInUse, error),
        _ => in_words_of_sockets(error),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Readable when there may be a stream to accept. It does not become readable when a half-open peer
/// may be evicted ([`Config::half_open`]), so a program that waits for this file should also call
/// [`Listener::accept`] every few seconds.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use super::*;

    fn config() -> (Config, SocketAddr) {
        let context = uverbs::device("soft").unwrap().open().unwrap();
        let gids = context.gid_table(1).unwrap();
        let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
        (Config::new().context(&context), (ipv4, 0).into())
    }

    /// The client connects, writes and disconnects before it is accepted, as over TCP.
    #[test]
    fn a_peer_whose_confirmation_is_lost_is_accepted() {
        let (config, at) = config();
        let listener = config.bind(at).unwrap();
        let to = listener.local_addr().unwrap();
        let of_client = config.clone();
        let client =
            thread::spawn(move || of_client.connect(to).unwrap().write_all(b"all").unwrap());
        let mut own = Some(listener.channel.open_another().unwrap());
        let request = listener.channel.next_event().unwrap();
        assert!(matches!(listener.handle(request, &mut own), Ok(Step::Nothing)));
        listener.take_waiting().unwrap();
        let lost = listener.channel.next_event().unwrap();
        assert!(matches!(lost.kind, EventKind::Established));
        let end = listener.channel.next_event().unwrap();
        assert!(matches!(end.kind, EventKind::Disconnected(_)));
        let step = listener.handle(end, &mut own).unwrap();
        let Step::Connected(established) = step else { panic!("no connection: {step:?}") };
        let shared = established.finish(&config).unwrap();
        let mut text = String::new();
        Stream::new(Arc::new(shared)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "all");
        client.join().unwrap();
    }
}
