//! What a request carries: pieces of registered memory, or the bytes themselves.

use super::encode::first_word;
use super::sealed::Sealed;
use super::wide::{self, Wide, WideBlock, wide};
use crate::format::InlineHeader;
use crate::request::{Octoword, PostError, Sge};

/// What a queue was created for.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Limits {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
}

/// For each number of octowords there may be room for (0 to 4): inline data is quick if its length minus 8 is below this.
pub(super) fn quick_inline(max_inline: u32) -> [u32; 5] {
    let bound = |room: u32| (16 * room).saturating_sub(4).min(max_inline).saturating_sub(7);
    [0, bound(1), bound(2), bound(3), bound(4)]
}

/// The data of a request. Implemented by [`Sge`], lists of them, [`Inline`] and `()`; not for others to implement.
pub trait Payload: Copy + Sealed {
    /// Whether the data can be composed in registers. `below` is [`quick_inline`]'s bound for the room that there is.
    #[doc(hidden)]
    fn is_quick(&self, below: u32) -> bool;
    /// Size in the WQE of data that is quick.
    #[doc(hidden)]
    fn quick_octowords(&self) -> u32;
    /// The octowords of data that is quick, zero behind them.
    ///
    /// # Safety
    /// The data is quick, for this room.
    #[doc(hidden)]
    unsafe fn quick(&self, room: usize) -> [Octoword; 4];
    /// [`Payload::quick`] in vector registers.
    ///
    /// # Safety
    /// As for [`Payload::quick`].
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn quick_wide(&self, room: usize) -> WideBlock {
        // SAFETY: passed on to the caller.
        unsafe { self.quick(room) }.map(wide)
    }
    /// The same data, put together anew: for calls out of line, which would keep the original in memory otherwise.
    #[doc(hidden)]
    #[inline(always)]
    fn again(&self) -> Self {
        *self
    }
    /// Whether the data can be composed in registers, in the room that there is and one block more.
    #[doc(hidden)]
    #[inline(always)]
    fn is_double(&self, _room: usize, _max_inline: u32) -> bool {
        false
    }
    /// The octowords of such data: those in the room, and those in the next block.
    ///
    /// # Safety
    /// The data is double, for this room.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn double(&self, _room: usize) -> [WideBlock; 2] {
        [[wide([0; 2]); 4]; 2]
    }
    /// Size in the WQE of any data, if the queue can take it.
    #[doc(hidden)]
    fn octowords(&self, limits: &Limits) -> Result<u32, PostError>;
    /// Writes the octowords of any data.
    ///
    /// # Safety
    /// `cursor` stands where they belong, in blocks that were reserved for all of them.
    #[doc(hidden)]
    unsafe fn write(&self, cursor: &mut Cursor);
}

/// A place in the ring, moving on by octowords and around the ring's end.
#[derive(Debug)]
#[doc(hidden)]
pub struct Cursor {
    ring: *mut u8,
    /// Bytes of the ring minus one; the size is a power of two.
    mask: usize,
    offset: usize,
}

impl Cursor {
    #[inline(always)]
    pub(crate) fn new(ring: *mut u8, mask: usize, offset: usize) -> Self {
        Self { ring, mask, offset: offset & mask }
    }

