//! Doorbells: memory that the program writes and the device looks at.
//!
//! A UAR page of a ConnectX is MMIO; here it is shared memory. The program's stores stay in it
//! until the device swaps the first 8 bytes of each doorbell with zero. A word that was not zero
//! says that a queue rang since the last look. It does not say which: two queues that share a
//! register overwrite each other's words. So the queue that the word names is looked at first, and
//! soon after all others of the page.

use std::fmt;
use std::io;
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

/// The words that a program writes first in most cases, as bits: the first halves of both
/// registers.
const FIRST: u8 = 0b0101;

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
    /// What `memfd_create`, `ftruncate` and `mmap` say.
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

    fn word(&self, page: usize, offset: usize) -> &AtomicU64 {
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

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region) && self.page == other.page
    }
}

/// A doorbell that rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// A send queue may have new work.
    Send(Qpn),
    /// A CQ may have been armed.
    Arm(Cqn),
}

impl Ring {
    /// Passes a doorbell on. One with a wrong number in it has no effect.
    pub(super) fn tell(self, core: &mut Core, now: u64) {
        let _ = match self {
            Self::Send(qpn) => core.ring_sq(qpn),
            Self::Arm(cqn) => core.arm_cq(now, cqn),
        };
    }
}

/// Looks with a ring after which everything that shares the page is looked at, too; sooner if one
/// hears nothing.
const SWEEP_AFTER: u8 = 4;

/// Looks without a ring after which a page is only looked at in turn with others.
const COOL_AFTER: u8 = 100;

/// Looks at a page after its last arming during which the word of armings is looked at each time.
const ARMED_LATELY: u8 = 100;

/// Pages that rang lately are so many to a look at most, those that have not rung for a while so
/// many.
const PAGES: (usize, usize) = (64, 24);

/// The pages with queues, and the queues that ring in each.
///
/// A look at a page costs as much as handling a small packet does where its cache lines are not at
/// hand, and all pages have theirs at the same offsets, so that few of them are. So not all words
/// are looked at each time:
/// - pages that rang lately are looked at each time, or in turn if they are very many, and a number
///   of the others in turn;
/// - of a page's words, those of the register that rang last are looked at each time, and the
///   others in turn.
///
/// Before the device sleeps, it looks at everything.
#[derive(Debug, Default)]
pub struct Uars {
    /// Those that rang lately come first.
    pages: Vec<Page>,
    /// How many those are.
    warm: usize,
    /// Before which of the warm ones the next look begins.
    warm_turn: usize,
    /// Where the next look at the others begins, counted from the first of them.
    turn: usize,
    /// Pages that owe a look at all their queues.
    unswept: usize,
}

#[derive(Debug)]
struct Page {
    uar: UarPage,
    send_queues: Vec<Qpn>,
    completion_queues: Vec<Cqn>,
    /// Looks that heard a ring since all queues were looked at.
    unswept: u8,
    /// Looks since the last ring, while the page is a warm one.
    silent: u8,
    /// The register that rang last, as the bits of its words.
    register: u8,
    /// Looks for which armings are expected.
    armed: u8,
    /// The word whose turn it was.
    turn: u8,
}

impl Page {
    fn is_idle(&self) -> bool {
        self.send_queues.is_empty() && self.completion_queues.is_empty()
    }

    /// Rings what the words name, all or those that are likely to have been written; whether a word
    /// may have hidden another.
    fn named(&mut self, all: bool, ring: &mut impl FnMut(Ring)) -> bool {
        let mut words = if all { ALL } else { self.likely() };
        self.silent = self.silent.saturating_add(1);
        self.armed = self.armed.saturating_sub(1);
        let mut hidden = false;
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            hidden |= self.take(word, ring);
        }
        hidden
    }

    /// The words to look at this time, as bits.
    fn likely(&mut self) -> u8 {
        self.turn = (self.turn + 1) % WORDS.len() as u8;
        self.register | 1 << self.turn | u8::from(self.armed > 0) << ARM
    }

    /// Rings what the word names, if it was written; whether it may have hidden another.
    fn take(&mut self, word: usize, ring: &mut impl FnMut(Ring)) -> bool {
        let Some(value) = self.uar.region.take(self.uar.page, WORDS[word]) else { return false };
        self.silent = 0;
        if word == ARM {
            self.armed = ARMED_LATELY;
            ring(Ring::Arm(Cqn(second_half(value) & 0xff_ffff)));
            return self.completion_queues.len() > 1;
        }
        self.register = 0b11 << (word & !1);
        ring(Ring::Send(Qpn(second_half(value) >> 8)));
        self.send_queues.len() > 1
    }

    /// Whether it has to be looked at each time.
    fn is_warm(&self) -> bool {
        self.unswept != 0 || self.silent < COOL_AFTER
    }

    fn all(&self, ring: &mut impl FnMut(Ring)) {
        self.send_queues.iter().for_each(|&qpn| ring(Ring::Send(qpn)));
        self.completion_queues.iter().for_each(|&cqn| ring(Ring::Arm(cqn)));
    }

    fn look(&mut self, all: bool, ring: &mut impl FnMut(Ring)) {
        let rang = self.named(all, ring);
        self.unswept += u8::from(rang);
        if self.unswept >= SWEEP_AFTER || (self.unswept != 0 && !rang) {
            self.unswept = 0;
            self.all(ring);
        }
    }
}

