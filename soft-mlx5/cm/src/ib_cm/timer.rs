//! Timers: retries and timewait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{CmId, Event, IbCm, Outgoing, State};
use crate::mad::{CommId, Mad};
use uverbs_soft_packet::Addressing;

const MILLISECOND: u64 = 1_000_000;

/// The duration of a 5-bit code, 4.096 us << code as the kernel approximates it: whole
/// milliseconds, at least one (`cm_convert_to_ms`).
pub(super) fn from_code(code: u8) -> u64 {
    MILLISECOND << code.saturating_sub(8).min(31)
}

/// The longest timewait, as a code: 17 s. The peer's request determines the length, and the timer
/// stays even if the id is destroyed.
const LONGEST_TIMEWAIT: u8 = 22;

/// As [`from_code`], for a code from a peer, which is limited to `most`.
pub(super) fn from_peer(code: u8, most: u8) -> u64 {
    from_code(code.min(most))
}

/// Local ACK timeout of a queue pair, as a code: the longer of the peer's delay and twice the
/// packet lifetime, plus one if both are about the same (`cm_ack_timeout`).
pub(super) fn ack_timeout(ack_delay: u8, life: u8) -> u8 {
    let twice = life.saturating_add(1);
    let longer = ack_delay.max(twice);
    let near = ack_delay.abs_diff(twice) <= 1;
    (longer + u8::from(near)).min(31)
}

/// A message that waits for an answer.
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
    /// Check whether this id's message was answered.
    Retry(CmId),
    /// A timewait ends.
    TimeWait(TimeWait),
}

/// Entries in time order. An entry only means that a check is due: the message may have been
/// answered meanwhile.
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

/// The timewait of a connection, which may outlive its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimeWait {
    id: CmId,
    remote: CommId,
    remote_qpn: u32,
}

impl IbCm {
    /// Sends a message and retries it until [`Id::pending`](super::id::Id) is cleared.
    pub(super) fn post_for_answer(&mut self, now: u64, id: CmId, mad: Mad) {
        let Some(entry) = self.ids.get_mut(&id) else {
            return;
        };
        let (addressing, period) = (entry.path.addressing, entry.timeout);
        let (deadline, retries_left) = (now + period, entry.max_cm_retries);
        entry.pending = Some(Pending { addressing, mad, deadline, period, retries_left });
        self.timers.add(deadline, Due::Retry(id));
        self.post(addressing, mad);
    }

    /// Restarts the timeout with `period` nanoseconds, as a peer's MRA asks. `false` if no message
    /// waits for an answer.
    pub(super) fn extend_timeout(&mut self, now: u64, id: CmId, period: u64) -> bool {
        let Some(pending) = self.ids.get_mut(&id).and_then(|entry| entry.pending.as_mut()) else {
            return false;
        };
        (pending.period, pending.deadline) = (period, now + period);
        self.timers.add(now + period, Due::Retry(id));
        true
    }

    /// Sends an id's message again if it was not answered in time, and returns its addressing.
    pub(super) fn retry(&mut self, now: u64, id: CmId) -> Option<Addressing> {
        let pending = self.ids.get_mut(&id)?.pending.as_mut()?;
        if pending.deadline > now {
            return None;
        }
        let Some(left) = pending.retries_left.checked_sub(1) else {
            self.give_up(now, id);
            return None;
        };
        (pending.retries_left, pending.deadline) = (left, now + pending.period);
        let Pending { addressing, mad, deadline, .. } = *pending;
        self.timers.add(deadline, Due::Retry(id));
        if let Ok(attribute) = mad.attribute() {
            self.counters.retried.count(attribute);
        }
        self.outgoing.push_back(Outgoing { addressing, mad });
        Some(addressing)
    }

    /// Fails a message that was not answered after all retries (`cm_process_send_error`).
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

    /// Ends the connection. The queue pair can be reused after an ACK timeout, the peer's ids at
    /// once.
    pub(super) fn enter_timewait(&mut self, now: u64, id: CmId) {
        self.forget_remote(id);
        let Some(entry) = self.ids.get_mut(&id) else {
            return;
        };
        (entry.state, entry.pending) = (State::TimeWait, None);
        let until = now + from_peer(entry.ack_timeout, LONGEST_TIMEWAIT);
        let wait = TimeWait { id, remote: entry.remote, remote_qpn: entry.remote_qpn };
        self.timers.add(until, Due::TimeWait(wait));
    }

    pub(super) fn end_timewait(&mut self, wait: TimeWait) {
        let Some(entry) = self.ids.get_mut(&wait.id) else {
            return;
        };
        let same = (entry.remote, entry.remote_qpn) == (wait.remote, wait.remote_qpn);
        if entry.state == State::TimeWait && same {
            entry.state = State::Idle;
            self.events.push_back((wait.id, Event::TimewaitExit));
        }
    }
}
