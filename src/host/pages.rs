//! Whole pages of memory for queues and buffers, mapped by this library itself.

use std::fmt;
use std::io;

use memmap2::{MmapOptions, MmapRaw};

use super::fork;
use super::view::MemoryView;

/// How the pages of a [`Buffer`] come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageSize {
    /// The kernel's ordinary pages.
    #[default]
    Normal,
    /// 2 MiB pages from the kernel's pool (`vm.nr_hugepages`).
    Huge2M,
    /// 1 GiB pages from the kernel's pool.
    Huge1G,
}

impl PageSize {
    fn log2(self) -> Option<u8> {
        match self {
            Self::Normal => None,
            Self::Huge2M => Some(21),
            Self::Huge1G => Some(30),
        }
    }

    /// Bytes per page; ordinary pages are counted as 4096.
    pub fn bytes(self) -> usize {
        1 << self.log2().unwrap_or(12)
    }
}

/// Zeroed memory of its own whole pages, unmapped when dropped: queues live in such memory, and it is what a
/// program registers if it has no memory of its own in mind.
///
/// It lends views, never slices, since a device may write to it at any time.
#[derive(Debug)]
pub struct Buffer(Pages);

#[derive(Debug)]
enum Pages {
    Mapped(MmapRaw),
    Given(Given),
}

/// Memory of the program's own, and how it goes back.
struct Given {
    start: *mut u8,
    length: usize,
    give_back: Option<Box<dyn FnOnce() + Send + Sync>>,
}

// SAFETY: whoever gave the memory promised that it belongs to the buffer alone, on whatever thread.
unsafe impl Send for Given {}
// SAFETY: as above; `&Buffer` hands out only the address and atomic views.
unsafe impl Sync for Given {}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.length, self.start)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

impl Buffer {
    /// At least `length` bytes, rounded up to whole ordinary pages.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    pub fn new(length: usize) -> io::Result<Self> {
        Self::with_pages(length, PageSize::Normal)
    }

    /// At least `length` bytes in pages of `size`.
    ///
    /// # Errors
    /// What `mmap(2)` says: `OutOfMemory` where the kernel's pool of huge pages is empty.
    pub fn with_pages(length: usize, size: PageSize) -> io::Result<Self> {
        let length = length
            .max(1)
            .checked_next_multiple_of(size.bytes())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut options = MmapOptions::new();
        options.len(length);
        if let Some(log2) = size.log2() {
            options.huge(Some(log2));
        }
        let buffer = Self(Pages::Mapped(options.map_anon()?.into()));
        if !fork::kernel_copies_pinned_pages() {
            buffer.leave_out_of_children()?;
        }
        Ok(buffer)
    }

    /// Memory of the program's own: an arena, shared memory, pages of one NUMA node. `give_back` is called once,
    /// when the buffer is dropped.
    ///
    /// # Safety
    /// Until `give_back` is called, the memory is mapped readable and writable, its bytes are initialized, and it belongs
    /// to the buffer alone: nobody else reads, writes or unmaps it.
    pub unsafe fn from_raw(
        start: *mut u8,
        length: usize,
        give_back: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self(Pages::Given(Given { start, length, give_back: Some(Box::new(give_back)) }))
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            Pages::Mapped(pages) => pages.as_mut_ptr(),
            Pages::Given(given) => given.start,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.as_ptr() as u64
    }

    /// Length in bytes; whole pages, if the library mapped them.
    pub fn len(&self) -> usize {
        match &self.0 {
            Pages::Mapped(pages) => pages.len(),
            Pages::Given(given) => given.length,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to copy in and out.
    pub fn view(&self) -> MemoryView<'_> {
        // SAFETY: mapped as long as `self` lives, and this type never lends a plain reference into it.
        unsafe { MemoryView::new(self.as_ptr(), self.len()) }
    }

    fn leave_out_of_children(&self) -> io::Result<()> {
        // SAFETY: exactly our own mapping; DONTFORK changes nothing for this process.
        let result =
            unsafe { libc::madvise(self.as_ptr().cast(), self.len(), libc::MADV_DONTFORK) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Bytes of one of the kernel's ordinary pages.
pub(crate) fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_aligned() {
        let buffer = Buffer::new(5000).unwrap();
        assert_eq!(buffer.len(), 8192);
        assert_eq!(buffer.address() % 4096, 0);
        assert_eq!(Buffer::new(0).unwrap().len(), 4096);
    }

    /// Whether the line of `/proc/self/smaps` begins a mapping that holds `address`.
    fn holds(line: &str, address: u64) -> bool {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let parsed = bounds.map(|(start, end)| [start, end].map(|at| u64::from_str_radix(at, 16)));
        matches!(parsed, Some([Ok(start), Ok(end)]) if (start..end).contains(&address))
    }

    #[test]
    fn pages_are_left_out_of_children_where_the_kernel_would_share_them() {
        let buffer = Buffer::new(4096).unwrap();
        buffer.leave_out_of_children().unwrap();
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = all.lines().skip_while(|line| !holds(line, buffer.address()));
        let properties = lines.find_map(|line| line.strip_prefix("VmFlags:"));
        // "Do not copy on fork" of `show_smap_vma_flags` (fs/proc/task_mmu.c).
        assert!(properties.unwrap().split(' ').any(|flag| flag == "dc"), "{properties:?}");
    }

    #[test]
    fn impossible_lengths_fail() {
        assert!(Buffer::new(usize::MAX).is_err());
    }
}