    /// Stores one octoword and moves on.
    ///
    /// # Safety
    /// The ring is valid for writes, and the octoword here belongs to the request that is being written.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, value: Octoword) {
        // SAFETY: the masked offset is a multiple of 16 below the ring's size.
        unsafe { wide::store(self.ring.add(self.offset).cast(), value) };
        self.offset = (self.offset + 16) & self.mask;
    }

    /// Stores zeros up to the end of the block.
    ///
    /// # Safety
    /// As for [`Cursor::put`], for the rest of the block.
    #[inline(always)]
    pub(crate) unsafe fn pad(&mut self) {
        while self.offset % 64 != 0 {
            // SAFETY: passed on to the caller.
            unsafe { self.put([0; 2]) };
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
    #[inline(always)]
    fn is_quick(&self, _: u32) -> bool {
        true
    }
    #[inline(always)]
    fn quick_octowords(&self) -> u32 {
        0
    }
    #[inline(always)]
    unsafe fn quick(&self, _: usize) -> [Octoword; 4] {
        [[0; 2]; 4]
    }
    #[inline(always)]
    fn octowords(&self, _: &Limits) -> Result<u32, PostError> {
        Ok(0)
    }
    #[inline(always)]
    unsafe fn write(&self, _: &mut Cursor) {}
}

/// One piece of memory. Every queue can take one.
impl Payload for Sge {
    #[inline(always)]
    fn again(&self) -> Self {
        *self
    }
    #[inline(always)]
    fn is_quick(&self, _: u32) -> bool {
        self.is_usual()
    }
    #[inline(always)]
    fn quick_octowords(&self) -> u32 {
        1
    }
    #[inline(always)]
    unsafe fn quick(&self, _: usize) -> [Octoword; 4] {
        [self.octoword(), [0; 2], [0; 2], [0; 2]]
    }
    fn octowords(&self, _: &Limits) -> Result<u32, PostError> {
        if self.is_too_long() {
            Err(PostError::SgeTooLong)
        } else {
            Ok(u32::from(!self.is_empty()))
        }
    }
    unsafe fn write(&self, cursor: &mut Cursor) {
        if !self.is_empty() {
            // SAFETY: passed on to the caller.
            unsafe { cursor.put(self.octoword()) };
        }
    }
}

/// Pieces of memory, gathered in order. Empty ones are left out: a length of zero can mean 2 GiB to the device.
impl Payload for &[Sge] {
    #[inline(always)]
    fn is_quick(&self, _: u32) -> bool {
        matches!(self, [one] if one.is_usual())
    }
    #[inline(always)]
    fn quick_octowords(&self) -> u32 {
        1
    }
    #[inline(always)]
    unsafe fn quick(&self, room: usize) -> [Octoword; 4] {
        // SAFETY: a piece of memory fits into any room.
        self.first().map_or([[0; 2]; 4], |one| unsafe { one.quick(room) })
    }
    fn octowords(&self, limits: &Limits) -> Result<u32, PostError> {
        if self.len() > limits.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        let mut count = 0;
        for sge in *self {
            count += sge.octowords(limits)?;
        }
        Ok(count)
    }
    unsafe fn write(&self, cursor: &mut Cursor) {
        for sge in self.iter().filter(|sge| !sge.is_empty()) {
            // SAFETY: passed on to the caller.
            unsafe { cursor.put(sge.octoword()) };
        }
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

impl AtomicResult {
    #[inline(always)]
    fn sge(self) -> Sge {
        Sge::new(self.address, 8, self.lkey)
    }
}

impl Payload for AtomicResult {
    #[inline(always)]
    fn is_quick(&self, _: u32) -> bool {
        true
    }
    #[inline(always)]
    fn quick_octowords(&self) -> u32 {
        1
    }
    #[inline(always)]
    unsafe fn quick(&self, room: usize) -> [Octoword; 4] {
        // SAFETY: a piece of 8 bytes is quick.
        unsafe { self.sge().quick(room) }
    }
    fn octowords(&self, _: &Limits) -> Result<u32, PostError> {
        Ok(1)
    }
    unsafe fn write(&self, cursor: &mut Cursor) {
        // SAFETY: passed on to the caller.
        unsafe { cursor.put(self.sge().octoword()) };
    }
}

/// Data that is copied into the WQE at posting; the buffer can be reused at once and needs no registration.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Bytes of an inline segment's first octoword, after the length.
const FIRST: usize = 12;

impl Inline<'_> {
    /// The length, with the flag that says "inline", as it lies in memory.
    #[inline(always)]
    fn header(&self) -> u64 {
        first_word(InlineHeader::new(self.0.len() as u32).byte_count.get())
    }
}

impl Payload for Inline<'_> {
    #[inline(always)]
    fn is_quick(&self, below: u32) -> bool {
        let length = self.0.len();
        // From 8 bytes on, so that all loads are of 4 and 8 bytes; in one comparison.
        length.wrapping_sub(8) < below as usize
    }

    #[inline(always)]
    fn quick_octowords(&self) -> u32 {
        InlineHeader::segment_ds(self.0.len() as u32)
    }

    #[inline(always)]
    unsafe fn quick(&self, room: usize) -> [Octoword; 4] {
        match <&[u8; 16]>::try_from(self.0) {
            Ok(data) => quick_octowords(data, room, self.header()),
            Err(_) => quick_octowords(self.0, room, self.header()),
        }
    }

    /// The lengths that most messages have take a way of their own, on which the length is a constant.
    #[inline(always)]
    unsafe fn quick_wide(&self, room: usize) -> WideBlock {
        if let Ok(data) = <&[u8; 16]>::try_from(self.0) {
            return whole_octowords(data, self.header());
        }
        if let Ok(data) = <&[u8; 32]>::try_from(self.0) {
            return whole_octowords(data, self.header());
        }
        quick_octowords(self.0, room, self.header()).map(wide)
    }

    #[inline(always)]
    fn is_double(&self, room: usize, max_inline: u32) -> bool {
        let length = self.0.len();
        // From one byte more than the room takes to 64 bytes more; and at least 16, for the last load.
        let beyond = length.wrapping_sub(16 * room - 3);
        room > 1 && beyond < 64 && length <= max_inline as usize
    }

    /// A cache line, the length that most such messages have, takes a way of its own, too.
    #[inline(always)]
    unsafe fn double(&self, room: usize) -> [WideBlock; 2] {
        match <&[u8; 64]>::try_from(self.0) {
            Ok(data) => double_blocks(data, room, self.header()),
            Err(_) => double_blocks(self.0, room, self.header()),
        }
    }

    fn octowords(&self, limits: &Limits) -> Result<u32, PostError> {
        let length = self.0.len();
        if length > limits.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        // A segment of no bytes is left out, like an empty piece of memory.
        Ok(if length == 0 { 0 } else { InlineHeader::segment_ds(length as u32) })
    }

    #[inline(always)]
    unsafe fn write(&self, cursor: &mut Cursor) {
        let data = self.0;
        let (start, mut rest) = data.split_at(data.len().min(FIRST));
        if data.is_empty() {
            return;
        }
        let first = if let Ok(start) = <&[u8; FIRST]>::try_from(start) {
            [u64::from(load32(start, 0)) << 32, load64(start, 4)]
        } else {
            let (low, high) = short(start);
            [low << 32, low >> 32 | high << 32]
        };
        // SAFETY: passed on to the caller.
        unsafe { cursor.put([self.header() | first[0].to_le(), first[1].to_le()]) };
        while let Some((octoword, more)) = rest.split_first_chunk::<16>() {
            // SAFETY: passed on to the caller; `[u8; 16]` and an octoword have the same size, all values valid.
            unsafe { cursor.put(core::mem::transmute::<[u8; 16], Octoword>(*octoword)) };
            rest = more;
        }
        if !rest.is_empty() {
            // SAFETY: passed on to the caller.
            unsafe { cursor.put(last_octoword(data, rest.len())) };
        }
    }
}

/// The octowords of an inline segment that ends in the block after the one with `room` octowords for it; `header` is its
/// length.
#[inline(always)]
fn double_blocks(data: &[u8], room: usize, header: u64) -> [WideBlock; 2] {
    const NONE: Octoword = [0; 2];
    let start = 16 * room - 4;
    let full = |i: usize| full_octoword(data, i);
    let in_room = |i: usize| if i < room { full(16 * i - 4) } else { NONE };
    let head = first_octoword(data, header);
    let first = [head, wide(in_room(1)), wide(in_room(2)), wide(in_room(3))];
    let last = |i: usize| last_octoword(data, data.len() - start - 16 * i);
    let next = match data.len() - start {
        ..=16 => [last(0), NONE, NONE, NONE].map(wide),
        17..=32 => [full(start), last(1), NONE, NONE].map(wide),
        33..=48 => [full(start), full(start + 16), last(2), NONE].map(wide),
        _ => [full(start), full(start + 16), full(start + 32), last(3)].map(wide),
    };
    [first, next]
}

#[inline(always)]
fn load64(bytes: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: every caller has compared the length; `debug_assert` repeats it.
    unsafe { u64::from_le(bytes.as_ptr().add(at).cast::<u64>().read_unaligned()) }
}

#[inline(always)]
fn load32(bytes: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= bytes.len());
    // SAFETY: as in `load64`.
    unsafe { u32::from_le(bytes.as_ptr().add(at).cast::<u32>().read_unaligned()) }
}

