use std::fs;

use super::*;
use crate::error::ErrorKind;

/// A group that no other test process on this machine joins.
fn group() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, 77, high, low)
}

/// Whether the kernel has joined the group (igmp_mc_seq_show of net/ipv4/igmp.c prints the address
/// as it is in memory).
fn is_joined(group: Ipv4Addr) -> bool {
    let entry = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let lines = fs::read_to_string("/proc/net/igmp").expect("the kernel's groups");
    lines.split_whitespace().any(|word| word == entry)
}

/// Number of sockets that have joined for only this source (igmp_mcf_seq_show prints addresses as
/// numbers).
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

/// Number of sockets that have joined for only this source (ip6_mcf_seq_show prints addresses in
/// hex).
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
