//! Doorbells: memory that the program writes and the device looks at.
//!
//! A UAR page of a ConnectX is MMIO; here it is shared memory. The program's stores stay in it
//! until the device swaps the first 8 bytes of each doorbell with zero. A word that was not zero
//! names the queue that rang last. Queues that share a register may have overwritten each other's
//! words: then the others of the page are looked at, too, a bounded number at each look.
//!
//! Programs write the halves of a register in turn. So if just one half was written since the last
//! look, there was one ring, and no other queue has to be looked at. A program that always writes
//! the same half is recognized when it writes that half twice running. In case a program follows
//! neither rule, all queues of the page are looked at before the device sleeps.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use uverbs_mlx5_format::{
    BLUEFLAME_HALF_SIZE, BLUEFLAME_OFFSET, BLUEFLAME_REGISTER_SIZE, BLUEFLAME_REGISTERS_PER_UAR,
    CQ_ARM_OFFSET, UAR_SIZE,
};

use crate::core::{Core, Cqn, Qpn};
use crate::sealed::sealed_memory;

/// Bytes of a UAR page, also on hosts whose pages are larger.
pub const UAR_PAGE_SIZE: usize = UAR_SIZE;

/// Offsets of both halves of both BlueFlame registers of a page that programs use, and of the
/// register by which CQs are armed.
const WORDS: [usize; 5] = [
    BLUEFLAME_OFFSET,
    BLUEFLAME_OFFSET + BLUEFLAME_HALF_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE + BLUEFLAME_HALF_SIZE,
    CQ_ARM_OFFSET,
];

/// Which of [`WORDS`] arms CQs.
const ARM: usize = WORDS.len() - 1;

/// The words of both registers, as bits. The halves of one are looked at together, the first one
/// first.
const REGISTERS: [u8; BLUEFLAME_REGISTERS_PER_UAR] = [0b0011, 0b1100];

/// All words, as bits.
const ALL: u8 = (1 << WORDS.len()) - 1;

const _: () = assert!(ARM == 2 * BLUEFLAME_REGISTERS_PER_UAR);

/// Shared memory of a number of UAR pages: a sealed memfd that both the device and the program
/// map.
pub struct UarRegion {
    map: MmapRaw,
    file: OwnedFd,
    pages: usize,
}

impl UarRegion {
    /// Zeroed pages, at least one. Memory is only taken by those that are written.
    ///
    /// # Errors
    /// Errors of `memfd_create`, `ftruncate` and `mmap`.
    pub fn new(pages: usize) -> io::Result<Self> {
        let pages = pages.max(1);
        let len = pages * UAR_PAGE_SIZE;
        let file = sealed_memory(c"uverbs-soft-uar", len)?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Self { map, file, pages })
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    #[allow(unsafe_code, reason = "a word of the mapping")]
    pub(super) fn word(&self, page: usize, offset: usize) -> &AtomicU64 {
        let page = page.min(self.pages - 1);
        let offset = page * UAR_PAGE_SIZE + ((offset % UAR_PAGE_SIZE) & !7);
        // SAFETY: the offset is below pages * UAR_PAGE_SIZE, the length of the mapping, and a
        // multiple of 8 from a page-aligned start. The mapping lives as long as self, its file
        // cannot shrink (sealed), and all access of this process to it is atomic. The program
        // writes it through its own mapping, as another process would.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// The word if it was written since the last time.
    fn take(&self, page: usize, offset: usize) -> Option<u64> {
        let word = self.word(page, offset);
        // The load keeps the cache line shared while nothing happens. Acquire: what the program
        // wrote before it rang (ring, doorbell record) is seen after.
        (word.load(Ordering::Relaxed) != 0).then(|| word.swap(0, Ordering::Acquire))
    }
}

impl AsFd for UarRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for UarRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UarRegion").field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// One page of a region.
#[derive(Clone, Debug)]
pub struct UarPage {
    region: Arc<UarRegion>,
    page: usize,
}

impl UarPage {
    /// Page `page` of a region; `None` if it has fewer.
    pub fn new(region: Arc<UarRegion>, page: usize) -> Option<Self> {
        (page < region.pages).then_some(Self { region, page })
    }

