//! Doorbells: memory that the program writes and the device polls.
//!
//! A UAR page of a ConnectX is MMIO; here it is shared memory. The program's stores stay in it
//! until the device swaps the first 8 bytes of each doorbell with zero. A word that was not zero
//! names the queue that rang last. Queues that share a register may have overwritten each other's
//! words, so each look also checks a bounded number of the page's other queues.
//!
//! Programs write the halves of a register in turn. So if just one half was written since the last
//! look, there was one doorbell, and no other queue needs to be checked. A program that always
//! writes the same half is recognized when it writes that half twice in a row. For programs that
//! follow neither rule, all queues of the page are checked before the device sleeps.

mod page;
mod region;

use std::collections::HashMap;

pub use page::Doorbell;
use page::Page;
pub use region::{UAR_PAGE_SIZE, UarPage, UarRegion};

/// Most pages that one look checks: of those with recent doorbells, and of the others.
const PAGES: (usize, usize) = (64, 24);

/// Most pages without recent doorbells that one look checks before a sleep, unless more pages had
/// recent doorbells. This takes 3 to 9 us, because a page takes 10 to 35 ns.
const PORTION: usize = 256;

/// The pages with queues, and the queues that ring in each.
///
/// Checking a page whose lines are not in the cache costs as much as handling a small packet. All
/// pages have their words at the same offsets, so few of these lines stay in the cache. So a look
/// does not check all words:
/// - it checks all pages that rang recently ("warm" ones), or if they are very many, some of them
///   in turn; and some of the others ("cool" ones) in turn;
/// - of a page's words, it checks those of the register that rang last, and the others in turn.
///
/// Before the device sleeps, it checks all words. Each look checks a portion of the cool pages, so
/// that new work need not wait for thousands of idle pages.
#[derive(Debug, Default)]
pub struct Uars {
    /// The warm pages, which rang recently, come first; then the cool ones.
    pages: Vec<Page>,
    /// The index of each page in `pages`.
    places: HashMap<(usize, usize), usize>,
    /// How many pages are warm.
    warm: usize,
    /// The next check of the warm pages starts below this index and goes downwards.
    warm_turn: usize,
    /// The cool page at which the next check of them starts.
    turn: usize,
    /// How many cool pages must be checked before the device sleeps: those from `cursor` on,
    /// cyclically. `None` means all.
    unseen: Option<usize>,
    /// Index of the next page to look at before the device sleeps.
    cursor: usize,
    /// Number of pages whose queues must be checked soon.
    unswept: usize,
    /// How many pages were read.
    #[cfg(test)]
    looked: usize,
}

impl Uars {
    /// Adds a doorbell that the program rings in this page from now on.
    pub fn attach(&mut self, uar: &UarPage, doorbell: Doorbell) {
        self.change(uar, |page| page.attach(doorbell));
    }

    /// The queue of this doorbell is destroyed.
    pub fn detach(&mut self, uar: &UarPage, doorbell: Doorbell) {
        self.change(uar, |page| page.detach(doorbell));
    }

    /// Changes the queues of a page. A page is kept as long as it has queues.
    fn change(&mut self, uar: &UarPage, change: impl FnOnce(&mut Page)) {
        let at = *self.places.entry(uar.key()).or_insert_with(|| {
            self.pages.push(Page::new(uar.clone()));
            self.pages.len() - 1
        });
        // Pages may change their places.
        self.unseen = None;
        self.with(at, change);
        if self.pages[at].is_idle() {
            self.forget(at);
        }
    }

    fn forget(&mut self, mut at: usize) {
        if at < self.warm {
            self.warm -= 1;
            self.warm_turn = self.warm_turn.min(self.warm);
            self.swap(at, self.warm);
            at = self.warm;
        }
        self.swap(at, self.pages.len() - 1);
        self.pages.pop().map(|page| self.places.remove(&page.uar.key()));
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.pages.swap(one, other);
        for at in [one, other] {
            self.places.insert(self.pages[at].uar.key(), at);
        }
    }

