//! Resolving the peer's address and the route to it.

use uverbs_uapi::cm::event::EventType;

use super::bind::Wanted;
use super::id::Id;
use super::{
    Address, Addresses, Cma, CmaError, CmaEvent, CmaId, CmaState, Interface, Route, flow_label,
    is_any,
};
use crate::ib_cm::Path;

const MILLISECOND: u64 = 1_000_000;

/// Interval between lookups of a neighbour that does not answer.
const LOOKUP_INTERVAL: u64 = 100 * MILLISECOND;

/// The packet lifetime of RoCE paths as a code (`CMA_IBOE_PACKET_LIFETIME`).
const ROCE_LIFE: u8 = 16;

/// The arguments of [`Cma::resolve_addr`].
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The local address, if the user gives one.
    pub source: Option<Address>,
    /// The peer's address.
    pub destination: Address,
    /// The time in which the neighbour must answer.
    pub timeout_ms: u32,
}

impl Cma {
    /// Finds the device and the neighbour for an address; ADDR_RESOLVED or ADDR_ERROR follows.
    ///
    /// # Errors
    /// EINVAL unless the id is idle or bound, or if the address families differ; errors of
    /// [`Cma::bind`]; ENETUNREACH if there is no route.
    pub fn resolve_addr(
        &mut self,
        now: u64,
        id: CmaId,
        target: &Target,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        self.prepare(id, target, addresses)?;
        self.advance(id, CmaState::AddrBound, CmaState::AddrQuery)?;
        let route = self.find_route(id, target, addresses).inspect_err(|_| {
            let _ = self.advance(id, CmaState::AddrQuery, CmaState::AddrBound);
        })?;
        let entry = self.id_mut(id)?;
        entry.deadline = now + u64::from(target.timeout_ms) * MILLISECOND;
        entry.route = Some(route);
        self.find_neighbour(now, id, addresses);
        Ok(())
    }

    /// Binds an idle id (`resolve_prepare_src`).
    fn prepare(
        &mut self,
        id: CmaId,
        target: &Target,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        let destination = Some(target.destination);
        match self.id(id)?.state {
            CmaState::AddrBound => {}
            CmaState::Idle => {
                let source = target.source.unwrap_or_else(|| target.destination.any());
                self.bind_to(id, Wanted { source, destination, privileged: false }, addresses)?;
            }
            _ => return Err(CmaError::INVALID),
        }
        let entry = self.id_mut(id)?;
        entry.destination = destination;
        let family = entry.source.map(|source| source.family());
        if family == Some(target.destination.family()) { Ok(()) } else { Err(CmaError::INVALID) }
    }

    fn find_route(
        &self,
        id: CmaId,
        target: &Target,
        addresses: &dyn Addresses,
    ) -> Result<Route, CmaError> {
        let entry = self.id(id)?;
        if !target.destination.has_default_pkey() {
            return Err(CmaError::NO_DEVICE);
        }
        let source = entry.at.and(entry.source).map(|source| source.as_ip().ip());
        addresses.route(source, target.destination.as_ip(), entry.space)
    }

    /// Looks up the neighbour of an id.
    fn find_neighbour(&mut self, now: u64, id: CmaId, addresses: &dyn Addresses) {
        let Some(entry) = self.ids.get_mut(&id).filter(|entry| entry.state == CmaState::AddrQuery)
        else {
            return;
        };
        let Some(route) = entry.route else { return };
        if addresses.answers(now, route.device, &route.addressing) {
            entry.note_route(&route);
            self.events.push_back(CmaEvent::new(id, EventType::ADDR_RESOLVED));
        } else if now >= entry.deadline {
            (entry.state, entry.route) = (CmaState::AddrBound, None);
            let mut event = CmaEvent::new(id, EventType::ADDR_ERROR);
            event.status = -libc::ETIMEDOUT;
            self.events.push_back(event);
        } else {
            let at = entry.deadline.min(now + LOOKUP_INTERVAL);
            entry.lookup = Some(at);
            self.lookups.insert((at, id));
        }
    }

    pub(super) fn retry_lookups(&mut self, now: u64, addresses: &dyn Addresses) {
        while let Some((at, id)) = self.lookups.first().copied().filter(|(at, _)| *at <= now) {
            self.lookups.remove(&(at, id));
            self.find_neighbour(now, id, addresses);
        }
    }

