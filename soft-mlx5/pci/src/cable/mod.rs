//! The cables that a port can be plugged into.
//!
//! An InfiniBand port sends its packets over a [`Wire`], which routes by LID. An Ethernet port
//! sends whole frames unchanged: over a segment in memory, or as datagrams to other processes. RoCE
//! v2 packets keep the MAC and IP addresses that the guest chose.

mod hub;
mod tunnel;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::hub::Hub;
use self::tunnel::Tunnel;
use super::Settings;
use uverbs_soft::core::{Core, LinkLayer};
use uverbs_soft::packet::rocev2::{self, Framing};
use uverbs_soft::packet::{Addressing, Gid, Packet, PacketPool};
use uverbs_soft::wire::{Link, Station, Switch, UdpWire, Waker, Wire};

/// Bytes of the largest frame: a jumbo frame of 10000 bytes of payload with its headers.
pub(super) const MAX_FRAME: usize = 10_240;

/// A MAC address.
pub(super) type Mac = [u8; 6];

/// Most frames taken from a cable at a time.
const BATCH: usize = 64;

/// Carries whole Ethernet frames. It may lose them.
trait FrameWire: fmt::Debug + Send {
    /// Sends a frame.
    fn send(&mut self, frame: &[u8]);
    /// Replaces `frame` by a frame that has arrived; false if there is none.
    fn receive(&mut self, frame: &mut Vec<u8>) -> bool;
    /// A descriptor that becomes readable when frames arrive. A wire without one wakes the device
    /// through its [`Waker`].
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The network of the devices of one process: an InfiniBand switch and an Ethernet segment. Clones
/// refer to the same network.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    switch: Switch,
    hub: Hub,
}

impl Fabric {
    /// A network without devices.
    pub fn new() -> Self {
        Self::default()
    }
}

enum Plug {
    Nowhere,
    Packets(Box<dyn Wire>),
    Frames(Box<dyn FrameWire>),
}

/// The cable at a device's port. See [`PciDevice::plug`](super::PciDevice::plug).
pub struct Cable {
    plug: Plug,
    waker: Option<Arc<Waker>>,
    pool: PacketPool,
    packets: Vec<Packet>,
    frame: Vec<u8>,
}

impl fmt::Debug for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plugged = match &self.plug {
            Plug::Nowhere => "nowhere",
            Plug::Packets(_) => "packets",
            Plug::Frames(_) => "frames",
        };
        f.debug_struct("Cable").field("plug", &plugged).finish_non_exhaustive()
    }
}

impl Default for Cable {
    /// No cable: the link is up, as with a loopback plug, and the device receives its own packets.
    fn default() -> Self {
        Self::new(Plug::Nowhere, None)
    }
}

fn no_station() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the LID or GUID is not that of a station")
}

impl Cable {
    fn new(plug: Plug, waker: Option<Arc<Waker>>) -> Self {
        Self { plug, waker, pool: PacketPool::default(), packets: Vec::new(), frame: Vec::new() }
    }