    fn key(&self) -> Key {
        (Arc::as_ptr(&self.region) as usize, self.page)
    }
}

/// A page: address of its region, and number.
type Key = (usize, usize);

/// A doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// A send queue may have new work.
    Send(Qpn),
    /// A CQ may have been armed.
    Arm(Cqn),
}

impl Doorbell {
    /// Passes the doorbell to the core. One with an unknown queue number has no effect.
    pub(super) fn tell(self, core: &mut Core, now: u64) {
        let _ = match self {
            Self::Send(qpn) => core.ring_sq(qpn),
            Self::Arm(cqn) => core.arm_cq(now, cqn),
        };
    }
}

/// After this many looks that found a doorbell, the other queues of the page are looked at, too. A
/// look that finds none does so at once.
const SWEEP_AFTER: u8 = 4;

/// Queues of a page that are looked at in one look.
const SWEEP: usize = 32;

/// After this many looks without a doorbell, a page takes turns with others.
const COOL_AFTER: u8 = 100;

/// For this many looks after a CQ was armed, the page's arm word is looked at each time.
const ARMED_LATELY: u8 = 100;

/// Most pages in one look: of those with recent doorbells, and of the others.
const PAGES: (usize, usize) = (64, 24);

/// Most pages without recent doorbells in one look before a sleep, unless more pages rang lately: 3
/// to 9 us, as a page takes 10 to 35 ns.
const PORTION: usize = 256;

/// The pages with queues, and the queues that ring in each.
///
/// A look at a page whose lines are not in the cache costs as much as handling a small packet. All
/// pages have their words at the same offsets, so few of these lines stay in the cache. So not all
/// words are looked at each time:
/// - pages that rang lately are looked at each time, or in turn if they are very many, and a number
///   of the others in turn;
/// - of a page's words, those of the register that rang last are looked at each time, and the
///   others in turn.
///
/// Before the device sleeps, it looks at all words. Each look takes a portion of the cool pages, so
/// that what arrives meanwhile does not wait for thousands of idle pages.
#[derive(Debug, Default)]
pub struct Uars {
    /// The warm pages, which rang lately, come first; then the cool ones.
    pages: Vec<Page>,
    /// The index of each page in `pages`.
    places: HashMap<Key, usize>,
    /// How many pages are warm.
    warm: usize,
    /// The next look at the warm pages begins before this index, and goes downwards.
    warm_turn: usize,
    /// The next look at the cool pages begins with this one of them.
    turn: usize,
    /// How many cool pages have to be looked at before the device sleeps: those from `cursor` on,
    /// cyclically. `None`: all.
    unseen: Option<usize>,
    /// Index of the next page to look at before the device sleeps.
    cursor: usize,
    /// Pages whose queues have to be looked at soon.
    unswept: usize,
    /// How many pages were looked at.
    #[cfg(test)]
    looked: usize,
}

#[derive(Debug)]
struct Page {
    uar: UarPage,
    send_queues: Sharers<Qpn>,
    completion_queues: Sharers<Cqn>,
    /// How many looks found a doorbell since the other queues were looked at.
    unswept: u8,
    /// How many looks there were since the last doorbell, while the page is warm.
    silent: u8,
    /// The register that rang last, as the bits of its words.
    register: u8,
    /// The words of each register that were written when it rang last.
    last: u8,
    /// For how many more looks the arm word is looked at each time.
    armed: u8,
    /// Which of the words that are looked at in turn was the last: a register, or the arm word.
    turn: u8,
}

/// Queues that may overwrite each other's words.
#[derive(Debug, Default)]
struct Sharers<T> {
    queues: BTreeSet<T>,
    /// How many queues are still owed a look, because they may have rung unnoticed: those that
    /// follow `last`, cyclically.
    owed: usize,
    /// Whether one of them has probably rung.
    urgent: bool,
    /// The queue that was looked at last.
    last: T,
}

impl<T: Copy + Ord> Sharers<T> {
    fn add(&mut self, queue: T) {
        // In the order of numbers it may be between two queues that are owed a look.
        self.owed += usize::from(self.queues.insert(queue) && self.owed != 0);
    }

