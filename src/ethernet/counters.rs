//! Counters of receive queues.

use uverbs_mlx5::completion_queue::FrameCounters;

use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::flow::FlowBuilder;
use crate::flow::counters::{CounterPoint, Counters};

/// The counters of an [`RxQueue`](super::RxQueue) since it was made. Reading them takes a few
/// loads; maintaining them costs a poll one addition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Polled frames, including kept and rejected ones.
    pub frames: u64,
    /// Bytes of the polled frames, without check sequences.
    pub bytes: u64,
    /// Frames that the program gave to [`Frame::reject`](super::Frame::reject).
    pub rejected: u64,
    /// Frames longer than a buffer, which the device dropped and the queue skipped.
    pub too_long: u64,
    /// Completions of no outstanding receive, or of more bytes than a buffer has. If it is not 0,
    /// the device is faulty, or other code writes to the queue.
    pub refused: u64,
    /// Posted receives while no frame is waiting.
    pub depth: u32,
    /// A lower bound of the posted receives at all times; the true minimum may be up to a quarter
    /// of the depth higher. While a batch is polled, its frames count as not posted.
    pub lowest: u32,
    /// Times at which the device may have had no posted receive, and so may have dropped frames.
    /// [`RxQueue::lost`](super::RxQueue::lost) returns how many were dropped.
    pub exhausted: u64,
}

impl RxCounters {
    pub(super) fn new(counted: FrameCounters, depth: u32, rejected: u64) -> Self {
        let FrameCounters { frames, bytes, too_long, refused, lowest, exhausted, .. } = counted;
        Self { frames, bytes, rejected, too_long, refused, depth, lowest, exhausted }
    }
}

/// The device's count of the frames that a queue's rules match, if enabled.
#[derive(Debug)]
pub(super) struct Matches(Option<Counters>);

impl Matches {
    pub(super) fn new(context: &Context, counts: bool) -> Result<Self> {
        if !counts {
            return Ok(Self(None));
        }
        let counters = context.create_counters()?;
        counters.attach(CounterPoint::Packets, 0)?;
        Ok(Self(Some(counters)))
    }

    /// Adds the counter to a rule.
    pub(super) fn count<'q>(&self, rule: FlowBuilder<'q>) -> FlowBuilder<'q> {
        match &self.0 {
            Some(counters) => rule.count(counters),
            None => rule,
        }
    }

    pub(super) fn read(&self) -> Result<u64> {
        let Some(counters) = &self.0 else {
            let cause = "the queue does not count matches";
            return Err(Error::invalid("read_counters", cause).cure_with("use count_matches()"));
        };
        let mut value = [0];
        counters.read(&mut value)?;
        let [matched] = value;
        Ok(matched)
    }
}
