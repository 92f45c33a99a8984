//! The receiving queue of frames: a queue pair or a work queue.

use crate::device::context::Context;
use crate::device::layer::Raw;
use crate::error::{Error, Result};
use crate::flow::FlowBuilder;
use crate::host::events::Wait;
use crate::host::lifetime::Destroy;
use crate::memory::slot::Slot;
use crate::qp::QueuePair;
use crate::qp::qp_type::RawPacket;
use crate::qp::work_queue::{WorkQueue, WqHandle};

/// A receiving queue, without a send queue.
#[derive(Debug)]
pub(super) enum Receiver {
    /// Steering rules lead to it directly.
    QueuePair(Box<QueuePair<RawPacket, Raw>>),
    /// An indirection table names it.
    WorkQueue(Box<WorkQueue<Raw>>),
}

/// The error of adding a rule to a queue that has a target.
pub(super) fn has_no_rules() -> Error {
    let cause = "frames are spread to this queue by a target, which has the rules";
    Error::invalid("create_flow", cause).cure_with("use create_flow() of the RssTarget")
}

/// The error of reading matches of a queue that has a target.
pub(super) fn counts_no_matches() -> Error {
    let cause = "the rules are the target's, and which queue gets what they match is its choice";
    let cure = "count with a counter set at the target's rules: FlowBuilder::count";
    Error::invalid("read_counters", cause).cure_with(cure)
}

impl Receiver {
    pub(super) fn create_flow(&mut self) -> Result<FlowBuilder<'_>> {
        match self {
            Self::QueuePair(qp) => Ok(qp.create_flow()),
            Self::WorkQueue(_) => Err(has_no_rules()),
        }
    }

    pub(super) fn work_queue(&self) -> Option<&WqHandle> {
        match self {
            Self::QueuePair(_) => None,
            Self::WorkQueue(wq) => Some(wq.handle()),
        }
    }

    pub(super) fn number(&self) -> u32 {
        match self {
            Self::QueuePair(qp) => qp.number(),
            Self::WorkQueue(wq) => wq.number(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        match self {
            Self::QueuePair(qp) => qp.context(),
            Self::WorkQueue(wq) => wq.context(),
        }
    }

    /// Destroys it.
    pub(super) fn end(&mut self) -> Result<()> {
        match self {
            Self::QueuePair(qp) => qp.end(),
            Self::WorkQueue(wq) => wq.destroy_in_place(Wait::Forever),
        }
    }

    /// Destroys it, and frees its buffers when the device no longer uses them.
    pub(super) fn end_with(&mut self, buffers: Box<[Slot]>) {
        match self {
            Self::QueuePair(qp) => {
                let Err(error) = qp.end() else { return };
                // The device may still write to them.
                qp.context().inner().until_close.keep("frames' buffers", &error, buffers);
            }
            // A table may keep it alive.
            Self::WorkQueue(wq) => wq.handle().keep_buffers(buffers),
        }
    }
}
