//! Tests networks that communicate like those of two processes, also when the other process is
//! hostile.

mod devices;
mod peers;
mod traffic;
mod users;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::socket;
use crate::packet::{Addressing, Bth, Opcode, Packet, PacketPool, Psn};
use crate::wire::skips::FILES_EVERY;
use crate::wire::{Carrier, Link, Network, Station, UdpWire, Wire, WireCounters};

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

/// All arrived packets. They include every packet sent before this call, because loopback and
/// memory deliver within the sender's call. An idle network reads its sockets in one of
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

/// Whether a device that starts to sleep now would wake at once.
fn is_woken(network: &Network) -> bool {
    let mut fds = Vec::new();
    network.poll_fds(&mut fds);
    is_readable(fds)
}

fn is_readable(fds: Vec<impl AsFd>) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::ZERO).unwrap() != 0
}

/// Waits until `holds` returns true. Other tests of this process fork, and their children have
/// copies of descriptors closed here until they end. The time limit only ends a failed test.
pub(super) fn eventually(mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < limit, "the condition never holds");
        std::thread::yield_now();
    }
}

/// A new device at a station whose last device has ended.
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

fn count(network: &Network, counter: fn(&WireCounters) -> &AtomicU64) -> u64 {
    counter(&network.rings().unwrap().counters()).load(Ordering::Relaxed)
}

fn udp_sent(network: &Network) -> u64 {
    network.udp().counters().sent.load(Ordering::Relaxed)
}

/// Receives and drops packets often enough to read the sockets too.
pub(super) fn look_at(now: u64, network: &mut Network) {
    for _ in 0..2 * FILES_EVERY {
        network.receive(now, &mut Vec::new(), &mut PacketPool::default());
    }
}

/// The environment variable with the station to which the other process of a test sends.
pub(super) const TO: &str = "UVERBS_TEST_STATION";
