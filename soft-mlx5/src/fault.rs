//! Damages packets on purpose: a stackable wire that drops, delays, reorders, duplicates and
//! corrupts, all from one seed.
//!
//! [`Faulty::control`] returns a handle for a wire that a device owns: it counts the faults, and
//! changes the plan while the device runs. An example with a lost acknowledgement, and then a cable
//! that is cut:
//!
//! ```
//! use std::sync::Arc;
//! use uverbs_soft::chardev::SoftDevice;
//! use uverbs_soft::fault::{PacketFault, FaultPlan, Faulty, Rule};
//! use uverbs_soft::packet::Opcode;
//! use uverbs_soft::wire::{Station, Switch, Waker};
//!
//! let (switch, waker, station) = (Switch::new(), Arc::new(Waker::new()?), Station::candidate(1));
//! let port = switch.attach(station, Some(waker.clone()))?;
//! let opcode = Some(Opcode::RC_ACKNOWLEDGE);
//! let rules = vec![Rule { opcode, nth: 1, fault: PacketFault::Drop }];
//! let wire = Faulty::new(port, FaultPlan { seed: 7, rules, ..FaultPlan::default() });
//! let control = wire.control();
//! let device = SoftDevice::builder("soft0").wire(Box::new(wire), waker, station).build()?;
//! // … traffic, as the test of a program has it …
//! control.set_plan(FaultPlan::cut());
//! assert_eq!(control.counters().dropped, 0, "nothing was sent here");
//! # drop(device);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::locking::lock;
use crate::packet::rocev2::{self, Framing};
use crate::packet::{Addressing, Opcode, Packet, PacketPool};
use crate::prng::Prng;
use crate::wire::{Wire, pass_calls_on};

/// What can happen to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFault {
    /// It is lost.
    Drop,
    /// It arrives twice, the second time after a delay of the plan's range.
    Duplicate,
    /// One bit of its frame is inverted. The receiver's CRC check drops it, unless the invariant
    /// CRC does not cover that bit.
    Corrupt,
    /// One bit of its transport bytes is inverted and no CRC detects it, to test that the receiver
    /// survives any bytes. The transport cannot recover from it.
    Mangle,
    /// It arrives after the next packet, or after the plan's longest delay if none comes. Set
    /// [`FaultPlan::delay_range`]: by default that delay is 0, and the packet is not late.
    Reorder,
    /// It arrives this many nanoseconds later.
    Delay(u64),
}

/// A fault for one packet: the `nth` with this opcode, or of all packets if `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which packets count, for example `Opcode::RC_ACKNOWLEDGE` or
    /// `Opcode::send(Transport::Rc, Position::Middle, Headers::empty())` of
    /// `packet`.
    pub opcode: Option<Opcode>,
    /// The number, from 1, of the packet with the fault.
    pub nth: u64,
    /// What happens to it.
    pub fault: PacketFault,
}

/// The faults to inject. Probabilities are in parts per million and tried in the order of the
/// fields. At most one fault hits a packet. Rules come before probabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// All random choices follow from it.
    pub seed: u64,
    /// Parts per million dropped.
    pub drop: u32,
    /// Parts per million duplicated.
    pub duplicate: u32,
    /// Parts per million corrupted.
    pub corrupt: u32,
    /// Parts per million mangled without detection.
    pub mangle: u32,
    /// Parts per million reordered, with a `delay_range`.
    pub reorder: u32,
    /// Parts per million delayed by a time out of `delay_range`.
    pub delay: u32,
    /// Shortest and longest delay in nanoseconds, for `duplicate`, `reorder` and `delay`.
    pub delay_range: (u64, u64),
    /// Faults of single packets.
    pub rules: Vec<Rule>,
}

impl FaultPlan {
    /// A plan that loses every packet, like a cable that was pulled out.
    pub fn cut() -> Self {
        Self { drop: 1_000_000, ..Self::default() }
    }
}

/// Counts of the faults that an injector has caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// All packets.
    pub seen: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets corrupted or mangled.
    pub corrupted: u64,
    /// Packets delayed or reordered.
    pub delayed: u64,
}

