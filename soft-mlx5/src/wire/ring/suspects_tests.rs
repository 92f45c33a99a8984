//! Stations whose processes end, and stations that only seem to have ended.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::network_tests::{SECOND, TO, eventually, look_at, memory, packet, received, send};
use super::socket;
use crate::packet::PacketPool;
use crate::wire::{Network, Station, Wire};

/// Waits until a network reports ended stations, and returns them.
fn ended(network: &mut Network) -> Vec<Station> {
    let (start, mut ended) = (Instant::now(), Vec::new());
    eventually(|| {
        assert_eq!(received(network), []);
        ended = network.take_ended(start.elapsed().as_nanos() as u64);
        !ended.is_empty()
    });
    ended
}

#[test]
fn the_end_of_a_station_is_reported_once_and_after_its_packets() {
    let (mut left, mut right) = (memory(), memory());
    let (a, b) = (left.station(), right.station());
    send(&mut right, vec![packet(b, a, 1, 1)]);
    assert_eq!(received(&mut left).len(), 1);
    let sent: Vec<_> = (0..100).map(|n| packet(a, b, n, 1)).collect();
    send(&mut left, sent.clone());
    drop(left);
    let mut arrived = Vec::new();
    eventually(|| {
        assert_eq!(right.take_ended(0), []);
        right.receive(0, &mut arrived, &mut PacketPool::default());
        arrived.len() == sent.len()
    });
    assert_eq!((ended(&mut right), arrived), (vec![a], sent));
    look_at(0, &mut right);
    assert_eq!((right.take_ended(u64::MAX), right.next_wake()), (vec![], None));
}

/// A peer that accepts the network's ring, closes the connection at once, and continues to listen.
fn refuser(left: &mut Network, last: u8) -> (Station, OwnedFd) {
    let b = Station::new([127, 19, 7, last].into()).unwrap();
    let listener = socket::listen(socket::claim(b).unwrap().unwrap()).unwrap();
    let sent = vec![packet(left.station(), b, 5, 1)];
    send(left, sent);
    listener.accept().unwrap();
    eventually(|| {
        look_at(0, left);
        left.next_wake().is_some()
    });
    (b, listener.into())
}

#[test]
fn a_peer_that_refuses_rings_does_not_count_as_ended() {
    let mut left = memory();
    let (b, listener) = refuser(&mut left, 1);
    // The pauses between attempts grow.
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let now = left.next_wake().unwrap();
        assert_eq!(left.take_ended(now), []);
        pauses.push(left.next_wake().unwrap() - now);
    }
    assert!(pauses.windows(2).all(|two| two[1] == 2 * two[0]), "{pauses:?}");
    drop(listener);
    // Forked children of other tests may still have a copy of the listener.
    eventually(|| socket::claim(b).is_ok());
    assert_eq!(left.take_ended(left.next_wake().unwrap()), [b]);
}

#[test]
fn requests_to_a_listener_that_refuses_are_bounded() {
    let mut left = memory();
    let (_, _listener) = refuser(&mut left, 2);
    let mut looks = 0;
    while let Some(now) = left.next_wake() {
        assert_eq!(left.take_ended(now), []);
        looks += 1;
    }
    assert!((10..30).contains(&looks), "{looks}");
}

/// Holds a station until its input ends. Run by the test below.
#[test]
#[ignore = "the other process of a test"]
fn successor() {
    let Ok(station) = std::env::var(TO) else { return };
    let station = Station::new(station.parse().unwrap()).unwrap();
    let mut claimed = None;
    // The earlier device's socket is closed, but forked children of other tests may have a copy.
    eventually(|| {
        claimed = socket::claim(station).ok().flatten();
        claimed.is_some()
    });
    let _listener = socket::listen(claimed.unwrap()).unwrap();
    println!("\nready");
    assert_eq!(io::stdin().read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_station_counts_as_ended_when_another_process_takes_it() {
    let mut left = memory();
    let (b, listener) = refuser(&mut left, 3);
    drop(listener);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "wire::ring::suspects_tests::successor"])
        .env(TO, b.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    let mut lines = lines.map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));
    assert_eq!(left.take_ended(SECOND), [b]);
    drop(child.stdin.take());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}
