//! The ring of a CQ: which of its entries the device has written, and entries that the poller
//! writes.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::Completion;
use crate::format::{CQE_SIZE, Cqe, CqeFormat, CqeOpcode, OpOwn, Opcode};
pub(crate) use crate::mapped::CqeView;
#[cfg(target_arch = "x86_64")]
use crate::mapped::Ssse3;
use crate::mapped::{AlignedCqe, CqEntry, LENGTH_WORD};
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ring {
    /// The CQE of the first entry.
    first: CqeView,
    /// Entries minus one.
    mask: u32,
    /// log2 of the bytes per entry.
    shift: u32,
}

impl Ring {
    /// A ring of `entries` entries of `stride` bytes at the start of `memory`; `None` if it does
    /// not fit. A CQE is the last 64 bytes of an entry.
    pub(crate) fn on(memory: &DmaMemory, entries: u32, stride: u32) -> Option<Self> {
        let fits = matches!(stride, 64 | 128) && memory.holds(entries, stride as usize);
        let first = || CqeView::first(memory, stride as usize);
        fits.then(|| Self { first: first(), mask: entries - 1, shift: stride.trailing_zeros() })
    }

    pub(crate) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Bytes from one entry to the next.
    pub(crate) fn stride(&self) -> usize {
        1 << self.shift
    }

    /// The place of the CQE at counter `index` in the ring.
    pub(crate) fn place(&self, index: u32) -> u32 {
        index & self.mask
    }

    /// Whether the CQE at counter `index` is the first of a lap.
    pub(crate) fn starts_lap(&self, index: u32) -> bool {
        index & self.mask == 0
    }

    /// The CQE of the entry at counter `index`; in an entry of 128 bytes it is the second half.
    pub(crate) fn cqe(&self, index: u32) -> CqeView {
        self.first.after(((index & self.mask) as usize) << self.shift)
    }

    /// One past the last CQE, in the same units as [`Ring::cqe`]. Never read.
    pub(crate) fn end(&self) -> CqeView {
        self.first.after((self.mask as usize + 1) << self.shift)
    }

    /// Entries from the CQE at `from` to the one at `to`.
    #[inline(always)]
    pub(crate) fn distance(&self, from: CqeView, to: CqeView) -> u32 {
        ((to.address() - from.address()) >> self.shift) as u32
    }

    /// The CQE `most` entries after the one at `from`, but at most `end`.
    #[inline(always)]
    pub(crate) fn stop(&self, from: CqeView, most: u32, end: CqeView) -> CqeView {
        // If `from` is the marker, this is an arbitrary number. That is harmless, because nothing
        // is taken from the marker.
        let left = end.address().wrapping_sub(from.address());
        let asked = u64::from(most) << self.shift;
        if asked < left as u64 { from.after(asked as usize) } else { end }
    }

    /// The entry at counter `index`, for the poller to write while software owns it.
    pub(crate) fn entry(&self, index: u32) -> CqEntry {
        self.cqe(index).entry()
    }

    /// The entry before `entry`. `compressed.rs`, which steps with it, does not write the one
    /// before the first: the proofs of [`CqEntry`]'s stores rely on that.
    #[inline(always)]
    pub(crate) fn entry_before(&self, entry: CqEntry) -> CqEntry {
        entry.before(self.stride())
    }

    /// The first halves of two entries of 128 bytes. `None` if entries have 64 bytes.
    pub(crate) fn first_halves(&self, from: u32, to: u32) -> Option<(CqeView, CqEntry)> {
        let half = |index| self.cqe(index).before(CQE_SIZE);
        let halves = || (half(from), half(to).entry());
        (self.stride() > CQE_SIZE).then(halves)
    }
}

impl Ring {
    /// A ring in `memory` that the device does not know yet. Marks every entry as not written.
    pub(super) fn new(memory: &DmaMemory, entries: u32, cqe_size: u32) -> Result<Self, QueueError> {
        if !matches!(cqe_size, 64 | 128) || entries > MAX_ENTRIES {
            return Err(QueueError::BadLimits);
        }
        let ring = Self::on(memory, entries, cqe_size).ok_or(QueueError::BadMemory)?;
        for index in 0..entries {
            // The owner bit also says so, so that polling need not check the opcode.
            ring.set_op_own(index, CqeOpcode::INVALID.0 << 4 | ring.lap(index) ^ OWNER);
        }
        Ok(ring)
    }

