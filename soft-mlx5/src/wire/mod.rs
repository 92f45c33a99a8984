//! Wires: how packets travel from one device to another.
//!
//! A [`Wire`] is unreliable like any network: it may lose packets, and the transport recovers.
//! Wires stack: [`Pcap`] records the packets of the wire below, and
//! [`Faulty`](crate::fault::Faulty) damages them. At the bottom are [`SwitchPort`] (devices of one
//! process), [`UdpWire`] (RoCEv2 over loopback, devices of different processes), [`Network`] (both,
//! and [`Rings`] of memory shared between processes), and [`RoutedWire`] (RoCEv2 at an address of
//! any interface).
//!
//! InfiniBand devices use the same wires: their LIDs name stations, see [`Station`].

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
mod skips;
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
pub(crate) use udp::SOCKET_DATAGRAMS;
pub use udp::UdpWire;
pub use udp::enlarge;
pub use waker::Waker;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::packet::{Gid, Packet, PacketPool};

/// Most packets that one call of [`Wire::receive`] takes from each source of a wire.
pub const RECEIVE_BATCH: usize = 32;

/// Carries packets between devices. All times are nanoseconds of the device's clock.
pub trait Wire: Send {
    /// Sends all of `packets` and leaves it empty. Requests and responses of a queue pair are each
    /// sent in order. Packets that cannot be sent are lost and counted. Unused buffers go to
    /// `pool`.
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool);

    /// As [`Wire::send`], except that a sleeping receiver may be woken only by the next `send` or
    /// [`Wire::wake_receivers`]. When this returns, the packets no longer depend on this process,
    /// except those that [`Wire::waiting`] counts: they arrive even if the process ends at once.
    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.send(now, packets, pool);
    }

    /// Wakes the receivers that [`Wire::send_quietly`] left asleep.
    fn wake_receivers(&mut self) {}

    /// Whether sending packets by one [`Wire::send`] is cheaper for sender and receiver than by
    /// two. If so, an acknowledgement waits for the program's next message.
    fn joins_packets(&self) -> bool {
        false
    }

    /// How many packets wait in this process until their receivers have space for them.
    fn waiting(&self) -> usize {
        0
    }

    /// Appends received packets, up to [`RECEIVE_BATCH`] of each source, without waiting. Returns
    /// how many it read, including those that it dropped. If that is 0, no packets are waiting,
    /// except in files that it skipped.
    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize;

    /// The stations of other processes that have ended since the last call, for example because
    /// they were killed. All their packets have been received.
    fn take_ended(&mut self, _now: u64) -> Vec<Station> {
        Vec::new()
    }

    /// When the wire must be called again even if no packet arrives, because it holds packets back.
    fn next_wake(&self) -> Option<u64> {
        None
    }

    /// Appends the file descriptors that become readable when packets arrive from now on, until the
    /// next [`Wire::receive`]. Wires without one wake the device through its [`Waker`].
    fn poll_fds<'a>(&'a self, _fds: &mut Vec<BorrowedFd<'a>>) {}

    /// Lets the next [`Wire::receive`] skip the files of [`Wire::poll_fds`], because the caller has
    /// polled them since the last call, or will poll them soon. A wire still reads them every few
    /// calls.
    fn skip_files(&mut self) {}

    /// Makes the next [`Wire::receive`] read the files of [`Wire::poll_fds`].
    fn look_at_files(&mut self) {}

    /// Joins a multicast group. Joins are counted. A wire without other stations has nothing to do.
    ///
    /// # Errors
    /// Errors of the operating system where a group needs its own socket.
    fn join(&mut self, _group: Gid) -> io::Result<()> {
        Ok(())
    }

    /// Undoes one [`Wire::join`]; unknown groups are ignored.
    fn leave(&mut self, _group: Gid) {}
}

/// Methods that forward calls to an inner wire, `$wire`.
macro_rules! pass_calls_on {
    ($self:ident => $wire:expr) => {
        fn wake_receivers(&mut $self) {
            $wire.wake_receivers();
        }

        fn joins_packets(&$self) -> bool {
            $wire.joins_packets()
        }

        fn waiting(&$self) -> usize {
            $wire.waiting()
        }

        fn take_ended(&mut $self, now: u64) -> Vec<$crate::wire::Station> {
            $wire.take_ended(now)
        }

        fn poll_fds<'a>(&'a $self, fds: &mut Vec<std::os::fd::BorrowedFd<'a>>) {
            $wire.poll_fds(fds);
        }

        fn skip_files(&mut $self) {
            $wire.skip_files();
        }

        fn look_at_files(&mut $self) {
            $wire.look_at_files();
        }

        fn join(&mut $self, group: $crate::packet::Gid) -> std::io::Result<()> {
            $wire.join(group)
        }

        fn leave(&mut $self, group: $crate::packet::Gid) {
            $wire.leave(group);
        }
    };
}
pub(crate) use pass_calls_on;

impl<W: Wire + ?Sized> Wire for Box<W> {
    pass_calls_on! { self => (**self) }

    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        (**self).send(now, packets, pool);
    }

    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        (**self).send_quietly(now, packets, pool);
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        (**self).receive(now, packets, pool)
    }

    fn next_wake(&self) -> Option<u64> {
        (**self).next_wake()
    }
}

/// Whether an error only means that the process or the machine has no descriptors or memory left,
/// and so says nothing about other processes.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error.raw_os_error().is_some_and(|errno| shortages.contains(&errno))
}

/// The wire of a device that only reaches itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWire;

impl Wire for NoWire {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        packets.drain(..).for_each(|packet| pool.give(packet));
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        0
    }
}

/// The counters of a wire. Shared, so that they can be read while the device runs.
#[derive(Debug, Default)]
pub struct WireCounters {
    /// Packets sent.
    pub sent: AtomicU64,
    /// Packets received and passed on.
    pub received: AtomicU64,
    /// Packets dropped because of a wrong invariant CRC.
    pub bad_icrc: AtomicU64,
    /// Datagrams dropped because they are not packets: too short, too long, or from a wrong port.
    /// Also rings that ended because the other side wrote invalid values.
    pub malformed: AtomicU64,
    /// Packets dropped because their destination is not on this network.
    pub unroutable: AtomicU64,
    /// Packets that the operating system or a full queue refused.
    pub refused: AtomicU64,
}

impl WireCounters {
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
