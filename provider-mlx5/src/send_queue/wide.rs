//! Vector registers of 16 bytes: the widest store that every processor of the architecture has.
//! Requests that are composed in registers are stored 32 bytes at a time where the compiler may use
//! AVX (`-C target-cpu=x86-64-v3`). Templates are copied 32 bytes at a time wherever the processor
//! can.
//!
//! A request is stored twice, and a post mostly waits for stores. So octowords are composed in
//! vector registers, and each is one store. A load that follows reads exactly 16 bytes of one
//! store, so the processor can forward it.

#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, compiler_fence};

use super::{Block, SendQueue, Transport};
#[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
use crate::barrier;
use crate::doorbell::DoorbellWord;
use crate::format::WQEBB_SIZE;
pub(super) use crate::mapped::Wide;
use crate::mmio::Register;
use crate::request::Octoword;

/// Two octowords in one register.
#[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
type Pair = core::arch::x86_64::__m256i;

/// One block in vector registers.
pub(super) type WideBlock = [Wide; 4];

/// An octoword in a vector register.
#[inline(always)]
pub(super) fn wide(octoword: Octoword) -> Wide {
    // SAFETY: same size, and every value is valid in both.
    unsafe { core::mem::transmute::<Octoword, Wide>(octoword) }
}

/// The octoword in a vector register.
#[inline(always)]
pub(super) fn narrow(value: Wide) -> Octoword {
    // SAFETY: same size, and every value is valid in both.
    unsafe { core::mem::transmute::<Wide, Octoword>(value) }
}

/// The bits of both.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsic is always there")]
pub(super) fn or(one: Wide, other: Wide) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe { core::arch::x86_64::_mm_or_si128(one, other) };
    #[cfg(not(target_arch = "x86_64"))]
    [one[0] | other[0], one[1] | other[1]]
}

/// The sums of both halves, which wrap.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsic is always there")]
pub(super) fn sum(one: Wide, other: Wide) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe { core::arch::x86_64::_mm_add_epi64(one, other) };
    #[cfg(not(target_arch = "x86_64"))]
    [one[0].wrapping_add(other[0]), one[1].wrapping_add(other[1])]
}

/// The bits that both have.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsic is always there")]
pub(super) fn and(one: Wide, other: Wide) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe { core::arch::x86_64::_mm_and_si128(one, other) };
    #[cfg(not(target_arch = "x86_64"))]
    [one[0] & other[0], one[1] & other[1]]
}

/// An octoword with another second half.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsic is always there")]
pub(super) fn with_high(value: Wide, high: u64) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe { core::arch::x86_64::_mm_unpacklo_epi64(value, wide([high, 0])) };
    #[cfg(not(target_arch = "x86_64"))]
    [value[0], high]
}

/// An octoword with another first half.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsics are always there")]
pub(super) fn with_low(value: Wide, low: u64) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe {
        use core::arch::x86_64::{_mm_castpd_si128, _mm_castsi128_pd, _mm_move_sd};
        let (value, low) = (_mm_castsi128_pd(value), _mm_castsi128_pd(wide([low, 0])));
        _mm_castpd_si128(_mm_move_sd(value, low))
    };
    #[cfg(not(target_arch = "x86_64"))]
    [low, value[1]]
}

