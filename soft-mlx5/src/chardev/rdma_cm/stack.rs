//! The IP addresses of software devices: those of their stations on the loopback network.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::chardev::SoftDevice;
use crate::chardev::device::options::{GidType, Options};
use crate::cm::cma::{Addresses, CmaError, DeviceInfo, DeviceNumber, GidSlot, Interface, Route};
use crate::packet::{Addressing, Gid};
use crate::wire::{Neighbours, Station};

const NOT_OWN: CmaError = CmaError(libc::EADDRNOTAVAIL);
const NO_DEVICE: CmaError = CmaError(libc::ENODEV);
const NO_ROUTE: CmaError = CmaError(libc::ENETUNREACH);

/// Hop limit of routed packets, as Linux's default.
const HOP_LIMIT: u8 = 64;
/// How long a software device takes to acknowledge, as a code.
const ACK_DELAY: u8 = 16;

/// The devices of a host.
#[derive(Debug)]
pub(super) struct Stack {
    devices: Vec<SoftDevice>,
    neighbours: Neighbours,
}

impl Stack {
    pub(super) fn new(devices: &[SoftDevice]) -> Self {
        Self { devices: devices.to_vec(), neighbours: Neighbours::default() }
    }

    pub(super) fn devices(&self) -> &[SoftDevice] {
        &self.devices
    }

    fn options(&self, device: DeviceNumber) -> Option<&Options> {
        let device = self.devices.get(device).filter(|device| !device.is_removed())?;
        Some(device.shared.options())
    }

    fn find(&self, station: Station) -> Option<DeviceNumber> {
        let is_one = |device: &DeviceNumber| {
            self.options(*device).is_some_and(|options| station_of(options) == Some(station))
        };
        (0..self.devices.len()).find(is_one)
    }

    /// The device that packets leave by.
    fn way_out(
        &self,
        source: Option<IpAddr>,
        destination: Option<Station>,
    ) -> Result<DeviceNumber, CmaError> {
        if let Some(source) = source {
            return Ok(self.own(source)?.device);
        }
        let own = destination.and_then(|station| self.find(station));
        let first = || (0..self.devices.len()).find(|device| self.options(*device).is_some());
        own.or_else(first).ok_or(NO_DEVICE)
    }
}

impl Addresses for Stack {
    fn own(&self, address: IpAddr) -> Result<Interface, CmaError> {
        let station = station_at(address);
        if let Some(device) = station.and_then(|station| self.find(station)) {
            let options = self.options(device).ok_or(NO_DEVICE)?;
            return Ok(Interface { device, gid: gid_of(options, address) });
        }
        // Of another interface of the machine?
        let is_own = !address.is_loopback() && UdpSocket::bind((address, 0)).is_ok();
        Err(if is_own { NO_DEVICE } else { NOT_OWN })
    }

    fn route(&self, source: Option<IpAddr>, to: SocketAddr) -> Result<Route, CmaError> {
        let is_any = to.ip().is_unspecified() || to.ip() == IpAddr::from([127, 0, 0, 1]);
        let is_any = is_any || to.ip() == IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
        let destination = if is_any { None } else { station_at(to.ip()) };
        if destination.is_none() && !is_any {
            return Err(NO_ROUTE);
        }
        let device = self.way_out(source, destination)?;
        let options = self.options(device).ok_or(NO_DEVICE)?;
        let own = station_of(options).ok_or(NO_DEVICE)?;
        let destination = destination.unwrap_or(own);
        let source = source.unwrap_or_else(|| address_of(own, to.ip()));
        Ok(Route { device, source, addressing: addressing(options, own, destination, to.ip()) })
    }

    fn answers(&self, now: u64, route: &Route) -> bool {
        let station = Station::destination(&route.addressing);
        station.is_some_and(|station| {
            self.find(station).is_some() || self.neighbours.has(station, now)
        })
    }
}

/// The station that an IP address names.
fn station_at(address: IpAddr) -> Option<Station> {
    match address {
        IpAddr::V4(v4) => Station::new(v4),
        IpAddr::V6(v6) => Station::from_gid(Gid(v6.octets())),
    }
}

/// The station that a device has: its GUID names it.
fn station_of(options: &Options) -> Option<Station> {
    Station::from_gid(Gid::link_local(options.node_guid))
}

/// A station's address of the other's family.
fn address_of(station: Station, other: IpAddr) -> IpAddr {
    match other {
        IpAddr::V4(_) => station.address().into(),
        IpAddr::V6(_) => IpAddr::from(station.link_local_gid().0),
    }
}

/// The GID of a device's address. InfiniBand has one, whatever the address.
fn gid_of(options: &Options, address: IpAddr) -> Gid {
    match (station_of(options), address) {
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

/// What rdma_cm knows of a device.
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
    }
}
