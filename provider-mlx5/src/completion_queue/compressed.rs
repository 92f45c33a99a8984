//! Compressed completions: one title CQE stands for many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`] for the layout. A session is decompressed where it is: the entries that it
//! covers are the CQ's own until their places are given back, so each gets the CQE that it stands
//! for, and is polled like any other. (Linux's mlx5e does so for its receive queues,
//! `mlx5e_decompress_cqe` of en_rx.c.)

use core::mem::offset_of;

use super::ring::{Ring, WORDS};
use crate::format::{Cqe, CqeFormat, MINI_CQES_PER_SLOT, MiniCqeFormat, OpOwn};

impl Ring {
    /// Whether the CQE at a counter was the title of a session, which is decompressed now. Without
    /// a format none is one.
    #[inline]
    pub(super) fn opens_session(
        &self,
        at: u32,
        op_own: OpOwn,
        format: Option<MiniCqeFormat>,
    ) -> bool {
        let format = format.filter(|_| op_own.format() == CqeFormat::COMPRESSED);
        format.is_some_and(|format| self.decompress(at, format))
    }

    /// CQEs from counter `from` on that the device has written, up to the first one that does not
    /// count; afterwards none of them is compressed.
    pub(super) fn expand_waiting(
        &self,
        from: u32,
        format: Option<MiniCqeFormat>,
        counts: impl Fn(OpOwn) -> bool,
    ) -> u32 {
        let mut count = 0;
        while count < self.entries() {
            let at = from.wrapping_add(count);
            let Some(op_own) = self.written(at).filter(|op_own| counts(*op_own)) else { break };
            if !self.opens_session(at, op_own, format) {
                count += 1;
            }
        }
        count
    }

    /// Writes the CQEs of the session whose title is at counter `start`. False if it has none.
    fn decompress(&self, start: u32, format: MiniCqeFormat) -> bool {
        let title = Title::new(self.cqe(start).words());
        // A loop for each kind, so that none asks in each round what is replaced.
        match format {
            _ if title.is_requester => self.expand(start, &title, Title::requester),
            MiniCqeFormat::HASH => self.expand(start, &title, Title::hash),
            MiniCqeFormat::CHECKSUM_STRIDE_INDEX => self.expand(start, &title, Title::stride_index),
            _ => self.expand(start, &title, Title::checksum),
        }
        title.count > 0
    }

    /// The title last: until then another thread sees how many there are by it. An array is in one
    /// of the entries that it is for.
    #[inline(always)]
    fn expand(&self, start: u32, title: &Title, replaced: impl Fn(&Title, &mut Words, u64, u32)) {
        let count = title.count.min(self.entries());
        let arrays = count.div_ceil(MINI_CQES_PER_SLOT as u32);
        for array in (0..arrays).rev() {
            let first = array * MINI_CQES_PER_SLOT as u32;
            let minis = self.cqe(start.wrapping_add(first.max(1))).words();
            let last = count.min(first + MINI_CQES_PER_SLOT as u32);
            for done in (first..last).rev() {
                let index = start.wrapping_add(done);
                let mut words = title.words;
                replaced(title, &mut words, minis[done as usize % MINI_CQES_PER_SLOT], done);
                words[WORDS - 1] |= u64::from_be(self.lap(index).into());
                self.write(index, &words);
            }
        }
    }
}

type Words = [u64; WORDS];

/// What all completions of a session have in common.
struct Title {
    /// Its memory, as that of a CQE that is not compressed, with owner bit 0.
    words: Words,
    is_requester: bool,
    count: u32,
    wqe_counter: u16,
}

/// What a mini-CQE replaces besides the owner: see [`MiniCqe`](crate::format::MiniCqe).
impl Title {
    fn new(mut words: Words) -> Self {
        let [op_own] = field(&words, offset_of!(Cqe, op_own)).map(OpOwn);
        let (opcode, solicited) = (op_own.opcode(), op_own.is_solicited());
        let plain = OpOwn::new(opcode, CqeFormat::NO_INLINE, solicited, false);
        set(&mut words, offset_of!(Cqe, op_own), [plain.0]);
        Self {
            words,
            is_requester: opcode.is_requester(),
            count: u32::from_be_bytes(field(&words, offset_of!(Cqe, byte_count))),
            wqe_counter: u16::from_be_bytes(field(&words, offset_of!(Cqe, wqe_counter))),
        }
    }

    #[inline(always)]
    fn requester(&self, words: &mut Words, mini: u64, _: u32) {
        let [counter @ .., opcode, _, _, _, _, _] = mini.to_ne_bytes();
        set(words, offset_of!(Cqe, opcode_qpn_flow_tag), [opcode]);
        set(words, offset_of!(Cqe, wqe_counter), counter);
    }

    #[inline(always)]
    fn hash(&self, words: &mut Words, mini: u64, done: u32) {
        let [a, b, c, d, byte_count @ ..] = mini.to_ne_bytes();
        set(words, offset_of!(Cqe, rss_hash), [a, b, c, d]);
        set(words, offset_of!(Cqe, byte_count), byte_count);
        set(words, offset_of!(Cqe, wqe_counter), self.counted(done));
    }

    #[inline(always)]
    fn checksum(&self, words: &mut Words, mini: u64, done: u32) {
        let [a, b, _, _, byte_count @ ..] = mini.to_ne_bytes();
        set(words, offset_of!(Cqe, checksum), [a, b]);
        set(words, offset_of!(Cqe, byte_count), byte_count);
        set(words, offset_of!(Cqe, wqe_counter), self.counted(done));
    }

    #[inline(always)]
    fn stride_index(&self, words: &mut Words, mini: u64, _: u32) {
        let [a, b, c, d, byte_count @ ..] = mini.to_ne_bytes();
        set(words, offset_of!(Cqe, checksum), [a, b]);
        set(words, offset_of!(Cqe, byte_count), byte_count);
        set(words, offset_of!(Cqe, wqe_counter), [c, d]);
    }

    #[inline(always)]
    fn counted(&self, done: u32) -> [u8; 2] {
        self.wqe_counter.wrapping_add(done as u16).to_be_bytes()
    }
}

/// The bytes at `offset`, of one word.
#[inline(always)]
fn field<const N: usize>(words: &[u64; WORDS], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&words[offset / 8].to_ne_bytes()[offset % 8..][..N]);
    bytes
}

/// Replaces the bytes at `offset`, of one word.
#[inline(always)]
fn set<const N: usize>(words: &mut [u64; WORDS], offset: usize, bytes: [u8; N]) {
    let mut word = words[offset / 8].to_ne_bytes();
    word[offset % 8..][..N].copy_from_slice(&bytes);
    words[offset / 8] = u64::from_ne_bytes(word);
}

// `Ring::write` stores what says that a CQE is there last.
const _: () = assert!(offset_of!(Cqe, op_own) == size_of::<Cqe>() - 1);
