//! Networks that reach each other as those of two processes do, and attacks of one on the other.

use std::io::{self, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::memory::Mapped;
use super::{Control, Words, socket};
use crate::packet::rocev2::{self, Framing, UDP_PORT};
use crate::packet::{Addressing, Bth, Opcode, Packet, PacketPool, Psn};
use crate::wire::network::FILES_EVERY;
use crate::wire::{Carrier, Counters, Link, Network, Station, UdpWire, Wire};

pub(super) const SECOND: u64 = 1_000_000_000;

fn network(carrier: Carrier) -> Network {
    Network::join_apart(Link::Ethernet, carrier).unwrap()
}

pub(super) fn memory() -> Network {
    network(Carrier::Memory)
}

pub(super) fn packet(from: Station, to: Station, number: u32, len: usize) -> Packet {
    let mut packet = Packet::new();
    let mut route = Addressing::roce(from.gid(), to.gid());
    (route.traffic_class, route.hop_limit) = (0x68, 7);
    packet.start(route, Bth::new(Opcode(4), 0xffff, 0x11, Psn::new(number)));
    packet.payload(len).fill(number as u8);
    packet
}

pub(super) fn send(wire: &mut impl Wire, packets: Vec<Packet>) {
    send_at(0, wire, packets);
}

fn send_at(now: u64, wire: &mut impl Wire, mut packets: Vec<Packet>) {
    wire.send(now, &mut packets, &mut PacketPool::default());
    assert!(packets.is_empty());
}

/// All packets that have arrived. Those sent before this call are among them, because loopback and
/// memory deliver within the call that sends. An idle network looks at its sockets in one of
/// `FILES_EVERY` calls.
pub(super) fn received(network: &mut Network) -> Vec<Packet> {
    let (mut packets, mut pool) = (Vec::new(), PacketPool::default());
    let mut silent = 0;
    while silent < 2 * FILES_EVERY {
        let before = packets.len();
        network.receive(0, &mut packets, &mut pool);
        silent = if packets.len() == before { silent + 1 } else { 0 };
    }
    packets
}

/// Whether a device that went to sleep now would wake at once.
fn is_woken(network: &Network) -> bool {
    let mut fds = Vec::new();
    network.poll_fds(&mut fds);
    is_readable(fds)
}

fn is_readable(fds: Vec<impl AsFd>) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::ZERO).unwrap() != 0
}

/// Waits until `holds` returns true. Other tests of this process fork, and until such a child ends
/// it has a copy of the descriptors that were closed here. The time limit only ends a test that has
/// failed.
pub(super) fn eventually(mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < limit, "the condition never holds");
        std::thread::yield_now();
    }
}

/// A new device at a station whose last device has gone.
fn rejoin(station: Station) -> Network {
    let mut joined = None;
    eventually(|| {
        joined = Network::join_as(station, Link::Ethernet, None, Carrier::Memory).ok();
        joined.is_some()
    });
    joined.unwrap()
}

fn is_hung_up_on(stranger: &OwnedFd) -> bool {
    !socket::drain(stranger)
}

fn count(network: &Network, counter: fn(&Counters) -> &AtomicU64) -> u64 {
    counter(&network.rings().unwrap().counters()).load(Ordering::Relaxed)
}

fn udp_sent(network: &Network) -> u64 {
    network.udp().counters().sent.load(Ordering::Relaxed)
}

#[test]
fn packets_between_processes_go_through_memory() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let there: Vec<_> = (0..3000).map(|n| packet(a, b, n, n as usize % 4097)).collect();
    let back = vec![packet(b, a, 7, 16), packet(b, a, 8, 0)];
    send(&mut left, there.clone());
    send(&mut right, back.clone());
    // The ring holds a part of them. The rest follows as space becomes free.
    let mut arrived = Vec::new();
    while arrived.len() < there.len() {
        let before = arrived.len();
        arrived.extend(received(&mut right));
        assert_eq!(received(&mut left), if before == 0 { back.clone() } else { vec![] });
        assert!(arrived.len() > before);
    }
    assert!(arrived == there);
    assert_eq!((udp_sent(&left), udp_sent(&right)), (0, 0));
    assert_eq!((count(&left, |c| &c.sent), count(&right, |c| &c.received)), (3000, 3000));
}

