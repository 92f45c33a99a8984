//! Decides whether a thread that waits for a file first polls the device, or sleeps at once.
//!
//! Polling saves a sleep and a wake-up if the answer comes within the time that these take. It
//! cannot succeed if the peer does not run before this thread sleeps: on busy processors, or on
//! emulated processors that run in turn. So a thread polls only for that time. After a try that
//! found nothing, it sleeps at once for a number of times, which doubles with each such try.

/// How long a thread polls after the last work, in nanoseconds. A sleep and a wake-up take 5 us on
/// an idle processor, and up to 50 us on a virtual one.
const SPIN: u64 = 50_000;

/// Most sleeps in a row before a thread tries polling again.
const MOST: u32 = 256;

/// The results of the last looks of waiting threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spins {
    /// Looks in a row that found nothing, without a sleep.
    empty: u32,
    /// Sleeps before the next try.
    left: u32,
    /// The number of sleeps before this try.
    before: u32,
}

impl Spins {
    /// Whether to look again instead of sleeping, `quiet` nanoseconds after the last work, if the
    /// thread `may`.
    pub(super) fn pay(&mut self, quiet: u64, may: bool) -> bool {
        if may && self.left == 0 && quiet < SPIN {
            return true;
        }
        if self.empty != 0 {
            self.before = (2 * self.before).clamp(1, MOST);
            self.left = self.before;
        } else {
            self.left = self.left.saturating_sub(1);
        }
        self.empty = 0;
        false
    }

    /// The thread has looked without a sleep.
    pub(super) fn looked(&mut self, did_work: bool) {
        if !did_work {
            self.empty += 1;
        } else if std::mem::take(&mut self.empty) != 0 {
            self.before /= 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many sleeps there are before the next look.
    fn sleeps(spins: &mut Spins) -> usize {
        std::iter::repeat_with(|| spins.pay(0, true)).take_while(|pays| !pays).count()
    }

    #[test]
    fn looks_that_find_nothing_become_rarer() {
        let mut spins = Spins::default();
        let counts: Vec<usize> = std::iter::repeat_with(|| {
            assert!(spins.pay(SPIN - 1, true));
            spins.looked(false);
            assert!(!spins.pay(SPIN, true), "it took too long");
            sleeps(&mut spins)
        })
        .take(10)
        .collect();
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
    }

    #[test]
    fn a_look_that_finds_the_answer_reduces_the_sleeps() {
        let mut spins = Spins::default();
        for _ in 0..5 {
            spins.looked(false);
            spins.pay(SPIN, true);
            sleeps(&mut spins);
        }
        // Work that follows from this thread's own doorbell is not an answer.
        spins.looked(true);
        spins.looked(false);
        spins.pay(SPIN, true);
        assert_eq!(sleeps(&mut spins), 32);
        spins.looked(false);
        spins.looked(true);
        spins.looked(false);
        spins.pay(0, false);
        assert_eq!(sleeps(&mut spins), 16);
    }
}
