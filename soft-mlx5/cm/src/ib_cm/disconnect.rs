//! The end of a connection: sends and receives DREQ and DREP.

use super::event::Event;
use super::{CmError, CmId, IbCm, State, private};
use crate::mad::{Attribute, Drep, Dreq, Mad};
use uverbs_soft_packet::Addressing;

impl IbCm {
    /// Disconnects. [`Event::DrepReceived`], [`Event::DreqReceived`] (if both sides disconnect) or
    /// [`Event::DreqError`] follows.
    ///
    /// # Errors
    /// [`CmError::State`] unless established; [`CmError::TooLong`] beyond 220 bytes.
    pub fn send_dreq(&mut self, now: u64, id: CmId, data: &[u8]) -> Result<(), CmError> {
        let entry = self.expect_state(id, &[State::Established])?;
        let mut dreq = Dreq::new(self.comm_id(id), entry.remote, entry.remote_qpn);
        private(dreq.set_private_data(data), ())?;
        let mad = Mad::new(self.new_tid(id), 0, dreq);
        self.id_mut(id)?.state = State::DreqSent;
        self.post_for_answer(now, id, mad);
        Ok(())
    }

    /// Accepts the peer's disconnect; the id enters timewait.
    ///
    /// # Errors
    /// [`CmError::State`] unless a DREQ arrived; [`CmError::TooLong`] beyond 224 bytes.
    pub fn send_drep(&mut self, now: u64, id: CmId, data: &[u8]) -> Result<(), CmError> {
        self.expect_state(id, &[State::DreqReceived])?;
        private(data.len() <= Drep::PRIVATE_DATA_LEN, ())?;
        let entry = self.id_mut(id)?;
        entry.private = data.to_vec();
        let addressing = entry.path.addressing;
        self.enter_timewait(now, id);
        let drep = self.format_drep(id)?;
        self.post(addressing, drep);
        Ok(())
    }

    fn format_drep(&self, id: CmId) -> Result<Mad, CmError> {
        let entry = self.id(id)?;
        let mut drep = Drep::new(self.comm_id(id), entry.remote);
        private(drep.set_private_data(&entry.private), ())?;
        Ok(Mad::new(entry.tid, 0, drep))
    }

    pub(super) fn on_dreq(&mut self, from: &Addressing, mad: &Mad, dreq: &Dreq) {
        let Some(id) = self.find(from, dreq.remote_id(), dreq.local_id()) else {
            return self.answer_unknown_dreq(from, mad, dreq);
        };
        if !self.id(id).is_ok_and(|entry| entry.local_qpn == dreq.remote_qpn()) {
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
        if let Ok(entry) = self.id_mut(id) {
            (entry.state, entry.pending) = (State::DreqReceived, None);
            entry.tid = mad.header.tid.get();
        }
        self.events.push_back((id, Event::DreqReceived(Box::new(*dreq))));
    }

    /// Repeats a DREP that was lost.
    fn repeat_drep(&mut self, from: &Addressing, id: CmId) {
        self.counters.duplicates.count(Attribute::Dreq);
        if let Ok(drep) = self.format_drep(id) {
            self.post(from.reply(), drep);
        }
    }

    /// Answers a DREQ for a destroyed id, so that the peer does not wait.
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
