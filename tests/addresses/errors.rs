//! Addresses that a device cannot have.

use std::io::ErrorKind;
use std::net::UdpSocket;

use uverbs::soft::packet::rocev2::UDP_PORT;

use crate::namespace::{builder, device, inside, run};

/// The error text of starting a device at this address.
fn refusal(address: &str) -> (ErrorKind, String) {
    let error = device(address).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn a_device_needs_a_local_address_on_an_interface_that_is_up() {
    inside("errors::a_device_needs_a_local_address_on_an_interface_that_is_up", || {
        let (kind, text) = refusal("10.9.9.9");
        assert_eq!(kind, ErrorKind::AddrNotAvailable);
        assert!(
            text.contains("10.9.9.9 is not an address of this network namespace (lo: 127"),
            "{text}"
        );
        run("ip link add idle type veth peer name other");
        run("ip address add 10.9.9.9/24 dev idle");
        let (kind, text) = refusal("10.9.9.9");
        assert_eq!(kind, ErrorKind::NetworkDown);
        assert_eq!(text, "interface idle of 10.9.9.9 is down: ip link set idle up");
        run("ip link set idle mtu 300 up");
        assert!(refusal("10.9.9.9").1.contains("the MTU of idle is 300 bytes"));
        run("ip link set idle mtu 1500");
        device("10.9.9.9").unwrap();
        let (kind, text) = {
            let error = builder("10.9.9.9").infiniband().build().unwrap_err();
            (error.kind(), error.to_string())
        };
        assert_eq!(kind, ErrorKind::Unsupported, "{text}");
    });
}

#[test]
fn a_second_device_at_an_address_is_refused() {
    inside("errors::a_second_device_at_an_address_is_refused", || {
        run("ip address add 10.9.9.9/24 dev lo");
        let first = device("10.9.9.9").unwrap();
        let (kind, text) = refusal("10.9.9.9");
        assert_eq!(kind, ErrorKind::AddrInUse);
        let holder = format!("is taken by this process {} (", std::process::id());
        assert!(text.contains(&holder), "{text}");
        drop(first);
        let again = device("10.9.9.9").unwrap();
        drop(again);
        let _all = UdpSocket::bind(("0.0.0.0", UDP_PORT)).unwrap();
        let text = refusal("10.9.9.9").1;
        assert!(text.contains(&holder) && text.contains("at all addresses"), "{text}");
    });
}

#[test]
fn a_link_local_address_of_two_interfaces_needs_the_interface_name() {
    inside("errors::a_link_local_address_of_two_interfaces_needs_the_interface_name", || {
        run("ip link add one type veth peer name two");
        for name in ["one", "two"] {
            run(&format!("sysctl -q net.ipv6.conf.{name}.accept_dad=0"));
            run(&format!("ip link set {name} up"));
            run(&format!("ip -6 address add fe80::7/64 dev {name} nodad"));
        }
        let text = refusal("fe80::7").1;
        assert!(text.starts_with("several interfaces have fe80::7 (one, two)"), "{text}");
        let (one, two) = (device("fe80::7%one").unwrap(), device("fe80::7%two").unwrap());
        assert_eq!(one.gids()[0].gid, two.gids()[0].gid);
        assert_eq!(refusal("fe80::7%lo").0, ErrorKind::AddrNotAvailable);
    });
}
