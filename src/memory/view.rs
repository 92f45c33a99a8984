//! Looking at memory that a device may be writing.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A window onto memory that a device, or a remote peer through it, may read and write at any time.
///
/// It never lends a slice: bytes are copied in and out with relaxed atomic accesses, eight at a time where
/// the addresses allow, so that a device is seen in whole words and its writes never are undefined behaviour.
/// Threads of this process that access the same bytes at the same time should do so in the same pieces: Rust's
/// memory model does not say what racing accesses of different sizes give, if one of them writes. Nothing here
/// orders accesses against the device; a completion does.
#[derive(Clone, Copy)]
pub struct MemoryView<'a> {
    start: *mut u8,
    length: usize,
    memory: PhantomData<&'a AtomicU8>,
}

// SAFETY: every access through a view is atomic, so views may be used from any thread.
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
    /// For the lifetime `'a` the bytes stay mapped readable and writable, and no `&mut` or `&` reference
    /// to non-atomic data covers them.
    pub unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length, memory: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte, for work requests.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Part of the view.
    ///
    /// # Errors
    /// `InvalidInput` if it does not lie within.
    pub fn part(&self, offset: usize, length: usize) -> Result<MemoryView<'a>> {
        self.check(offset, length)?;
        Ok(Self { start: self.start.wrapping_add(offset), length, memory: PhantomData })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `InvalidInput` if they do not lie within.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        let words = self.words(offset, into.len());
        let mut at = offset;
        for byte in &mut into[..words.start] {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        for word in into[words.start..words.end].chunks_exact_mut(8) {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        for byte in &mut into[words.end..] {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `InvalidInput` if they do not fit.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        let words = self.words(offset, from.len());
        let mut at = offset;
        for byte in &from[..words.start] {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        for word in from[words.start..words.end].chunks_exact(8) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            self.word(at).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            at += 8;
        }
        for byte in &from[words.end..] {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Sets `length` bytes to `value`.
    ///
    /// # Errors
    /// `InvalidInput` if they do not lie within.
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<()> {
        self.check(offset, length)?;
        (offset..offset + length).for_each(|at| self.byte(at).store(value, Ordering::Relaxed));
        Ok(())
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // Infallible: exactly the view's own length.
        let _ = self.read(0, &mut bytes);
        bytes
    }

    /// Eight bytes as an atomic number in the machine's byte order, for words that remote atomics touch.
    ///
    /// Whether the device's atomics and the processor's are atomic to each other is the device's
    /// `atomic_capability`; plain loads and stores always are.
    ///
    /// # Errors
    /// `InvalidInput` if the word does not lie within or its address is not a multiple of 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&'a AtomicU64> {
        self.check(offset, 8)?;
        if (self.start as usize + offset) % 8 != 0 {
            return Err(Error::invalid("memory_view", format!("byte {offset} is not 8-aligned")));
        }
        Ok(self.word(offset))
    }

    /// The part of a span, relative to its start, that aligned words cover.
    fn words(&self, offset: usize, length: usize) -> std::ops::Range<usize> {
        let head = (self.start as usize + offset).wrapping_neg() % 8;
        let head = head.min(length);
        head..head + (length - head) / 8 * 8
    }

    fn byte(&self, offset: usize) -> &'a AtomicU8 {
        debug_assert!(offset < self.length);
        // SAFETY: callers checked that `offset` lies within; the memory is mapped for 'a, and it is only
        // ever accessed atomically (contract of `new`).
        unsafe { AtomicU8::from_ptr(self.start.add(offset)) }
    }

    fn word(&self, offset: usize) -> &'a AtomicU64 {
        debug_assert!(offset + 8 <= self.length);
        // SAFETY: as for `byte`, and callers only pass offsets whose address is a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let cause = format!("bytes {offset}+{length} do not lie within {}", self.length);
        Err(Error::invalid("memory_view", cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(8))]
    struct Aligned([u8; 64]);

    #[test]
    fn every_alignment_reads_and_writes_the_same_bytes() {
        let mut memory = Aligned([0; 64]);
        // SAFETY: the array outlives the view and is not touched otherwise meanwhile.
        let view = unsafe { MemoryView::new(memory.0.as_mut_ptr(), 64) };
        let data: Vec<u8> = (1..=64).collect();
        for offset in 0..16 {
            for length in 0..=64 - offset {
                view.fill(0, 64, 0).unwrap();
                view.write(offset, &data[..length]).unwrap();
                let mut read = vec![0xff; length];
                view.read(offset, &mut read).unwrap();
                assert_eq!(read, data[..length], "{offset}+{length}");
                let all = view.to_vec();
                assert!(all[..offset].iter().chain(&all[offset + length..]).all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn nothing_outside_is_reachable() {
        let mut memory = Aligned([0; 64]);
        // SAFETY: as above.
        let view = unsafe { MemoryView::new(memory.0.as_mut_ptr(), 64) };
        assert!(view.read(60, &mut [0; 5]).is_err());
        assert!(view.write(usize::MAX, &[0; 2]).is_err());
        assert!(view.atomic_u64(57).is_err());
        assert!(view.atomic_u64(4).is_err());
        assert!(view.part(8, 57).is_err());
        view.part(8, 56).unwrap().atomic_u64(0).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(view.atomic_u64(8).unwrap().load(Ordering::Relaxed), 7);
    }
}
