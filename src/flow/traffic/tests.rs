use super::*;

#[test]
fn a_groups_mac_has_its_last_23_bits() {
    let mac = |group: [u8; 4]| UdpMulticast::new(group.into(), 1).mac();
    assert_eq!(mac([239, 1, 2, 3]), [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!(mac([224, 129, 255, 254]), [1, 0, 0x5e, 1, 255, 254]);
}

#[test]
fn what_has_other_masks_is_apart() {
    let line = UdpMulticast::new(Ipv4Addr::new(239, 1, 2, 3), 14310);
    assert_eq!(line.tag(4).sharing(), Sharing::Shared);
    assert_eq!(line.source(Ipv4Addr::new(10, 0, 0, 1)).sharing(), Sharing::Apart);
    assert_eq!(line.vlan(0).sharing(), Sharing::Apart);
}
