//! A CQE as it lies in memory, read field by field.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Points at the 64 bytes of a CQE that software owns, or of a copy of one.
///
/// No Rust reference to the bytes is ever made, because the device wrote them and will again: each field is one relaxed
/// atomic load, which costs what a plain load costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqeView(*const u8);

macro_rules! field {
    ($(#[$doc:meta])* $name:ident: $atomic:ident -> $value:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(super) fn $name(self, offset: usize) -> $value {
            // SAFETY: callers pass field offsets of the 64-byte CQE, which is valid for reads and aligned to 64 (contract
            // of `new`), so the field lies inside and is aligned.
            let field = unsafe { $atomic::from_ptr(self.0.add(offset).cast_mut().cast()) };
            $value::from_be(field.load(Ordering::Relaxed))
        }
    };
}

impl CqeView {
    /// # Safety
    /// `cqe` is valid for reads of 64 bytes, and aligned to 64, as long as the view is used.
    #[inline(always)]
    pub(super) unsafe fn new(cqe: *const u8) -> Self {
        Self(cqe)
    }

    field!(
        /// The byte at `offset`.
        u8: AtomicU8 -> u8
    );
    field!(
        /// The big-endian number at `offset`.
        u16: AtomicU16 -> u16
    );
    field!(
        /// The big-endian number at `offset`.
        u32: AtomicU32 -> u32
    );
    field!(
        /// The big-endian number at `offset`.
        u64: AtomicU64 -> u64
    );

    /// The four bytes at `offset`, not turned into a number.
    #[inline(always)]
    pub(super) fn raw_u32(self, offset: usize) -> u32 {
        self.u32(offset).to_be()
    }

    /// The big-endian 16-bit number at `offset`, in the upper half of a word. Fewer instructions
    /// than a shift of the number.
    #[inline(always)]
    pub(super) fn u16_on_top(self, offset: usize) -> u32 {
        // SAFETY: as for the fields above.
        let field = unsafe { AtomicU16::from_ptr(self.0.add(offset).cast_mut().cast()) };
        let in_memory = u32::from(field.load(Ordering::Relaxed));
        if cfg!(target_endian = "little") { in_memory.swap_bytes() } else { in_memory << 16 }
    }

    /// The address of the CQE.
    #[inline(always)]
    pub(super) fn as_ptr(self) -> *const u8 {
        self.0
    }

    /// All 64 bytes.
    #[inline(always)]
    pub(super) fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (chunk, offset) in bytes.chunks_exact_mut(8).zip((0..).step_by(8)) {
            chunk.copy_from_slice(&self.u64(offset).to_be_bytes());
        }
        bytes
    }
}
