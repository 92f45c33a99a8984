//! The memory of a ring: a sealed memfd that both processes map.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::stat::fstat;

use super::{CELL, Control, Words};
use crate::copy::{append, copy_out};
use crate::sealed::{cannot_shrink, sealed_memory};

/// Cells of a ring: 256 KiB, about 60 packets of 4096 bytes. Small enough for a processor's L2
/// cache.
const CELLS: u64 = 4096;

/// Words of all cells.
const DATA: u64 = CELLS * CELL as u64;

/// Words before the first cell: a page.
const CONTROLS: usize = 512;

/// Words between two control words, so that no two share a cache line or an adjacent pair of lines.
const APART: usize = 16;

/// Bytes of the whole mapping.
const LEN: usize = 8 * (CONTROLS + DATA as usize);

const _: () = assert!(CELLS.is_power_of_two() && 4 * APART <= CONTROLS);

/// A mapped ring.
pub(super) struct Mapped(MmapRaw);

impl Mapped {
    /// A new ring, and the file to pass to the other process.
    ///
    /// # Errors
    ///
    /// Errors of creating and mapping the file.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = sealed_memory(c"uverbs-soft-ring", LEN)?;
        // Allocates all pages now. If the machine has none left, this fails here, instead of a
        // signal at the first access, which may be in a thread of the program.
        while let Err(errno) = posix_fallocate(&file, 0, LEN as i64) {
            if errno != Errno::EINTR {
                return Err(errno.into());
            }
        }
        Ok((Self::map(&file)?, file))
    }

    /// The ring in a file of another process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the file is not like those of [`Mapped::create`]; errors of mapping it.
    pub(super) fn adopt(file: &OwnedFd) -> io::Result<Self> {
        if !is_whole(file)? || counts_pages() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().len(LEN).map_raw(file)?))
    }

    fn at(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < LEN / 8);
        // SAFETY: all callers stay below CONTROLS + DATA words, the mapping's length, and a
        // multiple of 8 from its page-aligned start is aligned. It lives as long as self. The file
        // has that length forever (sealed against shrinking, checked in `is_whole`) and is of
        // ordinary memory, whose pages are there (`create`) or come back when touched
        // (`counts_pages`). This process accesses it by atomics, and by copies that do as atomics
        // do (`copy.rs`); the other one is outside of this program's memory model.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().cast::<u64>().add(index)) }
    }

    /// The memory of `len` bytes of cells from word `at` on: the first part with its length, and
    /// the second part at the start of the cells.
    fn parts(&self, at: u64, len: usize) -> (*mut u8, usize, *mut u8) {
        let (start, at) =
            (self.0.as_mut_ptr().wrapping_add(8 * CONTROLS), 8 * (at % DATA) as usize);
        (start.wrapping_add(at), len.min(8 * DATA as usize - at), start)
    }

    fn control_word(&self, which: Control) -> &AtomicU64 {
        self.at(which as usize * APART)
    }

    fn cell_word(&self, at: u64) -> &AtomicU64 {
        self.at(CONTROLS + (at % DATA) as usize)
    }
}

/// Whether the machine commits no more memory than it has (vm.overcommit_memory is 2). Then a page
/// that the other process has punched out of the file may fail when it is accessed.
fn counts_pages() -> bool {
    let mode = std::fs::read("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    mode.first() == Some(&b'2')
}

/// Whether the whole length of a file of unknown origin can be mapped and accessed safely, whatever
/// its creator does.
fn is_whole(file: &OwnedFd) -> io::Result<bool> {
    Ok(cannot_shrink(file)? && fstat(file)?.st_size == LEN as i64)
}

impl Words for Mapped {
    fn cells(&self) -> u64 {
        CELLS
    }

    fn control(&self, which: Control, order: Ordering) -> u64 {
        self.control_word(which).load(order)
    }

    fn set_control(&self, which: Control, value: u64, order: Ordering) {
        self.control_word(which).store(value, order);
    }

    fn take_control(&self, which: Control) -> u64 {
        self.control_word(which).swap(0, Ordering::Relaxed)
    }

    fn word(&self, at: u64) -> u64 {
        self.cell_word(at).load(Ordering::Relaxed)
    }

    fn set_word(&self, at: u64, value: u64) {
        self.cell_word(at).store(value, Ordering::Relaxed);
    }

    fn load(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        let len = len.min(8 * DATA as usize);
        let (first, count, second) = self.parts(at, len);
        // SAFETY: `count` bytes from `first` on end with the cells at the latest, and what is left
        // of at most all bytes of the cells begins with them. As in `at`, they are mapped, and this
        // process accesses them as atomics do.
        unsafe {
            append(first, count, into);
            append(second, len - count, into);
        }
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(8 * DATA as usize)];
        let (first, count, second) = self.parts(at, bytes.len());
        // SAFETY: as in `load`; the mapping is writable, and no reference covers it.
        unsafe {
            copy_out(&bytes[..count], first);
            copy_out(&bytes[count..], second);
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
