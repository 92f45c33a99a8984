//! Peers whose processes ended without sending a message.
//!
//! When a process ends, its host's kernel destroys its ids and sends messages to their peers. The
//! ids of a software device disappear with its process. So when the engine learns that a peer has
//! ended, it acts as if the kernel's messages had arrived.

use super::{CmId, IbCm, State};
use crate::mad::{Drep, Dreq, Mad, Rej, RejReason, Rejected, SidrRep, SidrStatus};
use uverbs_soft_packet::Addressing;

impl IbCm {
    /// Handles the end of the peers at these addresses.
    pub fn lose_peers(&mut self, now: u64, is_lost: &dyn Fn(&Addressing) -> bool) {
        let lost = self.ids.iter().filter(|(_, entry)| is_lost(&entry.path.addressing));
        let mut ids: Vec<CmId> = lost.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.lose_peer(now, id);
        }
    }

    /// Acts as if the peer's id had been destroyed, and the messages of [`IbCm::destroy`] had
    /// arrived.
    fn lose_peer(&mut self, now: u64, id: CmId) {
        let Ok(entry) = self.id(id) else { return };
        let (own, peer, from) = (self.comm_id(id), entry.remote, entry.path.addressing.reply());
        let (qpn, service_id) = (entry.local_qpn, entry.service_id);
        let refusal = |rejected, reason| Rej::new(peer, own, rejected, reason);
        match entry.state {
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
            // The peer would send nothing, or there is no peer.
            State::DreqReceived
            | State::TimeWait
            | State::SidrReqReceived
            | State::Idle
            | State::Listen => {}
        }
    }
}
