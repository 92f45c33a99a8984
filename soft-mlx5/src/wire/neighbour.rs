//! Neighbour discovery: finds whether a device of the loopback network has a station.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::sync::Mutex;

use super::Station;
use super::network::is_on_process_switch;
use super::ring::is_private;
use crate::locking::lock;
use crate::packet::rocev2::UDP_PORT;

/// Nanoseconds for which a neighbour of another process counts as present after it was found.
/// Reading the table of sockets takes about a millisecond, which must not slow down many
/// connections.
const FRESH: u64 = 1_000_000_000;

/// The neighbours that a device has found recently.
#[derive(Debug, Default)]
pub struct Neighbours {
    found: Mutex<Vec<(Station, u64)>>,
}

impl Neighbours {
    /// Whether a device has this station, at the time `now` in nanoseconds. Also true if that is
    /// unknown, because there is no /proc.
    ///
    /// Each device binds a UDP socket at its address, even if other means carry its packets. Only a
    /// device with a private name does not.
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

/// Whether a socket is bound to RoCE's port at this address or at all addresses. /proc/net/udp has
/// a line for each socket: number, then local address and port in hexadecimal. The four bytes of
/// the address are read as an integer of the processor's byte order (`udp4_format_sock` in
/// net/ipv4/udp.c).
fn is_bound(sockets: &str, address: Ipv4Addr) -> bool {
    let wanted = [address, Ipv4Addr::UNSPECIFIED]
        .map(|address| format!("{:08X}:{UDP_PORT:04X}", u32::from_ne_bytes(address.octets())));
    let mut bound = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    bound.any(|bound| wanted.iter().any(|wanted| wanted == bound))
}

#[cfg(test)]
mod tests;
