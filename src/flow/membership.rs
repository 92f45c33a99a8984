//! Joining multicast groups: a steering rule alone does not make the network send their frames.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::host::system;

const VERB: &str = "join";

/// A membership in a multicast group, held by an ordinary socket: the kernel reports it to the
/// network (IGMP, MLD) and adds the group's MAC address to the port's filter.
///
/// Dropping it leaves the group. The socket receives nothing, because steering rules take the
/// frames before the kernel's network stack.
///
/// Add the rule before joining, so that no frame of the group reaches the kernel's stack. Switches
/// need some time to process the membership, so the first frames may be missing.
#[derive(Debug)]
#[must_use = "dropping it leaves the group"]
pub struct Membership {
    #[allow(dead_code, reason = "closing it leaves the group")]
    socket: UdpSocket,
}

impl Membership {
    /// Joins `group` on the network device that has the address `interface`.
    ///
    /// # Errors
    /// `InvalidInput` if the address is not a multicast group; ENODEV if no device has the address;
    /// ENOBUFS beyond `net.ipv4.igmp_max_memberships`; other errors of the kernel.
    pub fn join(group: Ipv4Addr, interface: Ipv4Addr) -> Result<Self> {
        let joins = |socket: &UdpSocket| socket.join_multicast_v4(&group, &interface);
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} on {interface}");
        Self::with(Ipv4Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    /// Joins `group` only for packets from `source` (IGMPv3, source-specific multicast).
    ///
    /// # Errors
    /// As for [`Membership::join`]; ENOBUFS beyond `net.ipv4.igmp_max_msf` sources.
    pub fn join_source(group: Ipv4Addr, source: Ipv4Addr, interface: Ipv4Addr) -> Result<Self> {
        let joins = |socket: &UdpSocket| {
            system::join_source(socket.as_fd(), group, source, interface).map_err(Into::into)
        };
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} from {source} on {interface}");
        Self::with(Ipv4Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    /// Joins an IPv6 group on the network device with index `interface`.
    ///
    /// # Errors
    /// `InvalidInput` if the address is not a multicast group; ENODEV if no device has the index;
    /// other errors of the kernel.
    pub fn join_v6(group: Ipv6Addr, interface: u32) -> Result<Self> {
        let joins = |socket: &UdpSocket| socket.join_multicast_v6(&group, interface);
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} on network device {interface}");
        Self::with(Ipv6Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    /// Joins an IPv6 group only for packets from `source` (MLDv2, source-specific multicast).
    ///
    /// # Errors
    /// As for [`Membership::join_v6`]; ENOBUFS beyond `net.ipv6.mld_max_msf` sources.
    pub fn join_source_v6(group: Ipv6Addr, source: Ipv6Addr, interface: u32) -> Result<Self> {
        let joins = |socket: &UdpSocket| {
            system::join_source_v6(socket.as_fd(), group, source, interface).map_err(Into::into)
        };
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} from {source} on network device {interface}");
        Self::with(Ipv6Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    fn with(
        any: std::net::IpAddr,
        join: impl FnOnce(&UdpSocket) -> std::io::Result<()>,
    ) -> Result<Self> {
        let made = UdpSocket::bind((any, 0)).and_then(|socket| join(&socket).map(|()| socket));
        let socket = made.map_err(|error| explained(Error::io(VERB, &error)))?;
        Ok(Self { socket })
    }
}

/// Adds cause and cure (`ip_mc_join_group` of net/ipv4/igmp.c, net/ipv6/mcast.c).
fn explained(error: Error) -> Error {
    match Errno::from_raw(error.errno()) {
        Errno::ENODEV => error
            .because("no network device of this network namespace has this address or index")
            .cure_with("name the port's own network device (ip address)"),
        Errno::ENOBUFS => error
            .because("the socket may join no more groups or sources")
            .cure_with("raise net.ipv4.igmp_max_{memberships,msf} or net.ipv6.mld_max_msf"),
        _ => error,
    }
}

fn check(is_group: bool, address: &impl std::fmt::Display) -> Result<()> {
    match is_group {
        true => Ok(()),
        false => Err(Error::invalid(VERB, "not a multicast group").asked(address.to_string())),
    }
}

#[cfg(test)]
mod tests;
