//! Streams for tokio.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{ToSocketAddrs, lookup_host};
use uverbs::tokio::{Alarm, AsyncFile};

use super::delivery::wait_in_thread;
use super::reactor::Reactor;
use crate::config::Config;
use crate::connect::{Connecting, deadline};
use crate::core::{Attempt, Core};
use crate::halves::ReadBuffer;
use crate::handshake::Offer;
use crate::lent::{Lent, Reservation};
use crate::lookup::explain;
use crate::readiness::Side;
use crate::shared::Shared;

/// A byte stream to a peer, like [`TcpStream`](tokio::net::TcpStream).
///
/// `poll_shutdown` ends the data of this side, and waits until the peer's device has all of it. If
/// a stream is dropped before that, a task of the runtime waits instead, for at most
/// [`Config::linger`]. If no file descriptor is left for a timer, or the stream is dropped in
/// another runtime than its own, a thread for blocking work waits; outside a runtime, the dropping
/// thread does. A runtime that shuts down waits for all dropped streams.
#[derive(Debug)]
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

/// The half of a stream that reads.
#[derive(Debug)]
pub struct ReadHalf {
    reactor: Arc<Reactor>,
    buffer: ReadBuffer,
}

/// The half of a stream that writes. Dropping it ends the data of this side.
#[derive(Debug)]
pub struct WriteHalf {
    reactor: Arc<Reactor>,
}

impl Stream {
    /// Connects to a listener on `address`. [`Stream::connect_with`] takes options.
    ///
    /// # Errors
    /// As [`Config::connect`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(&Config::new(), address).await
    }

    /// Connects to a listener on `address`. If a name has several addresses, the first that works
    /// is used. Dropping the future withdraws the request.
    ///
    /// # Errors
    /// As [`Config::connect`].
    ///
    /// # Panics
    /// As [`Stream::connect`].
    pub async fn connect_with(config: &Config, address: impl ToSocketAddrs) -> io::Result<Self> {
        config.check()?;
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        let found = lookup_host(address).await.map_err(explain)?;
        let deadline = deadline(config);
        for address in found {
            match connect(config, address, deadline).await {
                Ok(shared) => return Self::new(Arc::new(shared)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn new(shared: Arc<Shared>) -> io::Result<Self> {
        Self::watch(&shared).inspect_err(|_| wait_in_thread(shared))
    }

    /// Makes a stream of a connection. If that fails, the connection is unchanged.
    pub(super) fn watch(shared: &Arc<Shared>) -> io::Result<Self> {
        let reactor = Arc::new(Reactor::new(shared.clone())?);
        let read = ReadHalf { reactor: reactor.clone(), buffer: ReadBuffer::default() };
        Ok(Self { read, write: WriteHalf { reactor } })
    }

    /// Converts a blocking stream.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2); `InvalidInput` while bytes of `fill_buf` are not consumed.
    ///
    /// # Panics
    /// As [`Stream::connect`].
    pub fn from_blocking(stream: crate::Stream) -> io::Result<Self> {
        let (read, write) = stream.into_split();
        let shared = read.shared().clone();
        read.require_empty().inspect_err(|_| wait_in_thread(shared.clone()))?;
        // Dropping `write` would end the data of this side.
        let stream = Self::new(shared)?;
        write.keep_open();
        Ok(stream)
    }

    /// Splits the stream for two tasks. The connection is closed when both halves are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Joins two halves again.
    ///
    /// # Errors
    /// The halves, if they are of different streams.
    pub fn reunite(read: ReadHalf, write: WriteHalf) -> Result<Self, (ReadHalf, WriteHalf)> {
        match Arc::ptr_eq(&read.reactor, &write.reactor) {
            true => Ok(Self { read, write }),
            false => Err((read, write)),
        }
    }

    /// The local address.
    ///
    /// # Errors
    /// None: it is a `Result` because [`TcpStream`](tokio::net::TcpStream) returns one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.read.reactor.shared.local)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.read.reactor.shared.peer)
    }

    /// How long the connection stays open at most after the stream is dropped; see
    /// [`Config::linger`]. With zero, dropping the stream aborts the connection.
    pub fn set_linger(&self, time: std::time::Duration) {
        self.read.reactor.shared.set_linger(time);
    }

    /// See [`ReadHalf::lend`].
    ///
    /// # Errors
    /// As for [`ReadHalf::lend`].
    pub async fn lend(&mut self) -> io::Result<Lent<'_>> {
        self.read.lend().await
    }

    /// See [`WriteHalf::reserve`].
    ///
    /// # Errors
    /// As for [`WriteHalf::reserve`].
    pub async fn reserve(&mut self) -> io::Result<Reservation<'_>> {
        self.write.reserve().await
    }
}

