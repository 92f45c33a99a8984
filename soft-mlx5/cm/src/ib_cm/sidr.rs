//! Service id resolution: sends and receives requests and answers.

use super::event::{Event, Origin};
use super::id::Id;
use super::{CmError, CmId, IbCm, Path, SidrRepParam, SidrReqParam, State, private};
use crate::mad::{Attribute, CommId, Mad, SidrRep, SidrReq, SidrStatus};
use uverbs_soft_packet::Addressing;

impl IbCm {
    /// Requests the queue pair of a service. [`Event::SidrRepReceived`] or [`Event::SidrReqError`]
    /// follows.
    ///
    /// # Errors
    /// [`CmError::State`] unless the id is idle; [`CmError::TooLong`].
    pub fn send_sidr_req(
        &mut self,
        now: u64,
        id: CmId,
        param: &SidrReqParam<'_>,
    ) -> Result<(), CmError> {
        self.expect_state(id, &[State::Idle])?;
        let mut req = SidrReq::new(self.comm_id(id), param.path.pkey, param.service_id);
        private(req.set_private_data(param.private_data), ())?;
        let tid = self.new_tid(id);
        let entry = self.id_mut(id)?;
        (entry.path, entry.tid, entry.service_id) = (param.path, tid, param.service_id);
        (entry.timeout, entry.max_cm_retries) = (param.timeout, param.max_cm_retries);
        (entry.remote, entry.state) = (CommId::UNKNOWN, State::SidrReqSent);
        self.post_for_answer(now, id, Mad::new(tid, 0, req));
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, from: &Addressing, mad: &Mad, req: &SidrReq) {
        let key = (from.source, req.request_id());
        if self.remote_sidr.contains_key(&key) {
            return self.counters.duplicates.count(Attribute::SidrReq);
        }
        let Some(listener) = self.listener(req.service_id.get()) else {
            let none = SidrStatus::UNSUPPORTED;
            let rep = SidrRep::new(req.request_id(), none, req.service_id.get());
            return self.post(from.reply(), Mad::new(mad.header.tid.get(), 0, rep));
        };
        let id = self.free_id();
        self.ids.insert(id, Id::of_sidr(from, mad, req));
        self.remote_sidr.insert(key, id);
        let modifier = mad.header.modifier.get();
        let origin = Origin { listener, addressing: *from, modifier };
        self.events.push_back((id, Event::SidrReqReceived(origin, Box::new(*req))));
    }

    /// Answers a resolution request. The id is idle afterwards.
    ///
    /// # Errors
    /// [`CmError::State`] unless a SIDR_REQ arrived; [`CmError::TooLong`].
    pub fn send_sidr_rep(&mut self, id: CmId, param: &SidrRepParam<'_>) -> Result<(), CmError> {
        let entry = self.expect_state(id, &[State::SidrReqReceived])?;
        let mut rep = SidrRep::new(entry.remote, param.status, entry.service_id);
        rep.qkey = param.qkey.into();
        rep.set_qpn(param.qpn).set_vendor_id(param.ece.vendor_id);
        private(rep.set_info(param.info) && rep.set_private_data(param.private_data), ())?;
        let (addressing, mad) =
            (entry.path.addressing, Mad::new(entry.tid, param.ece.attr_mod, rep));
        self.forget_sidr(id);
        self.id_mut(id)?.state = State::Idle;
        self.post(addressing, mad);
        Ok(())
    }

    pub(super) fn refuse_sidr(&mut self, id: CmId) {
        let param = SidrRepParam { status: SidrStatus::REJECT, ..SidrRepParam::default() };
        let _ = self.send_sidr_rep(id, &param);
    }

    pub(super) fn on_sidr_rep(&mut self, from: &Addressing, mad: &Mad, rep: &SidrRep) {
        let Some(id) = self.find(from, rep.request_id(), CommId::UNKNOWN) else {
            return;
        };
        if self.expect_state(id, &[State::SidrReqSent]).is_err() {
            return;
        }
        self.reset(id);
        let modifier = mad.header.modifier.get();
        self.events.push_back((id, Event::SidrRepReceived(modifier, Box::new(*rep))));
    }
}

impl Id {
    fn of_sidr(from: &Addressing, mad: &Mad, req: &SidrReq) -> Self {
        let path = Path { addressing: from.reply(), pkey: req.pkey.get(), ..Path::default() };
        Self {
            state: State::SidrReqReceived,
            remote: req.request_id(),
            path,
            tid: mad.header.tid.get(),
            service_id: req.service_id.get(),
            ..Self::default()
        }
    }
}
