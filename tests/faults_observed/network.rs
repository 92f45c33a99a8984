//! Two software devices with a link between them that can damage packets and be cut.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use uverbs::qp::AckTimeout;
use uverbs::qp_type::Connected;
use uverbs::soft::SoftDevice;
use uverbs::soft::fault::{FaultCounters, FaultPlan, Faulty};
use uverbs::soft::packet::{Gid, Packet, PacketPool};
use uverbs::soft::wire::{Carrier, Link, Network, Station, Switch, UdpWire, Waker, Wire};
use uverbs::{Context, Device, raw};

use crate::common::Setup;

/// The random seed of a test; the harness shows the print if the test fails.
pub(crate) fn seed(default: u64) -> u64 {
    let set = std::env::var("UVERBS_FAULT_SEED").ok().and_then(|text| text.parse().ok());
    let seed = set.unwrap_or(default);
    println!("UVERBS_FAULT_SEED={seed}");
    seed
}

/// The medium of a link between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// RoCE within the process.
    Roce,
    /// InfiniBand within the process.
    InfiniBand,
    /// RoCE version 2 in UDP packets of the loopback interface.
    Udp,
    /// RoCE version 2 through a ring of shared memory, as between two processes.
    Memory,
}

/// A faulty wire whose fault counters the test can read, and which the test can cut.
struct Watched {
    wire: Faulty<Box<dyn Wire>>,
    counters: Arc<Mutex<FaultCounters>>,
    cut: Arc<AtomicBool>,
}

impl Wire for Watched {
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        if self.cut.load(Ordering::Relaxed) {
            packets.drain(..).for_each(|packet| pool.give(packet));
        }
        self.wire.send(now, packets, pool);
        *self.counters.lock().unwrap() = self.wire.counters();
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        self.wire.receive(now, packets, pool)
    }

    fn next_wake(&self) -> Option<u64> {
        self.wire.next_wake()
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.wire.poll_fds(fds);
    }

    fn skip_files(&mut self) {
        self.wire.skip_files();
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.wire.join(group)
    }

    fn leave(&mut self, group: Gid) {
        self.wire.leave(group);
    }
}

/// One end of the link.
pub(crate) struct End {
    pub(crate) soft: Arc<SoftDevice>,
    pub(crate) setup: Setup,
    pub(crate) counters: Arc<Mutex<FaultCounters>>,
    pub(crate) cut: Arc<AtomicBool>,
}

impl End {
    fn new(switch: &Switch, place: u32, plan: FaultPlan, medium: Medium) -> Self {
        let waker = Arc::new(Waker::new().unwrap());
        let (wire, station): (Box<dyn Wire>, _) = match medium {
            Medium::Udp => {
                let wire = UdpWire::bind_any(Link::Ethernet).unwrap();
                let station = wire.station();
                (Box::new(wire), station)
            }
            Medium::Memory => {
                let wire = Network::join_apart(Link::Ethernet, Carrier::Memory).unwrap();
                let station = wire.station();
                (Box::new(wire), station)
            }
            Medium::Roce | Medium::InfiniBand => {
                let station = Station::candidate(place);
                (Box::new(switch.attach(station, Some(waker.clone())).unwrap()), station)
            }
        };
        let (counters, cut) = (Arc::default(), Arc::default());
        let wire = Faulty::new(wire, plan);
        let wire = Watched { wire, counters: Arc::clone(&counters), cut: Arc::clone(&cut) };
        let builder = SoftDevice::builder("soft0").wire(Box::new(wire), waker, station);
        let builder = if medium == Medium::InfiniBand { builder.infiniband() } else { builder };
        let soft = Arc::new(builder.build().unwrap());
        let setup = Setup::on(open(&soft));
        Self { soft, setup, counters, cut }
    }
}

pub(crate) fn open(soft: &Arc<SoftDevice>) -> Context {
    Device::from_shared_soft(soft.clone()).open().unwrap()
}

/// Two devices; the plan's faults affect the packets that either sends.
pub(crate) fn ends(plan: &FaultPlan) -> [End; 2] {
    ends_of(Medium::Roce, plan)
}

/// As [`ends`], over a link of `medium`.
pub(crate) fn ends_of(medium: Medium, plan: &FaultPlan) -> [End; 2] {
    let switch = Switch::new();
    let other = FaultPlan { seed: !plan.seed, ..plan.clone() };
    [(1, plan.clone()), (2, other)].map(|(place, plan)| End::new(&switch, place, plan, medium))
}

/// A queue pair at each end, connected.
pub(crate) fn pair<T: Connected>(
    [one, two]: &[End; 2],
    change: impl Fn(raw::QpBuilder<T>) -> raw::QpBuilder<T>,
) -> (raw::QueuePair<T>, raw::QueuePair<T>) {
    // A long ACK timeout: the peer's thread may not be scheduled for a while.
    let patient = |builder: raw::QpBuilder<T>| {
        change(builder.path(|path| path.timeout = AckTimeout::from_code(15)))
    };
    let mut a = patient(one.setup.builder()).build().unwrap();
    let mut b = patient(two.setup.builder()).build().unwrap();
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    (a, b)
}