/// `join_privately` acts as if another user held all names that users share.
#[test]
fn devices_under_names_of_their_users_own_reach_each_other_and_are_reached() {
    let join = || Network::join_privately(Link::Ethernet).unwrap();
    let (mut left, mut right, mut plain) = (join(), join(), memory());
    let (a, b, c) = (left.station(), right.station(), plain.station());
    assert!(a != b && b != c && c != a);
    let sent = [packet(a, b, 1, 100)];
    send(&mut left, sent.to_vec());
    assert_eq!(received(&mut right), sent);
    let sent = [packet(c, a, 2, 100)];
    send(&mut plain, sent.to_vec());
    assert_eq!(received(&mut left), sent);
    let sent = [packet(b, c, 3, 100)];
    send(&mut right, sent.to_vec());
    assert_eq!(received(&mut plain), sent);
    assert_eq!((udp_sent(&left), udp_sent(&right), udp_sent(&plain)), (0, 0, 0));
}

/// Another process listens on the station's name that all users share. Packets go to the user's own
/// device all the same.
#[test]
fn a_squatter_gets_nothing_that_is_meant_for_a_device_with_a_private_name() {
    let (mut left, mut right) = (memory(), Network::join_privately(Link::Ethernet).unwrap());
    let to = right.station();
    let squatter = socket::listen(socket::claim(to).unwrap().unwrap()).unwrap();
    let sent = [packet(left.station(), to, 1, 100)];
    send(&mut left, sent.to_vec());
    assert_eq!(received(&mut right), sent);
    squatter.set_nonblocking(true).unwrap();
    assert_eq!(squatter.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_infiniband_route_survives() {
    let join = || Network::join_apart(Link::InfiniBand, Carrier::Memory).unwrap();
    let (mut left, mut right) = (join(), join());
    let (a, b) = (left.station(), right.station());
    let local = Addressing {
        source: a.link_local_gid(),
        destination: b.link_local_gid(),
        source_lid: a.lid().unwrap(),
        destination_lid: b.lid().unwrap(),
        service_level: 3,
        ..Addressing::default()
    };
    let global = Addressing { global: true, hop_limit: 9, service_level: 0, ..local };
    let sent = [local, global].map(|addressing| {
        let mut packet = packet(a, b, 1, 8);
        packet.addressing = addressing;
        packet
    });
    send(&mut left, sent.to_vec());
    assert_eq!((received(&mut right), udp_sent(&left)), (sent.to_vec(), 0));
}

#[test]
fn a_network_that_uses_udp_only_is_reached_by_udp() {
    for (ours, theirs) in [(Carrier::Memory, Carrier::Udp), (Carrier::Udp, Carrier::Memory)] {
        let (mut left, mut right) = (network(ours), network(theirs));
        let mut plain = UdpWire::bind_any(Link::Ethernet).unwrap();
        let a = left.station();
        let packets = |to| (0..5).map(|n| packet(a, to, n, 100)).collect::<Vec<_>>();
        let (one, two) = (packets(right.station()), packets(plain.station()));
        send(&mut left, [one.clone(), two.clone()].concat());
        assert_eq!((received(&mut right), udp_sent(&left)), (one, 10));
        let mut arrived = Vec::new();
        plain.receive(0, &mut arrived, &mut PacketPool::default());
        assert_eq!(arrived, two);
    }
}

#[test]
fn a_full_ring_holds_back_and_drops_only_beyond_its_limit() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    const COUNT: u32 = 5000;
    for n in 0..COUNT {
        send(&mut left, vec![packet(a, b, n, 4096)]);
    }
    let lost = count(&left, |c| &c.refused);
    assert!(lost > 0 && lost < 1000, "{lost} lost of {COUNT}");
    assert!(!is_woken(&left), "no space yet, and no peer has come");
    let mut arrived = Vec::new();
    while arrived.len() < COUNT as usize - lost as usize {
        let before = arrived.len();
        arrived.extend(received(&mut right));
        assert!(arrived.len() > before);
        let waits = count(&left, |c| &c.sent) < u64::from(COUNT) - lost;
        assert_eq!(
            is_woken(&left),
            waits,
            "woken by free space only while packets wait, after {before}"
        );
        received(&mut left);
    }
    let order: Vec<_> = arrived.iter().map(|packet| packet.bth().unwrap().psn().get()).collect();
    assert!(order.iter().copied().eq(0..COUNT - lost as u32), "only the last ones are lost");
}

#[test]
fn a_sleeper_is_woken_by_what_is_or_gets_into_its_ring() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    assert!(!is_woken(&right));
    send(&mut left, vec![packet(a, b, 0, 8)]);
    assert!(is_woken(&right), "by the connection");
    assert_eq!(received(&mut right).len(), 1);
    assert!(!is_woken(&right), "all was taken");
    send(&mut left, vec![packet(a, b, 1, 8)]);
    assert!(is_woken(&right), "by the socket");
    assert_eq!(received(&mut right).len(), 1);
    // The receiver is awake, so the sender does not wake it. It does not fall asleep either while a
    // packet is in the ring.
    send(&mut left, vec![packet(a, b, 2, 8)]);
    assert!(is_woken(&right));
    assert_eq!(received(&mut right).len(), 1);
    assert!(!is_woken(&right));
}

