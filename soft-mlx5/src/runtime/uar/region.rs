//! UAR pages: shared memory of the program and the device.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use uverbs_mlx5_format::UAR_SIZE;

use crate::sealed::sealed_memory;

/// Bytes of a UAR page, also on hosts whose pages are larger.
pub const UAR_PAGE_SIZE: usize = UAR_SIZE;

/// Shared memory of a number of UAR pages: a sealed memfd that both the device and the program
/// map.
pub struct UarRegion {
    map: MmapRaw,
    file: OwnedFd,
    pages: usize,
}

impl UarRegion {
    /// Zeroed pages, at least one. Untouched pages take no memory.
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
    pub(in crate::runtime) fn word(&self, page: usize, offset: usize) -> &AtomicU64 {
        let page = page.min(self.pages - 1);
        let offset = page * UAR_PAGE_SIZE + ((offset % UAR_PAGE_SIZE) & !7);
        // SAFETY: the offset is below pages * UAR_PAGE_SIZE, the length of the mapping, and a
        // multiple of 8 from a page-aligned start. The mapping lives as long as self, its file
        // cannot shrink (sealed), and all access of this process to it is atomic. The program
        // writes it through its own mapping, as another process would.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
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
    pub(super) page: usize,
}

impl UarPage {
    /// Page `page` of a region; `None` if it has fewer.
    pub fn new(region: Arc<UarRegion>, page: usize) -> Option<Self> {
        (page < region.pages).then_some(Self { region, page })
    }

    /// Identifies the page: the address of its region, and its number.
    pub(super) fn key(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.region) as usize, self.page)
    }

    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        self.region.word(self.page, offset)
    }

    /// The word if it was written since the last time.
    pub(super) fn take(&self, offset: usize) -> Option<u64> {
        let word = self.word(offset);
        // The load keeps the cache line shared while nothing happens. Acquire: the program's stores
        // before the doorbell (ring, doorbell record) are visible after it.
        (word.load(Ordering::Relaxed) != 0).then(|| word.swap(0, Ordering::Acquire))
    }
}
