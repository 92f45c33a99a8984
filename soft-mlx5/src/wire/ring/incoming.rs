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
    /// The sending station and its ring; `None` until its hello has arrived.
    ring: Option<(Station, Consumer<Mapped>)>,
    /// The sender has closed its end. The packets that it sent are still in the ring.
    is_over: bool,
}

impl Incoming {
    /// A connection on which no hello has arrived yet.
    pub(super) fn new(now: u64, number: u64, socket: OwnedFd) -> Self {
        Self { since: now, number, socket, ring: None, is_over: false }
    }

    /// When the connection was made, if no hello has arrived on it.
    pub(super) fn mute_since(&self) -> Option<u64> {
        self.ring.is_none().then_some(self.since)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The sender; `None` before its hello, and after it has closed its end.
    pub(super) fn station(&self) -> Option<Station> {
        self.sender().filter(|_| !self.is_over)
    }

    /// The sender, also after it has closed its end; `None` before its hello.
    pub(super) fn sender(&self) -> Option<Station> {
        self.ring.as_ref().map(|(station, _)| *station)
    }

    pub(super) fn is_from(&self, party: Party) -> bool {
        self.sender() == Some(party.station) && socket::process(&self.socket) == party.process
    }

    /// Whether the sender has closed its end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reads the socket: first the hello, then the bytes that wake this side. Returns whether the
    /// hello, which passes the ring's file, arrived in this call.
    ///
    /// # Errors
    ///
    /// The sender passed no file, or one that is not a ring.
    pub(super) fn heed(&mut self) -> io::Result<bool> {
        if self.ring.is_some() {
            self.is_over |= !socket::drain(&self.socket);
            return Ok(false);
        }
        let Some((station, file)) = socket::hear_hello(&self.socket)? else { return Ok(false) };
        self.ring = Some((station, Consumer::new(Mapped::adopt(&file)?)));
        Ok(true)
    }

    /// Takes up to [`RECEIVE_BATCH`] packets; returns whether there were any.
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

    /// Tells the sender that this side is about to sleep. Returns whether it may: it may not if
    /// there are packets.
    pub(super) fn prepare(&self) -> bool {
        !self.is_over && self.ring.as_ref().is_none_or(|(_, ring)| ring.prepare() == Ok(true))
    }

    /// Tells the sender that this side is awake.
    pub(super) fn awake(&self) {
        self.ring.iter().for_each(|(_, ring)| ring.awake());
    }
}