    /// A cable for a device with these settings to the other devices of this process on `fabric`.
    ///
    /// # Errors
    /// `AddrInUse` if a device with this LID is plugged in already, `InvalidInput` if the LID is 0
    /// or multicast, and errors of creating an eventfd.
    pub fn to_fabric(settings: &Settings, fabric: &Fabric) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let plug = match settings.link {
            LinkLayer::InfiniBand => {
                let station = Station::from_lid(settings.lid).ok_or_else(no_station)?;
                Plug::Packets(Box::new(fabric.switch.attach(station, Some(waker.clone()))?))
            }
            LinkLayer::Ethernet => Plug::Frames(Box::new(fabric.hub.plug(waker.clone()))),
        };
        Ok(Self::new(plug, Some(waker)))
    }

    /// A cable for a device with the settings of a station ([`Settings::at`]) over UDP to devices
    /// of other processes on this machine. InfiniBand packets find their stations by LID; Ethernet
    /// frames go to all of `peers`.
    ///
    /// # Errors
    /// `AddrInUse` if another device has the station, `InvalidInput` if the settings are not a
    /// station's.
    pub fn over_udp(settings: &Settings, peers: &[Station]) -> io::Result<Self> {
        let station = settings.station().ok_or_else(no_station)?;
        let plug = match settings.link {
            LinkLayer::InfiniBand => {
                Plug::Packets(Box::new(UdpWire::bind(station, Link::InfiniBand)?))
            }
            LinkLayer::Ethernet => Plug::Frames(Box::new(Tunnel::bind(station, peers)?)),
        };
        Ok(Self::new(plug, None))
    }

    /// Appends the descriptors that become readable when packets or frames arrive.
    pub(super) fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.waker.as_ref().map(|waker| waker.as_fd()));
        match &self.plug {
            Plug::Nowhere => {}
            Plug::Packets(wire) => wire.poll_fds(fds),
            Plug::Frames(wire) => fds.extend(wire.poll_fd()),
        }
    }

    /// Call this before the device checks for packets and sleeps, so that later senders wake it.
    pub(super) fn prepare(&self) {
        if let Some(waker) = &self.waker {
            // It is not known here whether this waker ended the last sleep, so assume that it did.
            waker.end_sleep(true);
            waker.prepare_sleep();
        }
    }

    /// Joins a multicast group. An Ethernet segment delivers all groups.
    pub(super) fn join(&mut self, group: Gid) -> io::Result<()> {
        match &mut self.plug {
            Plug::Packets(wire) => wire.join(group),
            _ => Ok(()),
        }
    }

    /// Undoes one [`join`](Self::join).
    pub(super) fn leave(&mut self, group: Gid) {
        if let Plug::Packets(wire) = &mut self.plug {
            wire.leave(group);
        }
    }

    /// Sends the core's packets and frames.
    pub(super) fn send(&mut self, now: u64, core: &mut Core, mac: Mac) {
        while let Some(packet) = core.take_packet() {
            self.packets.push(packet);
            core.recycle(self.pool.take());
        }
        if self.packets.is_empty() {
            return;
        }
        match &mut self.plug {
            Plug::Packets(wire) => wire.send(now, &mut self.packets, &mut self.pool),
            Plug::Frames(wire) => {
                for packet in &self.packets {
                    self.frame.clear();
                    write_frame(packet, mac, &mut self.frame);
                    wire.send(&self.frame);
                }
            }
            Plug::Nowhere => {}
        }
        self.packets.drain(..).for_each(|packet| self.pool.give(packet));
    }

    /// Passes RoCE packets that arrived to the core, and other frames to `others`. True if there
    /// may be more.
    pub(super) fn receive(&mut self, now: u64, core: &mut Core, others: &mut Vec<Vec<u8>>) -> bool {
        match &mut self.plug {
            Plug::Nowhere => false,
            Plug::Packets(wire) => {
                let read = wire.receive(now, &mut self.packets, &mut self.pool);
                for packet in self.packets.drain(..) {
                    core.receive(now, packet);
                    self.pool.give(core.empty_packet());
                }
                read != 0
            }
            Plug::Frames(wire) => {
                for _ in 0..BATCH {
                    if !wire.receive(&mut self.frame) {
                        return false;
                    }
                    match rocev2::read_ethernet(&self.frame) {
                        Ok(packet) => deliver(now, core, packet),
                        Err(_) => others.push(std::mem::take(&mut self.frame)),
                    }
                }
                true
            }
        }
    }
}

impl Cable {
    /// Sends an Ethernet frame. An InfiniBand port has none.
    pub(super) fn send_frame(&mut self, frame: &[u8]) {
        if let Plug::Frames(wire) = &mut self.plug {
            wire.send(frame);
        }
    }
}

fn write_frame(packet: &Packet, from: Mac, frame: &mut Vec<u8>) {
    let route = &packet.addressing;
    rocev2::write_ethernet(packet, [from, destination_mac(route)], Framing::of(route), frame);
}

/// The MAC address that the guest resolved. Without one the frame is flooded to the whole segment.
fn destination_mac(route: &Addressing) -> Mac {
    const BROADCAST: Mac = [0xff; 6];
    if route.destination_mac == [0; 6] { BROADCAST } else { route.destination_mac }
}

/// Delivers a frame that a segment brought. A port accepts only frames to one of its addresses or
/// to a group.
fn deliver(now: u64, core: &mut Core, packet: Packet) {
    let to = packet.addressing.destination;
    if to.is_multicast() || core.config().gids.contains(&to) {
        core.receive(now, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_soft::packet::{Bth, Opcode, Psn};

    fn frame(route: Addressing) -> Vec<u8> {
        let mut packet = Packet::new();
        packet.start(route, Bth::new(Opcode::UD_SEND_ONLY, 0xffff, 1, Psn::new(0)));
        packet.bytes_mut().extend([0; 8]);
        packet.payload(256);
        let mut frame = Vec::new();
        write_frame(&packet, [2, 0, 0, 0, 0, 1], &mut frame);
        frame
    }

    #[test]
    fn a_frame_goes_to_the_resolved_address_from_the_port_of_its_flow_label() {
        let gid = |last| Gid::from_ipv4([10, 9, 0, last].into());
        let local = |last| Gid::link_local([0, 0, 0, 0xff, 0xfe, 0, 0, last]);
        for (from, to, source_port) in [(gid(1), gid(2), 34), (local(1), local(2), 54)] {
            let route = Addressing {
                destination_mac: [2, 0, 0, 0, 0, 2],
                flow_label: 0x2_2b3b,
                ..Addressing::roce(from, to)
            };
            let bytes = frame(route);
            assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            assert_eq!(bytes[source_port..][..2], [0xeb, 0x33]);
            let arrived = rocev2::read_ethernet(&bytes).unwrap();
            assert_eq!((arrived.addressing.source, arrived.addressing.destination), (from, to));
            let flooded = frame(Addressing { destination_mac: [0; 6], ..route });
            assert_eq!(flooded[..6], [0xff; 6], "a path without an address");
        }
    }
}
