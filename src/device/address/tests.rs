use super::*;

#[test]
fn gids_read_and_write_as_ipv6_addresses() {
    let gid: Gid = "::ffff:127.3.2.1".parse().unwrap();
    assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(127, 3, 2, 1)));
    assert_eq!(gid, Gid::from(Ipv4Addr::new(127, 3, 2, 1)));
    assert_eq!(gid.to_string(), "::ffff:127.3.2.1");
    assert!("fe80::1".parse::<Gid>().unwrap().is_link_local());
}

#[test]
fn mtu_codes_are_the_verbs_ones() {
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(Mtu::from_code(code).unwrap().bytes(), bytes);
    }
    assert_eq!(Mtu::from_code(0), None);
    assert_eq!(Mtu::from_code(6), None);
}
