//! An Ethernet switch in memory: connects the devices of one process.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, Weak};

use super::{RECEIVE_BATCH, Station, Waker, Wire, WireCounters};
use crate::locking::lock;
use crate::packet::{Addressing, Gid, Packet, PacketPool};

/// Most packets that wait at one port; further ones are dropped, as in a hardware switch.
const QUEUE_LIMIT: usize = 4096;

/// The switch. Clones refer to the same switch.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    ports: Arc<Mutex<BTreeMap<Station, Arc<Inbox>>>>,
}

#[derive(Debug)]
struct Inbox {
    queue: Mutex<Queue>,
    waker: Option<Arc<Waker>>,
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Packet>,
    /// Empty buffers that the receiver returns to senders. Packets move with their buffers, so
    /// without this a sender that receives few packets would allocate a buffer for each.
    empty: PacketPool,
    groups: Vec<Gid>,
}

impl Switch {
    /// A switch without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plugs a station in; `waker` is woken when packets arrive for it.
    ///
    /// # Errors
    /// `AddrInUse` if the station has a port already.
    pub fn attach(&self, station: Station, waker: Option<Arc<Waker>>) -> io::Result<SwitchPort> {
        let inbox = Arc::new(Inbox { queue: Mutex::default(), waker });
        let mut ports = lock(&self.ports);
        if ports.contains_key(&station) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        ports.insert(station, inbox.clone());
        let counters = WireCounters::new();
        let (peers, asleep, switch) = (Vec::new(), Vec::new(), self.clone());
        Ok(SwitchPort { station, inbox, peers, switch, counters, asleep })
    }

    /// Whether a station has a port on this switch.
    pub(super) fn has(&self, station: Station) -> bool {
        lock(&self.ports).contains_key(&station)
    }

    fn find(&self, station: Station) -> Option<Arc<Inbox>> {
        lock(&self.ports).get(&station).cloned()
    }

    fn members(&self, group: Gid, except: Station) -> Vec<Arc<Inbox>> {
        let ports = lock(&self.ports);
        let others = ports.iter().filter(|(station, _)| **station != except);
        others.map(|(_, inbox)| inbox.clone()).filter(|inbox| inbox.wants(group)).collect()
    }
}

impl Inbox {
    fn wants(&self, group: Gid) -> bool {
        lock(&self.queue).groups.contains(&group)
    }

    /// Queues a packet, and moves an empty buffer to the sender's `pool` in exchange if there is
    /// one. Returns false if the queue is full.
    fn push(&self, packet: Packet, pool: &mut PacketPool) -> bool {
        let mut queue = lock(&self.queue);
        if queue.packets.len() >= QUEUE_LIMIT {
            pool.give(packet);
            return false;
        }
        queue.packets.push_back(packet);
        queue.empty.pass_on(1, pool);
        true
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// One device's port of a [`Switch`]. Dropping it unplugs the device.
#[derive(Debug)]
pub struct SwitchPort {
    station: Station,
    inbox: Arc<Inbox>,
    /// Ports found recently, latest first, so that packets to them need no lookup in the switch.
    peers: Vec<(Station, Weak<Inbox>)>,
    switch: Switch,
    counters: Arc<WireCounters>,
    /// Ports that got packets and were not woken yet.
    asleep: Vec<Arc<Inbox>>,
}

impl SwitchPort {
    const PEERS_KEPT: usize = 8;

    /// The counters of the port.
    pub fn counters(&self) -> Arc<WireCounters> {
        self.counters.clone()
    }

    /// Whether a station is on this switch.
    pub(super) fn reaches(&self, station: Station) -> bool {
        self.switch.has(station)
    }

    /// Sends one packet if its destination is on this switch, else returns it. A multicast packet
    /// is copied to the members and always returned. The receivers are woken by
    /// [`Wire::wake_receivers`].
    pub(super) fn try_send(&mut self, packet: Packet, pool: &mut PacketPool) -> Option<Packet> {
        if packet.addressing.is_multicast() {
            self.flood(&packet, pool);
            return Some(packet);
        }
        match self.peer(&packet.addressing) {
            Some(inbox) => {
                self.deliver(inbox, packet, pool);
                None
            }
            None => Some(packet),
        }
    }

    fn deliver(&mut self, inbox: Arc<Inbox>, packet: Packet, pool: &mut PacketPool) {
        let sent = inbox.push(packet, pool);
        WireCounters::add(if sent { &self.counters.sent } else { &self.counters.refused }, 1);
        if self.asleep.last().is_none_or(|last| !Arc::ptr_eq(last, &inbox)) {
            self.asleep.push(inbox);
        }
    }

    fn flood(&mut self, packet: &Packet, pool: &mut PacketPool) {
        for inbox in self.switch.members(packet.addressing.destination, self.station) {
            let copy = pool.copy(packet);
            self.deliver(inbox, copy, pool);
        }
    }

    fn peer(&mut self, route: &Addressing) -> Option<Arc<Inbox>> {
        let station = Station::destination(route)?;
        let known = self.peers.iter().position(|(peer, _)| *peer == station);
        if let Some(inbox) = known.and_then(|at| self.peers[at].1.upgrade()) {
            return Some(inbox);
        }
        if let Some(at) = known {
            self.peers.remove(at);
        }
        let inbox = self.switch.find(station)?;
        self.peers.truncate(Self::PEERS_KEPT - 1);
        self.peers.insert(0, (station, Arc::downgrade(&inbox)));
        Some(inbox)
    }
}

impl Wire for SwitchPort {
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.send_quietly(now, packets, pool);
        self.wake_receivers();
    }

    fn send_quietly(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        for packet in packets.drain(..) {
            let multicast = packet.addressing.is_multicast();
            if let Some(packet) = self.try_send(packet, pool) {
                WireCounters::add(&self.counters.unroutable, usize::from(!multicast));
                pool.give(packet);
            }
        }
    }

    fn wake_receivers(&mut self) {
        self.asleep.drain(..).for_each(|inbox| inbox.wake());
    }

    fn receive(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        let mut queue = lock(&self.inbox.queue);
        let count = queue.packets.len().min(RECEIVE_BATCH);
        packets.extend(queue.packets.drain(..count));
        pool.pass_on(count, &mut queue.empty);
        drop(queue);
        WireCounters::add(&self.counters.received, count);
        count
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        lock(&self.inbox.queue).groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: Gid) {
        let groups = &mut lock(&self.inbox.queue).groups;
        if let Some(at) = groups.iter().position(|joined| *joined == group) {
            groups.swap_remove(at);
        }
    }
}

impl Drop for SwitchPort {
    fn drop(&mut self) {
        self.wake_receivers();
        lock(&self.switch.ports).remove(&self.station);
    }
}
