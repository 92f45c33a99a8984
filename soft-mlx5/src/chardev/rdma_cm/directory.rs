//! Finds the process that has a port at 127.0.0.1 or ::1, the addresses that all processes' devices
//! share.
//!
//! A kernel has one table of ports for a network namespace. Here each process has its own software
//! devices and tables. It announces its ports by the names of Unix sockets in the abstract
//! namespace, which a network namespace also has only once. The kernel lists these names, and
//! removes them when the process ends. One name claims the port for the process. A second one
//! contains the station at which the process listens.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use uverbs_soft_cm::cma::{Binding, CmaError};
use uverbs_uapi::cm::PortSpace;

use crate::wire::{Station, is_shortage};

/// The addresses that all processes' devices share.
const SHARED: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// The shared addresses at which a binding can be reached, with its port.
fn shared_of(binding: &Binding) -> impl Iterator<Item = SocketAddr> {
    let Binding { source, family_only, .. } = *binding;
    let is_reached = move |shared: &IpAddr| match source.ip() {
        own if own.is_unspecified() => {
            own.is_ipv6() && !family_only || own.is_ipv4() == shared.is_ipv4()
        }
        own => own == *shared,
    };
    SHARED.into_iter().filter(is_reached).map(move |shared| SocketAddr::new(shared, source.port()))
}

fn prefix(space: PortSpace, at: SocketAddr) -> String {
    format!("uverbs/rdma_cm/{:04x}/{}/{}/", space.0, at.port(), at.ip())
}

/// Announces a listener while the sockets are open. Returns none on systems without such sockets.
///
/// # Errors
/// A lack of descriptors or memory.
pub(super) fn publish(
    space: PortSpace,
    binding: &Binding,
    station: Station,
) -> Result<Vec<OwnedFd>, CmaError> {
    let entry = |at| or_shortage(named(&format!("{}{station}", prefix(space, at)))).transpose();
    shared_of(binding).filter_map(entry).collect()
}

/// Claims the port while the sockets are open. Returns none on systems without such sockets.
///
/// # Errors
/// If another process has the port, EADDRNOTAVAIL for an id at all addresses, else EADDRINUSE, as
/// the kernel's table. A lack of descriptors or memory.
pub(super) fn claim(space: PortSpace, binding: &Binding) -> Result<Vec<OwnedFd>, CmaError> {
    let taken = if binding.is_wildcard { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE };
    let claim = |at| match named(&format!("{}port", prefix(space, at))) {
        Err(Errno::EADDRINUSE) => Some(Err(CmaError(taken))),
        result => or_shortage(result).transpose(),
    };
    shared_of(binding).filter_map(claim).collect()
}

fn named(name: &str) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let entry = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    bind(entry.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(entry)
}

/// Turns errors other than shortages into `None`, because the system may not have such files or
/// sockets.
///
/// # Errors
/// A lack of descriptors or memory. It is then unknown whether another process has the port.
pub(super) fn or_shortage<T, E>(result: Result<T, E>) -> Result<Option<T>, CmaError>
where
    io::Error: From<E>,
{
    match result.map_err(io::Error::from) {
        Err(error) if is_shortage(&error) => {
            Err(CmaError(error.raw_os_error().unwrap_or(libc::ENOMEM)))
        }
        result => Ok(result.ok()),
    }
}

/// The station of a listener of any process.
///
/// # Errors
/// A lack of descriptors or memory.
pub(super) fn find(space: PortSpace, to: SocketAddr) -> Result<Option<Station>, CmaError> {
    let sockets = or_shortage(std::fs::read_to_string("/proc/self/net/unix"))?;
    let is_one = |shared: &IpAddr| shared.is_ipv4() == to.is_ipv4();
    let at = SHARED.into_iter().find(is_one).map(|shared| SocketAddr::new(shared, to.port()));
    Ok(sockets.zip(at).and_then(|(sockets, at)| station_in(&sockets, &prefix(space, at))))
}

/// The last column of /proc/net/unix is the name, with `@` for the abstract namespace. Only one
/// process has the port, but any process can announce a station. If there are several, all are
/// ignored, so that a process cannot take over another's connections by announcing its own station.
fn station_in(sockets: &str, prefix: &str) -> Option<Station> {
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let listed = names.filter_map(|name| name.strip_prefix('@')?.strip_prefix(prefix));
    let stations = listed.filter_map(|text| text.parse::<Ipv4Addr>().ok());
    let mut stations = stations.filter_map(Station::new);
    let first = stations.next()?;
    let is_certain = stations.all(|other| other == first);
    if !is_certain {
        tracing::warn!("several processes announce a listener at {prefix}: all are ignored");
    }
    is_certain.then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), std::process::id() as u16)
    }

    #[test]
    fn a_listener_is_found_while_it_is_listed() {
        let station = Station::new(Ipv4Addr::new(127, 21, 3, 4)).unwrap();
        let find = |space, address| super::find(space, at(address)).unwrap();
        for (own, found) in [("0.0.0.0", [true, false]), ("::1", [false, true]), ("::", [true; 2])]
        {
            let binding = Binding::new(at(own));
            let entries = publish(PortSpace::IPOIB, &binding, station).unwrap();
            for (to, is_found) in ["127.0.0.1", "::1"].into_iter().zip(found) {
                let expected = is_found.then_some(station);
                assert_eq!(find(PortSpace::IPOIB, to), expected, "{own}, {to}");
            }
            assert_eq!(find(PortSpace::TCP, "127.0.0.1"), None);
            drop(entries);
            assert_eq!(find(PortSpace::IPOIB, "::1"), None);
        }
    }

    #[test]
    fn other_names_are_not_listeners() {
        let table = |name: &str| format!("Num RefCount\n0: 2 0 10000 2 1 1234 {name}\n");
        let prefix = prefix(PortSpace::TCP, SocketAddr::new(SHARED[0], 80));
        let found = |start: &str, end: &str| {
            station_in(&table(&format!("{start}uverbs/rdma_cm/0106/80/127.0.0.1/{end}")), &prefix)
        };
        assert!(found("@", "127.18.0.1").is_some());
        for (start, end) in
            [("", "127.18.0.1"), ("@", "10.0.0.1"), ("@", "127.18.0.1x"), ("@", "port")]
        {
            assert_eq!(found(start, end), None, "{start}{end}");
        }
        assert_eq!(station_in("", &prefix), None);
        let listed = |stations: &[&str]| {
            let line = |station: &&str| {
                format!("0: 2 0 10000 2 1 1234 @uverbs/rdma_cm/0106/80/127.0.0.1/{station}\n")
            };
            station_in(&stations.iter().map(line).collect::<String>(), &prefix)
        };
        assert!(listed(&["127.18.0.1", "port"]).is_some());
        assert_eq!(listed(&["127.18.0.1", "127.18.0.2"]), None, "one of them is false");
    }
}
