//! Maps from offsets in a queue or memory region to bus addresses.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::{BusError, HostMemory};

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

    /// The same bytes without the first `bytes`.
    pub fn skip(&self, bytes: u64) -> Self {
        match self {
            Self::Linear { base } => Self::linear(base.wrapping_add(bytes)),
            Self::Pages { shift, frames, first } => {
                let first = first.saturating_add(bytes);
                Self::Pages { shift: *shift, frames: frames.clone(), first }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::BufferMemory;

    const BASE: u64 = 0x7000_0000;

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
}
