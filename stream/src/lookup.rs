//! Name lookup, and its errors.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use nix::errno::Errno;

/// Resolves `address`.
pub(crate) fn addresses(
    address: impl ToSocketAddrs,
) -> io::Result<impl Iterator<Item = SocketAddr>> {
    address.to_socket_addrs().map_err(explain)
}

/// Adds the syntax of addresses to a lookup error.
pub(crate) fn explain(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Unknown(error))
}

/// Converts an error about an address. The standard library has no kind for ENODEV, which means
/// that no RDMA device has the address or leads to it, so it becomes `NotFound`.
pub(crate) fn in_words_of_sockets(error: uverbs::Error) -> io::Error {
    match error.kind() {
        uverbs::ErrorKind::NotFound if error.errno() == Errno::ENODEV as i32 => {
            io::Error::new(io::ErrorKind::NotFound, error)
        }
        _ => error.into(),
    }
}

#[derive(Debug)]
struct Unknown(io::Error);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; check the name; an address is HOST:PORT, such as 10.0.0.1:7471, and \
             uverbs::cm::Address parses one with an interface ([fe80::1%eth0]:7471)",
            self.0
        )
    }
}

impl std::error::Error for Unknown {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
