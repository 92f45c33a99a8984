//! From what a program asks of a queue pair to the rings that hold it.

#![forbid(unsafe_code)]

use uverbs_mlx5::send_queue::Service;
use uverbs_mlx5::size::{self, DeviceLimits, Operations, RecvSize, SendSize, SendWanted};

use crate::error::Result;
use crate::sizes::refused;

const VERB: &str = "create_qp";

/// What a program asks of a queue pair, and later what it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Send requests that may be outstanding.
    pub send_requests: u32,
    /// Receives that may be outstanding.
    pub receives: u32,
    /// Pieces of memory per send request.
    pub send_sge: u32,
    /// Pieces of memory per receive.
    pub receive_sge: u32,
    /// Bytes of inline data per send request.
    pub inline_bytes: u32,
}

/// The rings of a queue pair in one buffer: receives first, and as long as a block of the sends at least.
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
            requests: wanted.send_requests,
            sge: wanted.send_sge,
            inline: wanted.inline_bytes,
            tso_header,
            operations,
        };
        let send = size::send_queue(service, sends, limits).map_err(|error| {
            let Capacities { send_requests, send_sge, inline_bytes, .. } = wanted;
            let asked =
                format!("{send_requests} sends of {send_sge} pieces, {inline_bytes} bytes inline");
            refused(VERB, error, asked)
        })?;
        let (receives, sge) = (wanted.receives, wanted.receive_sge);
        let receive = size::recv_queue(receives, sge, 0, limits).map_err(|error| {
            refused(VERB, error, format!("{receives} receives of {sge} pieces"))
        })?;
        Ok(Self { send, receive })
    }

    /// What was granted.
    pub(super) fn capacities(&self) -> Capacities {
        Capacities {
            send_requests: self.send.requests,
            receives: self.receive.requests,
            send_sge: self.send.sge.max(1),
            receive_sge: self.receive.sge,
            inline_bytes: self.send.inline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DeviceLimits = DeviceLimits {
        send_wqe_bytes: 1024,
        recv_wqe_bytes: 512,
        send_wqebbs: 1 << 15,
        recv_wqes: 1 << 15,
        srq_wqes: 1 << 15,
        cqes: 1 << 22,
    };

    fn rings(sends: u32, receives: u32, sge: u32) -> Result<Rings> {
        let wanted = Capacities {
            send_requests: sends,
            receives,
            send_sge: sge,
            receive_sge: sge,
            inline_bytes: 0,
        };
        Rings::new(Service::Rc, Operations::all(), &wanted, 0, &LIMITS)
    }

    #[test]
    fn grants_what_was_asked() {
        let granted = rings(100, 100, 3).unwrap().capacities();
        assert!(granted.send_requests >= 100 && granted.send_sge >= 3);
        assert_eq!((granted.receives, granted.receive_sge), (128, 4));
    }

    #[test]
    fn refuses_and_says_what_was_asked() {
        let error = rings(1 << 20, 1, 1).unwrap_err().to_string();
        assert!(error.contains("too deep") && error.contains("1048576 sends"), "{error}");
        let error = rings(1, 1, 33).unwrap_err().to_string();
        assert!(error.contains("1 receives of 33 pieces"), "{error}");
    }
}
