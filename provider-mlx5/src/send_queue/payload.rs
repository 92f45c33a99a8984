//! The data of a request: SGEs, or inline bytes.
//!
//! Data is a sequence of octowords (16 bytes). Each is read from its source and composed in a
//! register, so the writer of a WQE may ask for any of them by index, more than once.

#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, compiler_fence};

use super::encode::first_word;
use super::ethernet::Segmented;
use super::sealed::Sealed;
use super::wide::{self, Wide, few_rounds, wide};
use crate::format::{ETH_INLINE_START, INLINE_FLAG, MAX_DS};
#[cfg(test)]
use crate::request::Octoword;
use crate::request::{PostError, Sge, word};
use crate::sge::UNUSUAL;

/// The limits of a queue, from its creation.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Limits {
    pub(crate) max_sge: u32,
    /// Of the type of slice lengths, so that one instruction compares with it.
    pub(crate) max_inline: usize,
}

/// The data of a request. [`Sge`], lists of it, [`Inline`] and `()` implement it; it is sealed.
pub trait Payload: Copy + Sealed {
    /// Whether a READ can have such data, which then are the buffers that it fills.
    #[doc(hidden)]
    const IS_READ_TO: bool = true;
    /// Whether requests with such data are composed in registers where they are posted alone.
    /// Otherwise they are stored to the ring, by octowords, and copied from there.
    #[doc(hidden)]
    const IS_COMPOSED: bool = true;
    /// The same data for the slow path, which also accepts unusual data.
    #[doc(hidden)]
    type Any: Payload;
    #[doc(hidden)]
    fn any(self) -> Self::Any;
    /// Octowords of the whole WQE, whose header has `header`. `None` if [`Payload::octowords`] has
    /// to decide, because the data is empty, has an empty SGE, or is to be refused.
    #[doc(hidden)]
    fn usual(&self, limits: &Limits, header: usize) -> Option<usize>;
    /// Size in the WQE in octowords of any data, if the queue can take it.
    #[doc(hidden)]
    fn octowords(&self, limits: &Limits) -> Result<usize, PostError>;
    /// How many of its bytes are copied into the WQE.
    #[doc(hidden)]
    #[inline(always)]
    fn copied(&self) -> usize {
        0
    }
    /// The octoword of its SGE, if it has exactly one.
    #[doc(hidden)]
    #[inline(always)]
    fn only_sge(&self) -> Option<usize> {
        None
    }
    /// A copy, field by field, to pass to functions out of line. Passing the original would force
    /// it into memory.
    #[doc(hidden)]
    #[inline(always)]
    fn again(&self) -> Self {
        *self
    }
    /// Tells the compiler that the data has at least `size` octowords.
    ///
    /// # Safety
    /// It is that.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn assume(&self, _size: usize) {}
    /// An octoword that another one follows.
    ///
    /// # Safety
    /// `index + 1` is below the size, which `usual` or `octowords` has given.
    #[doc(hidden)]
    unsafe fn full(&self, index: usize) -> Wide;
    /// The last octoword, with zeros behind its data.
    ///
    /// # Safety
    /// `index + 1` is the size, which `usual` or `octowords` has given.
    #[doc(hidden)]
    unsafe fn last(&self, index: usize) -> Wide;
    /// Stores all octowords. Of the last one there may be the data's bytes alone. `sure` is a
    /// constant, and so is `most`.
    ///
    /// # Safety
    /// `size` is the size, which `usual` or `octowords` has given, at least `sure` and at most
    /// `most`; `to` is valid for writes of so many octowords, and aligned.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn store(&self, to: *mut Wide, size: usize, sure: usize, most: usize) {
        // SAFETY: the index is below the size. Only inline data ends within an octoword.
        let store = |index| unsafe { to.add(index).write_volatile(self.full(index)) };
        (0..sure).for_each(store);
        // The octowords of one block without a loop: each costs one comparison.
        let ends_at = |index| {
            let is_end = index >= most || index == size;
            if !is_end {
                store(index);
            }
            is_end
        };
        if ends_at(sure) || ends_at(sure + 1) || ends_at(sure + 2) || ends_at(sure + 3) {
            return;
        }
        for index in sure + 4..size {
            few_rounds();
            store(index);
        }
    }
}