/// The first octoword of an inline segment of at least 16 bytes; `header` is its length.
#[inline(always)]
fn first_octoword(data: &[u8], header: u64) -> Wide {
    data.first_chunk().map_or(wide([0; 2]), |start| wide::behind_length(header, start))
}

/// Sixteen bytes of data.
#[inline(always)]
fn full_octoword(data: &[u8], at: usize) -> Octoword {
    [load64(data, at).to_le(), load64(data, at + 8).to_le()]
}

/// The octowords of an inline segment of 16 or 32 bytes; `header` is its length.
#[inline(always)]
fn whole_octowords<const N: usize>(data: &[u8; N], header: u64) -> WideBlock {
    const { assert!(N == 16 || N == 32) };
    let head = first_octoword(data, header);
    let last = wide([u64::from(load32(data, N - 4)).to_le(), 0]);
    match N {
        16 => [head, last, wide([0; 2]), wide([0; 2])],
        _ => [head, wide(full_octoword(data, 12)), last, wide([0; 2])],
    }
}

/// The octowords of an inline segment of 8 to `16 * room - 4` bytes; `header` is its length.
#[inline(always)]
fn quick_octowords(data: &[u8], room: usize, header: u64) -> [Octoword; 4] {
    let words = quick_words(data, room).map(u64::to_le);
    let at = |i: usize| [words[2 * i], words[2 * i + 1]];
    [[header | words[0], words[1]], at(1), at(2), at(3)]
}