/// An octoword with another word of four bytes, as it is in memory.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsics are always there")]
pub(super) fn with_word(value: Wide, index: usize, word: u32) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE and SSE2, which every x86-64 processor has.
    return unsafe {
        use core::arch::x86_64::{
            _mm_castps_si128, _mm_castsi128_ps, _mm_cvtsi32_si128, _mm_move_ss, _mm_shuffle_ps,
        };
        let value = _mm_castsi128_ps(value);
        let word = _mm_castsi128_ps(_mm_cvtsi32_si128(word as i32));
        // Two shuffles: the word next to its neighbour, then both between the others.
        _mm_castps_si128(match index {
            0 => _mm_move_ss(value, word),
            1 => {
                let both = _mm_shuffle_ps::<0b00_00_00_00>(word, value);
                _mm_shuffle_ps::<0b11_10_00_10>(both, value)
            }
            2 => {
                let both = _mm_shuffle_ps::<0b11_11_00_00>(word, value);
                _mm_shuffle_ps::<0b10_00_01_00>(value, both)
            }
            _ => {
                let both = _mm_shuffle_ps::<0b10_10_00_00>(word, value);
                _mm_shuffle_ps::<0b00_10_01_00>(value, both)
            }
        })
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let (half, shift) = (index / 2 & 1, 32 * (index as u32 & 1));
        let mut value = value;
        let rest = u64::from_le(value[half]) & !(0xffff_ffff << shift);
        value[half] = (rest | u64::from(u32::from_le(word)) << shift).to_le();
        value
    }
}

/// An octoword with another sixteen bits, as they are in memory.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsics are always there")]
pub(super) fn with_half_word(value: Wide, index: usize, half_word: u16) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every x86-64 processor has.
    return unsafe {
        use core::arch::x86_64::_mm_insert_epi16;
        let half_word = i32::from(half_word);
        match index {
            0 => _mm_insert_epi16::<0>(value, half_word),
            1 => _mm_insert_epi16::<1>(value, half_word),
            2 => _mm_insert_epi16::<2>(value, half_word),
            3 => _mm_insert_epi16::<3>(value, half_word),
            4 => _mm_insert_epi16::<4>(value, half_word),
            5 => _mm_insert_epi16::<5>(value, half_word),
            6 => _mm_insert_epi16::<6>(value, half_word),
            _ => _mm_insert_epi16::<7>(value, half_word),
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let (half, shift) = (index / 4 & 1, 16 * (index as u32 & 3));
        let mut value = value;
        let rest = u64::from_le(value[half]) & !(0xffff << shift);
        value[half] = (rest | u64::from(u16::from_le(half_word)) << shift).to_le();
        value
    }
}

/// Two octowords in one register, the first one first in memory.
#[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsic is always there")]
fn pair(first: Wide, second: Wide) -> Pair {
    // SAFETY: part of AVX, which the compiler may use.
    unsafe { core::arch::x86_64::_mm256_set_m128i(second, first) }
}

/// An octoword whose first byte is the number's lowest.
#[inline(always)]
pub(super) fn from_number(value: u128) -> Wide {
    wide([(value as u64).to_le(), ((value >> 64) as u64).to_le()])
}

/// An inline segment's first octoword: its length, in memory order, and the first twelve of sixteen
/// bytes of data.
#[inline(always)]
#[allow(unused_unsafe, reason = "the newer compilers know that the intrinsics are always there")]
pub(super) fn after_length(length: u64, data: &[u8; 16]) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2; both have sixteen bytes, and every value is valid in both.
    let moved = unsafe {
        core::arch::x86_64::_mm_slli_si128::<4>(core::mem::transmute::<[u8; 16], Wide>(*data))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let moved = {
        let value = u128::from_le_bytes(*data) << 32;
        [(value as u64).to_le(), ((value >> 64) as u64).to_le()]
    };
    or(moved, wide([length, 0]))
}

/// Stores a block, to ordinary or to device memory: each octoword in exactly one store.
///
/// # Safety
/// `target` is valid for 64 bytes of writes, aligned to 16.
#[inline(always)]
pub(super) unsafe fn store_block(target: *mut Block, block: &WideBlock) {
    for (i, octoword) in block.iter().enumerate() {
        // SAFETY: `i` is below 4.
        unsafe { target.cast::<Wide>().add(i).write_volatile(*octoword) };
    }
}

/// [`store_block`] of several, behind each other.
///
/// # Safety
/// As for [`store_block`], for all of them.
#[inline(always)]
pub(super) unsafe fn store_blocks<const N: usize>(target: *mut Block, blocks: &[WideBlock; N]) {
    for (i, block) in blocks.iter().enumerate() {
        // SAFETY: the caller vouches for them.
        unsafe { store_block(target.add(i), block) };
    }
}

