use super::*;

fn address(text: &str) -> HostAddress {
    text.parse().unwrap()
}

#[test]
fn addresses_are_parsed_and_printed() {
    for text in ["10.0.0.1", "2001:db8::1", "fe80::1%eth0", "127.0.0.1", "::1"] {
        assert_eq!(address(text).to_string(), text);
    }
    for text in ["", "10.0.0", "10.0.0.1%eth0", "fe80::1%", "eth0", "10.0.0.1:4791"] {
        assert!(text.parse::<HostAddress>().is_err(), "{text}");
    }
    assert_eq!(address("10.0.0.255").following(1), address("10.0.1.0"));
    assert_eq!(address("fe80::ff%eth0").following(1), address("fe80::100%eth0"));
    let nth = |index| HostAddress::of_list("10.0.0.1,10.0.7.9", index).unwrap().to_string();
    assert_eq!([0, 1, 2].map(nth), ["10.0.0.1", "10.0.7.9", "10.0.7.10"]);
    for list in ["", "10.0.0.1,", "10.0.0.1,eth0"] {
        assert!(HostAddress::of_list(list, 0).is_err(), "{list}");
    }
    assert!(address("127.0.0.1").station().is_some());
    assert!(address("10.0.0.1").station().is_none());
}

fn interface(ip: &str, mtu: u32) -> Interface {
    let ip = ip.parse().unwrap();
    Interface { ip, name: "eth0".into(), index: 7, mac: [2, 1, 2, 3, 4, 5], mtu }
}

#[test]
fn the_largest_payload_follows_from_the_mtu_as_in_the_kernel() {
    let sizes = [(352, 256), (1500, 1024), (1499, 1024), (2144, 2048), (2143, 1024)];
    let large = [(4191, 2048), (4192, 4096), (9000, 4096), (65536, 4096)];
    for (mtu, payload) in sizes.into_iter().chain(large) {
        assert_eq!(interface("10.0.0.1", mtu).mtu().bytes(), payload, "{mtu}");
    }
}

#[test]
fn devices_at_two_addresses_of_an_interface_have_different_guids() {
    let guids =
        ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"].map(|ip| interface(ip, 1500).guid());
    for (index, guid) in guids.iter().enumerate() {
        assert!(!guids[..index].contains(guid));
        assert_eq!(guid[0], 2);
    }
}

#[test]
fn an_address_reaches_only_its_own_family() {
    let (v4, v6) = (interface("10.0.0.1", 1500), interface("2001:db8::1", 1500));
    let gid = |text: &str| gid_of(text.parse().unwrap());
    let towards = |from: &Interface, to: &str| from.towards(gid(to), 4791);
    assert_eq!(towards(&v4, "10.0.0.2"), Some("10.0.0.2:4791".parse().unwrap()));
    assert_eq!(towards(&v4, "2001:db8::2"), None);
    assert_eq!(towards(&v4, "127.18.0.1"), None);
    assert_eq!(towards(&v4, "0.0.0.0"), None);
    assert_eq!(towards(&v6, "10.0.0.2"), None);
    assert_eq!(towards(&v6, "2001:db8::2"), Some("[2001:db8::2]:4791".parse().unwrap()));
    let local = towards(&v6, "fe80::2");
    assert_eq!(local, Some("[fe80::2%7]:4791".parse().unwrap()));
}

#[test]
fn the_error_for_an_address_of_no_interface_lists_the_interfaces() {
    let error = Interface::find(&address("203.0.113.77")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    let text = error.to_string();
    assert!(text.starts_with("203.0.113.77 is not an address of this network namespace ("));
}
