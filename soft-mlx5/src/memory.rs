//! Host memory as the device sees it: bytes at bus addresses, and maps from offsets to these
//! addresses.
//!
//! The front end determines what a bus address is: a virtual address of this process for the
//! character device, a guest-physical address for PCI. The core reaches host memory only through
//! [`HostMemory`], always by copy, because the host's program may write the same bytes at any time.
//!
//! Copies go up in address order, as a ConnectX without relaxed ordering writes: programs that poll
//! the last byte of an RDMA WRITE rely on it.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::copy::{copy_in, copy_out};
use crate::process_vm;

/// No usable host memory at a bus address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no host memory for {len} bytes at bus address {address:#x}")]
pub struct BusError {
    /// First byte asked for.
    pub address: u64,
    /// Bytes asked for.
    pub len: u64,
}

impl BusError {
    fn new(address: u64, len: usize) -> Self {
        Self { address, len: len as u64 }
    }
}

/// The number of bytes of the same memory region before and after the bytes of an access.
///
/// The standard library forbids atomic accesses of different sizes to the same bytes if one of them
/// is a write and nothing orders them. So memory that peers access while the program reads it is
/// accessed by aligned words of eight bytes on both sides. A word that is only partly in the region
/// may hold other code's bytes, so single bytes are accessed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// Bytes before the first one.
    pub before: u64,
    /// Bytes after the last one.
    pub after: u64,
}

impl Margins {
    /// No limits: all of the memory is one region.
    pub const EVERYWHERE: Self = Self { before: u64::MAX, after: u64::MAX };

    /// The aligned word around `at`, one of the `length` bytes from `address`, if the region holds
    /// all of it.
    pub fn word(self, address: u64, length: usize, at: u64) -> Option<u64> {
        let word = at & !7;
        let before = address.saturating_sub(word);
        let after = (word - (address & !7) + 8).saturating_sub((address & 7) + length as u64);
        (before <= self.before && after <= self.after).then_some(word)
    }

    /// How many of the `rest` bytes from `at` are accessed in one way: up to the end of their word,
    /// or whole words.
    fn span(self, address: u64, length: usize, at: u64, rest: usize) -> usize {
        let inside = (at & 7) as usize;
        if inside != 0 || rest < 8 || self.word(address, length, at).is_none() {
            return rest.min(8 - inside);
        }
        rest & !7
    }
}

