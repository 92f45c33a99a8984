//! Time: repetitions and timewait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{CmId, Event, IbCm, Outgoing, State};
use crate::mad::{CommId, Mad};
use uverbs_soft_packet::Addressing;

const MILLISECOND: u64 = 1_000_000;

/// The time that a code of 5 bits stands for, as the kernel approximates 4.096 us << code: whole
/// milliseconds, at least one (`cm_convert_to_ms`).
pub(super) fn from_code(code: u8) -> u64 {
    MILLISECOND << code.saturating_sub(8).min(31)
}

/// Local ACK timeout of a queue pair: the longer of the peer's delay and twice the packet's
/// lifetime, one more if both are about the same (`cm_ack_timeout`).
pub(super) fn ack_timeout(ack_delay: u8, life: u8) -> u8 {
    let twice = life.saturating_add(1);
    let longer = ack_delay.max(twice);
    let near = ack_delay.abs_diff(twice) <= 1;
    (longer + u8::from(near)).min(31)
}

/// A datagram that wants an answer.
#[derive(Debug)]
pub(super) struct Pending {
    addressing: Addressing,
    mad: Mad,
    deadline: u64,
    period: u64,
    retries_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Look whether this id's datagram was answered.
    Retry(CmId),
    /// Timewait is over.
    TimeWait(TimeWait),
}

/// Entries in time order. An entry only says "look there now": what it is for may be over.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(u64, Due)>>);

impl Timers {
    fn add(&mut self, at: u64, due: Due) {
        self.0.push(Reverse((at, due)));
    }

    pub(super) fn pop_due(&mut self, now: u64) -> Option<Due> {
        let Reverse((at, _)) = self.0.peek()?;
        if *at > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, due))| due)
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }
}

/// The end of a connection, which outlives its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimeWait {
    id: CmId,
    remote: CommId,
    remote_qpn: u32,
}

impl IbCm {
    /// Sends a datagram and repeats it until [`Id::pending`](super::id::Id) is cleared.
    pub(super) fn post_for_answer(&mut self, now: u64, id: CmId, mad: Mad) {
        let Some(of) = self.ids.get_mut(&id) else {
            return;
        };
        let (addressing, period) = (of.path.addressing, of.timeout);
        let (deadline, retries_left) = (now + period, of.max_cm_retries);
        of.pending = Some(Pending { addressing, mad, deadline, period, retries_left });
        self.timers.add(deadline, Due::Retry(id));
        self.post(addressing, mad);
    }

    /// MRA came: waits this long from now on; `false` if nothing waits.
    pub(super) fn be_patient(&mut self, now: u64, id: CmId, period: u64) -> bool {
        let Some(pending) = self.ids.get_mut(&id).and_then(|of| of.pending.as_mut()) else {
            return false;
        };
        (pending.period, pending.deadline) = (period, now + period);
        self.timers.add(now + period, Due::Retry(id));
        true
    }

    pub(super) fn retry(&mut self, now: u64, id: CmId) {
        let Some(pending) = self.ids.get_mut(&id).and_then(|of| of.pending.as_mut()) else {
            return;
        };
        if pending.deadline > now {
            return;
        }
        let Some(left) = pending.retries_left.checked_sub(1) else {
            return self.give_up(now, id);
        };
        (pending.retries_left, pending.deadline) = (left, now + pending.period);
        let Pending { addressing, mad, deadline, .. } = *pending;
        self.timers.add(deadline, Due::Retry(id));
        if let Ok(attribute) = mad.attribute() {
            self.counters.retried.count(attribute);
        }
        self.outgoing.push_back(Outgoing { addressing, mad });
    }

    /// Nothing answered in all that time (`cm_process_send_error`).
    fn give_up(&mut self, now: u64, id: CmId) {
        let event = match self.state(id) {
            Some(State::ReqSent | State::MraReqReceived) => Event::ReqError,
            Some(State::RepSent | State::MraRepReceived) => Event::RepError,
            Some(State::DreqSent) => Event::DreqError,
            Some(State::SidrReqSent) => Event::SidrReqError,
            _ => return,
        };
        match event {
            Event::DreqError => self.enter_timewait(now, id),
            _ => self.reset(id),
        }
        self.events.push_back((id, event));
    }

    /// The connection is over: its queue pair rests for an ACK timeout. From now on the peer's ids
    /// may come again.
    pub(super) fn enter_timewait(&mut self, now: u64, id: CmId) {
        self.forget_remote(id);
        let Some(of) = self.ids.get_mut(&id) else {
            return;
        };
        (of.state, of.pending) = (State::TimeWait, None);
        let until = now + from_code(of.ack_timeout);
        let wait = TimeWait { id, remote: of.remote, remote_qpn: of.remote_qpn };
        self.timers.add(until, Due::TimeWait(wait));
    }

    pub(super) fn end_timewait(&mut self, wait: TimeWait) {
        let Some(of) = self.ids.get_mut(&wait.id) else {
            return;
        };
        let same = (of.remote, of.remote_qpn) == (wait.remote, wait.remote_qpn);
        if of.state == State::TimeWait && same {
            of.state = State::Idle;
            self.events.push_back((wait.id, Event::TimewaitExit));
        }
    }
}
