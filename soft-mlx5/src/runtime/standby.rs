//! Keeps the device's thread asleep (standing by) while programs' threads do its work.
//!
//! A polling program has nothing to do between two polls that found nothing. If it yields, the
//! device's thread runs, and the program waits for two context switches. If it does the device's
//! next look itself ([`Runtime::progress`](super::Runtime::progress)), there are none.
//!
//! Only the thread that holds the worker's lock does looks; other threads return at once. While
//! programs look, the device's thread sleeps for short times (naps). It does not announce a nap, so
//! no program makes a system call to wake it; the nap ends by itself. If the last look of a program
//! was then too long ago, the thread takes over. So work that arrives after a program's last look
//! waits for 50 us, or up to 1 ms if programs have looked for a long time. If the scheduler
//! preempts a program's thread during a look or a command, the device waits for it, so programs
//! that poll should run at one priority.
//!
//! Before a longer sleep the device's thread announces it, looks once more and sleeps, all under
//! the worker's lock. So no look of a program can happen in between, and the wake-up protocols need
//! not consider those looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::lock;

/// How long after a program's look the thread takes over, in nanoseconds. A program that processes
/// a completion looks again sooner; a program that waits for a processor looks again later.
const GONE: u64 = 50_000;

/// Shortest and longest nap in nanoseconds. An unnecessary wake-up takes about 5 us (40 us on an
/// emulated machine), and preempts a thread that may be the peer's. If a program waits for a
/// processor longer than a nap, the device's thread does the work.
const NAP: (u64, u64) = (25_000, 1_000_000);

/// A program's thread that sleeps in place of the device's thread announces the end of its sleep.
/// The device's thread relies on this for at most this time, in nanoseconds: its own longest sleep,
/// and a reserve for sleeps that end late.
const ASLEEP: u64 = 8_500_000;

/// State that programs' threads and the device's thread share.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// When a program last did a look, or tried to; 0 if never.
    last: AtomicU64,
    /// Until when a program's thread that waits for a file does the device's work; 0 if none ever
    /// did.
    waits: AtomicU64,
    /// The thread must not nap any more.
    over: Mutex<bool>,
    changed: Condvar,
}

impl Standby {
    /// Records that a program's thread does a look now.
    pub(super) fn note(&self, now: u64) {
        // Relaxed, because the time publishes no other data. A maximum, because several threads may
        // call this.
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Records that a program's thread waits for a file until this time, and does the device's work
    /// meanwhile.
    pub(super) fn note_wait(&self, until: u64) {
        self.waits.fetch_max(until, Ordering::Relaxed);
    }

    /// Until when, at most, the device's thread relies on a waiting program to do its work.
    pub(super) fn waits_until(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// When a program's thread last looked or waited, if ever. It is in the future while such a
    /// thread sleeps.
    pub(super) fn last(&self) -> Option<u64> {
        let last = self.last.load(Ordering::Relaxed).max(self.waits.load(Ordering::Relaxed));
        Some(last).filter(|last| *last != 0)
    }

    /// Whether a program that polls does the device's work.
    pub(super) fn is_polled(&self, now: u64) -> bool {
        now < self.last.load(Ordering::Relaxed).saturating_add(GONE)
    }

    /// Sleeps for this many nanoseconds, or until [`Standby::end`].
    pub(super) fn nap(&self, nanoseconds: u64) {
        let over = lock(&self.over);
        if !*over {
            drop(self.changed.wait_timeout(over, Duration::from_nanos(nanoseconds)));
        }
    }

    /// Ends the current nap and prevents further ones.
    pub(super) fn end(&self) {
        *lock(&self.over) = true;
        self.changed.notify_all();
    }
}

/// How long the device's thread sleeps at a time while it stands by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naps {
    /// The next nap in nanoseconds. It doubles with each nap, because a thread that naps again has
    /// woken for nothing, and is halved when the thread takes over.
    length: u64,
    /// The thread has taken over.
    works: bool,
}

impl Naps {
    pub(super) fn new() -> Self {
        Self { length: NAP.0, works: true }
    }

    /// How long to nap in nanoseconds; `None` if no program does looks, so that the thread has to.
    pub(super) fn next(&mut self, last: u64, now: u64) -> Option<u64> {
        if now.saturating_sub(last) >= GONE {
            if !std::mem::replace(&mut self.works, true) {
                self.length = (self.length / 2).max(NAP.0);
            }
            return None;
        }
        self.works = false;
        let nap = self.length;
        self.length = (2 * nap).min(NAP.1);
        Some(nap.max(last.saturating_sub(now).min(ASLEEP)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All naps from one time to another, of a thread beside a program that looks all the time.
    fn lengths(naps: &mut Naps, from: u64, to: u64) -> Vec<u64> {
        let next = |now: &u64| naps.next(*now, *now).map(|nap| now + nap);
        let ends: Vec<u64> =
            std::iter::successors(Some(from), next).take_while(|now| *now <= to).collect();
        ends.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn naps_for_nothing_become_longer() {
        let mut naps = Naps::new();
        let first = lengths(&mut naps, 1_000, 3_000_000);
        assert_eq!(first[..4], [25_000, 50_000, 100_000, 200_000]);
        assert_eq!(first.last(), Some(&NAP.1));
        assert_eq!(lengths(&mut naps, 0, 1_000_000_000).len(), 1_000, "in a second");
    }

    #[test]
    fn a_thread_that_takes_over_naps_half_as_long_next_time() {
        let mut naps = Naps::new();
        lengths(&mut naps, 1_000, 5_000_000);
        assert_eq!(naps.next(5_000_000, 5_000_000 + GONE - 1), Some(NAP.1));
        for later in 0..3 {
            assert_eq!(naps.next(5_000_000, 5_000_000 + GONE + later), None);
        }
        assert_eq!(naps.next(7_000_000, 7_000_000), Some(NAP.1 / 2));
    }

    #[test]
    fn the_thread_sleeps_as_long_as_a_waiting_program() {
        let mut naps = Naps::new();
        assert_eq!(naps.next(4_000_000, 1_000_000), Some(3_000_000));
        assert_eq!(naps.next(400_000_000, 4_000_000), Some(ASLEEP));
        assert_eq!(naps.next(12_000_000, 12_000_000), Some(4 * NAP.0));
    }

    #[test]
    fn the_end_is_not_slept_through() {
        let standby = Standby::default();
        assert_eq!(standby.last(), None);
        standby.note(7);
        standby.note(5);
        assert_eq!(standby.last(), Some(7));
        standby.end();
        // This takes days if `end` does not end it.
        standby.nap(u64::MAX / 1024);
    }
}
