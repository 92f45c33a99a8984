//! Ids and what the engine knows of each.

use super::timer::Pending;
use super::{CmError, IbCm, Path};
use crate::mad::{CommId, TransportService};
use uverbs_soft_packet::Addressing;

/// Names an id of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub u32);

/// State of an id (IBTA volume 1, 12.9.7; `enum ib_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nothing goes on.
    #[default]
    Idle,
    /// Takes requests.
    Listen,
    /// REQ was sent.
    ReqSent,
    /// REQ arrived.
    ReqReceived,
    /// REQ arrived, and MRA answers its repetitions.
    MraReqSent,
    /// REQ was sent, and MRA asks for patience.
    MraReqReceived,
    /// REP was sent.
    RepSent,
    /// REP arrived.
    RepReceived,
    /// REP arrived, and MRA answers its repetitions.
    MraRepSent,
    /// REP was sent, and MRA asks for patience.
    MraRepReceived,
    /// There is a connection.
    Established,
    /// DREQ was sent.
    DreqSent,
    /// DREQ arrived, and the user has not answered yet.
    DreqReceived,
    /// The connection has ended, and packets of it may still be under way.
    TimeWait,
    /// SIDR_REQ was sent.
    SidrReqSent,
    /// SIDR_REQ arrived.
    SidrReqReceived,
}

/// What goes into a queue pair's attributes, and what answers repeat.
#[derive(Debug, Default)]
pub(super) struct Id {
    pub(super) state: State,
    /// The peer's communication id, or its request id.
    pub(super) remote: CommId,
    pub(super) path: Path,
    pub(super) tid: u64,
    pub(super) service_id: u64,
    pub(super) transport: Option<TransportService>,
    /// This side is the receiving half of an XRC connection.
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
    /// Local ACK timeout of the queue pair, which timewait follows.
    pub(super) ack_timeout: u8,
    /// How long to wait for an answer, in nanoseconds.
    pub(super) timeout: u64,
    pub(super) max_cm_retries: u8,
    pub(super) service_timeout: u8,
    /// Private data of the last RTU, DREP or MRA, for its repetition.
    pub(super) private: Vec<u8>,
    /// What was sent and is not answered.
    pub(super) pending: Option<Pending>,
    /// Keys in the tables of peers.
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
        let of = self.id(id)?;
        if states.contains(&of.state) { Ok(of) } else { Err(CmError::State(of.state)) }
    }

    /// The id that a datagram names, if the peer is who it should be (`cm_acquire_id`). Ids that
    /// have not heard of the peer have [`CommId::UNKNOWN`] as its id.
    pub(super) fn find(&self, from: &Addressing, local: CommId, remote: CommId) -> Option<CmId> {
        let id = CmId(local.0 ^ self.operand);
        let of = self.ids.get(&id)?;
        (of.remote == remote && self.is_from_peer(from, of)).then_some(id)
    }

    /// Enters the peer's communication id; the id that has it already, if there is one.
    pub(super) fn claim_remote_id(&mut self, id: CmId, key: (u64, CommId)) -> Result<(), CmId> {
        if let Some(other) = self.remote_ids.get(&key) {
            return Err(*other);
        }
        if let Some(of) = self.ids.get_mut(&id) {
            of.remote_id_key = Some(key);
            self.remote_ids.insert(key, id);
        }
        Ok(())
    }

    /// Enters the peer's queue pair; the id that is connected to it already, if there is one.
    pub(super) fn claim_remote_qpn(&mut self, id: CmId, key: (u64, u32)) -> Result<(), CmId> {
        if let Some(other) = self.remote_qpns.get(&key) {
            return Err(*other);
        }
        if let Some(of) = self.ids.get_mut(&id) {
            of.remote_qpn_key = Some(key);
            self.remote_qpns.insert(key, id);
        }
        Ok(())
    }

    /// Takes the peer out of both tables: its ids may come again.
    pub(super) fn forget_remote(&mut self, id: CmId) {
        let Some(of) = self.ids.get_mut(&id) else {
            return;
        };
        let keys = (of.remote_id_key.take(), of.remote_qpn_key.take());
        if let Some(key) = keys.0 {
            self.remote_ids.remove(&key);
        }
        if let Some(key) = keys.1 {
            self.remote_qpns.remove(&key);
        }
    }

    /// Takes a resolution request out of the table: its number may come again.
    pub(super) fn forget_sidr(&mut self, id: CmId) {
        let Some(of) = self.ids.get(&id) else {
            return;
        };
        let key = (of.path.addressing.destination, of.remote);
        if self.remote_sidr.get(&key) == Some(&id) {
            self.remote_sidr.remove(&key);
        }
    }

    /// Back to idle: the attempt to connect is over.
    pub(super) fn reset(&mut self, id: CmId) {
        self.forget_remote(id);
        if let Some(of) = self.ids.get_mut(&id) {
            of.state = State::Idle;
            of.pending = None;
        }
    }
}
