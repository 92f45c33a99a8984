//! The end of a connection: DREQ and DREP, in and out.

use super::event::Event;
use super::{CmError, CmId, IbCm, State, private};
use crate::mad::{Attribute, Drep, Dreq, Mad};
use uverbs_soft_packet::Addressing;

impl IbCm {
    /// Disconnects; [`Event::DrepReceived`], [`Event::DreqReceived`] (both sides did) or
    /// [`Event::DreqError`] follows.
    ///
    /// # Errors
    /// [`CmError::State`] unless established; [`CmError::TooLong`] beyond 220 bytes.
    pub fn send_dreq(&mut self, now: u64, id: CmId, data: &[u8]) -> Result<(), CmError> {
        let of = self.expect_state(id, &[State::Established])?;
        let mut dreq = Dreq::new(self.comm_id(id), of.remote, of.remote_qpn);
        private(dreq.set_private_data(data), ())?;
        let mad = Mad::new(self.new_tid(id), 0, dreq);
        self.id_mut(id)?.state = State::DreqSent;
        self.post_for_answer(now, id, mad);
        Ok(())
    }

    /// Agrees to the peer's disconnect: the id is in timewait.
    ///
    /// # Errors
    /// [`CmError::State`] unless DREQ arrived; [`CmError::TooLong`] beyond 224 bytes.
    pub fn send_drep(&mut self, now: u64, id: CmId, data: &[u8]) -> Result<(), CmError> {
        self.expect_state(id, &[State::DreqReceived])?;
        private(data.len() <= Drep::PRIVATE_DATA_LEN, ())?;
        let of = self.id_mut(id)?;
        of.private = data.to_vec();
        let addressing = of.path.addressing;
        self.enter_timewait(now, id);
        let drep = self.format_drep(id)?;
        self.post(addressing, drep);
        Ok(())
    }

    fn format_drep(&self, id: CmId) -> Result<Mad, CmError> {
        let of = self.id(id)?;
        let mut drep = Drep::new(self.comm_id(id), of.remote);
        private(drep.set_private_data(&of.private), ())?;
        Ok(Mad::new(of.tid, 0, drep))
    }

    pub(super) fn on_dreq(&mut self, from: &Addressing, mad: &Mad, dreq: &Dreq) {
        let Some(id) = self.find(from, dreq.remote_id(), dreq.local_id()) else {
            return self.answer_unknown_dreq(from, mad, dreq);
        };
        if !self.id(id).is_ok_and(|of| of.local_qpn == dreq.remote_qpn()) {
            return;
        }
        match self.state(id) {
            Some(State::RepSent | State::MraRepReceived | State::DreqSent | State::Established) => {
                self.note_dreq(id, mad, dreq)
            }
            Some(State::TimeWait) => self.repeat_drep(from, id),
            Some(State::DreqReceived) => self.counters.duplicates.count(Attribute::Dreq),
            _ => {}
        }
    }

    fn note_dreq(&mut self, id: CmId, mad: &Mad, dreq: &Dreq) {
        if let Ok(of) = self.id_mut(id) {
            (of.state, of.pending) = (State::DreqReceived, None);
            of.tid = mad.header.tid.get();
        }
        self.events.push_back((id, Event::DreqReceived(Box::new(*dreq))));
    }

    /// The DREP was lost.
    fn repeat_drep(&mut self, from: &Addressing, id: CmId) {
        self.counters.duplicates.count(Attribute::Dreq);
        if let Ok(drep) = self.format_drep(id) {
            self.post(from.reply(), drep);
        }
    }

    /// The id is gone, and the peer should not wait for it.
    fn answer_unknown_dreq(&mut self, from: &Addressing, mad: &Mad, dreq: &Dreq) {
        self.counters.duplicates.count(Attribute::Dreq);
        let drep = Drep::new(dreq.remote_id(), dreq.local_id());
        self.post(from.reply(), Mad::new(mad.header.tid.get(), 0, drep));
    }

    pub(super) fn on_drep(&mut self, now: u64, from: &Addressing, drep: &Drep) {
        let Some(id) = self.find(from, drep.remote_id(), drep.local_id()) else {
            return;
        };
        if self.expect_state(id, &[State::DreqSent, State::DreqReceived]).is_err() {
            return;
        }
        self.enter_timewait(now, id);
        self.events.push_back((id, Event::DrepReceived(Box::new(*drep))));
    }
}
