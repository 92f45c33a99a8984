use std::net::UdpSocket;

use super::*;

#[test]
fn the_process_that_holds_the_port_is_named() {
    // An address of 127.0.0.0/8 that no station has.
    let ip = Ipv4Addr::new(127, 91, (std::process::id() >> 8) as u8, std::process::id() as u8);
    let _held = UdpSocket::bind((ip, UDP_PORT)).unwrap();
    let text = describe(ip.into());
    assert!(text.starts_with(&format!("by this process {} (", std::process::id())), "{text}");
}

#[test]
fn sockets_are_found_in_the_tables_of_proc() {
    let v4 = |local: &str| {
        format!("  sl  local\n 77: {local} 00000000:0000 07 0:0 00:0 0 1000 0 4242 2 0 0\n")
    };
    let ip = IpAddr::from([10, 0, 0, 1]);
    let local = format!("{}:12B7", hexadecimal(ip));
    let found = find(&v4(&local), ip).unwrap();
    assert_eq!((found.user, found.inode, found.is_everywhere), (1000, 4242, false));
    assert!(find(&v4(&local.replace("12B7", "12B8")), ip).is_none());
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    assert!(find(&v4("00000000:12B7"), any).unwrap().is_everywhere);
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(hexadecimal(v6).len(), 32);
}
