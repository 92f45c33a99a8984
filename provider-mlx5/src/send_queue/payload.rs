//! The data of a request: SGEs, or inline bytes.
//!
//! Data is a sequence of octowords (16 bytes). Each is read from its source and composed in a
//! register, so the writer of a WQE may ask for any of them by index, more than once.

#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::encode::{Promised, first_word};
use super::ethernet::{EthernetOffload, EthernetTso, Segmented, header_octoword, segmented};
use super::run_time::{RunTimeOperation, SendRequest};
use super::sealed::Sealed;
use super::wide::{
    Wide, after_length, bits, copy, few_rounds, load_wide, load32, load64, partial, wide,
};
use super::{SendQueue, Transport};
use crate::format::{ETH_INLINE_L2, ETH_INLINE_START, INLINE_FLAG, MAX_DS};
use crate::mmio::Register;
#[cfg(test)]
use crate::request::Octoword;
use crate::request::{PostError, Sge};
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
    /// What is left of it without empty SGEs.
    #[doc(hidden)]
    type Filled<'b>: Payload;
    /// Octowords of the whole WQE, whose header has `header`. `None` if [`Payload::filled`] has to
    /// decide, because the data is empty, has an empty SGE, or is to be refused.
    #[doc(hidden)]
    fn usual(&self, limits: &Limits, header: usize) -> Option<usize>;
    /// Any data without its empty SGEs, and its size in the WQE in octowords. `list` is for a list
    /// of SGEs. Empty ones are left out, because the device reads a length of zero as 2 GiB.
    ///
    /// # Errors
    /// Why the queue cannot take it.
    #[doc(hidden)]
    fn filled<'b>(
        self,
        limits: &Limits,
        list: &'b mut SgeList,
    ) -> Result<(Self::Filled<'b>, usize), PostError>;
    /// A copy, field by field, to pass to functions out of line. Passing the original would force
    /// it into memory.
    #[doc(hidden)]
    #[inline(always)]
    fn again(&self) -> Self {
        *self
    }
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
    /// `index + 1` is below the size, which `usual` or `filled` has given.
    #[doc(hidden)]
    unsafe fn full(&self, index: usize) -> Wide;
    /// The last octoword, with zeros behind its data.
    ///
    /// # Safety
    /// `index + 1` is the size, which `usual` or `filled` has given.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn last(&self, index: usize) -> Wide {
        // SAFETY: the caller's promise. Only inline data ends within an octoword.
        unsafe { self.full(index) }
    }
    /// Stores all octowords. Of the last one only the data's bytes may be there. `sure` is a
    /// constant, and so is `most`.
    ///
    /// # Safety
    /// `size` is the size, which `usual` or `filled` has given, at least `sure` and at most
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
impl Sealed for AtomicResult {}
impl Sealed for Inline<'_> {}

/// No data: a message of no bytes.
impl Payload for () {
    type Filled<'b> = Self;
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        Some(header)
    }
    #[inline(always)]
    fn filled(self, _: &Limits, _: &mut SgeList) -> Result<(Self, usize), PostError> {
        Ok((self, 0))
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide([0; 2])
    }
}

/// One SGE. Every queue can take one.
impl Payload for Sge {
    type Filled<'b> = Self;
    #[inline(always)]
    fn only_sge(&self) -> Option<usize> {
        Some(0)
    }
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        self.is_usual().then_some(header + 1)
    }
    #[inline(always)]
    fn filled(self, _: &Limits, _: &mut SgeList) -> Result<(Self, usize), PostError> {
        if self.is_too_long() {
            Err(PostError::SgeTooLong)
        } else {
            Ok((self, usize::from(!self.is_empty())))
        }
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide(self.octoword())
    }
}

/// SGEs, gathered in order.
impl Payload for &[Sge] {
    type Filled<'b> = &'b [Sge];
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
    fn filled<'b>(
        self,
        limits: &Limits,
        list: &'b mut SgeList,
    ) -> Result<(&'b [Sge], usize), PostError> {
        if self.len() > list.0.len().min(limits.max_sge as usize) {
            return Err(PostError::TooManySge);
        }
        let (mut filled, mut bits) = (0, 0);
        for sge in self {
            few_rounds();
            if sge.is_empty() {
                continue;
            }
            bits |= sge.first();
            // SAFETY: no more SGEs than the list has places, as just compared, here and below.
            unsafe { list.0.get_unchecked_mut(filled) }.write(*sge);
            filled += 1;
        }
        if bits & UNUSUAL != 0 {
            return Err(PostError::SgeTooLong);
        }
        // SAFETY: so many were written.
        Ok((unsafe { core::slice::from_raw_parts(list.0.as_ptr().cast(), filled) }, filled))
    }
    #[inline(always)]
    unsafe fn full(&self, index: usize) -> Wide {
        // SAFETY: the caller vouches that the size is above the index.
        wide(unsafe { self.get_unchecked(index) }.octoword())
    }
}

