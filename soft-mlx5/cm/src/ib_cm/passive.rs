//! The passive side: receives REQ, sends REP, receives RTU.

use super::event::{Event, Origin};
use super::id::Id;
use super::timer::from_peer;
use super::{CmError, CmId, IbCm, Path, RepParam, State, private};
use crate::mad::{Attribute, Mad, RejReason, Rejected, Rep, Req, Rtu, TransportService};
use uverbs_soft_packet::Addressing;

/// The longest response timeout accepted from a request, as a code: 17 s. A kernel asks for 4 s
/// (`CMA_CM_RESPONSE_TIMEOUT` in drivers/infiniband/core/cma.c).
const LONGEST_ANSWER: u8 = 22;

impl IbCm {
    pub(super) fn on_req(&mut self, now: u64, from: &Addressing, mad: &Mad, req: &Req) {
        let guid = req.ca_guid.get();
        if let Some(known) = self.remote_ids.get(&(guid, req.local_id())) {
            return self.on_duplicate_req(from, *known);
        }
        if let Some(stale) = self.remote_qpns.get(&(guid, req.qpn())).copied() {
            return self.end_stale(now, from, mad, Rejected::REQ, stale);
        }
        let Some(listener) = self.listener(req.service_id.get()) else {
            return self.refuse(from, mad, Rejected::REQ, RejReason::INVALID_SERVICE_ID);
        };
        let id = self.free_id();
        self.ids.insert(id, Id::of_request(from, mad, req));
        // Both keys are free: they were looked up above.
        let _ = self.claim_remote_id(id, (guid, req.local_id()));
        let _ = self.claim_remote_qpn(id, (guid, req.qpn()));
        let modifier = mad.header.modifier.get();
        let origin = Origin { listener, addressing: *from, modifier };
        self.events.push_back((id, Event::ReqReceived(origin, Box::new(*req))));
    }

    /// Ends a connection of the peer's queue pair that no longer exists at the peer.
    pub(super) fn end_stale(
        &mut self,
        now: u64,
        from: &Addressing,
        mad: &Mad,
        rejected: Rejected,
        stale: CmId,
    ) {
        self.refuse(from, mad, rejected, RejReason::STALE_CONNECTION);
        if self.id(stale).is_ok_and(|entry| self.is_from_peer(from, entry)) {
            // Only an established connection can be ended; others time out.
            let _ = self.send_dreq(now, stale, &[]);
        }
    }

    /// Handles a repeated REQ. The kernel's REJ 10 in timewait is omitted: the kernel never reaches
    /// it, because it removes the peer from its tables first.
    fn on_duplicate_req(&mut self, from: &Addressing, known: CmId) {
        self.counters.duplicates.count(Attribute::Req);
        let same_peer = self.id(known).is_ok_and(|entry| self.is_from_peer(from, entry));
        if same_peer && self.state(known) == Some(State::MraReqSent) {
            if let Ok(mra) = self.format_mra(known, Rejected::REQ) {
                self.post(from.reply(), mra);
            }
        }
    }

    /// Accepts a request. [`Event::RtuReceived`], [`Event::RejReceived`] or [`Event::RepError`]
    /// follows.
    ///
    /// # Errors
    /// [`CmError::State`] unless a REQ arrived; [`CmError::TooLong`].
    pub fn send_rep(&mut self, now: u64, id: CmId, param: &RepParam<'_>) -> Result<(), CmError> {
        self.expect_state(id, &[State::ReqReceived, State::MraReqSent])?;
        let rep = self.format_rep(id, param)?;
        let entry = self.id_mut(id)?;
        entry.state = State::RepSent;
        (entry.initiator_depth, entry.responder_resources) =
            (param.initiator_depth, param.responder_resources);
        (entry.rq_psn, entry.local_qpn) = (rep.starting_psn(), param.qpn & 0xff_ffff);
        let mad = Mad::new(entry.tid, param.ece.attr_mod, rep);
        self.post_for_answer(now, id, mad);
        Ok(())
    }

    fn format_rep(&self, id: CmId, param: &RepParam<'_>) -> Result<Rep, CmError> {
        let entry = self.id(id)?;
        let mut rep = Rep::default();
        rep.ca_guid = self.config.node_guid.into();
        rep.responder_resources = param.responder_resources;
        rep.set_ids(self.comm_id(id), entry.remote).set_vendor_id(param.ece.vendor_id);
        rep.set_starting_psn(param.starting_psn).set_target_ack_delay(self.config.ack_delay);
        rep.set_failover_accepted(param.failover_accepted);
        rep.set_rnr_retry_count(param.rnr_retry_count);
        if entry.xrc_target {
            rep.set_srq(1).set_eecn(param.qpn);
        } else {
            rep.initiator_depth = param.initiator_depth;
            rep.set_flow_control(param.flow_control.into()).set_srq(param.srq.into());
            rep.set_qpn(param.qpn);
        }
        private(rep.set_private_data(param.private_data), rep)
    }

    pub(super) fn on_rtu(&mut self, from: &Addressing, rtu: &Rtu) {
        let Some(id) = self.find(from, rtu.remote_id(), rtu.local_id()) else {
            return;
        };
        if self.expect_state(id, &[State::RepSent, State::MraRepReceived]).is_err() {
            return self.counters.duplicates.count(Attribute::Rtu);
        }
        if let Ok(entry) = self.id_mut(id) {
            (entry.state, entry.pending) = (State::Established, None);
        }
        self.events.push_back((id, Event::RtuReceived(Box::new(*rtu))));
    }
}

impl Id {
    fn of_request(from: &Addressing, mad: &Mad, req: &Req) -> Self {
        let transport = req.transport();
        Self {
            state: State::ReqReceived,
            remote: req.local_id(),
            path: Path::of_request(from, req),
            tid: mad.header.tid.get(),
            service_id: req.service_id.get(),
            transport: Some(transport),
            xrc_target: transport == TransportService::Xrc,
            remote_qpn: req.qpn(),
            sq_psn: req.starting_psn(),
            responder_resources: req.initiator_depth(),
            initiator_depth: req.responder_resources(),
            retry_count: req.retry_count(),
            rnr_retry_count: req.rnr_retry_count(),
            ack_timeout: req.primary.ack_timeout().max(1),
            timeout: from_peer(req.local_cm_response_timeout(), LONGEST_ANSWER),
            max_cm_retries: req.max_cm_retries(),
            ..Self::default()
        }
    }
}

impl Path {
    /// The path back to the sender: the packet's addressing, and the request's path parameters.
    pub(crate) fn of_request(from: &Addressing, req: &Req) -> Self {
        let mut addressing = from.reply();
        addressing.flow_label = req.primary.flow_label();
        addressing.traffic_class = req.primary.traffic_class;
        addressing.service_level = req.primary.sl();
        Self {
            addressing,
            pkey: req.pkey.get(),
            mtu: req.path_mtu(),
            rate: req.primary.packet_rate(),
            life: req.primary.ack_timeout().saturating_sub(1),
        }
    }
}
