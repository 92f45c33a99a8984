use super::*;

/// The key of Microsoft's "Verifying the RSS Hash Calculation".
const EXAMPLE: [u8; RSS_KEY] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const ADDRESSES: u32 = SOURCE_ADDRESS | DESTINATION_ADDRESS;
const ALL: u32 = ADDRESSES | SOURCE_PORT | DESTINATION_PORT;

fn ethernet(ethertype: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(ethertype.to_be_bytes());
    frame
}

/// A UDP datagram without payload.
fn ipv4(source: [u8; 4], from: u16, destination: [u8; 4], to: u16) -> Vec<u8> {
    let mut frame = ethernet(0x0800);
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0]);
    frame.extend(source.into_iter().chain(destination));
    frame.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()).chain([0, 8, 0, 0]));
    frame
}

fn ipv6(source: &str, from: u16, destination: &str, to: u16) -> Vec<u8> {
    let octets = |address: &str| address.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut frame = ethernet(0x86dd);
    frame.extend([0x60, 0, 0, 0, 0, 8, UDP, 64]);
    frame.extend(octets(source).into_iter().chain(octets(destination)));
    frame.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()).chain([0, 8, 0, 0]));
    frame
}

fn hash(select: u32, frame: &[u8]) -> Option<(u32, u8)> {
    RssHash { key: EXAMPLE, select }.of(frame)
}

/// Each case has the hash of the addresses, and the hash of addresses and ports.
#[test]
fn hashes_are_those_of_the_specification() {
    let four = [
        (ipv4([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766), 0x323e_8fc2, 0x51cc_c178),
        (ipv4([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739), 0xd718_262a, 0xc626_b0ea),
        (ipv4([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024), 0xd2d0_a5de, 0x5c2b_394a),
    ];
    for (frame, addresses, all) in four {
        assert_eq!(hash(ADDRESSES, &frame), Some((addresses, HASHED_IPV4)));
        assert_eq!(hash(L4_UDP | ALL, &frame), Some((all, HASHED_IPV4 | HASHED_UDP)));
        assert_eq!(hash(L3_IPV6 | ADDRESSES, &frame), None);
    }
    let six = [
        (ipv6("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766), 0x2cc1_8cd5, 0x4020_7d3d),
        (ipv6("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739), 0x0f0c_461c, 0xdde5_1bbf),
    ];
    for (frame, addresses, all) in six {
        assert_eq!(hash(L3_IPV6 | ADDRESSES, &frame), Some((addresses, HASHED_IPV6)));
        let both = Some((all, HASHED_IPV6 | HASHED_UDP));
        assert_eq!(hash(L3_IPV6 | L4_UDP | ALL, &frame), both);
    }
}

#[test]
fn frames_of_other_protocols_are_not_hashed() {
    let frame = ipv4([1, 2, 3, 4], 5, [6, 7, 8, 9], 10);
    assert_eq!(hash(ALL, &frame), None, "not TCP");
    assert_eq!(hash(L3_IPV6 | L4_UDP | ALL, &frame), None);
    assert_eq!(hash(ADDRESSES, &ethernet(0x0806)), None);
    assert_eq!(hash(L4_UDP | ALL, &frame[..frame.len() - 2]), None, "cut off");
}

#[test]
fn frames_without_a_hash_go_to_the_first_queue() {
    let table: Arc<[Qpn]> = (10..14).map(Qpn).collect();
    let key = EXAMPLE;
    let spread = Spread { table, hash: Some(RssHash { key, select: L4_UDP | ALL }) };
    let frame = ipv4([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766);
    let hashed = Some((0x51cc_c178, HASHED_IPV4 | HASHED_UDP));
    assert_eq!(spread.choose(&frame), Some((Qpn(10), hashed)), "place 0");
    assert_eq!(spread.choose(&ethernet(0x0806)), Some((Qpn(10), None)));
    assert_eq!(Spread { hash: None, ..spread }.choose(&frame), Some((Qpn(10), None)));
}