    /// Whether entries can hold 64 bytes of inline data.
    pub(super) fn is_wide(&self) -> bool {
        self.stride() > CQE_SIZE
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

    /// Writes a whole CQE to an entry that software owns, the byte with the owner bit last: another
    /// thread that sees it sees the whole CQE and earlier writes.
    #[inline(always)]
    pub(super) fn write(&self, index: u32, words: &[u64; WORDS]) {
        let to = self.entry(index);
        let [words @ .., last] = words;
        for (word, offset) in words.iter().zip((0..).step_by(8)) {
            to.store(offset, word.to_ne_bytes(), Ordering::Release);
        }
        let [a, b, c, d, counter @ .., signature, op_own] = last.to_ne_bytes();
        to.store(LAST - 4, [a, b, c, d], Ordering::Relaxed);
        to.store::<2>(LAST, counter, Ordering::Relaxed);
        to.store(LAST + 2, [signature], Ordering::Relaxed);
        to.store(LAST + 3, [op_own], Ordering::Release);
    }

    /// Copies the CQE at counter `from`, which the device has written, to the entry at `to`.
    pub(super) fn copy(&self, from: u32, to: u32) {
        let mut words = self.cqe(from).words();
        let last = &mut words[WORDS - 1];
        let mut bytes = last.to_ne_bytes();
        // Software owns it in the lap of its new position.
        bytes[7] = bytes[7] & !OWNER | self.lap(to);
        *last = u64::from_ne_bytes(bytes);
        // In an entry of 128 bytes, the inline data.
        if let Some((from, to)) = self.first_halves(from, to) {
            for (word, offset) in from.words().iter().zip((0..).step_by(8)) {
                to.store_unshared(offset, word.to_ne_bytes(), Ordering::Relaxed);
            }
        }
        self.write(to, &words);
    }

    /// Changes the request's opcode in the requester's CQE at counter `index`, which software owns.
    pub(super) fn set_opcode(&self, index: u32, opcode: Opcode) {
        let offset = offset_of!(Cqe, opcode_qpn_flow_tag);
        self.entry(index).store(offset, [opcode.0], Ordering::Relaxed);
    }

    /// Records in the tag matching CQE at counter `index`, which software owns, whether the
    /// completion asks for a synchronization of the counts of unexpected messages. It is stored in
    /// the signature, which is not used otherwise.
    pub(super) fn note_sync(&self, index: u32, is_asked_for: bool) {
        let offset = offset_of!(Cqe, signature);
        self.entry(index).store(offset, [is_asked_for.into()], Ordering::Relaxed);
    }

    fn set_op_own(&self, index: u32, value: u8) {
        self.entry(index).store(offset_of!(Cqe, op_own), [value], Ordering::Relaxed);
    }
}

/// The last four bytes of a CQE: its WQE counter, its signature and `op_own`.
const LAST: usize = offset_of!(Cqe, wqe_counter);
const _: () = assert!(LAST == CQE_SIZE - 4 && offset_of!(Cqe, op_own) == CQE_SIZE - 1);

impl CqEntry {
    /// Writes the last byte of a CQE, then its [`LENGTH_WORD`]. A thread that saw a title's
    /// `op_own` with this byte count would take it for the session's length. So the byte count is
    /// written after `op_own`, which that thread reads again.
    #[inline(always)]
    pub(super) fn finish(self, op_own: u8, length_word: [u8; 8]) {
        self.store(offset_of!(Cqe, op_own), [op_own], Ordering::Release);
        self.store(8 * LENGTH_WORD, length_word, Ordering::Release);
    }
}

impl CqeView {
    /// The lower 16 bits of the user index, as they are in memory.
    #[inline(always)]
    pub(crate) fn place_of_user_index(self) -> u16 {
        self.u16(offset_of!(Cqe, srqn_user_index) + 2).to_be()
    }

