//! Deadlines of objects. The caller provides the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Cqn, Qpn};

/// The object that a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// Acknowledgement or RNR timeout of a requester.
    Qp(Qpn),
    /// Moderation period of a CQ.
    Cq(Cqn),
    /// The next check for receives posted to QPs in error.
    ErrorWatch,
}

/// Entries in time order. An entry only says when to check its owner. The owner keeps its true
/// deadline, and adds a new entry if the deadline has moved. So moving a deadline later costs
/// nothing.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, Owner)>>,
}

impl Timers {
    pub(super) fn add(&mut self, at: u64, owner: Owner) {
        self.heap.push(Reverse((at, owner)));
    }

    /// The first entry, if it is due.
    pub(super) fn first_due(&self, now: u64) -> Option<(u64, Owner)> {
        let Reverse(entry) = self.heap.peek()?;
        (entry.0 <= now).then_some(*entry)
    }

    /// Removes the first entry.
    pub(super) fn pop(&mut self) {
        self.heap.pop();
    }

    /// When the next entry is due.
    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

/// A deadline with at most one valid entry in [`Timers`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deadline {
    due: Option<u64>,
    entry: Option<u64>,
}

impl Deadline {
    /// Sets the deadline.
    pub(super) fn set(&mut self, at: u64, owner: Owner, timers: &mut Timers) {
        self.due = Some(at);
        if self.entry.is_none_or(|entry| entry > at) {
            self.entry = Some(at);
            timers.add(at, owner);
        }
    }

    /// Sets the deadline unless there is one.
    pub(super) fn start(&mut self, at: u64, owner: Owner, timers: &mut Timers) {
        if self.due.is_none() {
            self.set(at, owner, timers);
        }
    }

    pub(super) fn clear(&mut self) {
        self.due = None;
    }

    /// Whether the deadline has passed when this entry comes up.
    pub(super) fn is_over(&self, entry: u64, now: u64) -> bool {
        self.entry == Some(entry) && self.due.is_some_and(|due| due <= now)
    }

    /// Called when an entry is due: returns whether the deadline has passed, and if so clears it.
    pub(super) fn expired(
        &mut self,
        entry: u64,
        now: u64,
        owner: Owner,
        timers: &mut Timers,
    ) -> bool {
        if self.entry != Some(entry) {
            return false;
        }
        self.entry = None;
        match self.due {
            Some(due) if due <= now => {
                self.due = None;
                true
            }
            Some(due) => {
                self.set(due, owner, timers);
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
