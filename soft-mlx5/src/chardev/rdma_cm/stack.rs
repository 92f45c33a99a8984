//! The IP addresses of software devices: those of their stations on the loopback network, or of the
//! machine's interfaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use uverbs_uapi::cm::PortSpace;

use super::directory;
use crate::chardev::SoftDevice;
use crate::chardev::device::options::{GidType, Options};
use crate::packet::{Addressing, Gid};
use crate::runtime;
use crate::wire::{Interface as NetInterface, Place, Station, gid_of as gid_at};
use uverbs_soft_cm::cma::{
    Addresses, Cma, CmaError, CmaId, DeviceInfo, DeviceNumber, GidSlot, Interface, Route, is_any,
};

const NOT_OWN: CmaError = CmaError(libc::EADDRNOTAVAIL);
const NO_DEVICE: CmaError = CmaError(libc::ENODEV);
const NO_ROUTE: CmaError = CmaError(libc::ENETUNREACH);

/// Hop limit of routed packets: Linux's default.
const HOP_LIMIT: u8 = 64;
/// A software device's local ACK delay, as a code (4.096 us * 2^code).
const ACK_DELAY: u8 = 16;

/// The devices of a host.
#[derive(Debug)]
pub(super) struct Stack {
    devices: Vec<SoftDevice>,
}

impl Stack {
    pub(super) fn new(devices: &[SoftDevice]) -> Self {
        Self { devices: devices.to_vec() }
    }

    pub(super) fn devices(&self) -> &[SoftDevice] {
        &self.devices
    }

    fn options(&self, device: DeviceNumber) -> Option<&Options> {
        let device = self.devices.get(device).filter(|device| !device.is_removed())?;
        Some(device.shared.options())
    }

    /// Publishes a listener that is reachable at 127.0.0.1 or ::1.
    ///
    /// # Errors
    /// See [`directory::publish`].
    pub(super) fn publish(&self, cma: &Cma, id: CmaId) -> Result<Vec<OwnedFd>, CmaError> {
        match (cma.binding(id), self.on_network().and_then(|device| self.station_of(device))) {
            (Some((space, binding)), Some(station)) => directory::publish(space, binding, station),
            _ => Ok(Vec::new()),
        }
    }

    /// Reserves the port of a bound id that is reachable at 127.0.0.1 or ::1, so that ids of other
    /// processes cannot bind to it.
    ///
    /// # Errors
    /// See [`directory::claim`].
    pub(super) fn claim(&self, cma: &Cma, id: CmaId) -> Result<Vec<OwnedFd>, CmaError> {
        match cma.binding(id).filter(|_| self.leads_to_processes()) {
            Some((space, binding)) => directory::claim(space, binding),
            None => Ok(Vec::new()),
        }
    }

    /// The station of a listener of any process, if other processes' stations can be reached.
    fn listener_of_machine(
        &self,
        space: PortSpace,
        to: SocketAddr,
    ) -> Result<Option<Station>, CmaError> {
        self.on_network().map_or(Ok(None), |_| directory::find(space, to))
    }

    fn numbers(&self) -> impl Iterator<Item = DeviceNumber> {
        (0..self.devices.len()).filter(|device| self.options(*device).is_some())
    }

    fn station_of(&self, device: DeviceNumber) -> Option<Station> {
        self.options(device)?.station()
    }

    fn leads_to_processes(&self) -> bool {
        self.devices.iter().any(|device| device.shared.reach().leads_to_processes())
    }

    /// Whether a device is on the network of the machine's software devices.
    fn is_on_network(&self, device: DeviceNumber) -> bool {
        self.devices[device].shared.reach().is_machines_network()
    }

    /// The first device on that network.
    fn on_network(&self) -> Option<DeviceNumber> {
        self.numbers().find(|device| self.is_on_network(*device))
    }