impl Sealed for () {}
impl Sealed for Sge {}
impl Sealed for &[Sge] {}
impl Sealed for Sparse<'_> {}
impl Sealed for AtomicResult {}
impl Sealed for Inline<'_> {}

/// No data: a message of no bytes.
impl Payload for () {
    type Any = Self;
    #[inline(always)]
    fn any(self) {}
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        Some(header)
    }
    #[inline(always)]
    fn octowords(&self, _: &Limits) -> Result<usize, PostError> {
        Ok(0)
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide([0; 2])
    }
    #[inline(always)]
    unsafe fn last(&self, _: usize) -> Wide {
        wide([0; 2])
    }
}

/// One SGE. Every queue can take one.
impl Payload for Sge {
    type Any = Self;
    #[inline(always)]
    fn only_sge(&self) -> Option<usize> {
        Some(0)
    }
    #[inline(always)]
    fn any(self) -> Self {
        self
    }
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        self.is_usual().then_some(header + 1)
    }
    #[inline(always)]
    fn octowords(&self, _: &Limits) -> Result<usize, PostError> {
        if self.is_too_long() {
            Err(PostError::SgeTooLong)
        } else {
            Ok(usize::from(!self.is_empty()))
        }
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide(self.octoword())
    }
    #[inline(always)]
    unsafe fn last(&self, _: usize) -> Wide {
        wide(self.octoword())
    }
}

/// SGEs, gathered in order.
impl<'a> Payload for &'a [Sge] {
    type Any = Sparse<'a>;
    #[inline(always)]
    fn any(self) -> Sparse<'a> {
        Sparse(self)
    }
    #[inline(always)]
    fn only_sge(&self) -> Option<usize> {
        (self.len() == 1).then_some(0)
    }
    #[inline(always)]
    fn usual(&self, limits: &Limits, header: usize) -> Option<usize> {
        let usual = self.len() <= limits.max_sge as usize && are_usual(self);
        usual.then_some(header + self.len())
    }
    #[inline(always)]
    fn octowords(&self, limits: &Limits) -> Result<usize, PostError> {
        Sparse(self).octowords(limits)
    }
    #[inline(always)]
    unsafe fn full(&self, index: usize) -> Wide {
        // SAFETY: the caller vouches that the size is above the index.
        wide(unsafe { self.get_unchecked(index) }.octoword())
    }
    #[inline(always)]
    unsafe fn last(&self, index: usize) -> Wide {
        // SAFETY: as above.
        unsafe { self.full(index) }
    }
}

/// Whether all SGEs can be written as they are. In a list of a constant length this is one branch.
#[inline(always)]
fn are_usual(list: &[Sge]) -> bool {
    let mut bits = 0;
    for sge in list {
        few_rounds();
        bits |= sge.first();
    }
    bits & UNUSUAL == 0
}

/// SGEs, some of which may be empty. Empty ones are left out, because the device reads a length of
/// zero as 2 GiB.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Sparse<'a>(&'a [Sge]);

impl Payload for Sparse<'_> {
    type Any = Self;
    fn any(self) -> Self {
        self
    }
    fn usual(&self, _: &Limits, _: usize) -> Option<usize> {
        None
    }
    fn octowords(&self, limits: &Limits) -> Result<usize, PostError> {
        if self.0.len() > limits.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        self.0.iter().try_fold(0, |count, sge| Ok(count + sge.octowords(limits)?))
    }
    unsafe fn full(&self, index: usize) -> Wide {
        let sge = self.0.iter().filter(|sge| !sge.is_empty()).nth(index);
        wide(sge.map_or([0; 2], Sge::octoword))
    }
    unsafe fn last(&self, index: usize) -> Wide {
        // SAFETY: nothing is demanded.
        unsafe { self.full(index) }
    }
}

/// The buffer of an 8-byte atomic's result.
#[derive(Clone, Copy, Debug)]
pub struct AtomicResult {
    /// Address, in the memory region's address space.
    pub address: u64,
    /// Local key of the memory region.
    pub lkey: u32,
}