/// `old` with some of its bytes replaced, from the byte `first` on.
fn merged(old: u64, first: usize, bytes: &[u8]) -> u64 {
    let mut word = old.to_ne_bytes();
    word[first..first + bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// Memory of the host at bus addresses.
///
/// Every method accepts any address and returns a [`BusError`] where there is no memory (or, for
/// words, if the address is not a multiple of their size). Words are in the processor's byte order
/// unless the name says otherwise. All methods may be called while the host reads and writes the
/// same memory.
pub trait HostMemory: fmt::Debug + Send + Sync {
    /// Copies bytes from the host.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError>;

    /// Copies bytes to the host, first byte first.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError>;

    /// Copies bytes from memory of an on-demand key, whose pages may be unmapped or untouched.
    fn read_on_demand(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        self.read(address, into)
    }

    /// Copies bytes to memory of an on-demand key.
    fn write_on_demand(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        self.write(address, from)
    }

    /// Brings in the pages of a word of an on-demand key, which is then changed in place.
    fn page_in(&self, _address: u64, _len: u64) -> Result<(), BusError> {
        Ok(())
    }

    /// Copies bytes to memory that the host's program may read and write at the same time, first
    /// byte first. Every byte is accessed through its aligned word of eight bytes, if the region
    /// has the whole word; the word's other bytes keep their values.
    fn write_words(&self, address: u64, from: &[u8], margins: Margins) -> Result<(), BusError> {
        let (mut at, mut rest) = (address, from);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(margins.span(address, from.len(), at, rest.len()));
            match margins.word(address, from.len(), at) {
                Some(word) if now.len() < 8 => {
                    let merge = &mut |old| merged(old, (at - word) as usize, now);
                    self.update_u64(word, merge)?;
                }
                _ => self.write(at, now)?,
            }
            (at, rest) = (at.wrapping_add(now.len() as u64), later);
        }
        Ok(())
    }

    /// Copies bytes from such memory, in the same way.
    fn read_words(&self, address: u64, into: &mut [u8], margins: Margins) -> Result<(), BusError> {
        let length = into.len();
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let span = margins.span(address, length, at, rest.len());
            let (now, later) = rest.split_at_mut(span);
            match margins.word(address, length, at) {
                Some(word) if span < 8 => {
                    let mut found = 0;
                    self.with_u64(word, false, &mut |w| found = w.load(Ordering::Relaxed))?;
                    let first = (at - word) as usize;
                    now.copy_from_slice(&found.to_ne_bytes()[first..first + span]);
                }
                _ => self.read(at, now)?,
            }
            (at, rest) = (at.wrapping_add(span as u64), later);
        }
        Ok(())
    }

    /// Calls `access` with a word of four bytes; `writes` says that the call may change it.
    fn with_u32(
        &self,
        address: u64,
        writes: bool,
        access: &mut dyn FnMut(&AtomicU32),
    ) -> Result<(), BusError>;

    /// Calls `access` with a word of eight bytes; `writes` says that the call may change it.
    fn with_u64(
        &self,
        address: u64,
        writes: bool,
        access: &mut dyn FnMut(&AtomicU64),
    ) -> Result<(), BusError>;

    /// Loads a word; what the host wrote before it stored this value is visible afterwards.
    fn load_acquire_u32(&self, address: u64) -> Result<u32, BusError> {
        let mut found = 0;
        self.with_u32(address, false, &mut |word| found = word.load(Ordering::Acquire))?;
        Ok(found)
    }

    /// Stores a word; everything written before is visible to a host that sees this value.
    fn store_release_u64(&self, address: u64, value: u64) -> Result<(), BusError> {
        self.with_u64(address, true, &mut |word| word.store(value, Ordering::Release))
    }

    /// Stores a byte; everything written before is visible to a host that sees this value.
    fn store_release_u8(&self, address: u64, value: u8) -> Result<(), BusError> {
        fence(Ordering::Release);
        self.write(address, &[value])
    }

    /// Loads a doorbell record's word, which is big endian in memory.
    fn load_be32(&self, address: u64) -> Result<u32, BusError> {
        self.load_acquire_u32(address).map(u32::from_be)
    }

    /// Applies `change` to a word in one step and returns what was there before. It may be called
    /// several times.
    fn update_u64(
        &self,
        address: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, BusError> {
        let mut before = 0;
        self.with_u64(address, true, &mut |word| {
            before = word
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| Some(change(value)))
                .unwrap_or_else(|found| found);
        })?;
        Ok(before)
    }

    /// Applies `change` to a word in one step and returns what was there before. It may be called
    /// several times.
    fn update_u32(
        &self,
        address: u64,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<u32, BusError> {
        let mut before = 0;
        self.with_u32(address, true, &mut |word| {
            before = word
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| Some(change(value)))
                .unwrap_or_else(|found| found);
        })?;
        Ok(before)
    }
}

/// The bus addresses of a queue or memory region, by offset from 0.
#[derive(Clone, PartialEq, Eq)]
pub enum PageMap {
    /// Contiguous bus addresses.
    Linear {
        /// Bus address of offset 0.
        base: u64,
    },
    /// A list of pages of `1 << shift` bytes.
    Pages {
        /// log2 of the page size, 0..=63.
        shift: u8,
        /// Bus addresses of the pages.
        frames: Arc<[u64]>,
        /// Offset 0 is this many bytes into the first page.
        first: u64,
    },
}

impl PageMap {
    /// Contiguous bus addresses from `base`.
    pub const fn linear(base: u64) -> Self {
        Self::Linear { base }
    }

    /// Pages of `1 << shift` bytes; offset 0 is `first` bytes into the first one.
    pub fn pages(shift: u8, frames: impl Into<Arc<[u64]>>, first: u64) -> Self {
        Self::Pages { shift: shift.min(63), frames: frames.into(), first }
    }

