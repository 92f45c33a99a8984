//! RoCEv2 over loopback UDP: devices of different processes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::sys::socket::{self, sockopt};

use super::mmsg::{self, Datagram, Receiver, Run};
use super::multicast::{GroupInterface, group_address, receive_headers};
use super::private::PrivateName;
use super::ring;
use super::station::class_and_ttl;
use super::{Groups, Link, RECEIVE_BATCH, Station, Wire, WireCounters};
use crate::packet::rocev2::{self, Framing, UDP_PORT};
use crate::packet::{Addressing, Gid, Packet, PacketPool};

/// A UDP socket on port 4791 of a station's address. It sends RoCEv2 packets as a NIC would, with a
/// correct invariant CRC, so capture programs can decode them.
///
/// The CRC covers IP and UDP headers, which the kernel writes. The socket is unconnected and has
/// path MTU discovery on, for which Linux sends identification 0 and "don't fragment"
/// ([`Framing::default`]).
#[derive(Debug)]
pub struct UdpWire {
    socket: UdpSocket,
    station: Station,
    link: Link,
    groups: Groups,
    /// The station's name for shared memory; `None` after the device has taken it to listen.
    name: Option<OwnedFd>,
    /// Keeps that name, if it is a private one of this user.
    _private: Option<PrivateName>,
    /// Always `Some`, except while it is in use.
    receiver: Option<Receiver>,
    /// Empty between two sends; kept for its allocation.
    runs: Vec<Run>,
    counters: Arc<WireCounters>,
}

/// How many consecutive stations are tried.
const TRIED: u32 = 1000;
/// The first station for private names, far from those that the same process tries first, because
/// checking a station for a private name means connecting to it.
const PRIVATE: u32 = Station::CANDIDATES / 2;

/// Stations to try. Neighbouring process ids start far apart, so that they rarely try the same
/// ones.
fn candidates(offset: u32) -> impl Iterator<Item = Station> {
    let first = std::process::id().wrapping_mul(641).wrapping_add(offset);
    (0..TRIED).map(move |n| Station::candidate(first.wrapping_add(n)))
}

