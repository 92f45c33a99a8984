//! The kernel's rdma_cm: ids that bind, resolve, listen and connect by IP addresses. It behaves
//! like Linux's `drivers/infiniband/core/cma.c`, but has no I/O and no clock.
//!
//! A [`Cma`] belongs to a host. It has devices, each with an engine [`IbCm`], and ids ([`CmaId`]).
//! Its inputs are calls of its user, datagrams ([`Cma::receive`]) and the time ([`Cma::step`]); its
//! outputs are datagrams ([`Cma::take_mad`]) and events ([`Cma::take_event`]). It queries the IP
//! stack through [`Addresses`]. Times are nanoseconds of a monotonic clock.
//!
//! [`service_id`] and [`flow_label`] derive InfiniBand's values from IP ports. [`Ports`] holds the
//! port spaces in which ids bind.
//!
//! Differences from the kernel:
//! - events wait until they are taken, so a user that refuses a request with its event handler's
//!   result calls [`Cma::forget`] or [`Cma::destroy`] instead;
//! - an InfiniBand address is looked up as a neighbour when it is resolved, since there is no
//!   subnet manager to ask for its path;
//! - a peer that does not answer neighbour discovery when a message to it is repeated counts as
//!   ended; the kernel makes all repeats first;
//! - kernel-owned queue pairs do not exist: as user space does, the user moves its queue pair and
//!   passes its number.

mod address;
mod attributes;
mod bind;
mod connect;
mod id;
mod incoming;
mod multicast;
mod options;
mod ports;
mod query;
mod resolve;

pub use address::{Address, Addresses, Interface, Route};
pub use id::{CmaId, CmaState};
pub use multicast::MembershipId;
pub use ports::{BindError, Binding, Ports};
pub use resolve::Target;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::connect::{ConnParam, Ece};
use uverbs_uapi::cm::event::{EventType, UdParam};
use uverbs_uapi::enums::QpType;

use self::id::Id;
use super::ib_cm::{CmError, CmId, IbCm, IbCmConfig, Outgoing};
use uverbs_soft_packet::prng::RandomSource;
use uverbs_soft_packet::{Addressing, Gid};

/// The service id of a listener at a port (IBTA annex A11).
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space.0 as u64) << 16 | port as u64
}

/// Flow label of a RoCE v2 path between two ports (`rdma_calc_flow_label`), 20 bits.
pub const fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (source_port as u32 * 31 + destination_port as u32) & 0xf_ffff
}

/// Whether an address is a wildcard, which stands for every address of the machine. These are the
/// unspecified addresses, and for rdma_cm also those of the loopback interface (`cma_any_addr`).
pub fn is_any(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// Why a call failed: the kernel's errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("errno {0}")]
pub struct CmaError(pub i32);

impl CmaError {
    /// The id's state does not allow the call, or an argument is wrong.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// No RDMA device for an address.
    pub const NO_DEVICE: Self = Self(libc::ENODEV);
    /// Linux's internal ENOTSUPP, which reaches user space although `errno.h` does not define it.
    pub const NOT_SUPPORTED: Self = Self(524);
}

impl From<CmError> for CmaError {
    fn from(error: CmError) -> Self {
        Self(error.errno())
    }
}

impl From<BindError> for CmaError {
    fn from(error: BindError) -> Self {
        Self(error.errno())
    }
}

/// A GID table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidSlot {
    /// The GID; zero if the slot is unused.
    pub gid: Gid,
    /// Whether it is of the port's default type: RoCE v2, or InfiniBand.
    pub is_default_type: bool,
}

