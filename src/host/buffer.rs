//! Memory for devices: buffers of whole pages, and views of such memory.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::fork;
use crate::error::{Error, Result};

/// The size of a [`Buffer`]'s pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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

    /// Bytes per page; 4096 for ordinary pages.
    pub fn bytes(self) -> usize {
        1 << self.log2().unwrap_or(12)
    }
}

/// Zeroed memory in whole pages, unmapped when dropped. Queues use it, and programs can register
/// it.
///
/// It has views instead of slices, because a device may write to it at any time.
///
/// ```
/// let buffer = uverbs::Buffer::new(4096)?;
/// buffer.view().write(100, b"hello")?;
/// assert_eq!(buffer.view().part(100, 5)?.to_vec(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Buffer(Pages);

#[derive(Debug)]
enum Pages {
    Mapped(MmapRaw),
    Given(Given),
    Part(Part),
}

/// A part of pages that several buffers share; no byte belongs to two buffers.
#[derive(Debug)]
struct Part {
    whole: Arc<Buffer>,
    offset: usize,
    length: usize,
}

/// Memory of the program, and the function that returns it.
struct Given {
    start: *mut u8,
    length: usize,
    give_back: Option<Box<dyn FnOnce() + Send + Sync>>,
}

// SAFETY: the caller of `from_raw` promised that only the buffer uses the memory, on any thread.
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
    /// Errors of `mmap(2)`.
    pub fn new(length: usize) -> io::Result<Self> {
        Self::with_pages(length, PageSize::Normal)
    }

    /// At least `length` bytes in pages of `size`.
    ///
    /// # Errors
    /// Errors of `mmap(2)`: `OutOfMemory` if the kernel's pool has too few huge pages.
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

    /// As [`Buffer::with_pages`], only in memory of the NUMA node `node`. The pages are allocated
    /// by this call.
    ///
    /// # Errors
    /// Errors of `mmap(2)` and `mbind(2)`: `InvalidInput` for a node that has no memory, or that
    /// the process may not use (`cpuset(7)`); `OutOfMemory` if the node has too few such pages;
    /// `PermissionDenied` if a container forbids the call; `Unsupported` on a kernel without NUMA.
    /// (Kernels before 5.14 cannot allocate the pages in advance. There a lack of huge pages on
    /// this node is an error only when the memory is registered.)
    pub fn on_node(length: usize, size: PageSize, node: u32) -> io::Result<Self> {
        let buffer = Self::with_pages(length, size)?;
        bind(&buffer, node)?;
        if let Pages::Mapped(pages) = &buffer.0 {
            populate(pages)?;
        }
        Ok(buffer)
    }

    /// Splits it into the first `at` bytes and the rest. The memory is freed when both have been
    /// dropped.
    pub(super) fn split(self, at: usize) -> (Self, Self) {
        let (at, end) = (at.min(self.len()), self.len());
        let (whole, offset) = match self.0 {
            Pages::Part(part) => (part.whole, part.offset),
            pages => (Arc::new(Self(pages)), 0),
        };
        let part = |from: usize, to: usize| Part {
            whole: whole.clone(),
            offset: offset + from,
            length: to - from,
        };
        (Self(Pages::Part(part(0, at))), Self(Pages::Part(part(at, end))))
    }

    /// Makes a buffer of the program's memory, for example of an arena or shared memory.
    /// `give_back` is called once, when the buffer is dropped.
    ///
    /// # Safety
    /// Until `give_back` is called, the memory is mapped readable and writable, its bytes are
    /// initialized, and it belongs to the buffer: no other code reads, writes or unmaps it.
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
            Pages::Part(part) => part.whole.as_ptr().wrapping_add(part.offset),
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
            Pages::Part(part) => part.length,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A view of all bytes.
    pub fn view(&self) -> MemoryView<'_> {
        // SAFETY: mapped as long as `self` lives, and this type never makes a plain reference to
        // it.
        unsafe { MemoryView::new(self.as_ptr(), self.len()) }
    }

    fn leave_out_of_children(&self) -> io::Result<()> {
        match &self.0 {
            Pages::Mapped(pages) => pages.advise(Advice::DontFork),
            Pages::Given(_) | Pages::Part(_) => Ok(()),
        }
    }
}

/// Nodes in a mask: the most that a kernel supports (CONFIG_NODES_SHIFT).
const NODES: usize = 1 << 10;

