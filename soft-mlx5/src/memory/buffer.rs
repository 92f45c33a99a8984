//! A buffer that takes the place of host memory.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::{BusError, HostMemory};

/// A buffer in the place of host memory, for tests, simulations and fuzzers: every access is
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
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());

impl fmt::Debug for BufferMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMemory({:#x}, {} bytes)", self.base, self.len())
    }
}

// SAFETY: `offset` checked that the range is in the allocation. It consists of atomics, so it may
// be written through a shared reference.
unsafe impl HostMemory for BufferMemory {
    fn with(
        &self,
        address: u64,
        len: usize,
        _writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError> {
        let offset = self.offset(address, len)?;
        let first = NonNull::from(&*self.words).cast::<u8>();
        // SAFETY: `offset` is inside the allocation or at its end.
        access(unsafe { first.add(offset) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000_0000;

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
}
