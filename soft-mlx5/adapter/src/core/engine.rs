//! Progress of the device: doorbells, timers, incoming packets.

use super::env::Env;
use super::qp::MULTICAST_QPN;
use super::timer::Owner;
use super::{Core, CoreError, Due, Qpn, Step};
use crate::packet::{Addressing, Packet, View};

impl Core {
    /// The host rang the QP's send doorbell: one of the next steps reads the doorbell record and
    /// the ring, if the QP is in a state in which it sends or flushes requests.
    pub fn ring_sq(&mut self, qpn: Qpn) -> Result<(), CoreError> {
        let Self { qps, env, .. } = self;
        qps.get_mut(qpn.0).ok_or(CoreError::missing(qpn.object()))?.ring(env);
        Ok(())
    }

    /// Does the work that is due at `now` (nanoseconds) or pending, up to `budget` packets sent or
    /// received.
    ///
    /// QPs run in turn, so none starves the others. [`Step::more`] says whether work is left.
    pub fn step(&mut self, now: u64, budget: u32) -> Step {
        self.env.now = now;
        let did_work = self.run_timers(|_| false);
        let step = self.work(now, budget);
        Step { did_work: did_work || step.did_work, ..step }
    }

    /// As [`Core::step`], without running timers. For callers that may not have passed on every
    /// packet that has arrived: one of those may be the answer that a timer waits for.
    pub fn work(&mut self, now: u64, budget: u32) -> Step {
        self.env.now = now;
        let (mut left, mut did_work) = (budget, false);
        while left > 0 {
            let used = self.deliver_loopback(left) + self.run_next();
            if used == 0 && self.env.loopback.is_empty() && self.env.ready.is_empty() {
                break;
            }
            did_work |= used > 0;
            // A QP that had nothing to do counts too, so that the loop ends.
            left = left.saturating_sub(used.max(1));
        }
        self.env.flush_completions();
        Step {
            did_work,
            more: !self.env.loopback.is_empty() || !self.env.ready.is_empty(),
            next_wake: self.env.timers.next(),
        }
    }

    /// Receives a packet from the wire. A packet with any error is dropped. The buffer goes to the
    /// core's pool.
    pub fn receive(&mut self, now: u64, packet: Packet) {
        self.env.now = now;
        self.deliver(&packet);
        self.env.pool.give(packet);
    }

    /// Runs the timers that are due at `now`, up to the first retransmission timer. If there is
    /// one, the caller passes on the packets that have arrived, and then calls [`Core::step`],
    /// which retransmits requests that are still unanswered.
    pub fn run_due(&mut self, now: u64) -> Due {
        self.env.now = now;
        let mut is_answer_late = false;
        let did_work = self.run_timers(|is_late| {
            is_answer_late = is_late;
            is_late
        });
        Due { did_work, is_answer_late }
    }

    /// Runs due timers until `stops` returns true. `stops` is told whether the next timer is for a
    /// late answer. Returns whether any timer ran.
    fn run_timers(&mut self, mut stops: impl FnMut(bool) -> bool) -> bool {
        let mut any = false;
        while let Some((entry, owner)) = self.env.timers.first_due(self.env.now) {
            if stops(self.is_answer_late(entry, owner)) {
                break;
            }
            self.env.timers.pop();
            any = true;
            match owner {
                Owner::Qp(qpn) => {
                    if let Some(qp) = self.qps.get_mut(qpn.0) {
                        qp.timer_due(&mut self.env, entry);
                    }
                }
                Owner::Cq(cqn) => self.moderation_over(self.env.now, cqn),
                Owner::ErrorWatch => self.flush_errored(),
            }
        }
        any
    }

    fn is_answer_late(&self, entry: u64, owner: Owner) -> bool {
        let Owner::Qp(qpn) = owner else { return false };
        self.qps.get(qpn.0).is_some_and(|qp| qp.is_answer_late(entry, self.env.now))
    }

    /// Delivers packets that this port sent to itself.
    fn deliver_loopback(&mut self, budget: u32) -> u32 {
        let most = budget.min(self.env.config.turn);
        for delivered in 0..most {
            let Some(packet) = self.env.loopback.pop_front() else { return delivered };
            self.deliver(&packet);
            self.env.pool.give(packet);
        }
        most
    }

    /// Runs the next QP.
    fn run_next(&mut self) -> u32 {
        let Some(qpn) = self.env.ready.pop_front() else { return 0 };
        let turn = self.env.config.turn.max(1);
        match self.qps.get_mut(qpn.0) {
            Some(qp) => qp.run(&mut self.env, turn),
            None => 0,
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        self.env.counters.received += 1;
        self.env.counters.received_bytes += packet.bytes().len() as u64;
        if let Some(frame) = packet.frame() {
            return self.steer_frame(frame);
        }
        let Ok(view) = packet.view() else {
            self.env.counters.dropped += 1;
            return;
        };
        let from = packet.addressing;
        if view.bth.destination() == MULTICAST_QPN {
            return self.deliver_to_group(&from, &view);
        }
        let number = view.bth.destination();
        let special = self.special.get(number as usize).copied().flatten();
        match self.qps.get_mut(special.map_or(number, |qpn| qpn.0)) {
            Some(qp) => qp.receive(&mut self.env, &from, &view),
            None => self.env.receive_datagram(&from, &view),
        }
    }

    fn deliver_to_group(&mut self, from: &Addressing, view: &View<'_>) {
        if !self.env.is_multicast(from) {
            return;
        }
        let members = self.env.groups.members(from.destination).to_vec();
        let sender = view.deth.map_or(0, |deth| deth.source());
        let looped = self.env.config.gids.contains(&from.source);
        for qpn in members {
            let Some(qp) = self.qps.get_mut(qpn.0) else { continue };
            let blocked = looped && qp.params.block_multicast_loopback && sender == qpn.0;
            if !blocked {
                qp.receive(&mut self.env, from, view);
            }
        }
    }

    /// Flushes receives that were posted to QPs in error. While there are none, the interval
    /// between two checks doubles.
    fn flush_errored(&mut self) {
        let Some(delay) = self.env.error_watch.take() else { return };
        let mut errored = std::mem::take(&mut self.env.errored);
        let mut flushed = false;
        errored.sort_unstable();
        errored.dedup();
        errored.retain(|qpn| {
            let qp = self.qps.get_mut(qpn.0);
            let found = qp.and_then(|qp| qp.flush_if_in_error(&mut self.env));
            flushed |= found == Some(true);
            found.is_some()
        });
        let (soonest, latest) = (*Env::ERROR_WATCH.start(), *Env::ERROR_WATCH.end());
        let next = if flushed { soonest } else { (delay * 2).min(latest) };
        if !errored.is_empty() {
            self.env.errored.append(&mut errored);
            self.env.check_errored_after(next);
        }
    }
}
