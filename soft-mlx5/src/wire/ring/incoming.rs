//! The receiving end of a ring from a station of another process.

use std::io;
use std::os::fd::OwnedFd;

use super::memory::Mapped;
use super::suspects::PeerProcess;
use super::{Consumer, Corrupt, socket};
use crate::packet::{Packet, PacketPool};
use crate::wire::{Link, RECEIVE_BATCH, Station};

pub(super) struct Incoming {
    since: u64,
    number: u64,
    socket: OwnedFd,
    /// The sending station and its ring; `None` until its hello has arrived.
    ring: Option<(Station, Consumer<Mapped>)>,
    /// The sender has closed its end. Its packets may still be in the ring.
    is_closed: bool,
}

impl Incoming {
    /// A connection on which no hello has arrived yet.
    pub(super) fn new(now: u64, number: u64, socket: OwnedFd) -> Self {
        Self { since: now, number, socket, ring: None, is_closed: false }
    }

    /// The time at which the connection was accepted, if no hello has arrived on it.
    pub(super) fn without_hello_since(&self) -> Option<u64> {
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
        self.sender().filter(|_| !self.is_closed)
    }

    /// The sender, also after it has closed its end; `None` before its hello.
    pub(super) fn sender(&self) -> Option<Station> {
        self.ring.as_ref().map(|(station, _)| *station)
    }

    pub(super) fn is_from(&self, peer: PeerProcess) -> bool {
        self.sender() == Some(peer.station) && socket::process(&self.socket) == peer.process
    }

    /// Whether the sender has closed its end.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads the socket: first the hello, then the bytes that wake this side. Returns whether the
    /// hello, which passes the ring's file, arrived in this call.
    ///
    /// # Errors
    ///
    /// The sender passed no file, or one that is not a ring.
    pub(super) fn read_socket(&mut self) -> io::Result<bool> {
        if self.ring.is_some() {
            self.is_closed |= !socket::drain(&self.socket);
            return Ok(false);
        }
        let Some((station, file)) = socket::receive_hello(&self.socket)? else { return Ok(false) };
        self.ring = Some((station, Consumer::new(Mapped::adopt(&file)?)));
        Ok(true)
    }

    /// Appends up to [`RECEIVE_BATCH`] packets to `packets`; returns whether there were any.
    pub(super) fn take(
        &mut self,
        (to, link): (Station, Link),
        packets: &mut Vec<Packet>,
        pool: &mut PacketPool,
    ) -> Result<bool, Corrupt> {
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

    /// Announces to the sender that this side sleeps. Returns false if it must not sleep, because
    /// there are packets.
    pub(super) fn prepare_sleep(&self) -> bool {
        !self.is_closed
            && self.ring.as_ref().is_none_or(|(_, ring)| ring.prepare_sleep() == Ok(true))
    }

    /// Withdraws the announcement of `prepare_sleep`.
    pub(super) fn end_sleep(&self) {
        self.ring.iter().for_each(|(_, ring)| ring.end_sleep());
    }
}