/// Acknowledgements may be sent this way. The packet arrives even if its sender ends before it
/// wakes the receiver.
#[test]
fn a_quiet_packet_leaves_the_receiver_asleep_until_it_is_woken_or_the_sender_ends() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    send(&mut left, vec![packet(a, b, 0, 8)]);
    assert_eq!(received(&mut right).len(), 1);
    let send_quietly = |left: &mut Network| {
        left.send_quietly(0, &mut vec![packet(a, b, 1, 8)], &mut PacketPool::default());
    };
    let mut fds = Vec::new();
    right.poll_fds(&mut fds);
    send_quietly(&mut left);
    assert!(!is_readable(fds.clone()));
    left.wake_receivers();
    assert!(is_readable(fds));
    assert_eq!(received(&mut right).len(), 1);
    let mut fds = Vec::new();
    right.poll_fds(&mut fds);
    send_quietly(&mut left);
    drop(left);
    eventually(|| is_readable(fds.clone()));
    assert_eq!(received(&mut right).len(), 1);
}

#[test]
fn the_next_device_of_a_station_gets_a_ring_of_its_own() {
    let (mut left, right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let mut right = Some(right);
    for round in 0..3 {
        let mut device = right.take().unwrap_or_else(|| rejoin(b));
        let sent = vec![packet(a, b, round, 64)];
        // The switch does not carry them: `left` has a switch of its own.
        send_at(u64::from(round) * SECOND, &mut left, sent.clone());
        assert_eq!(received(&mut device), sent, "round {round}");
        drop(device);
        eventually(|| is_woken(&left));
        assert_eq!(received(&mut left), []);
    }
    assert_eq!(udp_sent(&left), 0);
    // A station that ends again and again is not asked for a ring each time.
    let mut device = rejoin(b);
    let sent = vec![packet(a, b, 9, 64)];
    send_at(3 * SECOND - 1, &mut left, sent.clone());
    assert_eq!((received(&mut device), udp_sent(&left)), (sent, 1));
}

#[test]
fn a_peer_that_refuses_a_ring_is_asked_again_after_a_second() {
    let mut left = memory();
    let plain = UdpWire::bind_any(Link::Ethernet).unwrap();
    let (a, b) = (left.station(), plain.station());
    send_at(5, &mut left, vec![packet(a, b, 0, 8)]);
    drop(plain);
    let mut right = rejoin(b);
    let sent: Vec<_> = (1..=3).map(|n| packet(a, b, n, 8)).collect();
    send_at(SECOND, &mut left, vec![sent[0].clone()]);
    send_at(5 + SECOND, &mut left, vec![sent[1].clone()]);
    send_at(6 + SECOND, &mut left, vec![sent[2].clone()]);
    // The first went by UDP and the others did not, yet they come in order.
    assert_eq!(received(&mut right), sent);
    assert_eq!((udp_sent(&left), count(&left, |c| &c.sent)), (2, 2));
}

#[test]
fn packets_sent_by_udp_arrive_before_later_ones_of_the_ring() {
    let mut right = memory();
    let mut plain = UdpWire::bind_any(Link::Ethernet).unwrap();
    let (a, b) = (plain.station(), right.station());
    let sent: Vec<_> = (0..150).map(|n| packet(a, b, n, 4096)).collect();
    send(&mut plain, sent[..100].to_vec());
    drop(plain);
    let mut left = rejoin(a);
    // This process's switch does not carry them.
    let apart = left.port().counters();
    send(&mut left, sent[100..].to_vec());
    assert!(received(&mut right) == sent);
    assert_eq!(apart.sent.load(Ordering::Relaxed), 0);
}

#[test]
fn a_name_cannot_be_taken_before_or_after_its_station() {
    let held = Station::new([127, 19, 0, 1].into()).unwrap();
    let _squatter = socket::claim(held).unwrap();
    let refused = Network::join_as(held, Link::Ethernet, None, Carrier::Udp).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    for carrier in [Carrier::Memory, Carrier::Udp] {
        let network = network(carrier);
        assert!(socket::claim(network.station()).is_err(), "{carrier:?}");
    }
}

pub(super) const TO: &str = "UVERBS_TEST_STATION";

/// A process that sends until it is killed, in batches larger than the ring. Run by the test below.
#[test]
#[ignore = "the other process of a test"]
fn endless() {
    let to: Ipv4Addr = std::env::var(TO).unwrap().parse().unwrap();
    let (mut network, to) = (memory(), Station::new(to).unwrap());
    let from = network.station();
    // Ends also if the test does not kill it.
    for number in (0..1_000_000).step_by(100) {
        send(&mut network, (number..number + 100).map(|n| packet(from, to, n, 4000)).collect());
        network.receive(0, &mut Vec::new(), &mut PacketPool::default());
    }
}

#[test]
fn a_killed_process_loses_its_own_packets_only() {
    let mut right = memory();
    let b = right.station();
    for kept in [1, 50, 500] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "wire::ring::network_tests::endless"])
            .env(TO, b.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut arrived = Vec::new();
        eventually(|| {
            arrived.extend(received(&mut right));
            arrived.len() >= kept
        });
        child.kill().unwrap();
        child.wait().unwrap();
        arrived.extend(received(&mut right));
        let route = arrived[0].addressing;
        for (number, packet) in arrived.iter().enumerate() {
            assert_eq!((packet.addressing, packet.bytes().len()), (route, 12 + 4000));
            assert_eq!(packet.bth().unwrap().psn(), Psn::new(number as u32), "whole and in order");
        }
        // Its ring is gone, and a new device gets the station.
        assert!(!is_woken(&right));
        let station = Station::from_gid(route.source).unwrap();
        let mut next = rejoin(station);
        send(&mut next, vec![packet(station, b, 1, 1)]);
        assert_eq!(received(&mut right), [packet(station, b, 1, 1)]);
    }
    assert_eq!(count(&right, |c| &c.malformed), 0);
}

