//! Peers that end without a word.
//!
//! When a process ends, its host's kernel destroys its ids and tells their peers. The ids of a
//! software device go with its process. So a peer that finds out by other means acts here as if
//! the messages of that kernel had arrived.

use super::{CmId, IbCm, State};
use crate::mad::{Drep, Dreq, Mad, Rej, RejReason, Rejected, SidrRep, SidrStatus};
use uverbs_soft_packet::Addressing;

impl IbCm {
    /// The peers at these addresses have ended.
    pub fn lose_peers(&mut self, now: u64, is_lost: &dyn Fn(&Addressing) -> bool) {
        let lost = self.ids.iter().filter(|(_, of)| is_lost(&of.path.addressing));
        let mut ids: Vec<CmId> = lost.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.lose_peer(now, id);
        }
    }

    /// What [`IbCm::destroy`] of the peer's id would have sent, arrives.
    fn lose_peer(&mut self, now: u64, id: CmId) {
        let Ok(of) = self.id(id) else { return };
        let (own, peer, from) = (self.comm_id(id), of.remote, of.path.addressing.reply());
        let (qpn, service_id) = (of.local_qpn, of.service_id);
        let refusal = |rejected, reason| Rej::new(peer, own, rejected, reason);
        match of.state {
            State::Established => {
                let dreq = Dreq::new(peer, own, qpn);
                self.on_dreq(&from, &Mad::new(0, 0, dreq), &dreq);
            }
            State::DreqSent => self.on_drep(now, &from, &Drep::new(peer, own)),
            State::ReqSent | State::MraReqReceived => {
                self.take_rej(now, id, &refusal(Rejected::REQ, RejReason::CONSUMER_DEFINED));
            }
            State::ReqReceived | State::MraReqSent => {
                self.take_rej(now, id, &refusal(Rejected::OTHER, RejReason::TIMEOUT));
            }
            State::RepSent | State::MraRepReceived => {
                self.take_rej(now, id, &refusal(Rejected::REP, RejReason::CONSUMER_DEFINED));
            }
            State::RepReceived | State::MraRepSent => {
                self.take_rej(now, id, &refusal(Rejected::OTHER, RejReason::CONSUMER_DEFINED));
            }
            State::SidrReqSent => {
                let rep = SidrRep::new(own, SidrStatus::REJECT, service_id);
                self.on_sidr_rep(&from, &Mad::new(0, 0, rep), &rep);
            }
            // Nothing is sent, or there is no peer.
            State::DreqReceived
            | State::TimeWait
            | State::SidrReqReceived
            | State::Idle
            | State::Listen => {}
        }
    }
}