/// The properties of a device that rdma_cm uses.
#[derive(Clone, Debug, Default)]
pub struct DeviceInfo {
    /// GUID of the device.
    pub node_guid: [u8; 8],
    /// The host's number of the device, which queries return.
    pub index: u32,
    /// GID table.
    pub gids: Vec<GidSlot>,
    /// Path MTU as a code.
    pub mtu: u8,
    /// The time in which the device acknowledges a packet: `4.096 us << n` (`local_ca_ack_delay`).
    pub ack_delay: u8,
    /// Whether the port is an InfiniBand one.
    pub infiniband: bool,
    /// The MAC address of a neighbour, for the paths of requests.
    pub mac_of: Option<fn(Gid) -> [u8; 6]>,
    /// Maps the GID of a device to the source GID in its packets; `None` if they are the same.
    pub gid_on_wire: Option<fn(Gid) -> Gid>,
}

/// Identifies a device of a [`Cma`].
pub type DeviceNumber = usize;

#[derive(Debug)]
struct Device {
    info: DeviceInfo,
    engine: IbCm,
    is_removed: bool,
}

/// An event's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    None,
    /// Of a connected id.
    Conn(Box<ConnParam>),
    /// Of a UD id.
    Ud(Box<UdParam>),
}

/// An event of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmaEvent {
    /// The id; for a connection request, the new one.
    pub id: CmaId,
    /// For a connection request: the id that listens.
    pub listener: Option<CmaId>,
    /// For a multicast event: the membership.
    pub membership: Option<MembershipId>,
    /// What happened.
    pub event: EventType,
    /// Zero, a negative errno, or a positive reject reason of the peer.
    pub status: i32,
    /// The event's parameters.
    pub payload: Payload,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
}

impl CmaEvent {
    fn new(id: CmaId, event: EventType) -> Self {
        Self {
            id,
            listener: None,
            membership: None,
            event,
            status: 0,
            payload: Payload::None,
            ece: Ece::default(),
        }
    }
}

/// Configuration of a [`Cma`].
#[derive(Clone, Debug)]
pub struct CmaConfig {
    /// Ports for ids that bind to port 0 (`ip_local_port_range`).
    pub ephemeral: RangeInclusive<u16>,
    /// Seed of ports, packet sequence numbers and communication ids; `None` makes them
    /// unpredictable.
    pub seed: Option<u64>,
}

impl Default for CmaConfig {
    /// Linux's default range of ports; no seed.
    fn default() -> Self {
        Self { ephemeral: 32768..=60999, seed: None }
    }
}

/// The engine's id for a service id, and the rdma_cm ids that share it.
#[derive(Debug)]
struct Listening {
    cm: CmId,
    ids: BTreeSet<CmaId>,
}

/// The rdma_cm of one host.
#[derive(Debug)]
pub struct Cma {
    devices: Vec<Device>,
    ids: HashMap<CmaId, Id>,
    next: u64,
    next_membership: u64,
    /// The ids by the engine's ids.
    of_engine: HashMap<(DeviceNumber, CmId), CmaId>,
    /// The listening ids, by service id.
    listening: HashMap<(DeviceNumber, u64), Listening>,
    ports: Ports<CmaId>,
    events: VecDeque<CmaEvent>,
    /// When neighbours are looked up again.
    lookups: BTreeSet<(u64, CmaId)>,
    random: RandomSource,
}

impl Cma {
    /// A host without devices.
    pub fn new(config: CmaConfig) -> Self {
        let mut random = RandomSource::new(config.seed);
        let ports_seed = config.seed.map(|_| random.draw());
        Self {
            devices: Vec::new(),
            ids: HashMap::new(),
            next: 0,
            next_membership: 0,
            of_engine: HashMap::new(),
            listening: HashMap::new(),
            ports: Ports::new(config.ephemeral, ports_seed),
            events: VecDeque::new(),
            lookups: BTreeSet::new(),
            random,
        }
    }

    /// Adds a device. Ids that listen on all devices also listen on the new one.
    pub fn add_device(&mut self, info: DeviceInfo, seed: Option<u64>) -> DeviceNumber {
        let node_guid = u64::from_be_bytes(info.node_guid);
        let DeviceInfo { ack_delay, gid_on_wire, .. } = info;
        let config = IbCmConfig { node_guid, ack_delay, seed, gid_on_wire };
        let number = self.devices.len();
        self.devices.push(Device { info, engine: IbCm::new(config), is_removed: false });
        let wide: Vec<CmaId> = self.ids_where(|id| id.state == CmaState::Listen && id.at.is_none());
        for id in wide {
            // Fails only if the id was destroyed.
            let _ = self.listen_on(id, number);
        }
        number
    }

