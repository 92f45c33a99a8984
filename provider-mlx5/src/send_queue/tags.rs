//! Changes of the list of tags of a tag matching SRQ. A QP that is connected to itself posts them,
//! and receives through the SRQ.

use zerocopy::IntoBytes;

use super::{Batch, Transport};
use crate::format::{
    ControlFlags, ControlSegment, DataSegment, Opcode, TagMatchingSegment, U16, U32, U64,
};
use crate::mmio::Register;
use crate::request::{PostError, Sge};
use crate::tag_list::{Asked, TagList};

/// A change of a list of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_ops_wr")]
pub struct TagRequest {
    /// The id of its completion.
    pub wr_id: u64,
    /// What to change.
    pub change: TagChange,
    /// Whether it makes a completion (`IBV_OPS_SIGNALED`).
    pub signaled: bool,
    /// The number of unexpected messages that the program has handled since the queue was made, of
    /// which the device gets the lower 16 bits (`IBV_OPS_TM_SYNC`).
    pub unexpected: Option<u32>,
}

/// What a [`TagRequest`] changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// Appends an entry to the list (`IBV_WR_TAG_ADD`).
    Add {
        /// The tag.
        tag: u64,
        /// Bits of a message's tag that are compared.
        mask: u64,
        /// Where a message's data goes; `None` for messages without data.
        buffer: Option<Sge>,
        /// The id of the message's completions.
        receive_id: u64,
    },
    /// Removes the entry with this handle (`IBV_WR_TAG_DEL`).
    Remove(u16),
    /// Changes nothing: tells the device the number of unexpected messages (`IBV_WR_TAG_SYNC`).
    Sync,
}

/// Why a change of a list was not posted. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TagError {
    /// The queue refuses it as it would a send.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The list holds as many tags as it was made for.
    #[error("the list of tags is full: poll completions, or make the queue with more tags")]
    ListFull,
    /// The list has no entry with this handle: a message has completed it, or it was removed.
    #[error("the list of tags has no entry with this handle (any more)")]
    NotListed,
    /// An earlier change was in a batch that was leaked or aborted.
    #[error("a batch of changes was leaked: the list is not the device's, destroy the SRQ")]
    OutOfStep,
    /// The SRQ matches no tags.
    #[error("the shared receive queue matches no tags")]
    NoList,
}

/// A WQE, and the entry that an append takes.
struct Encoded {
    bytes: [u8; 64],
    length: usize,
    entry: Option<u16>,
}

impl TagRequest {
    /// As `mlx5_post_srq_ops` and `set_tm_seg` of libmlx5 do.
    fn encode(&self, list: &TagList) -> Result<Encoded, TagError> {
        let mut segment = TagMatchingSegment::default();
        let mut data = None;
        let mut entry = None;
        match self.change {
            TagChange::Add { tag, mask, buffer, .. } => {
                let [taken, next] = list.next_entries().ok_or(TagError::ListFull)?;
                segment.operation = TagMatchingSegment::OPERATION_APPEND;
                segment.index = U16::new(next);
                (segment.tag, segment.mask) = (U64::new(tag), U64::new(mask));
                data = Some(data_segment(buffer)?);
                entry = Some(taken);
            }
            TagChange::Remove(at) => {
                if !list.is_listed(at) {
                    return Err(TagError::NotListed);
                }
                segment.operation = TagMatchingSegment::OPERATION_REMOVE;
                segment.index = U16::new(at);
            }
            TagChange::Sync => segment.operation = TagMatchingSegment::OPERATION_NOP,
        }
        if self.signaled {
            segment.flags |= TagMatchingSegment::FLAG_COMPLETION;
        }
        if let Some(count) = self.unexpected {
            segment.flags |= TagMatchingSegment::FLAG_SOFTWARE_COUNT;
            segment.software_count = U16::new(count as u16);
        }
        Ok(Encoded::of(&segment, data, entry))
    }

    /// Records the change that was built.
    fn record(&self, index: u16, list: &mut TagList) {
        let TagRequest { wr_id, signaled: is_signaled, unexpected, .. } = *self;
        let asked = Asked { wr_id, index, is_signaled, unexpected };
        match self.change {
            TagChange::Add { receive_id, buffer, .. } => list.append(receive_id, buffer, asked),
            TagChange::Remove(at) => list.remove(at, asked),
            TagChange::Sync => list.sync(asked),
        }
    }
}

impl Encoded {
    fn of(segment: &TagMatchingSegment, data: Option<DataSegment>, entry: Option<u16>) -> Self {
        let mut bytes = [0; 64];
        let length = if data.is_some() { 64 } else { 48 };
        let octowords = length / 16;
        // The batch enters the index and the queue's number.
        let flags = ControlFlags::NONE;
        let control =
            ControlSegment::new(Opcode::TAG_MATCHING, 0, 0, octowords as u8, flags, U32::new(0));
        let (head, tail) = bytes.split_at_mut(16);
        head.copy_from_slice(control.as_bytes());
        let (middle, last) = tail.split_at_mut(32);
        middle.copy_from_slice(segment.as_bytes());
        data.iter().for_each(|data| last.copy_from_slice(data.as_bytes()));
        Self { bytes, length, entry }
    }
}

/// The buffer of an entry: one without bytes is not named (`set_data_ptr_seg_end`).
fn data_segment(buffer: Option<Sge>) -> Result<DataSegment, PostError> {
    match buffer.filter(|sge| !sge.is_empty()) {
        Some(sge) if sge.is_too_long() => Err(PostError::SgeTooLong),
        Some(sge) => Ok(DataSegment::new(sge.address(), sge.length(), sge.lkey())),
        None => Ok(DataSegment::TERMINATOR),
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds a change with `build`, which gets the batch and the WQE, and records it in the list
    /// of the SRQ that the QP receives through. Returns the handle of an appended entry.
    pub(super) fn enter_tags(
        &mut self,
        request: &TagRequest,
        build: impl FnOnce(&mut Self, &[u8]) -> Result<(), PostError>,
    ) -> Result<Option<u16>, TagError> {
        let handle = self.queue().handle().clone();
        let index = self.queue().counter_at(self.next().at()) as u16;
        // The poller waits meanwhile, as that of libmlx5 does.
        let entered = handle.state().receives().with_tags(|list| {
            if !list.is_next(index) {
                return Err(TagError::OutOfStep);
            }
            let wqe = request.encode(list)?;
            build(self, wqe.bytes.get(..wqe.length).unwrap_or_default())?;
            request.record(index, list);
            Ok(wqe.entry)
        });
        entered.unwrap_or(Err(TagError::NoList))
    }
}