impl Payload for AtomicResult {
    type Any = Self;
    #[inline(always)]
    fn any(self) -> Self {
        self
    }
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        Some(header + 1)
    }
    #[inline(always)]
    fn octowords(&self, _: &Limits) -> Result<usize, PostError> {
        Ok(1)
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide(Sge::new(self.address, 8, self.lkey).octoword())
    }
    #[inline(always)]
    unsafe fn last(&self, index: usize) -> Wide {
        // SAFETY: nothing is demanded.
        unsafe { self.full(index) }
    }
}

/// Data that is copied into the WQE at posting; the buffer can be reused at once and needs no
/// registration.
///
/// Its segment is four bytes of length, then the data. So octoword `i` has the bytes from `16 i -
/// 4` on.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Bytes of an inline segment's first octoword, after the length.
const FIRST: usize = 12;

/// Bytes of its length.
const LENGTH: usize = 16 - FIRST;

impl Inline<'_> {
    /// The length with the inline flag, in memory order.
    #[inline(always)]
    fn header(&self) -> u64 {
        // The length fits the field, because no queue's limit is higher. So `+` can replace `|`,
        // which takes an instruction more.
        first_word((self.0.len() as u32).wrapping_add(INLINE_FLAG))
    }

    /// The first octoword of a segment of no more than that: of 1 to 12 bytes.
    #[inline(always)]
    fn only(&self) -> Wide {
        let data = self.0;
        let (length, header) = (data.len(), self.header());
        if length >= 8 {
            let end = load64(data, length - 8) >> bits(FIRST - length);
            return wide([header | (u64::from(load32(data, 0)) << 32).to_le(), end.to_le()]);
        }
        if length >= 4 {
            let end = u64::from(load32(data, length - 4)) >> bits(8 - length);
            return wide([header | (u64::from(load32(data, 0)) << 32).to_le(), end.to_le()]);
        }
        // One to three bytes, some of them more than once.
        let byte = |at: usize| u64::from(data.get(at).copied().unwrap_or(0)) << bits(at);
        let (middle, end) = (length / 2, length.wrapping_sub(1));
        let bytes = byte(0) | byte(middle) | byte(end);
        wide([header | (bytes << 32).to_le(), 0])
    }
}

impl Payload for Inline<'_> {
    type Any = Self;
    const IS_READ_TO: bool = false;
    #[inline(always)]
    fn any(self) -> Self {
        Inline(self.0)
    }

    #[inline(always)]
    fn copied(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn usual(&self, limits: &Limits, header: usize) -> Option<usize> {
        let length = self.0.len();
        // Neither empty nor too long, in one comparison.
        let usual = length.wrapping_sub(1) < limits.max_inline;
        // In one sum.
        let octowords = segment_octowords(16 * header + length);
        // SAFETY: the length and the sum are at least 4, so rounded up to one.
        unsafe { core::hint::assert_unchecked(octowords > header) };
        usual.then_some(octowords)
    }

    #[inline(always)]
    fn octowords(&self, limits: &Limits) -> Result<usize, PostError> {
        let length = self.0.len();
        if length > limits.max_inline {
            return Err(PostError::InlineTooLong);
        }
        // A segment of no bytes is left out, like an empty SGE.
        Ok(if length == 0 { 0 } else { segment_octowords(length) })
    }

    #[inline(always)]
    unsafe fn assume(&self, size: usize) {
        // SAFETY: the caller vouches for the size.
        unsafe { core::hint::assert_unchecked(self.0.len() + 19 >= 16 * size) };
    }

    #[inline(always)]
    unsafe fn full(&self, index: usize) -> Wide {
        let data = self.0;
        if index > 0 {
            return load_wide(data, 16 * index - 4);
        }
        match data.first_chunk() {
            Some(start) => wide::after_length(self.header(), start),
            None => {
                let start = u64::from(load32(data, 0)) << 32;
                wide([self.header() | start.to_le(), load64(data, 4).to_le()])
            }
        }
    }

    #[inline(always)]
    unsafe fn last(&self, index: usize) -> Wide {
        if index > 0 { partial(self.0, 16 * index - 4) } else { self.only() }
    }

    #[inline(always)]
    unsafe fn store(&self, to: *mut Wide, size: usize, sure: usize, most: usize) {
        if size == 0 {
            return;
        }
        let (to, length) = (to.cast::<u8>(), self.0.len());
        // SAFETY: the caller vouches for octowords that hold the length and all data.
        unsafe {
            core::hint::assert_unchecked(length + 19 >= 16 * sure && length + LENGTH <= 16 * most);
            to.cast::<u32>().write_volatile((length as u32).wrapping_add(INLINE_FLAG).to_be());
            copy(to.add(LENGTH), self.0, (16 * sure).saturating_sub(19));
        }
    }
}

