//! Copies from and to memory that the program, a guest or another process may access at the same
//! time.
//!
//! They copy in ascending address order and access each aligned word of 8 bytes at once, like a
//! ConnectX without relaxed ordering. The bytes before the first such word and after the last one
//! are accessed one by one. In Rust such a copy is a loop of atomics, which no compiler vectorizes.
//! So on x86-64 long copies are loops of aligned 16-byte loads and stores in assembly.
//!
//! To Rust, that assembly is a sequence of relaxed `AtomicU64` accesses in address order, so it is
//! sound together with other threads' `AtomicU64` accesses: on processors with AVX an aligned
//! 16-byte load or store is one access (Intel, Software Developer's Manual, volume 3, 9.1.1; AMD64
//! Architecture Programmer's Manual, volume 2, 7.3.2), so it is equivalent to two adjacent accesses
//! of 8 bytes, and x86-64 reorders neither loads with loads nor stores with stores. Processors
//! without AVX take the loop of atomics.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies from shared memory in address order.
///
/// # Safety
/// `into.len()` bytes from `from` are mapped and readable. Concurrent writes use atomics or come
/// from outside this program's memory model (another process, a guest).
pub unsafe fn copy_in(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's, and `into` is ours to write.
    unsafe { by_parts(from as usize, into.len(), from, into.as_mut_ptr(), (narrow_in, wide_in)) };
}

/// As [`copy_in`], to the end of a vector.
///
/// # Safety
/// As for [`copy_in`], with `len` for the length.
pub unsafe fn append(from: *const u8, len: usize, into: &mut Vec<u8>) {
    into.reserve(len);
    // SAFETY: the caller's; `len` bytes after those of the vector were reserved, and are all
    // written.
    unsafe {
        let end = into.as_mut_ptr().add(into.len());
        by_parts(from as usize, len, from, end, (narrow_in, wide_in));
        into.set_len(into.len() + len);
    }
}

/// Copies to shared memory in address order.
///
/// # Safety
/// `from.len()` bytes from `into` are mapped and writable, and no reference covers them. Concurrent
/// accesses use atomics or come from outside this program's memory model.
pub unsafe fn copy_out(from: &[u8], into: *mut u8) {
    // SAFETY: the caller's, and `from` is readable.
    unsafe { by_parts(into as usize, from.len(), from.as_ptr(), into, (narrow_out, wide_out)) };
}

/// [`narrow_in`] or [`narrow_out`], and [`wide_in`] or [`wide_out`].
type Part = unsafe fn(*const u8, *mut u8, usize);

/// Copies the middle part with `wide`, from a multiple of 16 of the shared side's address, and the
/// bytes before and after it with `narrow`.
///
/// # Safety
/// As for `narrow` and `wide`, of which both copy in the same direction; `shared` is the address of
/// their shared side.
#[inline]
unsafe fn by_parts(
    shared: usize,
    len: usize,
    from: *const u8,
    into: *mut u8,
    (narrow, wide): (Part, Part),
) {
    let head = shared.wrapping_neg() % 16;
    if len < 2 * STRIDE || !has_wide() {
        // SAFETY: the caller's.
        return unsafe { narrow(from, into, len) };
    }
    let end = head + (len - head) / STRIDE * STRIDE;
    // SAFETY: three parts of the caller's range: head <= 15, and end <= len, which is 128 at least.
    // The shared side of the second begins at a multiple of 16.
    unsafe {
        narrow(from, into, head);
        wide(from.add(head), into.add(head), end - head);
        narrow(from.add(end), into.add(end), len - end);
    }
}

/// Bytes of one iteration of [`wide_in`] and [`wide_out`].
const STRIDE: usize = 64;

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_wide() -> bool {
    std::is_x86_feature_detected!("avx")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_wide() -> bool {
    false
}

macro_rules! wide {
    ($(#[$doc:meta])* $name:ident, $load:literal, $store:literal) => {
        $(#[$doc])*
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe fn $name(from: *const u8, into: *mut u8, len: usize) {
            // SAFETY: reads `len` bytes of one side and writes as many of the other, which the
            // caller guarantees. On the shared side it does what relaxed atomic accesses of aligned
            // words in the same order would (see the top). SSE2 is part of x86-64.
            unsafe {
                std::arch::asm!(
                    "2:",
                    concat!($load, " {a}, [{from}]"),
                    concat!($load, " {b}, [{from} + 16]"),
                    concat!($load, " {c}, [{from} + 32]"),
                    concat!($load, " {d}, [{from} + 48]"),
                    concat!($store, " [{into}], {a}"),
                    concat!($store, " [{into} + 16], {b}"),
                    concat!($store, " [{into} + 32], {c}"),
                    concat!($store, " [{into} + 48], {d}"),
                    "add {from}, 64",
                    "add {into}, 64",
                    "sub {len}, 64",
                    "jnz 2b",
                    from = inout(reg) from => _,
                    into = inout(reg) into => _,
                    len = inout(reg) len => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
            }
        }

        /// Never called.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        unsafe fn $name(_: *const u8, _: *mut u8, _: usize) {}
    };
}

wide!(
    /// Copies `len` bytes, a multiple of [`STRIDE`] that is not zero, from shared memory.
    ///
    /// # Safety
    /// That of [`copy_in`]; `from` is a multiple of 16, and the processor has AVX.
    wide_in, "movaps", "movups"
);

wide!(
    /// Copies `len` bytes, a multiple of [`STRIDE`] that is not zero, to shared memory.
    ///
    /// # Safety
    /// That of [`copy_out`]; `into` is a multiple of 16, and the processor has AVX.
    wide_out, "movups", "movaps"
);

/// How many of `len` bytes from `address` are before the next multiple of 8.
fn bytes_to_alignment(address: usize, len: usize) -> usize {
    (address.wrapping_neg() & 7).min(len)
}

/// # Safety
/// As for [`copy_in`]; `len` bytes from `into` are writable and not accessed by other code.
unsafe fn narrow_in(from: *const u8, into: *mut u8, len: usize) {
    let head = bytes_to_alignment(from as usize, len);
    let words = head + (len - head) / 8 * 8;
    // SAFETY: all offsets are below `len`; the 8-byte loads are aligned because the head ends at a
    // multiple of 8.
    unsafe {
        let byte = |at: usize| {
            let value = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
            into.add(at).write(value);
        };
        (0..head).for_each(byte);
        for at in (head..words).step_by(8) {
            let word = AtomicU64::from_ptr(from.add(at).cast_mut().cast());
            into.add(at).cast::<u64>().write_unaligned(word.load(Ordering::Relaxed));
        }
        (words..len).for_each(byte);
    }
}

/// # Safety
/// As for [`copy_out`]; `len` bytes from `from` are readable and not written meanwhile.
unsafe fn narrow_out(from: *const u8, into: *mut u8, len: usize) {
    let head = bytes_to_alignment(into as usize, len);
    let words = head + (len - head) / 8 * 8;
    // SAFETY: as in `narrow_in`.
    unsafe {
        let byte = |at: usize| {
            let value = from.add(at).read();
            AtomicU8::from_ptr(into.add(at)).store(value, Ordering::Relaxed);
        };
        (0..head).for_each(byte);
        for at in (head..words).step_by(8) {
            let value = from.add(at).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(into.add(at).cast()).store(value, Ordering::Relaxed);
        }
        (words..len).for_each(byte);
    }
}

#[cfg(test)]
mod tests;