/// The socket and the memory of a ring whose sender this test is.
fn by_hand(to: Station) -> (OwnedFd, Mapped) {
    let stranger = socket::connect(to).unwrap();
    let (ring, file) = Mapped::create().unwrap();
    socket::send_hello(&stranger, Station::candidate(9), &file).unwrap();
    (stranger, ring)
}

#[test]
fn a_sender_that_lies_is_hung_up_on() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let lies = [(1, 0xffff), (1, 57), (1 << 40, 1), (u64::MAX, 1)];
    for (round, (head, first)) in lies.iter().enumerate() {
        let (stranger, ring) = by_hand(b);
        assert_eq!(received(&mut right), [], "nothing is there yet");
        assert_eq!(count(&right, |c| &c.malformed), round as u64);
        ring.set_word(0, *first);
        ring.set_control(Control::Head, *head, Ordering::Release);
        let sent = vec![packet(a, b, 5, 5)];
        send(&mut left, sent.clone());
        assert_eq!(received(&mut right), sent, "other senders are not affected");
        assert_eq!(count(&right, |c| &c.malformed), round as u64 + 1);
        eventually(|| is_hung_up_on(&stranger));
        assert!(!is_woken(&right));
    }
}

#[test]
fn a_receiver_that_lies_is_reached_by_udp() {
    let mut left = memory();
    let b = Station::new([127, 19, 0, 2].into()).unwrap();
    let listener = socket::listen(socket::claim(b).unwrap().unwrap()).unwrap();
    let send_one = |left: &mut Network| {
        let sent = vec![packet(left.station(), b, 5, 4096)];
        send(left, sent);
    };
    send_one(&mut left);
    let accepted: OwnedFd = listener.accept().unwrap().0.into();
    let (_, file) = socket::receive_hello(&accepted).unwrap().unwrap();
    let ring = Mapped::adopt(&file).unwrap();
    ring.set_control(Control::Tail, 1 << 30, Ordering::Release);
    // The sender reads the count only when the ring seems full.
    while count(&left, |c| &c.malformed) == 0 {
        send_one(&mut left);
        assert!(count(&left, |c| &c.sent) < 100);
    }
    eventually(|| is_hung_up_on(&accepted));
    let before = udp_sent(&left) + left.udp().counters().refused.load(Ordering::Relaxed);
    send_one(&mut left);
    let after = udp_sent(&left) + left.udp().counters().refused.load(Ordering::Relaxed);
    assert_eq!(after, before + 1);
}

