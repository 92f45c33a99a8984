//! Which process listens on all addresses at a port, for connections to 127.0.0.1.
//!
//! On one machine a kernel finds such a listener in its own tables. Each process has software
//! devices and tables of its own, so a listener leaves its station where others find it: in the
//! name of a socket in the abstract namespace, which the system lists and removes with the process.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use uverbs_soft_cm::cma::CmaError;
use uverbs_uapi::cm::PortSpace;

use crate::wire::Station;

fn prefix(space: PortSpace, port: u16) -> String {
    format!("uverbs/rdma_cm/{:04x}/{port}/", space.0)
}

/// Lists a listener while the socket is open; `None` if that is impossible.
pub(super) fn publish(space: PortSpace, port: u16, station: Station) -> Option<OwnedFd> {
    named(&format!("{}{station}", prefix(space, port))).ok()
}

/// Has an address of the machine and its port while the socket is open; `None` if that is
/// impossible.
///
/// # Errors
/// EADDRINUSE if another listener has them.
pub(super) fn claim(space: PortSpace, address: SocketAddr) -> Result<Option<OwnedFd>, CmaError> {
    match named(&format!("{}at-{}", prefix(space, address.port()), address.ip())) {
        Err(Errno::EADDRINUSE) => Err(CmaError(libc::EADDRINUSE)),
        result => Ok(result.ok()),
    }
}

fn named(name: &str) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let entry = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    bind(entry.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(entry)
}

/// The station of a listener of any process.
pub(super) fn find(space: PortSpace, port: u16) -> Option<Station> {
    let sockets = std::fs::read_to_string("/proc/self/net/unix").ok()?;
    station_in(&sockets, &prefix(space, port))
}

/// The last column of /proc/net/unix is the name, with `@` for the abstract namespace.
fn station_in(sockets: &str, prefix: &str) -> Option<Station> {
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let stations = names.filter_map(|name| name.strip_prefix('@')?.strip_prefix(prefix));
    stations.filter_map(|text| text.parse::<Ipv4Addr>().ok()).find_map(Station::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_while_it_is_listed() {
        let station = Station::new(Ipv4Addr::new(127, 21, 3, 4)).unwrap();
        let port = std::process::id() as u16;
        let entry = publish(PortSpace::IPOIB, port, station).unwrap();
        assert_eq!(find(PortSpace::IPOIB, port), Some(station));
        assert_eq!(find(PortSpace::TCP, port), None);
        drop(entry);
        assert_eq!(find(PortSpace::IPOIB, port), None);
    }

    #[test]
    fn other_names_are_not_listeners() {
        let table = |name: &str| format!("Num RefCount\n0: 2 0 10000 2 1 1234 {name}\n");
        let found = |name: &str| station_in(&table(name), &prefix(PortSpace::TCP, 80));
        assert!(found("@uverbs/rdma_cm/0106/80/127.18.0.1").is_some());
        for name in ["uverbs/rdma_cm/0106/80/127.18.0.1", "@uverbs/rdma_cm/0106/80/10.0.0.1"] {
            assert_eq!(found(name), None, "{name}");
        }
        assert_eq!(found("@uverbs/rdma_cm/0106/80/127.18.0.1x"), None);
        assert_eq!(station_in("", &prefix(PortSpace::TCP, 80)), None);
    }
}
