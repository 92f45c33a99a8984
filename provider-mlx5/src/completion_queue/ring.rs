//! The ring of a CQ, entry by entry. The modules that use it have no pointers to CQEs.

#![allow(unsafe_code)]

use core::mem::offset_of;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Completion;
use crate::format::{CQE_SIZE, Cqe, CqeFormat, CqeOpcode, OpOwn};
use crate::memory::DmaMemory;
use crate::queue_error::QueueError;

/// Bit of `op_own` with the owner.
pub(super) const OWNER: u8 = 1;

/// Words of 8 bytes in a CQE.
pub(super) const WORDS: usize = CQE_SIZE / 8;

/// Most entries. The device counts 24 bits, one of which is the lap's. So a thread that sees only
/// the consumer index can tell entries of this lap from those of the last one (see `past.rs`).
const MAX_ENTRIES: u32 = 1 << 23;

/// The entries of a CQ: memory that the device writes, and that only this CQ's poller and monitor
/// read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    base: *mut u8,
    /// Entries minus one.
    mask: u32,
    /// log2 of the bytes per entry.
    shift: u32,
}

// SAFETY: only the CQ and its monitor use the ring's memory (contract of `DmaMemory::new`). Both
// access it atomically, or as `CqeView` describes.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring in `memory` that the device does not know yet. Marks every entry as not written.
    pub(super) fn new(memory: &DmaMemory, entries: u32, cqe_size: u32) -> Result<Self, QueueError> {
        if !matches!(cqe_size, 64 | 128) || entries > MAX_ENTRIES {
            return Err(QueueError::BadLimits);
        }
        if !memory.holds(entries, cqe_size as usize) {
            return Err(QueueError::BadMemory);
        }
        let shift = cqe_size.trailing_zeros();
        let ring = Self { base: memory.as_ptr(), mask: entries - 1, shift };
        for index in 0..entries {
            // The owner bit says that too, so that polling need not look at the opcode.
            ring.set_op_own(index, CqeOpcode::INVALID.0 << 4 | ring.lap(index) ^ OWNER);
        }
        Ok(ring)
    }

    pub(super) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Bytes from one entry to the next.
    pub(super) fn stride(&self) -> usize {
        1 << self.shift
    }

    /// Entries from the CQE at `from` to the one at `to`.
    #[inline(always)]
    pub(super) fn distance(&self, from: CqeView, to: CqeView) -> u32 {
        ((to.0.addr() - from.0.addr()) >> self.shift) as u32
    }

    /// The CQE `most` entries after the one at `from`, but at most `end`.
    #[inline(always)]
    pub(super) fn stop(&self, from: CqeView, most: u32, end: CqeView) -> CqeView {
        // If `from` is the marker, this is an arbitrary number. That is harmless, because nothing
        // is taken from the marker.
        let left = end.0.addr().wrapping_sub(from.0.addr());
        let asked = u64::from(most) << self.shift;
        if asked < left as u64 { from.after(asked as usize) } else { end }
    }

    /// Whether entries can hold 64 bytes of inline data.
    pub(super) fn is_wide(&self) -> bool {
        self.stride() > CQE_SIZE
    }

    /// Whether the CQE at counter `index` is the first of a lap.
    pub(super) fn starts_lap(&self, index: u32) -> bool {
        index & self.mask == 0
    }

    /// The CQE of the entry at counter `index`; in an entry of 128 bytes it is the second half.
    pub(super) fn cqe(&self, index: u32) -> CqeView {
        let inside = self.stride() - CQE_SIZE;
        let offset = ((index & self.mask) as usize) << self.shift;
        // SAFETY: the masked entry lies within the ring, whose memory lives until the CQ that has
        // the ring is dropped (contract of `DmaMemory::new`).
        CqeView(unsafe { self.base.add(offset + inside) })
    }

    /// One past the last CQE, in the same units as [`Ring::cqe`]. Never read.
    pub(super) fn end(&self) -> CqeView {
        CqeView(self.cqe(0).0.wrapping_add((self.mask as usize + 1) << self.shift))
    }

    /// The owner bit with which software owns the entry at counter `index`.
    pub(super) fn lap(&self, index: u32) -> u8 {
        u8::from(index & self.entries() != 0)
    }

    /// `op_own` of the CQE at counter `index`, if the device has written it in this lap. The rest
    /// of the CQE can then be read.
    pub(super) fn written(&self, index: u32) -> Option<OpOwn> {
        let op_own = OpOwn(self.cqe(index).op_own());
        let is_ours = op_own.0 & OWNER == self.lap(index);
        if !is_ours || op_own.opcode() == CqeOpcode::INVALID {
            return None;
        }
        crate::barrier::from_device();
        Some(op_own)
    }

    /// The number of CQEs from counter `from` on that the device has written, at most `most`. All
    /// CQEs of a compressed session count, whose number its title holds.
    pub(super) fn waiting(&self, from: u32, most: u32) -> u32 {
        let mut count = 0;
        while count < most {
            let at = from.wrapping_add(count);
            let Some(op_own) = self.written(at) else { break };
            let is_session = op_own.format() == CqeFormat::COMPRESSED;
            let session = self.cqe(at).u32(offset_of!(Cqe, byte_count));
            let more = if is_session { session.max(1) } else { 1 };
            count = count.saturating_add(more);
        }
        count.min(most)
    }

    /// Writes a whole CQE to an entry that software owns. Writes the last word last: another thread
    /// that sees it sees the whole CQE and earlier writes.
    #[inline(always)]
    pub(super) fn write(&self, index: u32, words: &[u64; WORDS]) {
        let to = self.cqe(index);
        for (word, offset) in words.iter().zip((0..).step_by(8)) {
            // SAFETY: eight aligned bytes of the entry, atomic as all accesses to it.
            let field = unsafe { AtomicU64::from_ptr(to.0.add(offset).cast_mut().cast()) };
            field.store(*word, Ordering::Release);
        }
    }

    /// Starts writing a CQE field by field to the entry at counter `index`, which software owns.
    /// `end` is its signature and its `op_own` with owner bit 0.
    pub(super) fn writer(&self, index: u32, [signature, op_own]: [u8; 2]) -> EntryWriter {
        let end = u16::from_ne_bytes([signature, op_own | self.lap(index)]);
        EntryWriter { entry: self.cqe(index), end }
    }

    /// The writer for the entry before that of `writer`.
    #[inline(always)]
    pub(super) fn writer_before(&self, mut writer: EntryWriter) -> EntryWriter {
        if writer.entry == self.cqe(0) {
            crate::hint::cold_path();
            writer.entry = self.end();
            writer.end ^= u16::from_ne_bytes([0, OWNER]);
        }
        writer.entry = CqeView(writer.entry.0.wrapping_sub(self.stride()));
        writer
    }

    /// Copies the CQE at counter `from`, which the device has written, to the entry at `to`.
    pub(super) fn copy(&self, from: u32, to: u32) {
        let mut words = self.cqe(from).words();
        let last = &mut words[WORDS - 1];
        let mut bytes = last.to_ne_bytes();
        // Software owns it in the lap of its new position.
        bytes[7] = bytes[7] & !OWNER | self.lap(to);
        *last = u64::from_ne_bytes(bytes);
        if self.stride() > CQE_SIZE {
            self.copy_first_half(from, to);
        }
        self.write(to, &words);
    }

    /// Copies the inline data before a CQE, in a ring with entries of 128 bytes.
    fn copy_first_half(&self, from: u32, to: u32) {
        // SAFETY: the entries of this ring are that long.
        let [from, to] = [from, to].map(|at| unsafe { self.cqe(at).first_half() });
        for (word, offset) in from.words().iter().zip((0..).step_by(8)) {
            // SAFETY: eight aligned bytes of the entry, atomic as all accesses to it.
            let field = unsafe { AtomicU64::from_ptr(to.0.add(offset).cast_mut().cast()) };
            field.store(*word, Ordering::Relaxed);
        }
    }

    fn set_op_own(&self, index: u32, value: u8) {
        // SAFETY: the last byte of a CQE within the ring.
        let byte = unsafe { self.cqe(index).0.add(offset_of!(Cqe, op_own)) };
        // SAFETY: valid; atomics may be shared with the device.
        unsafe { AtomicU8::from_ptr(byte.cast_mut()) }.store(value, Ordering::Relaxed);
    }
}

