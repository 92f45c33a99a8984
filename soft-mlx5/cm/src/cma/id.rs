//! Ids and what rdma_cm knows of each.

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::enums::QpType;

use super::multicast::Membership;
use super::{Address, DeviceNumber, Interface, Route};
use crate::ib_cm::{CmId, Path};

/// Names an id of one [`Cma`](super::Cma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmaId(pub u32);

/// State of an id (`enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmaState {
    /// New.
    #[default]
    Idle,
    /// A neighbour is looked for.
    AddrQuery,
    /// Device and peer are known.
    AddrResolved,
    /// The path is known.
    RouteResolved,
    /// A request is under way, or there is a connection.
    Connect,
    /// The connection is over.
    Disconnect,
    /// The id has an address and a port.
    AddrBound,
    /// The id takes requests.
    Listen,
    /// The device is gone.
    DeviceRemoval,
}

/// What the user set (`rdma_set_…`).
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
    /// Device and own address, once bound to a device.
    pub(super) at: Option<Interface>,
    pub(super) route: Option<Route>,
    /// Known from route resolution or the peer's request on.
    pub(super) path: Option<Path>,
    /// The conversation with the peer, in the device's engine.
    pub(super) cm: Option<CmId>,
    /// Service ids listened on, by device.
    pub(super) listeners: Vec<(DeviceNumber, u64)>,
    pub(super) settings: Settings,
    /// First PSN to expect.
    pub(super) psn: u32,
    pub(super) qkey: u32,
    /// When the search for a neighbour ends.
    pub(super) deadline: u64,
    /// When it goes on.
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

    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::UD
    }

    /// The peer's address; before there is one, the wildcard of the local address's family.
    pub(super) fn destination(&self) -> Option<Address> {
        self.destination.or_else(|| Some(self.source?.any()))
    }

    /// Whether it has an InfiniBand address, and none of IP.
    pub(super) fn has_ib_address(&self) -> bool {
        matches!(self.source, Some(Address::Ib(_)))
    }

    /// Bytes of private data that rdma_cm puts in front of the user's.
    pub(super) fn private_offset(&self) -> usize {
        match self.source {
            Some(Address::Ip(_)) => size_of::<crate::mad::CmaHdr>(),
            _ => 0,
        }
    }
}
