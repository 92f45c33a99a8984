//! Sent packets arrive in order, by memory or UDP, and wake a sleeping receiver.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;

use super::*;
use crate::packet::rocev2::UDP_PORT;
use crate::wire::RECEIVE_BATCH;

#[test]
fn packets_between_processes_go_through_memory() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let there: Vec<_> = (0..3000).map(|n| packet(a, b, n, n as usize % 4097)).collect();
    let back = vec![packet(b, a, 7, 16), packet(b, a, 8, 0)];
    send(&mut left, there.clone());
    send(&mut right, back.clone());
    // The ring holds some of the packets. The rest follow as space becomes free.
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
    assert!(!is_woken(&left), "no space yet, and no new peer");
    let mut arrived = Vec::new();
    while arrived.len() < COUNT as usize - lost as usize {
        let before = arrived.len();
        arrived.extend(received(&mut right));
        assert!(arrived.len() > before);
        let waits = count(&left, |c| &c.sent) < u64::from(COUNT) - lost;
        assert_eq!(left.waiting() != 0, waits);
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
fn a_sleeping_receiver_is_woken_by_packets_in_its_ring() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    assert!(!is_woken(&right));
    send(&mut left, vec![packet(a, b, 0, 8)]);
    assert!(is_woken(&right), "by the connection");
    assert_eq!(received(&mut right).len(), 1);
    assert!(!is_woken(&right), "the ring is empty");
    send(&mut left, vec![packet(a, b, 1, 8)]);
    assert!(is_woken(&right), "by the socket");
    assert_eq!(received(&mut right).len(), 1);
    // The receiver is awake, so the sender does not wake it. While a packet is in the ring, the
    // receiver does not fall asleep.
    send(&mut left, vec![packet(a, b, 2, 8)]);
    assert!(is_woken(&right));
    assert_eq!(received(&mut right).len(), 1);
    assert!(!is_woken(&right));
}

/// Acknowledgements may be sent in this way. The packet arrives even if its sender ends before
/// waking the receiver.
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
fn sockets_without_datagrams_are_not_read() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    for number in 0..100 {
        send(&mut left, vec![packet(a, b, number, 64)]);
        let mut fds = Vec::new();
        right.poll_fds(&mut fds);
        assert!(is_readable(fds));
        assert_eq!(received(&mut right).len(), 1);
    }
    // All datagrams are read when a ring is opened.
    assert_eq!(right.udp().reads(), 1);
    let mut plain = UdpWire::bind_any(Link::Ethernet).unwrap();
    let datagram = packet(plain.station(), b, 0, 64);
    send(&mut plain, vec![datagram]);
    assert_eq!(received(&mut right).len(), 1);
    assert_eq!(right.udp().reads(), 2);
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
    // They do not go through this process's switch.
    let apart = left.port().counters();
    send(&mut left, sent[100..].to_vec());
    assert!(received(&mut right) == sent);
    assert_eq!(apart.sent.load(Ordering::Relaxed), 0);
}

#[test]
fn garbage_before_packets_sent_by_udp_does_not_let_the_ring_overtake_them() {
    let mut right = memory();
    let mut plain = UdpWire::bind_any(Link::Ethernet).unwrap();
    let (a, b) = (plain.station(), right.station());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..2 * RECEIVE_BATCH {
        stranger.send_to(&[0; 64], (b.address(), UDP_PORT)).unwrap();
    }
    let sent: Vec<_> = (0..20).map(|n| packet(a, b, n, 64)).collect();
    send(&mut plain, sent[..10].to_vec());
    drop(plain);
    let mut left = rejoin(a);
    send(&mut left, sent[10..].to_vec());
    assert!(received(&mut right) == sent);
}

#[test]
fn the_number_of_packets_that_wait_for_rings_is_bounded() {
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
