//! Time that programs lend to their device.
//!
//! A program that polls has nothing to do between two polls that found nothing. If it goes to the
//! scheduler then, the device's thread takes its turn, and the program waits for two switches of
//! threads. If it does the device's next look itself ([`Runtime::lend`](super::Runtime::lend)),
//! there is none.
//!
//! Only the thread that holds the worker's lock looks; a thread that finds it taken returns. While
//! programs lend, the device's thread sleeps for short times (naps). It does not announce a nap, so
//! no program spends a system call on waking it, and nothing is lost as the nap ends by itself.
//! When it finds that the last lent look was a while ago, it takes over. So what comes after the
//! last lent look waits for 50 us, and up to 300 us if lending has lasted long. If the scheduler
//! stops a thread in the midst of a lent look, the device waits for it, as it does for a thread
//! in a command: programs that lend should run at one priority.
//!
//! Before a longer sleep the device's thread announces it, looks once more and sleeps, all under
//! the worker's lock. So no lent look comes in between, and the protocols by which it is woken need
//! not know of lending.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::lock;

/// How long after a lent look the thread takes over, in nanoseconds. A program that works on what
/// it has polled lends again sooner; one that has to wait for a processor does so later.
const GONE: u64 = 50_000;

/// Shortest and longest nap in nanoseconds. Waking up for nothing takes some 5 us, and a program
/// that waits for a processor longer than a nap has the device's thread instead.
const NAP: (u64, u64) = (25_000, 250_000);

/// The longest nap beside busy loops in nanoseconds: each one ends the time slice of a thread that
/// may be a peer's.
const NAP_IN_CROWD: u64 = 1_000_000;

/// A program's thread that sleeps in the device's stead says until when. The device's thread relies
/// on that for at most this time, in nanoseconds: its own longest sleep.
const ASLEEP: u64 = 8_000_000;

/// State that programs' threads and the device's thread share.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// When a program lent its time last, or wanted to; 0 if never.
    last: AtomicU64,
    /// Until when a program's thread that waits for a file works in the device's stead; 0 if none
    /// ever did.
    waits: AtomicU64,
    /// The thread shall not nap any more.
    over: Mutex<bool>,
    changed: Condvar,
}

impl Lending {
    /// A program lends a look now.
    pub(super) fn note(&self, now: u64) {
        // Relaxed: a date by which nothing is published. Not a store: of several lenders the last
        // one counts.
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// A program's thread waits for a file until then, and works in the device's stead.
    pub(super) fn note_wait(&self, until: u64) {
        self.waits.fetch_max(until, Ordering::Relaxed);
    }

    /// Until when, at most, the device's thread believes that a waiting program does its work.
    pub(super) fn waits_until(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// When a program last lent or waited, if ever. It is in the future while a program's thread
    /// sleeps.
    pub(super) fn last(&self) -> Option<u64> {
        let last = self.last.load(Ordering::Relaxed).max(self.waits.load(Ordering::Relaxed));
        Some(last).filter(|last| *last != 0)
    }

    /// Whether a program that polls does the device's work.
    pub(super) fn is_polled(&self, now: u64) -> bool {
        now < self.last.load(Ordering::Relaxed).saturating_add(GONE)
    }

    /// The thread naps for this many nanoseconds, or until [`Lending::end`].
    pub(super) fn nap(&self, nanoseconds: u64) {
        let over = lock(&self.over);
        if !*over {
            drop(self.changed.wait_timeout(over, Duration::from_nanos(nanoseconds)));
        }
    }

    /// Ends the nap and all that would follow.
    pub(super) fn end(&self) {
        *lock(&self.over) = true;
        self.changed.notify_all();
    }
}

/// How the thread keeps out of the lenders' way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standby {
    /// When the thread first found that a program lent.
    since: Option<u64>,
}

impl Standby {
    /// How long to nap in nanoseconds; `None`: no program lends, so the thread has to look.
    pub(super) fn nap(&mut self, last: u64, now: u64, crowded: bool) -> Option<u64> {
        if now.saturating_sub(last) >= GONE {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let sleeps = last.saturating_sub(now).min(ASLEEP);
        let longest = if crowded { NAP_IN_CROWD } else { NAP.1 };
        Some((now.saturating_sub(since) / 8).clamp(NAP.0, longest).max(sleeps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_with_the_time_that_lending_lasts() {
        let mut standby = Standby::default();
        assert_eq!(standby.nap(1_000, 1_000, false), Some(NAP.0));
        assert_eq!(standby.nap(801_000, 801_000, false), Some(100_000));
        assert_eq!(standby.nap(80_000_000, 80_000_100, false), Some(NAP.1));
        assert_eq!(standby.nap(80_000_000, 80_000_100, true), Some(NAP_IN_CROWD));
    }

    #[test]
    fn who_has_stopped_lending_is_stood_in_for_and_begins_anew() {
        let mut standby = Standby::default();
        standby.nap(1_000, 1_000, false);
        assert_eq!(standby.nap(900_000, 900_000 + GONE - 1, false), Some(118_624));
        assert_eq!(standby.nap(900_000, 900_000 + GONE, false), None);
        assert_eq!(standby.nap(2_000_000, 2_000_000, false), Some(NAP.0));
    }

    #[test]
    fn the_end_is_not_slept_through() {
        let lending = Lending::default();
        assert_eq!(lending.last(), None);
        lending.note(7);
        lending.note(5);
        assert_eq!(lending.last(), Some(7));
        lending.end();
        // This takes days if `end` does not end it.
        lending.nap(u64::MAX / 1024);
    }
}
