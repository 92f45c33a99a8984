//! Neighbour discovery: whether a device of the loopback network has a station.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::sync::Mutex;

use super::Station;
use super::network::is_on_process_switch;
use super::ring::is_private;
use crate::locking::lock;
use crate::packet::rocev2::UDP_PORT;

/// Nanoseconds for which a neighbour of another process counts as present once it was found:
/// reading the table of sockets takes about a millisecond, opening many connections must not.
const FRESH: u64 = 1_000_000_000;

/// The neighbours that one device has found lately.
#[derive(Debug, Default)]
pub struct Neighbours {
    found: Mutex<Vec<(Station, u64)>>,
}

impl Neighbours {
    /// Whether a device has this station, at the time `now` in nanoseconds. True as well if that
    /// cannot be found out, because there is no /proc.
    ///
    /// Each device binds a UDP socket at its address, whatever carries its packets; only one with
    /// a private name does not.
    pub fn has(&self, station: Station, now: u64) -> bool {
        if is_on_process_switch(station) {
            return true;
        }
        let mut found = lock(&self.found);
        found.retain(|(_, since)| now.saturating_sub(*since) < FRESH);
        if found.iter().any(|(known, _)| *known == station) {
            return true;
        }
        let Ok(sockets) = std::fs::read_to_string("/proc/self/net/udp") else { return true };
        let is_present = is_bound(&sockets, station.address()) || is_private(station);
        if is_present {
            found.push((station, now));
        }
        is_present
    }
}

/// Whether a socket has RoCE's port at this address or at all of them. /proc/net/udp has a line
/// per socket: number, then local address and port in hexadecimal, the address's four bytes read
/// as an integer of the processor's byte order (`udp4_format_sock` in net/ipv4/udp.c).
fn is_bound(sockets: &str, address: Ipv4Addr) -> bool {
    let wanted = [address, Ipv4Addr::UNSPECIFIED]
        .map(|address| format!("{:08X}:{UDP_PORT:04X}", u32::from_ne_bytes(address.octets())));
    let mut bound = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    bound.any(|bound| wanted.iter().any(|wanted| wanted == bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Carrier, Link, Network, UdpWire};

    #[test]
    fn a_socket_counts_by_address_and_port() {
        let table = |bound: &str| format!("  sl  local_address rem\n 77: {bound} 00000000:0000 07");
        let address = Ipv4Addr::new(127, 0, 0, 9);
        let bytes = format!("{:08X}", u32::from_ne_bytes(address.octets()));
        assert!(is_bound(&table(&format!("{bytes}:12B7")), address));
        assert!(is_bound(&table("00000000:12B7"), address));
        assert!(!is_bound(&table(&format!("{bytes}:12B8")), address));
        assert!(!is_bound(&table(&format!("{bytes}:12B7")), Ipv4Addr::new(127, 0, 0, 8)));
        assert!(!is_bound("", address));
    }

    #[test]
    fn a_station_is_present_while_a_device_has_it() {
        let neighbours = Neighbours::default();
        let near = Network::join_any(Link::Ethernet, None, Carrier::Memory).unwrap();
        let far = Network::join_apart(Link::Ethernet, Carrier::Memory).unwrap();
        let udp = UdpWire::bind_any(Link::Ethernet).unwrap();
        for station in [near.station(), far.station(), udp.station()] {
            assert!(neighbours.has(station, 0));
            assert!(neighbours.has(station, 1), "as found before");
        }
        let station = Station::new(Ipv4Addr::new(127, 77, 1, 2)).unwrap();
        assert!(!neighbours.has(station, 2));
    }
}
