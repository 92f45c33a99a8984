use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::packet::rocev2::{self, Framing, UDP_PORT};
use crate::packet::{Addressing, Bth, Opcode, Psn};

fn packet(route: Addressing, payload: &[u8]) -> Packet {
    let mut packet = Packet::new();
    packet.start(route, Bth::new(Opcode(4), 0xffff, 0x11, Psn::new(3)));
    packet.payload(payload.len()).copy_from_slice(payload);
    packet
}

fn between(source: Station, destination: Station) -> Addressing {
    Addressing::roce(source.gid(), destination.gid())
}

fn lids(source: Station, destination: Station) -> Addressing {
    Addressing {
        source: source.link_local_gid(),
        destination: destination.link_local_gid(),
        source_lid: source.lid().unwrap(),
        destination_lid: destination.lid().unwrap(),
        service_level: 3,
        ..Addressing::default()
    }
}

/// Receives until `count` packets have arrived. The time limit only ends a test that has failed.
fn receive(wire: &mut impl Wire, count: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    let limit = Instant::now() + Duration::from_secs(120);
    while packets.len() < count && Instant::now() < limit {
        wire.receive(0, &mut packets, &mut PacketPool::default());
        std::thread::yield_now();
    }
    packets
}

fn send(wire: &mut impl Wire, packets: &[Packet]) {
    wire.send(0, &mut packets.to_vec(), &mut PacketPool::default());
}

#[test]
fn a_station_is_found_by_each_of_its_addresses() {
    for n in [0, 1, 253, 254, 48_000, Station::CANDIDATES - 1, Station::CANDIDATES] {
        let station = Station::candidate(n);
        assert_eq!(Station::from_gid(station.gid()), Some(station));
        assert_eq!(Station::from_gid(station.link_local_gid()), Some(station));
        assert_eq!(Station::from_lid(station.lid().unwrap()), Some(station));
    }
    assert_eq!(Station::from_lid(0xc001), None);
    assert_eq!(Station::from_gid(Gid::from_ipv4([10, 0, 0, 1].into())), None);
    assert_eq!(Station::from_gid(Gid::link_local([9; 8])), None);
}

#[test]
fn a_switch_delivers_packets_until_a_port_is_unplugged() {
    let switch = Switch::new();
    let [a, b, c] = [1, 2, 3].map(Station::candidate);
    let waker = Arc::new(Waker::new().unwrap());
    let mut left = switch.attach(a, None).unwrap();
    let mut right = switch.attach(b, Some(waker.clone())).unwrap();
    assert!(switch.attach(b, None).is_err());
    send(&mut left, &[packet(between(a, b), b"one"), packet(between(a, c), b"two")]);
    assert_eq!(receive(&mut right, 1), [packet(between(a, b), b"one")]);
    assert_eq!(left.counters().unroutable.load(Ordering::Relaxed), 1);
    drop(right);
    send(&mut left, &[packet(between(a, b), b"late")]);
    assert_eq!(left.counters().unroutable.load(Ordering::Relaxed), 2);
    assert!(switch.attach(b, None).is_ok());
}

