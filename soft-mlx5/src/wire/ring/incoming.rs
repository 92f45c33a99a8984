//! The receiving end of a ring from a station of another process.

use std::io;
use std::os::fd::OwnedFd;

use super::ends::Party;
use super::memory::Mapped;
use super::{Consumer, Lie, socket};
use crate::packet::{Packet, PacketPool};
use crate::wire::{Link, RECEIVE_BATCH, Station};

pub(super) struct Incoming {
    since: u64,
    number: u64,
    socket: OwnedFd,
    /// Who sends, and his ring; nothing before he has said so.
    ring: Option<(Station, Consumer<Mapped>)>,
    /// The other side has gone. What it has sent is still there.
    is_over: bool,
}

impl Incoming {
    /// A connection on which nothing was said yet.
    pub(super) fn new(now: u64, number: u64, socket: OwnedFd) -> Self {
        Self { since: now, number, socket, ring: None, is_over: false }
    }

    /// Since when there is a connection on which nothing was said.
    pub(super) fn mute_since(&self) -> Option<u64> {
        self.ring.is_none().then_some(self.since)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Who sends; `None` before it has said so, and once it has gone.
    pub(super) fn station(&self) -> Option<Station> {
        self.sender().filter(|_| !self.is_over)
    }

    /// Who sends, or did before it went.
    pub(super) fn sender(&self) -> Option<Station> {
        self.ring.as_ref().map(|(station, _)| *station)
    }

    pub(super) fn is_from(&self, party: Party) -> bool {
        self.sender() == Some(party.station) && socket::process(&self.socket) == party.process
    }

    /// Whether the other side has gone.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Hears what the other side says by the socket; whether it has opened its ring just now.
    ///
    /// # Errors
    /// It has passed on no ring, or nothing that could be one.
    pub(super) fn heed(&mut self) -> io::Result<bool> {
        if self.ring.is_some() {
            self.is_over |= !socket::drain(&self.socket);
            return Ok(false);
        }
        let Some((station, file)) = socket::hear_hello(&self.socket)? else { return Ok(false) };
        self.ring = Some((station, Consumer::new(Mapped::adopt(&file)?)));
        Ok(true)
    }

    /// Takes up to [`RECEIVE_BATCH`] packets, and says whether there were any.
    pub(super) fn take(
        &mut self,
        (to, link): (Station, Link),
        packets: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) -> Result<bool, Lie> {
        let Some((from, ring)) = &mut self.ring else { return Ok(false) };
        let before = packets.len();
        while packets.len() - before < RECEIVE_BATCH && ring.has_packet()? {
            let mut packet = pool.take();
            let tag = ring.pop(packet.bytes_mut())?;
            packet.addressing = to.arrival(*from, link, tag.class, tag.hop_limit);
            packets.push(packet);
        }
        if ring.give_back() {
            socket::wake(&self.socket);
        }
        Ok(packets.len() > before)
    }

    /// Says that this side goes to sleep; whether there is nothing to do before.
    pub(super) fn prepare(&self) -> bool {
        !self.is_over && self.ring.as_ref().is_none_or(|(_, ring)| ring.prepare() == Ok(true))
    }

    /// Takes that back.
    pub(super) fn awake(&self) {
        self.ring.iter().for_each(|(_, ring)| ring.awake());
    }
}
