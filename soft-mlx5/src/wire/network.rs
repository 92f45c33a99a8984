//! The loopback network: a switch for the devices of this process, and rings of shared memory and
//! UDP for all others.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ring::{Handled, Users};
use super::skips::{FILES_EVERY, Skips};
use super::{
    Link, Rings, SOCKET_DATAGRAMS, Station, Switch, SwitchPort, UdpWire, Waker, Wire, WireCounters,
};
use crate::PerProcess;
use crate::packet::{Addressing, Gid, Packet, PacketPool};

/// The switch of all devices of this process. A forked child treats its parent's devices as devices
/// of another process.
static PROCESS_SWITCH: PerProcess<Switch> = PerProcess::new();

/// Whether a device of this process has the station.
pub(super) fn is_on_process_switch(station: Station) -> bool {
    PROCESS_SWITCH.get().has(station)
}

/// How unicast packets travel to devices of other processes of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// A ring of shared memory to each device of the same user, UDP to all others. Capture programs
    /// do not see the packets in a ring.
    #[default]
    Memory,
    /// As `Memory`, but also with devices of other users that have this setting. Such a user can
    /// pretend to be any station.
    MemoryOfAnyUser,
    /// Only UDP: every packet to or from another process is visible on the loopback interface.
    Udp,
}

/// A station on the loopback network. Unicast packets to devices of this process go through a
/// switch in memory, those to other processes through memory shared with them where they offer it,
/// all others as RoCEv2 over loopback UDP.
#[derive(Debug)]
pub struct Network {
    port: SwitchPort,
    rings: Option<Rings>,
    udp: UdpWire,
    /// Calls of `receive` since the last packet from the sockets, skipped reads included.
    silent: u32,
    /// The next call of `receive` reads the sockets, unless told to skip them.
    is_asked: Cell<bool>,
    /// Decides which calls of `receive` skip the sockets.
    skips: Skips,
    /// Datagrams dropped because their source address was forged.
    forged: AtomicU64,
}

/// Checking the sockets takes a system call. A device that communicates through memory need not
/// make it each time: after this many calls without a packet from them, only every
/// [`FILES_EVERY`]th call checks them, and the first call after a sleep, until a packet arrives.
const SILENCE: u32 = 64;