/// Chooses the fault of each packet from the seed and the packet's number, and holds delayed
/// packets.
#[derive(Debug)]
pub struct Injector {
    plan: FaultPlan,
    prng: Prng,
    counters: FaultCounters,
    /// How many packets each rule has counted.
    matched: Vec<u64>,
    /// Delayed packets by time of arrival. The second number keeps the order of packets with the
    /// same time.
    held: BTreeMap<(u64, u64), Packet>,
    /// The reordered packet that waits for the next one, and the time at which it stops waiting.
    passed_over: Option<(u64, Packet)>,
    sequence: u64,
}

impl Injector {
    /// An injector at the start of its plan.
    pub fn new(plan: FaultPlan) -> Self {
        Self {
            prng: Prng::new(plan.seed),
            counters: FaultCounters::default(),
            matched: vec![0; plan.rules.len()],
            held: BTreeMap::new(),
            passed_over: None,
            sequence: 0,
            plan,
        }
    }

    /// The counts so far.
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }

    /// Starts another plan. The counts go on, and delayed packets still arrive.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.prng = Prng::new(plan.seed);
        self.matched = vec![0; plan.rules.len()];
        self.plan = plan;
    }

    /// Applies the plan to a packet. Packets that arrive at once are appended to `out`.
    pub fn inject(
        &mut self,
        now: u64,
        mut packet: Packet,
        out: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) {
        self.counters.seen += 1;
        match self.choose(&packet) {
            None => self.pass(packet, out),
            Some(PacketFault::Drop) => self.drop_packet(packet, pool),
            Some(PacketFault::Duplicate) => {
                self.counters.duplicated += 1;
                let delay = self.delay();
                self.hold(now.saturating_add(delay), pool.copy(&packet));
                self.pass(packet, out);
            }
            Some(PacketFault::Corrupt) => {
                if self.corrupt(&mut packet) {
                    self.pass(packet, out);
                } else {
                    pool.give(packet);
                }
            }
            Some(PacketFault::Mangle) => {
                self.mangle(&mut packet);
                self.pass(packet, out);
            }
            Some(PacketFault::Reorder) => self.pass_over(now, packet, out),
            Some(PacketFault::Delay(delay)) => {
                self.counters.delayed += 1;
                self.hold(now.saturating_add(delay), packet);
            }
        }
    }

    /// Appends the held packets that are due.
    pub fn release(&mut self, now: u64, out: &mut Vec<Packet>) {
        while self.held.first_key_value().is_some_and(|((due, _), _)| *due <= now) {
            out.extend(self.held.pop_first().map(|(_, packet)| packet));
        }
        if self.passed_over.as_ref().is_some_and(|(due, _)| *due <= now) {
            out.extend(self.passed_over.take().map(|(_, packet)| packet));
        }
    }

    /// When the next held packet is due.
    pub fn next_wake(&self) -> Option<u64> {
        let held = self.held.first_key_value().map(|((due, _), _)| *due);
        let waiting = self.passed_over.as_ref().map(|(due, _)| *due);
        held.into_iter().chain(waiting).min()
    }

    fn choose(&mut self, packet: &Packet) -> Option<PacketFault> {
        self.by_rule(packet).or_else(|| self.by_chance())
    }

    fn by_rule(&mut self, packet: &Packet) -> Option<PacketFault> {
        let opcode = packet.bth().map(|bth| bth.opcode());
        let mut chosen = None;
        for (rule, count) in self.plan.rules.iter().zip(&mut self.matched) {
            if rule.opcode.is_none() || rule.opcode == opcode {
                *count += 1;
                if *count == rule.nth {
                    chosen = chosen.or(Some(rule.fault));
                }
            }
        }
        chosen
    }

    fn by_chance(&mut self) -> Option<PacketFault> {
        let plan = &self.plan;
        let chances = [
            (plan.drop, PacketFault::Drop),
            (plan.duplicate, PacketFault::Duplicate),
            (plan.corrupt, PacketFault::Corrupt),
            (plan.mangle, PacketFault::Mangle),
            (plan.reorder, PacketFault::Reorder),
        ];
        let hit = chances.into_iter().find(|(chance, _)| self.prng.chance(*chance));
        if let Some((_, fault)) = hit {
            return Some(fault);
        }
        let late = self.prng.chance(plan.delay);
        late.then(|| PacketFault::Delay(self.delay()))
    }

    fn delay(&mut self) -> u64 {
        let (shortest, longest) = self.plan.delay_range;
        self.prng.within(shortest, longest)
    }

    fn pass(&mut self, packet: Packet, out: &mut Vec<Packet>) {
        out.push(packet);
        out.extend(self.passed_over.take().map(|(_, packet)| packet));
    }

    fn pass_over(&mut self, now: u64, packet: Packet, out: &mut Vec<Packet>) {
        self.counters.delayed += 1;
        let before =
            self.passed_over.replace((now.saturating_add(self.plan.delay_range.1), packet));
        out.extend(before.map(|(_, packet)| packet));
    }

    fn hold(&mut self, due: u64, packet: Packet) {
        self.sequence += 1;
        self.held.insert((due, self.sequence), packet);
    }

    fn drop_packet(&mut self, packet: Packet, pool: &mut PacketPool) {
        self.counters.dropped += 1;
        pool.give(packet);
    }

    /// Writes the packet as a frame, inverts one bit, and reads it again; false if the CRC detects
    /// it. InfiniBand packets without a global route are framed between their zero GIDs: every link
    /// has a CRC over the same bytes.
    fn corrupt(&mut self, packet: &mut Packet) -> bool {
        self.counters.corrupted += 1;
        let mut frame = Vec::new();
        rocev2::write_ip(packet, Framing::default(), &mut frame);
        invert_random_bit(&mut frame, &mut self.prng);
        let Ok(damaged) = rocev2::read_ip(&frame) else { return false };
        let Addressing { traffic_class, hop_limit, .. } = damaged.addressing;
        packet.fill(Addressing { traffic_class, hop_limit, ..packet.addressing }, damaged.bytes());
        true
    }

    fn mangle(&mut self, packet: &mut Packet) {
        self.counters.corrupted += 1;
        invert_random_bit(packet.bytes_mut(), &mut self.prng);
    }
}

