//! Ids and their state.

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::enums::QpType;

use super::multicast::Membership;
use super::{Address, DeviceNumber, Interface, Route};
use crate::ib_cm::{CmId, Path};

/// Identifies an id of one [`Cma`](super::Cma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmaId(pub u64);

/// State of an id (`enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmaState {
    /// New.
    #[default]
    Idle,
    /// Resolving the neighbour's address.
    AddrQuery,
    /// Device and peer address are known.
    AddrResolved,
    /// The path is known.
    RouteResolved,
    /// A request was sent or received, or a connection is established.
    Connect,
    /// The connection has ended.
    Disconnect,
    /// The id has an address and a port.
    AddrBound,
    /// The id accepts requests.
    Listen,
    /// The device was removed.
    DeviceRemoval,
}

/// Options set by the user (`rdma_set_…`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub(super) tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse: bool,
    pub(super) family_only: Option<bool>,
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) state: CmaState,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) source: Option<Address>,
    pub(super) destination: Option<Address>,
    /// Device and local address, once bound to a device.
    pub(super) at: Option<Interface>,
    pub(super) route: Option<Route>,
    /// Known after route resolution, or from the peer's request.
    pub(super) path: Option<Path>,
    /// The id of the device's engine.
    pub(super) cm: Option<CmId>,
    /// Service ids that it listens to, by device.
    pub(super) listeners: Vec<(DeviceNumber, u64)>,
    pub(super) settings: Settings,
    /// First PSN to expect from the peer.
    pub(super) psn: u32,
    pub(super) qkey: u32,
    /// When the search for a neighbour fails.
    pub(super) deadline: u64,
    /// When the next lookup of the neighbour is due.
    pub(super) lookup: Option<u64>,
    pub(super) memberships: Vec<Membership>,
}

impl Id {
    pub(super) fn new(space: PortSpace, qp_type: QpType, psn: u32) -> Self {
        let (source, destination, at, route, path, cm) = Default::default();
        let (listeners, memberships) = Default::default();
        Self {
            state: CmaState::Idle,
            space,
            qp_type,
            source,
            destination,
            at,
            route,
            path,
            cm,
            listeners,
            settings: Settings::default(),
            psn,
            qkey: 0,
            deadline: 0,
            lookup: None,
            memberships,
        }
    }

    pub(super) fn engine_id(&self) -> Option<(DeviceNumber, CmId)> {
        Some((self.at?.device, self.cm?))
    }

    pub(super) fn take_engine_id(&mut self) -> Option<(DeviceNumber, CmId)> {
        let found = self.engine_id();
        self.cm = None;
        found
    }

    /// Whether it listens on one device. In the kernel such an id has an engine id without a
    /// connection.
    pub(super) fn is_device_listener(&self) -> bool {
        self.state == CmaState::Listen && self.at.is_some()
    }

    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::UD
    }

    /// The peer's address; without one, the wildcard of the local address's family.
    pub(super) fn destination(&self) -> Option<Address> {
        self.destination.or_else(|| Some(self.source?.any()))
    }

    /// Whether its addresses are InfiniBand addresses instead of IP addresses.
    pub(super) fn has_ib_address(&self) -> bool {
        matches!(self.source, Some(Address::Ib(_)))
    }

    /// Bytes of rdma_cm's header before the user's private data.
    pub(super) fn private_offset(&self) -> usize {
        match self.source {
            Some(Address::Ip(_)) => size_of::<crate::mad::CmaHdr>(),
            _ => 0,
        }
    }
}