    /// Finds the path to the peer; ROUTE_RESOLVED follows.
    ///
    /// # Errors
    /// EINVAL unless the address is resolved, or for a timeout of 0; ENODEV for an InfiniBand
    /// address over Ethernet.
    pub fn resolve_route(&mut self, id: CmaId, timeout_ms: u32) -> Result<(), CmaError> {
        if timeout_ms == 0 {
            return Err(CmaError::INVALID);
        }
        let mtu = self.device_of(id)?.info.mtu;
        self.need_net_device(id)?;
        let entry = self.advance(id, CmaState::AddrResolved, CmaState::RouteResolved)?;
        entry.path = entry.route.map(|route| entry.path_of(&route, mtu));
        self.events.push_back(CmaEvent::new(id, EventType::ROUTE_RESOLVED));
        Ok(())
    }

    /// Fails if the path needs a network device that is not known. A path over Ethernet needs one,
    /// and only IP addresses determine it (`cma_iboe_set_path_rec_l2_fields`).
    fn need_net_device(&self, id: CmaId) -> Result<(), CmaError> {
        let is_resolved = self.id(id)?.state == CmaState::AddrResolved;
        match is_resolved && self.lacks_net_device(id)? {
            true => Err(CmaError::NO_DEVICE),
            false => Ok(()),
        }
    }

    /// Whether the id's device is an Ethernet one, but its address an InfiniBand address, which
    /// does not identify a network device.
    pub(super) fn lacks_net_device(&self, id: CmaId) -> Result<bool, CmaError> {
        let is_ethernet = !self.device_of(id)?.info.infiniband;
        Ok(is_ethernet && self.id(id)?.has_ib_address())
    }

    /// Finds the route to a wildcard address again.
    pub(super) fn route_anew(
        &mut self,
        id: CmaId,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        let entry = self.id(id)?;
        let (Some(Address::Ip(to)), Some(known)) = (entry.destination, entry.route) else {
            return Ok(());
        };
        if !is_any(to.ip()) {
            return Ok(());
        }
        let route = addresses.route(Some(known.source), to, entry.space)?;
        let entry = self.id_mut(id)?;
        entry.route = Some(route);
        if let Some(path) = &mut entry.path {
            let (from, to) = (&route.addressing, &mut path.addressing);
            (to.source, to.destination) = (from.source, from.destination);
            (to.source_lid, to.destination_lid) = (from.source_lid, from.destination_lid);
            to.destination_mac = from.destination_mac;
        }
        Ok(())
    }

    /// The route to a peer whose address is resolved.
    pub fn route(&self, id: CmaId) -> Option<Route> {
        self.ids.get(&id)?.route
    }

    /// Uses the caller's path instead of searching for one; ROUTE_RESOLVED follows
    /// (`rdma_set_ib_path`).
    ///
    /// # Errors
    /// EINVAL unless the address is resolved; ENODEV for an InfiniBand address over Ethernet.
    pub fn set_path(&mut self, id: CmaId, path: Path) -> Result<(), CmaError> {
        self.need_net_device(id)?;
        let entry = self.advance(id, CmaState::AddrResolved, CmaState::RouteResolved)?;
        entry.path = Some(path);
        self.events.push_back(CmaEvent::new(id, EventType::ROUTE_RESOLVED));
        Ok(())
    }

    pub(super) fn device_of(&self, id: CmaId) -> Result<&super::Device, CmaError> {
        let at = self.id(id)?.at.ok_or(CmaError::INVALID)?;
        self.devices.get(at.device).ok_or(CmaError::INVALID)
    }
}

impl Id {
    /// Records the resolved route (`addr_handler`), whose source becomes the local address.
    fn note_route(&mut self, route: &Route) {
        self.state = CmaState::AddrResolved;
        self.at = Some(Interface { device: route.device, gid: route.addressing.source });
        match &mut self.source {
            Some(Address::Ip(source)) => source.set_ip(route.source),
            Some(Address::Ib(source)) => source.addr = route.addressing.source.0,
            None => {}
        }
    }

    /// The path along a route (`cma_resolve_iboe_route`).
    pub(super) fn path_of(&self, route: &Route, mtu: u8) -> Path {
        let mut addressing = route.addressing;
        addressing.traffic_class = self.settings.tos.unwrap_or(0);
        addressing.flow_label = self.flow_label();
        let life = self.settings.ack_timeout.map_or(ROCE_LIFE, |timeout| timeout.saturating_sub(1));
        Path { addressing, pkey: 0xffff, mtu, rate: 0, life }
    }

    /// The flow label: that of the IPv6 source address if it has one, else a hash of the ports
    /// (`cma_get_roce_udp_flow_label`).
    pub(super) fn flow_label(&self) -> u32 {
        let port = |address: Option<Address>| address.map_or(0, |address| address.port());
        match self.source {
            Some(Address::Ip(std::net::SocketAddr::V6(v6))) if v6.flowinfo() & 0xf_ffff != 0 => {
                v6.flowinfo() & 0xf_ffff
            }
            source => flow_label(port(source), port(self.destination)),
        }
    }
}
