//! Encoding requests into blocks of 64 bytes.
//!
//! A WQE is a sequence of octowords (16 bytes): the control segment, the operation's segments, then
//! the data. There are two ways to store one. A request that is posted alone is composed in vector
//! registers, block by block, and each block is stored whole to the ring and to the register, so
//! that the copy to the register need not wait for narrower stores: [`composed`]. The block in
//! which the header ends is a constant of the operation. If the block in which the data ends is a
//! constant, too, all of this is code without branches. A request that only goes to the ring is
//! stored there octoword by octoword: [`Wqe::store`].

#![allow(unsafe_code)]

mod promised;

use core::marker::PhantomData;
use core::mem::MaybeUninit;

pub(super) use promised::Image;

use super::Block;
use super::operation::Operation;
use super::payload::{Inline, Limits, Payload, SgeList, segment_octowords};
use super::wide::{Wide, WideBlock, narrow, or, store_composed, store_octowords, wide};
use crate::format::{ControlSegment, Fence, MAX_DS, MAX_READ_SGE, Opcode};
use crate::request::{Octoword, PostError, PostFlags};

/// Octowords of the control segment and the operation's segments, which precede the data.
pub(super) const fn header<O: Operation>() -> usize {
    1 + O::OCTOWORDS
}

/// Blocks that the header fills, before the one in which the data starts.
pub(super) const fn full_blocks<O: Operation>() -> usize {
    header::<O>() / 4
}

/// Blocks of a request whose data ends in the block in which it starts.
pub(super) const fn short_blocks<O: Operation>() -> usize {
    full_blocks::<O>() + 1
}

/// Octowords of the header in the block in which the data starts.
const fn headed<O: Operation>() -> usize {
    header::<O>() % 4
}

/// Octowords for data in the block in which the data starts.
pub(super) const fn data_space<O: Operation>() -> usize {
    4 - headed::<O>()
}

/// The second word of a control segment, as stored: mode byte and immediate.
#[inline(always)]
pub(super) const fn mode_word(mode: u8, immediate: u32) -> u64 {
    // Each part is byte-swapped by itself, so that the compiler drops both swaps of an immediate
    // that is in network byte order already.
    if cfg!(target_endian = "little") {
        (immediate.to_be() as u64) << 32 | (mode as u64) << 24
    } else {
        (mode as u64) << 32 | immediate as u64
    }
}

/// A control segment's octoword with more flags.
#[inline(always)]
pub(super) fn with_flags(control: Wide, flags: PostFlags) -> Wide {
    or(control, wide([0, mode_word(flags.bits(), 0)]))
}

/// A control segment's octoword with the fence that the request before it requires. One that the
/// request asks for replaces it: both bits together would name no fence.
#[inline(always)]
pub(super) fn with_fence(control: Wide, fence: u8) -> Wide {
    const FENCE: u64 = mode_word(Fence::MASK, 0);
    let asks = narrow(control)[1] & FENCE != 0;
    if fence == 0 || asks { control } else { or(control, wide([0, mode_word(fence, 0)])) }
}

/// Where the id of a request comes from.
pub trait RequestId: Copy {
    /// The id. Called once, when the request can no longer fail and before the device can see it.
    /// So an implementation can change here what has to change at the moment of posting.
    fn take(self) -> u64;
}

impl RequestId for u64 {
    #[inline(always)]
    fn take(self) -> u64 {
        self
    }
}

/// The first eight bytes of a control segment in memory order, with only the first word set.
#[inline(always)]
pub(super) const fn first_word(word: u32) -> u64 {
    if cfg!(target_endian = "little") { word.to_be() as u64 } else { (word as u64) << 32 }
}

/// The first eight bytes of a control segment in memory order, with only the second word set, to at
/// most 255.
#[inline(always)]
pub(super) const fn second_word(word: u32) -> u64 {
    if cfg!(target_endian = "little") { (word as u64) << 56 } else { word as u64 }
}

/// What a request is made of, with the program's promise for the memory that it names.
///
/// The public `unsafe` functions make one of what the caller gives them. What is taken out of it
/// has the promise, too; nothing else has. So functions that take one need no promise of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promised<X>(X);

impl<X> Promised<X> {
    /// # Safety
    /// What [`SendQueue::post`](super::SendQueue::post) demands holds for the memory that `named`
    /// names, and for what it lends. For a [`SendRequest`](super::SendRequest) it is what
    /// [`SendQueue::post_list`](super::SendQueue::post_list) demands, and for the data of a receive
    /// what `build` of its queue does.
    #[inline(always)]
    pub(crate) unsafe fn new(named: X) -> Self {
        Self(named)
    }
}

