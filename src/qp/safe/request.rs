//! Sends of any operation.

use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{RunTimeDestination, RunTimeOperation};

use crate::memory::posting::{Refused, for_atomic};
use crate::memory::slot::Slot;

/// A send whose operation is known only at run time, and its slot: see `QueuePair::post_list`.
#[derive(Debug)]
pub struct SlotRequest<'a> {
    /// The operation.
    pub operation: RunTimeOperation<'a>,
    /// The destination.
    pub destination: RunTimeDestination<'a>,
    /// Flags for completion and ordering.
    pub flags: PostFlags,
    /// The data: the filled part, or the first 8 bytes for the result of an atomic.
    pub slot: Slot,
}

/// The slot, and the part of it that the operation uses. Refuses it if the operation takes none.
pub(super) fn used_by(operation: RunTimeOperation<'_>, slot: Slot) -> Result<(Slot, Sge), Refused> {
    use RunTimeOperation as Op;
    match operation {
        Op::Send
        | Op::SendImmediate(_)
        | Op::SendInvalidate(_)
        | Op::Write(_)
        | Op::WriteImmediate(..)
        | Op::Read(_)
        | Op::Packet(_)
        | Op::Segmented { .. } => {
            let filled = slot.filled();
            Ok((slot, filled))
        }
        Op::CompareSwap(_) | Op::FetchAdd(_) | Op::MaskedCompareSwap(_) | Op::MaskedFetchAdd(_) => {
            let (slot, result) = for_atomic(slot)?;
            Ok((slot, Sge::new(result.address, 8, result.lkey)))
        }
        Op::Nop | Op::BindWindow(_) | Op::UnbindWindow(_) | Op::LocalInvalidate(_) => {
            Err(Refused { slot, reason: PostError::BadOpcode })
        }
    }
}
