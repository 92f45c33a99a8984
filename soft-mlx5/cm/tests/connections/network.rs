//! Hosts with a connection manager each, the faulty network between them, and simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use uverbs_soft_cm::ib_cm::{CmId, Event, IbCm, IbCmConfig};
use uverbs_soft_packet::prng::Prng;
use uverbs_soft_packet::{Addressing, Gid};
use zerocopy::IntoBytes;

pub(crate) const MILLISECOND: u64 = 1_000_000;

/// The network's faults: rates in parts per million, and the longest delay in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) drop: u32,
    pub(crate) duplicate: u32,
    pub(crate) delay: u64,
}

/// A datagram in transit: arrival time, a number that makes the order total, receiver, sender,
/// bytes.
type Arrival = Reverse<(u64, u64, usize, usize, Vec<u8>)>;

pub(crate) struct Network {
    pub(crate) hosts: Vec<IbCm>,
    pub(crate) now: u64,
    pub(crate) prng: Prng,
    /// A hash of all arrivals and their times: equal in equal runs.
    pub(crate) trace: u64,
    faults: Faults,
    arrivals: BinaryHeap<Arrival>,
    /// Datagrams sent so far.
    sent: u64,
}

pub(crate) fn gid(host: usize) -> Gid {
    Gid::from_ipv4([10, 9, 0, host as u8 + 1].into())
}

pub(crate) fn guid(host: usize) -> u64 {
    0x0002_c903_0000_0000 + host as u64
}

impl Network {
    pub(crate) fn new(seed: u64, hosts: usize, faults: Faults) -> Self {
        let mut prng = Prng::new(seed);
        let host = |host| {
            let (node_guid, seed) = (guid(host), Some(prng.next()));
            IbCm::new(IbCmConfig { node_guid, ack_delay: 16, seed, ..IbCmConfig::default() })
        };
        let hosts = (0..hosts).map(host).collect();
        let arrivals = BinaryHeap::new();
        Self { hosts, now: 0, prng, trace: 0, faults, arrivals, sent: 0 }
    }

    /// The next event of any host.
    pub(crate) fn take_event(&mut self) -> Option<(usize, CmId, Event)> {
        let events = self.hosts.iter_mut().enumerate();
        let mut found =
            events.filter_map(|(host, cm)| cm.take_event().map(|(id, event)| (host, id, event)));
        found.next()
    }

    /// Sends the hosts' outgoing datagrams.
    pub(crate) fn send_outgoing(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(out) = self.hosts[host].take_mad() {
                assert_eq!(out.addressing.source, gid(host), "a host sends under its own address");
                let to = (0..self.hosts.len()).find(|to| gid(*to) == out.addressing.destination);
                self.transmit(host, to.expect("a host"), out.mad.as_bytes());
            }
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: &[u8]) {
        if self.prng.chance(self.faults.drop) {
            return;
        }
        let copies = 1 + u64::from(self.prng.chance(self.faults.duplicate));
        for _ in 0..copies {
            let delay = self.prng.within(1, self.faults.delay.max(1)) * MILLISECOND;
            self.sent += 1;
            self.arrivals.push(Reverse((self.now + delay, self.sent, from, to, bytes.to_vec())));
        }
    }

    /// The time of the next arrival or timer.
    pub(crate) fn next_time(&self) -> Option<u64> {
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        self.hosts.iter().filter_map(IbCm::next_wake).chain(arrival).min()
    }

    /// Advances the time, and handles one datagram that is due, or the timers if there is none. So
    /// the caller can handle its events before the next datagram of the same time.
    pub(crate) fn advance(&mut self, to: u64) {
        let now = self.now.max(to);
        self.now = now;
        if self.arrivals.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, from, to, bytes))) = self.arrivals.pop() else { return };
            self.add_to_trace(&bytes);
            let addressing = Addressing::roce(gid(from), gid(to));
            return self.hosts[to].receive(now, &addressing, &bytes);
        }
        for cm in &mut self.hosts {
            cm.step(now);
        }
    }

    fn add_to_trace(&mut self, bytes: &[u8]) {
        let at = self.now.to_le_bytes();
        for byte in at.iter().chain(bytes) {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
