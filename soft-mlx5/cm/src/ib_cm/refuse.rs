//! Sends and receives REJ and MRA.

use super::event::Event;
use super::timer::{from_code, from_peer};
use super::{CmError, CmId, IbCm, MraTiming, State, private};
use crate::mad::{Attribute, CommId, Mad, Mra, Rej, RejReason, Rejected};
use uverbs_soft_packet::Addressing;

/// The longest delay accepted from an MRA, as a code: 69 s, as a kernel asks for
/// (`CMA_CM_MRA_SETTING` in drivers/infiniband/core/cma.c).
const LONGEST_SERVICE: u8 = 24;

/// The message that an id in this state refuses, as encoded in REJ.
fn rejected_in(state: State) -> Rejected {
    match state {
        State::ReqReceived | State::MraReqSent => Rejected::REQ,
        State::RepReceived | State::MraRepSent => Rejected::REP,
        _ => Rejected::OTHER,
    }
}

impl IbCm {
    /// Refuses the peer's REQ or REP, or cancels this side's own. The id is idle afterwards, or in
    /// timewait if REP was sent.
    ///
    /// # Errors
    /// [`CmError::State`] if there is nothing to refuse; [`CmError::TooLong`] beyond 72 bytes of
    /// additional information or 148 of private data.
    pub fn send_rej(
        &mut self,
        now: u64,
        id: CmId,
        reason: RejReason,
        ari: &[u8],
        data: &[u8],
    ) -> Result<(), CmError> {
        let entry = self.id(id)?;
        let (addressing, tid) = (entry.path.addressing, entry.tid);
        let rej = self.format_rej(id, reason, ari, data)?;
        match self.id(id)?.state {
            State::RepSent | State::MraRepReceived => self.enter_timewait(now, id),
            State::ReqSent
            | State::MraReqReceived
            | State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent => self.reset(id),
            state => return Err(CmError::State(state)),
        }
        self.post(addressing, Mad::new(tid, 0, rej));
        Ok(())
    }

    fn format_rej(
        &self,
        id: CmId,
        reason: RejReason,
        ari: &[u8],
        data: &[u8],
    ) -> Result<Rej, CmError> {
        let entry = self.id(id)?;
        let is_unknown_to_peer = entry.state == State::ReqReceived;
        let local = if is_unknown_to_peer { CommId::UNKNOWN } else { self.comm_id(id) };
        let mut rej = Rej::new(local, entry.remote, rejected_in(entry.state), reason);
        private(rej.set_ari(ari) && rej.set_private_data(data), rej)
    }

    pub(super) fn on_rej(&mut self, now: u64, from: &Addressing, rej: &Rej) {
        if let Some(id) = self.find_rejected(from, rej) {
            self.take_rej(now, id, rej);
        }
    }

    pub(super) fn take_rej(&mut self, now: u64, id: CmId, rej: &Rej) {
        let stale = rej.reason() == RejReason::STALE_CONNECTION;
        match self.state(id) {
            Some(
                State::ReqSent
                | State::MraReqReceived
                | State::RepSent
                | State::MraRepReceived
                | State::ReqReceived
                | State::MraReqSent,
            ) if !stale => self.reset(id),
            Some(
                State::ReqSent
                | State::MraReqReceived
                | State::RepSent
                | State::MraRepReceived
                | State::ReqReceived
                | State::MraReqSent
                | State::DreqSent
                | State::RepReceived
                | State::MraRepSent
                | State::Established,
            ) => self.enter_timewait(now, id),
            _ => return,
        }
        self.events.push_back((id, Event::RejReceived(Box::new(*rej))));
    }

    /// The id that a REJ names. A peer that timed out may not know this side's id, and a peer that
    /// refuses a request has no id of its own.
    fn find_rejected(&self, from: &Addressing, rej: &Rej) -> Option<CmId> {
        if rej.reason() == RejReason::TIMEOUT {
            let id = *self.remote_ids.get(&(rej.ca_guid(), rej.local_id()))?;
            return self.is_from_peer(from, self.id(id).ok()?).then_some(id);
        }
        let remote = match rej.rejected() {
            Rejected::REQ => CommId::UNKNOWN,
            _ => rej.local_id(),
        };
        self.find(from, rej.remote_id(), remote)
    }

    /// Asks the peer to wait for `4.096 us << service_timeout`.
    ///
    /// # Errors
    /// [`CmError::State`] unless a REQ or REP arrived; [`CmError::TooLong`] beyond 222 bytes.
    pub fn send_mra(
        &mut self,
        id: CmId,
        service_timeout: u8,
        timing: MraTiming,
        data: &[u8],
    ) -> Result<(), CmError> {
        private(data.len() <= Mra::PRIVATE_DATA_LEN, ())?;
        let (state, message) = match self.id(id)?.state {
            State::ReqReceived => (State::MraReqSent, Rejected::REQ),
            State::RepReceived => (State::MraRepSent, Rejected::REP),
            state => return Err(CmError::State(state)),
        };
        let entry = self.id_mut(id)?;
        (entry.state, entry.service_timeout, entry.private) =
            (state, service_timeout, data.to_vec());
        if timing == MraTiming::Now {
            let (addressing, mra) = (entry.path.addressing, self.format_mra(id, message)?);
            self.post(addressing, mra);
        }
        Ok(())
    }

    pub(super) fn format_mra(&self, id: CmId, message: Rejected) -> Result<Mad, CmError> {
        let entry = self.id(id)?;
        let mut mra = Mra::new(self.comm_id(id), entry.remote, message, entry.service_timeout);
        private(mra.set_private_data(&entry.private), ())?;
        Ok(Mad::new(entry.tid, 0, mra))
    }

    pub(super) fn on_mra(&mut self, now: u64, from: &Addressing, mra: &Mra) {
        let remote = match mra.acknowledged() {
            Rejected::REQ => CommId::UNKNOWN,
            _ => mra.local_id(),
        };
        let Some(id) = self.find(from, mra.remote_id(), remote) else {
            return;
        };
        let state = match (self.state(id), mra.acknowledged()) {
            (Some(State::ReqSent), Rejected::REQ) => State::MraReqReceived,
            (Some(State::RepSent), Rejected::REP) => State::MraRepReceived,
            (Some(State::MraReqReceived | State::MraRepReceived), _) => {
                return self.counters.duplicates.count(Attribute::Mra);
            }
            _ => return,
        };
        let Ok(entry) = self.id_mut(id) else {
            return;
        };
        let period =
            from_peer(mra.service_timeout(), LONGEST_SERVICE) + from_code(entry.ack_timeout);
        entry.state = state;
        self.extend_timeout(now, id, period);
        self.events.push_back((id, Event::MraReceived(Box::new(*mra))));
    }
}