/// Whether all SGEs can be written as they are. In a list of a constant length this is one branch.
#[inline(always)]
fn are_usual(list: &[Sge]) -> bool {
    let mut bits = 0;
    let mut ends_at = |at: usize| {
        let sge = list.get(at);
        bits |= sge.map_or(0, Sge::first);
        sge.is_none()
    };
    // The first ones without a loop, as in [`Payload::store`].
    if !(ends_at(0) || ends_at(1) || ends_at(2) || ends_at(3)) {
        for sge in list.iter().skip(4) {
            few_rounds();
            bits |= sge.first();
        }
    }
    bits & UNUSUAL == 0
}

/// Space for the SGEs of a list that are not empty.
#[derive(Debug)]
#[doc(hidden)]
pub struct SgeList([MaybeUninit<Sge>; MAX_DS as usize]);

impl SgeList {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([MaybeUninit::uninit(); MAX_DS as usize])
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
    type Filled<'b> = Self;
    #[inline(always)]
    fn usual(&self, _: &Limits, header: usize) -> Option<usize> {
        Some(header + 1)
    }
    #[inline(always)]
    fn filled(self, _: &Limits, _: &mut SgeList) -> Result<(Self, usize), PostError> {
        Ok((self, 1))
    }
    #[inline(always)]
    unsafe fn full(&self, _: usize) -> Wide {
        wide(Sge::new(self.address, 8, self.lkey).octoword())
    }
}

/// Data that is copied into the WQE at posting; the buffer can be reused at once and needs no
/// registration. Posting is cheapest where the compiler knows the length, as of an array.
///
/// Its segment is four bytes of length, then the data. So octoword `i` has the bytes from `16 i -
/// 4` on.
#[doc(alias = "ibv_wr_set_inline_data")]
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Bytes of an inline segment's first octoword, after the length.
const FIRST: usize = 12;

/// Bytes of its length.
pub(super) const PREFIX: usize = 16 - FIRST;

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
    type Filled<'b> = Self;
    const IS_READ_TO: bool = false;

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
    fn filled(self, limits: &Limits, _: &mut SgeList) -> Result<(Self, usize), PostError> {
        let length = self.0.len();
        if length > limits.max_inline {
            return Err(PostError::InlineTooLong);
        }
        // A segment of no bytes is left out, like an empty SGE.
        Ok((self, if length == 0 { 0 } else { segment_octowords(length) }))
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
            Some(start) => after_length(self.header(), start),
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
            core::hint::assert_unchecked(length + 19 >= 16 * sure && length + PREFIX <= 16 * most);
            to.cast::<u32>().write_volatile((length as u32).wrapping_add(INLINE_FLAG).to_be());
            copy(to.add(PREFIX), self.0, (16 * sure).saturating_sub(19));
        }
    }
}

/// Octowords of an inline segment of `length` bytes, at least one.
#[inline(always)]
pub(super) const fn segment_octowords(length: usize) -> usize {
    // Of a slice's length, so this does not overflow. `div_ceil` would compare the remainder.
    (length + 4 + 15) >> 4
}

impl<'a, D: Payload> Payload for Segmented<'a, D> {
    type Filled<'b> = Segmented<'a, D::Filled<'b>>;
    // Where the header ends is not known to the compiler, so each octoword would be a choice.
    const IS_COMPOSED: bool = false;
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
    fn filled<'b>(
        self,
        limits: &Limits,
        list: &'b mut SgeList,
    ) -> Result<(Self::Filled<'b>, usize), PostError> {
        if !self.fits(limits) {
            return Err(self.too_long);
        }
        let (data, size) = self.data.filled(limits, list)?;
        let size = self.header_octowords() + size;
        if !Self::fits_wqe(size) {
            return Err(PostError::TooManySge);
        }
        Ok((Segmented { header: self.header, data, too_long: self.too_long }, size))
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

/// A request whose data the program has promised to be as [`SendQueue::post_list`] demands: it
/// gives data with that promise.
///
/// [`SendQueue::post_list`]: super::SendQueue::post_list
impl<'r> Promised<&'r SendRequest<'_>> {
    /// The data of a request that has some.
    #[inline(always)]
    pub(super) fn given(&self) -> Data<'r> {
        match self.data {
            // SAFETY: the promise is for all SGEs.
            [one] if !self.inline => Data::One(unsafe { Promised::new(one) }),
            [one] => Data::Inline(InlineSge(one)),
            // SAFETY: as above.
            list if !self.inline => Data::List(unsafe { Promised::new(list) }),
            list => Data::InlineList(InlineList(list)),
        }
    }

    /// The buffer of an atomic's result; `None` if it is none.
    #[inline(always)]
    pub(super) fn result(&self) -> Option<Promised<AtomicResult>> {
        match self.data {
            [sge] if sge.length() == 8 => {
                let result = AtomicResult { address: sge.address(), lkey: sge.lkey() };
                // SAFETY: the SGE names the same memory.
                Some(unsafe { Promised::new(result) })
            }
            _ => None,
        }
    }

    /// The packet that the device is to segment, behind a header.
    #[inline(always)]
    pub(super) fn segmented<'h>(
        &self,
        offload: EthernetOffload,
        mss: u16,
        header: &'h [u8],
    ) -> (EthernetTso<'h>, Promised<Segmented<'h>>)
    where
        'r: 'h,
    {
        let (operation, data) = segmented(offload, mss, header, self.data);
        // SAFETY: the promise is for the SGEs; the header is copied.
        (operation, unsafe { Promised::new(data) })
    }

    /// Takes the first 18 bytes off the data, on a queue that wants them inline, and puts what is
    /// left into `rest`. `None` if there are fewer, or `rest` is too short.
    pub(super) fn take_header<'b, T: Transport, R: Register>(
        &'b self,
        queue: &SendQueue<T, R>,
        rest: &'b mut [Sge],
    ) -> Option<([u8; ETH_INLINE_L2], Promised<SendRequest<'b>>)> {
        if queue.min_inline_header == 0 || !matches!(self.operation, RunTimeOperation::Packet(_)) {
            return None;
        }
        let rest = rest.get_mut(..self.data.len())?;
        rest.copy_from_slice(self.data);
        // SAFETY: the promise is that packets on a queue that wants headers inline are readable.
        let header = unsafe { take_header(rest) }?;
        // SAFETY: what is left is part of what was promised.
        Some((header, unsafe { Promised::new(SendRequest { data: rest, ..***self }) }))
    }
}