/// The second big-endian half of a doorbell: QP number and size of a control segment, or the CQ
/// number of an arm command.
fn second_half(word: u64) -> u32 {
    u64::from_be_bytes(word.to_ne_bytes()) as u32
}

impl Uars {
    /// A send queue rings in this page from now on.
    pub fn attach_send_queue(&mut self, uar: &UarPage, qpn: Qpn) {
        self.page(uar).send_queues.push(qpn);
    }

    /// A CQ is armed in this page from now on. A CQ may be armed in several.
    pub fn attach_completion_queue(&mut self, uar: &UarPage, cqn: Cqn) {
        self.page(uar).completion_queues.push(cqn);
    }

    /// A QP is destroyed.
    pub fn detach_send_queue(&mut self, qpn: Qpn) {
        self.pages.iter_mut().for_each(|page| page.send_queues.retain(|&other| other != qpn));
        self.forget_idle();
    }

    /// A CQ is destroyed.
    pub fn detach_completion_queue(&mut self, cqn: Cqn) {
        self.pages.iter_mut().for_each(|page| page.completion_queues.retain(|&other| other != cqn));
        self.forget_idle();
    }

    fn forget_idle(&mut self) {
        let warm = self.pages[..self.warm].iter().filter(|page| !page.is_idle()).count();
        self.pages.retain(|page| !page.is_idle());
        (self.warm, self.warm_turn) = (warm, self.warm_turn.min(warm));
        self.unswept = self.pages.iter().filter(|page| page.unswept != 0).count();
    }

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    fn page(&mut self, uar: &UarPage) -> &mut Page {
        let at = self.pages.iter().position(|page| page.uar.is(uar)).unwrap_or_else(|| {
            let (send_queues, completion_queues) = Default::default();
            let (unswept, silent, register, armed, turn) = (0, COOL_AFTER, FIRST, 0, 0);
            let uar = uar.clone();
            self.pages.push(Page {
                uar,
                send_queues,
                completion_queues,
                unswept,
                silent,
                register,
                armed,
                turn,
            });
            self.pages.len() - 1
        });
        &mut self.pages[at]
    }

    /// Looks at the doorbells once: at `all` of them, or at those that rang lately and some others.
    /// Whether there is a page that has to be looked at again soon.
    pub(super) fn look(&mut self, all: bool, mut ring: impl FnMut(Ring)) -> bool {
        let warm = self.warm;
        self.look_at_cool(all, &mut ring);
        self.look_at_warm(all, warm, &mut ring);
        self.unswept != 0
    }

    fn look_at_cool(&mut self, all: bool, ring: &mut impl FnMut(Ring)) {
        let (before, cool) = (self.warm, self.pages.len() - self.warm);
        let (first, count) = if all { (0, cool) } else { (self.turn, cool.min(PAGES.1)) };
        // A page that warms up changes places with the first cool one. Beginning with that one,
        // none is missed; else one may have to wait for its next turn.
        for place in first..first + count {
            let at = before + place % cool;
            if at >= self.warm && self.look_at(at, all, ring) {
                self.pages.swap(at, self.warm);
                self.warm += 1;
            }
        }
        self.turn = (first + count) % cool.max(1);
    }

