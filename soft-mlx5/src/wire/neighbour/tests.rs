use super::*;
use crate::wire::{Carrier, Link, Network, UdpWire};

#[test]
fn a_socket_is_found_by_address_and_port() {
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
