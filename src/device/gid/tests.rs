use super::*;

fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
    GidEntry { port: 1, index, gid: gid.parse().unwrap(), kind, interface: 2 }
}

fn table() -> Vec<GidEntry> {
    vec![
        entry(0, "fe80::1", GidKind::RoceV1),
        entry(1, "fe80::1", GidKind::RoceV2),
        entry(2, "2001:db8::1", GidKind::RoceV2),
        entry(3, "::ffff:10.0.0.1", GidKind::RoceV1),
        entry(4, "::ffff:10.0.0.1", GidKind::RoceV2),
        entry(5, "::ffff:10.0.0.2", GidKind::RoceV2),
    ]
}

#[test]
fn the_most_routable_gid_wins() {
    let mut table = table();
    let expected = [
        (4, GidReason::RoceV2Ipv4),
        (5, GidReason::RoceV2Ipv4),
        (2, GidReason::RoceV2Ipv6),
        (1, GidReason::RoceV2LinkLocal),
        (0, GidReason::RoceV1),
        (3, GidReason::RoceV1),
    ];
    for (index, reason) in expected {
        let choice = choose(LinkLayer::Ethernet, &table).unwrap();
        assert_eq!((choice.entry.index, choice.reason), (index, reason));
        table.retain(|entry| entry.index != index);
    }
    let error = choose(LinkLayer::Ethernet, &table).unwrap_err();
    assert!(error.cure().contains("IP address"), "{error}");
    let error = choose(LinkLayer::InfiniBand, &[]).unwrap_err();
    assert!(error.cure().contains("subnet manager"), "{error}");
}

#[test]
fn a_named_index_must_be_filled() {
    assert_eq!(choose_index(&table(), 2).unwrap().reason, GidReason::Asked);
    let error = choose_index(&table(), 9).unwrap_err();
    assert!(error.to_string().contains("0, 1, 2, 3, 4, 5"), "{error}");
}