    fn remove(&mut self, queue: T) {
        self.queues.remove(&queue);
        self.owed = self.owed.min(self.queues.len());
    }

    /// Notes a doorbell, which may have overwritten that of any other queue. `is_likely`: it
    /// probably has.
    fn note_ring(&mut self, is_likely: bool) {
        self.owed = if self.queues.len() > 1 { self.queues.len() } else { 0 };
        self.urgent |= is_likely;
    }

    /// Whether queues have to be looked at soon.
    fn is_urgent(&self) -> bool {
        self.urgent && self.owed != 0
    }

    fn sweep(&mut self, mut ring: impl FnMut(T)) {
        let Self { queues, owed, last, urgent } = self;
        let count = (*owed).min(SWEEP);
        *owed -= count;
        *urgent &= *owed != 0;
        for &queue in queues.range((Excluded(*last), Unbounded)).chain(&*queues).take(count) {
            *last = queue;
            ring(queue);
        }
    }
}

impl Page {
    fn new(uar: UarPage) -> Self {
        Self {
            uar,
            send_queues: Sharers::default(),
            completion_queues: Sharers::default(),
            unswept: 0,
            silent: COOL_AFTER,
            register: REGISTERS[0] | REGISTERS[1],
            last: 0,
            armed: 0,
            turn: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.send_queues.queues.is_empty() && self.completion_queues.queues.is_empty()
    }

    /// Whether queues have to be looked at soon.
    fn owes(&self) -> bool {
        self.send_queues.is_urgent() || self.completion_queues.is_urgent()
    }

    /// Rings the queues that the written words name. Looks at all words, or at those that are
    /// likely to have been written. Returns whether one was.
    fn named(&mut self, all: bool, ring: &mut impl FnMut(Doorbell)) -> bool {
        let mut words = if all { ALL } else { self.likely() };
        self.silent = self.silent.saturating_add(1);
        self.armed = self.armed.saturating_sub(1);
        let mut rang = 0;
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            rang |= u8::from(self.take(word, ring)) << word;
        }
        REGISTERS.into_iter().for_each(|register| self.note_written(register, rang & register));
        rang != 0
    }

    /// Notes which words of a register were found written, as bits.
    fn note_written(&mut self, register: u8, rang: u8) {
        if rang == 0 {
            return;
        }
        // Programs alternate between the halves. If this half was written twice since the last
        // look, the other half was written in between. So if the other half was and is empty, no
        // ring was overwritten.
        let is_alone = rang != register && rang != self.last & register && {
            let other = (register & !rang).trailing_zeros() as usize;
            self.uar.region.word(self.uar.page, WORDS[other]).load(Ordering::Relaxed) == 0
        };
        self.send_queues.note_ring(!is_alone);
        (self.register, self.last) = (register, self.last & !register | rang);
    }

    /// The words to look at this time, as bits.
    fn likely(&mut self) -> u8 {
        const TURNS: [u8; 3] = [REGISTERS[0], REGISTERS[1], 1 << ARM];
        self.turn = (self.turn + 1) % TURNS.len() as u8;
        self.register | TURNS[usize::from(self.turn)] | u8::from(self.armed > 0) << ARM
    }

    /// Rings the queue that the word names, if it was written. Returns whether it was.
    fn take(&mut self, word: usize, ring: &mut impl FnMut(Doorbell)) -> bool {
        let Some(value) = self.uar.region.take(self.uar.page, WORDS[word]) else { return false };
        self.silent = 0;
        if word == ARM {
            self.armed = ARMED_LATELY;
            ring(Doorbell::Arm(Cqn(second_half(value) & 0xff_ffff)));
            self.completion_queues.note_ring(true);
        } else {
            // A CQ that the program armed before this doorbell is armed when the send completes.
            self.take(ARM, ring);
            ring(Doorbell::Send(Qpn(second_half(value) >> 8)));
        }
        true
    }

    /// Whether it has to be looked at each time.
    fn is_warm(&self) -> bool {
        self.owes() || self.silent < COOL_AFTER
    }