/// Copies data by loads and stores of up to 16 bytes. The last one may overlap the one before, so
/// their number depends only on the length, and nothing beyond the data is read or written. `sure`
/// is a constant.
///
/// # Safety
/// The data has at least `sure` bytes; `to` is valid for writes of all of it.
#[inline(always)]
unsafe fn copy(to: *mut u8, data: &[u8], sure: usize) {
    let (from, length) = (data.as_ptr(), data.len());
    // SAFETY: within the data, as is sure, or was just compared.
    unsafe {
        if length < 16 {
            return copy_short(to, data);
        }
        // First the `sure` bytes, then up to a block without a loop, then the rest.
        let mut at = 0;
        while at + 16 < sure {
            // Otherwise the compiler calls `memcpy`.
            compiler_fence(Ordering::SeqCst);
            copy_part::<16>(to, from, at);
            at += 16;
        }
        for _ in 0..5 {
            if at + 16 >= length {
                return copy_part::<16>(to, from, length - 16);
            }
            copy_part::<16>(to, from, at);
            at += 16;
        }
        while at + 16 < length {
            few_rounds();
            copy_part::<16>(to, from, at);
            at += 16;
        }
        copy_part::<16>(to, from, length - 16);
    }
}

/// [`copy`] of fewer than 16 bytes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, data: &[u8]) {
    let (from, length) = (data.as_ptr(), data.len());
    // SAFETY: within the data, as just compared in each case.
    unsafe {
        if length >= 8 {
            copy_part::<8>(to, from, 0);
            copy_part::<8>(to, from, length - 8);
        } else if length >= 4 {
            copy_part::<4>(to, from, 0);
            copy_part::<4>(to, from, length - 4);
        } else if length > 0 {
            // One to three bytes, some of them more than once.
            copy_part::<1>(to, from, 0);
            copy_part::<1>(to, from, length / 2);
            copy_part::<1>(to, from, length - 1);
        }
    }
}

/// Copies the `N` bytes at `at`.
///
/// # Safety
/// They are valid for reads and for writes, and apart.
#[inline(always)]
unsafe fn copy_part<const N: usize>(to: *mut u8, from: *const u8, at: usize) {
    // SAFETY: the caller vouches for them.
    unsafe { to.add(at).copy_from_nonoverlapping(from.add(at), N) };
}

/// Octowords of an inline segment of `length` bytes, at least one.
#[inline(always)]
pub(super) const fn segment_octowords(length: usize) -> usize {
    // Of a slice's length, so this does not overflow. `div_ceil` would compare the remainder.
    (length + 4 + 15) >> 4
}

/// Bits of so many bytes, but for whole words, for a shift.
#[inline(always)]
const fn bits(bytes: usize) -> u32 {
    bytes.wrapping_mul(8) as u32 & 63
}

#[inline(always)]
pub(super) fn load64(bytes: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: every caller has compared the length; `debug_assert` repeats it.
    unsafe { u64::from_le(bytes.as_ptr().add(at).cast::<u64>().read_unaligned()) }
}

#[inline(always)]
pub(super) fn load32(bytes: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= bytes.len());
    // SAFETY: as in `load64`.
    unsafe { u32::from_le(bytes.as_ptr().add(at).cast::<u32>().read_unaligned()) }
}

#[inline(always)]
fn load_wide(bytes: &[u8], at: usize) -> Wide {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: as in `load64`; every value is valid.
    unsafe { bytes.as_ptr().add(at).cast::<Wide>().read_unaligned() }
}

