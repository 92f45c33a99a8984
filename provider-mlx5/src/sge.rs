//! Buffers of requests, kept in the format of a WQE.

use core::fmt;

use crate::request::Octoword;

/// The longest buffer that one scatter/gather entry can name: 2 GiB - 1.
pub const MAX_SGE_LENGTH: u32 = (1 << 31) - 1;

/// A scatter/gather entry (SGE): a span of registered memory (`struct ibv_sge`).
///
/// It is kept as the data segment that the device reads, so posting is a copy. The fields are
/// converted to big-endian order once, when the SGE is created, and not with each post.
///
/// ```
/// use uverbs_mlx5::request::Sge;
///
/// let sge = Sge::new(0x1000, 64, 7);
/// assert_eq!((sge.address(), sge.length(), sge.lkey()), (0x1000, 64, 7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[doc(alias = "ibv_sge")]
#[doc(alias = "ibv_wr_set_sge")]
pub struct Sge(Octoword);

/// Bit 31 of the length as it is in memory. The device does not define it; here it marks an SGE
/// that must not be written to a WQE unchanged.
pub(crate) const UNUSUAL: u32 = (1_u32 << 31).to_be();

/// The length of an empty SGE. Zero would be 2 GiB to the device.
const EMPTY: u32 = UNUSUAL;

/// The length that represents all lengths above [`MAX_SGE_LENGTH`].
const TOO_LONG: u32 = u32::MAX;

impl Sge {
    /// `length` bytes at `address`, in the memory region's address space, under its local key
    /// `lkey`.
    ///
    /// A length of 0 is allowed and means no entry. One above `MAX_SGE_LENGTH` is refused when
    /// the SGE is posted ([`PostError::SgeTooLong`](crate::request::PostError::SgeTooLong)).
    #[inline(always)]
    pub const fn new(address: u64, length: u32, lkey: u32) -> Self {
        Self([in_memory(encoded(length), lkey.to_be()), address.to_be()])
    }

    /// Address, in the memory region's address space.
    #[inline(always)]
    pub const fn address(&self) -> u64 {
        u64::from_be(self.0[1])
    }

    /// Length in bytes. `u32::MAX` for any that is too long.
    #[inline(always)]
    pub const fn length(&self) -> u32 {
        match self.first() {
            EMPTY => 0,
            length => u32::from_be(length),
        }
    }

    /// Local key of the memory region.
    #[inline(always)]
    pub const fn lkey(&self) -> u32 {
        let [_, lkey] = halves(self.0[0]);
        u32::from_be(lkey)
    }

    /// The first `length` bytes of its memory.
    #[inline(always)]
    #[must_use]
    pub const fn with_length(&self, length: u32) -> Self {
        let [_, lkey] = halves(self.0[0]);
        Self([in_memory(encoded(length), lkey), self.0[1]])
    }

    /// The same length and key, at `address`.
    #[inline(always)]
    #[must_use]
    pub const fn with_address(&self, address: u64) -> Self {
        Self([self.0[0], address.to_be()])
    }

    /// The part after the first `length` bytes; empty if there is none.
    #[must_use]
    pub const fn skip(&self, length: u32) -> Self {
        let rest = self.length().saturating_sub(length);
        self.with_address(self.address().wrapping_add(length as u64)).with_length(rest)
    }

    /// The sixteen bytes as two words, for keeping an SGE in atomics. The first word depends only
    /// on length and key, the second only on the address.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; 2] {
        self.0
    }

    /// The SGE of these words, which [`Sge::to_words`] returned.
    #[inline(always)]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// The length as it is in memory.
    #[inline(always)]
    pub(crate) const fn first(&self) -> u32 {
        let [length, _] = halves(self.0[0]);
        length
    }

    /// Whether the SGE can be written to a WQE unchanged: it is neither empty nor too long.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        self.first() & UNUSUAL == 0
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first() == EMPTY
    }

    #[inline(always)]
    pub(crate) fn is_too_long(&self) -> bool {
        !self.is_usual() && !self.is_empty()
    }

    /// The data segment. The SGE must be usual.
    #[inline(always)]
    pub(crate) fn octoword(&self) -> Octoword {
        debug_assert!(self.is_usual());
        self.0
    }
}

/// An empty SGE.
impl Default for Sge {
    fn default() -> Self {
        Self::new(0, 0, 0)
    }
}

impl fmt::Debug for Sge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sge")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("length", &self.length())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish()
    }
}

/// The length in the encoding of an SGE.
#[inline(always)]
const fn encoded(length: u32) -> u32 {
    // Neither empty nor too long, in one comparison.
    if length as i32 > 0 { length.to_be() } else { unusual(length) }
}

#[cold]
const fn unusual(length: u32) -> u32 {
    if length == 0 { EMPTY } else { TOO_LONG }
}

/// Two words as the eight bytes that they are in memory, the first word first.
#[inline(always)]
const fn in_memory(first: u32, second: u32) -> u64 {
    let (first, second) = (first as u64, second as u64);
    if cfg!(target_endian = "little") { second << 32 | first } else { first << 32 | second }
}

/// The inverse of [`in_memory`].
#[inline(always)]
const fn halves(both: u64) -> [u32; 2] {
    let (low, high) = (both as u32, (both >> 32) as u32);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DataSegment;
    use crate::request::octoword;

    #[test]
    fn a_usual_sge_is_the_formats_segment() {
        for length in [1, 0x1122_3344, MAX_SGE_LENGTH] {
            let sge = Sge::new(0x0102_0304_0506_0708, length, 0x5566_7788);
            assert!(sge.is_usual() && !sge.is_empty() && !sge.is_too_long());
            let segment = DataSegment::new(0x0102_0304_0506_0708, length, 0x5566_7788);
            assert_eq!(sge.octoword(), octoword(segment));
            assert_eq!(sge.length(), length);
        }
    }

    #[test]
    fn empty_and_too_long_sges_are_neither_usual_nor_each_other() {
        let empty = Sge::new(5, 0, 6);
        assert!(empty.is_empty() && !empty.is_usual() && !empty.is_too_long());
        assert_eq!((empty.address(), empty.length(), empty.lkey()), (5, 0, 6));
        assert_eq!(Sge::default(), Sge::new(0, 0, 0));
        for length in [1 << 31, (1 << 31) + 1, u32::MAX] {
            let long = Sge::new(5, length, 6);
            assert!(long.is_too_long() && !long.is_usual() && !long.is_empty());
            assert_eq!((long.address(), long.length(), long.lkey()), (5, u32::MAX, 6));
        }
    }

    #[test]
    fn an_sge_can_be_cut_and_kept_in_words() {
        let sge = Sge::new(0x1000, 64, 7);
        for length in [0, 1, 64, u32::MAX] {
            assert_eq!(sge.with_length(length), Sge::new(0x1000, length, 7));
        }
        for length in [0, 1, 64, 65] {
            let rest = 64_u32.saturating_sub(length);
            assert_eq!(sge.skip(length), Sge::new(0x1000 + u64::from(length), rest, 7));
        }
        assert_eq!(sge.with_address(0x2040), Sge::new(0x2040, 64, 7));
        assert_eq!(sge.with_length(0).with_address(0x2040), Sge::new(0x2040, 0, 7));
        assert_eq!(Sge::from_words(sge.to_words()), sge);
        assert_eq!(sge.to_words()[1], sge.with_length(9).to_words()[1]);
    }

    #[test]
    fn it_shows_its_fields() {
        let shown = format!("{:?}", Sge::new(0x1000, 64, 7));
        assert_eq!(shown, "Sge { address: 0x1000, length: 64, lkey: 0x7 }");
    }
}