/// The data that a request names.
pub(super) enum Data<'r> {
    /// One SGE. Lent, so that it stays whole in memory until it is written.
    One(Promised<&'r Sge>),
    /// No SGE, or several.
    List(Promised<&'r [Sge]>),
    /// One buffer to be copied.
    Inline(InlineSge<'r>),
    /// No buffer to be copied, or several.
    InlineList(InlineList<'r>),
}

/// An SGE of a request with the promise that it is readable now.
pub(super) struct InlineSge<'r>(&'r Sge);

impl<'r> InlineSge<'r> {
    /// The SGE.
    #[inline(always)]
    pub(super) fn sge(&self) -> &'r Sge {
        self.0
    }

    /// Its bytes.
    #[inline(always)]
    pub(super) fn bytes(&self) -> Promised<Inline<'r>> {
        // SAFETY: the promise is that it is readable.
        Promised::to_copy(Inline(unsafe { bytes_of(self.0) }))
    }
}

/// SGEs of a request with the promise that they are readable now.
pub(super) struct InlineList<'r>(&'r [Sge]);

impl InlineList<'_> {
    /// The bytes of all SGEs, joined in `buffer`. `None` if they do not fit.
    pub(super) fn joined<'b>(
        &self,
        buffer: &'b mut [MaybeUninit<u8>],
    ) -> Option<Promised<Inline<'b>>> {
        // Summed without overflow, and compared before a byte is read.
        let length: u64 = self.0.iter().map(|sge| u64::from(sge.length())).sum();
        if length > buffer.len() as u64 {
            return None;
        }
        // SAFETY: the promise is that they are readable, and they fit.
        Some(Promised::to_copy(Inline(unsafe { joined(self.0, buffer) })))
    }
}

/// The bytes that an SGE names.
///
/// # Safety
/// They are readable, and nothing writes them meanwhile.
#[inline(always)]
unsafe fn bytes_of<'a>(sge: &Sge) -> &'a [u8] {
    if sge.is_empty() {
        return &[];
    }
    let start = core::ptr::with_exposed_provenance(sge.address() as usize);
    // SAFETY: the caller vouches for it; memory that exists does not wrap around.
    unsafe { core::slice::from_raw_parts(start, sge.length() as usize) }
}

/// Joins the bytes of several SGEs in `buffer`.
///
/// # Safety
/// The SGEs' bytes are readable, and together fit into `buffer`.
unsafe fn joined<'a>(data: &[Sge], buffer: &'a mut [MaybeUninit<u8>]) -> &'a [u8] {
    let mut length = 0;
    for sge in data {
        // SAFETY: the caller vouches for it.
        let bytes = unsafe { bytes_of(sge) };
        // SAFETY: the sum of all lengths is at most the buffer's.
        unsafe {
            let to = buffer.as_mut_ptr().add(length).cast::<u8>();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        length += bytes.len();
    }
    // SAFETY: the first `length` bytes were just written.
    unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), length) }
}

/// Takes the first 18 bytes off the SGEs. `None` if they have fewer.
///
/// # Safety
/// The SGEs' bytes are readable.
unsafe fn take_header(data: &mut [Sge]) -> Option<[u8; ETH_INLINE_L2]> {
    let mut header = [0; ETH_INLINE_L2];
    let mut left = &mut header[..];
    for sge in data {
        let length = left.len().min(sge.length() as usize);
        // SAFETY: the caller vouches for it; these are the first bytes of the SGE.
        let bytes = unsafe { bytes_of(&sge.with_length(length as u32)) };
        let (now, later) = left.split_at_mut_checked(length)?;
        now.copy_from_slice(bytes);
        left = later;
        *sge = sge.skip(length as u32);
    }
    left.is_empty().then_some(header)
}

#[cfg(test)]
mod tests;
