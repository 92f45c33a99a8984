//! Streams.

use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::Config;
use crate::connect::{connect, deadline};
use crate::halves::{ReadHalf, WriteHalf};
use crate::lent::{Lent, Reservation};
use crate::lookup::addresses;
use crate::shared::Shared;

/// A byte stream to a peer, like [`TcpStream`](std::net::TcpStream).
///
/// [`Read`] and [`Write`] copy once: out of the ring that the peer writes to, and into registered
/// buffers. [`Stream::lend`] and [`Stream::reserve`] avoid these copies. A write returns once its
/// bytes are posted; there is nothing to flush.
///
/// Dropping a stream ends the data of this side and waits, for at most [`Config::linger`], until
/// the peer's device has all of it: one round trip, if the peer is alive. The peer then reads what
/// is left, and the end. Bytes that arrived here and were not read are lost.
#[derive(Debug)]
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

impl Stream {
    /// Connects to a [`Listener`](crate::Listener) on `address`. [`Config`] has options.
    ///
    /// # Errors
    /// As [`Config::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Config::new().connect(address)
    }

    pub(crate) fn connect_with(config: &Config, address: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        let found = addresses(address)?;
        let deadline = deadline(config);
        for address in found {
            match connect(config, address, deadline) {
                Ok(shared) => return Ok(Self::new(Arc::new(shared))),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { read: ReadHalf::new(shared.clone()), write: WriteHalf::new(shared) }
    }

    /// Splits the stream for two threads. The connection is closed when both halves are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Joins two halves again.
    ///
    /// # Errors
    /// The halves, if they are of different streams.
    pub fn reunite(read: ReadHalf, write: WriteHalf) -> Result<Self, (ReadHalf, WriteHalf)> {
        match Arc::ptr_eq(read.shared(), write.shared()) {
            true => Ok(Self { read, write }),
            false => Err((read, write)),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.read.shared()
    }

    /// The local address.
    ///
    /// # Errors
    /// None: it is a `Result` because [`TcpStream`](std::net::TcpStream) returns one, like those
    /// below.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared().local)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared().peer)
    }

    /// Ends one direction, or both. After the end of writing, the peer reads the remaining bytes
    /// and then the end. After the end of reading, reads here return the bytes that have arrived
    /// and then the end; a read that waits in another thread returns, too.
    ///
    /// # Errors
    /// None: a stream whose peer is gone counts as shut down.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.shared().shutdown(how);
        Ok(())
    }

    /// Whether calls fail with `WouldBlock` instead of waiting. The file of [`Stream::readiness`]
    /// is readable when another call may succeed.
    ///
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared().is_nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// A file for poll(2) and epoll(7) that is readable when a call that failed with `WouldBlock`,
    /// a read or a write, may succeed. It stays readable until that call is tried again, so try
    /// both directions if both wait.
    ///
    /// # Errors
    /// Errors of epoll_create(2), at the first call.
    pub fn readiness(&self) -> io::Result<BorrowedFd<'_>> {
        self.shared().readiness()
    }

    /// How long a read waits before it fails with `WouldBlock`; forever without a timeout.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared().read_timeout.set(timeout)
    }

    /// How long a write waits for space before it fails with `WouldBlock`; forever without a
    /// timeout.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared().write_timeout.set(timeout)
    }

    /// The timeout of reads.
    ///
    /// # Errors
    /// None.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared().read_timeout.get())
    }

    /// The timeout of writes.
    ///
    /// # Errors
    /// None.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared().write_timeout.get())
    }

    /// How long dropping the stream waits at most; see [`Config::linger`]. With zero, dropping it
    /// aborts the connection.
    ///
    /// # Errors
    /// None.
    pub fn set_linger(&self, time: Duration) -> io::Result<()> {
        self.shared().set_linger(time);
        Ok(())
    }

    /// Why the stream broke, if it did.
    ///
    /// # Errors
    /// `PermissionDenied` in a forked child if another thread was using the stream at the fork.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared().lock()?.failure())
    }

    /// Reads without consuming the bytes: the next read returns them again.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read.peek(into)
    }

    /// Waits for bytes and returns views of them in the ring: see [`ReadHalf::lend`].
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn lend(&mut self) -> io::Result<Lent<'_>> {
        self.read.lend()
    }

    /// Waits for space and returns a registered buffer to fill: see [`WriteHalf::reserve`].
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn reserve(&mut self) -> io::Result<Reservation<'_>> {
        self.write.reserve()
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read.read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read.read_vectored(into)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.read.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.read.consume(bytes);
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write.write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write.write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write.flush()
    }
}
