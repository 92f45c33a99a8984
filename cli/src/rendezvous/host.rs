//! The other end's host, as the user names it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use nix::net::if_::if_nametoindex;

use crate::failure::{Failure, Outcome};

/// The addresses of a host, with this port.
///
/// Fails, with advice, if the name is unknown or is a link-local address without an interface.
pub(crate) fn addresses(host: &str, port: u16) -> Outcome<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs().map_err(|error| unknown(host, &error))?;
    let found: Vec<SocketAddr> = found.collect();
    if found.iter().all(needs_interface) {
        let cure = format!("name its interface: {host}%eth0");
        return Err(Failure::usage(format!("{host} is a link-local address: {cure}")));
    }
    Ok(found)
}

fn unknown(host: &str, error: &io::Error) -> Failure {
    let cure = port_cure(host).or_else(|| interface_cure(host));
    let cure = cure.unwrap_or_else(|| format!("check the name (getent hosts {host})"));
    Failure::usage(format!("no address for host '{host}': {error}; {cure}"))
}

/// For `host:7` and `[::1]:7`.
fn port_cure(host: &str) -> Option<String> {
    let (name, port) = host.rsplit_once(':')?;
    let inside = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = inside.or_else(|| (!name.contains(':')).then_some(name)).filter(|_| is_port)?;
    Some(format!("the port has an option of its own: {name} --port {port}"))
}

/// For `fe80::1%eth7` where there is no `eth7`.
fn interface_cure(host: &str) -> Option<String> {
    let (_, interface) = host.rsplit_once('%')?;
    if_nametoindex(interface).is_err().then(|| format!("there is no interface {interface}"))
}

fn needs_interface(address: &SocketAddr) -> bool {
    match address {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(v6) => v6.ip().is_unicast_link_local() && v6.scope_id() == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_is_taken_for_one() {
        let port =
            |host| port_cure(host).and_then(|text| Some(text.split_once(": ")?.1.to_owned()));
        assert_eq!(port("a.example:7").as_deref(), Some("a.example --port 7"));
        assert_eq!(port("[::1]:7").as_deref(), Some("::1 --port 7"));
        for host in ["::1", "fe80::1:7", "a.example", "a:", "a:b", ":7x"] {
            assert_eq!(port(host), None, "{host}");
        }
    }

    #[test]
    fn an_address_of_every_link_needs_its_interface() {
        assert!(addresses("fe80::1", 7).is_err() && addresses("fe80::1%1", 7).is_ok());
        assert!(addresses("::1", 7).is_ok() && addresses("169.254.0.1", 7).is_ok());
    }
}