    /// The device at 127.0.0.1 and ::1: preferably one that other processes can reach.
    fn at_loopback(&self) -> Result<DeviceNumber, CmaError> {
        self.on_network().or_else(|| self.numbers().next()).ok_or(NO_DEVICE)
    }

    fn find(&self, station: Station) -> Option<DeviceNumber> {
        self.numbers().find(|device| self.station_of(*device) == Some(station))
    }

    /// As [`find`](Self::find), for a station of the machine's network.
    fn find_on_network(&self, station: Station) -> Option<DeviceNumber> {
        let is_one = |device: &DeviceNumber| {
            self.is_on_network(*device) && self.station_of(*device) == Some(station)
        };
        self.numbers().find(is_one)
    }

    /// The device at an address of an interface.
    fn find_at(&self, ip: IpAddr) -> Option<DeviceNumber> {
        let is_one = |device: &DeviceNumber| {
            self.options(*device).and_then(interface_of).is_some_and(|own| own.ip() == ip)
        };
        (0..self.devices.len()).find(is_one)
    }

    /// The route from a device at an interface's address; `None` if no such device is at `source`
    /// or has a route to `to`.
    fn route_outside(&self, source: Option<IpAddr>, to: IpAddr) -> Result<Option<Route>, CmaError> {
        let device = match source.map_or_else(|| self.find_at(to), |source| self.find_at(source)) {
            None if source.is_none() => self.first_towards(to)?,
            found => found,
        };
        let interface = |device| Some((device, interface_of(self.options(device)?)?));
        let Some((device, own)) = device.and_then(interface) else { return Ok(None) };
        let addressing =
            Addressing { hop_limit: HOP_LIMIT, ..Addressing::roce(own.gid(), gid_at(to)) };
        if to.is_multicast() || own.ip() == to || own.has_route_to(gid_at(to)) {
            Ok(Some(Route { device, source: own.ip(), addressing }))
        } else {
            Err(NO_ROUTE)
        }
    }

    /// The device at the source address that the machine's routes choose, else the first device
    /// with a route.
    fn first_towards(&self, to: IpAddr) -> Result<Option<DeviceNumber>, CmaError> {
        // The machine has routes from each interface to loopback addresses, but a device at an
        // interface cannot reach stations.
        if station_at(to).is_some() && self.on_network().is_some() {
            return Ok(None);
        }
        let preferred =
            directory::or_shortage(source_towards(to))?.and_then(|source| self.find_at(source));
        let reaches = |device: &DeviceNumber| {
            let own = self.options(*device).and_then(interface_of);
            own.is_some_and(|own| {
                own.ip().is_ipv4() == to.is_ipv4() && own.has_route_to(gid_at(to))
            })
        };
        Ok(preferred.or_else(|| (0..self.devices.len()).find(reaches)))
    }

    /// The route to the process that listens on the port, else to the device itself.
    fn route_to_machine(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
        space: PortSpace,
    ) -> Result<Route, CmaError> {
        let listener = self.listener_of_machine(space, to)?;
        let own = listener.and_then(|station| self.find_on_network(station));
        let device = match (source, own) {
            (Some(source), _) => self.interface_of(source)?.device,
            (None, Some(own)) => own,
            (None, None) => self.at_loopback()?,
        };
        match self.options(device).and_then(interface_of) {
            Some(own) if own.ip().is_ipv4() == to.is_ipv4() => {
                let addressing = Addressing::roce(own.gid(), own.gid());
                let addressing = Addressing { hop_limit: HOP_LIMIT, ..addressing };
                Ok(Route { device, source: source.unwrap_or(own.ip()), addressing })
            }
            _ => {
                let listener = listener.filter(|_| self.is_on_network(device));
                self.route_between_stations(device, source, listener, to.ip())
            }
        }
    }