#[test]
fn connections_without_a_valid_ring_are_refused_and_closed() {
    let mut right = memory();
    let b = right.station();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut refused = 0;
    let mut expect_refusal = |right: &mut Network, stranger: OwnedFd| {
        refused += 1;
        assert_eq!(received(right), []);
        assert_eq!(count(right, |c| &c.malformed), refused);
        eventually(|| is_hung_up_on(&stranger));
    };
    // A file that is not a ring.
    let stranger = socket::connect(b).unwrap();
    let writer: OwnedFd = writer.into();
    socket::send_hello(&stranger, Station::candidate(9), &writer).unwrap();
    expect_refusal(&mut right, stranger);
    // No file, and no hello.
    let stranger = socket::connect(b).unwrap();
    socket::wake(&stranger);
    expect_refusal(&mut right, stranger);
    // More files than one.
    let stranger = socket::connect(b).unwrap();
    let fds = [writer.as_raw_fd(); 5];
    let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
    nix::sys::socket::sendmsg::<()>(
        stranger.as_raw_fd(),
        &[io::IoSlice::new(b"uvring\0\x01\x7f\x12\x00\x01")],
        &rights,
        nix::sys::socket::MsgFlags::empty(),
        None,
    )
    .unwrap();
    expect_refusal(&mut right, stranger);
    // A connection that is closed before it has sent a hello.
    drop(socket::connect(b).unwrap());
    assert_eq!((received(&mut right), is_woken(&right)), (vec![], false));
    // All of the files were closed: the pipe has no writer left.
    drop(writer);
    assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn more_connections_than_rings_are_refused() {
    let mut right = memory();
    let b = right.station();
    let held: Vec<_> = (0..150).map(|_| by_hand(b)).collect();
    let refused = || held.iter().filter(|(socket, _)| is_hung_up_on(socket)).count();
    eventually(|| {
        assert_eq!(received(&mut right), []);
        refused() == 150 - 128
    });
    drop(held);
    eventually(|| {
        received(&mut right);
        let (socket, _ring) = by_hand(b);
        received(&mut right);
        !is_hung_up_on(&socket)
    });
}

/// Receives, and drops the packets, so often that the sockets are read, too.
pub(super) fn look_at(now: u64, network: &mut Network) {
    for _ in 0..2 * FILES_EVERY {
        network.receive(now, &mut Vec::new(), &mut PacketPool::default());
    }
}

#[test]
fn connections_without_a_hello_time_out() {
    let mut right = memory();
    let b = right.station();
    let held: Vec<_> = (0..128).map(|_| socket::connect(b).unwrap()).collect();
    look_at(0, &mut right);
    let (early, _ring) = by_hand(b);
    look_at(SECOND - 1, &mut right);
    eventually(|| is_hung_up_on(&early));
    let (late, _ring) = by_hand(b);
    look_at(SECOND, &mut right);
    eventually(|| held.iter().all(is_hung_up_on));
    assert!(!is_hung_up_on(&late));
}

#[test]
fn the_packets_that_wait_for_all_rings_together_are_bounded() {
    let mut left = memory();
    let a = left.station();
    let others: Vec<_> = (0..6).map(|_| memory()).collect();
    for to in &others {
        let packets = |from| (from..from + 100).map(|n| packet(a, to.station(), n, 1)).collect();
        (0..90).for_each(|batch| send(&mut left, packets(100 * batch)));
    }
    let (sent, refused) = (count(&left, |c| &c.sent), count(&left, |c| &c.refused));
    assert_eq!(6 * 9000 - sent - refused, 4 * 4096, "packets that wait");
    assert_eq!(sent, 6 * 4096, "a small packet takes one cell");
}

/// A receiver whose process has no file descriptor left. Run by the test below, in a process of its
/// own.
#[test]
#[ignore = "the other process of a test"]
fn deaf() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let mut right = memory();
    let (stranger, _ring) = by_hand(right.station());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Fewer than are open, so closing one does not help.
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    assert!(is_woken(&right));
    look_at(0, &mut right);
    assert!(!is_woken(&right), "a connection that cannot be accepted must not keep it awake");
    let again = right.next_wake().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    look_at(again, &mut right);
    assert_eq!(right.next_wake(), None);
    assert!(!is_hung_up_on(&stranger) && !is_woken(&right), "it was accepted");
}