/// Whether the processor has the instructions of [`copy_request`] and [`copy_and_ring`].
pub(super) fn copies_pairs() -> bool {
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    return is_x86_feature_detected!("avx") && is_x86_feature_detected!("movbe");
    #[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
    true
}

/// Copies a request of `N` blocks to the ring, 32 bytes at a time, and then runs the lines. All
/// vector registers are named, because `vzeroupper` changes the upper half of each.
///
/// Loads are of 16 bytes: if one octoword was stored last, a load of two would wait until that has
/// reached the cache. `vzeroupper` keeps the code that follows, which uses 16 bytes of registers,
/// from waiting for their upper halves (Intel's optimization manual, "Mixing AVX code with SSE
/// code").
#[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
macro_rules! copy {
    ([$($line:literal),*] $control:ident, $image:ident, $to:ident, $($operands:tt)*) => {
        core::arch::asm!(
            "vinsertf128 ymm0, ymm0, xmmword ptr [{image} + 16], 1",
            "vmovdqa ymmword ptr [{base} + {end} - {bytes}], ymm0",
            ".irp i, 1, 2, 3, 4, 5, 6, 7",
            ".if \\i < {pairs}",
            "vmovdqa xmm\\i, xmmword ptr [{image} + 32 * \\i]",
            "vinsertf128 ymm\\i, ymm\\i, xmmword ptr [{image} + 32 * \\i + 16], 1",
            "vmovdqa ymmword ptr [{base} + {end} - {bytes} + 32 * \\i], ymm\\i",
            ".endif",
            ".endr",
            $($line,)*
            "vzeroupper",
            image = in(reg) $image.as_ptr(),
            base = in(reg) $to.0,
            end = in(reg) $to.1,
            bytes = const WQEBB_SIZE * N,
            pairs = const 2 * N,
            $($operands)*
            inout("xmm0") $control => _,
            out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _,
            out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, preserves_flags),
        )
    };
}

/// Stores a request to the ring: first `control`, then all octowords of `image` but its first. `to`
/// is an address and the bytes to add to it, which instructions do by themselves: the sum is where
/// the request ends.
///
/// # Safety
/// `N` is at most four. The memory before that end is valid for writes of as many blocks, and
/// aligned to 64. The processor [`copies_pairs`].
#[inline(always)]
pub(super) unsafe fn copy_request<const N: usize>(
    control: Wide,
    image: &[WideBlock; N],
    to: (*mut Block, usize),
) {
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    // SAFETY: the caller's promise. It changes nothing but the blocks and the registers that it
    // names.
    unsafe {
        copy!([] control, image, to,);
    }
    #[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
    // SAFETY: the caller's promise.
    unsafe {
        store_blocks(before::<N>(to), &stamped(control, image));
    }
}

