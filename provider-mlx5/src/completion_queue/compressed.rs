//! Compressed completions: one title CQE stands for many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`] for the layout. A session is decompressed in place: the entries that it covers
//! belong to software until they are given back, so each gets its own CQE, which is then polled
//! like any other. (Linux's mlx5e does so for its receive queues, `mlx5e_decompress_cqe` of
//! en_rx.c.)

use core::mem::offset_of;

use super::ring::{EntryWriter, LENGTH_WORD, Ring, WORDS};
use crate::format::{Cqe, CqeFormat, MINI_CQES_PER_SLOT, MiniCqeFormat, OpOwn};

impl Ring {
    /// Whether the CQE at a counter is the title of a session; if so, decompresses the session.
    /// Always false for a CQ without a mini-CQE format.
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

    /// Counts the CQEs from counter `from` on that the device has written, up to the first one that
    /// does not count. Decompresses all of them.
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

    /// Writes the CQEs of the session whose title is at counter `start`. Returns false if there is
    /// no session.
    fn decompress(&self, start: u32, format: MiniCqeFormat) -> bool {
        let title = Title::new(self.cqe(start).words());
        // One loop for each format, so that no loop tests the format in each iteration.
        match format {
            _ if title.is_requester => self.expand(start, &title, requester),
            MiniCqeFormat::HASH => self.expand(start, &title, hash),
            MiniCqeFormat::CHECKSUM_STRIDE_INDEX => self.expand(start, &title, stride_index),
            _ => self.expand(start, &title, checksum),
        }
        title.count > 0
    }

    /// Writes the title last, because until then another thread reads the session's length from it.
    /// Each array of mini-CQEs is in one of the entries that it expands to.
    #[inline(always)]
    fn expand(&self, start: u32, title: &Title, replace: impl Fn(EntryWriter, [u8; 8]) -> Own) {
        let count = title.count.min(self.entries());
        let arrays = count.div_ceil(MINI_CQES_PER_SLOT as u32);
        let mut entry = self.writer(start.wrapping_add(count.wrapping_sub(1)), title.end);
        let mut counter = title.wqe_counter.wrapping_add(count as u16);
        for array in (0..arrays).rev() {
            let first = array * MINI_CQES_PER_SLOT as u32;
            let minis = self.cqe(start.wrapping_add(first.max(1))).words();
            for at in (0..(count - first).min(MINI_CQES_PER_SLOT as u32)).rev() {
                counter = counter.wrapping_sub(1);
                entry.begin(&title.words);
                let own = replace(entry, minis[at as usize % MINI_CQES_PER_SLOT].to_ne_bytes());
                let counter = own.counter.unwrap_or(counter.to_be_bytes());
                entry.finish(counter, title.length_word(own.byte_count));
                entry = self.writer_before(entry);
            }
        }
    }
}

/// The fields of a completion that are written last, if its mini-CQE has them.
struct Own {
    counter: Option<[u8; 2]>,
    byte_count: Option<[u8; 4]>,
}

/// The fields that all completions of a session share.
struct Title {
    /// The title CQE as words of memory.
    words: [u64; WORDS],
    is_requester: bool,
    count: u32,
    wqe_counter: u16,
    /// The last two bytes of a CQE that is not compressed, with owner bit 0.
    end: [u8; 2],
}

impl Title {
    fn new(words: [u64; WORDS]) -> Self {
        let [signature, op_own] = field(&words, offset_of!(Cqe, signature));
        let op_own = OpOwn(op_own);
        let (opcode, solicited) = (op_own.opcode(), op_own.is_solicited());
        Self {
            is_requester: opcode.is_requester(),
            count: u32::from_be_bytes(field(&words, offset_of!(Cqe, byte_count))),
            wqe_counter: u16::from_be_bytes(field(&words, offset_of!(Cqe, wqe_counter))),
            end: [signature, OpOwn::new(opcode, CqeFormat::NO_INLINE, solicited, false).0],
            words,
        }
    }

    /// The [`LENGTH_WORD`] of a completion, with its own byte count or the title's.
    #[inline(always)]
    fn length_word(&self, byte_count: Option<[u8; 4]>) -> u64 {
        let word = self.words[LENGTH_WORD];
        let [a, b, c, d, ..] = word.to_ne_bytes();
        byte_count.map_or(word, |[e, f, g, h]| u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Writes the fields that a requester's mini-CQE replaces: see [`MiniCqe`](crate::format::MiniCqe).
/// Returns those that are written last.
#[inline(always)]
fn requester(entry: EntryWriter, mini: [u8; 8]) -> Own {
    let [counter @ .., opcode, _, _, _, _, _] = mini;
    entry.set(offset_of!(Cqe, opcode_qpn_flow_tag), [opcode]);
    Own { counter: Some(counter), byte_count: None }
}

/// [`requester`], for [`MiniCqeFormat::HASH`].
#[inline(always)]
fn hash(entry: EntryWriter, mini: [u8; 8]) -> Own {
    let [a, b, c, d, byte_count @ ..] = mini;
    entry.set(offset_of!(Cqe, rss_hash), [a, b, c, d]);
    Own { counter: None, byte_count: Some(byte_count) }
}

/// [`requester`], for [`MiniCqeFormat::CHECKSUM`].
#[inline(always)]
fn checksum(entry: EntryWriter, mini: [u8; 8]) -> Own {
    let [a, b, _, _, byte_count @ ..] = mini;
    entry.set(offset_of!(Cqe, checksum), [a, b]);
    Own { counter: None, byte_count: Some(byte_count) }
}

/// [`requester`], for [`MiniCqeFormat::CHECKSUM_STRIDE_INDEX`].
#[inline(always)]
fn stride_index(entry: EntryWriter, mini: [u8; 8]) -> Own {
    let [_, _, index @ .., _, _, _, _] = mini;
    Own { counter: Some(index), ..checksum(entry, mini) }
}

/// The bytes at `offset`, which are in one word.
#[inline(always)]
fn field<const N: usize>(words: &[u64; WORDS], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&words[offset / 8].to_ne_bytes()[offset % 8..][..N]);
    bytes
}