/// The 1 to 16 bytes from `start` to the end of the data, which has 8 at least, and zeros behind
/// them.
///
/// Uses only whole loads within the data and shifts the last one into place, so that no load has to
/// wait for narrower stores.
#[inline(always)]
pub(super) fn partial(data: &[u8], start: usize) -> Wide {
    let length = data.len();
    // By what is missing in one half of the octoword, or the other.
    let end = load64(data, length - 8) >> bits(start.wrapping_sub(length));
    if length - start > 8 {
        return wide([load64(data, start).to_le(), end.to_le()]);
    }
    wide([end.to_le(), 0])
}

impl<D: Payload> Segmented<'_, D> {
    fn header_octowords(&self) -> usize {
        self.header.len().div_ceil(16)
    }

    fn fits(&self, limits: &Limits) -> bool {
        self.header.len() <= limits.max_inline
    }

    /// Header and data each keep to their limit, but a WQE may be too short for both: behind the
    /// control segment and the Ethernet segment.
    fn fits_wqe(size: usize) -> bool {
        size <= usize::from(MAX_DS) - 2
    }
}

impl<'a, D: Payload> Payload for Segmented<'a, D> {
    type Any = Segmented<'a, D::Any>;
    // Where the header ends is not known to the compiler, so each octoword would be a choice.
    const IS_COMPOSED: bool = false;
    #[inline(always)]
    fn any(self) -> Self::Any {
        Segmented { header: self.header, data: self.data.any(), too_long: self.too_long }
    }
    #[inline(always)]
    fn copied(&self) -> usize {
        ETH_INLINE_START + self.header.len()
    }
    #[inline(always)]
    fn only_sge(&self) -> Option<usize> {
        Some(self.header_octowords() + self.data.only_sge()?)
    }
    #[inline(always)]
    fn usual(&self, limits: &Limits, header: usize) -> Option<usize> {
        let octowords = self.data.usual(limits, header + self.header_octowords())?;
        (self.fits(limits) && Self::fits_wqe(octowords - header)).then_some(octowords)
    }
    fn octowords(&self, limits: &Limits) -> Result<usize, PostError> {
        if !self.fits(limits) {
            return Err(self.too_long);
        }
        let size = self.header_octowords() + self.data.octowords(limits)?;
        if Self::fits_wqe(size) { Ok(size) } else { Err(PostError::TooManySge) }
    }
    #[inline(always)]
    unsafe fn full(&self, index: usize) -> Wide {
        let header = self.header_octowords();
        if index >= header {
            // SAFETY: so many octowords of data follow.
            return unsafe { self.data.full(index - header) };
        }
        header_octoword(self.header, 16 * index)
    }
    #[inline(always)]
    unsafe fn last(&self, index: usize) -> Wide {
        // SAFETY: the last SGE is as any.
        unsafe { self.full(index) }
    }
    #[inline(always)]
    unsafe fn store(&self, to: *mut Wide, size: usize, _: usize, most: usize) {
        let (header, data) = (self.header_octowords(), self.header);
        // SAFETY: the header has so many octowords, and the data the others.
        unsafe {
            let whole = data.len() / 16;
            for index in 0..whole {
                few_rounds();
                to.add(index).write_volatile(load_wide(data, 16 * index));
            }
            if whole < header {
                to.add(whole).write_volatile(header_octoword(data, 16 * whole));
            }
            self.data.store(to.add(header), size - header, 0, most);
        }
    }
}

