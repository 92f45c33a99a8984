//! Compressed completions: one title CQE stands for many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`](crate::format::MiniCqe) for the layout. A session is decompressed in place: the
//! entries that it covers belong to software until they are given back, so each gets its own CQE,
//! which is then polled like any other. (Linux's mlx5e does so for its receive queues,
//! `mlx5e_decompress_cqe` of en_rx.c.)

use core::mem::offset_of;

use super::ring::{CqeView, EntryWriter, Ring};
use crate::format::{Cqe, CqeFormat, MINI_CQES_PER_SLOT, MiniCqeFormat, OpOwn};
use crate::mapped::CqePattern;

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
    pub(super) fn decompress(&self, start: u32, format: MiniCqeFormat) -> bool {
        let title = Title::new(self.cqe(start));
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
        let mut entry = self.writer(start.wrapping_add(count.wrapping_sub(1)), title.op_own);
        let mut counter = title.wqe_counter.wrapping_add(count as u16);
        for array in (0..arrays).rev() {
            let first = array * MINI_CQES_PER_SLOT as u32;
            let minis = self.cqe(start.wrapping_add(first.max(1))).minis();
            let minis = minis.get(..(count - first) as usize).unwrap_or(&minis);
            for mini in minis.iter().rev() {
                counter = counter.wrapping_sub(1);
                entry.begin(&title.pattern);
                let own = replace(entry, *mini);
                entry.set(WQE_COUNTER, own.counter.unwrap_or(counter.to_be_bytes()));
                entry.finish(title.length_word(own.byte_count));
                entry = self.writer_before(entry);
            }
        }
    }
}

const WQE_COUNTER: usize = offset_of!(Cqe, wqe_counter);

/// The fields that every completion of a session has of its own, if its mini-CQE has them.
struct Own {
    counter: Option<[u8; 2]>,
    byte_count: Option<[u8; 4]>,
}

/// The fields that all completions of a session share.
struct Title {
    pattern: CqePattern,
    is_requester: bool,
    count: u32,
    wqe_counter: u16,
    /// The last byte of a CQE that is not compressed, with owner bit 0.
    op_own: OpOwn,
}

impl Title {
    /// Inlined, so that the loops keep the pattern in registers.
    #[inline(always)]
    fn new(cqe: CqeView) -> Self {
        let op_own = OpOwn(cqe.op_own());
        let (opcode, solicited) = (op_own.opcode(), op_own.is_solicited());
        Self {
            pattern: cqe.pattern(),
            is_requester: opcode.is_requester(),
            count: cqe.u32(offset_of!(Cqe, byte_count)),
            wqe_counter: cqe.u16(WQE_COUNTER),
            op_own: OpOwn::new(opcode, CqeFormat::NO_INLINE, solicited, false),
        }
    }

    /// The word with the byte count of a completion, its own one or the title's.
    #[inline(always)]
    fn length_word(&self, byte_count: Option<[u8; 4]>) -> [u8; 8] {
        let word = self.pattern.length_word();
        let [a, b, c, d, ..] = word;
        byte_count.map_or(word, |[e, f, g, h]| [a, b, c, d, e, f, g, h])
    }
}

/// Writes the fields that only a requester's mini-CQE replaces, and returns the others: see
/// [`MiniCqe`](crate::format::MiniCqe).
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