#[test]
fn without_file_descriptors_a_device_sleeps_and_accepts_later() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "wire::ring::network_tests::deaf"])
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_flood_of_wake_ups_delays_no_packet_of_others() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let (stranger, _ring) = by_hand(b);
    (0..10_000).for_each(|_| socket::wake(&stranger));
    let sent = vec![packet(a, b, 1, 1)];
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), sent);
}

/// Sends a datagram as station `from` would, from an address that any process may bind.
fn forge(from: Station, to: Station) {
    let socket = UdpSocket::bind((from.address(), 0)).unwrap();
    let source_port = socket.local_addr().unwrap().port();
    let framing = Framing { source_port, ..Framing::default() };
    let packet = packet(from, to, 1, 8);
    let crc = rocev2::icrc_v4(from.address(), to.address(), packet.bytes(), framing);
    let bytes = [packet.bytes(), &crc.to_le_bytes()].concat();
    socket.send_to(&bytes, (to.address(), UDP_PORT)).unwrap();
}

#[test]
fn a_datagram_in_the_name_of_a_station_with_a_ring_is_dropped() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    forge(a, b);
    assert_eq!(
        received(&mut right).len(),
        1,
        "accepted: there is no ring yet, so it may be the sender's"
    );
    let sent = vec![packet(a, b, 1, 1)];
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), sent);
    forge(a, b);
    assert_eq!((received(&mut right), right.forged()), (vec![], 1));
    // Datagrams of other stations arrive as before, and so do the ring's packets.
    let mut third = network(Carrier::Udp);
    let others = vec![packet(third.station(), b, 2, 2)];
    send(&mut third, others.clone());
    send(&mut left, sent.clone());
    assert_eq!(received(&mut right), [others, sent].concat());
    // Once the sender has gone, the next device of its station may use UDP.
    drop(left);
    eventually(|| {
        forge(a, b);
        received(&mut right).len() == 1
    });
}

#[test]
fn a_datagram_in_the_name_of_a_device_of_this_process_is_dropped() {
    let join = || Network::join_any(Link::Ethernet, None, Carrier::Memory).unwrap();
    let (left, mut right) = (join(), join());
    forge(left.station(), right.station());
    forge(right.station(), right.station());
    assert_eq!((received(&mut right), right.forged()), (vec![], 2));
}

const USER: &str = "UVERBS_TEST_USER";
const CARRIER: &str = "UVERBS_TEST_ANY_USER";

/// Another user's process, which sends until its input ends, because the packets in a ring that is
/// then refused are lost. It prints whether any went by UDP. Run by the test below.
#[test]
#[ignore = "the other process of a test"]
fn other_user() {
    let user = std::env::var(USER).unwrap().parse().unwrap();
    nix::unistd::setuid(nix::unistd::Uid::from_raw(user)).unwrap();
    let to: Ipv4Addr = std::env::var(TO).unwrap().parse().unwrap();
    let any = std::env::var_os(CARRIER).is_some();
    let mut network = network(if any { Carrier::MemoryOfAnyUser } else { Carrier::Memory });
    let (from, to) = (network.station(), Station::new(to).unwrap());
    let listener = std::thread::spawn(|| io::stdin().read(&mut [0]));
    while !listener.is_finished() {
        send(&mut network, vec![packet(from, to, 1, 1)]);
        received(&mut network);
    }
    eprintln!("by UDP: {}", udp_sent(&network) != 0);
}

/// Whether another user's packet goes by UDP to a device with this carrier.
fn goes_by_udp(here: Carrier, there_any: bool) -> bool {
    let mut right = network(here);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "--nocapture", "wire::ring::network_tests::other_user"]);
    child.env(TO, right.station().to_string()).env(USER, "65534");
    if there_any {
        child.env(CARRIER, "1");
    }
    child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let mut arrived = Vec::new();
    eventually(|| {
        arrived.extend(received(&mut right));
        !arrived.is_empty()
    });
    let by_udp = count(&right, |c| &c.received) == 0;
    let told = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains(&format!("by UDP: {by_udp}")), "{told}");
    by_udp
}

#[test]
fn memory_is_shared_with_the_same_user_unless_both_say_otherwise() {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "becoming another user needs root");
        return eprintln!("skipped: becoming another user needs root");
    }
    assert!(goes_by_udp(Carrier::Memory, false));
    assert!(goes_by_udp(Carrier::Memory, true));
    assert!(goes_by_udp(Carrier::MemoryOfAnyUser, false));
    assert!(!goes_by_udp(Carrier::MemoryOfAnyUser, true));
}
