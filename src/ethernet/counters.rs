//! What a receive queue counts.

use uverbs_mlx5::completion_queue::FrameCounters;

use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::flow::FlowBuilder;
use crate::flow::counters::{CounterPoint, Counters};

/// What an [`RxQueue`](super::RxQueue) has counted since it was made. Reading costs a few loads;
/// the counters themselves cost a poll one addition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Frames polled, those that were kept and those that were rejected included.
    pub frames: u64,
    /// Their bytes, without check sequences.
    pub bytes: u64,
    /// Frames that the program gave to [`Frame::reject`](super::Frame::reject).
    pub rejected: u64,
    /// Frames longer than a buffer: the device dropped them, the queue skipped them.
    pub too_long: u64,
    /// Completions of no receive that was outstanding, or of more bytes than a buffer has: not 0
    /// means that the device is broken, or that something else writes to the queue.
    pub refused: u64,
    /// Receives that the device has while no frame waits.
    pub depth: u32,
    /// The device has had at least this many receives at all times. It is a bound: the true number
    /// may be up to a quarter of the depth higher. While a batch is polled its frames count as
    /// missing.
    pub lowest: u32,
    /// Times at which the device may have had no receive at all, and so have dropped frames. 0
    /// means that it always had one. [`RxQueue::lost`](super::RxQueue::lost) says how many were
    /// dropped.
    pub exhausted: u64,
}

impl RxCounters {
    pub(super) fn new(counted: FrameCounters, depth: u32, rejected: u64) -> Self {
        let FrameCounters { frames, bytes, too_long, refused, lowest, exhausted, .. } = counted;
        Self { frames, bytes, rejected, too_long, refused, depth, lowest, exhausted }
    }
}

/// The device's count of the frames that a queue's rules match, if it was asked for one.
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

    /// Counts what a rule matches.
    pub(super) fn count<'q>(&self, rule: FlowBuilder<'q>) -> FlowBuilder<'q> {
        match &self.0 {
            Some(counters) => rule.count(counters),
            None => rule,
        }
    }

    pub(super) fn read(&self) -> Result<u64> {
        let Some(counters) = &self.0 else {
            let cause = "the queue counts no matches";
            return Err(Error::invalid("read_counters", cause).cure_with("use count_matches()"));
        };
        let mut value = [0];
        counters.read(&mut value)?;
        let [matched] = value;
        Ok(matched)
    }
}
