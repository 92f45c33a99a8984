//! The rings of a device: one to each station of another process that it sends to, one from each
//! that sends to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::ends::Ends;
use super::incoming::Incoming;
use super::outgoing::{Outgoing, Sent, WAITING};
use super::{Lie, Users, socket};
use crate::packet::{MAX_PACKET, Packet, PacketPool};
use crate::wire::{Counters, Link, RECEIVE_BATCH, Station};

/// Most rings, in each direction: each takes a descriptor. Later stations are refused and use UDP.
const MOST_RINGS: usize = 128;

/// Most stations that are remembered to have no ring. Packets to more of them go by UDP, without an
/// attempt to connect.
const MOST_STATIONS: usize = 1024;

/// Most packets that wait for space in all rings together: some 70 MB. More are dropped.
const MOST_WAITING: usize = 4 * WAITING;

/// Nanoseconds after which a ring is asked for again from a station that had none, or whose ring
/// has ended. They count from the last attempt.
const ASK_AGAIN: u64 = 1_000_000_000;

/// How long a connection may stay without a hello while others wait for its place, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// How long no connection is accepted after `accept` found no free descriptor, in nanoseconds.
const DEAF: u64 = 100_000_000;

/// Back-off, in nanoseconds, after a peer accepts a connection and closes it at once: it is at its
/// limit of rings. Packets sent until then are lost, so it is asked rarely.
const ASK_REFUSER: u64 = 60_000_000_000;

/// The listener's number among the connections'.
const LISTENER: u64 = 0;

/// The listener's events.
const LISTENING: EpollEvent = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);

/// Rings of shared memory between a station and those of other processes of the machine.
///
/// Each ring goes one way, from the station that connects to the one whose name it connects to. A
/// sender does not wait for the other side: it puts packets into the ring before that has accepted
/// the connection. It connects with the first packet to a station, so that all packets to it go the
/// same way, in order, until one of the two ends.
pub struct Rings {
    station: Station,
    link: Link,
    users: Users,
    listener: UnixListener,
    /// Given up for a moment where a connection has to be accepted to be refused.
    spare: Option<OwnedFd>,
    /// Until when the listener is not among the sockets.
    deaf_until: Option<u64>,
    /// What wakes this side: listener and connections, by their numbers.
    sockets: Epoll,
    last_number: u64,
    outgoing: BTreeMap<Station, Way>,
    /// Stations that were sent something since [`Rings::finish`].
    touched: Vec<Station>,
    /// Packets that wait for room somewhere.
    waiting: usize,
    incoming: Vec<Incoming>,
    ends: Ends,
    is_sleeping: Cell<bool>,
    /// Readable at any time, so that it ends a sleep before it begins.
    at_once: EventFd,
    counters: Arc<Counters>,
}

/// How packets get to a station.
enum Way {
    Ring(Outgoing),
    /// There is no ring; it is asked for again at this time.
    Udp(u64),
}

