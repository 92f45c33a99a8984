//! Messages between addresses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::net::if_::InterfaceFlags;
use uverbs::ah::GRH_BYTES;
use uverbs::cq::CompletionOpcode;
use uverbs::qp::{AtomicResult, Datagram, Immediate, Inline, PostFlags};
use uverbs::qp_type::{Rc, Uc, Ud};
use uverbs::soft::SoftDevice;
use uverbs::soft::fault::{FaultPlan, Faulty};
use uverbs::soft::wire::{HostAddress, Link, RoutedWire, Waker};
use uverbs::{GidKind, op};

use crate::common::{pattern, success};
use crate::namespace::{End, Ends, Far, inside, run};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// SEND, RDMA WRITE, RDMA READ and FETCH_ADD over RC, with messages of several packets.
fn reliable(ends: &mut Ends) {
    let (mut a, mut b) = ends.pair::<Rc>();
    let [mine, theirs] = [&ends.near, &ends.there].map(|end| end.setup.region(1 << 16));
    let data = pattern(30_001, 5);
    mine.view().write(0, &data).unwrap();
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        b.post_receive(2, &[theirs.sge(0, 40_000).unwrap()]).unwrap();
        let operation = op::SendImmediate(Immediate([1, 2, 3, 4]));
        a.post_send(1, operation, mine.sge(0, 30_001).unwrap(), SIGNALED).unwrap();
    }
    assert_eq!(success(&mut ends.near.setup.cq).wr_id, 1);
    let got = success(&mut ends.there.setup.cq);
    assert_eq!((got.byte_len(), got.immediate()), (30_001, Some(Immediate([1, 2, 3, 4]))));
    assert_eq!(theirs.view().to_vec()[..30_001], data);
    let remote = theirs.remote(32_768).unwrap();
    // SAFETY: as above.
    unsafe { a.post_send(3, op::Write(remote), mine.sge(0, 30_001).unwrap(), SIGNALED).unwrap() };
    assert_eq!(success(&mut ends.near.setup.cq).opcode(), CompletionOpcode::Write);
    mine.view().fill(0, 1 << 16, 0).unwrap();
    // SAFETY: as above.
    unsafe { a.post_send(4, op::Read(remote), mine.sge(0, 30_001).unwrap(), SIGNALED).unwrap() };
    assert_eq!(success(&mut ends.near.setup.cq).opcode(), CompletionOpcode::Read);
    assert_eq!(mine.view().to_vec()[..30_001], data);
    let word = theirs.view().atomic_u64(64).unwrap();
    word.store(40, Ordering::Relaxed);
    let result = AtomicResult { address: mine.address() + 8, lkey: mine.lkey() };
    let remote = theirs.remote(64).unwrap();
    // SAFETY: the result is read only after the completion.
    unsafe { a.post_send(5, op::FetchAdd { remote, add: 2 }, result, SIGNALED).unwrap() };
    assert_eq!(success(&mut ends.near.setup.cq).opcode(), CompletionOpcode::FetchAdd);
    assert_eq!(mine.view().atomic_u64(8).unwrap().load(Ordering::Relaxed), 40);
    assert_eq!(word.load(Ordering::Relaxed), 42);
}

/// A message of several packets over UC.
fn unreliable(ends: &mut Ends) {
    let (mut a, mut b) = ends.pair::<Uc>();
    let [mine, theirs] = [&ends.near, &ends.there].map(|end| end.setup.region(1 << 16));
    let data = pattern(9000, 7);
    mine.view().write(0, &data).unwrap();
    // SAFETY: both regions outlive the requests and are not touched meanwhile.
    unsafe {
        b.post_receive(2, &[theirs.sge(0, 9000).unwrap()]).unwrap();
        a.post_send(1, op::Send, mine.sge(0, 9000).unwrap(), SIGNALED).unwrap();
    }
    success(&mut ends.near.setup.cq);
    assert_eq!(success(&mut ends.there.setup.cq).byte_len(), 9000);
    assert_eq!(theirs.view().to_vec()[..9000], data);
}

/// A UD datagram; its GRH has the sender's address.
fn datagram(ends: &mut Ends) {
    let mut a = ends.near.setup.builder::<Ud>().build().unwrap();
    let mut b = ends.there.setup.builder::<Ud>().build().unwrap();
    a.activate().unwrap();
    b.activate().unwrap();
    let to = ends.there.setup.region(4096);
    let there = ends.near.setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
    let address = there.datagram_to(&b.endpoint());
    // SAFETY: the region outlives the receive and is not touched meanwhile.
    unsafe {
        b.post_receive(2, &[to.sge(0, 4096).unwrap()]).unwrap();
        let operation = op::To(Datagram(&address), op::Send);
        a.post_send(1, operation, Inline(b"knock"), SIGNALED).unwrap();
    }
    success(&mut ends.near.setup.cq);
    let got = success(&mut ends.there.setup.cq);
    assert_eq!(got.byte_len() as usize, GRH_BYTES + 5);
    let bytes = to.view().to_vec();
    assert_eq!(&bytes[GRH_BYTES..][..5], b"knock");
    let own = ends.near.soft.gids()[0].gid;
    match own.to_ipv4() {
        // The IPv4 header is in the second half of the 40 bytes.
        Some(v4) => assert_eq!(bytes[20 + 12..][..4], v4.octets()),
        None => assert_eq!(bytes[8..][..16], own.0),
    }
}