/// An entry that the poller writes: [`EntryWriter::begin`], then the fields that differ, then
/// [`EntryWriter::finish`]. Another thread that sees the CQE sees all of it, and earlier writes.
#[derive(Clone, Copy)]
pub(super) struct EntryWriter {
    entry: CqeView,
    /// The last two bytes as one number, with the owner bit with which software owns the CQE.
    end: u16,
}

/// The last four bytes of a CQE: its WQE counter, its signature and `op_own`.
const LAST: usize = offset_of!(Cqe, wqe_counter);
const _: () = assert!(LAST == CQE_SIZE - 4 && offset_of!(Cqe, op_own) == CQE_SIZE - 1);

impl EntryWriter {
    /// Writes all of a CQE but its last four bytes.
    #[inline(always)]
    pub(super) fn begin(self, words: &[u64; WORDS]) {
        let [words @ .., last] = words;
        for (word, offset) in words.iter().zip((0..).step_by(8)) {
            self.set(offset, word.to_ne_bytes());
        }
        let [a, b, c, d, ..] = last.to_ne_bytes();
        self.set(LAST - 4, [a, b, c, d]);
    }

    /// Writes one, two, four or eight bytes at `offset`.
    #[inline(always)]
    pub(super) fn set<const N: usize>(self, offset: usize, bytes: [u8; N]) {
        self.store(offset, bytes, Ordering::Relaxed);
    }

