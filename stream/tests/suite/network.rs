//! Two networks for one suite: streams over the software device, and TCP.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::socket::{self, setsockopt, sockopt};
use uverbs::soft::SoftDevice;
use uverbs::{Context, Device};
use uverbs_stream::{Config, Listener, Stream};

/// The operations of a network.
pub(crate) trait Network: 'static {
    type Listener: Listens<Stream = Self::Stream>;
    type Stream: Streams;
    fn listen() -> Self::Listener {
        Self::listen_at(Self::any_port()).unwrap()
    }
    /// An address of this network, with port 0.
    fn any_port() -> SocketAddr;
    fn listen_at(address: SocketAddr) -> io::Result<Self::Listener>;
    /// Connects to an address of this network.
    fn connect(address: SocketAddr) -> io::Result<Self::Stream>;

    /// Both ends of a connection.
    fn pair() -> (Self::Stream, Self::Stream) {
        let listener = Self::listen();
        let address = listener.address();
        let accepting = std::thread::spawn(move || listener.accept().unwrap());
        let client = Self::connect(address).unwrap();
        (accepting.join().unwrap(), client)
    }
}

pub(crate) trait Listens: Send + Sync + 'static {
    type Stream;
    fn address(&self) -> SocketAddr;
    fn accept(&self) -> io::Result<Self::Stream>;
    fn set_nonblocking(&self);
    /// Ends an `accept` in which another thread waits.
    fn close(&self);
}

pub(crate) trait Streams: Read + Write + Send + Sync + Sized + 'static {
    type ReadHalf: Read + Send + 'static;
    type WriteHalf: Write + Send + 'static;
    fn addresses(&self) -> [SocketAddr; 2];
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_nonblocking(&self, nonblocking: bool);
    fn peek(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn split(self) -> (Self::ReadHalf, Self::WriteHalf);
    fn shut_both(half: &Self::WriteHalf);
    /// Ends the connection without an orderly shutdown.
    fn abort(self);
}

/// The system's TCP.
pub(crate) struct Tcp;

impl Network for Tcp {
    type Listener = TcpListener;
    type Stream = TcpStream;
    fn any_port() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }
    fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }
    fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address)
    }
}

impl Listens for TcpListener {
    type Stream = TcpStream;
    fn address(&self) -> SocketAddr {
        self.local_addr().unwrap()
    }
    fn accept(&self) -> io::Result<TcpStream> {
        TcpListener::accept(self).map(|(stream, _)| stream)
    }
    fn set_nonblocking(&self) {
        TcpListener::set_nonblocking(self, true).unwrap();
    }
    fn close(&self) {
        socket::shutdown(self.as_raw_fd(), socket::Shutdown::Both).unwrap();
    }
}

impl Streams for TcpStream {
    type ReadHalf = TcpStream;
    type WriteHalf = TcpWriter;
    fn addresses(&self) -> [SocketAddr; 2] {
        [self.local_addr().unwrap(), self.peer_addr().unwrap()]
    }
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        TcpStream::shutdown(self, how)
    }
    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
    fn set_nonblocking(&self, nonblocking: bool) {
        TcpStream::set_nonblocking(self, nonblocking).unwrap();
    }
    fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        TcpStream::peek(self, into)
    }
    fn split(self) -> (TcpStream, TcpWriter) {
        (self.try_clone().unwrap(), TcpWriter(self))
    }
    fn shut_both(half: &TcpWriter) {
        half.0.shutdown(Shutdown::Both).unwrap();
    }
    fn abort(self) {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self, sockopt::Linger, &linger).unwrap();
    }
}

/// A half that shuts down the sending side of the socket when dropped.
pub(crate) struct TcpWriter(TcpStream);

impl Write for TcpWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for TcpWriter {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// Streams of this crate, on one software device without a wire.
pub(crate) struct Rdma;

pub(crate) fn context() -> Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    let open = || {
        let device = SoftDevice::builder("soft0").without_wire().build().unwrap();
        Device::from_soft(device).open().unwrap()
    };
    CONTEXT.get_or_init(open).clone()
}

/// The IPv4 address of the tests' device, with port 0.
pub(crate) fn address() -> SocketAddr {
    address_of(&context())
}

/// The IPv4 address of a device, with port 0.
pub(crate) fn address_of(context: &Context) -> SocketAddr {
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    SocketAddr::new(IpAddr::from(ipv4), 0)
}

pub(crate) fn config() -> Config {
    Config::new().context(&context())
}

impl Network for Rdma {
    type Listener = Listener;
    type Stream = Stream;
    fn any_port() -> SocketAddr {
        address()
    }
    fn listen_at(address: SocketAddr) -> io::Result<Listener> {
        config().bind(address)
    }
    fn connect(address: SocketAddr) -> io::Result<Stream> {
        config().connect(address)
    }
}

impl Listens for Listener {
    type Stream = Stream;
    fn address(&self) -> SocketAddr {
        self.local_addr().unwrap()
    }
    fn accept(&self) -> io::Result<Stream> {
        Listener::accept(self).map(|(stream, _)| stream)
    }
    fn set_nonblocking(&self) {
        Listener::set_nonblocking(self, true).unwrap();
    }
    fn close(&self) {
        Listener::close(self);
    }
}

impl Streams for Stream {
    type ReadHalf = uverbs_stream::ReadHalf;
    type WriteHalf = uverbs_stream::WriteHalf;
    fn addresses(&self) -> [SocketAddr; 2] {
        [self.local_addr().unwrap(), self.peer_addr().unwrap()]
    }
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Stream::shutdown(self, how)
    }
    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
    fn set_nonblocking(&self, nonblocking: bool) {
        Stream::set_nonblocking(self, nonblocking).unwrap();
    }
    fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::peek(self, into)
    }
    fn split(self) -> (Self::ReadHalf, Self::WriteHalf) {
        self.into_split()
    }
    fn shut_both(half: &Self::WriteHalf) {
        half.shutdown(Shutdown::Both).unwrap();
    }
    fn abort(self) {
        self.set_linger(Duration::ZERO).unwrap();
    }
}