fn rc_uc_and_ud(mut ends: Ends) {
    reliable(&mut ends);
    unreliable(&mut ends);
    datagram(&mut ends);
}

#[test]
fn rc_uc_and_ud_work_between_ipv4_addresses() {
    inside("traffic::rc_uc_and_ud_work_between_ipv4_addresses", || {
        rc_uc_and_ud(Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2"));
    });
}

#[test]
fn rc_uc_and_ud_work_between_global_ipv6_addresses() {
    inside("traffic::rc_uc_and_ud_work_between_global_ipv6_addresses", || {
        rc_uc_and_ud(Ends::across([1500, 1500], "fd09::1", "fd09::2"));
    });
}

#[test]
fn rc_uc_and_ud_work_between_link_local_addresses() {
    inside("traffic::rc_uc_and_ud_work_between_link_local_addresses", || {
        rc_uc_and_ud(Ends::across([1500, 1500], "fe80::1%near", "fe80::2%far"));
    });
}

#[test]
fn jumbo_frames_carry_the_largest_packets() {
    inside("traffic::jumbo_frames_carry_the_largest_packets", || {
        let ends = Ends::across([9000, 9000], "10.9.0.1", "10.9.0.2");
        assert_eq!(ends.near.setup.context.query_port(1).unwrap().active_mtu().bytes(), 4096);
        rc_uc_and_ud(ends);
    });
}

#[test]
fn a_connection_uses_the_smaller_mtu() {
    inside("traffic::a_connection_uses_the_smaller_mtu", || {
        let ends = Ends::across([4200, 700], "10.9.0.1", "10.9.0.2");
        let mtu = |end: &End| end.setup.context.query_port(1).unwrap().active_mtu().bytes();
        assert_eq!([mtu(&ends.near), mtu(&ends.there)], [4096, 512]);
        rc_uc_and_ud(ends);
    });
}

/// The device passes several packets for one destination to the kernel in one message. The kernel
/// refuses all of them if one exceeds the MTU, which was lowered meanwhile. The device then sends
/// the other packets.
#[test]
fn only_packets_longer_than_a_lowered_mtu_are_lost() {
    inside("traffic::only_packets_longer_than_a_lowered_mtu_are_lost", || {
        let mut ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        let mut a = ends.near.setup.builder::<Ud>().build().unwrap();
        let mut b = ends.there.setup.builder::<Ud>().build().unwrap();
        a.activate().unwrap();
        b.activate().unwrap();
        let [from, to] = [&ends.near, &ends.there].map(|end| end.setup.region(1 << 15));
        from.view().write(0, &pattern(1 << 15, 3)).unwrap();
        let there = ends.near.setup.pd.create_ah(&a.address_of(&b.endpoint()).unwrap()).unwrap();
        let address = there.datagram_to(&b.endpoint());
        run("ip link set near mtu 600");
        // SAFETY: both regions outlive the requests and are not touched meanwhile.
        unsafe {
            for n in 0..8 {
                b.post_receive(n, &[to.sge(n as usize * 4096, 4096).unwrap()]).unwrap();
            }
            let mut batch = a.batch().unwrap();
            for (n, len) in [1000, 1000, 1000, 300, 300, 200].into_iter().enumerate() {
                let data = from.sge(n * 1000, len).unwrap();
                let operation = op::To(Datagram(&address), op::Send);
                batch.build(n as u64, operation, data, SIGNALED).unwrap();
            }
            batch.publish();
        }
        for (n, (at, len)) in [(3000, 300), (4000, 300), (5000, 200)].into_iter().enumerate() {
            let got = success(&mut ends.there.setup.cq);
            assert_eq!((got.wr_id, got.byte_len() as usize), (n as u64, GRH_BYTES + len));
            let bytes = to.view().to_vec();
            let sent = &pattern(1 << 15, 3)[at..][..len];
            assert_eq!(bytes[n * 4096 + GRH_BYTES..][..len], *sent);
        }
    });
}

#[test]
fn a_device_shows_its_address_and_its_interface() {
    inside("traffic::a_device_shows_its_address_and_its_interface", || {
        let _far = Far::new([1500, 1500]);
        let end = End::at("10.9.0.1");
        let context = &end.setup.context;
        let gids = context.gid_table(1).unwrap();
        let expected = "::ffff:10.9.0.1";
        let kinds = gids.iter().map(|entry| (entry.gid.to_string(), entry.kind));
        let kinds: Vec<_> = kinds.collect();
        let wanted = [GidKind::RoceV1, GidKind::RoceV2].map(|kind| (expected.to_owned(), kind));
        assert_eq!(kinds, wanted);
        let index = nix::net::if_::if_nametoindex("near").unwrap();
        assert!(gids.iter().all(|entry| entry.interface == index));
        assert_eq!(context.query_port(1).unwrap().active_mtu().bytes(), 1024);
        let sysfs = end.soft.sysfs();
        let read = |name: &str| sysfs.read(&format!("class/infiniband/soft0/{name}")).unwrap();
        assert_eq!(read("ports/1/gid_attrs/ndevs/1").trim(), "near");
        assert_eq!(read("device/net/near/address").trim(), "02:00:00:00:09:01");
        assert_eq!(read("node_guid").trim(), "0200:0901:0a09:0001");
    });
}

/// Until the interface is running, the kernel drops packets, including neighbour solicitations.
#[test]
fn a_device_waits_until_its_interface_has_started() {
    inside("traffic::a_device_waits_until_its_interface_has_started", || {
        let ends = Ends::across([1500, 1500], "fd09::1", "fd09::2");
        assert!(is_running("near"));
        assert!(ends.far.unwrap().run(|| is_running("far")));
    });
}

fn is_running(name: &str) -> bool {
    let mut all = nix::ifaddrs::getifaddrs().unwrap();
    all.any(|one| one.interface_name == name && one.flags.contains(InterfaceFlags::IFF_RUNNING))
}

#[test]
fn two_devices_share_an_interface_at_two_addresses() {
    inside("traffic::two_devices_share_an_interface_at_two_addresses", || {
        for address in ["10.8.0.1/24", "10.8.0.2/24"] {
            run(&format!("ip address add {address} dev lo"));
        }
        let (near, there) = (End::at("10.8.0.1"), End::at("10.8.0.2"));
        let guids = [&near, &there].map(|end| end.setup.context.attributes().unwrap().node_guid());
        assert_ne!(guids[0], guids[1]);
        rc_uc_and_ud(Ends { near, there, far: None });
    });
}

/// A device whose wire loses and damages packets.
fn damaged(address: &str, seed: u64) -> SoftDevice {
    let address: HostAddress = address.parse().unwrap();
    let wire = RoutedWire::at(&address, Link::Ethernet).unwrap();
    let interface = wire.interface().clone();
    let plan = FaultPlan {
        seed,
        drop: 50_000,
        corrupt: 20_000,
        duplicate: 20_000,
        ..FaultPlan::default()
    };
    let waker = Arc::new(Waker::new().unwrap());
    let wire = Box::new(Faulty::new(wire, plan));
    SoftDevice::builder("soft0").wire(wire, waker, interface).build().unwrap()
}

#[test]
fn a_reliable_connection_repairs_what_the_network_damages() {
    inside("traffic::a_reliable_connection_repairs_what_the_network_damages", || {
        let far = Far::new([1500, 1500]);
        println!("seeds 11 and 12");
        let near = End::of(damaged("10.9.0.1", 11));
        let there = far.run(|| End::of(damaged("10.9.0.2", 12)));
        let mut ends = Ends { near, there, far: Some(far) };
        (0..5).for_each(|_| reliable(&mut ends));
    });
}

#[test]
fn a_flow_label_chooses_the_source_port() {
    inside("traffic::a_flow_label_chooses_the_source_port", || {
        let ends = Ends::across([1500, 1500], "10.9.0.1", "10.9.0.2");
        for label in [0u32, 1, 0x4000, 0xf_ffff] {
            let mut a = ends.near.setup.builder::<Ud>().build().unwrap();
            a.activate().unwrap();
            let b = ends.there.setup.builder::<Ud>().build().unwrap();
            let mut to = a.address_of(&b.endpoint()).unwrap();
            if let Some(route) = &mut to.global {
                route.flow_label = label;
            }
            let there = ends.near.setup.pd.create_ah(&to).unwrap();
            let address = there.datagram_to(&b.endpoint());
            // SAFETY: inline data.
            unsafe {
                let operation = op::To(Datagram(&address), op::Send);
                a.post_send(1, operation, Inline(b"flow"), SIGNALED).unwrap();
            }
            let port = 0xc000 | (label & 0x3fff) ^ label >> 14;
            let wanted = format!("{:08X}:{port:04X}", u32::from_ne_bytes([10, 9, 0, 1]));
            let is_there =
                || std::fs::read_to_string("/proc/self/net/udp").unwrap().contains(&wanted);
            let start = std::time::Instant::now();
            while !is_there() {
                assert!(start.elapsed() < crate::common::PATIENCE, "no socket at {wanted}");
                std::thread::yield_now();
            }
        }
    });
}