    /// The route from a device to a station of the same network; without one, to itself.
    fn route_between_stations(
        &self,
        device: DeviceNumber,
        source: Option<IpAddr>,
        destination: Option<Station>,
        to: IpAddr,
    ) -> Result<Route, CmaError> {
        let options = self.options(device).ok_or(NO_DEVICE)?;
        let own = options.station().ok_or(NO_DEVICE)?;
        let source = source.unwrap_or_else(|| address_of(own, to));
        let addressing = addressing(options, own, destination.unwrap_or(own), to);
        Ok(Route { device, source, addressing })
    }

    /// The route to a multicast group, which needs no neighbour.
    fn route_to_group(&self, source: Option<IpAddr>, group: IpAddr) -> Result<Route, CmaError> {
        let device = self.sending_device(source, None)?;
        let options = self.options(device).ok_or(NO_DEVICE)?;
        let own = options.station().ok_or(NO_DEVICE)?;
        let source = source.unwrap_or_else(|| address_of(own, group));
        let to = match group {
            IpAddr::V4(v4) => Gid::from_ipv4(v4),
            IpAddr::V6(v6) => Gid(v6.octets()),
        };
        let addressing = Addressing::roce(gid_of(options, source), to);
        Ok(Route { device, source, addressing })
    }

    /// The device that sends the packets.
    fn sending_device(
        &self,
        source: Option<IpAddr>,
        destination: Option<Station>,
    ) -> Result<DeviceNumber, CmaError> {
        if let Some(source) = source {
            return Ok(self.interface_of(source)?.device);
        }
        let Some(station) = destination else {
            return self.numbers().next().ok_or(NO_DEVICE);
        };
        let reaches = |device: &DeviceNumber| {
            let reach = self.devices[*device].shared.reach();
            self.is_on_network(*device) && reach.has_station(station, runtime::now())
        };
        let own = self.find(station).or_else(|| self.numbers().find(reaches));
        own.or_else(|| self.numbers().find(|device| self.station_of(*device).is_some()))
            .ok_or(NO_DEVICE)
    }
}

impl Addresses for Stack {
    /// Loopback addresses are those of software devices, unless all are at interfaces.
    fn is_wildcard(&self, address: IpAddr) -> bool {
        let is_outside = |device: &SoftDevice| interface_of(device.shared.options()).is_some();
        address.is_unspecified()
            || is_any(address) && !self.devices.is_empty() && self.devices.iter().all(is_outside)
    }

    fn interface_of(&self, address: IpAddr) -> Result<Interface, CmaError> {
        if is_mapped(address) {
            return Err(NOT_OWN);
        }
        if address.is_loopback() && is_machine(address) {
            // The devices' interface is the loopback interface, and this is its address.
            let device = self.at_loopback()?;
            let options = self.options(device).ok_or(NO_DEVICE)?;
            return Ok(Interface { device, gid: gid_of(options, address) });
        }
        if let Some(device) = self.find_at(address) {
            return Ok(Interface { device, gid: gid_at(address) });
        }
        let station = station_at(address);
        if let Some(device) = station.and_then(|station| self.find(station)) {
            let options = self.options(device).ok_or(NO_DEVICE)?;
            return Ok(Interface { device, gid: gid_of(options, address) });
        }
        // The address may belong to another interface of the machine.
        let is_own = !address.is_loopback()
            && directory::or_shortage(UdpSocket::bind((address, 0)))?.is_some();
        Err(if is_own { NO_DEVICE } else { NOT_OWN })
    }

    fn route(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
        space: PortSpace,
    ) -> Result<Route, CmaError> {
        if is_mapped(to.ip()) {
            return Err(NO_ROUTE);
        }
        if is_machine(to.ip()) {
            return self.route_to_machine(source, to, space);
        }
        if let Some(route) = self.route_outside(source, to.ip())? {
            return Ok(route);
        }
        if to.ip().is_multicast() {
            return self.route_to_group(source, to.ip());
        }
        let destination = station_at(to.ip()).ok_or(NO_ROUTE)?;
        let device = self.sending_device(source, Some(destination))?;
        self.route_between_stations(device, source, Some(destination), to.ip())
    }

