use super::*;
use crate::chardev::{DeviceBuilder, SoftDevice};

fn gid(text: &str) -> Gid {
    Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

fn entry(text: &str, kind: GidType) -> GidEntry {
    GidEntry { gid: gid(text), kind }
}

/// The device's result of resolving the path from a source to a destination.
fn resolved(builder: DeviceBuilder, source: GidEntry, to: &str) -> Result<(), Errno> {
    let device = builder.build().unwrap();
    resolve(&device.shared, Some(source), gid(to))
}

#[test]
fn neighbours_are_resolved_by_the_kernels_rules() {
    let device = || SoftDevice::builder("soft0");
    let v4 = entry("::ffff:127.18.0.9", GidType::RoceV2);
    let v6 = entry("2001:db8::9", GidType::RoceV2);
    let local = |kind| entry("fe80::9", kind);
    let nowhere = "::ffff:10.255.1.2";
    assert_eq!(resolved(device(), v4, nowhere), Err(Errno::ETIMEDOUT));
    assert_eq!(resolved(device().without_wire(), v4, nowhere), Err(Errno::ETIMEDOUT));
    assert_eq!(resolved(device().infiniband(), v4, nowhere), Ok(()));
    assert_eq!(resolved(device(), v6, nowhere), Err(Errno::EINVAL));
    assert_eq!(resolved(device(), v6, "2001:db8:0:1::8"), Err(Errno::ENETUNREACH));
    assert_eq!(resolved(device(), v6, "2001:db8::8"), Err(Errno::ETIMEDOUT));
    assert_eq!(resolved(device(), local(GidType::RoceV1), "fe80::8"), Ok(()));
    assert_eq!(resolved(device(), local(GidType::RoceV2), "fe80::8"), Err(Errno::ETIMEDOUT));
    assert_eq!(resolved(device(), v4, "::ffff:239.1.2.3"), Ok(()));
    assert_eq!(resolved(device(), v4, "ff0e::1"), Ok(()));
    let own = device().without_wire().gids(vec![v6]);
    assert_eq!(resolved(own, v6, "2001:db8::9"), Ok(()));
}