impl Rings {
    /// Begins to listen on a name that [`claim`](socket::claim) has taken.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is left.
    pub(in crate::wire) fn new(
        claimed: OwnedFd,
        station: Station,
        link: Link,
        users: Users,
    ) -> io::Result<Self> {
        let listener = socket::listen(claimed)?;
        let sockets = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        sockets.add(&listener, LISTENING)?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            station,
            link,
            users,
            spare: Some(listener.as_fd().try_clone_to_owned()?),
            listener,
            deaf_until: None,
            sockets,
            last_number: LISTENER,
            outgoing: BTreeMap::new(),
            touched: Vec::new(),
            waiting: 0,
            incoming: Vec::new(),
            ends: Ends::default(),
            is_sleeping: Cell::new(false),
            at_once: EventFd::from_value_and_flags(1, flags)?,
            counters: Counters::new(),
        })
    }

    /// What the rings count: `malformed` are rings that were ended because what the other side
    /// wrote cannot be.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Sends a unicast packet if its destination has a ring, else gives it back. [`Rings::finish`]
    /// ends a batch of them.
    pub(in crate::wire) fn try_send(
        &mut self,
        now: u64,
        packet: Packet,
        pool: &mut PacketPool,
    ) -> Option<Packet> {
        let station = Station::destination(&packet.addressing);
        let Some(station) = station.filter(|_| packet.bytes().len() <= MAX_PACKET) else {
            return Some(packet);
        };
        let may_wait = self.waiting < MOST_WAITING;
        let Some(way) = self.way(now, station) else { return Some(packet) };
        match way.send(packet, pool, may_wait) {
            Ok(Sent::InRing) => self.note_sent(station, 1),
            Ok(Sent::Waits) => self.waiting += 1,
            Ok(Sent::Refused) => Counters::add(&self.counters.refused, 1),
            Err(Lie) => self.hang_up(now, station, Some(Lie)),
        }
        None
    }

    fn note_sent(&mut self, station: Station, count: usize) {
        Counters::add(&self.counters.sent, count);
        if self.touched.last() != Some(&station) {
            self.touched.push(station);
        }
    }

    /// The ring to a station, which is asked for one if it was not lately.
    fn way(&mut self, now: u64, station: Station) -> Option<&mut Outgoing> {
        let asks = match self.outgoing.get(&station) {
            None => self.outgoing.len() < MOST_STATIONS || self.forget_refusals(now),
            Some(Way::Udp(until)) => now >= *until,
            Some(Way::Ring(_)) => false,
        };
        if asks {
            let until = now.saturating_add(ASK_AGAIN);
            let way = self.ask(station, until).map_or(Way::Udp(until), Way::Ring);
            self.outgoing.insert(station, way);
        }
        match self.outgoing.get_mut(&station) {
            Some(Way::Ring(way)) => Some(way),
            _ => None,
        }
    }

    fn ask(&mut self, station: Station, again: u64) -> Option<Outgoing> {
        let rings = self.outgoing.values().filter(|way| matches!(way, Way::Ring(_))).count();
        if rings >= MOST_RINGS {
            return None;
        }
        self.last_number += 1;
        let (number, sockets) = (self.last_number, &self.sockets);
        Outgoing::connect(number, self.station, station, again, sockets, self.users).ok()
    }

    /// Forgets the stations that may be asked again; whether there were any.
    fn forget_refusals(&mut self, now: u64) -> bool {
        let before = self.outgoing.len();
        self.outgoing.retain(|_, way| !matches!(way, Way::Udp(until) if now >= *until));
        self.outgoing.len() < before
    }

    /// Ends the ring to a station. One that has taken packets has probably ended, and the device
    /// that comes after it is asked at once, unless that was asked for just now; one that never did
    /// has refused.
    fn hang_up(&mut self, now: u64, station: Station, lie: Option<Lie>) {
        let Some(Way::Ring(way)) = self.outgoing.remove(&station) else { return };
        self.waiting -= way.waiting();
        Counters::add(&self.counters.refused, way.waiting());
        Counters::add(&self.counters.malformed, usize::from(lie.is_some()));
        // Also where a forked child has the socket as well.
        let _ = self.sockets.delete(way.socket());
        if lie.is_none() {
            self.ends.suspect(now, station, way.socket());
        }
        let refuses = lie.is_some() || !way.was_heard();
        let until = if refuses { now.saturating_add(ASK_REFUSER) } else { way.again() };
        self.outgoing.insert(station, Way::Udp(until));
    }

    /// Ends a batch: wakes those that were sent something and sleep.
    pub(in crate::wire) fn finish(&mut self) {
        for station in self.touched.drain(..) {
            if let Some(Way::Ring(way)) = self.outgoing.get(&station) {
                way.wake();
            }
        }
    }

    /// Whether a station sends through a ring, so that it sends nothing by UDP.
    pub(in crate::wire) fn has_ring_from(&self, station: Station) -> bool {
        self.incoming.iter().any(|incoming| incoming.station() == Some(station))
    }

    /// Looks at the sockets: new connections, new rings, ends. Whether a ring was opened: what its
    /// sender has sent by UDP before comes before what is in it.
    pub(in crate::wire) fn heed(&mut self, now: u64) -> bool {
        if self.deaf_until.is_some_and(|until| now >= until) {
            self.listen(now);
        }
        let mut events = [EpollEvent::empty(); RECEIVE_BATCH];
        let count = self.sockets.wait(&mut events, 0u8).unwrap_or(0);
        let mut is_opened = false;
        for event in &events[..count] {
            match event.data() {
                LISTENER => is_opened |= self.accept(now),
                number => is_opened |= self.heed_connection(now, number),
            }
        }
        is_opened
    }

    /// Takes new connections; whether one of them has opened its ring already.
    fn accept(&mut self, now: u64) -> bool {
        let mut is_opened = false;
        for _ in 0..RECEIVE_BATCH {
            match self.listener.accept() {
                Ok((socket, _)) => is_opened |= self.take_in(now, socket.into()),
                Err(error) if lacks_descriptors(&error) => match self.refuse() {
                    Ok(()) => {}
                    Err(error) if lacks_descriptors(&error) => {
                        // It would be told of again and again.
                        let _ = self.sockets.delete(&self.listener);
                        self.deaf_until = Some(now.saturating_add(DEAF));
                        break;
                    }
                    // The descriptor is asked for before the connection: there is none.
                    Err(_) => break,
                },
                Err(_) => break,
            }
        }
        is_opened
    }

    /// Closes a connection for which there is no descriptor: it would wait for ever else, and so
    /// would its packets.
    fn refuse(&mut self) -> io::Result<()> {
        self.spare = None;
        let refused = self.listener.accept().map(drop);
        self.spare = self.listener.as_fd().try_clone_to_owned().ok();
        refused
    }

    fn listen(&mut self, now: u64) {
        let added = self.sockets.add(&self.listener, LISTENING);
        self.deaf_until = added.is_err().then(|| now.saturating_add(DEAF));
    }

    /// When the sockets have to be looked at though they say nothing.
    pub(in crate::wire) fn next_wake(&self) -> Option<u64> {
        self.deaf_until.into_iter().chain(self.ends.next()).min()
    }

    /// The stations whose processes have ended since the last call, once all that they sent has
    /// been received.
    pub(in crate::wire) fn take_ended(&mut self, now: u64) -> Vec<Station> {
        let (outgoing, incoming) = (&self.outgoing, &self.incoming);
        self.ends.take(now, |party| {
            let sends = incoming.iter().any(|incoming| incoming.is_from(party));
            sends
                || matches!(outgoing.get(&party.station), Some(Way::Ring(way)) if way.is_to(party))
        })
    }

    /// Takes a connection, or closes it.
    fn take_in(&mut self, now: u64, socket: OwnedFd) -> bool {
        self.last_number += 1;
        let number = self.last_number;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
        if self.incoming.len() >= MOST_RINGS {
            self.drop_mute(now);
        }
        if self.incoming.len() >= MOST_RINGS
            || !socket::is_trusted(&socket, self.users)
            || self.sockets.add(&socket, event).is_err()
        {
            return false;
        }
        self.incoming.push(Incoming::new(now, number, socket));
        self.heed_connection(now, number)
    }

    /// Ends connections that have said nothing for too long.
    fn drop_mute(&mut self, now: u64) {
        for at in (0..self.incoming.len()).rev() {
            if self.incoming[at].mute_since().is_some_and(|since| now >= since + PATIENCE) {
                self.remove_incoming(at);
            }
        }
    }

    /// Whether the connection has opened its ring.
    fn heed_connection(&mut self, now: u64, number: u64) -> bool {
        if let Some(at) = self.incoming.iter().position(|incoming| incoming.number() == number) {
            let heeded = self.incoming[at].heed();
            if heeded.is_err() {
                self.drop_incoming(now, at);
            }
            return heeded.unwrap_or(false);
        }
        let over = self.outgoing.iter().find_map(|(station, way)| match way {
            Way::Ring(way) if way.number() == number => {
                (!socket::drain(way.socket())).then_some(*station)
            }
            _ => None,
        });
        over.into_iter().for_each(|station| self.hang_up(now, station, None));
        false
    }

    fn drop_incoming(&mut self, now: u64, at: usize) {
        let incoming = self.remove_incoming(at);
        if let Some(station) = incoming.sender().filter(|_| incoming.is_over()) {
            self.ends.suspect(now, station, incoming.socket());
        }
        Counters::add(&self.counters.malformed, usize::from(!incoming.is_over()));
    }

    fn remove_incoming(&mut self, at: usize) -> Incoming {
        let incoming = self.incoming.swap_remove(at);
        let _ = self.sockets.delete(incoming.socket());
        incoming
    }

    /// Puts what waits into rings that have room again, and appends what has arrived.
    pub(in crate::wire) fn receive(
        &mut self,
        now: u64,
        packets: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) {
        self.awake();
        if self.waiting != 0 {
            self.flush(now, pool);
        }
        let (own, before) = ((self.station, self.link), packets.len());
        let mut at = 0;
        while at < self.incoming.len() {
            match self.incoming[at].take(own, packets, pool) {
                Ok(false) if self.incoming[at].is_over() => self.drop_incoming(now, at),
                Ok(_) => at += 1,
                Err(Lie) => self.drop_incoming(now, at),
            }
        }
        Counters::add(&self.counters.received, packets.len() - before);
    }

    fn flush(&mut self, now: u64, pool: &mut PacketPool) {
        let mut flushed = Vec::new();
        for (station, way) in &mut self.outgoing {
            let Way::Ring(way) = way else { continue };
            let before = way.waiting();
            if before != 0 {
                flushed.push((*station, way.flush(pool)));
                self.waiting -= before - way.waiting();
            }
        }
        for (station, result) in flushed {
            match result {
                Ok(0) => {}
                Ok(count) => self.note_sent(station, count),
                Err(Lie) => self.hang_up(now, station, Some(Lie)),
            }
        }
        self.finish();
    }

    /// Appends what becomes readable when there is something to do, from now until the next
    /// [`Rings::receive`].
    pub(in crate::wire) fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.is_sleeping.set(true);
        fds.push(self.sockets.0.as_fd());
        let busy_in = self.incoming.iter().filter(|incoming| !incoming.prepare()).count();
        let busy_out = self.rings().filter(|way| !way.prepare()).count();
        if busy_in + busy_out != 0 {
            fds.push(self.at_once.as_fd());
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Outgoing> {
        self.outgoing.values().filter_map(|way| match way {
            Way::Ring(way) => Some(way),
            Way::Udp(_) => None,
        })
    }

    fn awake(&self) {
        if self.is_sleeping.replace(false) {
            self.incoming.iter().for_each(Incoming::awake);
            self.rings().for_each(Outgoing::awake);
        }
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { station, outgoing, incoming, .. } = self;
        f.debug_struct("Rings")
            .field("station", station)
            .field("outgoing", &outgoing.len())
            .field("incoming", &incoming.len())
            .finish_non_exhaustive()
    }
}