/// A request, and how many octowords its WQE has.
#[derive(Clone, Copy)]
pub(super) struct Request<O, P> {
    operation: O,
    payload: P,
    /// The header's, and what [`Payload::usual`] or [`Payload::filled`] said of the payload.
    octowords: usize,
    flags: PostFlags,
}

impl<O: Operation, P: Payload> Request<O, P> {
    /// A request of any data, without its empty SGEs.
    ///
    /// # Errors
    /// Why the queue or the operation refuses the data.
    #[inline(always)]
    pub(super) fn new<'b>(
        operation: O,
        payload: impl Payload<Filled<'b> = P>,
        flags: PostFlags,
        limits: &Limits,
        list: &'b mut SgeList,
    ) -> Result<Self, PostError> {
        let (payload, size) = payload.filled(limits, list)?;
        let octowords = header::<O>() + size;
        let request = Self { operation, payload, octowords, flags };
        // The queue's limits keep SGEs and inline data within a WQE. A TSO header and SGEs together
        // may exceed it.
        if request.reads_too_much() || octowords > MAX_DS as usize {
            return Err(PostError::TooManySge);
        }
        Ok(request)
    }

    /// If the next request has to wait for this one: what kind of change this is.
    #[inline(always)]
    pub(super) fn fences(&self) -> Option<u8> {
        O::FENCES_NEXT.then(|| self.operation.kind())
    }

    /// Whether the fast path may take the request.
    #[inline(always)]
    pub(super) fn is_direct(&self) -> bool {
        !O::FENCES_NEXT && !self.reads_too_much()
    }

    /// Whether a READ has more SGEs than the device takes.
    #[inline(always)]
    fn reads_too_much(&self) -> bool {
        if !P::IS_READ_TO || self.octowords <= header::<O>() + MAX_READ_SGE as usize {
            return false;
        }
        crate::hint::cold_path();
        self.operation.opcode() == Opcode::RDMA_READ
    }

    /// Whether the data ends in the block in which it starts: in the first [`short_blocks`].
    #[inline(always)]
    pub(super) fn is_short(&self) -> bool {
        let has_data = data_space::<O>() < 4 || self.octowords > header::<O>();
        has_data && self.octowords <= 4 * short_blocks::<O>()
    }

    /// Octowords of the whole WQE.
    #[inline(always)]
    pub(super) fn octowords(&self) -> usize {
        self.octowords
    }

    /// Blocks of the whole WQE.
    #[inline(always)]
    pub(super) fn blocks(&self) -> usize {
        self.octowords.wrapping_add(3) / 4
    }

    /// The request's part of its control segment: everything but the queue's number and mode, which
    /// all requests share. `place` is the counter at its bits in the first word.
    #[inline(always)]
    pub(super) fn control(&self, place: u32) -> Octoword {
        let operation = &self.operation;
        let first = ControlSegment::first_word(operation.modifier(), 0, operation.opcode());
        let fixed = first_word(first.wrapping_add(place)) | second_word(self.octowords as u32);
        [fixed, mode_word(self.flags.bits(), operation.immediate().get())]
    }

    /// The request with a complete control segment, on the queue of number `qpn`.
    #[inline(always)]
    pub(super) fn with_control(self, control: Wide, qpn: u32) -> Wqe<O, P> {
        Wqe { request: self, control, qpn }
    }
}

/// Space for the longest WQE.
pub(super) type Longest = [WideBlock; (MAX_DS as usize).div_ceil(4)];

impl<O: Operation, P: Payload> Promised<Request<O, P>> {
    /// The request's blocks, but for index and number in the control segment.
    #[inline(always)]
    pub(super) fn image<'b>(
        &self,
        qpn: u32,
        buffer: &'b mut MaybeUninit<Longest>,
    ) -> Promised<&'b [WideBlock]> {
        let request = self.0;
        Promised(request.with_control(wide(request.control(0)), qpn).image_in(buffer))
    }
}

/// A request that is to be written.
#[derive(Clone, Copy)]
pub(super) struct Wqe<O, P> {
    request: Request<O, P>,
    control: Wide,
    qpn: u32,
}

