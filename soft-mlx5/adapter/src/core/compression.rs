//! Compressed completions: receives that differ in few fields share a title, and take eight bytes
//! each. See [`MiniCqe`] for the layout.
//!
//! The device holds completions back until one does not fit, or the step ends. Fields that a
//! mini-CQE does not have get the title's value: the timestamp, and either the hash or the
//! checksum, depending on the format. Sends are not compressed. NVIDIA does not document which
//! completions share a session on hardware, or how long it waits for more.

use uverbs_mlx5_format::{
    Cqe, CqeOpcode, MINI_CQES_PER_SLOT, MiniCqe, MiniCqeArray, MiniCqeFormat,
};

use super::cq::Completion;

/// The most completions that share a title (`cqe_compression_max_num`; this device's own choice).
pub const MAX_COMPRESSED: usize = 64;

/// Completions that are held back, in order.
#[derive(Debug)]
pub(super) struct Session {
    format: MiniCqeFormat,
    pub(super) held: Vec<Cqe>,
    pub(super) opcode: CqeOpcode,
    pub(super) solicited: bool,
}

impl Session {
    pub(super) fn new(format: MiniCqeFormat) -> Self {
        Self { format, held: Vec::new(), opcode: CqeOpcode::INVALID, solicited: false }
    }

    /// Whether a completion can be the next one of this session.
    pub(super) fn joins(&self, done: &Completion<'_>) -> bool {
        let Some(title) = self.held.first() else { return false };
        let next = title.wqe_counter.get().wrapping_add(self.held.len() as u16);
        let is_consecutive = self.format == MiniCqeFormat::CHECKSUM_STRIDE_INDEX
            || done.cqe.wqe_counter.get() == next;
        is_consecutive
            && self.held.len() < MAX_COMPRESSED
            && (done.opcode, done.solicited) == (self.opcode, self.solicited)
            && Self::can_hold(done)
            && shared_fields(title) == shared_fields(&done.cqe)
    }

    /// Whether a completion can begin a session. Those of a tag matching SRQ cannot, because they
    /// have a message's header where a mini-CQE has the hash.
    pub(super) fn can_hold(done: &Completion<'_>) -> bool {
        let receives = [
            CqeOpcode::RESPONDER_SEND,
            CqeOpcode::RESPONDER_SEND_IMMEDIATE,
            CqeOpcode::RESPONDER_WRITE_IMMEDIATE,
        ];
        done.inline.is_none() && done.cqe.app == 0 && receives.contains(&done.opcode)
    }

    pub(super) fn hold(&mut self, done: &Completion<'_>) {
        (self.opcode, self.solicited) = (done.opcode, done.solicited);
        self.held.push(done.cqe);
    }

    /// The arrays of mini-CQEs, each with the index in the session of the entry that holds it.
    pub(super) fn arrays(&self) -> impl Iterator<Item = (u32, MiniCqeArray)> {
        self.held.chunks(MINI_CQES_PER_SLOT).enumerate().map(|(array, cqes)| {
            let mut entries = [MiniCqe::default(); MINI_CQES_PER_SLOT];
            for (entry, cqe) in entries.iter_mut().zip(cqes) {
                *entry = self.mini(cqe);
            }
            let place = (array * MINI_CQES_PER_SLOT).max(1) as u32;
            (place, MiniCqeArray { entries })
        })
    }

    fn mini(&self, cqe: &Cqe) -> MiniCqe {
        let bytes = cqe.byte_count.get();
        match self.format {
            MiniCqeFormat::HASH => MiniCqe::with_hash(cqe.rss_hash.get(), bytes),
            MiniCqeFormat::CHECKSUM => MiniCqe::with_checksum(cqe.checksum.get(), 0, bytes),
            _ => MiniCqe::with_checksum(cqe.checksum.get(), cqe.wqe_counter.get(), bytes),
        }
    }
}

/// The fields of a completion that all completions of a session share.
fn shared_fields(cqe: &Cqe) -> Cqe {
    let mut cqe = *cqe;
    cqe.timestamp = 0.into();
    cqe.byte_count = 0.into();
    cqe.wqe_counter = 0.into();
    cqe.checksum = 0.into();
    cqe.rss_hash = 0.into();
    cqe
}