    /// Writes the last four bytes, with this WQE counter.
    #[inline(always)]
    pub(super) fn finish(self, counter: [u8; 2]) {
        self.set(LAST, counter);
        self.store(LAST + 2, self.end.to_ne_bytes(), Ordering::Release);
    }

    #[inline(always)]
    fn store<const N: usize>(self, offset: usize, bytes: [u8; N], ordering: Ordering) {
        const { assert!(matches!(N, 1 | 2 | 4 | 8)) };
        assert!(offset % N == 0 && offset + N <= CQE_SIZE);
        let at = self.entry.0.wrapping_add(offset).cast_mut();
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = from;
        }
        let word = u64::from_le_bytes(word);
        // SAFETY: inside the entry and aligned, atomic as all accesses to it.
        unsafe {
            match N {
                1 => AtomicU8::from_ptr(at).store(word as u8, ordering),
                2 => AtomicU16::from_ptr(at.cast()).store((word as u16).to_le(), ordering),
                4 => AtomicU32::from_ptr(at.cast()).store((word as u32).to_le(), ordering),
                _ => AtomicU64::from_ptr(at.cast()).store(word.to_le(), ordering),
            }
        }
    }
}

/// The position of a CQE in a ring: 64 bytes that software owns.
///
/// No Rust reference to the bytes is ever made, because the device wrote them and will write them
/// again. The byte with the owner bit is loaded atomically, since the device may write it at the
/// same time. That load orders the device's earlier writes, so all other fields are volatile loads.
/// The compiler does not repeat volatile loads, and unlike atomic loads they can be an operand of
/// another instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqeView(*const u8);

// SAFETY: as for `Ring`.
unsafe impl Send for CqeView {}