    /// The bus address of `offset`, and how many of the `len` bytes from there are contiguous (at
    /// least one if `len` is not 0). `None` after the end of the page list or of the address space.
    pub fn locate(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        match self {
            Self::Linear { base } => {
                let address = base.checked_add(offset)?;
                address.checked_add(len.saturating_sub(1))?;
                Some((address, len))
            }
            Self::Pages { shift, frames, first } => {
                let at = first.checked_add(offset)?;
                let size = 1u64 << shift;
                let inside = at & (size - 1);
                let frame = frames.get(usize::try_from(at >> shift).ok()?)?;
                Some((frame.checked_add(inside)?, len.min(size - inside)))
            }
        }
    }

    /// Copies bytes from the host, page by page.
    pub fn read(
        &self,
        memory: &dyn HostMemory,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), BusError> {
        let mut done = 0;
        while done < into.len() {
            let (address, len) = self.contiguous(offset, done, into.len())?;
            memory.read(address, &mut into[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Copies bytes to the host, page by page, first byte first.
    pub fn write(&self, memory: &dyn HostMemory, offset: u64, from: &[u8]) -> Result<(), BusError> {
        let mut done = 0;
        while done < from.len() {
            let (address, len) = self.contiguous(offset, done, from.len())?;
            memory.write(address, &from[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn contiguous(&self, offset: u64, done: usize, total: usize) -> Result<(u64, usize), BusError> {
        let at = offset.wrapping_add(done as u64);
        let left = (total - done) as u64;
        let (address, len) = self.locate(at, left).ok_or(BusError { address: at, len: left })?;
        Ok((address, len as usize))
    }
}

impl fmt::Debug for PageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear { base } => write!(f, "Linear({base:#x})"),
            Self::Pages { shift, frames, first } => {
                write!(f, "Pages({} of 2^{shift} bytes, from {first:#x})", frames.len())
            }
        }
    }
}

/// The memory of this process: bus addresses are virtual addresses.
#[derive(Debug)]
pub struct ProcessMemory(());

impl ProcessMemory {
    /// Access to this process's memory.
    ///
    /// # Safety
    /// Every range of addresses that a core with this memory is told of (queue buffers, doorbell
    /// records, the pages of a memory key) must stay mapped until the object is destroyed,
    /// readable, and writable if the device may write it (CQ buffers; keys with local write
    /// access). The pages of an on-demand key may come and go, except during an atomic operation on
    /// them. No safe reference of this process may cover a range while the device may write it;
    /// programs look at it through raw pointers or atomics.
    ///
    /// All accesses are atomic, and of these sizes, since the standard library forbids atomic
    /// accesses of different sizes to the same bytes if one of them is a write and nothing orders
    /// them:
    /// - What a peer's RDMA operations access: aligned words of eight bytes if the memory region
    ///   has the whole word, else single bytes. A program that accesses such memory meanwhile uses
    ///   the same sizes.
    /// - The buffers of the program's own requests: aligned words inside the message, and single
    ///   bytes at its edges. They belong to the device until the request completes; bytes beside
    ///   them are not touched.
    /// - Doorbell records: words of four bytes. The byte of a CQE that holds its owner bit: one
    ///   byte; the rest of a CQE is written before, and ordered by it.
    ///
    /// On-demand memory is the exception: the kernel moves its bytes (`process_vm_readv`,
    /// `process_vm_writev`), as a DMA engine would, outside of this program.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    fn check(address: u64, len: usize) -> Result<(), BusError> {
        // The first page is never mapped. Refusing it makes a null pointer an error instead of a
        // crash.
        let end = address.checked_add(len as u64);
        if address < 4096 || end.is_none_or(|end| end > isize::MAX as u64) {
            return Err(BusError::new(address, len));
        }
        Ok(())
    }

    fn word(address: u64, size: usize) -> Result<(), BusError> {
        if address % size as u64 != 0 {
            return Err(BusError::new(address, size));
        }
        Self::check(address, size)
    }
}

impl HostMemory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        Self::check(address, into.len())?;
        // SAFETY: the caller of `new` guaranteed that every range that the core knows is mapped and
        // readable, and the core asks for no other (keys and queues are bounds-checked before they
        // are translated).
        unsafe { copy_in(address as *const u8, into) };
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        Self::check(address, from.len())?;
        // SAFETY: as in `read`; the core writes only CQ buffers and keys with local write access,
        // which the caller of `new` guaranteed to be writable and not covered by references.
        unsafe { copy_out(from, address as *mut u8) };
        Ok(())
    }

    fn read_on_demand(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        Self::check(address, into.len())?;
        match process_vm::read(process_vm::own(), address, into) {
            Err(error) if process_vm::is_forbidden(error) => {
                self.page_in(address, into.len() as u64)?;
                self.read(address, into)
            }
            result => result.map_err(|_| BusError::new(address, into.len())),
        }
    }

    fn write_on_demand(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        Self::check(address, from.len())?;
        // SAFETY: `new`'s caller guaranteed that the pages of a key may be overwritten as far as
        // they are mapped.
        match unsafe { process_vm::write(process_vm::own(), address, from) } {
            Err(error) if process_vm::is_forbidden(error) => {
                self.page_in(address, from.len() as u64)?;
                self.write(address, from)
            }
            result => result.map_err(|_| BusError::new(address, from.len())),
        }
    }

    fn page_in(&self, address: u64, len: u64) -> Result<(), BusError> {
        Self::check(address, len as usize)?;
        let first = address & !0xfff;
        let populated = process_vm::populate(first, (address + len - first) as usize, true);
        populated.map_err(|_| BusError::new(address, len as usize))
    }

    fn with_u32(
        &self,
        address: u64,
        _writes: bool,
        access: &mut dyn FnMut(&AtomicU32),
    ) -> Result<(), BusError> {
        Self::word(address, 4)?;
        // SAFETY: aligned by `word`; mapped, and writable if the core writes it, by `new`'s
        // contract.
        access(unsafe { AtomicU32::from_ptr(address as *mut u32) });
        Ok(())
    }

    fn with_u64(
        &self,
        address: u64,
        _writes: bool,
        access: &mut dyn FnMut(&AtomicU64),
    ) -> Result<(), BusError> {
        Self::word(address, 8)?;
        // SAFETY: aligned by `word`; mapped, and writable if the core writes it, by `new`'s
        // contract.
        access(unsafe { AtomicU64::from_ptr(address as *mut u64) });
        Ok(())
    }
}

/// A plain buffer that plays host memory, for tests, simulations and fuzzers: every access is
/// checked.
///
/// ```
/// use uverbs_soft::memory::{BufferMemory, HostMemory};
/// let memory = BufferMemory::new(0x10_0000, 4096);
/// memory.write(0x10_0010, b"hello").unwrap();
/// assert!(memory.write(0x10_0fff, b"too long").is_err());
/// ```
pub struct BufferMemory {
    base: u64,
    words: Box<[AtomicU64]>,
}

impl BufferMemory {
    /// `len` zero bytes (rounded up to a multiple of 8) from bus address `base`, a multiple of 8.
    /// Empty if there is not that much memory.
    pub fn new(base: u64, len: usize) -> Self {
        // The allocator zeroes it at once; fresh pages take no memory until they are touched.
        let words = Box::into_raw(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        // SAFETY: `words` comes from `Box::into_raw`; `AtomicU64` has the size, the validity and
        // (asserted below) the alignment of `u64`, so the slice and its allocation are the same.
        let words = unsafe { Box::from_raw(words as *mut [AtomicU64]) };
        Self { base: base & !7, words }
    }

    /// Bus address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn offset(&self, address: u64, len: usize) -> Result<usize, BusError> {
        let offset = address.checked_sub(self.base).and_then(|o| usize::try_from(o).ok());
        offset
            .filter(|o| o.checked_add(len).is_some_and(|end| end <= self.len()))
            .ok_or(BusError::new(address, len))
    }

    fn pointer(&self, offset: usize) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset)
    }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());

