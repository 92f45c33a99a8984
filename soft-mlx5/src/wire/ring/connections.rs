//! The rings of a device: one to each station of another process that it sends to, and one from
//! each that sends to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::incoming::Incoming;
use super::outgoing::{Outgoing, Sent, WAITING};
use super::suspects::Suspects;
use super::{Corrupt, Users, socket};
use crate::packet::{MAX_PACKET, Packet, PacketPool};
use crate::wire::{Link, RECEIVE_BATCH, Station, WireCounters};

/// Most rings in each direction: each takes a descriptor. Further stations are refused and use UDP.
const MAX_RINGS: usize = 128;

/// Most stations that are remembered as having no ring. Packets to further ones go by UDP without
/// an attempt to connect.
const MAX_STATIONS: usize = 1024;

/// Most packets that wait for space in all rings together, about 70 MB. Further packets are
/// dropped.
const MAX_WAITING: usize = 4 * WAITING;

/// Nanoseconds between two attempts to connect to a station that had no ring, or whose ring has
/// ended.
const RETRY: u64 = 1_000_000_000;

/// Nanoseconds after which a connection without a hello may be closed to make space for a new one.
const HELLO_TIMEOUT: u64 = 1_000_000_000;

/// Nanoseconds without accepting connections after `accept` found no free descriptor.
const ACCEPT_PAUSE: u64 = 100_000_000;

/// Back-off, in nanoseconds, after a peer accepts a connection and closes it at once, because it
/// has reached its limit of rings. Packets sent until then are lost, so attempts are rare.
const RETRY_REFUSER: u64 = 60_000_000_000;

/// Numbers in the epoll set of the listener and of the socket of datagrams. Connections have the
/// numbers between them.
const LISTENER: u64 = 0;
const DATAGRAMS: u64 = u64::MAX;

/// The listener's events.
const LISTENING: EpollEvent = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);

/// Rings of shared memory between a station and those of other processes of the machine.
///
/// Each ring has one direction: from the station that connects to the one that listens. A sender
/// does not wait for the other side: it puts packets into the ring before the connection is
/// accepted. It connects with the first packet to a station. So all packets to the station take the
/// same path, in order, until one of the two ends.
pub struct Rings {
    station: Station,
    link: Link,
    users: Users,
    listener: UnixListener,
    /// A spare descriptor, closed for a moment to accept a connection that must be refused.
    spare: Option<OwnedFd>,
    /// When the listener is added to `sockets` again.
    paused_until: Option<u64>,
    /// Wakes this side: listener and connections, by their numbers.
    sockets: Epoll,
    last_number: u64,
    outgoing: BTreeMap<Station, Route>,
    /// Stations whose rings got packets since [`Rings::wake_receivers`].
    not_woken: Vec<Station>,
    /// Packets that wait for space in any ring.
    waiting: usize,
    incoming: Vec<Incoming>,
    /// Stations whose rings the last handling of the sockets opened.
    opened: Vec<Station>,
    suspects: Suspects,
    is_sleeping: Cell<bool>,
    /// An eventfd that is always readable, to end a sleep at once.
    at_once: EventFd,
    counters: Arc<WireCounters>,
}

/// What [`Rings::handle_events`] found.
#[derive(Clone, Copy, Debug)]
pub(in crate::wire) struct Handled {
    /// A ring was opened. The caller receives all UDP packets before those of the ring, because its
    /// sender sent them first.
    pub(in crate::wire) is_opened: bool,
    /// The socket of [`Rings::watch_datagrams`] may have datagrams.
    pub(in crate::wire) has_datagrams: bool,
}

/// How packets are sent to a station.
enum Route {
    Ring(Outgoing),
    /// By UDP, because there is no ring; the next attempt to connect is at this time.
    Udp(u64),
}