/// Makes the kernel take the pages of `buffer`, none of which is allocated yet, from one node only.
fn bind(buffer: &Buffer, node: u32) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask: [libc::c_ulong; NODES / BITS] = [0; NODES / BITS];
    let word = mask.get_mut(node as usize / BITS).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (node as usize % BITS);
    let (start, length) = (buffer.as_ptr(), buffer.len());
    // SAFETY: it changes the allocation policy of a mapping that only the buffer uses, and reads
    // the mask. The kernel reads one bit less than the number passed (`get_nodes` of
    // mm/mempolicy.c).
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            length,
            libc::MPOL_BIND,
            &raw const mask,
            NODES + 1,
            0,
        )
    };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Allocates all pages now.
fn populate(pages: &MmapRaw) -> io::Result<()> {
    match pages.advise(Advice::PopulateWrite) {
        // Before Linux 5.14.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        // The pool has no page of the node: an access would raise SIGBUS.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
            Err(io::ErrorKind::OutOfMemory.into())
        }
        populated => populated,
    }
}

/// Bytes of an ordinary page.
pub(crate) fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(4096)
}

/// A view of memory that a device, or a remote peer through it, may read and write at any time.
///
/// It has no slices: bytes are copied in and out with relaxed atomic accesses. Each access is to a
/// whole aligned word of eight bytes, in all parts of a view alike. So threads of this process may
/// use any parts at the same time: each word of a write is visible completely or not at all, and
/// bytes next to the write do not change. Only bytes of words that are not wholly inside the view
/// are accessed one by one. The software device accesses memory that peers can reach with the same
/// sizes, so a view and a peer's operation never make mixed-size accesses, which
/// `std::sync::atomic` forbids (`docs/ordering.md`, "Sizes of accesses"). The accesses are not
/// ordered against the device's; a completion orders them.
///
/// ```no_run
/// use uverbs::{AccessFlags, Buffer};
/// # fn example(pd: &uverbs::ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
/// let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// let region = pd.register(Buffer::new(4096)?, rights)?;
/// let view = region.view();
/// view.write(64, b"for peers to read")?;
/// let mut bytes = [0; 8];
/// view.read(0, &mut bytes)?; // what peers have written
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct MemoryView<'a> {
    start: *mut u8,
    length: usize,
    /// Start and end address of the outermost view, which decide which words are wholly inside it.
    edges: (usize, usize),
    memory: PhantomData<&'a AtomicU8>,
}

// SAFETY: every access through a view is atomic, and each byte is always accessed with the same
// size: that of its word if the word is inside the outermost view, otherwise one byte (`word_of`).
// No two accesses overlap only partly, so there is no data race. The software device accesses
// memory with an rkey at the same sizes (`Margins` in soft-mlx5/adapter/src/memory).
unsafe impl Send for MemoryView<'_> {}
// SAFETY: as above.
unsafe impl Sync for MemoryView<'_> {}

impl fmt::Debug for MemoryView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryView({:p}, {} bytes)", self.start, self.length)
    }
}

impl<'a> MemoryView<'a> {
    /// A view of `length` bytes at `start`.
    ///
    /// # Safety
    /// For the lifetime `'a` the bytes stay mapped readable and writable, and no `&mut` or `&`
    /// reference to non-atomic data covers them. Other threads access them only through views, or
    /// by atomics of the same size: 64 bits for words inside the view, 8 bits for the bytes at
    /// either end that are not a whole word. So separately made views of overlapping memory begin
    /// and end at the same addresses or at multiples of eight, and so do a view and a memory region
    /// that peers can access.
    pub unsafe fn new(start: *mut u8, length: usize) -> Self {
        let edges = (start as usize, start as usize + length);
        Self { start, length, edges, memory: PhantomData }
    }