    /// Removes a device. Its ids get a last event (`cma_process_remove`).
    pub fn remove_device(&mut self, now: u64, device: DeviceNumber) {
        let Some(entry) = self.devices.get_mut(device) else { return };
        entry.is_removed = true;
        let bound = self.ids_where(|id| id.at.is_some_and(|at| at.device == device));
        for id in bound {
            self.leave_engine(now, id);
            if let Some(entry) = self.ids.get_mut(&id) {
                entry.state = CmaState::DeviceRemoval;
            }
            self.events.push_back(CmaEvent::new(id, EventType::DEVICE_REMOVAL));
        }
        self.listening.retain(|(number, _), _| *number != device);
    }

    fn ids_where(&self, is_one: impl Fn(&Id) -> bool) -> Vec<CmaId> {
        let mut ids: Vec<CmaId> =
            self.ids.iter().filter(|(_, id)| is_one(id)).map(|(number, _)| *number).collect();
        ids.sort_unstable();
        ids
    }

    /// Creates an id. `qp_type` is used for [`PortSpace::IB`] only.
    ///
    /// # Errors
    /// EINVAL for an unknown port space.
    pub fn create(&mut self, space: PortSpace, qp_type: QpType) -> Result<CmaId, CmaError> {
        let qp_type = match space {
            PortSpace::TCP => QpType::RC,
            PortSpace::UDP | PortSpace::IPOIB => QpType::UD,
            PortSpace::IB => qp_type,
            _ => return Err(CmaError::INVALID),
        };
        let psn = self.next_psn();
        Ok(self.insert(Id::new(space, qp_type, psn)))
    }

    fn next_psn(&mut self) -> u32 {
        self.random.draw() as u32 & 0xff_ffff
    }

    fn insert(&mut self, id: Id) -> CmaId {
        let number = CmaId(self.next);
        self.next += 1;
        self.ids.insert(number, id);
        number
    }

    /// Destroys an id. Its peer gets the message that its state requires. Its pending events are
    /// dropped.
    pub fn destroy(&mut self, now: u64, id: CmaId) {
        self.leave_engine(now, id);
        self.drop_id(id);
    }

    /// Destroys the id of a request without a message to the peer, which then retries the request.
    pub fn forget(&mut self, id: CmaId) {
        if let Some((device, cm)) = self.ids.get(&id).and_then(Id::engine_id) {
            self.of_engine.remove(&(device, cm));
            let _ = self.devices[device].engine.forget(cm);
        }
        self.drop_id(id);
    }

    fn drop_id(&mut self, id: CmaId) {
        self.ports.release(id);
        self.events.retain(|event| event.id != id);
        let lookup = self.ids.remove(&id).and_then(|entry| entry.lookup);
        lookup.map(|at| self.lookups.remove(&(at, id)));
    }

    /// Destroys an id's engine id and its listeners.
    fn leave_engine(&mut self, now: u64, id: CmaId) {
        self.stop_listening(now, id);
        let Some((device, cm)) = self.ids.get_mut(&id).and_then(Id::take_engine_id) else { return };
        self.of_engine.remove(&(device, cm));
        let _ = self.devices[device].engine.destroy(now, cm);
    }

    /// State of an id; `None` if there is no such id.
    pub fn state(&self, id: CmaId) -> Option<CmaState> {
        self.ids.get(&id).map(|id| id.state)
    }

    /// Type of the queue pair that an id connects.
    pub fn qp_type(&self, id: CmaId) -> Option<QpType> {
        self.ids.get(&id).map(|id| id.qp_type)
    }