    /// Looks at the first `warm` pages.
    fn look_at_warm(&mut self, all: bool, warm: usize, ring: &mut impl FnMut(Ring)) {
        let is_whole = all || warm <= PAGES.0;
        let (mut at, count) = if is_whole { (warm, warm) } else { (self.warm_turn, PAGES.0) };
        // Downwards: a page that cools down changes places with the last warm one, which was looked
        // at already, or else waits for its next turn.
        for _ in 0..count {
            at = if at == 0 { self.warm } else { at } - 1;
            if !self.look_at(at, all, ring) {
                self.warm -= 1;
                self.pages.swap(at, self.warm);
                if self.warm == 0 {
                    break;
                }
            }
        }
        self.warm_turn = at.min(self.warm);
    }

    /// Whether the page is a warm one now.
    fn look_at(&mut self, at: usize, all: bool, ring: &mut impl FnMut(Ring)) -> bool {
        let page = &mut self.pages[at];
        let before = page.unswept != 0;
        page.look(all, ring);
        self.unswept = self.unswept + usize::from(page.unswept != 0) - usize::from(before);
        page.is_warm()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorbell(first: u32, second: u32) -> u64 {
        u64::from_ne_bytes((u64::from(first) << 32 | u64::from(second)).to_be_bytes())
    }

    fn looks(uars: &mut Uars, count: usize) -> Vec<Vec<Ring>> {
        let mut seen = vec![Vec::new(); count];
        seen.iter_mut().for_each(|rings| {
            uars.look(true, |ring| rings.push(ring));
        });
        seen
    }

    #[test]
    fn a_dedicated_register_rings_its_queue_once() {
        let region = Arc::new(UarRegion::new(2).unwrap());
        let page = UarPage::new(region.clone(), 1).unwrap();
        assert!(UarPage::new(region.clone(), 2).is_none());
        let mut uars = Uars::default();
        uars.attach_send_queue(&page, Qpn(0x47));
        uars.attach_completion_queue(&page, Cqn(3));
        region.word(1, 0x900).store(doorbell(0x0800, 0x47 << 8 | 3), Ordering::Release);
        region.word(0, 0x800).store(1, Ordering::Release);
        assert_eq!(looks(&mut uars, 3), [vec![Ring::Send(Qpn(0x47))], vec![], vec![]]);
        region.word(1, CQ_ARM_OFFSET).store(doorbell(1, 3), Ordering::Release);
        assert_eq!(looks(&mut uars, 2), [vec![Ring::Arm(Cqn(3))], vec![]]);
        assert_eq!(region.word(0, 0x800).load(Ordering::Relaxed), 1, "page 0 is not used");
    }

    #[test]
    fn a_shared_register_rings_every_queue_in_the_end() {
        let region = Arc::new(UarRegion::new(1).unwrap());
        let page = UarPage::new(region.clone(), 0).unwrap();
        let mut uars = Uars::default();
        let queues = [Qpn(0x40), Qpn(0x41), Qpn(0x42)];
        queues.iter().for_each(|&qpn| uars.attach_send_queue(&page, qpn));
        // The ring of 0x40 is overwritten by that of 0x41.
        region.word(0, 0x800).store(doorbell(1, 0x40 << 8), Ordering::Release);
        region.word(0, 0x800).store(doorbell(1, 0x41 << 8), Ordering::Release);
        let seen = looks(&mut uars, 3);
        assert_eq!(seen[0], [Ring::Send(Qpn(0x41))]);
        assert_eq!(seen[1], queues.map(Ring::Send));
        assert_eq!(seen[2], []);
        // A page that never falls silent is swept all the same.
        let mut rings = 0;
        for _ in 0..8 {
            region.word(0, 0x800).store(doorbell(1, 0x41 << 8), Ordering::Release);
            uars.look(true, |ring| rings += usize::from(ring == Ring::Send(Qpn(0x42))));
        }
        assert!(rings >= 1);
    }

    const MANY: usize = 300;

    /// One queue in each of many pages.
    fn many() -> (Arc<UarRegion>, Uars) {
        let region = Arc::new(UarRegion::new(MANY).unwrap());
        let mut uars = Uars::default();
        for number in 0..MANY {
            let page = UarPage::new(region.clone(), number).unwrap();
            uars.attach_send_queue(&page, Qpn(number as u32));
        }
        (region, uars)
    }

    fn heard(uars: &mut Uars, all: bool) -> Vec<u32> {
        let mut heard = Vec::new();
        uars.look(all, |ring| match ring {
            Ring::Send(qpn) => heard.push(qpn.0),
            Ring::Arm(_) => panic!("nothing was armed"),
        });
        heard
    }

    /// Each queue at a word of its own.
    fn ring(region: &UarRegion, number: u32) {
        let word = WORDS[number as usize % ARM];
        region.word(number as usize, word).store(doorbell(1, number << 8), Ordering::Release);
    }

    #[test]
    fn every_ring_is_heard_in_time_whoever_else_rings() {
        let (region, mut uars) = many();
        let mut prng = crate::prng::Prng::new(0xd00b);
        let mut waiting = std::collections::BTreeMap::new();
        for look in 0..3000u32 {
            // Some all the time, some now and then, and long times of silence.
            if look % 500 < 300 {
                for _ in 0..prng.below(20) {
                    let number =
                        if prng.chance(500_000) { prng.below(5) } else { prng.below(MANY as u64) };
                    ring(&region, number as u32);
                    waiting.entry(number as u32).or_insert(look);
                }
            }
            let all = prng.chance(50_000);
            for number in heard(&mut uars, all) {
                assert!(waiting.remove(&number).is_some(), "{number} did not ring");
            }
            // Each page has its turn after so many looks; being passed over once means another
            // turn.
            let turns = 2 * (WORDS.len() * (MANY / PAGES.1 + 1)) as u32;
            let late = waiting.iter().find(|(_, since)| look - **since > turns);
            assert_eq!((late, all && !waiting.is_empty()), (None, false), "look {look}");
        }
        assert!(uars.warm < MANY, "silence cools");
    }

    #[test]
    fn every_word_of_a_busy_page_is_heard_soon() {
        let region = Arc::new(UarRegion::new(1).unwrap());
        let page = UarPage::new(region.clone(), 0).unwrap();
        let mut uars = Uars::default();
        uars.attach_send_queue(&page, Qpn(7));
        uars.attach_completion_queue(&page, Cqn(9));
        for round in 0..100 {
            let word = round * 3 % WORDS.len();
            let (number, rings) =
                if word == ARM { (9, Ring::Arm(Cqn(9))) } else { (7 << 8, Ring::Send(Qpn(7))) };
            region.word(0, WORDS[word]).store(doorbell(1, number), Ordering::Release);
            let mut heard = Vec::new();
            for _ in 0..WORDS.len() {
                uars.look(false, |ring| heard.push(ring));
            }
            assert_eq!(heard, [rings], "round {round}");
            // The other half of the register comes next: without waiting.
            if word != ARM {
                region.word(0, WORDS[word ^ 1]).store(doorbell(1, number), Ordering::Release);
                uars.look(false, |ring| heard.push(ring));
                assert_eq!(heard.len(), 2);
            }
        }
    }

    #[test]
    fn who_arms_lately_is_heard_at_once() {
        let region = Arc::new(UarRegion::new(1).unwrap());
        let mut uars = Uars::default();
        let page = UarPage::new(region.clone(), 0).unwrap();
        uars.attach_completion_queue(&page, Cqn(9));
        let mut arms = |all| {
            region.word(0, CQ_ARM_OFFSET).store(doorbell(1, 9), Ordering::Release);
            let mut heard = 0;
            uars.look(all, |ring| heard += u32::from(ring == Ring::Arm(Cqn(9))));
            heard
        };
        assert_eq!(arms(true), 1);
        (0..1000).for_each(|_| assert_eq!(arms(false), 1));
    }

    #[test]
    fn who_rang_lately_is_heard_at_once() {
        let (region, mut uars) = many();
        ring(&region, 299);
        assert_eq!(heard(&mut uars, true), [299]);
        assert_eq!(uars.warm, 1);
        for _ in 0..1000 {
            ring(&region, 299);
            assert_eq!(heard(&mut uars, false), [299]);
        }
        (0..COOL_AFTER).for_each(|_| assert!(heard(&mut uars, false).is_empty()));
        assert_eq!(uars.warm, 0);
        uars.detach_send_queue(Qpn(299));
        ring(&region, 299);
        assert!(heard(&mut uars, true).is_empty());
    }

    #[test]
    fn detached_queues_leave_nothing() {
        let region = Arc::new(UarRegion::new(1).unwrap());
        let page = UarPage::new(region, 0).unwrap();
        let mut uars = Uars::default();
        uars.attach_send_queue(&page, Qpn(0x40));
        uars.attach_completion_queue(&page, Cqn(1));
        uars.detach_send_queue(Qpn(0x40));
        assert!(!uars.is_empty());
        uars.detach_completion_queue(Cqn(1));
        assert!(uars.is_empty());
    }
}