    fn look(&mut self, all: bool, ring: &mut impl FnMut(Doorbell)) {
        let rang = self.named(all, ring);
        self.unswept = self.unswept.saturating_add(rang.into());
        let is_due = if self.owes() { self.unswept >= SWEEP_AFTER || !rang } else { all && !rang };
        if is_due {
            self.unswept = 0;
            self.completion_queues.sweep(|cqn| ring(Doorbell::Arm(cqn)));
            self.send_queues.sweep(|qpn| ring(Doorbell::Send(qpn)));
        }
    }
}

/// The second big-endian half of a doorbell: QP number and size of a control segment, or the CQ
/// number of an arm command.
fn second_half(word: u64) -> u32 {
    u64::from_be_bytes(word.to_ne_bytes()) as u32
}

impl Uars {
    /// The program rings this doorbell in this page from now on.
    pub fn attach(&mut self, uar: &UarPage, doorbell: Doorbell) {
        self.change(uar, |page| match doorbell {
            Doorbell::Send(qpn) => page.send_queues.add(qpn),
            Doorbell::Arm(cqn) => page.completion_queues.add(cqn),
        });
    }

    /// The queue of this doorbell is destroyed.
    pub fn detach(&mut self, uar: &UarPage, doorbell: Doorbell) {
        self.change(uar, |page| match doorbell {
            Doorbell::Send(qpn) => page.send_queues.remove(qpn),
            Doorbell::Arm(cqn) => page.completion_queues.remove(cqn),
        });
    }

    /// Changes the queues of a page, which is known as long as it has any.
    fn change(&mut self, uar: &UarPage, change: impl FnOnce(&mut Page)) {
        let at = *self.places.entry(uar.key()).or_insert_with(|| {
            self.pages.push(Page::new(uar.clone()));
            self.pages.len() - 1
        });
        // Pages may change their places.
        self.unseen = None;
        self.unswept -= usize::from(self.pages[at].owes());
        change(&mut self.pages[at]);
        self.unswept += usize::from(self.pages[at].owes());
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

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Looks at the doorbells once: at those that rang lately and some others. Before a sleep, as
    /// `sleeps` says, it looks at all words of each page, and the others are the next portion of
    /// all. Whether there is a page that has to be looked at again soon.
    pub(super) fn look(&mut self, sleeps: bool, mut ring: impl FnMut(Doorbell)) -> bool {
        let warm = self.warm;
        if sleeps {
            self.look_at_portion(&mut ring);
        } else {
            // It looks at a few words only, and may change the places of pages.
            self.unseen = None;
            self.look_at_cool(&mut ring);
        }
        self.look_at_warm(sleeps, warm, &mut ring);
        self.unswept != 0
    }

    /// Whether pages are left that have to be looked at before the device sleeps.
    pub(super) fn is_sweeping(&self) -> bool {
        self.unseen.is_some()
    }

    /// A thread begins to wait, which may have rung anywhere: all pages have to be looked at before
    /// it sleeps.
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
                self.swap(at, self.warm);
                self.warm += 1;
            }
        }
        self.turn = (first + count) % cool.max(1);
    }

    /// Looks at the next cool pages of those that have to be looked at before the device sleeps.
    /// Each portion takes a look at the warm pages, too, so it has at least as many cool ones: then
    /// the warm ones at most double the work.
    fn look_at_portion(&mut self, ring: &mut impl FnMut(Doorbell)) {
        let unseen = self.unseen.unwrap_or(self.pages.len() - self.warm);
        let portion = unseen.min(PORTION.max(self.warm));
        let mut left = portion;
        while left > 0 && self.warm < self.pages.len() {
            if !(self.warm..self.pages.len()).contains(&self.cursor) {
                self.cursor = self.warm;
            }
            if self.look_at(self.cursor, true, ring) {
                // The first cool page comes to its place, and is looked at next.
                self.swap(self.cursor, self.warm);
                self.warm += 1;
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
        let page = &mut self.pages[at];
        self.unswept -= usize::from(page.owes());
        page.look(all, ring);
        self.unswept += usize::from(page.owes());
        page.is_warm()
    }
}

#[cfg(test)]
mod tests;