impl fmt::Debug for BufferMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMemory({:#x}, {} bytes)", self.base, self.len())
    }
}

impl HostMemory for BufferMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        let offset = self.offset(address, into.len())?;
        // SAFETY: `offset` checked that the range is in the allocation, which consists of atomics.
        unsafe { copy_in(self.pointer(offset), into) };
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        let offset = self.offset(address, from.len())?;
        // SAFETY: as in `read`; atomics may be written through a shared reference.
        unsafe { copy_out(from, self.pointer(offset)) };
        Ok(())
    }

    fn with_u32(
        &self,
        address: u64,
        _writes: bool,
        access: &mut dyn FnMut(&AtomicU32),
    ) -> Result<(), BusError> {
        let offset = self.offset(address, 4)?;
        if offset % 4 != 0 {
            return Err(BusError::new(address, 4));
        }
        // SAFETY: inside the allocation by `offset`, aligned by the check above, interior mutable,
        // and used only while `self` is borrowed.
        access(unsafe { AtomicU32::from_ptr(self.pointer(offset).cast()) });
        Ok(())
    }

    fn with_u64(
        &self,
        address: u64,
        _writes: bool,
        access: &mut dyn FnMut(&AtomicU64),
    ) -> Result<(), BusError> {
        let offset = self.offset(address, 8)?;
        if offset % 8 != 0 {
            return Err(BusError::new(address, 8));
        }
        access(&self.words[offset / 8]);
        Ok(())
    }
}