    /// A view of no bytes.
    pub(crate) fn empty() -> Self {
        // SAFETY: there are no bytes to access.
        unsafe { Self::new(std::ptr::dangling_mut(), 0) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte, for work requests.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// A part of the view.
    ///
    /// # Errors
    /// `InvalidInput` if it is outside.
    pub fn part(&self, offset: usize, length: usize) -> Result<MemoryView<'a>> {
        self.check(offset, length)?;
        Ok(Self { start: self.start.wrapping_add(offset), length, ..*self })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `InvalidInput` if they are outside.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        let (head, end) = self.words(offset, into.len());
        self.read_edge(offset, &mut into[..head]);
        let words = into[head..end].chunks_exact_mut(8);
        for (at, word) in (offset + head..).step_by(8).zip(words) {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        }
        self.read_edge(offset + end, &mut into[end..]);
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `InvalidInput` if they do not fit.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        let (head, end) = self.words(offset, from.len());
        self.write_edge(offset, &from[..head]);
        let words = from[head..end].chunks_exact(8);
        for (at, word) in (offset + head..).step_by(8).zip(words) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            self.word(at).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.write_edge(offset + end, &from[end..]);
        Ok(())
    }

    /// Copies bytes of one word out.
    fn read_edge(&self, offset: usize, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        match self.word_of(offset) {
            Some((word, first)) => {
                let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                into.copy_from_slice(&bytes[first..first + into.len()]);
            }
            None => (offset..).zip(into).for_each(|(at, byte)| {
                *byte = self.byte(at).load(Ordering::Relaxed);
            }),
        }
    }

    /// Copies bytes into one word. Concurrent writes of threads and the device to its other bytes
    /// are kept.
    fn write_edge(&self, offset: usize, from: &[u8]) {
        if from.is_empty() {
            return;
        }
        match self.word_of(offset) {
            Some((word, first)) => {
                let changed = |old: u64| {
                    let mut bytes = old.to_ne_bytes();
                    bytes[first..first + from.len()].copy_from_slice(from);
                    Some(u64::from_ne_bytes(bytes))
                };
                // Infallible: `changed` always returns a value.
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
            }
            None => (offset..).zip(from).for_each(|(at, byte)| {
                self.byte(at).store(*byte, Ordering::Relaxed);
            }),
        }
    }

    /// Sets `length` bytes to `value`.
    ///
    /// # Errors
    /// `InvalidInput` if they are outside.
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<()> {
        self.check(offset, length)?;
        let piece = [value; 64];
        (0..length)
            .step_by(64)
            .try_for_each(|done| self.write(offset + done, &piece[..(length - done).min(64)]))
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // Infallible: the length is the view's.
        let _ = self.read(0, &mut bytes);
        bytes
    }

    /// Eight bytes as an atomic number in the machine's byte order, for words that remote atomics
    /// modify.
    ///
    /// The device's atomics are atomic with the processor's read-modify-write operations only if
    /// its `atomics` attribute says so; they are always atomic with loads and stores.
    ///
    /// # Errors
    /// `InvalidInput` if the word is outside or its address is not a multiple of 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&'a AtomicU64> {
        self.check(offset, 8)?;
        if (self.start as usize + offset) % 8 != 0 {
            return Err(Error::invalid("memory_view", format!("byte {offset} is not 8-aligned")));
        }
        Ok(self.word(offset))
    }

    /// The bounds of the whole words in a range, relative to its start.
    fn words(&self, offset: usize, length: usize) -> (usize, usize) {
        let head = (self.start as usize + offset).wrapping_neg() % 8;
        let head = head.min(length);
        (head, head + (length - head) / 8 * 8)
    }

    /// The word that contains a byte of the view, and the byte's index in it; `None` if the word
    /// crosses an edge of the outermost view.
    fn word_of(&self, offset: usize) -> Option<(&'a AtomicU64, usize)> {
        let address = self.start as usize + offset;
        let (word, first) = (address & !7, address & 7);
        if word < self.edges.0 || word + 8 > self.edges.1 {
            return None;
        }
        // SAFETY: aligned, and within the memory of the outermost view, which `start` was derived
        // from: mapped for 'a and accessed by atomics of this size only (contract of `new`).
        let word = unsafe {
            AtomicU64::from_ptr(self.start.wrapping_add(offset).wrapping_sub(first).cast())
        };
        Some((word, first))
    }

    /// A byte that is not in a whole word.
    fn byte(&self, offset: usize) -> &'a AtomicU8 {
        debug_assert!(offset < self.length && self.word_of(offset).is_none());
        // SAFETY: callers checked that `offset` is inside; the memory is mapped for 'a, and bytes
        // outside of whole words are accessed by atomics of this size only (contract of `new`).
        unsafe { AtomicU8::from_ptr(self.start.add(offset)) }
    }

    /// The word at an offset. Its address is a multiple of 8, and it is inside the view.
    fn word(&self, offset: usize) -> &'a AtomicU64 {
        debug_assert!(offset + 8 <= self.length && (self.start as usize + offset) % 8 == 0);
        // SAFETY: as for `word_of`: the view is inside the outermost one.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let cause =
            format!("{length} bytes at offset {offset} are outside of the {} bytes", self.length);
        Err(Error::invalid("memory_view", cause))
    }
}

#[cfg(test)]
mod tests;
