//! `uverbs info --to ADDRESS`: which device reaches an address, or why none does.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use serde::Serialize;
use uverbs::cm::{Address, Channel, EventKind, PortSpace};
use uverbs::gid::GidEntry;
use uverbs::{Context, DeviceKind, Error, ErrorKind};

use super::interface_name;
use crate::diagnosis::Missing;
use crate::failure::Outcome;

/// Timeout for a neighbour's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connection manager's answer for an address.
#[derive(Debug, Serialize)]
pub(super) struct AddressReport {
    pub(super) address: String,
    #[serde(flatten)]
    pub(super) state: AddressState,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum AddressState {
    Resolved { device: String, port: u8, source: String },
    Unresolved { problem: Missing },
}

/// The state of this machine that decides whether an address can be resolved.
#[derive(Debug, Clone)]
struct Facts {
    to: IpAddr,
    /// The local address that the routing table selects.
    source: Result<IpAddr, Errno>,
    /// The interface with that address.
    interface: Option<String>,
    ports: Vec<PortFacts>,
}

#[derive(Debug, Clone)]
struct PortFacts {
    /// The device and its port.
    name: String,
    state: String,
    is_active: bool,
    interfaces: Vec<String>,
    addresses: Vec<IpAddr>,
}

/// Resolves the address by the connection manager. If that fails, the report has the reason.
pub(super) fn report(to: &str, contexts: &[Context]) -> Outcome<AddressReport> {
    let state = match parse_or_look_up(to) {
        Ok(address) => match resolve(address, contexts) {
            Ok(resolved) => resolved,
            Err(error) => AddressState::Unresolved { problem: reason(address, contexts, &error)? },
        },
        Err(problem) => AddressState::Unresolved { problem },
    };
    Ok(AddressReport { address: to.to_owned(), state })
}

/// The address of a host name, or an address in text, each with or without a port. The port does
/// not matter.
fn parse_or_look_up(to: &str) -> Result<SocketAddr, Missing> {
    let found = (to, 1).to_socket_addrs().or_else(|_| Address(to).to_socket_addrs());
    found.ok().and_then(|mut all| all.next()).ok_or_else(|| {
        Missing::new(
            format!("{to} is neither an IP address nor a host name that this machine can resolve"),
            format!("check the name (getent hosts {to}), and the interface behind %"),
        )
    })
}

fn resolve(to: SocketAddr, contexts: &[Context]) -> Result<AddressState, Error> {
    let channel = match contexts.first() {
        Some(context) => Channel::of(context)?,
        None => Channel::open()?,
    };
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_address(None, to, PATIENCE)?;
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        match channel.next_event_until(deadline)?.kind {
            EventKind::AddressResolved => break,
            other => other.into_failure().map_or(Ok(()), Err)?,
        }
    }
    let source = id.local_address()?.map_or_else(String::new, |own| own.ip().to_string());
    let device = id.context()?.device().name().to_owned();
    Ok(AddressState::Resolved { device, port: id.device_port()?, source })
}

/// Why an address cannot be resolved.
fn reason(to: SocketAddr, contexts: &[Context], error: &Error) -> Outcome<Missing> {
    if let SocketAddr::V6(v6) = to
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() == 0
    {
        return Ok(no_interface(*v6.ip()));
    }
    let kernel: Vec<_> =
        contexts.iter().filter(|context| context.kind() == DeviceKind::Kernel).collect();
    let is_soft = kernel.is_empty() && !contexts.is_empty();
    let devices = if is_soft { contexts.iter().collect() } else { kernel };
    let ports = devices.into_iter().map(ports).collect::<Outcome<Vec<_>>>()?;
    let source = route(to);
    let interface = source.ok().and_then(interface_of);
    let ports = ports.into_iter().flatten().collect();
    let facts = Facts { to: to.ip(), source, interface, ports };
    let problem = if is_soft { facts.soft_problem(error) } else { facts.problem() };
    Ok(problem.unwrap_or_else(|| unanswered(&facts, error)))
}

