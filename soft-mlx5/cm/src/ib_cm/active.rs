//! The active side: sends REQ, receives REP, sends RTU.

use super::event::Event;
use super::timer::{ack_timeout, from_code};
use super::{CmError, CmId, IbCm, ReqParam, State, private};
use crate::mad::{CommId, Mad, Rejected, Rep, Req, ReqPath, Rtu, TransportService};
use uverbs_soft_packet::Addressing;

/// LID of a path that leaves the subnet.
const PERMISSIVE_LID: u16 = 0xffff;

impl IbCm {
    /// Requests a connection. [`Event::RepReceived`], [`Event::RejReceived`] or [`Event::ReqError`]
    /// follows.
    ///
    /// # Errors
    /// [`CmError::State`] unless the id is idle; [`CmError::TooLong`]; [`CmError::Transport`].
    pub fn send_req(&mut self, now: u64, id: CmId, param: &ReqParam<'_>) -> Result<(), CmError> {
        self.expect_state(id, &[State::Idle])?;
        let req = self.format_req(id, param)?;
        let tid = self.new_tid(id);
        let entry = self.id_mut(id)?;
        (entry.path, entry.tid, entry.service_id) = (param.path, tid, param.service_id);
        entry.transport = Some(param.transport);
        entry.ack_timeout = param.path.life.saturating_add(1).min(31);
        entry.timeout =
            2 * from_code(param.path.life) + from_code(param.remote_cm_response_timeout);
        entry.max_cm_retries = param.max_cm_retries & 0xf;
        (entry.local_qpn, entry.rq_psn) = (req.qpn(), req.starting_psn());
        entry.initiator_depth = param.initiator_depth;
        entry.responder_resources = param.responder_resources;
        entry.retry_count = param.retry_count & 7;
        entry.remote = CommId::UNKNOWN;
        entry.state = State::ReqSent;
        self.post_for_answer(now, id, Mad::new(tid, param.ece.attr_mod, req));
        Ok(())
    }

    fn format_req(&self, id: CmId, param: &ReqParam<'_>) -> Result<Req, CmError> {
        if param.transport == TransportService::Other {
            return Err(CmError::Transport);
        }
        let mut req = Req::default();
        req.service_id = param.service_id.into();
        req.ca_guid = self.config.node_guid.into();
        req.pkey = param.path.pkey.into();
        req.set_local_id(self.comm_id(id)).set_vendor_id(param.ece.vendor_id);
        req.set_qpn(param.qpn).set_starting_psn(param.starting_psn);
        req.set_initiator_depth(param.initiator_depth);
        req.set_remote_cm_response_timeout(param.remote_cm_response_timeout);
        req.set_local_cm_response_timeout(param.local_cm_response_timeout);
        req.set_transport(param.transport).set_flow_control(param.flow_control.into());
        req.set_path_mtu(param.path.mtu).set_max_cm_retries(param.max_cm_retries);
        if param.transport != TransportService::Xrc {
            req.set_responder_resources(param.responder_resources).set_srq(param.srq.into());
            req.set_retry_count(param.retry_count).set_rnr_retry_count(param.rnr_retry_count);
        }
        req.primary = self.format_path(param);
        private(req.set_private_data(param.private_data), req)
    }

    fn format_path(&self, param: &ReqParam<'_>) -> ReqPath {
        let addressing = &param.path.addressing;
        let routed = addressing.hop_limit > 1;
        let lid = |lid: u16| if routed { PERMISSIVE_LID } else { lid }.into();
        let mut path = ReqPath::default();
        path.local_lid = lid(addressing.source_lid);
        path.remote_lid = lid(addressing.destination_lid);
        (path.local_gid, path.remote_gid) = (addressing.source.0, addressing.destination.0);
        (path.traffic_class, path.hop_limit) = (addressing.traffic_class, addressing.hop_limit);
        path.set_flow_label(addressing.flow_label).set_packet_rate(param.path.rate);
        path.set_sl(addressing.service_level).set_subnet_local((!routed).into());
        path.set_ack_timeout(ack_timeout(self.config.ack_delay, param.path.life));
        path
    }