/// The words of an inline segment of 8 to `16 * room - 4` bytes, the first with room for the length below, all others
/// zero where the data ends. Word `i` holds bytes `8 i - 4` up to `8 i + 4`.
///
/// Only whole loads within the data, the last one shifted into place, so that nothing is read back from narrower stores.
#[inline(always)]
fn quick_words(data: &[u8], room: usize) -> [u64; 8] {
    let length = data.len();
    let last = |end: usize| load64(data, length - 8) >> ((8 * (end - length)) as u32 & 63);
    let first = u64::from(load32(data, 0)) << 32;
    if room < 2 || length <= 12 {
        return [first, last(12), 0, 0, 0, 0, 0, 0];
    }
    let second = load64(data, 4);
    if length <= 20 {
        return [first, second, last(20), 0, 0, 0, 0, 0];
    }
    let third = load64(data, 12);
    if room < 3 || length <= 28 {
        return [first, second, third, last(28), 0, 0, 0, 0];
    }
    let fourth = load64(data, 20);
    if length <= 36 {
        return [first, second, third, fourth, last(36), 0, 0, 0];
    }
    let fifth = load64(data, 28);
    if room < 4 || length <= 44 {
        return [first, second, third, fourth, fifth, last(44), 0, 0];
    }
    let sixth = load64(data, 36);
    if length <= 52 {
        return [first, second, third, fourth, fifth, sixth, last(52), 0];
    }
    [first, second, third, fourth, fifth, sixth, load64(data, 44), last(60)]
}

