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

/// A stream of bytes to a peer, as [`TcpStream`](std::net::TcpStream) is one.
///
/// [`Read`] and [`Write`] copy once: out of the ring that the peer writes to, and into registered
/// buffers. [`Stream::lend`] and [`Stream::reserve`] copy nothing. A write returns once the bytes
/// are on their way; there is nothing to flush.
///
/// Dropping it ends what it sends and waits ([`Config::linger`]) until the peer's device has all of
/// it: one round trip, if the peer is alive. The peer then reads what is left, and the end. What
/// arrived here and was not read is lost.
#[derive(Debug)]
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

impl Stream {
    /// Connects to a [`Listener`](crate::Listener) at `address`. [`Config`] has the options.
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

    /// The halves, for two threads. The connection is closed when both are gone.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Puts two halves together again.
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
    /// None; a `Result` as that of [`TcpStream`](std::net::TcpStream), as those below.
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

    /// Ends one direction, or both. After the end of writing the peer reads what is left and then
    /// the end; after that of reading, reads here find the end once they have what arrived, also
    /// one that waits in another thread.
    ///
    /// # Errors
    /// None: the stream of a peer that is gone is shut down already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.shared().shutdown(how);
        Ok(())
    }

    /// Whether calls fail with `WouldBlock` instead of waiting. The stream is readable
    /// ([`Stream::readiness`]) when another try may succeed.
    ///
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared().is_nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// A file for poll(2) and epoll(7) that is readable when a call which failed with `WouldBlock`
    /// may succeed: one that reads, and one that writes as well. It stays readable until that call
    /// was tried again, so try both directions that wait.
    ///
    /// # Errors
    /// Errors of epoll_create(2), at the first call.
    pub fn readiness(&self) -> io::Result<BorrowedFd<'_>> {
        self.shared().readiness()
    }

    /// How long a read waits before it fails with `WouldBlock`; for ever without one.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared().read_timeout.set(timeout)
    }

    /// How long a write waits for space before it fails with `WouldBlock`; for ever without one.
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

    /// How long dropping the stream waits at most: [`Config::linger`]. Zero aborts the connection.
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
    /// `PermissionDenied` in a forked child, if another thread used the stream at the fork.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared().lock()?.failure())
    }

    /// Reads and leaves the bytes where they are: the next read finds them again.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read.peek(into)
    }

    /// Lends the bytes that arrived, in the ring where the peer wrote them: see
    /// [`ReadHalf::lend`].
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn lend(&mut self) -> io::Result<Lent<'_>> {
        self.read.lend()
    }

    /// Lends a registered buffer to fill: see [`WriteHalf::reserve`].
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