fn invert_random_bit(bytes: &mut [u8], prng: &mut Prng) {
    let bit = prng.below(bytes.len() as u64 * 8);
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

/// A wire with faults on the packets that it sends. Use one at each end for faults in both
/// directions.
#[derive(Debug)]
pub struct Faulty<W> {
    wire: W,
    control: FaultControl,
    passing: Vec<Packet>,
}

/// A handle for the faults of a [`Faulty`] wire, for a program that has given the wire to a device.
#[derive(Clone, Debug)]
pub struct FaultControl(Arc<Mutex<Injector>>);

impl FaultControl {
    /// The counts so far.
    pub fn counters(&self) -> FaultCounters {
        lock(&self.0).counters()
    }

    /// Starts another plan for the packets from now on: see [`Injector::set_plan`].
    pub fn set_plan(&self, plan: FaultPlan) {
        lock(&self.0).set_plan(plan);
    }
}

impl<W: Wire> Faulty<W> {
    /// Injects the plan's faults into the packets that `wire` sends.
    pub fn new(wire: W, plan: FaultPlan) -> Self {
        let control = FaultControl(Arc::new(Mutex::new(Injector::new(plan))));
        Self { wire, control, passing: Vec::new() }
    }

    /// The counts so far.
    pub fn counters(&self) -> FaultCounters {
        self.control.counters()
    }

    /// A handle for the faults, usable after a device has taken the wire.
    pub fn control(&self) -> FaultControl {
        self.control.clone()
    }

    fn release(&mut self, now: u64, pool: &mut PacketPool) {
        lock(&self.control.0).release(now, &mut self.passing);
        if !self.passing.is_empty() {
            self.wire.send(now, &mut self.passing, pool);
        }
    }
}

impl<W: Wire> Wire for Faulty<W> {
    pass_calls_on! { self => self.wire }

    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let mut injector = lock(&self.control.0);
        for packet in packets.drain(..) {
            injector.inject(now, packet, &mut self.passing, pool);
        }
        drop(injector);
        self.release(now, pool);
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        self.release(now, pool);
        self.wire.receive(now, packets, pool)
    }

    fn next_wake(&self) -> Option<u64> {
        lock(&self.control.0).next_wake().into_iter().chain(self.wire.next_wake()).min()
    }
}

#[cfg(test)]
mod tests;