/// [`copy_request`], and then what [`Doorbell::ring`](crate::doorbell::Doorbell::ring) does: the
/// doorbell record, the copy to the register, and the barriers between them. In one block of
/// assembly, because the compiler would not keep 32 bytes of a register from one block to the next.
///
/// # Safety
/// As for [`copy_request`]; `half` is valid for writes of as many blocks, aligned to 64.
#[inline(always)]
pub(super) unsafe fn copy_and_ring<const N: usize>(
    control: Wide,
    image: &[WideBlock; N],
    to: (*mut Block, usize),
    record: &DoorbellWord,
    head: u32,
    half: *mut Block,
) {
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    // `barrier::to_device` is no instruction, the other barriers are `sfence`. SAFETY: the caller's
    // promise. It changes nothing but the blocks, the record, the half and the registers that it
    // names.
    unsafe {
        copy!(
            ["movbe dword ptr [{record}], {head:e}",
             "sfence",
             "vmovdqa ymmword ptr [{half}], ymm0",
             ".irp i, 1, 2, 3, 4, 5, 6, 7",
             ".if \\i < {pairs}",
             "vmovdqa ymmword ptr [{half} + 32 * \\i], ymm\\i",
             ".endif",
             ".endr",
             "sfence"]
            control, image, to,
            record = in(reg) record.as_ptr(),
            head = in(reg) head & 0xffff,
            half = in(reg) half,
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
    // SAFETY: the caller's promise.
    unsafe {
        let image = stamped(control, image);
        store_blocks(before::<N>(to), &image);
        barrier::to_device();
        record.store(head & 0xffff);
        barrier::before_doorbell();
        store_blocks(half, &image);
        barrier::flush_doorbell();
    }
}

/// The first octoword of a control segment with only the next request's index. It is made in a
/// vector register, which takes an instruction less than in another one.
///
/// # Safety
/// The processor [`copies_pairs`].
#[inline(always)]
pub(super) unsafe fn index<T: Transport, R: Register>(queue: &SendQueue<T, R>) -> Wide {
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    // SAFETY: the caller's promise. It reads a field of the queue and a constant.
    unsafe {
        let index;
        core::arch::asm!(
            "vmovd {index}, dword ptr [{queue} + {head}]",
            "vpshufb {index}, {index}, xmmword ptr [rip + {order}]",
            index = out(xmm_reg) index,
            queue = in(reg) queue,
            head = const core::mem::offset_of!(SendQueue<T, R>, head),
            order = sym INDEX,
            options(pure, readonly, nostack, preserves_flags),
        );
        index
    }
    #[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
    wide([super::encode::first_word(super::place(queue.head)), 0])
}

/// Where in a control segment the bytes of the counter are: the lowest third, the next second.
#[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
static INDEX: Wide = {
    let mut order = [0xff; 16];
    (order[1], order[2]) = (1, 0);
    // SAFETY: same size, and every value is valid in both.
    unsafe { core::mem::transmute::<[u8; 16], Wide>(order) }
};

/// Where a request of `N` blocks starts that ends at `to`.
#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
fn before<const N: usize>(to: (*mut Block, usize)) -> *mut Block {
    to.0.wrapping_byte_add(to.1).wrapping_byte_sub(N * WQEBB_SIZE)
}

/// A request with another first octoword.
#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
fn stamped<const N: usize>(control: Wide, image: &[WideBlock; N]) -> [WideBlock; N] {
    let mut image = *image;
    if let [[first, ..], ..] = &mut image[..] {
        *first = control;
    }
    image
}

/// [`store_blocks`] of what was put together in registers: in pairs of octowords, if there are
/// registers for them. (A template's octowords are loaded as they were stored, one at a time.)
///
/// # Safety
/// As for [`store_blocks`], aligned to 64.
#[inline(always)]
pub(super) unsafe fn store_composed<const N: usize>(target: *mut Block, blocks: &[WideBlock; N]) {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
    for (i, two) in blocks.as_flattened().chunks_exact(2).enumerate() {
        // SAFETY: as many pairs as the blocks have.
        unsafe { target.cast::<Pair>().add(i).write_volatile(pair(two[0], two[1])) };
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "avx")))]
    // SAFETY: passed on to the caller.
    unsafe {
        store_blocks(target, blocks);
    }
}

/// Stores the first `count` octowords, which is a constant: in pairs, if there are registers for
/// them. To ordinary memory.
///
/// # Safety
/// `target` is valid for writes of them, aligned to 16.
#[inline(always)]
pub(super) unsafe fn store_octowords(target: *mut Wide, octowords: &WideBlock, count: usize) {
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
    while at + 2 <= count {
        let two = pair(octowords[at & 3], octowords[(at + 1) & 3]);
        // SAFETY: within the octowords.
        unsafe { target.add(at).cast::<Pair>().write_unaligned(two) };
        at += 2;
    }
    while at < count {
        // SAFETY: within the octowords.
        unsafe { target.add(at).write_volatile(octowords[at & 3]) };
        at += 1;
    }
}

