use super::*;

fn example() -> Endpoint {
    Endpoint {
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gid: Some("::ffff:127.0.0.1".parse().unwrap()),
        gid_kind: GidKind::RoceV2,
        qpn: 0x12_3456,
        psn: 0xab_cdef,
        mtu: Mtu::B1024,
        responder_reads: 16,
        initiator_reads: 8,
        qkey: 0x8001_0000,
        srqn: 7,
    }
}

#[test]
fn the_encoding_is_fixed() {
    let mut expected = Vec::from(*b"uvrb\x01\x02\x00\x00\x00\x12\x34\x56\x00\xab\xcd\xef");
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    expected.extend([2, 3, 16, 8, 0x80, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]);
    assert_eq!(example().to_bytes().as_slice(), expected);
}

#[test]
fn it_reads_back_what_it_wrote() {
    assert_eq!(Endpoint::from_bytes(&example().to_bytes()).unwrap(), example());
    let lid_only = Endpoint { gid: None, lid: 3, ..example() };
    assert_eq!(Endpoint::from_bytes(&lid_only.to_bytes()).unwrap(), lid_only);
}

#[test]
fn a_peer_cannot_smuggle_in_nonsense() {
    for (offset, value) in [(0, 0), (4, 9), (5, 3), (8, 1), (12, 1), (32, 3), (33, 0), (40, 1)] {
        let mut bytes = example().to_bytes();
        bytes[offset] = value;
        assert!(Endpoint::from_bytes(&bytes).is_err(), "byte {offset} = {value}");
    }
}
