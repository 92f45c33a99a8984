//! The messages of a measurement over TCP: [`Hello`] and [`Welcome`]; then, for every size, the
//! client's [`Step::Round`], the server's [`Ready`], sometimes [`Step::Going`] if only the server's
//! device sees the messages, and at the end the client's [`Step::Over`] and the server's [`Ready`].

use serde::{Deserialize, Serialize};

use super::{SERVICE, frames};
use crate::args::{Measure, Op, Perf};
use crate::failure::{Failure, Outcome};
use crate::rendezvous::require_version;

const VERSION: u32 = 4;
/// The most bytes of all messages of one size together, so that `--sizes all` does not take too
/// long.
const BYTES_PER_SIZE: u64 = 4 << 30;
const LARGEST: u32 = 1 << 30;
/// Default number of outstanding messages per queue pair.
const DEPTH: u32 = 64;
const ATOMIC: u32 = 8;

/// The measurement, as agreed between the ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) measure: Measure,
    pub(super) op: Op,
    pub(super) sizes: Vec<u32>,
    iters: u64,
    pub(super) qps: u32,
    pub(super) depth: u32,
    pub(super) inline: u32,
    pub(super) events: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    perf_version: u32,
    pub(super) plan: Plan,
    pub(super) lanes: Vec<End>,
    /// The plan of a measurement of frames, which has no lanes.
    pub(super) frames: Option<frames::Plan>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) lanes: Vec<End>,
}

/// One end of a lane: the queue pair's endpoint in hexadecimal, and its memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) endpoint: String,
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// The client's messages after the set-up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(super) enum Step {
    /// Messages of this size are next.
    Round { size: u32 },
    /// The messages of this size are still being sent.
    Going,
    /// All of them have arrived.
    Over,
    /// The last size is done.
    Goodbye,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) ready: bool,
}

impl Hello {
    pub(super) fn new(plan: Plan, lanes: Vec<End>) -> Self {
        Self { perf_version: VERSION, plan, lanes, frames: None }
    }

    pub(super) fn of_frames(frames: frames::Plan) -> Self {
        let frames = Some(frames);
        Self { perf_version: VERSION, plan: Plan::of_frames(), lanes: Vec::new(), frames }
    }

    /// Checks that this end supports the plan.
    pub(super) fn check(&self) -> Outcome {
        require_version(SERVICE, self.perf_version, VERSION)?;
        if let Some(frames) = &self.frames {
            return frames.check();
        }
        let plan = &self.plan;
        let sound = (1..=1024).contains(&plan.qps)
            && (1..=4096).contains(&plan.depth)
            && plan.inline <= 828
            && self.lanes.len() == plan.qps as usize
            && plan.sizes.iter().all(|size| (1..=LARGEST).contains(size));
        if sound { Ok(()) } else { Err(Failure::failed("the peer's plan is out of range")) }
    }
}

impl Plan {
    /// The plan of the command line.
    pub(super) fn new(arguments: &Perf) -> Outcome<Self> {
        let measure = arguments.measure.unwrap_or(Measure::Lat);
        let is_latency = measure == Measure::Lat;
        if arguments.events && arguments.op == Op::Write {
            return Err(Failure::usage(
                "a write makes no event where it arrives; --events goes with --op write-imm",
            ));
        }
        Ok(Self {
            measure,
            op: arguments.op,
            sizes: sizes(arguments.op, arguments.sizes.as_deref())?,
            iters: arguments.iters,
            qps: arguments.qps,
            depth: if is_latency { 8 } else { arguments.depth.unwrap_or(DEPTH) },
            inline: arguments.inline,
            events: arguments.events,
        })
    }

    /// No messages.
    fn of_frames() -> Self {
        let (measure, op, sizes) = (Measure::Frames, Op::Send, Vec::new());
        Self { measure, op, sizes, iters: 0, qps: 0, depth: 0, inline: 0, events: false }
    }

    /// The number of messages of `size` bytes per lane.
    pub(super) fn messages(&self, size: u32) -> u64 {
        let most = (BYTES_PER_SIZE / u64::from(size)).max(1);
        self.iters.min(most).div_ceil(self.qps.into())
    }

    /// Whether the server's process does not see the messages: its device answers without it, or
    /// writes arrive without a completion.
    pub(super) fn is_unseen(&self) -> bool {
        match (self.op, self.measure) {
            (Op::Read | Op::Atomic, _) | (Op::Write, Measure::Bw) => true,
            (Op::Send | Op::Write | Op::WriteImm, _) => false,
        }
    }

    pub(super) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }
}

fn sizes(op: Op, typed: Option<&str>) -> Outcome<Vec<u32>> {
    match (op, typed) {
        (Op::Atomic, None) => Ok(vec![ATOMIC]),
        (Op::Atomic, Some(text)) if text != "8" => Err(Failure::usage(
            "atomic operations are 8 bytes, so --sizes does not go with --op atomic",
        )),
        (_, None) => Ok(vec![64]),
        (_, Some("all")) => Ok((1..=23).map(|log| 1 << log).collect()),
        (_, Some(text)) => text.split(',').map(size).collect(),
    }
}

fn size(text: &str) -> Outcome<u32> {
    let size = text.trim().parse().ok().filter(|size| (1..=LARGEST).contains(size));
    size.ok_or_else(|| {
        Failure::usage(format!("'{text}' is not a size of a message (1 to {LARGEST} bytes)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_alone_in_lists_and_all_at_once() {
        assert_eq!(sizes(Op::Send, None).expect("default"), [64]);
        assert_eq!(sizes(Op::Send, Some("1, 2,4096")).expect("list"), [1, 2, 4096]);
        assert_eq!(sizes(Op::Read, Some("all")).expect("all").len(), 23);
        assert_eq!(sizes(Op::Atomic, None).expect("atomic"), [8]);
        for (op, text) in
            [(Op::Send, "0"), (Op::Send, "1,"), (Op::Send, "many"), (Op::Atomic, "16")]
        {
            assert_eq!(sizes(op, Some(text)).expect_err(text).status(), 2);
        }
    }
}