    /// The CQE as words of its memory.
    #[inline(always)]
    pub(super) fn words(self) -> [u64; WORDS] {
        core::array::from_fn(|at| self.u64(8 * at).to_be())
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

/// Fields of an `ibv_wc` by one byte-shuffle instruction.
#[cfg(target_arch = "x86_64")]
impl Completion<'_> {
    /// `[0, byte_len, 0, qp_num]`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn length_and_number(&self, has: Ssse3) -> [u32; 4] {
        const FIRST: usize = offset_of!(Cqe, byte_count);
        const NUMBER: u8 = (offset_of!(Cqe, opcode_qpn_flow_tag) - FIRST) as u8;
        const { assert!(NUMBER + 4 == 16) };
        let order =
            [[Z, Z, Z, Z], [3, 2, 1, 0], [Z, Z, Z, Z], [NUMBER + 3, NUMBER + 2, NUMBER + 1, Z]];
        self.raw.cqe.shuffled::<FIRST>(has, order, [u32::MAX; 4])
    }

    /// `[src_qp, 0, slid << 16, sl | dlid_path_bits << 8]`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn sender(&self, has: Ssse3) -> [u32; 4] {
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
        self.raw.cqe.shuffled::<FIRST>(has, order, mask)
    }
}

/// In a shuffle order: a zero byte.
#[cfg(target_arch = "x86_64")]
const Z: u8 = 0x80;

/// `next` points to this CQE while the next poll must take the slow path. Software owns it with
/// owner bit 0, and the fast path does not accept its opcode.
static MARKER: AlignedCqe = {
    let mut bytes = [0; CQE_SIZE];
    bytes[offset_of!(Cqe, op_own)] =
        OpOwn::new(CqeOpcode(0), CqeFormat::COMPRESSED, false, false).0;
    AlignedCqe(bytes)
};

/// The position of the [`MARKER`].
pub(super) fn marker() -> CqeView {
    CqeView::of_static(&MARKER)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;
    use crate::completion_queue::past::entries_of;

    const ROUNDS: u32 = 2_000;

    /// Reads how many entries the CQE at counter 0 covers, until it is not a title. Returns whether
    /// that was always the session's length or one.
    fn reads_one_length(ring: Ring) -> bool {
        let mut is_right = true;
        while let Some(op_own) = ring.written(0) {
            is_right &= matches!(entries_of(&ring, 0, op_own), 1 | 5);
            if op_own.format() != CqeFormat::COMPRESSED {
                break;
            }
        }
        is_right
    }

    /// The byte count of the first completion is not taken for the length of the session.
    #[test]
    fn a_title_that_is_decompressed_covers_its_session_or_one_entry() {
        let ring = Ring::new(&DmaMemory::leaked(16 * CQE_SIZE), 16, 64).expect("a ring");
        let op_own = |format| OpOwn::new(CqeOpcode::RESPONDER_SEND, format, false, false).0;
        let length = |length: u64| length.to_be_bytes();
        let (round, read) = (&AtomicU32::new(0), &AtomicU32::new(0));
        let wait = |turn: &AtomicU32, at| {
            for spins in 1u32.. {
                if turn.load(Ordering::Acquire) == at {
                    break;
                }
                core::hint::spin_loop();
                if spins % 1024 == 0 {
                    std::thread::yield_now();
                }
            }
        };
        let reads = move |at: &u32| {
            wait(round, *at);
            let is_right = reads_one_length(ring);
            read.store(*at, Ordering::Release);
            is_right
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || (1..=ROUNDS).filter(reads).count());
            for at in 1..=ROUNDS {
                ring.entry(0).finish(op_own(CqeFormat::COMPRESSED), length(5));
                round.store(at, Ordering::Release);
                // Until the reader has begun.
                (0..64 + at % 64).for_each(|_| core::hint::spin_loop());
                ring.entry(0).finish(op_own(CqeFormat::NO_INLINE), length(9));
                wait(read, at);
            }
            assert_eq!(reader.join().expect("it ends"), ROUNDS as usize);
        });
    }
}