impl<O: Operation, P: Payload> Wqe<O, P> {
    /// Octoword `at` of the header.
    #[inline(always)]
    fn head(&self, at: usize) -> Wide {
        match at {
            0 => self.control,
            _ => wide(self.request.operation.octoword(at - 1, self.qpn)),
        }
    }

    /// The part of the header that is in the block in which it ends.
    #[inline(always)]
    fn header_end(&self) -> WideBlock {
        [self.header_end_at(0), self.header_end_at(1), self.header_end_at(2), wide([0; 2])]
    }

    #[inline(always)]
    fn header_end_at(&self, index: usize) -> Wide {
        if index < headed::<O>() { self.head(4 * full_blocks::<O>() + index) } else { wide([0; 2]) }
    }

    /// Octoword `at`.
    ///
    /// # Safety
    /// Another one follows.
    #[inline(always)]
    unsafe fn octoword(&self, at: usize) -> Wide {
        if at < header::<O>() {
            return self.head(at);
        }
        // SAFETY: passed on to the caller.
        unsafe { self.request.payload.full(at - header::<O>()) }
    }

    /// Composes block `index`, all of which the WQE takes, and stores it in its place of the WQE at
    /// `to`.
    ///
    /// # Safety
    /// As for [`Wqe::inner`] and [`Wqe::store`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn put_inner(&self, to: *mut Block, index: usize) -> WideBlock {
        // SAFETY: passed on to the caller.
        unsafe {
            let block = self.inner(index);
            store_composed(to.add(index), &[block]);
            block
        }
    }

    /// Block `index`, all of which the WQE takes.
    ///
    /// # Safety
    /// It does, and another octoword follows each one of the data's in that block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn inner(&self, index: usize) -> WideBlock {
        let at = 4 * index;
        // SAFETY: passed on to the caller.
        unsafe {
            if index == full_blocks::<O>() {
                self.request.payload.assume(data_space::<O>() + 1);
            }
            [self.octoword(at), self.octoword(at + 1), self.octoword(at + 2), self.octoword(at + 3)]
        }
    }

    /// [`Wqe::put_inner`] of block `index`, which is the last: of this one only the octowords that
    /// belong to the WQE are stored.
    ///
    /// # Safety
    /// The WQE ends in that block, and as for [`Wqe::store`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn put_end(&self, to: *mut Block, index: usize) -> WideBlock {
        let Request { payload, octowords, .. } = self.request;
        // SAFETY: the data ends in this block, and starts in it or in an earlier one.
        unsafe {
            if index < full_blocks::<O>() {
                // Without data, behind a header that fills its blocks.
                return self.put_inner(to, index);
            }
            let to = to.add(index).cast::<Wide>();
            if index > full_blocks::<O>() {
                let start = 4 * index - header::<O>();
                core::hint::assert_unchecked(start > 0 && octowords > 4 * index);
                return ending::<P, 4>(payload, octowords - 4 * index, start, Some(to));
            }
            let head = self.header_end();
            store_octowords(to, &head, headed::<O>());
            let size = octowords - header::<O>();
            joined::<O>(&head, &short::<O, P>(payload, size, Some(to.add(headed::<O>()))))
        }
    }

    /// Stores the WQE, of any length. Bytes after its last octoword keep their value, and bytes
    /// after inline data may: the device reads neither.
    ///
    /// # Safety
    /// `to` is valid for writes of its blocks, and aligned to 16 bytes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn store(&self, to: *mut Block) {
        // SAFETY: passed on to the caller; a header may end a WQE, and there is no longer one.
        unsafe { self.store_sized(to, header::<O>(), MAX_DS as usize, false) };
    }

    /// The WQE as it is stored, zeros behind it. `None` if it has more than `N` blocks.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn image<const N: usize>(&self) -> Option<[WideBlock; N]> {
        if self.request.blocks() > N {
            return None;
        }
        let mut image = [[wide([0; 2]); 4]; N];
        // SAFETY: it has no more blocks, as just compared.
        unsafe { self.store(image.as_mut_ptr().cast::<Block>()) };
        Some(image)
    }

    /// The WQE as it is stored, zeros behind it, in a buffer.
    #[inline(always)]
    fn image_in<'b>(&self, buffer: &'b mut MaybeUninit<Longest>) -> &'b [WideBlock] {
        let (to, blocks) = (buffer.as_mut_ptr().cast::<WideBlock>(), self.request.blocks());
        // SAFETY: as many blocks as a WQE has at most, and at least one. All that it has were
        // written: it has all octowords of each but the last, which is zeros where there are none.
        unsafe {
            to.add(blocks - 1).write([wide([0; 2]); 4]);
            self.store(to.cast());
            core::slice::from_raw_parts(to, blocks)
        }
    }

    /// [`Wqe::store`] of a WQE that has `blocks` blocks, a constant, and is not copied from there.
    ///
    /// # Safety
    /// It has. As for [`Wqe::store`].
    #[inline(always)]
    pub(super) unsafe fn store_blocks(&self, to: *mut Block, blocks: usize) {
        // SAFETY: passed on to the caller.
        unsafe { self.store_sized(to, 4 * blocks - 3, 4 * blocks, O::IS_OF_WORDS) };
    }

    /// [`Wqe::store`] of a WQE of more than four blocks.
    ///
    /// # Safety
    /// It has. As for [`Wqe::store`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn store_long(&self, to: *mut Block) {
        // SAFETY: passed on to the caller.
        unsafe { self.store_sized(to, 17, MAX_DS as usize, false) };
    }

    /// [`Wqe::store`] of a WQE that has `least` octowords at least, and `most` at most. What is put
    /// together from words is stored in words if `in_words`, a constant.
    ///
    /// # Safety
    /// It has. As for [`Wqe::store`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn store_sized(&self, to: *mut Block, least: usize, most: usize, in_words: bool) {
        let Request { operation, payload, octowords, .. } = self.request;
        let (to, header) = (to.cast::<Wide>(), header::<O>());
        // SAFETY: the caller vouches for the blocks, which hold header and data.
        unsafe {
            store_octoword(to, narrow(self.control), in_words);
            for index in 1..header {
                let octoword = operation.octoword(index - 1, self.qpn);
                store_octoword(to.add(index), octoword, in_words && O::has_words(index - 1));
            }
            let size = octowords - header;
            payload.store(to.add(header), size, least.saturating_sub(header), most - header);
        }
    }
}

