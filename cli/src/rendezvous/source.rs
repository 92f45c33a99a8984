//! The source of a connection. Clients are grouped by source, so that those of one source do not
//! delay those of another.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A group of clients whose wrong codes are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A user of this machine, who could use any loopback address.
    User(u32),
    /// An IPv4 address, or the first 64 bits of an IPv6 address, because a machine can choose the
    /// others.
    Network(IpAddr),
}

impl Source {
    /// The source of a connection from `peer` to `own`.
    pub(super) fn of(peer: SocketAddr, own: SocketAddr) -> Self {
        let ip = peer.ip().to_canonical();
        let user =
            || std::fs::read_to_string(table_of(peer)).ok().and_then(|t| user(&t, peer, own));
        match ip {
            ip if ip.is_loopback() => user().map_or(Self::Network(ip), Self::User),
            IpAddr::V6(ip) => {
                let network = ip.to_bits() & !u128::from(u64::MAX);
                Self::Network(Ipv6Addr::from_bits(network).into())
            }
            IpAddr::V4(_) => Self::Network(ip),
        }
    }
}

fn table_of(peer: SocketAddr) -> &'static str {
    if peer.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" }
}

/// The user who owns the socket at `peer` that is connected to `own`. A line of the table has
/// number, local and remote address, state, queues, timers, retransmissions, user (`get_tcp4_sock`
/// in net/ipv4/tcp_ipv4.c).
fn user(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let (local, remote) = (in_table(peer), in_table(own));
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next()? == local && fields.next()? == remote;
        is_it.then(|| fields.nth(4)?.parse().ok())?
    })
}

/// An address in the table's form: words of 32 bits in the processor's byte order, and the port.
fn in_table(address: SocketAddr) -> String {
    let word = |bytes: &[u8]| {
        let bytes = <[u8; 4]>::try_from(bytes).unwrap_or_default();
        format!("{:08X}", u32::from_ne_bytes(bytes))
    };
    let ip: String = match address.ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().chunks_exact(4).map(word).collect(),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_client_on_loopback_is_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let own = listener.local_addr().expect("address");
            let _client = TcpStream::connect(own).expect("connect");
            let (_stream, peer) = listener.accept().expect("accept");
            let user = nix::unistd::geteuid().as_raw();
            assert_eq!(Source::of(peer, own), Source::User(user), "{address}");
        }
    }

    #[test]
    fn the_table_is_read_by_both_addresses() {
        let (a, b): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4000".parse().expect("a"), "127.0.0.1:5000".parse().expect("b"));
        let line = |from, to| {
            let (from, to) = (in_table(from), in_table(to));
            format!("   1: {from} {to} 01 00000000:00000000 00:00000000 00000000  1000        0 5")
        };
        assert_eq!(user(&line(a, b), a, b), Some(1000));
        assert_eq!(user(&line(b, a), a, b), None);
        assert_eq!(user("  sl  local_address", a, b), None);
    }

    #[test]
    fn machines_of_one_network_are_one_source() {
        let own = "[2001:db8::1]:9".parse().expect("own");
        let of = |peer: &str| Source::of(peer.parse().expect("peer"), own);
        assert_eq!(of("[2001:db8::7]:1"), of("[2001:db8::8]:2"));
        assert_ne!(of("[2001:db8::7]:1"), of("[2001:db8:0:1::7]:1"));
        assert_eq!(of("192.0.2.1:1"), of("[::ffff:192.0.2.1]:2"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
    }
}