fn all_taken() -> io::Error {
    let text = format!(
        "{TRIED} addresses of 127.18.0.0/16 in a row are taken, or UDP port {UDP_PORT} of all addresses is"
    );
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

/// Requested socket buffer in bytes, for several hundred packets of 4096 bytes. The kernel grants
/// at most `net.core.rmem_max`, unless the process has CAP_NET_ADMIN.
const SOCKET_BUFFER: usize = 8 << 20;

/// More datagrams than a socket holds: the kernel doubles the size of the buffer, and counts more
/// than 512 bytes for the shortest datagram (`SKB_TRUESIZE` in include/linux/skbuff.h).
pub(crate) const SOCKET_DATAGRAMS: usize = 2 * SOCKET_BUFFER / 512;

impl UdpWire {
    /// Binds the station's address.
    ///
    /// # Errors
    /// `AddrInUse` if another device of this machine has the station, or another program has port
    /// 4791 of all addresses (as the kernel's own soft RoCE driver does).
    pub fn bind(station: Station, link: Link) -> io::Result<Self> {
        let socket = UdpSocket::bind((station.address(), UDP_PORT))?;
        // Held even if no ring listens on it, so that no other process receives this station's
        // packets.
        let name = ring::claim(station)?;
        Self::new(socket, station, link, name)
    }

    fn new(
        socket: UdpSocket,
        station: Station,
        link: Link,
        name: Option<OwnedFd>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        configure(&socket)?;
        Ok(Self {
            socket,
            station,
            link,
            groups: Groups::on(GroupInterface::V4(Ipv4Addr::LOCALHOST)),
            name,
            _private: None,
            receiver: Some(Receiver::new()),
            runs: Vec::new(),
            counters: WireCounters::new(),
        })
    }

    /// Takes a station that no other device of this user has, under a private name. Another user
    /// may have port 4791 of its address, so packets to this station come only through shared
    /// memory, and its UDP packets have another source port.
    ///
    /// # Errors
    ///
    /// Errors of taking the name; `AddrInUse` as for [`UdpWire::bind_any`].
    pub(super) fn bind_privately(link: Link) -> io::Result<Self> {
        for station in candidates(PRIVATE).filter(|station| !ring::is_own(*station)) {
            if let Some((private, name)) = PrivateName::claim(station)? {
                let socket = UdpSocket::bind((station.address(), 0))?;
                let wire = Self::new(socket, station, link, Some(name))?;
                return Ok(Self { _private: Some(private), ..wire });
            }
        }
        Err(all_taken())
    }

    /// Binds the first free station, starting at one derived from the process id.
    ///
    /// # Errors
    /// `AddrInUse` if a thousand consecutive stations are taken, else the error of binding.
    pub fn bind_any(link: Link) -> io::Result<Self> {
        // If a device of this user has a station under a private name, the station is not free,
        // even if its port is.
        for station in candidates(0).filter(|station| !ring::is_private(*station)) {
            match Self::bind(station, link) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                result => return result,
            }
        }
        Err(all_taken())
    }

    /// The station's name for shared memory, to listen on; `None` if there is none.
    pub(super) fn take_name(&mut self) -> Option<OwnedFd> {
        self.name.take()
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// The socket of unicast packets.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How often the sockets were read.
    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.receiver.as_ref().map_or(0, |receiver| receiver.calls)
    }

    /// Whether there are more sockets, of multicast groups.
    pub(super) fn has_groups(&self) -> bool {
        self.groups.len() != 0
    }

    /// The station whose packets this wire receives.
    pub fn station(&self) -> Station {
        self.station
    }

    /// The counters of the wire.
    pub fn counters(&self) -> Arc<WireCounters> {
        self.counters.clone()
    }

    /// Appends the CRC to every packet that can be sent and drops the others.
    fn seal(&self, packets: &mut Vec<Packet>) {
        let before = packets.len();
        packets.retain_mut(|packet| match destination(&packet.addressing) {
            Some(address) => {
                seal(packet, self.station.address(), address);
                true
            }
            None => false,
        });
        WireCounters::add(&self.counters.unroutable, before - packets.len());
    }

    /// The addressing of a valid datagram; `None` for an invalid one, which is counted.
    fn check(&self, datagram: &Datagram<'_>, group: Option<Gid>) -> Option<Addressing> {
        let source = match datagram.source.ip() {
            IpAddr::V4(source) => Station::new(source),
            IpAddr::V6(_) => None,
        };
        let parts = rocev2::split_icrc(datagram.bytes).ok().filter(|_| !datagram.truncated);
        let (Some(source), Some((transport, crc))) = (source, parts) else {
            WireCounters::add(&self.counters.malformed, 1);
            return None;
        };
        if group.is_some() && source == self.station {
            return None;
        }
        let destination = group.map_or(self.station.address(), group_address);
        let framing = Framing { source_port: datagram.source.port(), ..Framing::default() };
        if rocev2::icrc_v4(source.address(), destination, transport, framing) != crc {
            WireCounters::add(&self.counters.bad_icrc, 1);
            return None;
        }
        let route = self.station.arrival(source, self.link, datagram.class, datagram.hop_limit);
        Some(match group {
            Some(group) => Addressing { destination: group, ..route },
            None => route,
        })
    }
}

fn configure(socket: &UdpSocket) -> io::Result<()> {
    let (level, option) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    mmsg::set_option(socket.as_fd(), level, option, libc::IP_PMTUDISC_DO)?;
    receive_headers(socket)?;
    // Multicast stays on the loopback interface, which these addresses belong to.
    mmsg::set_multicast_interface(socket.as_fd(), Ipv4Addr::LOCALHOST)?;
    enlarge(socket);
    Ok(())
}

/// Larger socket buffers mean less loss under load, but are not required.
pub fn enlarge(socket: &UdpSocket) {
    if socket::setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
        let _ = socket::setsockopt(socket, sockopt::RcvBuf, &SOCKET_BUFFER);
    }
    if socket::setsockopt(socket, sockopt::SndBufForce, &SOCKET_BUFFER).is_err() {
        let _ = socket::setsockopt(socket, sockopt::SndBuf, &SOCKET_BUFFER);
    }
}