macro_rules! field {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(self, offset: usize) -> $name {
            // Of a constant, which the compiler answers.
            assert!(offset % size_of::<$name>() == 0 && offset < CQE_SIZE);
            // SAFETY: the CQE is valid for reads of 64 bytes and aligned to 64 (it comes from
            // `Ring::cqe`, or is `MARKER`), so the field is inside it and aligned. The CQE belongs
            // to the poller until it is given back, so no other thread writes the field.
            $name::from_be(unsafe { self.0.add(offset).cast::<$name>().read_volatile() })
        }
    };
}

impl CqeView {
    field!(
        /// The byte at `offset`.
        u8
    );
    field!(
        /// The big-endian number at `offset`.
        u16
    );
    field!(
        /// The big-endian number at `offset`.
        u32
    );
    field!(
        /// The big-endian number at `offset`.
        u64
    );

    /// The two bytes at `offset` as they are in memory.
    #[inline(always)]
    pub(crate) fn u16_in_memory(self, offset: usize) -> u16 {
        self.u16(offset).to_be()
    }

    /// The big-endian 16-bit number at `offset`, in the upper half of a word. This takes fewer
    /// instructions than shifting the number.
    #[inline(always)]
    pub(super) fn u16_on_top(self, offset: usize) -> u32 {
        assert!(offset % 2 == 0 && offset < CQE_SIZE);
        // SAFETY: as for the fields above.
        let in_memory = u32::from(unsafe { self.0.add(offset).cast::<u16>().read_volatile() });
        if cfg!(target_endian = "little") { in_memory.swap_bytes() } else { in_memory << 16 }
    }

    /// Opcode, format and owner.
    #[inline(always)]
    pub(super) fn op_own(self) -> u8 {
        // SAFETY: as for the fields above, except that the device may write the byte: so the load
        // is atomic.
        let byte = unsafe { AtomicU8::from_ptr(self.0.add(offset_of!(Cqe, op_own)).cast_mut()) };
        byte.load(Ordering::Relaxed)
    }

    /// The big-endian number at `offset`, for threads other than the poller, which may be writing
    /// it (see [`Ring::write`]).
    pub(super) fn shared_u32(self, offset: usize) -> u32 {
        assert!(offset % 4 == 0 && offset < CQE_SIZE);
        // SAFETY: as for the fields above.
        let field = unsafe { AtomicU32::from_ptr(self.0.add(offset).cast_mut().cast()) };
        u32::from_be(field.load(Ordering::Relaxed))
    }

    /// The CQE of the next entry, `stride` bytes later; it may be the ring's [end](Ring::end).
    #[inline(always)]
    pub(super) fn after(self, stride: usize) -> Self {
        Self(self.0.wrapping_add(stride))
    }

    /// The CQE as words of its memory.
    #[inline(always)]
    pub(super) fn words(self) -> [u64; WORDS] {
        core::array::from_fn(|at| self.u64(8 * at).to_be())
    }

    /// The 64 bytes before the CQE, in an entry of 128 bytes.
    ///
    /// # Safety
    ///
    /// The ring has such entries.
    pub(super) unsafe fn first_half(self) -> Self {
        // SAFETY: the caller guarantees that the bytes before the CQE are valid, and they are
        // aligned like it.
        Self(unsafe { self.0.sub(CQE_SIZE) })
    }

