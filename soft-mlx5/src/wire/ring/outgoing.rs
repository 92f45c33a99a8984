//! The sending end of a ring to a station of another process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::memory::Mapped;
use super::suspects::PeerProcess;
use super::{Corrupt, Producer, Tag, Users, socket};
use crate::packet::{Packet, PacketPool};
use crate::wire::Station;
use crate::wire::station::class_and_ttl;

/// Most packets that wait for space in the ring. Further ones are dropped, as in a full switch.
pub(super) const WAITING: usize = 4096;

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is in the ring.
    InRing,
    /// It waits for space.
    Waits,
    /// Too many packets wait, so it is lost.
    Refused,
}

pub(super) struct Outgoing {
    number: u64,
    socket: OwnedFd,
    ring: Producer<Mapped>,
    /// Packets that wait for space, in order.
    waiting: VecDeque<Packet>,
    /// The time at which the next ring to the station may be opened.
    next_attempt: u64,
}

impl Outgoing {
    /// Opens a ring to a station. `number` identifies it in `sockets`; `next_attempt` is the
    /// time at which the next ring to the station may be opened.
    ///
    /// # Errors
    /// `ECONNREFUSED` if the station does not listen, `PermissionDenied` if it is not one of
    /// `users`, else errors of creating the ring.
    pub(super) fn connect(
        number: u64,
        from: Station,
        to: Station,
        next_attempt: u64,
        sockets: &Epoll,
        users: Users,
    ) -> io::Result<Self> {
        let socket = socket::connect(to)?;
        if !socket::is_trusted(&socket, users) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (ring, file) = Mapped::create()?;
        socket::send_hello(&socket, from, &file)?;
        sockets.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        Ok(Self {
            number,
            socket,
            ring: Producer::new(ring),
            waiting: VecDeque::new(),
            next_attempt,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the other end is this process.
    pub(super) fn is_to(&self, peer: PeerProcess) -> bool {
        socket::process(&self.socket) == peer.process
    }

    /// The time at which the next ring to the station may be opened.
    pub(super) fn next_attempt(&self) -> u64 {
        self.next_attempt
    }

    /// How many packets wait for space.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a packet after all earlier ones. If there is no space for it, it is queued if
    /// `may_wait`, else dropped.
    pub(super) fn send(
        &mut self,
        packet: Packet,
        pool: &mut PacketPool,
        may_wait: bool,
    ) -> Result<Sent, Corrupt> {
        let sent = if self.waiting.is_empty() && self.ring.push(tag(&packet), packet.bytes())? {
            Sent::InRing
        } else if may_wait && self.waiting.len() < WAITING {
            self.waiting.push_back(packet);
            return Ok(Sent::Waits);
        } else {
            Sent::Refused
        };
        pool.give(packet);
        Ok(sent)
    }

    /// Moves waiting packets into the ring as far as there is space; returns how many.
    pub(super) fn flush(&mut self, pool: &mut PacketPool) -> Result<usize, Corrupt> {
        let mut count = 0;
        while let Some(packet) = self.waiting.front() {
            if !self.ring.push(tag(packet), packet.bytes())? {
                break;
            }
            self.waiting.pop_front().into_iter().for_each(|packet| pool.give(packet));
            count += 1;
        }
        Ok(count)
    }

    /// Wakes the other side if it sleeps.
    pub(super) fn wake(&self) {
        if self.ring.must_wake() {
            socket::wake(&self.socket);
        }
    }

    /// Whether the receiver has ever taken a packet.
    pub(super) fn has_consumed(&self) -> bool {
        self.ring.has_consumed()
    }

    /// Announces to the receiver that this side sleeps until there is space. Returns false if it
    /// must not sleep, because there is space for a waiting packet.
    pub(super) fn prepare_sleep(&self) -> bool {
        let Some(first) = self.waiting.front() else { return true };
        self.ring.prepare_sleep(first.bytes().len()) == Ok(true)
    }

    /// Withdraws the announcement of `prepare_sleep`.
    pub(super) fn end_sleep(&self) {
        self.ring.end_sleep();
    }
}

fn tag(packet: &Packet) -> Tag {
    let (class, hop_limit) = class_and_ttl(&packet.addressing);
    Tag { class, hop_limit }
}