/// Stores an octoword whole, or in its two words. Joining these in a register takes more
/// instructions than the second store.
///
/// # Safety
/// `to` is valid for writes, and aligned.
#[inline(always)]
unsafe fn store_octoword(to: *mut Wide, octoword: Octoword, in_words: bool) {
    // SAFETY: passed on to the caller. Volatile, so that the compiler does not join the words.
    unsafe {
        if in_words {
            to.cast::<u64>().write_volatile(octoword[0]);
            to.cast::<u64>().add(1).write_volatile(octoword[1]);
        } else {
            to.write_volatile(wide(octoword));
        }
    }
}

/// Composes a WQE of one to four blocks in registers, stores them at `$to`, and hands them to
/// `$use`; `$longer` is for more. `$octowords` are the WQE's, or what its blocks have.
///
/// Each length has its own copy of `$use`, in which the blocks' number is a constant.
macro_rules! composed {
    ($wqe:expr, $octowords:expr, $to:ident, |$composed:ident| $use:expr, $longer:expr) => {
        if $octowords <= 4 {
            let $composed = [$wqe.put_end($to, 0)];
            $use
        } else {
            crate::send_queue::wide::keep_apart();
            match $octowords {
                ..=8 => {
                    let $composed = [$wqe.put_inner($to, 0), $wqe.put_end($to, 1)];
                    $use
                }
                ..=12 => {
                    let $composed =
                        [$wqe.put_inner($to, 0), $wqe.put_inner($to, 1), $wqe.put_end($to, 2)];
                    $use
                }
                ..=16 => {
                    let $composed = [
                        $wqe.put_inner($to, 0),
                        $wqe.put_inner($to, 1),
                        $wqe.put_inner($to, 2),
                        $wqe.put_end($to, 3),
                    ];
                    $use
                }
                _ => {
                    crate::hint::cold_path();
                    $longer
                }
            }
        }
    };
}
pub(super) use composed;

/// A block with the end of a header of an `O`, and then data. No closures, here and above: in
/// large functions the compiler would call them.
#[inline(always)]
fn joined<O: Operation>(head: &WideBlock, data: &WideBlock) -> WideBlock {
    match headed::<O>() {
        0 => *data,
        1 => [head[0], data[0], data[1], data[2]],
        2 => [head[0], head[1], data[0], data[1]],
        _ => [head[0], head[1], head[2], data[0]],
    }
}

