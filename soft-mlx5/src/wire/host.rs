//! Addresses of this machine: choosing one for a device, and the properties of its interface.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use super::{Station, is_shortage, mmsg};
use crate::core::Mtu;
use crate::packet::Gid;
use crate::packet::rocev2::UDP_PORT;

/// An IP address for a software device. A link-local IPv6 address that several interfaces have is
/// written with its interface: `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    ip: IpAddr,
    interface: Option<String>,
}

impl HostAddress {
    /// The station of the address: IPv4 loopback addresses are the software devices' own network.
    pub fn station(&self) -> Option<Station> {
        match self.ip {
            IpAddr::V4(v4) => Station::new(v4),
            IpAddr::V6(_) => None,
        }
    }

    /// Address number `index` of a comma-separated list. A larger index continues with the
    /// addresses that follow the list's last one.
    ///
    /// # Errors
    ///
    /// A text that names the part that is not an address.
    pub fn of_list(list: &str, index: u32) -> Result<Self, String> {
        let all: Vec<Self> = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let last = all.len() as u32 - 1;
        Ok(all[index.min(last) as usize].following(index.saturating_sub(last)))
    }

    /// The `n`th address after this one, on the same interface.
    fn following(&self, n: u32) -> Self {
        let ip = match self.ip {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).wrapping_add(n)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).wrapping_add(n.into())).into(),
        };
        Self { ip, interface: self.interface.clone() }
    }
}

impl From<IpAddr> for HostAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, interface: None }
    }
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, interface) = match text.split_once('%') {
            Some((ip, interface)) => (ip, Some(interface.to_owned())),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| {
            format!("{text} is not an IP address (10.0.0.1, 2001:db8::1 or fe80::1%eth0)")
        })?;
        if interface.as_ref().is_some_and(|name| name.is_empty() || ip.is_ipv4()) {
            return Err(format!("{text}: only an IPv6 address names its interface after %"));
        }
        Ok(Self { ip, interface })
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{interface}", self.ip),
            None => self.ip.fmt(f),
        }
    }
}

/// An address of this machine, and the properties of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    ip: IpAddr,
    name: String,
    index: u32,
    mac: [u8; 6],
    mtu: u32,
}

/// Bytes of headers that the kernel subtracts from an interface's MTU: the longest of RoCE, with
/// the IPv6 header, UDP, transport headers and CRC (`iboe_get_mtu` in include/rdma/ib_addr.h).
const HEADER_BYTES: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// Bytes of the smallest path MTU.
const SMALLEST: u32 = Mtu::M256.bytes();

/// The time that an interface may take to start: the kernel checks carriers once a second.
const STARTING: Duration = Duration::from_secs(2);

/// Time between two checks of an interface that is starting.
const LOOK: Duration = Duration::from_millis(2);

impl Interface {
    /// Finds the interface with this address in the calling thread's network namespace. If the
    /// interface has just got its carrier, waits until the kernel sends through it.
    ///
    /// # Errors
    /// `AddrNotAvailable` if no interface has the address, `NetworkDown` if its interface is down,
    /// `InvalidInput` if several interfaces have it or its MTU is too small. The text names the
    /// problem and its solution.
    pub fn find(asked: &HostAddress) -> io::Result<Self> {
        let deadline = Instant::now() + STARTING;
        loop {
            let all: Vec<InterfaceAddress> = getifaddrs()?.collect();
            let name = name_of(&all, asked)?;
            if !is_starting(&all, &name) || Instant::now() >= deadline {
                return Self::describe(asked, &name, &all);
            }
            thread::sleep(LOOK);
        }
    }

    fn describe(asked: &HostAddress, name: &str, all: &[InterfaceAddress]) -> io::Result<Self> {
        let link = all.iter().filter(|entry| entry.interface_name == name);
        let link = link.filter_map(|entry| entry.address.as_ref()?.as_link_addr().copied()).next();
        let index = nix::net::if_::if_nametoindex(name)?;
        let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .or_else(|_| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
        let mtu = mmsg::interface_mtu(any.as_fd(), name)?;
        if mtu < SMALLEST + HEADER_BYTES {
            let text = format!(
                "the MTU of {name} is {mtu} bytes, and the smallest of RoCE needs {}: ip link set \
                 {name} mtu 1500",
                SMALLEST + HEADER_BYTES
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let mac = link.and_then(|link| link.addr()).filter(|mac| *mac != [0; 6]);
        let mac = mac.unwrap_or_else(|| invented_mac(asked.ip));
        Ok(Self { ip: asked.ip, name: name.to_owned(), index, mac, mtu })
    }

    /// The address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The interface's MAC address. If it has none (loopback, tunnels), one that is derived from
    /// the IP address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The largest path MTU that fits into the interface's MTU with all headers.
    pub fn mtu(&self) -> Mtu {
        let space = self.mtu.saturating_sub(HEADER_BYTES);
        let codes = (1..=5).rev().filter_map(Mtu::from_code);
        codes.into_iter().find(|mtu| mtu.bytes() <= space).unwrap_or(Mtu::M256)
    }

    /// The GID: the address itself, IPv4 ones mapped.
    pub fn gid(&self) -> Gid {
        gid_of(self.ip)
    }

    /// Globally unique identifier of a device at this address, in network order. It differs for two
    /// addresses of one interface: half of the MAC address, then an IPv4 address or the CRC-32 of
    /// an IPv6 address, marked as locally administered.
    pub fn guid(&self) -> [u8; 8] {
        let [a, b, c, d] = match self.ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => crc32fast::hash(&v6.octets()).to_be_bytes(),
        };
        let [.., x, y, z] = self.mac;
        [0x02, x, y, z, a, b, c, d]
    }

    /// The socket address of a port of another host's address.
    pub(super) fn towards(&self, gid: Gid, port: u16) -> Option<SocketAddr> {
        let ip = address_of(gid);
        if ip.is_ipv4() != self.ip.is_ipv4() || ip.is_unspecified() {
            return None;
        }
        // Loopback addresses belong to the network of the loopback devices.
        if ip.is_loopback() && !self.ip.is_loopback() {
            return None;
        }
        Some(self.scoped(ip, port))
    }

    /// Adds the interface to a link-local address.
    pub(super) fn scoped(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, self.index).into()
            }
            ip => (ip, port).into(),
        }
    }

    /// Whether the machine has a route from this address to another one; also true if that is
    /// unknown, because no descriptor is left. Whether a host answers there is only known after
    /// sending.
    pub fn has_route_to(&self, gid: Gid) -> bool {
        let Some(there) = self.towards(gid, UDP_PORT) else { return false };
        let socket = UdpSocket::bind(self.scoped(self.ip, 0));
        let found = socket.and_then(|socket| socket.connect(there));
        found.map_or_else(|error| is_shortage(&error), |()| true)
    }
}

