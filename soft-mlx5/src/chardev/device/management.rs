//! Who takes the device's management datagrams.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::core::Datagram;

/// Takes what arrives at QP1. Both are called with the core locked: they must be quick and must not
/// call the device.
pub(crate) trait ManagementAgent: std::fmt::Debug + Send + Sync {
    /// A datagram arrived.
    fn datagram(&self, datagram: Datagram);

    /// The device is gone.
    fn removed(&self);
}

/// The agent of a device, once there is one.
pub(crate) type Agent = Arc<dyn ManagementAgent>;