/// The source address of packets to `to`. Sends no packet.
fn route(to: SocketAddr) -> Result<IpAddr, Errno> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let socket = UdpSocket::bind((any, 0)).map_err(errno)?;
    socket.connect(to).map_err(errno)?;
    Ok(socket.local_addr().map_err(errno)?.ip())
}

fn interface_of(own: IpAddr) -> Option<String> {
    let ip_of = |address: Option<SockaddrStorage>| {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    let mut all = getifaddrs().ok()?;
    Some(all.find(|interface| ip_of(interface.address) == Some(own))?.interface_name)
}

fn ports(context: &Context) -> Outcome<Vec<PortFacts>> {
    let count = context.attributes()?.ports();
    (1..=count).map(|port| port_facts(context, port)).collect()
}

fn port_facts(context: &Context, port: u8) -> Outcome<PortFacts> {
    let attributes = context.query_port(port)?;
    let gids = context.gid_table(port)?;
    let mut interfaces: Vec<_> =
        gids.iter().filter_map(|entry| interface_name(entry.interface)).collect();
    interfaces.dedup();
    Ok(PortFacts {
        name: format!("{} port {port}", context.device().name()),
        is_active: attributes.is_active(),
        state: attributes.state().to_string(),
        interfaces,
        addresses: gids.iter().map(address_of).collect(),
    })
}

fn address_of(entry: &GidEntry) -> IpAddr {
    match entry.gid.ipv4() {
        Some(v4) => v4.into(),
        None => Ipv6Addr::from(entry.gid.0).into(),
    }
}

impl Facts {
    /// The obstacle on this machine, if one is found.
    fn problem(&self) -> Option<Missing> {
        let source = match self.source {
            Ok(source) => source,
            Err(errno) => return Some(self.no_route(errno)),
        };
        let interface = self.interface.as_deref().unwrap_or("an interface without a name");
        let mut ports = self.ports.iter();
        let Some(port) = ports.find(|port| port.interfaces.iter().any(|name| name == interface))
        else {
            return Some(self.no_device(interface));
        };
        if !port.addresses.contains(&source) {
            return Some(no_gid(port, source));
        }
        (!port.is_active).then(|| port_down(port))
    }

    /// The obstacle for software devices. Each either has a loopback address, or has the address of
    /// an interface and reaches the same hosts as that interface.
    fn soft_problem(&self, error: &Error) -> Option<Missing> {
        let mut addresses = self.ports.iter().flat_map(|port| &port.addresses);
        let is_loopback =
            addresses.clone().any(|address| address.is_ipv4() && address.is_loopback());
        if is_loopback && error.kind() == ErrorKind::TimedOut {
            return Some(self.no_soft_device());
        }
        if is_loopback && !self.to.is_loopback() {
            return Some(self.beyond_loopback());
        }
        let own = addresses.find(|address| address.is_ipv4() == self.to.is_ipv4())?;
        (!is_loopback && self.to.is_loopback()).then(|| {
            Missing::new(
                format!("the software device is at {own}, and reaches no loopback address"),
                "use the peer's address on that interface, or start both without an address",
            )
        })
    }

    fn no_soft_device(&self) -> Missing {
        Missing::new(
            format!("no software device of this network namespace has {}", self.to),
            format!("start the peer there: uverbs run --address {} -- PROGRAM", self.to),
        )
    }

    /// The reason if software devices have loopback addresses: they reach only such addresses.
    fn beyond_loopback(&self) -> Missing {
        let cure = match self.source {
            Ok(source) => format!("give it the address {source}: UVERBS_SOFT_ADDRESS={source}"),
            Err(_) => format!("check the address and the routes (ip route get {})", self.to),
        };
        let what = format!("the software device is on the loopback network, {} is not", self.to);
        Missing::new(what, cure)
    }

    fn no_route(&self, errno: Errno) -> Missing {
        Missing::new(
            format!("there is no route to {}: {}", self.to, errno.desc()),
            format!("check the address and the routes (ip route get {})", self.to),
        )
    }

    fn no_device(&self, interface: &str) -> Missing {
        let others: Vec<_> = self.ports.iter().flat_map(|port| port.interfaces.clone()).collect();
        let cure = match others.is_empty() {
            true => "load the adapter's driver, or use the software device (soft)".to_owned(),
            false => format!("route the address through an RDMA interface: {}", others.join(", ")),
        };
        Missing::new(
            format!("packets to {} leave by {interface}, which no RDMA device has", self.to),
            cure,
        )
    }
}

fn no_interface(to: Ipv6Addr) -> Missing {
    Missing::new(
        format!("{to} is a link-local address, which each interface has a network for"),
        format!("name the interface: {to}%eth0"),
    )
}

fn no_gid(port: &PortFacts, source: IpAddr) -> Missing {
    Missing::new(
        format!("{} has no GID for the own address {source}", port.name),
        "wait until the kernel has added it, or take the interface down and up; in a container, the \
         device must be in its network namespace (rdma system show)",
    )
}

fn port_down(port: &PortFacts) -> Missing {
    Missing::new(
        format!("{} is {}, not ACTIVE", port.name, port.state),
        "connect the cable, or take the interface up (ip link set INTERFACE up)",
    )
}

/// The reason if this machine has no problem.
fn unanswered(facts: &Facts, error: &Error) -> Missing {
    if error.kind() != ErrorKind::TimedOut {
        return Missing::of(error);
    }
    let interface = facts.interface.as_deref().unwrap_or("the interface");
    Missing::new(
        format!("no neighbour answers for {} on {interface}", facts.to),
        format!("check that the peer is up and on that network (ip neigh show dev {interface})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let own: IpAddr = [10, 0, 0, 1].into();
        let port = PortFacts {
            name: "mlx5_0 port 1".into(),
            state: "ACTIVE".into(),
            is_active: true,
            interfaces: vec!["eth0".into()],
            addresses: vec![own],
        };
        let to = [10, 0, 0, 2].into();
        Facts { to, source: Ok(own), interface: Some("eth0".into()), ports: vec![port] }
    }

    fn what(change: impl FnOnce(&mut Facts)) -> String {
        let mut facts = facts();
        change(&mut facts);
        facts.problem().expect("a problem").what
    }

    #[test]
    fn each_obstacle_is_reported() {
        assert!(facts().problem().is_none());
        let text = what(|facts| facts.source = Err(Errno::ENETUNREACH));
        assert!(text.contains("no route to 10.0.0.2"), "{text}");
        let text = what(|facts| facts.interface = Some("wlan0".into()));
        assert!(text.contains("leave by wlan0, which no RDMA device has"), "{text}");
        let text = what(|facts| facts.ports[0].addresses.clear());
        assert!(text.contains("mlx5_0 port 1 has no GID for the own address 10.0.0.1"), "{text}");
        let text = what(|facts| {
            facts.ports[0].is_active = false;
            facts.ports[0].state = "DOWN".into();
        });
        assert!(text.contains("mlx5_0 port 1 is DOWN"), "{text}");
    }

    #[test]
    fn the_cure_names_rdma_interfaces() {
        let mut facts = facts();
        facts.interface = Some("wlan0".into());
        assert!(facts.problem().unwrap().cure.contains("eth0"));
        facts.ports.clear();
        assert!(facts.problem().unwrap().cure.contains("software device"));
    }

    #[test]
    fn a_port_after_the_address_is_ignored() {
        let ip = |text: &str| parse_or_look_up(text).ok().map(|address| address.ip().to_string());
        assert_eq!(ip("10.9.9.9:7471").as_deref(), Some("10.9.9.9"));
        assert_eq!(ip("[2001:db8::1]:7471").as_deref(), Some("2001:db8::1"));
        assert_eq!(ip("2001:db8::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(ip("[fe80::1%lo]:7471").as_deref(), Some("fe80::1"));
        assert_eq!(ip("10.9.9.9:port"), None);
    }

    #[test]
    fn loopback_addresses_are_routed_by_the_loopback_interface() {
        let own: IpAddr = [127, 0, 0, 1].into();
        assert_eq!(route(SocketAddr::new(own, 1)), Ok(own));
        assert_eq!(interface_of(own).as_deref(), Some("lo"));
    }
}