    fn answers(&self, now: u64, device: DeviceNumber, to: &Addressing) -> bool {
        if to.is_multicast() {
            return true;
        }
        if self.options(device).is_some_and(|options| interface_of(options).is_some()) {
            // The route exists. Whether the peer answers is known only when it does.
            return true;
        }
        let station = Station::destination(to);
        station.is_some_and(|station| {
            let reach = self.devices.get(device).map(|device| device.shared.reach());
            self.find(station).is_some()
                || reach.is_some_and(|reach| reach.has_station(station, now))
        })
    }
}

fn interface_of(options: &Options) -> Option<&NetInterface> {
    match &options.place {
        Some(Place::Interface(interface)) => Some(interface),
        _ => None,
    }
}

/// The source address that the machine's routes choose for packets to `to`.
fn source_towards(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((to, 4791))?;
    Ok(socket.local_addr()?.ip())
}

/// Whether it is an IPv4-mapped address. To the kernel that is an IPv6 address, which no interface
/// has (`ipv6_chk_addr` in `rdma_find_ndev_for_src_ip_rcu`, drivers/infiniband/core/addr.c), and to
/// which only IPv6's default route leads.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Whether an address is a wildcard, whatever stations there are.
fn is_machine(address: IpAddr) -> bool {
    let v4 = IpAddr::from(Ipv4Addr::LOCALHOST);
    address.is_unspecified() || address == v4 || address == IpAddr::from(Ipv6Addr::LOCALHOST)
}

/// The station with an IP address.
fn station_at(address: IpAddr) -> Option<Station> {
    match address {
        IpAddr::V4(v4) => Station::new(v4),
        IpAddr::V6(v6) => Station::from_gid(Gid(v6.octets())),
    }
}

/// A station's address in the address family of `other`.
fn address_of(station: Station, other: IpAddr) -> IpAddr {
    match other {
        IpAddr::V4(_) => station.address().into(),
        IpAddr::V6(_) => IpAddr::from(station.link_local_gid().0),
    }
}

/// The GID of a device's address. On InfiniBand it is the same for all addresses.
fn gid_of(options: &Options, address: IpAddr) -> Gid {
    if let Some(own) = interface_of(options) {
        return own.gid();
    }
    match (options.station(), address) {
        (Some(station), IpAddr::V4(_)) if options.is_roce() => station.gid(),
        (Some(station), _) => station.link_local_gid(),
        (None, _) => Gid::default(),
    }
}

fn addressing(options: &Options, from: Station, to: Station, address: IpAddr) -> Addressing {
    if options.is_roce() {
        let gid = |station: Station| match address {
            IpAddr::V4(_) => station.gid(),
            IpAddr::V6(_) => station.link_local_gid(),
        };
        let hop_limit = HOP_LIMIT;
        let destination_mac = to.mac();
        return Addressing { hop_limit, destination_mac, ..Addressing::roce(gid(from), gid(to)) };
    }
    Addressing {
        source: from.link_local_gid(),
        destination: to.link_local_gid(),
        source_lid: from.lid().unwrap_or(0),
        destination_lid: to.lid().unwrap_or(0),
        ..Addressing::default()
    }
}

/// The properties of a device that rdma_cm uses.
pub(super) fn info(device: &SoftDevice, index: u32) -> DeviceInfo {
    let options = device.shared.options();
    let slot = |gid: Gid, kind: GidType| GidSlot { gid, is_default_type: kind != GidType::RoceV1 };
    DeviceInfo {
        node_guid: options.node_guid,
        index,
        gids: options.gids.iter().map(|entry| slot(entry.gid, entry.kind)).collect(),
        mtu: options.active_mtu.code(),
        ack_delay: ACK_DELAY,
        infiniband: !options.is_roce(),
        gid_on_wire: Some(options.gid_on_wire()),
        mac_of: Some(|gid| Station::from_gid(gid).map_or([0; 6], Station::mac)),
    }
}
