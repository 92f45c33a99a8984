//! Compressed completions: one title CQE stands for many, each with a mini-CQE of eight bytes.
//!
//! See [`MiniCqe`] for the layout. Each completion is put together in memory of our own and then handled like any
//! other. The entries that a session covers hold no owner bits, so each gets the lap's value as it is consumed.

use core::mem::offset_of;

use zerocopy::{FromBytes, IntoBytes};

use super::cqe_view::CqeView;
use crate::format::{
    Cqe, CqeFormat, CqeOpcode, MINI_CQES_PER_SLOT, MiniCqe, MiniCqeArray, MiniCqeFormat, OpOwn,
    U16, U32,
};

/// A compressed session: what is left of it, and the completion that is made of it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Session {
    /// The completion being lent.
    current: [u8; 64],
    title: Cqe,
    minis: MiniCqeArray,
    done: u32,
    count: u32,
    /// Address of the block that the queue had when the session began: it has another one after a reset.
    block: usize,
}

/// What stands where the next CQE should be, as long as a session lasts: neither empty nor one of the common cases.
#[repr(C, align(64))]
pub(super) struct Marker([u8; 64]);

pub(super) static MARKER: Marker = {
    let mut bytes = [0; 64];
    bytes[63] = OpOwn::new(CqeOpcode(0), CqeFormat::COMPRESSED, false, false).0;
    Marker(bytes)
};

impl Marker {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

impl Default for Session {
    fn default() -> Self {
        Self {
            current: [0; 64],
            title: Cqe::unwritten(),
            minis: MiniCqeArray::default(),
            done: 0,
            count: 0,
            block: 0,
        }
    }
}

impl Session {
    /// Completions left.
    pub(super) fn left(&self) -> u32 {
        self.count - self.done
    }

    /// Starts with a title; `entries` bounds what the device says.
    pub(super) fn start(&mut self, title: CqeView, entries: u32) {
        if let Ok(cqe) = Cqe::read_from_bytes(&title.bytes()) {
            self.title = cqe;
        }
        self.done = 0;
        self.count = self.title.byte_count.get().min(entries);
    }

    /// The user index that the session's completions are for.
    pub(super) fn user_index(&self) -> u32 {
        self.title.user_index()
    }

    /// Notes the address of the queue's block if the session begins. False if the queue has had another one since:
    /// it was reset, and what is left of the session is of its past.
    pub(super) fn is_of(&mut self, block: usize) -> bool {
        if self.done == 0 {
            self.block = block;
        }
        self.block == block
    }

    /// How many entries ahead the next array of mini-CQEs is, if the next completion needs one: for the first it is the
    /// entry after the title, for every eighth the completion's own.
    pub(super) fn array_wanted(&self) -> Option<u32> {
        match self.done {
            0 => Some(1),
            done if done as usize % MINI_CQES_PER_SLOT == 0 => Some(0),
            _ => None,
        }
    }

    pub(super) fn set_array(&mut self, array: CqeView) {
        if let Ok(minis) = MiniCqeArray::read_from_bytes(&array.bytes()) {
            self.minis = minis;
        }
    }

    /// Puts the next completion together.
    pub(super) fn next(&mut self, format: MiniCqeFormat) -> CqeView {
        let place = self.done as usize % MINI_CQES_PER_SLOT;
        let mini = self.minis.entries.get(place).copied().unwrap_or_default();
        let cqe = expand(&self.title, &mini, self.done as u16, format);
        self.current.copy_from_slice(cqe.as_bytes());
        self.done += 1;
        // SAFETY: `current` is 64 bytes at the start of a type aligned to 64, and lives in a box of the queue.
        unsafe { CqeView::new(self.current.as_ptr()) }
    }
}

/// Completion number `done` of a session.
fn expand(title: &Cqe, mini: &MiniCqe, done: u16, format: MiniCqeFormat) -> Cqe {
    let opcode = title.op_own.opcode();
    let mut cqe = *title;
    cqe.op_own = OpOwn::new(opcode, CqeFormat::NO_INLINE, title.op_own.is_solicited(), false);
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

const _: () = assert!(offset_of!(Session, current) == 0);
