//! Devices of different users, and names that another user has taken.

use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use super::*;
use crate::wire::ring::socket;

/// `join_privately` acts as if another user held all names that users share.
#[test]
fn devices_with_private_names_reach_other_devices_and_are_reached() {
    let join = || Network::join_privately(Link::Ethernet).unwrap();
    let (mut left, mut right, mut plain) = (join(), join(), memory());
    let (a, b, c) = (left.station(), right.station(), plain.station());
    assert!(a != b && b != c && c != a);
    let sent = [packet(a, b, 1, 100)];
    send(&mut left, sent.to_vec());
    assert_eq!(received(&mut right), sent);
    let sent = [packet(c, a, 2, 100)];
    send(&mut plain, sent.to_vec());
    assert_eq!(received(&mut left), sent);
    let sent = [packet(b, c, 3, 100)];
    send(&mut right, sent.to_vec());
    assert_eq!(received(&mut plain), sent);
    assert_eq!((udp_sent(&left), udp_sent(&right), udp_sent(&plain)), (0, 0, 0));
}

/// Another process listens on the station's name that all users share. Packets still go to the
/// user's own device.
#[test]
fn a_squatter_gets_no_packets_for_a_device_with_a_private_name() {
    let (mut left, mut right) = (memory(), Network::join_privately(Link::Ethernet).unwrap());
    let to = right.station();
    let squatter = socket::listen(socket::claim(to).unwrap().unwrap()).unwrap();
    let sent = [packet(left.station(), to, 1, 100)];
    send(&mut left, sent.to_vec());
    assert_eq!(received(&mut right), sent);
    squatter.set_nonblocking(true).unwrap();
    assert_eq!(squatter.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_name_cannot_be_taken_before_or_after_its_station() {
    let held = Station::new([127, 19, 0, 1].into()).unwrap();
    let _squatter = socket::claim(held).unwrap();
    let refused = Network::join_as(held, Link::Ethernet, None, Carrier::Udp).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    for carrier in [Carrier::Memory, Carrier::Udp] {
        let network = network(carrier);
        assert!(socket::claim(network.station()).is_err(), "{carrier:?}");
    }
}

const USER: &str = "UVERBS_TEST_USER";
const CARRIER: &str = "UVERBS_TEST_ANY_USER";

/// Another user's process, which sends until its input ends, because packets in a refused ring are
/// lost. It prints whether any packet went by UDP. Run by the test below.
#[test]
#[ignore = "the other process of a test"]
fn other_user() {
    let user = std::env::var(USER).unwrap().parse().unwrap();
    nix::unistd::setuid(nix::unistd::Uid::from_raw(user)).unwrap();
    let to: Ipv4Addr = std::env::var(TO).unwrap().parse().unwrap();
    let any = std::env::var_os(CARRIER).is_some();
    let mut network = network(if any { Carrier::MemoryOfAnyUser } else { Carrier::Memory });
    let (from, to) = (network.station(), Station::new(to).unwrap());
    let listener = std::thread::spawn(|| io::stdin().read(&mut [0]));
    while !listener.is_finished() {
        send(&mut network, vec![packet(from, to, 1, 1)]);
        received(&mut network);
    }
    eprintln!("by UDP: {}", udp_sent(&network) != 0);
}

/// Whether another user's packet goes by UDP to a device with this carrier.
fn goes_by_udp(here: Carrier, there_any: bool) -> bool {
    let mut right = network(here);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--ignored",
        "--exact",
        "--nocapture",
        "wire::ring::network_tests::users::other_user",
    ]);
    child.env(TO, right.station().to_string()).env(USER, "65534");
    if there_any {
        child.env(CARRIER, "1");
    }
    child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let mut arrived = Vec::new();
    eventually(|| {
        arrived.extend(received(&mut right));
        !arrived.is_empty()
    });
    let by_udp = count(&right, |c| &c.received) == 0;
    let told = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains(&format!("by UDP: {by_udp}")), "{told}");
    by_udp
}

#[test]
fn memory_is_shared_with_the_same_user_unless_both_say_otherwise() {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "becoming another user needs root");
        return eprintln!("skipped: becoming another user needs root");
    }
    assert!(goes_by_udp(Carrier::Memory, false));
    assert!(goes_by_udp(Carrier::Memory, true));
    assert!(goes_by_udp(Carrier::MemoryOfAnyUser, false));
    assert!(!goes_by_udp(Carrier::MemoryOfAnyUser, true));
}