    /// Sixteen bytes from `OFFSET` on in another order: each byte of the result is the one that
    /// `order` numbers, or 0 where that is 128 or more. Then the bits of `mask` only.
    ///
    /// # Safety
    /// The processor has SSSE3.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn shuffled<const OFFSET: usize>(self, order: [[u8; 4]; 4], mask: [u32; 4]) -> [u32; 4] {
        use core::arch::x86_64::{__m128i, _mm_and_si128, _mm_loadu_si128, _mm_shuffle_epi8};
        const { assert!(OFFSET + 16 <= CQE_SIZE) };
        // SAFETY: as for the fields above, and the caller's promise. All values of both types are
        // valid, and they have one size.
        unsafe {
            let bytes = _mm_loadu_si128(self.0.add(OFFSET).cast());
            let order = core::mem::transmute::<[[u8; 4]; 4], __m128i>(order);
            let mask = core::mem::transmute::<[u32; 4], __m128i>(mask);
            let ordered = _mm_and_si128(_mm_shuffle_epi8(bytes, order), mask);
            core::mem::transmute::<__m128i, [u32; 4]>(ordered)
        }
    }

    /// All 64 bytes.
    #[inline(always)]
    pub(super) fn bytes(self) -> [u8; CQE_SIZE] {
        self.first_bytes()
    }

    /// The first bytes, a multiple of 8 and at most 64.
    #[inline(always)]
    pub(super) fn first_bytes<const N: usize>(self) -> [u8; N] {
        const { assert!(N % 8 == 0 && N <= CQE_SIZE) };
        let mut bytes = [0; N];
        for (chunk, offset) in bytes.chunks_exact_mut(8).zip((0..).step_by(8)) {
            chunk.copy_from_slice(&self.u64(offset).to_be_bytes());
        }
        bytes
    }
}

/// Fields of an `ibv_wc` by one instruction that puts bytes in another order.
#[cfg(target_arch = "x86_64")]
impl Completion<'_> {
    /// `[0, byte_len, 0, qp_num]`.
    ///
    /// # Safety
    /// The processor has SSSE3.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn length_and_number(&self) -> [u32; 4] {
        const FIRST: usize = offset_of!(Cqe, byte_count);
        const NUMBER: u8 = (offset_of!(Cqe, opcode_qpn_flow_tag) - FIRST) as u8;
        const { assert!(NUMBER + 4 == 16) };
        let order =
            [[Z, Z, Z, Z], [3, 2, 1, 0], [Z, Z, Z, Z], [NUMBER + 3, NUMBER + 2, NUMBER + 1, Z]];
        // SAFETY: the caller's promise.
        unsafe { self.raw.cqe.shuffled::<FIRST>(order, [u32::MAX; 4]) }
    }

    /// `[src_qp, 0, slid << 16, sl | dlid_path_bits << 8]`.
    ///
    /// # Safety
    /// The processor has SSSE3.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn sender(&self) -> [u32; 4] {
        const FIRST: usize = 16;
        const PATH: u8 = (offset_of!(Cqe, path_bits) - FIRST) as u8;
        const LID: u8 = (offset_of!(Cqe, slid) - FIRST) as u8;
        const REMOTE: u8 = (offset_of!(Cqe, flags_remote_qpn) - FIRST) as u8;
        let order = [
            [REMOTE + 3, REMOTE + 2, REMOTE + 1, Z],
            [Z, Z, Z, Z],
            [Z, Z, LID + 1, LID],
            [REMOTE, PATH, Z, Z],
        ];
        // Without the GRH bits and the bit beside the path bits.
        let mask = [u32::MAX, 0, u32::MAX, 0x7f0f];
        // SAFETY: the caller's promise.
        unsafe { self.raw.cqe.shuffled::<FIRST>(order, mask) }
    }
}

/// In an order of bytes: 0.
#[cfg(target_arch = "x86_64")]
const Z: u8 = 0x80;

/// A CQE that takes the place of the next one while the next poll has to take the slow path.
/// Software owns it with owner bit 0, and the fast path does not accept it.
#[repr(C, align(64))]
struct Marker([u8; CQE_SIZE]);

static MARKER: Marker = {
    let mut bytes = [0; CQE_SIZE];
    bytes[offset_of!(Cqe, op_own)] =
        OpOwn::new(CqeOpcode(0), CqeFormat::COMPRESSED, false, false).0;
    Marker(bytes)
};

/// The position of the [`Marker`].
pub(super) fn marker() -> CqeView {
    CqeView(MARKER.0.as_ptr())
}
