//! Sizes of a queue pair's rings.

use uverbs_mlx5::send_queue::Service;
use uverbs_mlx5::size::{self, DeviceLimits, Operations, RecvSize, SendSize, SendWanted};

use crate::error::Result;
use crate::mlx5::sizes::refused;

const VERB: &str = "create_qp";

/// Capacities of a queue pair: those requested, and later those granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacities {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receives that may be outstanding.
    pub max_recv_wr: u32,
    /// SGEs per send request.
    pub max_send_sge: u32,
    /// SGEs per receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data per send request.
    pub max_inline_data: u32,
}

/// The rings of a queue pair in one buffer: receives, then sends. The receive ring is at least as
/// long as one block of the send ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rings {
    pub(super) send: SendSize,
    pub(super) receive: RecvSize,
}

impl Rings {
    /// Rings for `wanted`, where each send is any of `operations`.
    pub(super) fn new(
        service: Service,
        operations: Operations,
        wanted: &Capacities,
        tso_header: u32,
        limits: &DeviceLimits,
    ) -> Result<Self> {
        let sends = SendWanted {
            requests: wanted.max_send_wr,
            sge: wanted.max_send_sge,
            inline: wanted.max_inline_data,
            tso_header,
            operations,
        };
        let send = size::send_queue(service, sends, limits).map_err(|error| {
            let Capacities { max_send_wr, max_send_sge, max_inline_data, .. } = wanted;
            let asked = format!(
                "{max_send_wr} sends of {max_send_sge} SGEs, {max_inline_data} bytes inline"
            );
            refused(VERB, error, asked)
        })?;
        let (receives, sge) = (wanted.max_recv_wr, wanted.max_recv_sge);
        let receive = size::recv_queue(receives, sge, 0, limits)
            .map_err(|error| refused(VERB, error, format!("{receives} receives of {sge} SGEs")))?;
        Ok(Self { send, receive })
    }

    /// The granted capacities.
    pub(super) fn capacities(&self) -> Capacities {
        Capacities {
            max_send_wr: self.send.requests,
            max_recv_wr: self.receive.requests,
            max_send_sge: self.send.sge.max(1),
            max_recv_sge: self.receive.sge,
            max_inline_data: self.send.inline,
        }
    }
}

#[cfg(test)]
mod tests;