fn destination(route: &Addressing) -> Option<Ipv4Addr> {
    if route.is_multicast() {
        return Some(group_address(route.destination));
    }
    Station::destination(route).map(Station::address)
}

fn seal(packet: &mut Packet, source: Ipv4Addr, destination: Ipv4Addr) {
    let crc = rocev2::icrc_v4(source, destination, packet.bytes(), Framing::default());
    packet.bytes_mut().extend_from_slice(&crc.to_le_bytes());
}

fn run(packet: &Packet) -> Run {
    let (class, hop_limit) = class_and_ttl(&packet.addressing);
    let destination = destination(&packet.addressing).unwrap_or(Ipv4Addr::UNSPECIFIED);
    Run { packets: 1, destination: (destination, UDP_PORT).into(), class, hop_limit }
}

/// Sends packets that have their CRC, in messages as described by `runs`. Packets that the
/// operating system refuses are dropped and counted. If it refuses to segment a message, returns
/// how many packets are left.
pub(super) fn send_sealed(
    socket: &UdpSocket,
    packets: &[Packet],
    runs: &[Run],
    counters: &WireCounters,
) -> usize {
    let (mut packets, mut runs) = (packets, runs);
    while let Some(first) = runs.first() {
        let sent = mmsg::send(socket.as_fd(), packets, runs);
        // The error belongs to the first run, which is dropped; sending continues with the next
        // one.
        let (done, counter) = match sent {
            Ok(sent) => (sent, &counters.sent),
            Err(error) if first.packets > 1 && mmsg::refuses_to_cut(&error) => break,
            Err(_) => (1, &counters.refused),
        };
        let (over, left) = runs.split_at(done);
        let count = over.iter().map(|run| run.packets).sum();
        WireCounters::add(counter, count);
        (packets, runs) = (&packets[count..], left);
    }
    packets.len()
}

/// Receives up to [`RECEIVE_BATCH`] datagrams from one socket. `check` returns the source of a
/// valid datagram, and counts an invalid one. Returns how many datagrams were read, valid or not.
pub(super) fn drain(
    socket: BorrowedFd<'_>,
    receiver: &mut Receiver,
    counters: &WireCounters,
    (packets, pool): (&mut Vec<Packet>, &mut PacketPool),
    check: impl Fn(&Datagram<'_>) -> Option<Addressing>,
) -> usize {
    if receiver.is_empty() {
        receiver.receive(socket);
    }
    let (mut read, mut received) = (0, 0);
    while read < RECEIVE_BATCH {
        let Some(datagram) = receiver.take() else { break };
        read += 1;
        let Some(route) = check(&datagram) else { continue };
        let mut packet = pool.take();
        packet.fill(route, &datagram.bytes[..datagram.bytes.len() - rocev2::ICRC_LEN]);
        packets.push(packet);
        received += 1;
    }
    WireCounters::add(&counters.received, received);
    read
}

impl Wire for UdpWire {
    fn send(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.seal(packets);
        self.runs.extend(packets.iter().map(run));
        send_sealed(&self.socket, packets, &self.runs, &self.counters);
        self.runs.clear();
        packets.drain(..).for_each(|packet| pool.give(packet));
    }

    fn receive(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        let Some(mut receiver) = self.receiver.take() else { return 0 };
        let mut read = 0;
        let sockets = (0..self.groups.len()).map(|index| self.groups.get(index));
        let sockets = sockets.map(|(socket, group)| (socket, Some(group)));
        for (socket, group) in std::iter::once((self.socket.as_fd(), None)).chain(sockets) {
            let into = (&mut *packets, &mut *pool);
            read += drain(socket, &mut receiver, &self.counters, into, |datagram| {
                self.check(datagram, group)
            });
        }
        self.receiver = Some(receiver);
        read
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.socket.as_fd());
        fds.extend((0..self.groups.len()).map(|index| self.groups.get(index).0));
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.groups.join(group)
    }

    fn leave(&mut self, group: Gid) {
        self.groups.leave(group);
    }
}