/// [`ending`] of data that ends in the block in which it starts.
///
/// # Safety
/// It does, behind the header of an `O`. `to` as for [`ending`].
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn short<O: Operation, P: Payload>(
    payload: P,
    size: usize,
    to: Option<*mut Wide>,
) -> WideBlock {
    // SAFETY: the caller vouches for it.
    unsafe {
        match data_space::<O>() {
            1 => ending::<P, 1>(payload, size, 0, to),
            2 => ending::<P, 2>(payload, size, 0, to),
            3 => ending::<P, 3>(payload, size, 0, to),
            _ => ending::<P, 4>(payload, size, 0, to),
        }
    }
}

/// The last `count` octowords of data, from `start` on, and zeros behind them. Stores the
/// octowords, without the zeros, at `to`.
///
/// # Safety
/// There are at most `MOST`. `to` is valid for writes of them, and aligned to 16.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn ending<P: Payload, const MOST: usize>(
    payload: P,
    count: usize,
    start: usize,
    to: Option<*mut Wide>,
) -> WideBlock {
    let zero = wide([0; 2]);
    // SAFETY: the caller vouches for the count, and that says which octoword is the last.
    unsafe {
        core::hint::assert_unchecked(count <= MOST);
        let (full, last) = (|i| payload.full(start + i), |i| payload.last(start + i));
        match count {
            0 => [zero; 4],
            1 => stored(to, [last(0), zero, zero, zero], 1),
            2 => stored(to, [full(0), last(1), zero, zero], 2),
            3 => stored(to, [full(0), full(1), last(2), zero], 3),
            _ => stored(to, [full(0), full(1), full(2), last(3)], 4),
        }
    }
}

/// Octowords, of which the first `count` were stored at `to`.
///
/// # Safety
/// As for [`ending`].
#[inline(always)]
unsafe fn stored(to: Option<*mut Wide>, data: WideBlock, count: usize) -> WideBlock {
    if let Some(to) = to {
        // SAFETY: passed on to the caller.
        unsafe { store_octowords(to, &data, count) };
    }
    data
}

/// How many bytes are copied into the WQE of an `O`, of at most `BLOCKS` blocks.
#[derive(Debug)]
pub(super) struct CopiedBytes<O, const BLOCKS: usize>(usize, PhantomData<O>);

impl<O, const BLOCKS: usize> Clone for CopiedBytes<O, BLOCKS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<O, const BLOCKS: usize> Copy for CopiedBytes<O, BLOCKS> {}

impl<O: Operation, const BLOCKS: usize> CopiedBytes<O, BLOCKS> {
    /// Whether they are the data of an inline segment behind the header. Those of a packet are not.
    const ARE_SEGMENT: bool = O::DATA_START == 16 * header::<O>() + 4;

    /// So many; none if these are inline data that does not fit.
    #[inline(always)]
    pub(super) fn new(bytes: usize) -> Self {
        let octowords = header::<O>() + segment_octowords(bytes);
        let fits = !Self::ARE_SEGMENT || octowords <= 4 * BLOCKS;
        Self(if fits { bytes } else { 0 }, PhantomData)
    }

    /// How many.
    #[inline(always)]
    pub(super) fn get(&self) -> usize {
        self.0
    }

    /// Puts other inline data of the same length into an image. False, and nothing changed, unless
    /// there is such data.
    #[inline(always)]
    pub(super) fn replace(&self, data: &[u8], image: &mut [WideBlock; BLOCKS]) -> bool {
        if !Self::ARE_SEGMENT || data.len() != self.0 || data.is_empty() {
            return false;
        }
        let (size, data) = (segment_octowords(data.len()), Inline(data));
        let lanes = image.as_flattened_mut();
        if BLOCKS == short_blocks::<O>() {
            // SAFETY: `new` has compared the length: the data ends in the last block, in which it
            // starts.
            let new = unsafe { short::<O, _>(data, size, None) };
            lanes.iter_mut().skip(header::<O>()).zip(new).for_each(|(lane, new)| *lane = new);
            return true;
        }
        let Some(lanes) = lanes.get_mut(header::<O>()..header::<O>() + size) else { return false };
        let Some((last, full)) = lanes.split_last_mut() else { return false };
        // SAFETY: these are as many octowords as the data has.
        unsafe {
            *last = data.last(full.len());
            for (index, lane) in full.iter_mut().enumerate() {
                *lane = data.full(index);
            }
        }
        true
    }
}
