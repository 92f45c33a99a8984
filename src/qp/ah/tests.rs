use super::*;

#[test]
fn source_ports_follow_the_flow_label() {
    assert_eq!(flow_label_to_source_port(0), 0xc000);
    assert_eq!(flow_label_to_source_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
}

/// An entry of a port's table, by its index and address.
fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
    GidEntry { port: 1, index, gid: gid.parse().unwrap(), kind, interface: 0 }
}

#[test]
fn a_datagram_to_a_group_is_answered_from_an_address_of_the_senders_family() {
    use GidKind::{RoceV1, RoceV2};
    let table = [
        entry(0, "fe80::1", RoceV1),
        entry(1, "fe80::1", RoceV2),
        entry(2, "::ffff:10.0.0.1", RoceV1),
        entry(3, "::ffff:10.0.0.1", RoceV2),
        entry(4, "::ffff:10.0.0.2", RoceV2),
    ];
    let answering = |source: &str, destination: &str, is_udp| {
        let gid = |text: &str| text.parse::<Gid>().unwrap().0;
        let header = RoutingHeader {
            source: gid(source),
            destination: gid(destination),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            is_udp,
        };
        super::answering(&table, &header).map(|own| own.index)
    };
    assert_eq!(answering("::ffff:10.0.0.9", "::ffff:10.0.0.2", true), Some(4));
    assert_eq!(answering("::ffff:10.0.0.9", "::ffff:239.1.1.1", true), Some(3));
    assert_eq!(answering("fe80::9", "ff0e::1", true), Some(1));
    assert_eq!(answering("fe80::9", "ff0e::1", false), Some(0));
    assert_eq!(answering("::ffff:10.0.0.9", "ff0e::ffff:ef01:101", false), Some(2));
}
