//! RoCEv2 over UDP at an address of any interface: devices of this machine and others, adapters,
//! the kernel's software RoCE.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};

use super::host::{HostAddress, Interface, gid_of};
use super::mmsg::{self, Datagram, Receiver, Run};
use super::multicast::{GroupInterface, receive_headers};
use super::segments::{requests_first, run_length};
use super::skips::Skips;
use super::udp::{drain, enlarge, send_sealed};
use super::{Groups, Link, Wire, WireCounters, port_holder};
use crate::packet::rocev2::{self, Framing, UDP_PORT};
use crate::packet::{Addressing, ETHERNET_GROUP, Gid, Packet, PacketPool};

/// A device's sockets at one address of an interface.
///
/// Packets arrive at port 4791. They are sent from the port that follows from the flow label
/// ([`Addressing::source_port`]), so that routers spread flows over paths; or from 4791 if that
/// port is taken, or if 64 others are in use.
///
/// Linux sends these packets with identification 0 and "don't fragment", and ignores reports of
/// routers about their MTU (`IP_PMTUDISC_PROBE`), as an adapter does. So forged messages cannot
/// make packets smaller.
///
/// Packets of the same path and length are sent as one message, which the kernel segments as late
/// as possible; the identification then counts from 0 (`inet_gso_segment` in net/ipv4/af_inet.c).
/// Datagrams of one sender that the kernel has joined arrive as one message.
#[derive(Debug)]
pub struct RoutedWire {
    interface: Interface,
    socket: UdpSocket,
    outlets: Outlets,
    groups: Groups,
    /// Always `Some`, except while it is in use.
    receiver: Option<Receiver>,
    /// The receiver of the groups. Their datagrams are not joined, so it is empty between two
    /// calls.
    group_receiver: Option<Receiver>,
    /// Whether the kernel cuts messages into packets.
    cuts: bool,
    /// Calls of `receive` that leave the sockets unread.
    skips: Skips,
    /// Empty between two sends; kept for its allocation.
    runs: Vec<Run>,
    counters: Arc<WireCounters>,
}

/// Most source ports of a device, in addition to 4791. Each takes a descriptor.
const MAX_PORTS: usize = 64;

/// Sockets that are only used to send, by port. `None`: another program has the port.
#[derive(Debug, Default)]
struct Outlets(Vec<(u16, Option<UdpSocket>)>);

impl Outlets {
    /// Opens the socket for a port if necessary; returns its index.
    fn find(&mut self, interface: &Interface, port: u16) -> Option<usize> {
        let known = self.0.iter().position(|(known, _)| *known == port);
        if known.is_some() || self.0.len() >= MAX_PORTS || port == UDP_PORT {
            return known;
        }
        let socket = open(interface, port).and_then(|socket| {
            // Nothing is read from this socket: datagrams that arrive soon fill its small buffer.
            setsockopt(&socket, sockopt::RcvBuf, &0)?;
            Ok(socket)
        });
        self.0.push((port, socket.ok()));
        Some(self.0.len() - 1)
    }

    fn get(&self, index: Option<usize>) -> Option<&UdpSocket> {
        self.0.get(index?)?.1.as_ref()
    }
}

impl RoutedWire {
    /// Binds port 4791 of an address of this machine.
    ///
    /// # Errors
    /// As [`Interface::find`] and [`RoutedWire::bind`]; `Unsupported` for an InfiniBand link, whose
    /// LIDs are loopback addresses.
    pub fn at(address: &HostAddress, link: Link) -> io::Result<Self> {
        if link == Link::InfiniBand {
            let text = format!(
                "an InfiniBand port cannot be at {address}: its LIDs follow from a loopback address"
            );
            return Err(io::Error::new(ErrorKind::Unsupported, text));
        }
        Self::bind(Interface::find(address)?)
    }

    /// Binds port 4791 of the address.
    ///
    /// # Errors
    /// `AddrInUse` if the port is taken, naming the holder if it can be found; `PermissionDenied`
    /// and other errors of binding.
    pub fn bind(interface: Interface) -> io::Result<Self> {
        let socket = open(&interface, UDP_PORT).map_err(|error| explain(&interface, error))?;
        receive_headers(&socket)?;
        enlarge(&socket);
        mmsg::join_datagrams(socket.as_fd());
        let groups = Groups::on(match interface.ip() {
            IpAddr::V4(v4) => GroupInterface::V4(v4),
            IpAddr::V6(_) => GroupInterface::V6(interface.index()),
        });
        Ok(Self {
            interface,
            cuts: mmsg::can_cut(socket.as_fd()),
            socket,
            outlets: Outlets::default(),
            groups,
            receiver: Some(Receiver::of_joined()),
            group_receiver: Some(Receiver::new()),
            skips: Skips::default(),
            runs: Vec::new(),
            counters: WireCounters::new(),
        })
    }

    /// The address and its interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The counters of the wire.
    pub fn counters(&self) -> Arc<WireCounters> {
        self.counters.clone()
    }

