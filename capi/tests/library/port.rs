//! Ports for servers that a test starts.

use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
};

/// A TCP port that no program uses. This process does not listen on it, not even for a moment: a
/// program that another thread starts meanwhile has all descriptors of this process until it is
/// loaded, and would seem to be the server that the test waits for.
pub(crate) fn free_port() -> String {
    let (stream, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
    let bound = socket(AddressFamily::Inet, stream, flags, None).expect("a socket");
    // So that the server can take the port while such a program still has it.
    setsockopt(&bound, sockopt::ReuseAddr, &true).expect("an option");
    bind(bound.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a port");
    getsockname::<SockaddrIn>(bound.as_raw_fd()).expect("a port").port().to_string()
}
