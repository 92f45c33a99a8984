//! Compressed completions: one title CQE represents many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`](crate::format::MiniCqe) for the layout. A session is decompressed in place: the
//! entries that it covers belong to software until the consumer index passes them, so each is
//! overwritten with its own CQE, which is then polled like any other. (Linux's mlx5e does the same
//! for its receive queues, `mlx5e_decompress_cqe` of en_rx.c.)

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::ring::{CqeView, Ring};
use crate::format::{Cqe, CqeFormat, MINI_CQES_PER_SLOT, MiniCqeFormat, OpOwn};
use crate::mapped::{CqEntry, CqePattern, LastWord};

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
        format.is_some_and(|format| self.decompress(at, format) > 0)
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

    /// The number of CQEs in the session whose title is at a counter.
    #[inline(always)]
    pub(super) fn session_length(&self, title: u32) -> u32 {
        self.cqe(title).u32(offset_of!(Cqe, byte_count))
    }

    /// Writes the CQEs of the session whose title is at counter `start`. Returns their number, 0 if
    /// there is no session.
    pub(super) fn decompress(&self, start: u32, format: MiniCqeFormat) -> u32 {
        let title = Title::new(self.cqe(start));
        // One loop for each format, so that no loop tests the format in each iteration.
        match format {
            _ if title.is_requester => self.expand(start, &title, requester),
            MiniCqeFormat::HASH => self.expand(start, &title, hash),
            MiniCqeFormat::CHECKSUM_STRIDE_INDEX => self.expand(start, &title, stride_index),
            _ => self.expand(start, &title, checksum),
        }
        title.count
    }

    /// Writes the title last, because until then another thread reads the session's length from it.
    /// Each array of mini-CQEs is in one of the entries that it expands to.
    #[inline(always)]
    fn expand(&self, start: u32, title: &Title, replace: impl Fn(CqEntry, [u8; 8]) -> Own) {
        let first_mini = self.cqe(start.wrapping_add(1)).mini(0).bytes();
        let mut left = title.count.min(self.entries());
        while left > 1 {
            let mut index = left - 1;
            let (at, counter) = (start.wrapping_add(index), title.counter(index));
            // This loop ends before the ring or the counter's lower byte wraps.
            left = index - (index - 1).min(self.place(at)).min(u32::from(counter as u8));
            let (mut entry, op_own) = (self.entry(at), title.op_own.0 | self.lap(at));
            let mut last = title.pattern.last_word(counter);
            while index >= left {
                let first = index - index % MINIS;
                let array = self.cqe(start.wrapping_add(first.max(1)));
                let lowest = first.max(left);
                let (mut mini, stop) = (array.mini(index), array.mini(lowest));
                loop {
                    title.write(entry, op_own, last, mini.bytes(), &replace);
                    (entry, last) = (self.entry_before(entry), last.before());
                    if mini == stop {
                        break;
                    }
                    mini = mini.before();
                }
                index = lowest - 1;
            }
        }
        if left > 0 {
            let op_own = title.op_own.0 | self.lap(start);
            let last = title.pattern.last_word(title.wqe_counter);
            title.write(self.entry(start), op_own, last, first_mini, replace);
        }
    }
}

const MINIS: u32 = MINI_CQES_PER_SLOT as u32;
const WQE_COUNTER: usize = offset_of!(Cqe, wqe_counter);

/// The fields that a mini-CQE replaces in the title, if the format has them.
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
    /// The WQE counter of a completion whose mini-CQE has none.
    #[inline(always)]
    fn counter(&self, index: u32) -> u16 {
        self.wqe_counter.wrapping_add(index as u16)
    }

    /// Writes the CQE of a mini-CQE.
    #[inline(always)]
    fn write(
        &self,
        entry: CqEntry,
        op_own: u8,
        last: LastWord,
        mini: [u8; 8],
        replace: impl Fn(CqEntry, [u8; 8]) -> Own,
    ) {
        entry.store_pattern(&self.pattern, last);
        let own = replace(entry, mini);
        if let Some(counter) = own.counter {
            entry.store(WQE_COUNTER, counter, Ordering::Relaxed);
        }
        entry.finish(op_own, self.length_word(own.byte_count));
    }

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

    /// The word with a completion's byte count, its own or the title's.
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
fn requester(entry: CqEntry, mini: [u8; 8]) -> Own {
    let [counter @ .., opcode, _, _, _, _, _] = mini;
    entry.store(offset_of!(Cqe, opcode_qpn_flow_tag), [opcode], Ordering::Relaxed);
    Own { counter: Some(counter), byte_count: None }
}

/// [`requester`], for [`MiniCqeFormat::HASH`].
#[inline(always)]
fn hash(entry: CqEntry, mini: [u8; 8]) -> Own {
    let [a, b, c, d, byte_count @ ..] = mini;
    entry.store(offset_of!(Cqe, rss_hash), [a, b, c, d], Ordering::Relaxed);
    Own { counter: None, byte_count: Some(byte_count) }
}

/// [`requester`], for [`MiniCqeFormat::CHECKSUM`].
#[inline(always)]
fn checksum(entry: CqEntry, mini: [u8; 8]) -> Own {
    let [a, b, _, _, byte_count @ ..] = mini;
    entry.store(offset_of!(Cqe, checksum), [a, b], Ordering::Relaxed);
    Own { counter: None, byte_count: Some(byte_count) }
}

/// [`requester`], for [`MiniCqeFormat::CHECKSUM_STRIDE_INDEX`].
#[inline(always)]
fn stride_index(entry: CqEntry, mini: [u8; 8]) -> Own {
    let [_, _, index @ .., _, _, _, _] = mini;
    Own { counter: Some(index), ..checksum(entry, mini) }
}
