//! Ids and their state in the engine.

use super::timer::Pending;
use super::{CmError, IbCm, Path};
use crate::mad::{CommId, TransportService};
use uverbs_soft_packet::Addressing;

/// Identifies an id of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub u32);

/// State of an id (IBTA volume 1, 12.9.7; `enum ib_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No connection, and no attempt to connect.
    #[default]
    Idle,
    /// Accepts requests.
    Listen,
    /// REQ was sent.
    ReqSent,
    /// REQ arrived.
    ReqReceived,
    /// REQ arrived, and its retries are answered with MRA.
    MraReqSent,
    /// REQ was sent, and the peer asked for more time by MRA.
    MraReqReceived,
    /// REP was sent.
    RepSent,
    /// REP arrived.
    RepReceived,
    /// REP arrived, and its retries are answered with MRA.
    MraRepSent,
    /// REP was sent, and the peer asked for more time by MRA.
    MraRepReceived,
    /// The connection is established.
    Established,
    /// DREQ was sent.
    DreqSent,
    /// DREQ arrived, and the user has not answered yet.
    DreqReceived,
    /// The connection has ended, but its packets may still be in transit.
    TimeWait,
    /// SIDR_REQ was sent.
    SidrReqSent,
    /// SIDR_REQ arrived.
    SidrReqReceived,
}

/// An id: values for the queue pair's attributes, and for repeated answers.
#[derive(Debug, Default)]
pub(super) struct Id {
    pub(super) state: State,
    /// The peer's communication id, or its request id.
    pub(super) remote: CommId,
    pub(super) path: Path,
    pub(super) tid: u64,
    pub(super) service_id: u64,
    pub(super) transport: Option<TransportService>,
    /// Whether this side is the receiving half of an XRC connection.
    pub(super) xrc_target: bool,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    /// First PSN to send.
    pub(super) sq_psn: u32,
    /// First PSN expected.
    pub(super) rq_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// Local ACK timeout of the queue pair; the length of timewait.
    pub(super) ack_timeout: u8,
    /// The time to wait for an answer, in nanoseconds.
    pub(super) timeout: u64,
    pub(super) max_cm_retries: u8,
    pub(super) service_timeout: u8,
    /// Private data of the last RTU, DREP or MRA, for sending it again.
    pub(super) private: Vec<u8>,
    /// The message that was sent and not yet answered.
    pub(super) pending: Option<Pending>,
    /// Key in the engine's table of peers' ids.
    pub(super) remote_id_key: Option<(u64, CommId)>,
    pub(super) remote_qpn_key: Option<(u64, u32)>,
}

impl IbCm {
    pub(super) fn id(&self, id: CmId) -> Result<&Id, CmError> {
        self.ids.get(&id).ok_or(CmError::NoSuchId)
    }

    pub(super) fn id_mut(&mut self, id: CmId) -> Result<&mut Id, CmError> {
        self.ids.get_mut(&id).ok_or(CmError::NoSuchId)
    }

    pub(super) fn expect_state(&self, id: CmId, states: &[State]) -> Result<&Id, CmError> {
        let entry = self.id(id)?;
        if states.contains(&entry.state) { Ok(entry) } else { Err(CmError::State(entry.state)) }
    }

    /// The id that a datagram names, if the datagram is from its peer (`cm_acquire_id`). An id that
    /// does not know its peer's id yet has [`CommId::UNKNOWN`].
    pub(super) fn find(&self, from: &Addressing, local: CommId, remote: CommId) -> Option<CmId> {
        let id = CmId(local.0 ^ self.operand);
        let entry = self.ids.get(&id)?;
        (entry.remote == remote && self.is_from_peer(from, entry)).then_some(id)
    }

    /// Registers the peer's communication id. Fails with the local id that already has this peer.
    pub(super) fn claim_remote_id(&mut self, id: CmId, key: (u64, CommId)) -> Result<(), CmId> {
        if let Some(other) = self.remote_ids.get(&key) {
            return Err(*other);
        }
        if let Some(entry) = self.ids.get_mut(&id) {
            entry.remote_id_key = Some(key);
            self.remote_ids.insert(key, id);
        }
        Ok(())
    }

    /// Registers the peer's queue pair. Fails with the id that is already connected to it.
    pub(super) fn claim_remote_qpn(&mut self, id: CmId, key: (u64, u32)) -> Result<(), CmId> {
        if let Some(other) = self.remote_qpns.get(&key) {
            return Err(*other);
        }
        if let Some(entry) = self.ids.get_mut(&id) {
            entry.remote_qpn_key = Some(key);
            self.remote_qpns.insert(key, id);
        }
        Ok(())
    }

    /// Removes the peer from both tables, so that its ids may be reused.
    pub(super) fn forget_remote(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id) else {
            return;
        };
        let keys = (entry.remote_id_key.take(), entry.remote_qpn_key.take());
        if let Some(key) = keys.0 {
            self.remote_ids.remove(&key);
        }
        if let Some(key) = keys.1 {
            self.remote_qpns.remove(&key);
        }
    }

    /// Removes a resolution request from the table, so that its number may be reused.
    pub(super) fn forget_sidr(&mut self, id: CmId) {
        let Some(entry) = self.ids.get(&id) else {
            return;
        };
        let key = (entry.path.addressing.destination, entry.remote);
        if self.remote_sidr.get(&key) == Some(&id) {
            self.remote_sidr.remove(&key);
        }
    }

    /// Returns to idle, because the attempt to connect has ended.
    pub(super) fn reset(&mut self, id: CmId) {
        self.forget_remote(id);
        if let Some(entry) = self.ids.get_mut(&id) {
            entry.state = State::Idle;
            entry.pending = None;
        }
    }
}