#[test]
fn quietly_sent_packets_wake_no_receiver_of_a_switch() {
    let switch = Switch::new();
    let [a, b] = [1, 2].map(Station::candidate);
    let waker = Arc::new(Waker::new().unwrap());
    let mut left = switch.attach(a, None).unwrap();
    let mut right = switch.attach(b, Some(waker.clone())).unwrap();
    let is_woken = || {
        let mut fds = [PollFd::new(waker.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() != 0
    };
    let sent = [packet(between(a, b), b"one")];
    let send_quietly = |left: &mut SwitchPort| {
        left.send_quietly(0, &mut sent.to_vec(), &mut PacketPool::default());
    };
    waker.prepare_sleep();
    send_quietly(&mut left);
    assert!(!is_woken());
    left.wake_receivers();
    assert!(is_woken());
    waker.end_sleep(false);
    assert_eq!(receive(&mut right, 1), sent);
    waker.prepare_sleep();
    send_quietly(&mut left);
    drop(left);
    assert!(is_woken(), "a port that is unplugged leaves no receiver asleep");
    assert_eq!(receive(&mut right, 1), sent);
}

#[test]
fn a_switch_copies_multicast_to_the_members() {
    let switch = Switch::new();
    let group = Gid::from_ipv4([239, 1, 2, 3].into());
    let mut ports = [1, 2, 3].map(|n| switch.attach(Station::candidate(n), None).unwrap());
    ports[0].join(group).unwrap();
    ports[1].join(group).unwrap();
    ports[1].join(group).unwrap();
    ports[1].leave(group);
    let sent = packet(Addressing::roce(Station::candidate(1).gid(), group), b"all");
    send(&mut ports[0], std::slice::from_ref(&sent));
    let mut packets = Vec::new();
    let received = ports.each_mut().map(|port| {
        port.receive(0, &mut packets, &mut PacketPool::default());
        std::mem::take(&mut packets)
    });
    assert_eq!(received, [vec![], vec![sent], vec![]]);
}

fn pair(link: Link) -> (UdpWire, UdpWire) {
    (UdpWire::bind_any(link).unwrap(), UdpWire::bind_any(link).unwrap())
}

#[test]
fn udp_carries_packets_of_all_sizes() {
    let (mut left, mut right) = pair(Link::Ethernet);
    let mut route = between(left.station(), right.station());
    route.traffic_class = 0x68;
    route.hop_limit = 7;
    let packets = [0, 1, 63, 64, 1024, 4095, 4096].map(|len| packet(route, &vec![5; len]));
    send(&mut left, &packets);
    assert_eq!(receive(&mut right, packets.len()), packets);
    assert_eq!(right.counters().received.load(Ordering::Relaxed), packets.len() as u64);
}

#[test]
fn an_idle_network_reads_its_sockets_rarely_and_at_once_after_a_sleep() {
    let mut network = Network::join_any(Link::Ethernet, None, Carrier::Udp).unwrap();
    let mut other = UdpWire::bind_any(Link::Ethernet).unwrap();
    let sent = packet(between(other.station(), network.station()), b"hello");
    let (mut packets, mut pool) = (Vec::new(), PacketPool::default());
    for sleeps in [false, true] {
        for _ in 0..1000 {
            network.receive(0, &mut packets, &mut pool);
        }
        // Loopback delivers within the call that sends.
        send(&mut other, std::slice::from_ref(&sent));
        if sleeps {
            network.poll_fds(&mut Vec::new());
        }
        let looks = if sleeps { 1 } else { skips::FILES_EVERY };
        for _ in 0..looks {
            network.receive(0, &mut packets, &mut pool);
        }
        assert_eq!(std::mem::take(&mut packets), std::slice::from_ref(&sent), "{sleeps}");
    }
}

#[test]
fn look_at_files_makes_an_idle_network_read_its_sockets() {
    let mut network = Network::join_any(Link::Ethernet, None, Carrier::Udp).unwrap();
    let mut other = UdpWire::bind_any(Link::Ethernet).unwrap();
    let sent = packet(between(other.station(), network.station()), b"hello");
    let (mut packets, mut pool) = (Vec::new(), PacketPool::default());
    for _ in 0..1000 {
        network.receive(0, &mut packets, &mut pool);
    }
    send(&mut other, std::slice::from_ref(&sent));
    network.skip_files();
    network.look_at_files();
    network.receive(0, &mut packets, &mut pool);
    assert_eq!(packets, [sent]);
}

#[test]
fn skip_files_leaves_the_sockets_unread_once() {
    let mut network = Network::join_any(Link::Ethernet, None, Carrier::Udp).unwrap();
    let mut other = UdpWire::bind_any(Link::Ethernet).unwrap();
    let sent = packet(between(other.station(), network.station()), b"hello");
    send(&mut other, std::slice::from_ref(&sent));
    let (mut packets, mut pool) = (Vec::new(), PacketPool::default());
    network.skip_files();
    network.receive(0, &mut packets, &mut pool);
    assert_eq!(packets, []);
    network.receive(0, &mut packets, &mut pool);
    assert_eq!(packets, [sent]);
    // A device that skips the sockets before every call still reads them at times.
    send(&mut other, std::slice::from_ref(&packets[0].clone()));
    for _ in 0..skips::FILES_EVERY {
        network.skip_files();
        network.receive(0, &mut packets, &mut pool);
    }
    assert_eq!(packets.len(), 2);
}

#[test]
fn udp_carries_more_than_one_batch_in_order() {
    let (mut left, mut right) = pair(Link::Ethernet);
    let route = between(left.station(), right.station());
    let packets: Vec<_> = (0..100u8).map(|n| packet(route, &[n])).collect();
    send(&mut left, &packets);
    assert!(receive(&mut right, 100) == packets);
}

#[test]
fn udp_carries_lids_and_global_routes() {
    let (mut left, mut right) = pair(Link::InfiniBand);
    let local = lids(left.station(), right.station());
    let global =
        Addressing { global: true, hop_limit: 64, traffic_class: 9, service_level: 0, ..local };
    let packets = [packet(local, b"local"), packet(global, b"global")];
    send(&mut left, &packets);
    assert_eq!(receive(&mut right, 2), packets);
}

#[test]
fn udp_multicast_reaches_the_members_once() {
    let (mut left, mut right) = pair(Link::Ethernet);
    let mut bytes = Station::candidate(std::process::id()).link_local_gid().0;
    bytes[0] = 0xff;
    let group = Gid(bytes);
    left.join(group).unwrap();
    right.join(group).unwrap();
    let route = Addressing::roce(left.station().gid(), group);
    let packets = [packet(route, b"one"), packet(route, b"two")];
    send(&mut left, &packets);
    assert_eq!(receive(&mut right, 2), packets);
    right.leave(group);
    // A unicast packet sent afterwards arrives alone, so no other packet was in transit.
    let end = packet(between(left.station(), right.station()), b"end");
    send(&mut left, &[packet(route, b"unheard"), end.clone()]);
    assert_eq!(receive(&mut right, 1), [end]);
    assert_eq!(
        left.counters().received.load(Ordering::Relaxed),
        0,
        "the sender's own packets do not return"
    );
}

#[test]
fn udp_drops_and_counts_datagrams_that_are_not_packets() {
    let (mut left, mut right) = pair(Link::Ethernet);
    let good = packet(between(left.station(), right.station()), b"good");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = (right.station().address(), UDP_PORT);
    stranger.send_to(&[1, 2, 3], to).unwrap();
    stranger.send_to(&[0; 64], to).unwrap();
    stranger.send_to(&[0; 8000], to).unwrap();
    let mut packets = Vec::new();
    assert_eq!(right.receive(0, &mut packets, &mut PacketPool::default()), 3, "read");
    assert_eq!(packets, []);
    send(&mut left, std::slice::from_ref(&good));
    assert_eq!(receive(&mut right, 1), [good]);
    let counters = right.counters();
    assert_eq!(counters.malformed.load(Ordering::Relaxed), 2);
    assert_eq!(counters.bad_icrc.load(Ordering::Relaxed), 1);
}

#[test]
fn the_network_reaches_devices_of_this_process_without_a_socket() {
    let waker = Arc::new(Waker::new().unwrap());
    let mut left = Network::join_any(Link::Ethernet, None, Carrier::Udp).unwrap();
    let mut right = Network::join_any(Link::Ethernet, Some(waker), Carrier::Memory).unwrap();
    let mut far = UdpWire::bind_any(Link::Ethernet).unwrap();
    let near_by = packet(between(left.station(), right.station()), b"near");
    let far_away = packet(between(left.station(), far.station()), b"far");
    send(&mut left, &[near_by.clone(), far_away.clone(), near_by.clone()]);
    assert_eq!(receive(&mut right, 2), [near_by.clone(), near_by]);
    assert_eq!(receive(&mut far, 1), [far_away]);
    assert_eq!(left.udp().counters().sent.load(Ordering::Relaxed), 1);
}

#[test]
fn the_switch_returns_buffers_to_the_sender() {
    let switch = Switch::new();
    let [a, b] = [1, 2].map(Station::candidate);
    let (mut left, mut right) = (switch.attach(a, None).unwrap(), switch.attach(b, None).unwrap());
    let (mut senders, mut receivers) = (PacketPool::default(), PacketPool::default());
    receivers.give(Packet::new());
    senders.give(Packet::new());
    for round in 0..100 {
        assert_eq!(senders.available(), usize::from(round != 1), "round {round}");
        let mut packet = senders.take();
        packet.fill(between(a, b), b"one way");
        left.send(0, &mut vec![packet], &mut senders);
        let mut packets = Vec::new();
        right.receive(0, &mut packets, &mut receivers);
        packets.drain(..).for_each(|packet| receivers.give(packet));
    }
}

#[test]
fn a_recording_has_the_transferred_frames() {
    let mut file = Vec::new();
    let [a, b] = [1, 2].map(Station::candidate);
    let sent = packet(lids(a, b), b"seen");
    let mut wire = Pcap::new(NoWire, &mut file, LinkType::RawIp).unwrap().since(2_000_000_000);
    wire.send(1_500_000_001, &mut vec![sent.clone()], &mut PacketPool::default());
    drop(wire);
    assert_eq!(file[24..32], [3, 0, 0, 0, 1, 101, 205, 29]);
    let recorded = rocev2::read_ip(&file[40..]).unwrap();
    assert_eq!(recorded.bytes(), sent.bytes());
    assert_eq!(recorded.addressing.source, a.gid());
    assert_eq!(recorded.addressing.destination, b.gid());
    let mut frame = Vec::new();
    rocev2::write_ip(&recorded, Framing::default(), &mut frame);
    assert_eq!(file[40..], frame);
}