    /// Makes a cool page a warm one. The first cool page takes its place.
    fn warm_up(&mut self, at: usize) {
        self.swap(at, self.warm);
        self.warm += 1;
    }

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Checks the pages that rang recently, and some others. If the device is about to sleep
    /// (`sleeps`), it reads all words of each page, and the others are the next portion of all
    /// pages. Returns whether a page must be checked again soon.
    pub(super) fn look(&mut self, sleeps: bool, mut ring: impl FnMut(Doorbell)) -> bool {
        let warm = self.warm;
        if sleeps {
            self.look_at_portion(&mut ring);
        } else {
            // This look reads only few words of a page, and pages may change places. So the sweep
            // before a sleep must start again.
            self.unseen = None;
            self.look_at_cool(&mut ring);
        }
        self.look_at_warm(sleeps, warm, &mut ring);
        self.unswept != 0
    }

    /// Whether pages are left that must be read before the device sleeps.
    pub(super) fn is_sweeping(&self) -> bool {
        self.unseen.is_some()
    }

    /// Called when a thread that may have rung any doorbell begins to wait: all pages must be
    /// checked before it sleeps.
    pub(super) fn sweep_anew(&mut self) {
        self.unseen = None;
    }

    fn look_at_cool(&mut self, ring: &mut impl FnMut(Doorbell)) {
        let (before, cool) = (self.warm, self.pages.len() - self.warm);
        let (first, count) = (self.turn, cool.min(PAGES.1));
        // A page that warms up changes places with the first cool one, which may have to wait for
        // its next turn.
        for place in first..first + count {
            let at = before + place % cool;
            if at >= self.warm && self.look_at(at, false, ring) {
                self.warm_up(at);
            }
        }
        self.turn = (first + count) % cool.max(1);
    }

    /// Reads the next cool pages of those that must be read before the device sleeps. The warm
    /// pages are read with each portion. A portion has at least as many cool pages, so the warm
    /// ones at most double the work.
    fn look_at_portion(&mut self, ring: &mut impl FnMut(Doorbell)) {
        let unseen = self.unseen.unwrap_or(self.pages.len() - self.warm);
        let portion = unseen.min(PORTION.max(self.warm));
        let mut left = portion;
        while left > 0 && self.warm < self.pages.len() {
            if !(self.warm..self.pages.len()).contains(&self.cursor) {
                self.cursor = self.warm;
            }
            if self.look_at(self.cursor, true, ring) {
                // The page that takes its place is read next.
                self.warm_up(self.cursor);
            } else {
                self.cursor += 1;
                left -= 1;
            }
        }
        self.unseen = Some(unseen - portion).filter(|unseen| *unseen > 0);
    }

    /// Looks at the first `warm` pages.
    fn look_at_warm(&mut self, all: bool, warm: usize, ring: &mut impl FnMut(Doorbell)) {
        let is_whole = all || warm <= PAGES.0;
        let (mut at, count) = if is_whole { (warm, warm) } else { (self.warm_turn, PAGES.0) };
        // Downwards: a page that cools down changes places with the last warm one, which was looked
        // at already, or else waits for its next turn.
        for _ in 0..count {
            at = if at == 0 { self.warm } else { at } - 1;
            if !self.look_at(at, all, ring) {
                self.warm -= 1;
                self.swap(at, self.warm);
                // It is the first cool page now, and counts as one of those left.
                self.unseen = self.unseen.map(|unseen| unseen + 1);
                if self.warm == 0 {
                    break;
                }
            }
        }
        self.warm_turn = at.min(self.warm);
    }

    /// Whether the page is a warm one now.
    fn look_at(&mut self, at: usize, all: bool, ring: &mut impl FnMut(Doorbell)) -> bool {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        self.with(at, |page| page.look(all, ring));
        self.pages[at].is_warm()
    }

    /// Calls `act` with a page, and keeps `unswept`.
    fn with(&mut self, at: usize, act: impl FnOnce(&mut Page)) {
        let page = &mut self.pages[at];
        self.unswept -= usize::from(page.needs_sweep());
        act(page);
        self.unswept += usize::from(page.needs_sweep());
    }
}

#[cfg(test)]
mod tests;