/// The GID of an IP address.
pub fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => Gid::from_ipv4(v4),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// The IP address of a GID.
pub fn address_of(gid: Gid) -> IpAddr {
    gid.to_ipv4().map_or_else(|| Ipv6Addr::from(gid.0).into(), IpAddr::V4)
}

/// The network that a device is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the network of the machine's software devices.
    Loopback(Station),
    /// At an address of an interface.
    Interface(Interface),
}

impl From<Station> for Place {
    fn from(station: Station) -> Self {
        Self::Loopback(station)
    }
}

impl From<Interface> for Place {
    fn from(interface: Interface) -> Self {
        Self::Interface(interface)
    }
}

/// A locally administered address.
fn invented_mac(ip: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = gid_of(ip).0;
    [0x02, 0x00, a, b, c, d]
}

fn ip_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// The names of the interfaces with the address.
fn names_of(all: &[InterfaceAddress], asked: &HostAddress) -> Vec<String> {
    let is_asked = |entry: &&InterfaceAddress| {
        let is_named =
            asked.interface.as_ref().is_none_or(|name| is_interface(name, &entry.interface_name));
        is_named && ip_of(entry) == Some(asked.ip)
    };
    let mut names: Vec<_> =
        all.iter().filter(is_asked).map(|entry| entry.interface_name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The name of the interface with the address, which must be up.
fn name_of(all: &[InterfaceAddress], asked: &HostAddress) -> io::Result<String> {
    let name = match names_of(all, asked).as_slice() {
        [name] => name.clone(),
        [] => return Err(not_here(asked, all)),
        [first, others @ ..] => {
            let text = format!(
                "several interfaces have {asked} ({first}, {}): write {}%{first}",
                others.join(", "),
                asked.ip
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
    };
    if !flags_of(all, &name).contains(InterfaceFlags::IFF_UP) {
        let text = format!("interface {name} of {asked} is down: ip link set {name} up");
        return Err(io::Error::new(ErrorKind::NetworkDown, text));
    }
    Ok(name)
}

fn flags_of(all: &[InterfaceAddress], name: &str) -> InterfaceFlags {
    let mut own = all.iter().filter(|entry| entry.interface_name == name);
    own.next().map_or(InterfaceFlags::empty(), |entry| entry.flags)
}

/// Whether the interface has a carrier that the kernel has not handled yet. Until then the kernel
/// drops all packets to it. The first neighbour solicitation would be lost and repeated after a
/// second (`linkwatch_do_dev` in net/core/link_watch.c).
fn is_starting(all: &[InterfaceAddress], name: &str) -> bool {
    let flags = flags_of(all, name);
    flags.contains(InterfaceFlags::IFF_LOWER_UP) && !flags.contains(InterfaceFlags::IFF_RUNNING)
}

/// Whether the text after the `%` of an address is this interface's name or number.
fn is_interface(asked: &str, name: &str) -> bool {
    let number = nix::net::if_::if_nametoindex(name).map(|index| index.to_string());
    asked == name || number.is_ok_and(|number| number == asked)
}

/// The error for an address that the machine does not have.
fn not_here(asked: &HostAddress, all: &[InterfaceAddress]) -> io::Error {
    let mut here = BTreeMap::<&str, Vec<String>>::new();
    for entry in all {
        let addresses = here.entry(&entry.interface_name).or_default();
        addresses.extend(ip_of(entry).map(|ip| ip.to_string()));
    }
    let list: Vec<String> = here
        .iter()
        .filter(|(_, addresses)| !addresses.is_empty())
        .map(|(name, addresses)| format!("{name}: {}", addresses.join(" ")))
        .collect();
    let list = if list.is_empty() { "it has none".into() } else { list.join(", ") };
    let text = format!("{asked} is not an address of this network namespace ({list})");
    io::Error::new(ErrorKind::AddrNotAvailable, text)
}

#[cfg(test)]
mod tests;
