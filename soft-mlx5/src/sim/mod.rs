//! Deterministic mode: several devices in one thread. Simulated time, scheduler, wires and faults
//! follow from one seed. The same seed gives the same run, byte for byte.
//!
//! ```
//! use std::sync::Arc;
//! use uverbs_soft::core::{Core, CoreConfig};
//! use uverbs_soft::fault::FaultPlan;
//! use uverbs_soft::memory::BufferMemory;
//! use uverbs_soft::sim::World;
//!
//! let run = |seed| {
//!     let mut world = World::new(seed);
//!     for _ in 0..2 {
//!         let memory = Arc::new(BufferMemory::new(0x1000, 1 << 16));
//!         world.add(CoreConfig::default(), memory, FaultPlan::default())?;
//!     }
//!     // Here programs create queues through `world.core(0)` and post to them.
//!     assert!(world.run_until_quiet(1000));
//!     Ok::<_, std::io::Error>(world.trace())
//! };
//! assert_eq!(run(7)?, run(7)?);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::core::{Core, CoreConfig, Event, LinkLayer};
use crate::fault::{FaultPlan, Faulty};
use crate::memory::HostMemory;
use crate::packet::{Packet, PacketPool};
use crate::prng::Prng;
use crate::wire::{Station, Switch, SwitchPort, Wire};

/// Range of the simulated time between two steps, in nanoseconds.
const TICK: (u64, u64) = (50, 2000);

/// Largest budget of a core in one step.
const BUDGET: u64 = 16;

/// Devices on one switch, and their time.
#[derive(Debug)]
pub struct World {
    nodes: Vec<Node>,
    switch: Switch,
    prng: Prng,
    now: u64,
    trace: Trace,
}

#[derive(Debug)]
struct Node {
    core: Core,
    wire: Faulty<SwitchPort>,
    station: Station,
    /// Arrived, not yet looked at.
    incoming: VecDeque<Packet>,
    outgoing: Vec<Packet>,
    events: Vec<Event>,
    pool: PacketPool,
    next_wake: Option<u64>,
}

impl World {
    /// An empty world. All randomness follows from `seed`, except that of programs.
    pub fn new(seed: u64) -> Self {
        let (nodes, switch, trace) = Default::default();
        Self { nodes, switch, prng: Prng::new(seed), now: 0, trace }
    }

    /// Adds a device and returns its index, counted from 0. The station, and so GIDs or LID, follow
    /// from the index; the plan's seed is mixed with the world's.
    ///
    /// # Errors
    /// Fails only if the table of stations is full.
    pub fn add(
        &mut self,
        mut config: CoreConfig,
        memory: Arc<dyn HostMemory>,
        mut faults: FaultPlan,
    ) -> io::Result<usize> {
        let station = Station::candidate(self.nodes.len() as u32);
        config.gids = match config.link {
            LinkLayer::Ethernet => vec![station.gid(), station.link_local_gid()],
            LinkLayer::InfiniBand => vec![station.link_local_gid()],
        };
        config.lid = station.lid().unwrap_or(0);
        config.gid_on_wire = Station::gid_on_wire;
        config.seed.get_or_insert(self.prng.next());
        faults.seed ^= self.prng.next();
        let wire = Faulty::new(self.switch.attach(station, None)?, faults);
        let core = Core::new(config, memory);
        let (incoming, outgoing, events, pool, next_wake) = Default::default();
        let node = Node { core, wire, station, incoming, outgoing, events, pool, next_wake };
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// The simulated time in nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A device's core, for commands and doorbells.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn core(&mut self, node: usize) -> &mut Core {
        &mut self.nodes[node].core
    }

    /// A device's station on the network.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn station(&self, node: usize) -> Station {
        self.nodes[node].station
    }

    /// Takes the events that a device has reported.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn take_events(&mut self, node: usize) -> Vec<Event> {
        std::mem::take(&mut self.nodes[node].events)
    }

    /// Counts of the faults on the packets that a device sent.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn faults(&self, node: usize) -> crate::fault::FaultCounters {
        self.nodes[node].wire.counters()
    }

    /// A hash of everything that happened: every packet with its time, every event. Equal hashes
    /// mean equal runs.
    pub fn trace(&self) -> u64 {
        self.trace.0
    }

    /// Advances the time and runs a random device; true if the device did anything.
    pub fn step(&mut self) -> bool {
        let count = self.nodes.len() as u64;
        if count == 0 {
            return false;
        }
        self.now += self.prng.within(TICK.0, TICK.1);
        let node = self.prng.below(count) as usize;
        self.run(node)
    }

    /// Steps until nothing is left to do, now or at any later time; `false` if that takes more
    /// than `limit` steps.
    pub fn run_until_quiet(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.step() {
                continue;
            }
            // Every node runs, even after one that had work.
            let busy = (0..self.nodes.len()).filter(|node| self.run(*node)).count();
            if busy == 0 {
                match self.next_deadline() {
                    Some(at) => self.now = self.now.max(at),
                    None => return true,
                }
            }
        }
        false
    }

    fn next_deadline(&self) -> Option<u64> {
        let wakes = self.nodes.iter().flat_map(|node| [node.next_wake, node.wire.next_wake()]);
        wakes.flatten().min()
    }

    fn run(&mut self, node: usize) -> bool {
        let budget = self.prng.within(1, BUDGET) as u32;
        let (now, prng, trace) = (self.now, &mut self.prng, &mut self.trace);
        self.nodes[node].run(now, budget, prng, &mut |kind, bytes| {
            trace.add(&now.to_le_bytes());
            trace.add(&[node as u8, kind]);
            trace.add(bytes);
        })
    }
}

impl Node {
    /// One step: some of the packets that arrived, then the core, then the wire.
    fn run(
        &mut self,
        now: u64,
        budget: u32,
        prng: &mut Prng,
        record: &mut impl FnMut(u8, &[u8]),
    ) -> bool {
        let mut arrived = Vec::new();
        self.wire.receive(now, &mut arrived, &mut self.pool);
        self.incoming.extend(arrived);
        let waiting = self.incoming.len() as u64;
        let take = prng.within(1, 8).min(waiting);
        for packet in self.incoming.drain(..take as usize) {
            record(b'<', packet.bytes());
            self.core.receive(now, packet);
        }
        let step = self.core.step(now, budget);
        self.next_wake = step.next_wake;
        while let Some(packet) = self.core.take_packet() {
            record(b'>', packet.bytes());
            self.outgoing.push(packet);
        }
        let sent = !self.outgoing.is_empty();
        self.wire.send(now, &mut self.outgoing, &mut self.pool);
        while let Some(event) = self.core.take_event() {
            record(b'!', format!("{event:?}").as_bytes());
            self.events.push(event);
        }
        waiting != 0 || sent || step.did_work || step.more
    }
}

/// FNV-1a, 64 bits: the same on every machine; it need not withstand attackers.
#[derive(Debug)]
struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