/// Connects, and waits until the connection is established.
async fn connect(
    config: &Config,
    address: SocketAddr,
    deadline: Option<Instant>,
) -> io::Result<Shared> {
    let mut connecting = Connecting::begin(config, address)?;
    let peer = match deadline {
        None => accepted(&mut connecting).await?,
        Some(deadline) => in_time(deadline, accepted(&mut connecting)).await?,
    };
    connecting.finish(&peer)
}

/// Waits until the peer has accepted.
async fn accepted(connecting: &mut Connecting<'_>) -> io::Result<Offer> {
    let events = AsyncFile::new(connecting.channel.as_fd().try_clone_to_owned()?)?;
    loop {
        let ready = events.readable().await?;
        match connecting.channel.try_next_event() {
            Ok(event) => {
                if let Some(peer) = connecting.step(event)? {
                    return Ok(peer);
                }
            }
            Err(error) if error.kind() == uverbs::ErrorKind::WouldBlock => ready.clear(),
            Err(error) if error.kind() == uverbs::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Fails with `TimedOut` at the deadline. It uses an [`Alarm`], because the runtime may have no
/// timers.
async fn in_time<T>(deadline: Instant, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let (mut work, alarm) = (pin!(work), Alarm::new()?);
    poll_fn(|task| {
        if let Poll::Ready(result) = work.as_mut().poll(task) {
            return Poll::Ready(result);
        }
        while Instant::now() < deadline {
            ready!(alarm.poll(deadline, task))?;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    })
    .await
}

impl ReadHalf {
    fn poll<T>(
        &self,
        task: &mut Context<'_>,
        attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        self.reactor.poll(task, Side::Read, attempt)
    }

    /// Waits for bytes and returns views of those that have arrived, in the ring where the peer
    /// wrote them; no bytes mean the end of the stream. See [`crate::ReadHalf::lend`].
    ///
    /// # Errors
    /// As those of reads; `InvalidInput` while bytes of `poll_fill_buf` are not consumed.
    pub async fn lend(&mut self) -> io::Result<Lent<'_>> {
        if !self.buffer.left().is_empty() {
            let cause = "poll_fill_buf() returned bytes that are not consumed yet";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
        poll_fn(|task| self.poll(task, Core::readable)).await?;
        Lent::new(&self.reactor.shared)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 || !self.buffer.left().is_empty() {
            let length = self.buffer.left().len().min(into.remaining());
            into.put_slice(&self.buffer.left()[..length]);
            self.buffer.consume(length);
            return Poll::Ready(Ok(()));
        }
        let ring = self.reactor.shared.ring();
        let bytes = ready!(self.poll(task, |core| {
            // Zeroes no more of the buffer than the bytes need.
            let Some(arrived) = core.readable()? else { return Ok(None) };
            let length = arrived.min(into.remaining());
            core.read(ring, into.initialize_unfilled_to(length))
        }))?;
        into.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.buffer.left().is_empty() {
            let into = this.buffer.space();
            let shared = &this.reactor.shared;
            let read = this.reactor.poll(task, Side::Read, |core| core.read(shared.ring(), into));
            let filled = match &read {
                Poll::Ready(Ok(bytes)) => *bytes,
                _ => 0,
            };
            this.buffer.filled(filled);
            ready!(read)?;
        }
        Poll::Ready(Ok(this.buffer.left()))
    }

    fn consume(mut self: Pin<&mut Self>, bytes: usize) {
        self.buffer.consume(bytes);
    }
}

impl WriteHalf {
    /// Waits for space and returns a registered buffer to fill. See [`crate::WriteHalf::reserve`].
    ///
    /// # Errors
    /// As those of writes.
    pub async fn reserve(&mut self) -> io::Result<Reservation<'_>> {
        let slot = poll_fn(|task| self.reactor.poll(task, Side::Write, Core::reserve)).await?;
        Ok(Reservation::new(&self.reactor.shared, slot))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(task, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.reactor.poll(task, Side::Write, |core| core.write(data))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing, because written bytes are sent at once.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the data of this side, and waits until the peer's device has all of it.
    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.shared.shutdown(Shutdown::Write);
        self.reactor.poll(task, Side::Write, Core::finished)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.reactor.shared.finish_unless_aborting();
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(task, into)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().read).poll_fill_buf(task)
    }

    fn consume(mut self: Pin<&mut Self>, bytes: usize) {
        Pin::new(&mut self.read).consume(bytes);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(task, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(task, data)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(task)
    }
}