impl Rings {
    /// Listens on a name that [`claim`](socket::claim) has bound.
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
            paused_until: None,
            sockets,
            last_number: LISTENER,
            outgoing: BTreeMap::new(),
            not_woken: Vec::new(),
            waiting: 0,
            incoming: Vec::new(),
            opened: Vec::new(),
            suspects: Suspects::default(),
            is_sleeping: Cell::new(false),
            at_once: EventFd::from_value_and_flags(1, flags)?,
            counters: WireCounters::new(),
        })
    }

    /// Makes [`Rings::handle_events`] also watch this socket, because one system call then returns
    /// all events.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    pub(in crate::wire) fn watch_datagrams(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.sockets.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, DATAGRAMS))?)
    }

    /// The counters of the rings; `malformed` counts rings that ended because the other side wrote
    /// invalid values.
    pub fn counters(&self) -> Arc<WireCounters> {
        self.counters.clone()
    }

    /// Sends a unicast packet if its destination has a ring, else returns it. After a batch of
    /// packets, call [`Rings::wake_receivers`].
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
        let may_wait = self.waiting < MAX_WAITING;
        let Some(route) = self.route(now, station) else { return Some(packet) };
        match route.send(packet, pool, may_wait) {
            Ok(Sent::InRing) => self.note_sent(station, 1),
            Ok(Sent::Waits) => self.waiting += 1,
            Ok(Sent::Refused) => WireCounters::add(&self.counters.refused, 1),
            Err(Corrupt) => self.hang_up(now, station, true),
        }
        None
    }

    /// How many packets wait for space in rings.
    pub(in crate::wire) fn waiting(&self) -> usize {
        self.waiting
    }

    fn note_sent(&mut self, station: Station, count: usize) {
        WireCounters::add(&self.counters.sent, count);
        if self.not_woken.last() != Some(&station) {
            self.not_woken.push(station);
        }
    }

    /// The ring to a station. Connects if the last attempt is not too recent.
    fn route(&mut self, now: u64, station: Station) -> Option<&mut Outgoing> {
        let may_connect = match self.outgoing.get(&station) {
            None => self.outgoing.len() < MAX_STATIONS || self.forget_refusals(now),
            Some(Route::Udp(until)) => now >= *until,
            Some(Route::Ring(_)) => false,
        };
        if may_connect {
            let until = now.saturating_add(RETRY);
            let route = self.connect(station, until).map_or(Route::Udp(until), Route::Ring);
            self.outgoing.insert(station, route);
        }
        match self.outgoing.get_mut(&station) {
            Some(Route::Ring(route)) => Some(route),
            _ => None,
        }
    }

    fn connect(&mut self, station: Station, next_attempt: u64) -> Option<Outgoing> {
        let rings = self.outgoing.values().filter(|route| matches!(route, Route::Ring(_))).count();
        if rings >= MAX_RINGS {
            return None;
        }
        self.last_number += 1;
        let (number, sockets) = (self.last_number, &self.sockets);
        Outgoing::connect(number, self.station, station, next_attempt, sockets, self.users).ok()
    }

    /// Forgets the stations whose next attempt is due; returns whether there were any.
    fn forget_refusals(&mut self, now: u64) -> bool {
        let before = self.outgoing.len();
        self.outgoing.retain(|_, route| !matches!(route, Route::Udp(until) if now >= *until));
        self.outgoing.len() < before
    }

    /// Ends the ring to a station. If the station has taken packets from the ring, its process has
    /// probably ended, and the next attempt (to a new device of the station) is made at once,
    /// unless the last one was very recent. If the station never took a packet, it has refused the
    /// ring.
    fn hang_up(&mut self, now: u64, station: Station, is_corrupt: bool) {
        let Some(Route::Ring(route)) = self.outgoing.remove(&station) else { return };
        self.waiting -= route.waiting();
        WireCounters::add(&self.counters.refused, route.waiting());
        WireCounters::add(&self.counters.malformed, usize::from(is_corrupt));
        // Closing the socket does not remove it if a forked child also has it open.
        let _ = self.sockets.delete(route.socket());
        if !is_corrupt {
            self.suspects.suspect(now, station, route.socket());
        }
        let refuses = is_corrupt || !route.has_consumed();
        let until = if refuses { now.saturating_add(RETRY_REFUSER) } else { route.next_attempt() };
        self.outgoing.insert(station, Route::Udp(until));
    }

    /// Wakes the sleeping receivers of the packets sent since the last call.
    pub(in crate::wire) fn wake_receivers(&mut self) {
        for station in self.not_woken.drain(..) {
            if let Some(Route::Ring(route)) = self.outgoing.get(&station) {
                route.wake();
            }
        }
    }

    /// Whether a station sends through a ring, and therefore sends nothing by UDP. False if its
    /// ring was opened in the last call of [`Rings::handle_events`], because packets that it sent
    /// before may still be in the socket.
    pub(in crate::wire) fn has_ring_from(&self, station: Station) -> bool {
        let sends = self.incoming.iter().any(|incoming| incoming.station() == Some(station));
        sends && !self.opened.contains(&station)
    }

    /// Handles the events of the sockets: new connections, hellos and closed connections.
    pub(in crate::wire) fn handle_events(&mut self, now: u64) -> Handled {
        if self.paused_until.is_some_and(|until| now >= until) {
            self.listen(now);
        }
        let mut events = [EpollEvent::empty(); RECEIVE_BATCH];
        let count = self.sockets.wait(&mut events, 0u8).unwrap_or(0);
        self.opened.clear();
        // If the array is full, there may be more events.
        let mut has_datagrams = count == events.len();
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.accept(now),
                DATAGRAMS => has_datagrams = true,
                number => self.handle_connection(now, number),
            }
        }
        Handled { is_opened: !self.opened.is_empty(), has_datagrams }
    }

    /// Accepts new connections.
    fn accept(&mut self, now: u64) {
        for _ in 0..RECEIVE_BATCH {
            match self.listener.accept() {
                Ok((socket, _)) => self.register(now, socket.into()),
                Err(error) if lacks_descriptors(&error) => match self.refuse() {
                    Ok(()) => {}
                    Err(error) if lacks_descriptors(&error) => {
                        // Otherwise epoll would report it again and again.
                        let _ = self.sockets.delete(&self.listener);
                        self.paused_until = Some(now.saturating_add(ACCEPT_PAUSE));
                        break;
                    }
                    // accept(2) allocates a descriptor before it looks for a connection, and no
                    // connection is waiting.
                    Err(_) => break,
                },
                Err(_) => break,
            }
        }
    }

    /// Closes a connection for which there is no descriptor. Otherwise it would wait forever, and
    /// so would its packets.
    fn refuse(&mut self) -> io::Result<()> {
        self.spare = None;
        let refused = self.listener.accept().map(drop);
        self.spare = self.listener.as_fd().try_clone_to_owned().ok();
        refused
    }

    fn listen(&mut self, now: u64) {
        let added = self.sockets.add(&self.listener, LISTENING);
        self.paused_until = added.is_err().then(|| now.saturating_add(ACCEPT_PAUSE));
    }

    /// When the sockets must be handled even if no socket is ready.
    pub(in crate::wire) fn next_wake(&self) -> Option<u64> {
        self.paused_until.into_iter().chain(self.suspects.next()).min()
    }

    /// The stations whose processes have ended since the last call, after all their packets have
    /// been received.
    pub(in crate::wire) fn take_ended(&mut self, now: u64) -> Vec<Station> {
        let (outgoing, incoming) = (&self.outgoing, &self.incoming);
        self.suspects.take(now, |peer| {
            let sends = incoming.iter().any(|incoming| incoming.is_from(peer));
            sends || matches!(outgoing.get(&peer.station), Some(Route::Ring(route)) if route.is_to(peer))
        })
    }

    /// Registers a connection, or closes it if there are too many or its user is not trusted.
    fn register(&mut self, now: u64, socket: OwnedFd) {
        self.last_number += 1;
        let number = self.last_number;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
        if self.incoming.len() >= MAX_RINGS {
            self.drop_connections_without_hello(now);
        }
        if self.incoming.len() >= MAX_RINGS
            || !socket::is_trusted(&socket, self.users)
            || self.sockets.add(&socket, event).is_err()
        {
            return;
        }
        self.incoming.push(Incoming::new(now, number, socket));
        self.handle_connection(now, number);
    }

    /// Closes connections on which no hello has arrived within [`HELLO_TIMEOUT`].
    fn drop_connections_without_hello(&mut self, now: u64) {
        for at in (0..self.incoming.len()).rev() {
            if self.incoming[at]
                .without_hello_since()
                .is_some_and(|since| now >= since + HELLO_TIMEOUT)
            {
                self.remove_incoming(at);
            }
        }
    }

    /// Handles a connection's socket, which may open its ring.
    fn handle_connection(&mut self, now: u64, number: u64) {
        if let Some(at) = self.incoming.iter().position(|incoming| incoming.number() == number) {
            match self.incoming[at].read_socket() {
                Ok(true) => self.opened.extend(self.incoming[at].sender()),
                Ok(false) => {}
                Err(_) => self.drop_incoming(now, at),
            }
            return;
        }
        let closed = self.outgoing.iter().find_map(|(station, route)| match route {
            Route::Ring(route) if route.number() == number => {
                (!socket::drain(route.socket())).then_some(*station)
            }
            _ => None,
        });
        closed.into_iter().for_each(|station| self.hang_up(now, station, false));
    }

    fn drop_incoming(&mut self, now: u64, at: usize) {
        let incoming = self.remove_incoming(at);
        if let Some(station) = incoming.sender().filter(|_| incoming.is_closed()) {
            self.suspects.suspect(now, station, incoming.socket());
        }
        WireCounters::add(&self.counters.malformed, usize::from(!incoming.is_closed()));
    }

    fn remove_incoming(&mut self, at: usize) -> Incoming {
        let incoming = self.incoming.swap_remove(at);
        let _ = self.sockets.delete(incoming.socket());
        incoming
    }

    /// Moves waiting packets into rings that have space again, and appends received packets to
    /// `packets`. Returns how many there were.
    pub(in crate::wire) fn receive(
        &mut self,
        now: u64,
        packets: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) -> usize {
        self.end_sleep();
        if self.waiting != 0 {
            self.flush(now, pool);
        }
        let (own, before) = ((self.station, self.link), packets.len());
        let mut at = 0;
        while at < self.incoming.len() {
            match self.incoming[at].take(own, packets, pool) {
                Ok(false) if self.incoming[at].is_closed() => self.drop_incoming(now, at),
                Ok(_) => at += 1,
                Err(Corrupt) => self.drop_incoming(now, at),
            }
        }
        let received = packets.len() - before;
        WireCounters::add(&self.counters.received, received);
        received
    }

    fn flush(&mut self, now: u64, pool: &mut PacketPool) {
        let mut flushed = Vec::new();
        for (station, route) in &mut self.outgoing {
            let Route::Ring(route) = route else { continue };
            let before = route.waiting();
            if before != 0 {
                flushed.push((*station, route.flush(pool)));
                self.waiting -= before - route.waiting();
            }
        }
        for (station, result) in flushed {
            match result {
                Ok(0) => {}
                Ok(count) => self.note_sent(station, count),
                Err(Corrupt) => self.hang_up(now, station, true),
            }
        }
        self.wake_receivers();
    }

    /// Appends descriptors that become readable when there is work, from now until the next
    /// [`Rings::receive`].
    pub(in crate::wire) fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.is_sleeping.set(true);
        fds.push(self.sockets.0.as_fd());
        let busy_in = self.incoming.iter().filter(|incoming| !incoming.prepare_sleep()).count();
        let busy_out = self.rings().filter(|route| !route.prepare_sleep()).count();
        if busy_in + busy_out != 0 {
            fds.push(self.at_once.as_fd());
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Outgoing> {
        self.outgoing.values().filter_map(|route| match route {
            Route::Ring(route) => Some(route),
            Route::Udp(_) => None,
        })
    }

    fn end_sleep(&self) {
        if self.is_sleeping.replace(false) {
            self.incoming.iter().for_each(Incoming::end_sleep);
            self.rings().for_each(Outgoing::end_sleep);
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
