//! Host memory as the device sees it: bytes at bus addresses, and maps from offsets to these
//! addresses.
//!
//! The front end determines what a bus address is: a virtual address of this process for the
//! character device, a guest-physical address for PCI. The core reaches host memory only through
//! [`HostMemory`], always by copy, because the host's program may write the same bytes at any time.
//!
//! Copies proceed in ascending address order, like writes of a ConnectX without relaxed ordering:
//! programs that poll the last byte of an RDMA WRITE rely on it.

#![allow(unsafe_code)]

mod buffer;
mod margins;
mod page_map;
mod process;
#[cfg(test)]
pub(crate) mod recorder;

pub use buffer::BufferMemory;
pub use margins::Margins;
pub use page_map::PageMap;
pub use process::ProcessMemory;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::copy::{copy_in, copy_out};

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

/// The methods of [`HostMemory`] for words of each size.
macro_rules! words {
    ($($with:ident $update:ident $number:ident $atomic:ident;)*) => {$(
        /// Calls `access` with a word; `writes` says that the call may change it. A word whose
        /// address is not a multiple of its size is an error.
        fn $with(
            &self,
            address: u64,
            writes: bool,
            access: &mut dyn FnMut(&$atomic),
        ) -> Result<(), BusError> {
            const SIZE: usize = size_of::<$number>();
            let mut aligned = false;
            self.with(address, SIZE, writes, &mut |host| {
                let word = host.cast::<$number>();
                aligned = word.is_aligned();
                if aligned {
                    // SAFETY: aligned; `with` passes a pointer that is valid for a word, writable
                    // if `access` writes, which other code accesses by atomics.
                    access(unsafe { $atomic::from_ptr(word.as_ptr()) });
                }
            })?;
            if aligned { Ok(()) } else { Err(BusError::new(address, SIZE)) }
        }

        /// Applies `change` to a word in one step and returns what was there before. It may be
        /// called several times.
        fn $update(
            &self,
            address: u64,
            change: &mut dyn FnMut($number) -> $number,
        ) -> Result<$number, BusError> {
            let mut before = 0;
            self.$with(address, true, &mut |word| {
                before = word
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| Some(change(value)))
                    .unwrap_or_else(|found| found);
            })?;
            Ok(before)
        }
    )*};
}

/// Memory of the host at bus addresses.
///
/// Every method accepts any address and returns a [`BusError`] where there is no memory (or, for
/// words, if the address is not a multiple of their size). Words are in the processor's byte order
/// unless the name says otherwise. All methods may be called while the host reads and writes the
/// same memory.
///
/// # Safety
/// While `with` runs `access`, its pointer is valid for reads of `len` bytes, and for writes if
/// `writes` is set. Other code accesses these bytes by atomics only, or is outside of this
/// program's memory model (another process, a guest).
pub unsafe trait HostMemory: fmt::Debug + Send + Sync {
    /// Calls `access` with the address of `len` bytes in this process; `writes` says that the call
    /// may change them.
    fn with(
        &self,
        address: u64,
        len: usize,
        writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError>;

    /// Copies bytes from the host.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusError> {
        self.with(address, into.len(), false, &mut |host| {
            // SAFETY: `with` passes a pointer that is valid for as many bytes, and other code
            // accesses them by atomics.
            unsafe { copy_in(host.as_ptr(), into) }
        })
    }

    /// Copies bytes to the host, first byte first.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        self.with(address, from.len(), true, &mut |host| {
            // SAFETY: as in `read`; the bytes may be written.
            unsafe { copy_out(from, host.as_ptr()) }
        })
    }

    /// Copies bytes from memory of an on-demand key, whose pages may be unmapped or untouched. If
    /// the kernel does not make the copy, access sizes are those of [`HostMemory::read_words`].
    fn read_on_demand(
        &self,
        address: u64,
        into: &mut [u8],
        margins: Margins,
    ) -> Result<(), BusError> {
        self.read_words(address, into, margins)
    }

    /// Copies bytes to memory of an on-demand key.
    fn write_on_demand(&self, address: u64, from: &[u8], margins: Margins) -> Result<(), BusError> {
        self.write_words(address, from, margins)
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

    words! {
        with_u32 update_u32 u32 AtomicU32;
        with_u64 update_u64 u64 AtomicU64;
    }

    /// Loads a word. Writes of the host before it stored this value are visible afterwards.
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
}

/// `old` with some of its bytes replaced, from the byte `first` on.
fn merged(old: u64, first: usize, bytes: &[u8]) -> u64 {
    let mut word = old.to_ne_bytes();
    word[first..first + bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}
