//! The receiver of the device's management datagrams.
#![forbid(unsafe_code)]

use std::iter;
use std::sync::Arc;

use uverbs_soft_cm::ib_cm::{IbCm, IbCmConfig, Outgoing};
use zerocopy::IntoBytes;

use crate::core::{DATAGRAM_LEN, Datagram};
use crate::wire::Station;

/// Takes the datagrams that arrive at QP1. Its methods are called with the core or the device's
/// worker locked: they must be quick and must not call the device.
pub(crate) trait ManagementAgent: std::fmt::Debug + Send + Sync {
    /// A datagram arrived.
    fn datagram(&self, datagram: Datagram);

    /// The process with this station has ended. Everything that it sent has been delivered.
    fn peer_ended(&self, station: Station);

    /// The device was removed.
    fn removed(&self);
}

/// The agent of a device, once there is one.
pub(crate) type Agent = Arc<dyn ManagementAgent>;

/// Answers a datagram for a device without agent. The kernel's ib_cm serves a device even if no
/// program has opened rdma_cm: it refuses requests, because no id listens, and agrees to
/// disconnects of connections that it does not know.
pub(crate) fn answer_without_agent(datagram: &Datagram) -> Vec<Datagram> {
    // A fixed seed is harmless, because this engine creates no ids that a peer could guess.
    let mut engine = IbCm::new(IbCmConfig { seed: Some(0), ..IbCmConfig::default() });
    engine.receive(0, &datagram.addressing, &datagram.bytes[..]);
    iter::from_fn(|| engine.take_mad()).map(|out| outgoing(&out)).collect()
}

/// An outgoing message of connection management, as the core takes it.
pub(crate) fn outgoing(out: &Outgoing) -> Datagram {
    let mut bytes = Box::new([0; DATAGRAM_LEN]);
    bytes.copy_from_slice(out.mad.as_bytes());
    Datagram { addressing: out.addressing, bytes }
}
