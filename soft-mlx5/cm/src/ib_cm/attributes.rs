//! The attributes of a queue pair's transitions (`ib_cm_init_qp_attr`).

use super::id::Id;
use super::{CmError, CmId, IbCm, Path, State};
use crate::mad::TransportService;

/// For RESET to INIT, in addition to port and P_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// Whether the peer may read and use atomics; it may always write.
    pub remote_read_and_atomic: bool,
}

/// For INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The path to the peer, and its MTU.
    pub path: Path,
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// RDMA reads and atomics that the peer may have in flight here; for RC and XRC targets. For
    /// these the kernel also sets the RNR timer to code 0.
    pub max_dest_rd_atomic: Option<u8>,
}

/// For RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// First PSN to send.
    pub sq_psn: u32,
    /// Retries after a timeout, retries after RNR, RDMA reads and atomics in flight; for RC and XRC
    /// initiators.
    pub requester: Option<Requester>,
    /// Local ACK timeout; for all but UC.
    pub timeout: Option<u8>,
}

/// The requester's part of [`RtsAttr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Retries after a timeout.
    pub retry_count: u8,
    /// Retries after RNR.
    pub rnr_retry_count: u8,
    /// RDMA reads and atomics to have in flight.
    pub max_rd_atomic: u8,
}

/// States in which the peer's queue pair is known.
const PEER_KNOWN: [State; 7] = [
    State::ReqReceived,
    State::MraReqSent,
    State::RepReceived,
    State::MraRepSent,
    State::RepSent,
    State::MraRepReceived,
    State::Established,
];

impl IbCm {
    /// Attributes for INIT.
    ///
    /// # Errors
    /// [`CmError::State`] without a request or a connection.
    pub fn init_attr(&self, id: CmId) -> Result<InitAttr, CmError> {
        let sent = [State::ReqSent, State::MraReqReceived];
        let entry = self.expect_state(id, &sent).or_else(|_| self.expect_state(id, &PEER_KNOWN))?;
        Ok(InitAttr { remote_read_and_atomic: entry.responder_resources != 0 })
    }

    /// Attributes for RTR.
    ///
    /// # Errors
    /// [`CmError::State`] unless the peer's queue pair is known.
    pub fn rtr_attr(&self, id: CmId) -> Result<RtrAttr, CmError> {
        let entry = self.expect_state(id, &PEER_KNOWN)?;
        Ok(RtrAttr {
            path: entry.path,
            dest_qpn: entry.remote_qpn,
            rq_psn: entry.rq_psn,
            max_dest_rd_atomic: entry.responds().then_some(entry.responder_resources),
        })
    }

    /// Attributes for RTS; also available before REP is sent.
    ///
    /// # Errors
    /// [`CmError::State`] unless the peer's queue pair is known.
    pub fn rts_attr(&self, id: CmId) -> Result<RtsAttr, CmError> {
        let entry = self.expect_state(id, &PEER_KNOWN)?;
        let requester = Requester {
            retry_count: entry.retry_count,
            rnr_retry_count: entry.rnr_retry_count,
            max_rd_atomic: entry.initiator_depth,
        };
        let uc = entry.transport == Some(TransportService::Uc);
        Ok(RtsAttr {
            sq_psn: entry.sq_psn,
            requester: entry.requests().then_some(requester),
            timeout: (!uc).then_some(entry.ack_timeout),
        })
    }
}

impl Id {
    fn requests(&self) -> bool {
        match self.transport {
            Some(TransportService::Xrc) => !self.xrc_target,
            transport => transport == Some(TransportService::Rc),
        }
    }

    fn responds(&self) -> bool {
        self.xrc_target || self.transport == Some(TransportService::Rc)
    }
}