/// The bytes of a header from `start`, which is within it, zeros behind them.
#[inline(always)]
fn header_octoword(header: &[u8], start: usize) -> Wide {
    if header.len() >= 8 {
        return partial(header.get(..start + 16).unwrap_or(header), start);
    }
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(header) {
        *to = *from;
    }
    wide([word(&bytes, 0), word(&bytes, 8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_sge: 4, max_inline: 500 };

    /// An inline segment, byte by byte.
    fn expected(data: &[u8]) -> Vec<u8> {
        let mut bytes = (0x8000_0000 | data.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes
    }

    fn bytes_of(octowords: &[Octoword]) -> Vec<u8> {
        octowords.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn octowords_of(payload: impl Payload, size: usize) -> Vec<Octoword> {
        // SAFETY: each octoword is asked for as what it is.
        let octoword = |i| unsafe { if i + 1 < size { payload.full(i) } else { payload.last(i) } };
        (0..size).map(octoword).map(wide::narrow).collect()
    }

    #[test]
    fn inline_data_of_every_length() {
        let data: Vec<u8> = (1..=255).chain(1..=255).collect();
        for length in 0..=505 {
            // Of exactly that length, so that a byte too many is found.
            let data: Box<[u8]> = data[..length].into();
            let inline = Inline(&data);
            let usual = inline.usual(&LIMITS, 0);
            assert_eq!(usual.is_some(), (1..=500).contains(&length));
            match inline.octowords(&LIMITS) {
                Err(error) => assert_eq!((error, length > 500), (PostError::InlineTooLong, true)),
                Ok(0) => assert_eq!(length, 0),
                Ok(size) => {
                    assert_eq!(usual, Some(size));
                    assert_eq!(bytes_of(&octowords_of(inline, size)), expected(&data), "{length}");
                }
            }
        }
    }

    /// The bytes that a payload of a WQE with `header` octowords before it stores, and those
    /// behind.
    fn stored(payload: impl Payload, size: usize, header: usize) -> Vec<u8> {
        let mut octowords = [wide([!0; 2]); 40];
        let to = octowords.as_mut_ptr();
        let blocks = (header + size).div_ceil(4);
        let (least, most) = if blocks > 4 { (17, 40) } else { (4 * blocks - 3, 4 * blocks) };
        // SAFETY: the size is the payload's, within these bounds, and below 40 octowords.
        unsafe { payload.store(to, size, least.saturating_sub(header), most - header) };
        bytes_of(&octowords.map(wide::narrow))
    }

    #[test]
    fn inline_data_is_stored_without_a_byte_more() {
        let data: Vec<u8> = (1..=255).chain(1..=255).collect();
        for length in 1..=500 {
            let data: Box<[u8]> = data[..length].into();
            let size = segment_octowords(length);
            for header in 1..=5 {
                let stored = stored(Inline(&data), size, header);
                let (segment, behind) = stored.split_at(4 + length);
                assert_eq!(segment, &expected(&data)[..4 + length], "{length} behind {header}");
                assert!(behind.iter().all(|byte| *byte == 0xff), "{length} behind {header}");
            }
        }
    }

    #[test]
    fn lists_are_stored_whole() {
        let sges: [Sge; 30] = core::array::from_fn(|i| Sge::new(i as u64, 8, 1));
        for header in 1..=5 {
            for count in 0..=30 {
                let stored = stored(&sges[..count], count, header);
                let (list, behind) = stored.split_at(16 * count);
                assert_eq!(list, bytes_of(&octowords_of(&sges[..count], count)));
                assert!(behind.iter().all(|byte| *byte == 0xff), "{count} behind {header}");
            }
        }
    }

    #[test]
    fn lists_leave_out_what_is_empty() {
        let sge = |i| Sge::new(i, 8, 1);
        let (empty, long) = (Sge::new(9, 0, 1), Sge::new(9, u32::MAX, 1));
        let full = [sge(1), sge(2), sge(3), sge(4)];
        assert_eq!(full.as_slice().usual(&LIMITS, 0), Some(4));
        assert_eq!(octowords_of(full.as_slice(), 4), full.map(|sge| sge.octoword()));
        let gaps = [empty, sge(1), empty, sge(2)];
        assert_eq!(gaps.as_slice().usual(&LIMITS, 0), None);
        let any = gaps.as_slice().any();
        assert_eq!(any.octowords(&LIMITS), Ok(2));
        assert_eq!(octowords_of(any, 2), [sge(1), sge(2)].map(|sge| sge.octoword()));
        let refused = [sge(1), long];
        assert_eq!(refused.as_slice().usual(&LIMITS, 0), None);
        assert_eq!(refused.as_slice().any().octowords(&LIMITS), Err(PostError::SgeTooLong));
        let many = [sge(1); 5];
        assert_eq!(many.as_slice().usual(&LIMITS, 0), None);
        assert_eq!(many.as_slice().any().octowords(&LIMITS), Err(PostError::TooManySge));
        assert_eq!([empty; 4].as_slice().any().octowords(&LIMITS), Ok(0));
    }
}
