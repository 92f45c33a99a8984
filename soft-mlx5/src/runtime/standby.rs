//! How the device's thread stands by while programs' threads do its work.
//!
//! A program that polls has nothing to do between two polls that found nothing. If it goes to the
//! scheduler then, the device's thread takes its turn, and the program waits for two switches of
//! threads. If it does the device's next look itself
//! ([`Runtime::progress`](super::Runtime::progress)), there is none.
//!
//! Only the thread that holds the worker's lock looks; a thread that finds it taken returns. While
//! programs look, the device's thread sleeps for short times (naps). It does not announce a nap, so
//! no program spends a system call on waking it, and nothing is lost as the nap ends by itself.
//! When it finds that the last look of a program was a while ago, it takes over. So what comes
//! after that look waits for 50 us, and up to 1 ms if programs have looked for long. If the
//! scheduler stops a program's thread during a look, the device waits for it, as it does for a
//! thread in a command: programs that poll should run at one priority.
//!
//! Before a longer sleep the device's thread announces it, looks once more and sleeps, all under
//! the worker's lock. So no look of a program comes in between, and the protocols by which the
//! thread is woken need not know of those looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::lock;

/// How long after a program's look the thread takes over, in nanoseconds. A program that works on
/// what it has polled looks again sooner; one that has to wait for a processor does so later.
const GONE: u64 = 50_000;

/// Shortest and longest nap in nanoseconds. Waking up for nothing takes some 5 us, in an emulated
/// machine 40 us, and ends the time slice of a thread that may be a peer's. A program that waits
/// for a processor longer than a nap has the device's thread instead.
const NAP: (u64, u64) = (25_000, 1_000_000);

/// A program's thread that sleeps in place of the device's thread says until when. The device's
/// thread relies on that for at most this time, in nanoseconds: its own longest sleep, and what the
/// program's may end late.
const ASLEEP: u64 = 8_500_000;

/// State that programs' threads and the device's thread share.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// When a program looked last, or wanted to; 0 if never.
    last: AtomicU64,
    /// Until when a program's thread that waits for a file does the device's work; 0 if none ever
    /// did.
    waits: AtomicU64,
    /// The thread shall not nap any more.
    over: Mutex<bool>,
    changed: Condvar,
}

impl Standby {
    /// A program's thread looks now.
    pub(super) fn note(&self, now: u64) {
        // Relaxed: a date by which nothing is published. Not a store: of several threads the last
        // one counts.
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// A program's thread waits for a file until then, and does the device's work meanwhile.
    pub(super) fn note_wait(&self, until: u64) {
        self.waits.fetch_max(until, Ordering::Relaxed);
    }

    /// Until when, at most, the device's thread believes that a waiting program does its work.
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

    /// The thread naps for this many nanoseconds, or until [`Standby::end`].
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

/// How long the device's thread sleeps at a time while it stands by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naps {
    /// The next nap in nanoseconds. It doubles with each nap, because the thread woke for nothing
    /// if it naps again, and is halved where the thread takes over.
    length: u64,
    /// The thread has taken over.
    works: bool,
}

impl Naps {
    pub(super) fn new() -> Self {
        Self { length: NAP.0, works: true }
    }

    /// How long to nap in nanoseconds; `None`: no program looks, so the thread has to.
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