impl Network {
    /// Takes a free station, found by binding; see [`UdpWire::bind_any`]. If another user has taken
    /// all stations, it takes a name that only this user's processes can take. Devices of the same
    /// user reach it through shared memory.
    ///
    /// # Errors
    /// As [`UdpWire::bind_any`].
    pub fn join_any(link: Link, waker: Option<Arc<Waker>>, carrier: Carrier) -> io::Result<Self> {
        let udp = match UdpWire::bind_any(link) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && carrier != Carrier::Udp => {
                tracing::warn!(
                    %error,
                    "all stations are taken; this device takes one that only its user can reach"
                );
                UdpWire::bind_privately(link)?
            }
            result => result?,
        };
        Self::with(udp, PROCESS_SWITCH.get(), waker, carrier)
    }

    /// As [`Network::join_apart`] when another user has taken all stations.
    #[cfg(test)]
    pub(super) fn join_privately(link: Link) -> io::Result<Self> {
        Self::with(UdpWire::bind_privately(link)?, &Switch::new(), None, Carrier::Memory)
    }

    /// Takes this station.
    ///
    /// # Errors
    /// `AddrInUse` if another device has it.
    pub fn join_as(
        station: Station,
        link: Link,
        waker: Option<Arc<Waker>>,
        carrier: Carrier,
    ) -> io::Result<Self> {
        Self::with(UdpWire::bind(station, link)?, PROCESS_SWITCH.get(), waker, carrier)
    }

    /// Takes a free station without the process's switch: it reaches the other devices of this
    /// process like those of other processes. For tests of communication between two processes.
    ///
    /// # Errors
    /// As [`Network::join_any`].
    pub fn join_apart(link: Link, carrier: Carrier) -> io::Result<Self> {
        Self::with(UdpWire::bind_any(link)?, &Switch::new(), None, carrier)
    }

    /// As [`Network::join_apart`], at this station: other tests of the process take a station that
    /// `join_apart` found as soon as it is left.
    #[cfg(test)]
    pub(crate) fn join_apart_as(station: Station) -> io::Result<Self> {
        let udp = UdpWire::bind(station, Link::Ethernet)?;
        Self::with(udp, &Switch::new(), None, Carrier::Memory)
    }

    fn with(
        mut udp: UdpWire,
        switch: &Switch,
        waker: Option<Arc<Waker>>,
        carrier: Carrier,
    ) -> io::Result<Self> {
        let port = switch.attach(udp.station(), waker)?;
        let rings = match carrier {
            Carrier::Memory => Self::rings_of(&mut udp, Users::Same)?,
            Carrier::MemoryOfAnyUser => Self::rings_of(&mut udp, Users::Any)?,
            Carrier::Udp => None,
        };
        let (skips, forged) = (Skips::default(), AtomicU64::new(0));
        Ok(Self { port, rings, udp, silent: 0, is_asked: Cell::new(false), skips, forged })
    }

    fn rings_of(udp: &mut UdpWire, users: Users) -> io::Result<Option<Rings>> {
        let (station, link) = (udp.station(), udp.link());
        let Some(name) = udp.take_name() else { return Ok(None) };
        let rings = Rings::new(name, station, link, users)?;
        rings.watch_datagrams(udp.socket())?;
        Ok(Some(rings))
    }

    /// The address of this end.
    pub fn station(&self) -> Station {
        self.udp.station()
    }

    /// The wire to other processes.
    pub fn udp(&self) -> &UdpWire {
        &self.udp
    }

    /// The memory shared with other processes, unless the device keeps to UDP.
    pub fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()
    }

    /// The wire to devices of this process.
    pub fn port(&self) -> &SwitchPort {
        &self.port
    }

    /// How many datagrams were dropped because they came by UDP from a station that sends through
    /// memory.
    pub fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }

    /// Sends a packet through memory, or returns it if it must go by UDP.
    fn try_memory(&mut self, now: u64, packet: Packet, pool: &mut PacketPool) -> Option<Packet> {
        // All members of a group have a UDP socket for it, including those of this process.
        if packet.addressing.is_multicast() {
            return Some(packet);
        }
        let packet = self.port.try_send(packet, pool)?;
        match &mut self.rings {
            Some(rings) => rings.try_send(now, packet, pool),
            None => Some(packet),
        }
    }

    /// Whether this call of `receive` reads the sockets.
    fn looks_at_sockets(&mut self, now: u64) -> bool {
        self.silent = self.silent.wrapping_add(1);
        let wants = self.is_asked.take() | (self.silent <= SILENCE);
        let is_skipped = self.skips.take();
        let is_due = self.next_wake().is_some_and(|at| now >= at);
        is_due || self.silent % FILES_EVERY == 0 || !is_skipped && wants
    }

    /// Sends packets through memory, and the others by UDP.
    fn pass_on(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let mut kept = 0;
        for index in 0..packets.len() {
            let packet = std::mem::replace(&mut packets[index], Packet::unallocated());
            if let Some(packet) = self.try_memory(now, packet, pool) {
                packets[kept] = packet;
                kept += 1;
            }
        }
        packets.truncate(kept);
        if kept != 0 {
            self.udp.send(now, packets, pool);
        }
    }

    /// Reads the sockets once if they have datagrams. If a ring was opened, reads up to
    /// [`SOCKET_DATAGRAMS`], because later packets of the same sender are in the ring. Returns how
    /// many datagrams it read.
    fn look_at_sockets(
        &mut self,
        now: u64,
        packets: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) -> usize {
        let found = self.rings.as_mut().map(|rings| rings.handle_events(now));
        let most = match found {
            Some(Handled { is_opened: true, .. }) => SOCKET_DATAGRAMS,
            // The rings do not watch the sockets of groups.
            Some(found) if !found.has_datagrams && !self.udp.has_groups() => 0,
            _ => 1,
        };
        let mut all = 0;
        while all < most {
            let before = packets.len();
            let read = self.udp.receive(now, packets, pool);
            if read == 0 {
                break;
            }
            all += read;
            if packets.len() > before {
                self.silent = 0;
                self.drop_forged(before, packets, pool);
            }
        }
        all
    }

    /// Drops unicast packets, from `first` on, whose sender uses a ring and therefore sends nothing
    /// by UDP. They are forged: any program of the machine can choose the source of a datagram
    /// (`IP_PKTINFO`, ip(7)). Packets that the sender sent by UDP before it opened its ring are
    /// kept.
    fn drop_forged(&self, first: usize, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let is_forged = |route: &Addressing| {
            let source = if route.is_multicast() { None } else { Station::source(route) };
            let has_ring = |station| self.rings.as_ref().is_some_and(|r| r.has_ring_from(station));
            source.is_some_and(|station| self.port.reaches(station) || has_ring(station))
        };
        let mut at = first;
        while at < packets.len() {
            if is_forged(&packets[at].addressing) {
                pool.give(packets.remove(at));
                WireCounters::add(&self.forged, 1);
            } else {
                at += 1;
            }
        }
    }
}

impl Wire for Network {
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.pass_on(now, packets, pool);
        self.wake_receivers();
    }

    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.pass_on(now, packets, pool);
    }

    fn wake_receivers(&mut self) {
        self.port.wake_receivers();
        self.rings.iter_mut().for_each(Rings::wake_receivers);
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        let mut read = self.port.receive(now, packets, pool);
        if self.looks_at_sockets(now) {
            read += self.look_at_sockets(now, packets, pool);
        }
        read + self.rings.as_mut().map_or(0, |rings| rings.receive(now, packets, pool))
    }

    fn waiting(&self) -> usize {
        self.rings.as_ref().map_or(0, Rings::waiting)
    }

    fn take_ended(&mut self, now: u64) -> Vec<Station> {
        self.rings.as_mut().map_or_else(Vec::new, |rings| rings.take_ended(now))
    }

    fn next_wake(&self) -> Option<u64> {
        self.rings.as_ref().and_then(Rings::next_wake)
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        // After a sleep the sockets are read at once.
        self.is_asked.set(true);
        self.udp.poll_fds(fds);
        self.rings.iter().for_each(|rings| rings.poll_fds(fds));
    }

    fn skip_files(&mut self) {
        self.skips.allow();
    }

    fn look_at_files(&mut self) {
        self.skips.forbid();
        self.is_asked.set(true);
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.udp.join(group)
    }

    fn leave(&mut self, group: Gid) {
        self.udp.leave(group);
    }
}
