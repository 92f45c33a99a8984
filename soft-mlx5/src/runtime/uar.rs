//! Doorbells: memory that the program writes and the device looks at.
//!
//! A UAR page of a ConnectX is MMIO; here it is shared memory. The program's stores stay in it
//! until the device swaps the first 8 bytes of each doorbell with zero. A word that was not zero
//! says that somebody rang since the last look. It does not say who: two queues that share a
//! register overwrite each other's words. So the queue that the word names is looked at first, and
//! soon after all others of the page.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use uverbs_mlx5::format::{
    BLUEFLAME_HALF_SIZE, BLUEFLAME_OFFSET, BLUEFLAME_REGISTER_SIZE, BLUEFLAME_REGISTERS_PER_UAR,
    CQ_ARM_OFFSET, UAR_SIZE,
};

use crate::core::{Cqn, Qpn};

/// Bytes of a UAR page, also on hosts whose pages are larger.
pub const UAR_PAGE_SIZE: usize = UAR_SIZE;

/// Offsets of both halves of both BlueFlame registers of a page that programs use.
const SEND: [usize; 2 * BLUEFLAME_REGISTERS_PER_UAR] = [
    BLUEFLAME_OFFSET,
    BLUEFLAME_OFFSET + BLUEFLAME_HALF_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE,
    BLUEFLAME_OFFSET + BLUEFLAME_REGISTER_SIZE + BLUEFLAME_HALF_SIZE,
];

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
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"uverbs-soft-uar", flags)?;
        let pages = pages.max(1);
        let len = pages * UAR_PAGE_SIZE;
        ftruncate(&file, len as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Self { map, file, pages })
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    fn word(&self, page: usize, offset: usize) -> &AtomicU64 {
        let offset = (page % self.pages) * UAR_PAGE_SIZE + ((offset % UAR_PAGE_SIZE) & !7);
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

/// Looks with a ring after which everything that shares the page is looked at, too; sooner if one
/// hears nothing.
const SWEEP_AFTER: u8 = 4;

/// The pages with queues, and the queues that ring in each.
#[derive(Debug, Default)]
pub struct Uars {
    pages: Vec<Page>,
}

#[derive(Debug)]
struct Page {
    uar: UarPage,
    send_queues: Vec<Qpn>,
    completion_queues: Vec<Cqn>,
    /// Looks that heard a ring since all queues were looked at.
    unswept: u8,
}

impl Page {
    fn is_idle(&self) -> bool {
        self.send_queues.is_empty() && self.completion_queues.is_empty()
    }

    /// Rings what the words name; whether a word may have hidden another.
    fn named(&mut self, ring: &mut impl FnMut(Ring)) -> bool {
        let (region, page) = (&*self.uar.region, self.uar.page);
        let mut rang = false;
        for word in SEND.iter().filter_map(|&offset| region.take(page, offset)) {
            ring(Ring::Send(Qpn(second_half(word) >> 8)));
            rang |= self.send_queues.len() > 1;
        }
        if let Some(word) = region.take(page, CQ_ARM_OFFSET) {
            ring(Ring::Arm(Cqn(second_half(word) & 0xff_ffff)));
            rang |= self.completion_queues.len() > 1;
        }
        rang
    }

    fn all(&self, ring: &mut impl FnMut(Ring)) {
        self.send_queues.iter().for_each(|&qpn| ring(Ring::Send(qpn)));
        self.completion_queues.iter().for_each(|&cqn| ring(Ring::Arm(cqn)));
    }

    fn look(&mut self, ring: &mut impl FnMut(Ring)) {
        let rang = self.named(ring);
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
        self.pages.retain(|page| !page.is_idle());
    }

    /// A CQ is destroyed.
    pub fn detach_completion_queue(&mut self, cqn: Cqn) {
        self.pages.iter_mut().for_each(|page| page.completion_queues.retain(|&other| other != cqn));
        self.pages.retain(|page| !page.is_idle());
    }

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    fn page(&mut self, uar: &UarPage) -> &mut Page {
        let at = self.pages.iter().position(|page| page.uar.is(uar)).unwrap_or_else(|| {
            let (send_queues, completion_queues) = Default::default();
            self.pages.push(Page { uar: uar.clone(), send_queues, completion_queues, unswept: 0 });
            self.pages.len() - 1
        });
        &mut self.pages[at]
    }

    /// Looks at all doorbells once. Whether there is a page that has to be looked at again soon.
    pub(super) fn look(&mut self, mut ring: impl FnMut(Ring)) -> bool {
        let mut owed = false;
        for page in &mut self.pages {
            page.look(&mut ring);
            owed |= page.unswept != 0;
        }
        owed
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
            uars.look(|ring| rings.push(ring));
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
        assert_eq!(region.word(0, 0x800).load(Ordering::Relaxed), 1, "nobody uses page 0");
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
            uars.look(|ring| rings += usize::from(ring == Ring::Send(Qpn(0x42))));
        }
        assert!(rings >= 1);
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