/// Memory that records how each byte is accessed.
#[cfg(test)]
pub(crate) mod recorder {
    use std::sync::Mutex;

    use super::*;

    /// One access: its first byte, its size, whether it may write.
    pub(crate) type Accessed = (u64, u64, bool);

    /// A buffer that records the atomic accesses to it, with the sizes of `crate::copy`.
    #[derive(Debug)]
    pub(crate) struct Recorder {
        pub(crate) memory: BufferMemory,
        accesses: Mutex<Vec<Accessed>>,
    }

    impl Recorder {
        pub(crate) fn new(base: u64, len: usize) -> Self {
            Self { memory: BufferMemory::new(base, len), accesses: Mutex::default() }
        }

        /// The accesses since the last call.
        pub(crate) fn take(&self) -> Vec<Accessed> {
            std::mem::take(&mut self.accesses.lock().unwrap())
        }

        fn note(&self, access: Accessed) {
            self.accesses.lock().unwrap().push(access);
        }

        /// Aligned words, and single bytes where there is no whole one.
        fn note_copy(&self, mut at: u64, len: usize, writes: bool) {
            let end = at + len as u64;
            while at < end {
                let size = if at % 8 == 0 && end - at >= 8 { 8 } else { 1 };
                self.note((at, size, writes));
                at += size;
            }
        }
    }

    impl HostMemory for Recorder {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
            self.note_copy(address, into.len(), false);
            self.memory.read(address, into)
        }

        fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
            self.note_copy(address, from.len(), true);
            self.memory.write(address, from)
        }

        fn with_u32(
            &self,
            address: u64,
            writes: bool,
            access: &mut dyn FnMut(&AtomicU32),
        ) -> Result<(), BusError> {
            self.note((address, 4, writes));
            self.memory.with_u32(address, writes, access)
        }

        fn with_u64(
            &self,
            address: u64,
            writes: bool,
            access: &mut dyn FnMut(&AtomicU64),
        ) -> Result<(), BusError> {
            self.note((address, 8, writes));
            self.memory.with_u64(address, writes, access)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::recorder::Recorder;
    use super::*;

    const BASE: u64 = 0x7000_0000;

    /// Copies within a region of every position, and checks what is copied and at which sizes.
    #[test]
    fn shared_words_are_accessed_whole_where_the_region_holds_them() {
        let memory = Recorder::new(BASE, 64);
        for (start, end) in [(0, 64), (3, 61), (5, 12), (9, 15), (16, 40)] {
            for first in start..end {
                for last in first..=end {
                    check_words(&memory, (start, end), (first, last));
                }
            }
        }
    }

    fn check_words(memory: &Recorder, (start, end): (u64, u64), (first, last): (u64, u64)) {
        let margins = Margins { before: first - start, after: end - last };
        let before: Vec<u8> = (0..64).map(|i| 0x80 | i).collect();
        memory.memory.write(BASE, &before).unwrap();
        let data: Vec<u8> = (first..last).map(|i| i as u8).collect();
        memory.write_words(BASE + first, &data, margins).unwrap();
        let mut back = vec![0xff; data.len()];
        memory.read_words(BASE + first, &mut back, margins).unwrap();
        assert_eq!(back, data);
        let mut after = [0; 64];
        memory.memory.read(BASE, &mut after).unwrap();
        let (low, high) = (first as usize, last as usize);
        assert_eq!((&after[..low], &after[high..]), (&before[..low], &before[high..]));
        for (at, size, _) in memory.take() {
            let word = (at - BASE) & !7;
            let whole = word >= start && word + 8 <= end;
            assert_eq!(size, if whole { 8 } else { 1 }, "{at:#x} of {first}..{last}");
            assert!(at - BASE >= start && at - BASE + size <= end, "outside of the region");
        }
    }

    #[test]
    fn buffer_copies_every_alignment_and_length() {
        let memory = BufferMemory::new(BASE, 128);
        for start in 0..9u64 {
            for len in 0..40usize {
                let data: Vec<u8> =
                    (0..len).map(|i| (i as u8).wrapping_mul(7) ^ start as u8).collect();
                memory.write(BASE + start, &[0xee; 64]).unwrap();
                memory.write(BASE + start, &data).unwrap();
                let mut back = vec![0; len + 1];
                memory.read(BASE + start, &mut back).unwrap();
                assert_eq!(&back[..len], data);
                assert_eq!(back[len], 0xee, "wrote behind the end");
            }
        }
    }

    #[test]
    fn buffer_refuses_what_it_does_not_hold() {
        let memory = BufferMemory::new(BASE, 64);
        assert!(memory.read(BASE + 63, &mut [0; 2]).is_err());
        assert!(memory.read(BASE - 1, &mut [0; 1]).is_err());
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(memory.load_acquire_u32(BASE + 2).is_err(), "unaligned");
        assert!(memory.store_release_u64(BASE + 4, 0).is_err(), "unaligned");
        assert!(memory.update_u64(BASE + 64, &mut |v| v).is_err());
        assert!(memory.update_u32(BASE + 64, &mut |v| v).is_err());
    }

    #[test]
    fn words_are_changed_in_one_step() {
        let memory = BufferMemory::new(BASE, 16);
        memory.store_release_u64(BASE + 8, 41).unwrap();
        assert_eq!(memory.update_u64(BASE + 8, &mut |v| v + 1), Ok(41));
        assert_eq!(memory.update_u64(BASE + 8, &mut |_| 7), Ok(42));
        assert_eq!(memory.update_u32(BASE, &mut |v| v | 5), Ok(0));
        assert_eq!(memory.load_acquire_u32(BASE), Ok(5));
    }

    #[test]
    fn page_lists_are_followed_across_pages() {
        let memory = BufferMemory::new(BASE, 3 * 4096);
        let map = PageMap::pages(12, vec![BASE + 8192, BASE], 4000);
        let data: Vec<u8> = (0..200).map(|i| i as u8).collect();
        map.write(&memory, 0, &data).unwrap();
        let mut tail = [0; 104];
        memory.read(BASE, &mut tail).unwrap();
        assert_eq!(tail, data[96..]);
        let mut back = vec![0; 200];
        map.read(&memory, 0, &mut back).unwrap();
        assert_eq!(back, data);
        assert_eq!(map.locate(4192, 1), None, "behind the last page");
        assert_eq!(PageMap::linear(u64::MAX).locate(1, 1), None);
    }

    #[test]
    fn process_memory_refuses_null_and_wild_addresses() {
        // SAFETY: only a live local and addresses that are refused before any access.
        let memory = unsafe { ProcessMemory::new() };
        let value = AtomicU64::new(0x0102);
        let address = value.as_ptr() as u64;
        assert_eq!(memory.update_u64(address, &mut |v| v + 1), Ok(0x0102));
        assert_eq!(value.load(Ordering::Relaxed), 0x0103);
        assert!(memory.read(8, &mut [0; 4]).is_err());
        assert!(memory.read(u64::MAX - 2, &mut [0; 4]).is_err());
        assert!(memory.load_acquire_u32(address + 1).is_err());
    }
}
