//! The sending end of a ring to a station of another process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::ends::Party;
use super::memory::Mapped;
use super::{Lie, Producer, Tag, Users, socket};
use crate::packet::{Packet, PacketPool};
use crate::wire::Station;
use crate::wire::station::class_and_ttl;

/// Most packets that wait for space in the ring; further ones are dropped, as a switch drops.
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
    /// When the next ring to the station may be opened.
    again: u64,
}

impl Outgoing {
    /// Opens a ring to a station. `number` identifies it in `sockets`; `again` is when the next
    /// ring to the station may be opened.
    ///
    /// # Errors
    /// `ECONNREFUSED` if the station does not listen, `PermissionDenied` if it is not one of
    /// `users`, else errors of creating the ring.
    pub(super) fn connect(
        number: u64,
        from: Station,
        to: Station,
        again: u64,
        sockets: &Epoll,
        users: Users,
    ) -> io::Result<Self> {
        let socket = socket::connect(to)?;
        if !socket::is_trusted(&socket, users) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (ring, file) = Mapped::create()?;
        socket::say_hello(&socket, from, &file)?;
        sockets.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        Ok(Self { number, socket, ring: Producer::new(ring), waiting: VecDeque::new(), again })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the other end is this process.
    pub(super) fn is_to(&self, party: Party) -> bool {
        socket::process(&self.socket) == party.process
    }

    /// When the next ring to the station may be opened.
    pub(super) fn again(&self) -> u64 {
        self.again
    }

    /// How many packets wait for space.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a packet after all earlier ones. Without space for it, it waits if it may.
    pub(super) fn send(
        &mut self,
        packet: Packet,
        pool: &mut PacketPool,
        may_wait: bool,
    ) -> Result<Sent, Lie> {
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
    pub(super) fn flush(&mut self, pool: &mut PacketPool) -> Result<usize, Lie> {
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

    /// Whether the other side has ever taken a packet.
    pub(super) fn was_heard(&self) -> bool {
        self.ring.was_heard()
    }

    /// Announces that this side sleeps; returns whether there is no work left.
    pub(super) fn prepare(&self) -> bool {
        let Some(first) = self.waiting.front() else { return true };
        self.ring.prepare(first.bytes().len()) == Ok(true)
    }

    /// Withdraws the announcement of `prepare`.
    pub(super) fn awake(&self) {
        self.ring.awake();
    }
}

fn tag(packet: &Packet) -> Tag {
    let (class, hop_limit) = class_and_ttl(&packet.addressing);
    Tag { class, hop_limit }
}