    fn destination(&self, route: &Addressing) -> Option<SocketAddr> {
        if route.is_multicast() {
            return groups_of(&self.interface).group(route.destination);
        }
        self.interface.towards(route.destination, UDP_PORT)
    }

    /// As many of the first packets, which have no CRC yet, as fit into one message.
    fn run(&self, packets: &[Packet]) -> Option<Run> {
        let route = &packets.first()?.addressing;
        // Packets that have no destination were dropped before.
        let destination = self.destination(route).unwrap_or((self.interface.ip(), 0).into());
        let hop_limit = route.hop_limit.max(1);
        let packets = if self.cuts { run_length(packets) } else { 1 };
        Some(Run { packets, destination, class: route.traffic_class, hop_limit })
    }

    /// Drops packets that this wire cannot send: those of the other address family, and frames of
    /// raw packet queue pairs, which RoCE v2 cannot carry.
    fn drop_unroutable(&self, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let mut at = 0;
        while at < packets.len() {
            let packet = &packets[at];
            if packet.frame().is_none() && self.destination(&packet.addressing).is_some() {
                at += 1;
            } else {
                pool.give(packets.remove(at));
                WireCounters::add(&self.counters.unroutable, 1);
            }
        }
    }

    /// Appends the CRCs to packets of one flow, and describes in `runs` how they are sent.
    fn seal(&mut self, packets: &mut [Packet], source_port: u16) {
        let (own, mut rest) = (self.interface.ip(), packets);
        self.runs.clear();
        while let Some(run) = self.run(rest) {
            let (now, later) = rest.split_at_mut(run.packets);
            for (index, packet) in now.iter_mut().enumerate() {
                let framing = nth_of_message(index, source_port);
                let crc = icrc(own, run.destination.ip(), packet.bytes(), framing);
                packet.bytes_mut().extend_from_slice(&crc.to_le_bytes());
            }
            self.runs.push(run);
            rest = later;
        }
    }

    /// Sends packets of one flow.
    fn send_flow(&mut self, packets: &mut [Packet]) {
        let Some(first) = packets.first() else { return };
        let port = first.addressing.source_port();
        let outlet = self.outlets.find(&self.interface, port);
        let port = if self.outlets.get(outlet).is_some() { port } else { UDP_PORT };
        self.seal(packets, port);
        let left = self.send_runs(outlet, packets);
        if left != 0 {
            let rest = packets.len() - left;
            let packets = &mut packets[rest..];
            packets.iter_mut().for_each(unseal);
            self.cuts = false;
            self.seal(packets, port);
            self.send_runs(outlet, packets);
        }
    }

    /// Sends the packets in `runs`; returns how many packets are left, because the kernel cannot
    /// segment messages.
    fn send_runs(&self, outlet: Option<usize>, packets: &[Packet]) -> usize {
        let socket = self.outlets.get(outlet).unwrap_or(&self.socket);
        send_sealed(socket, packets, &self.runs, &self.counters)
    }

    /// The addressing of a valid datagram; `None` for an invalid one, which is counted.
    fn check(&self, datagram: &Datagram<'_>, group: Option<Gid>) -> Option<Addressing> {
        let parts = rocev2::split_icrc(datagram.bytes).ok().filter(|_| !datagram.truncated);
        let Some((transport, crc)) = parts else {
            WireCounters::add(&self.counters.malformed, 1);
            return None;
        };
        let (source, own) = (datagram.source.ip(), self.interface.ip());
        if group.is_some() && source == own {
            return None;
        }
        let to = group.and_then(|group| groups_of(&self.interface).group(group));
        let to = to.map_or(own, |group| group.ip());
        let guess = nth_of_message(datagram.index, datagram.source.port());
        if !is_sound(source, to, transport, guess, crc) {
            WireCounters::add(&self.counters.bad_icrc, 1);
            return None;
        }
        let route = Addressing::roce(gid_of(source), group.unwrap_or_else(|| gid_of(own)));
        let (traffic_class, hop_limit) = (datagram.class, datagram.hop_limit);
        Some(Addressing { traffic_class, hop_limit, ..route })
    }

    /// Drops frames of raw packet queue pairs: on this wire they can only be forged.
    fn drop_frames(&self, first: usize, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        let mut at = first;
        while at < packets.len() {
            if packets[at].frame().is_some() {
                pool.give(packets.remove(at));
                WireCounters::add(&self.counters.malformed, 1);
            } else {
                at += 1;
            }
        }
    }
}

/// The family and interface of the groups for an interface's address.
fn groups_of(interface: &Interface) -> GroupInterface {
    match interface.ip() {
        IpAddr::V4(v4) => GroupInterface::V4(v4),
        IpAddr::V6(_) => GroupInterface::V6(interface.index()),
    }
}

