//! How packets leave a device and reach another one.
//!
//! A [`Wire`] is unreliable like any network: packets may be lost, the transport above recovers.
//! Wires stack: [`Pcap`] records and [`Faulty`](crate::fault::Faulty) damages what passes to and
//! from the wire below. At the bottom are [`SwitchPort`] (devices of one process), [`UdpWire`]
//! (RoCEv2 over loopback, devices of different processes), [`Network`], which is both and uses
//! [`Rings`] of memory shared between processes besides, and [`RoutedWire`] (RoCEv2 at an address
//! of any interface).
//!
//! InfiniBand devices use the same wires: their LIDs stand for stations, see [`Station`].

mod host;
mod mmsg;
mod multicast;
mod neighbour;
mod network;
mod pcap;
mod port_holder;
mod private;
mod ring;
mod routed;
mod segments;
mod station;
mod switch;
mod udp;
mod waker;

pub use host::{HostAddress, Interface, Place, address_of, gid_of};
pub use multicast::Groups;
pub use neighbour::Neighbours;
pub use network::{Carrier, Network};
pub use pcap::{LinkType, Pcap};
pub use ring::Rings;
pub use routed::RoutedWire;
pub use station::{Link, Station};
pub use switch::{Switch, SwitchPort};
pub use udp::UdpWire;
pub use udp::enlarge;
pub use waker::Waker;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::packet::{Gid, Packet, PacketPool};

/// Packets that one call of [`Wire::receive`] takes from each of a wire's sources at most.
pub const RECEIVE_BATCH: usize = 32;

/// A way for packets to leave a device and reach it. All times are nanoseconds of the device's
/// clock.
pub trait Wire: Send {
    /// Takes all packets out of `packets` and sends them in order. What cannot be sent is lost
    /// and counted. Buffers no longer needed go to `pool`.
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool);

    /// As [`Wire::send`], except that a receiver that sleeps may be left asleep until the next call
    /// of `send` or [`Wire::wake_receivers`]. The packets themselves are out of this process's
    /// hands when this returns: they arrive even if it ends at once.
    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.send(now, packets, pool);
    }

    /// Wakes the receivers that [`Wire::send_quietly`] left asleep.
    fn wake_receivers(&mut self) {}

    /// Appends what has arrived, up to [`RECEIVE_BATCH`] packets of each source, without
    /// waiting.
    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool);

    /// The stations of other processes that have ended since the last call, without a word if they
    /// were killed. All that they sent has been received before.
    fn take_ended(&mut self, _now: u64) -> Vec<Station> {
        Vec::new()
    }

    /// When the wire has to be called again though nothing arrives (packets held back).
    fn next_wake(&self) -> Option<u64> {
        None
    }

    /// Appends the file descriptors that become readable when packets arrive from now on, until the
    /// next [`Wire::receive`]. Wires without one wake the device through its [`Waker`].
    fn poll_fds<'a>(&'a self, _fds: &mut Vec<BorrowedFd<'a>>) {}

    /// The next [`Wire::receive`] need not look at the files of [`Wire::poll_fds`]: the caller
    /// polls them soon after. A wire looks at them every few calls nevertheless.
    fn skip_files(&mut self) {}

    /// Begins to receive a multicast group. Joining twice counts twice.
    ///
    /// # Errors
    /// Errors of the operating system where a group needs its own socket.
    fn join(&mut self, group: Gid) -> io::Result<()>;

    /// Undoes one [`Wire::join`]; unknown groups are ignored.
    fn leave(&mut self, group: Gid);
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        (**self).send(now, packets, pool);
    }

    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        (**self).send_quietly(now, packets, pool);
    }

    fn wake_receivers(&mut self) {
        (**self).wake_receivers();
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        (**self).receive(now, packets, pool);
    }

    fn take_ended(&mut self, now: u64) -> Vec<Station> {
        (**self).take_ended(now)
    }

    fn next_wake(&self) -> Option<u64> {
        (**self).next_wake()
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        (**self).poll_fds(fds);
    }

    fn skip_files(&mut self) {
        (**self).skip_files();
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: Gid) {
        (**self).leave(group);
    }
}

/// The wire of a device that reaches only itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWire;

impl Wire for NoWire {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        packets.drain(..).for_each(|packet| pool.give(packet));
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) {}

    fn join(&mut self, _: Gid) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: Gid) {}
}

/// What a wire counts. Shared, so that it can be read while the device runs.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets sent.
    pub sent: AtomicU64,
    /// Packets received and passed on.
    pub received: AtomicU64,
    /// Packets dropped because of a wrong invariant CRC.
    pub bad_icrc: AtomicU64,
    /// Datagrams dropped because they are no packets: too short, too long, wrong port. Rings ended
    /// because what the other side did cannot be.
    pub malformed: AtomicU64,
    /// Packets dropped because their destination is not on this network.
    pub unroutable: AtomicU64,
    /// Packets that the operating system or a full queue refused.
    pub refused: AtomicU64,
}

impl Counters {
    /// New counters at zero.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn add(counter: &AtomicU64, count: usize) {
        if count != 0 {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