/// Up to 15 bytes, first byte lowest, zero above: lower and upper half.
#[inline(never)]
fn short(data: &[u8]) -> (u64, u64) {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(data) {
        *to = *from;
    }
    (load64(&bytes, 0), load64(&bytes, 8))
}

/// The last `length` (1 to 16) bytes of `data`, and zeros after them.
#[inline(always)]
fn last_octoword(data: &[u8], length: usize) -> Octoword {
    let (low, high) = match data.last_chunk::<16>() {
        Some(last) => {
            let value = u128::from_le_bytes(*last) >> ((8 * (16 - length)) as u32 & 127);
            (value as u64, (value >> 64) as u64)
        }
        None => short(data.get(data.len().saturating_sub(length)..).unwrap_or(&[])),
    };
    [low.to_le(), high.to_le()]
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn quick_data_is_within_the_limit() {
        let data = [0; 60];
        for max_inline in 0..64 {
            let quick = |n: usize| Inline(&data[..n]).is_quick(quick_inline(max_inline as u32)[3]);
            assert!((0..=60).all(|n| quick(n) == (n >= 8 && n <= max_inline && n <= 44)));
        }
    }

    #[test]
    fn quick_data_of_every_length() {
        let data: Vec<u8> = (1..=60).collect();
        for room in 1..=4 {
            for length in 0..=60 {
                let inline = Inline(&data[..length]);
                let below = quick_inline(1000)[room];
                assert_eq!(inline.is_quick(below), (8..=16 * room - 4).contains(&length));
                if inline.is_quick(below) {
                    let mut bytes = expected(inline.0);
                    assert_eq!(inline.quick_octowords() as usize * 16, bytes.len());
                    bytes.resize(64, 0);
                    // SAFETY: just asked.
                    let quick = unsafe { inline.quick(room) };
                    assert_eq!(bytes_of(&quick), bytes, "{length} bytes, room {room}");
                    // SAFETY: as above.
                    let wide = unsafe { inline.quick_wide(room) }.map(wide::narrow);
                    assert_eq!(wide, quick, "{length} bytes, room {room}");
                }
            }
        }
    }

    #[test]
    fn double_data_of_every_length() {
        let data: Vec<u8> = (1..=130).collect();
        for room in 1..=4 {
            for length in 0..=130 {
                let inline = Inline(&data[..length]);
                let fits = (16 * room - 3..=16 * room + 60).contains(&length);
                assert_eq!(inline.is_double(room, 1000), fits && room > 1);
                if inline.is_double(room, 1000) {
                    // SAFETY: just asked.
                    let blocks = unsafe { inline.double(room) };
                    let [first, next] = blocks.map(|block| block.map(wide::narrow));
                    let mut bytes = bytes_of(&first[..room]);
                    bytes.extend(bytes_of(&next));
                    let mut wanted = expected(inline.0);
                    wanted.resize(16 * room + 64, 0);
                    assert_eq!(bytes, wanted, "{length} bytes, room {room}");
                }
            }
        }
    }

    #[test]
    fn general_data_of_every_length() {
        let data: Vec<u8> = (0..255).chain(0..255).collect();
        #[repr(align(64))]
        struct Ring([Octoword; 64]);
        let mut ring = Ring([[0xdead; 2]; 64]);
        for length in 1..data.len() {
            let mut cursor = Cursor::new(ring.0.as_mut_ptr().cast(), 1023, 0);
            // SAFETY: the ring has 1024 bytes, more than any of the segments.
            unsafe { Inline(&data[..length]).write(&mut cursor) };
            let bytes = expected(&data[..length]);
            assert_eq!(cursor.offset, bytes.len());
            assert_eq!(bytes_of(&ring.0[..bytes.len() / 16]), bytes, "{length} bytes");
        }
    }
}
