//! The whole loopback network: a switch for the devices of this process, UDP for all others.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{Link, Station, Switch, SwitchPort, UdpWire, Waker, Wire};
use crate::PerProcess;
use crate::packet::{Gid, Packet, PacketPool};

/// The switch that all devices of this process share. To a forked child its parent's devices are another process's.
static PROCESS_SWITCH: PerProcess<Switch> = PerProcess::new();

/// A station on the loopback network. Unicast packets to devices of this process go through a
/// switch in memory, everything else as RoCEv2 over loopback UDP.
#[derive(Debug)]
pub struct Network {
    port: SwitchPort,
    udp: UdpWire,
    /// Looks at the sockets that found nothing, since the last packet or sleep.
    silent: Cell<u32>,
}

/// A look at the sockets is a system call, which a device that only talks within its process need not make each time:
/// after so many that found nothing, it is made every eighth time, until a packet comes or the device sleeps.
const SILENCE: u32 = 64;

impl Network {
    /// Takes a free station, found by binding; see [`UdpWire::bind_any`].
    ///
    /// # Errors
    /// As [`UdpWire::bind_any`].
    pub fn join_any(link: Link, waker: Option<Arc<Waker>>) -> io::Result<Self> {
        Self::with(UdpWire::bind_any(link)?, waker)
    }

    /// Takes this station.
    ///
    /// # Errors
    /// `AddrInUse` if another device has it.
    pub fn join_as(station: Station, link: Link, waker: Option<Arc<Waker>>) -> io::Result<Self> {
        Self::with(UdpWire::bind(station, link)?, waker)
    }

    fn with(udp: UdpWire, waker: Option<Arc<Waker>>) -> io::Result<Self> {
        let port = PROCESS_SWITCH.get().attach(udp.station(), waker)?;
        Ok(Self { port, udp, silent: Cell::new(0) })
    }

    /// Who this is.
    pub fn station(&self) -> Station {
        self.udp.station()
    }

    /// The wire to other processes.
    pub fn udp(&self) -> &UdpWire {
        &self.udp
    }

    /// The wire to devices of this process.
    pub fn port(&self) -> &SwitchPort {
        &self.port
    }
}

impl Wire for Network {
    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let mut kept = 0;
        for index in 0..packets.len() {
            let packet = std::mem::replace(&mut packets[index], Packet::unallocated());
            // Members of a group have a UDP socket for it, also those of this process.
            let left = if packet.addressing.is_multicast() {
                Some(packet)
            } else {
                self.port.try_send(packet, pool)
            };
            if let Some(packet) = left {
                packets[kept] = packet;
                kept += 1;
            }
        }
        packets.truncate(kept);
        if kept != 0 {
            self.udp.send(now, packets, pool);
        }
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.port.receive(now, packets, pool);
        let silent = self.silent.get().wrapping_add(1);
        self.silent.set(silent);
        if silent > SILENCE && silent % 8 != 0 {
            return;
        }
        let before = packets.len();
        self.udp.receive(now, packets, pool);
        if packets.len() > before {
            self.silent.set(0);
        }
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        // Whatever ends the sleep is looked for at once.
        self.silent.set(0);
        self.udp.poll_fds(fds);
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.udp.join(group)
    }

    fn leave(&mut self, group: Gid) {
        self.udp.leave(group);
    }
}
