//! Compressed completions: one title CQE stands for many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`] for the layout. A session is decompressed where it is: the entries that it covers are the CQ's own until
//! their places are given back, so each gets the CQE that it stands for, and is polled like any other. (Linux's mlx5e
//! does so for its receive queues, `mlx5e_decompress_cqe` of en_rx.c.)

use core::mem::offset_of;

use zerocopy::FromBytes;

use super::ring::Ring;
use crate::format::{
    Cqe, CqeFormat, MINI_CQES_PER_SLOT, MiniCqe, MiniCqeArray, MiniCqeFormat, OpOwn, U16, U32,
};

impl Ring {
    /// Writes the CQEs of the session whose title is at counter `start`. False if it has none.
    pub(super) fn decompress(&self, start: u32, format: MiniCqeFormat) -> bool {
        let Ok(title) = Cqe::read_from_bytes(&self.cqe(start).bytes()) else { return false };
        let count = title.byte_count.get().min(self.entries());
        let arrays = count.div_ceil(MINI_CQES_PER_SLOT as u32);
        // The title last: until then another thread sees how many there are by it. An array is in one of the entries that
        // it is for.
        for array in (0..arrays).rev() {
            let first = array * MINI_CQES_PER_SLOT as u32;
            let minis = self.minis(start.wrapping_add(first.max(1)));
            let last = count.min(first + MINI_CQES_PER_SLOT as u32);
            for (done, mini) in (first..last).zip(&minis.entries).rev() {
                let index = start.wrapping_add(done);
                self.write(index, &expand(&title, mini, done as u16, format, self.lap(index)));
            }
        }
        count > 0
    }

    fn minis(&self, index: u32) -> MiniCqeArray {
        MiniCqeArray::read_from_bytes(&self.cqe(index).bytes()).unwrap_or_default()
    }
}

/// Completion number `done` of a session, with this owner bit.
fn expand(title: &Cqe, mini: &MiniCqe, done: u16, format: MiniCqeFormat, owner: u8) -> Cqe {
    let opcode = title.op_own.opcode();
    let is_solicited = title.op_own.is_solicited();
    let mut cqe = *title;
    cqe.op_own = OpOwn::new(opcode, CqeFormat::NO_INLINE, is_solicited, owner != 0);
    if opcode.is_requester() {
        let word = cqe.qpn() | u32::from(mini.opcode().0) << 24;
        cqe.opcode_qpn_flow_tag = U32::new(word);
        cqe.wqe_counter = U16::new(mini.wqe_counter());
        return cqe;
    }
    cqe.byte_count = mini.byte_count;
    cqe.wqe_counter = U16::new(title.wqe_counter.get().wrapping_add(done));
    match format {
        MiniCqeFormat::HASH => cqe.rss_hash = U32::new(mini.hash()),
        MiniCqeFormat::CHECKSUM_STRIDE_INDEX => {
            cqe.checksum = U16::new(mini.checksum());
            cqe.wqe_counter = U16::new(mini.stride_index());
        }
        _ => cqe.checksum = U16::new(mini.checksum()),
    }
    cqe
}

// `Ring::write` stores what says that a CQE is there last.
const _: () = assert!(offset_of!(Cqe, op_own) == size_of::<Cqe>() - 1);