    pub(super) fn on_rep(&mut self, now: u64, from: &Addressing, mad: &Mad, rep: &Rep) {
        let Some(id) = self.find(from, rep.remote_id(), CommId::UNKNOWN) else {
            return self.on_duplicate_rep(from, rep);
        };
        if self.expect_state(id, &[State::ReqSent, State::MraReqReceived]).is_err() {
            return;
        }
        let guid = rep.ca_guid.get();
        let qpn = self.qpn_of(id, rep);
        if self.claim_remote_id(id, (guid, rep.local_id())).is_err() {
            return;
        }
        if let Err(stale) = self.claim_remote_qpn(id, (guid, qpn)) {
            self.forget_remote(id);
            return self.end_stale(now, from, mad, Rejected::REP, stale);
        }
        self.note_rep(id, rep, qpn);
        self.events.push_back((id, Event::RepReceived(mad.header.modifier.get(), Box::new(*rep))));
    }

    /// The peer's QP number. An XRC target sends it in the field of the EE context.
    fn qpn_of(&self, id: CmId, rep: &Rep) -> u32 {
        match self.id(id).ok().and_then(|entry| entry.transport) {
            Some(TransportService::Xrc) => rep.eecn(),
            _ => rep.qpn(),
        }
    }

    fn note_rep(&mut self, id: CmId, rep: &Rep, qpn: u32) {
        let Ok(entry) = self.id_mut(id) else {
            return;
        };
        (entry.state, entry.pending) = (State::RepReceived, None);
        (entry.remote, entry.remote_qpn) = (rep.local_id(), qpn);
        (entry.initiator_depth, entry.responder_resources) =
            (rep.responder_resources, rep.initiator_depth);
        (entry.sq_psn, entry.rnr_retry_count) = (rep.starting_psn(), rep.rnr_retry_count());
        entry.ack_timeout =
            ack_timeout(rep.target_ack_delay(), entry.ack_timeout.saturating_sub(1));
    }

    /// Handles a repeated REP: the RTU or MRA that answered the first one was lost.
    fn on_duplicate_rep(&mut self, from: &Addressing, rep: &Rep) {
        let Some(id) = self.find(from, rep.remote_id(), rep.local_id()) else {
            return;
        };
        self.counters.duplicates.count(crate::mad::Attribute::Rep);
        let answer = match self.state(id) {
            Some(State::Established) => self.format_rtu(id),
            Some(State::MraRepSent) => self.format_mra(id, Rejected::REP),
            _ => return,
        };
        if let Ok(answer) = answer {
            self.post(from.reply(), answer);
        }
    }

    /// Confirms a REP; the connection is established.
    ///
    /// # Errors
    /// [`CmError::State`] unless a REP arrived; [`CmError::TooLong`] beyond 224 bytes.
    pub fn send_rtu(&mut self, id: CmId, data: &[u8]) -> Result<(), CmError> {
        self.expect_state(id, &[State::RepReceived, State::MraRepSent])?;
        private(data.len() <= Rtu::PRIVATE_DATA_LEN, ())?;
        let entry = self.id_mut(id)?;
        (entry.private, entry.state) = (data.to_vec(), State::Established);
        let (addressing, rtu) = (entry.path.addressing, self.format_rtu(id)?);
        self.post(addressing, rtu);
        Ok(())
    }

    fn format_rtu(&self, id: CmId) -> Result<Mad, CmError> {
        let entry = self.id(id)?;
        let mut rtu = Rtu::new(self.comm_id(id), entry.remote);
        private(rtu.set_private_data(&entry.private), ())?;
        Ok(Mad::new(entry.tid, 0, rtu))
    }
}
