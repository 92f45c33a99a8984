//! Joining multicast groups: a steering rule alone brings nothing that the network does not send.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::host::system;

const VERB: &str = "join";

/// A membership of a multicast group, held by a socket of the operating system: the kernel tells
/// the network (IGMP, MLD) and puts the group's MAC address into the port's filter.
///
/// Dropping it leaves the group. The kernel sees what the rules of raw packet queues take from it
/// no more, so the socket receives nothing.
///
/// Add the rule first and join then, so that no frame of the line reaches the kernel's stack. A
/// switch needs a moment to learn of the membership: the first frames may be missing.
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
    /// `InvalidInput` if it is no group; ENODEV where no device has the address; ENOBUFS beyond
    /// `net.ipv4.igmp_max_memberships`; other errors of the kernel.
    pub fn join(group: Ipv4Addr, interface: Ipv4Addr) -> Result<Self> {
        let joins = |socket: &UdpSocket| socket.join_multicast_v4(&group, &interface);
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} on {interface}");
        Self::with(Ipv4Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    /// Joins `group` for packets from `source` alone (IGMPv3, source-specific multicast).
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
    /// As for [`Membership::join`].
    pub fn join_v6(group: Ipv6Addr, interface: u32) -> Result<Self> {
        let joins = |socket: &UdpSocket| socket.join_multicast_v6(&group, interface);
        check(group.is_multicast(), &group)?;
        let asked = format!("{group} on network device {interface}");
        Self::with(Ipv6Addr::UNSPECIFIED.into(), joins).map_err(|error| error.asked(asked))
    }

    /// Joins an IPv6 group for packets from `source` alone (MLDv2, source-specific multicast).
    ///
    /// # Errors
    /// As for [`Membership::join`]; ENOBUFS beyond `net.ipv6.mld_max_msf` sources.
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

/// What the refusal means (`ip_mc_join_group` of net/ipv4/igmp.c, net/ipv6/mcast.c).
fn explained(error: Error) -> Error {
    match Errno::from_raw(error.errno()) {
        Errno::ENODEV => error
            .because("no network device of this network namespace has this address or index")
            .cure_with("name the address of the port's own network device (ip address)"),
        Errno::ENOBUFS => error
            .because("the socket may join no more groups or sources")
            .cure_with("raise net.ipv4.igmp_max_memberships or net.ipv4.igmp_max_msf"),
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
mod tests {
    use std::fs;

    use super::*;
    use crate::error::ErrorKind;

    /// A group that no other process of this machine joins for its tests.
    fn group() -> Ipv4Addr {
        let [.., high, low] = std::process::id().to_be_bytes();
        Ipv4Addr::new(239, 77, high, low)
    }

    /// Whether the kernel has joined the group for anyone (igmp_mc_seq_show of net/ipv4/igmp.c: the
    /// address as it is in memory).
    fn is_joined(group: Ipv4Addr) -> bool {
        let entry = format!("{:08X}", u32::from_ne_bytes(group.octets()));
        let lines = fs::read_to_string("/proc/net/igmp").expect("the kernel's groups");
        lines.split_whitespace().any(|word| word == entry)
    }

    /// How many sockets want packets of a source alone (igmp_mcf_seq_show: addresses as numbers).
    fn filters(group: Ipv4Addr, source: Ipv4Addr) -> usize {
        let pair = [group, source].map(|address| format!("0x{:08x}", u32::from(address)));
        let lines = fs::read_to_string("/proc/net/mcfilter").expect("the kernel's filters");
        lines.lines().filter(|line| pair.iter().all(|word| line.contains(word))).count()
    }

    #[test]
    fn an_address_of_no_network_device_is_said_in_words() {
        let nowhere = Ipv4Addr::new(203, 0, 113, 9);
        let error = Membership::join(group(), nowhere).expect_err("documentation's address");
        assert_eq!(error.errno(), Errno::ENODEV as i32);
        assert!(error.to_string().contains("no network device"), "{error}");
    }

    #[test]
    fn a_group_is_joined_until_the_membership_is_dropped() {
        let source = Ipv4Addr::new(127, 0, 0, 9);
        let membership = Membership::join(group(), Ipv4Addr::LOCALHOST).expect("joined");
        assert!(is_joined(group()));
        assert_eq!(filters(group(), source), 0);
        drop(membership);
        assert!(!is_joined(group()));

        let one = Membership::join_source(group(), source, Ipv4Addr::LOCALHOST).expect("joined");
        assert!(is_joined(group()));
        assert_eq!(filters(group(), source), 1);
        drop(one);
        assert!(!is_joined(group()));
    }

    /// The index of the loopback interface, if it has IPv6 (if6_seq_show of net/ipv6/addrconf.c).
    fn loopback_v6() -> Option<u32> {
        let lines = fs::read_to_string("/proc/net/if_inet6").ok()?;
        let line = lines.lines().find(|line| line.ends_with(" lo"))?;
        u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
    }

    /// How many sockets want packets of a source alone (ip6_mcf_seq_show: addresses in hex).
    fn filters_v6(group: Ipv6Addr, source: Ipv6Addr) -> usize {
        let pair = [group, source].map(|address| format!("{:032x}", u128::from(address)));
        let lines = fs::read_to_string("/proc/net/mcfilter6").expect("the kernel's filters");
        lines.lines().filter(|line| pair.iter().all(|word| line.contains(word))).count()
    }

    #[test]
    fn an_ipv6_group_is_joined_for_a_source_alone() {
        let Some(loopback) = loopback_v6() else {
            return eprintln!("skipped: the loopback interface has no IPv6");
        };
        let [.., high, low] = std::process::id().to_be_bytes();
        let last = u16::from_be_bytes([high, low]);
        let group = Ipv6Addr::new(0xff31, 0, 0, 0, 0, 0, 0x8077, last);
        let source = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
        let one = Membership::join_source_v6(group, source, loopback).expect("joined");
        assert_eq!(filters_v6(group, source), 1);
        drop(one);
        assert_eq!(filters_v6(group, source), 0);
        let error = Membership::join_source_v6(source, source, loopback).expect_err("no group");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = Membership::join_source_v6(group, source, u32::MAX).expect_err("no device");
        assert_eq!(error.errno(), libc::ENODEV, "{error}");
    }

    #[test]
    fn what_cannot_be_joined_is_refused_in_words() {
        let here = Ipv4Addr::LOCALHOST;
        let unicast = Membership::join(Ipv4Addr::new(10, 0, 0, 1), here).expect_err("no group");
        assert_eq!(unicast.kind(), ErrorKind::InvalidInput);
        assert!(unicast.to_string().contains("10.0.0.1"), "{unicast}");
        let elsewhere = Membership::join(group(), Ipv4Addr::new(192, 0, 2, 1)).expect_err("no");
        assert_eq!(elsewhere.errno(), libc::ENODEV, "{elsewhere}");
        assert!(elsewhere.to_string().contains("192.0.2.1"), "{elsewhere}");
        let v6 = Membership::join_v6(Ipv6Addr::LOCALHOST, 1).expect_err("no group");
        assert_eq!(v6.kind(), ErrorKind::InvalidInput);
    }
}