fn icrc(source: IpAddr, destination: IpAddr, packet: &[u8], framing: Framing) -> u32 {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            rocev2::icrc_v4(source, destination, packet, framing)
        }
        (source, destination) => {
            let [source, destination] = [source, destination].map(|ip| gid_of(ip).0.into());
            rocev2::icrc_v6(source, destination, packet, framing)
        }
    }
}

/// Whether the CRC is correct for the packet with any IP identification.
fn is_sound(source: IpAddr, to: IpAddr, packet: &[u8], guess: Framing, crc: u32) -> bool {
    match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            rocev2::explain_icrc_v4(source, to, packet, guess, crc).is_some()
        }
        _ => icrc(source, to, packet, guess) == crc,
    }
}

/// The framing that Linux gives to the packet with this index of a segmented message.
fn nth_of_message(index: usize, source_port: u16) -> Framing {
    Framing { source_port, identification: index as u16, ..Framing::default() }
}

/// Removes the CRC.
fn unseal(packet: &mut Packet) {
    let bytes = packet.bytes_mut();
    bytes.truncate(bytes.len() - rocev2::ICRC_LEN);
}

/// A socket at this port of the address.
fn open(interface: &Interface, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(interface.scoped(interface.ip(), port))?;
    socket.set_nonblocking(true)?;
    let set = |level, option, value| mmsg::set_option(socket.as_fd(), level, option, value);
    match interface.ip() {
        IpAddr::V4(own) => {
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            mmsg::set_multicast_interface(socket.as_fd(), own)?;
        }
        IpAddr::V6(_) => {
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface.index() as i32)?;
        }
    }
    setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER)?;
    Ok(socket)
}

/// Requested size of the send buffer, in bytes.
const SEND_BUFFER: usize = 4 << 20;

/// Explains what to do about an address that cannot be bound.
fn explain(interface: &Interface, error: io::Error) -> io::Error {
    let ip = interface.ip();
    let text = match error.kind() {
        ErrorKind::AddrInUse => {
            let holder = port_holder::describe(ip);
            format!("UDP port {UDP_PORT} of {ip} is taken {holder}: one device has an address")
        }
        ErrorKind::PermissionDenied => format!(
            "no permission to bind UDP port {UDP_PORT} of {ip}: {error} (a security module or \
             net.ipv4.ip_unprivileged_port_start forbids it)"
        ),
        ErrorKind::AddrNotAvailable if ip.is_ipv6() => format!(
            "{ip} of {} is not usable yet: it is tentative while duplicates are looked for",
            interface.name()
        ),
        _ => format!("cannot use UDP port {UDP_PORT} of {ip}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

impl Wire for RoutedWire {
    fn send(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.drop_unroutable(packets, pool);
        let mut rest = &mut packets[..];
        while let Some(first) = rest.first() {
            let port = first.addressing.source_port();
            let same = |packet: &Packet| packet.addressing.source_port() == port;
            let len = rest.iter().position(|packet| !same(packet)).unwrap_or(rest.len());
            let (flow, others) = rest.split_at_mut(len);
            requests_first(flow);
            self.send_flow(flow);
            rest = others;
        }
        packets.drain(..).for_each(|packet| pool.give(packet));
    }

    fn receive(&mut self, _now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        // Datagrams that were read before are taken even in a skipped call.
        if self.skips.take() && self.next_wake().is_none() {
            return 0;
        }
        let (first, mut read) = (packets.len(), 0);
        if let Some(mut receiver) = self.receiver.take() {
            let (socket, into) = (self.socket.as_fd(), (&mut *packets, &mut *pool));
            read += drain(socket, &mut receiver, &self.counters, into, |datagram| {
                self.check(datagram, None)
            });
            self.receiver = Some(receiver);
        }
        if let Some(mut receiver) = self.group_receiver.take() {
            for (socket, group) in (0..self.groups.len()).map(|index| self.groups.get(index)) {
                let into = (&mut *packets, &mut *pool);
                read += drain(socket, &mut receiver, &self.counters, into, |datagram| {
                    self.check(datagram, Some(group))
                });
            }
            self.group_receiver = Some(receiver);
        }
        self.drop_frames(first, packets, pool);
        read
    }

    fn joins_packets(&self) -> bool {
        true
    }

    /// Now, if some packets of a message were not taken yet, because no descriptor reports them.
    fn next_wake(&self) -> Option<u64> {
        let is_empty = self.receiver.as_ref().is_none_or(Receiver::is_empty);
        (!is_empty).then_some(0)
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.socket.as_fd());
        fds.extend((0..self.groups.len()).map(|index| self.groups.get(index).0));
    }

    fn skip_files(&mut self) {
        self.skips.allow();
    }

    fn look_at_files(&mut self) {
        self.skips.forbid();
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        // This wire does not carry frames of raw packet queue pairs.
        if group == ETHERNET_GROUP { Ok(()) } else { self.groups.join(group) }
    }

    fn leave(&mut self, group: Gid) {
        self.groups.leave(group);
    }
}
