//! Who takes the device's management datagrams.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::core::Datagram;
use crate::wire::Station;

/// Takes what arrives at QP1. It is called with the core or the device's worker locked: it must be
/// quick and must not call the device.
pub(crate) trait ManagementAgent: std::fmt::Debug + Send + Sync {
    /// A datagram arrived.
    fn datagram(&self, datagram: Datagram);

    /// The process with this station has ended, after all that it sent.
    fn peer_ended(&self, station: Station);

    /// The device is gone.
    fn removed(&self);
}

/// The agent of a device, once there is one.
pub(crate) type Agent = Arc<dyn ManagementAgent>;
