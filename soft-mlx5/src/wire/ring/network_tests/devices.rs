//! Devices at the station of an ended device, and processes that are killed.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use super::*;

#[test]
fn the_next_device_of_a_station_gets_a_new_ring() {
    let (mut left, right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    let mut right = Some(right);
    for round in 0..3 {
        let mut device = right.take().unwrap_or_else(|| rejoin(b));
        let sent = vec![packet(a, b, round, 64)];
        // They do not go through the switch, because `left` has a separate switch.
        send_at(u64::from(round) * SECOND, &mut left, sent.clone());
        assert_eq!(received(&mut device), sent, "round {round}");
        drop(device);
        eventually(|| is_woken(&left));
        assert_eq!(received(&mut left), []);
    }
    assert_eq!(udp_sent(&left), 0);
    // The sender does not request a ring each time from a station whose devices end repeatedly.
    let mut device = rejoin(b);
    let sent = vec![packet(a, b, 9, 64)];
    send_at(3 * SECOND - 1, &mut left, sent.clone());
    assert_eq!((received(&mut device), udp_sent(&left)), (sent, 1));
}

#[test]
fn a_ring_is_requested_again_a_second_after_a_refusal() {
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
    // The first packet went by UDP and the others through the ring, yet they arrive in order.
    assert_eq!(received(&mut right), sent);
    assert_eq!((udp_sent(&left), count(&left, |c| &c.sent)), (2, 2));
}

/// A process that sends until it is killed, in batches larger than the ring. Run by the test below.
#[test]
#[ignore = "the other process of a test"]
fn endless() {
    let to: Ipv4Addr = std::env::var(TO).unwrap().parse().unwrap();
    let (mut network, to) = (memory(), Station::new(to).unwrap());
    let from = network.station();
    // The process also ends if the test does not kill it.
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
            .args(["--ignored", "--exact", "wire::ring::network_tests::devices::endless"])
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
        // The killed process's ring is removed, and a new device gets the station.
        assert!(!is_woken(&right));
        let station = Station::from_gid(route.source).unwrap();
        let mut next = rejoin(station);
        send(&mut next, vec![packet(station, b, 1, 1)]);
        assert_eq!(received(&mut right), [packet(station, b, 1, 1)]);
    }
    assert_eq!(count(&right, |c| &c.malformed), 0);
}