    /// Whether an id is bound to a device.
    pub fn has_device(&self, id: CmaId) -> bool {
        self.ids.get(&id).is_some_and(|id| id.at.is_some())
    }

    /// How many ids there are.
    pub fn id_count(&self) -> usize {
        self.ids.len()
    }

    /// A device's engine.
    pub fn engine(&self, device: DeviceNumber) -> Option<&IbCm> {
        self.devices.get(device).map(|device| &device.engine)
    }

    fn id(&self, id: CmaId) -> Result<&Id, CmaError> {
        self.ids.get(&id).ok_or(CmaError(libc::ENOENT))
    }

    fn id_mut(&mut self, id: CmaId) -> Result<&mut Id, CmaError> {
        self.ids.get_mut(&id).ok_or(CmaError(libc::ENOENT))
    }

    /// Changes an id's state, if it is `from` (`cma_comp_exch`).
    fn advance(&mut self, id: CmaId, from: CmaState, to: CmaState) -> Result<&mut Id, CmaError> {
        let entry = self.id_mut(id)?;
        if entry.state != from {
            return Err(CmaError::INVALID);
        }
        entry.state = to;
        Ok(entry)
    }

    /// The next datagram to send, and the device that sends it.
    pub fn take_mad(&mut self) -> Option<(DeviceNumber, Outgoing)> {
        let mut devices = self.devices.iter_mut().enumerate();
        devices.find_map(|(number, device)| Some((number, device.engine.take_mad()?)))
    }

    /// The next event.
    pub fn take_event(&mut self) -> Option<CmaEvent> {
        self.events.pop_front()
    }

    /// Handles a datagram that arrived at a device's QP1.
    pub fn receive(&mut self, now: u64, device: DeviceNumber, from: &Addressing, bytes: &[u8]) {
        let Some(entry) = self.devices.get_mut(device).filter(|device| !device.is_removed) else {
            return;
        };
        entry.engine.receive(now, from, bytes);
        self.take_engine_events(now);
    }

    /// Handles the loss of a device's peers at these addresses: their processes ended without a
    /// message.
    pub fn lose_peers(
        &mut self,
        now: u64,
        device: DeviceNumber,
        is_lost: &dyn Fn(&Addressing) -> bool,
    ) {
        if let Some(entry) = self.devices.get_mut(device) {
            entry.engine.lose_peers(now, is_lost);
        }
        self.take_engine_events(now);
    }

    /// Handles everything that is due at `now`.
    pub fn step(&mut self, now: u64, addresses: &dyn Addresses) {
        for device in 0..self.devices.len() {
            self.step_engine(now, device, addresses);
        }
        self.take_engine_events(now);
        self.retry_lookups(now, addresses);
    }

    /// Retries messages, and checks that the receiver of each still exists: a process that ended
    /// before it learned of this device neither sends a message nor closes a connection.
    fn step_engine(&mut self, now: u64, device: DeviceNumber, addresses: &dyn Addresses) {
        let engine = &mut self.devices[device].engine;
        let mut silent = engine.step(now);
        silent.dedup_by_key(|to| to.destination);
        silent.retain(|to| !addresses.answers(now, device, to));
        if !silent.is_empty() {
            let is_lost =
                |to: &Addressing| silent.iter().any(|of| of.destination == to.destination);
            engine.lose_peers(now, &is_lost);
        }
    }

    /// When [`step`](Self::step) is due next; `None` until there is an input.
    pub fn next_wake(&self) -> Option<u64> {
        let engines = self.devices.iter().filter_map(|device| device.engine.next_wake());
        engines.chain(self.lookups.first().map(|(at, _)| *at)).min()
    }

    fn take_engine_events(&mut self, now: u64) {
        for device in 0..self.devices.len() {
            while let Some((cm, event)) = self.devices[device].engine.take_event() {
                self.on_engine_event(now, device, cm, event);
            }
        }
    }
}

#[cfg(test)]
mod tests;