/// Copies a block from ordinary memory, each octoword in exactly one store: the target may be
/// device memory.
///
/// # Safety
/// `source` is valid for 64 bytes of reads and `target` for as many of writes, both aligned to 16.
#[inline(always)]
pub(super) unsafe fn copy_block(target: *mut Block, source: *const Block) {
    for i in 0..4 {
        // SAFETY: `i` is below 4.
        unsafe { target.cast::<Wide>().add(i).write_volatile(source.cast::<Wide>().add(i).read()) };
    }
}

/// Two octowords as the compiler moves them: in one register in a function that may use AVX, else
/// in two. So one inlined function serves callers of both kinds.
#[cfg(target_arch = "x86_64")]
type Two = core::arch::x86_64::__m256i;
#[cfg(not(target_arch = "x86_64"))]
type Two = [Octoword; 2];

/// [`copy_block`] in as few stores as the caller's instructions allow.
///
/// # Safety
/// As for [`copy_block`], aligned to 64.
#[inline(always)]
pub(super) unsafe fn copy_in_pairs(target: *mut Block, source: *const Block) {
    for i in 0..2 {
        // SAFETY: both halves of the block.
        unsafe { target.cast::<Two>().add(i).write_volatile(source.cast::<Two>().add(i).read()) };
    }
}

/// Copies the first and the last `N` pairs of octowords, which may overlap. So the number of
/// instructions depends on two comparisons only.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, which are `N` to `2 * N` pairs.
#[inline(always)]
pub(super) unsafe fn copy_ends<const N: usize>(to: *mut u8, from: *const u8, length: usize) {
    const PAIR: usize = size_of::<Two>();
    for start in [0, length - PAIR * N] {
        for pair in 0..N {
            let at = start + PAIR * pair;
            // SAFETY: within the bytes.
            unsafe {
                let value = from.add(at).cast::<Two>().read_unaligned();
                to.add(at).cast::<Two>().write_unaligned(value);
            }
        }
    }
}

/// Copies the first and the last octoword, which may overlap.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, which are 16 to 32.
#[inline(always)]
pub(super) unsafe fn copy_few(to: *mut u8, from: *const u8, length: usize) {
    for at in [0, length - 16] {
        // SAFETY: within the bytes.
        unsafe {
            let value = from.add(at).cast::<Wide>().read_unaligned();
            to.add(at).cast::<Wide>().write_unaligned(value);
        }
    }
}

/// The same octoword, which the compiler keeps in one register: of a change of one half it would
/// make a store of that half, if the octoword is in memory, and a load of all of it would wait.
#[inline(always)]
#[allow(unused_mut, reason = "processors without such registers have none to name")]
pub(super) fn whole(mut value: Wide) -> Wide {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(xmm_reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}

/// Keeps the compiler from unrolling a loop of few rounds, unless it knows their number. Unrolling
/// pays only for many rounds.
#[inline(always)]
pub(super) fn few_rounds() {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("", options(nomem, nostack, preserves_flags)) }
}

/// Keeps the compiler from joining the branches before and after to one jump through a table. A
/// table takes more instructions than two comparisons.
#[inline(always)]
pub(super) fn keep_apart() {
    few_rounds();
}

/// Copies data by loads and stores of up to 16 bytes. The last one may overlap the one before, so
/// their number depends only on the length, and nothing beyond the data is read or written. `sure`
/// is a constant.
///
/// # Safety
/// The data has at least `sure` bytes; `to` is valid for writes of all of it.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, data: &[u8], sure: usize) {
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

/// [`copy()`] of fewer than 16 bytes.
///
/// # Safety
/// As for [`copy()`].
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

/// Bits of so many bytes, but for whole words, for a shift.
#[inline(always)]
pub(super) const fn bits(bytes: usize) -> u32 {
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
pub(super) fn load_wide(bytes: &[u8], at: usize) -> Wide {
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
    // Not as a difference, which the compiler would have to compute.
    if length > start + 8 {
        return wide([load64(data, start).to_le(), end.to_le()]);
    }
    wide([end.to_le(), 0])
}
