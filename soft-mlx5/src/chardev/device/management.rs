//! The receiver of the device's management datagrams.
#![forbid(unsafe_code)]

use std::iter;
use std::sync::Arc;

use uverbs_soft_cm::ib_cm::{IbCm, IbCmConfig, Outgoing};
use zerocopy::IntoBytes;

use crate::core::{DATAGRAM_LEN, Datagram};
use crate::wire::Station;

/// Takes what arrives at QP1. It is called with the core or the device's worker locked: it must be
/// quick and must not call the device.
pub(crate) trait ManagementAgent: std::fmt::Debug + Send + Sync {
    /// A datagram arrived.
    fn datagram(&self, datagram: Datagram);

    /// The process with this station has ended. All that it sent has arrived before.
    fn peer_ended(&self, station: Station);

    /// The device is gone.
    fn removed(&self);
}

/// The agent of a device, once there is one.
pub(crate) type Agent = Arc<dyn ManagementAgent>;

/// Answers a datagram for a device without agent. The kernel's ib_cm serves a device even if no
/// program has opened rdma_cm: it refuses requests, because no id listens, and agrees to
/// disconnects of connections that it does not know.
pub(crate) fn answer_without_agent(datagram: &Datagram) -> Vec<Datagram> {
    // It makes no ids, so none can be guessed from the seed.
    let mut engine = IbCm::new(IbCmConfig { seed: Some(0), ..IbCmConfig::default() });
    engine.receive(0, &datagram.addressing, &datagram.bytes[..]);
    iter::from_fn(|| engine.take_mad()).map(|out| outgoing(&out)).collect()
}

/// What connection management sends, as the core takes it.
pub(crate) fn outgoing(out: &Outgoing) -> Datagram {
    let mut bytes = Box::new([0; DATAGRAM_LEN]);
    bytes.copy_from_slice(out.mad.as_bytes());
    Datagram { addressing: out.addressing, bytes }
}
