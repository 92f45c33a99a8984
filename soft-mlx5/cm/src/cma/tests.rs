use super::*;

const TCP: PortSpace = PortSpace::TCP;

fn ports() -> Ports<u32> {
    Ports::new(32768..=60999, Some(16))
}

fn at(address: &str) -> Binding {
    Binding::new(address.parse().unwrap())
}

fn bind(ports: &mut Ports<u32>, id: u32, address: &str) -> Result<u16, BindError> {
    ports.bind(TCP, id, at(address), false)
}

#[test]
fn service_ids_hold_space_and_port() {
    assert_eq!(service_id(PortSpace::TCP, 7174), 0x0106_1c06);
    assert_eq!(service_id(PortSpace::UDP, 7174), 0x0111_1c06);
    assert_eq!(service_id(PortSpace::IB, 7174), 0x013f_1c06);
}

/// The recorded requests of rping and rdma_client: flow label, the port in rdma_cm's header, the
/// port of the service id.
#[test]
fn flow_labels_equal_the_kernels() {
    use crate::mad::{CmaHdr, Req};
    use zerocopy::FromBytes;
    let mut compared = 0;
    for recorded in crate::tests::two_kernels() {
        let Some(req) = recorded.mad().body::<Req>() else { continue };
        let (header, _) = CmaHdr::read_from_prefix(&req.private_data).unwrap();
        let port = req.service_id.get() as u16;
        assert_eq!(req.service_id.get(), service_id(TCP, port));
        assert_eq!(req.primary.flow_label(), flow_label(header.port.get(), port));
        compared += 1;
    }
    assert_eq!(compared, 3);
}

#[test]
fn the_same_address_is_in_use_and_overlaps_are_not_available() {
    let mut ports = ports();
    assert_eq!(bind(&mut ports, 1, "10.9.0.1:7000"), Ok(7000));
    assert_eq!(bind(&mut ports, 2, "10.9.0.1:7000"), Err(BindError::InUse));
    assert_eq!(bind(&mut ports, 2, "0.0.0.0:7000"), Err(BindError::NotAvailable));
    assert_eq!(bind(&mut ports, 2, "127.0.0.1:7000"), Err(BindError::NotAvailable));
    assert_eq!(bind(&mut ports, 2, "10.9.0.2:7000"), Ok(7000));
    assert_eq!(bind(&mut ports, 2, "10.9.0.2:7001"), Err(BindError::State));
    assert_eq!(ports.bind(PortSpace::UDP, 3, at("10.9.0.1:7000"), false), Ok(7000));
    let errnos = [BindError::InUse, BindError::NotAvailable, BindError::Access, BindError::State];
    let wanted = [libc::EADDRINUSE, libc::EADDRNOTAVAIL, libc::EACCES, libc::EINVAL];
    assert_eq!(errnos.map(BindError::errno), wanted);
}

#[test]
fn both_families_share_ports_unless_ipv6_only() {
    let mut ports = ports();
    bind(&mut ports, 1, "[::]:7000").unwrap();
    assert_eq!(bind(&mut ports, 2, "0.0.0.0:7000"), Err(BindError::NotAvailable));
    ports.release(1);
    let only = Binding { family_only: true, ..at("[::]:7000") };
    ports.bind(TCP, 1, only, false).unwrap();
    assert_eq!(bind(&mut ports, 2, "0.0.0.0:7000"), Ok(7000));
    assert_eq!(ports.listen(1), Ok(()));
}

#[test]
fn link_local_addresses_belong_to_their_interface() {
    let mut ports = ports();
    bind(&mut ports, 1, "[fe80::1%2]:7000").unwrap();
    assert_eq!(bind(&mut ports, 2, "[fe80::1%2]:7000"), Err(BindError::InUse));
    assert_eq!(bind(&mut ports, 2, "[fe80::1%3]:7000"), Ok(7000));
}

#[test]
fn both_ids_need_reuse_and_listeners_cannot_share() {
    let mut ports = ports();
    let reuse = Binding { reuse: true, ..at("10.9.0.1:7000") };
    ports.bind(TCP, 1, reuse, false).unwrap();
    assert_eq!(bind(&mut ports, 2, "10.9.0.1:7000"), Err(BindError::InUse));
    ports.bind(TCP, 2, reuse, false).unwrap();
    assert_eq!((ports.listen(1), ports.listen(2)), (Err(BindError::InUse), Err(BindError::InUse)));
    ports.release(2);
    assert_eq!((ports.listen(1), ports.listen(2)), (Ok(()), Err(BindError::State)));
}

#[test]
fn low_ports_need_a_privilege() {
    let mut ports = ports();
    assert_eq!(bind(&mut ports, 1, "10.9.0.1:1023"), Err(BindError::Access));
    assert_eq!(bind(&mut ports, 1, "10.9.0.1:1024"), Ok(1024));
    assert_eq!(ports.bind(TCP, 2, at("10.9.0.1:1023"), true), Ok(1023));
}

#[test]
fn ephemeral_ports_run_out_and_are_reused() {
    let mut ports = Ports::new(40000..=40003, Some(1));
    let mut given: Vec<u16> =
        (0..4).map(|id| ports.bind(TCP, id, at("10.9.0.1:0"), false).unwrap()).collect();
    given.sort_unstable();
    assert_eq!(given, [40000, 40001, 40002, 40003]);
    assert_eq!(ports.bind(TCP, 9, at("10.9.0.1:0"), false), Err(BindError::NotAvailable));
    assert_eq!(ports.binding(0).unwrap().source.ip(), at("10.9.0.1:0").source.ip());
    ports.release(0);
    ports.release(1);
    assert!(ports.binding(0).is_none());
    assert!(ports.bind(TCP, 9, at("10.9.0.1:0"), false).is_ok());
}

#[test]
fn a_port_serves_connections_to_several_peers() {
    let mut ports = Ports::new(40000..=40001, Some(1));
    let to = |address: &str| {
        let destination = Some(address.parse().unwrap());
        Binding { destination, ..at("10.9.0.1:0") }
    };
    for (id, peer) in ["10.9.0.2:1", "10.9.0.2:2", "10.9.0.3:1", "10.9.0.3:2"].iter().enumerate() {
        assert!(ports.bind(TCP, id as u32, to(peer), false).is_ok(), "{peer}");
    }
    let used: Vec<u16> = (0..4).map(|id| ports.binding(id).unwrap().source.port()).collect();
    assert!(used.iter().all(|port| (40000..=40001).contains(port)), "{used:?}");
}

#[test]
fn connections_to_one_peer_have_different_ports() {
    let mut ports = Ports::new(40000..=40003, Some(1));
    let to = Binding { destination: Some("10.9.0.2:1".parse().unwrap()), ..at("10.9.0.1:0") };
    let given: Vec<_> = (0..4).map(|id| ports.bind(TCP, id, to, false).unwrap()).collect();
    assert!((1..4).all(|index| !given[..index].contains(&given[index])), "{given:?}");
    assert_eq!(ports.bind(TCP, 4, to, false), Err(BindError::NotAvailable));
}
