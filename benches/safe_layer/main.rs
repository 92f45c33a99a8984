//! The cost of the safe layer over the raw one, in instructions that callgrind counts.
//!
//! ```text
//! cargo bench --features soft --bench safe_layer                   counts beside their limits
//! cargo bench --features soft --bench safe_layer -- --set-limits   makes what is now the limits
//! ```
//!
//! Both layers do the same work on a halted device: requests of 64 bytes. Each request takes its
//! memory from a `Vec` of free memory, and a successful completion returns it. The raw program has
//! a table of its SGEs for that, and finds them by number.
//!
//! In a life the memory is a slot that is taken from its slab, posted, completed and given back:
//! each with a completion of its own, or 16 with one. On the raw layer it comes from the `Vec`.
//!
//! A ring of receives keeps its memory: a frame is polled, five fields are read, and the buffer
//! goes back to the device. On the raw layer that is the ring of the provider.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[path = "../vs_libmlx5/halted.rs"]
mod halted;
#[path = "../../provider-mlx5/benches/hot_path/instructions.rs"]
mod instructions;
#[path = "../../provider-mlx5/benches/hot_path/limits.rs"]
mod limits;
#[path = "../../provider-mlx5/benches/hot_path/measure.rs"]
mod measure;
#[allow(dead_code, reason = "other benchmarks have more kinds of completions")]
#[path = "../../provider-mlx5/benches/hot_path/producer.rs"]
mod producer;
mod raw;
mod rings;
mod safe;
mod shared;
#[path = "../../provider-mlx5/benches/hot_path/valgrind.rs"]
mod valgrind;

use halted::QpNumbers;
use limits::Limits;
use measure::{OPERATIONS, measured};
use producer::Producer;

const LIMITS: Limits =
    Limits { file: "benches/safe_layer/limits.txt", same_compiler: 1.03, shows_all: true };

/// Bytes of a request's memory.
const BYTES: u32 = 64;
/// Requests per doorbell, and completions per update of the consumer index.
const BATCH: usize = 16;
const ENTRIES: u32 = 2 * OPERATIONS as u32;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What each layer does.
const CASES: [&str; 14] = [
    "post alone",
    "post batch16",
    "template alone",
    "template batch16",
    "receive alone",
    "receive batch16",
    "SRQ receive alone",
    "SRQ receive batch16",
    "ring alone",
    "ring batch16",
    "poll alone",
    "poll batch16",
    "life alone",
    "life batch16",
];

/// The queues of one layer, whose requests the benchmark completes.
trait Side {
    fn device(&mut self) -> &mut Device;
    fn post(&mut self);
    fn post_batch(&mut self);
    fn template(&mut self);
    fn template_batch(&mut self);
    fn receive(&mut self);
    fn receive_batch(&mut self);
    fn shared(&mut self) -> &mut dyn Shared;
    fn ring(&mut self) -> &mut dyn Frames;
    fn poll(&mut self);
    fn poll_batch(&mut self);
    fn take_and_post(&mut self);
    fn take_and_post_batch(&mut self);
    fn poll_and_give_back(&mut self);
}

/// A shared receive queue of one layer, and a queue pair whose completions return its memory.
trait Shared {
    fn device(&mut self) -> &mut Device;
    fn post(&mut self);
    fn post_batch(&mut self);
    fn poll(&mut self);
}

/// A ring of frames of one layer.
trait Frames {
    fn device(&mut self) -> &mut Device;
    fn poll(&mut self);
    fn poll_batch(&mut self);
}

/// The device's side of a queue pair, which the benchmark writes.
struct Device {
    cqe: Producer,
    numbers: QpNumbers,
    sent: u32,
    received: u32,
    /// The counter of receives wraps here: at the entries of a shared ring, else not.
    receives: u32,
}

impl Device {
    fn new(device: &uverbs::soft::SoftDevice, number: u32) -> Self {
        let numbers = halted::numbers_of(device, number);
        let (cqe, receives) = (halted::producer(device, numbers), u32::MAX);
        Self { cqe, numbers, sent: 0, received: 0, receives }
    }

    /// The same of a queue pair that consumes the receives of a shared queue of [`ENTRIES`].
    fn of_shared(device: &uverbs::soft::SoftDevice, number: u32) -> Self {
        Self { receives: ENTRIES, ..Self::new(device, number) }
    }

    /// Completes every posted send.
    fn complete_sends(&mut self) {
        for _ in 0..OPERATIONS {
            self.cqe.send(self.numbers.user_index, 8 << 24 | self.numbers.number, self.sent);
            self.sent += 1;
        }
    }

    /// Completes every sixteenth send, which retires those before it.
    fn complete_last_sends(&mut self) {
        for _ in 0..OPERATIONS / BATCH {
            self.sent += BATCH as u32;
            let last = self.sent.wrapping_sub(1);
            self.cqe.send(self.numbers.user_index, 8 << 24 | self.numbers.number, last);
        }
    }

    /// Completes the last send, which retires those before it.
    fn complete_last_send(&mut self) {
        self.sent += OPERATIONS as u32;
        let last = self.sent.wrapping_sub(1);
        self.cqe.send(self.numbers.user_index, 8 << 24 | self.numbers.number, last);
    }

    fn complete_receives(&mut self) {
        for _ in 0..OPERATIONS {
            let counter = self.received % self.receives;
            self.cqe.receive(self.numbers.user_index, self.numbers.number, counter);
            self.received += 1;
        }
    }
}

/// Runs a case once; the side measures its own loop.
fn run(side: &mut dyn Side, case: &str) -> u64 {
    match case {
        "template alone" | "template batch16" => {
            let post: fn(&mut dyn Side) = if case.ends_with("16") {
                |side| side.template_batch()
            } else {
                |side| side.template()
            };
            let time = measured(|| post(side));
            side.device().complete_last_send();
            side.poll();
            time
        }
        "post alone" | "post batch16" => {
            let post: fn(&mut dyn Side) =
                if case.ends_with("16") { |side| side.post_batch() } else { |side| side.post() };
            let time = measured(|| post(side));
            side.device().complete_sends();
            side.poll();
            time
        }
        "receive alone" | "receive batch16" => {
            let post: fn(&mut dyn Side) = if case.ends_with("16") {
                |side| side.receive_batch()
            } else {
                |side| side.receive()
            };
            let time = measured(|| post(side));
            side.device().complete_receives();
            side.poll();
            time
        }
        "SRQ receive alone" | "SRQ receive batch16" => {
            let queue = side.shared();
            let post: fn(&mut dyn Shared) = if case.ends_with("16") {
                |queue| queue.post_batch()
            } else {
                |queue| queue.post()
            };
            let time = measured(|| post(queue));
            queue.device().complete_receives();
            queue.poll();
            time
        }
        "ring alone" | "ring batch16" => {
            let ring = side.ring();
            ring.device().complete_receives();
            let poll: fn(&mut dyn Frames) =
                if case.ends_with("16") { |ring| ring.poll_batch() } else { |ring| ring.poll() };
            measured(|| poll(ring))
        }
        "life alone" => {
            let posted = measured(|| side.take_and_post());
            side.device().complete_sends();
            posted + measured(|| side.poll_and_give_back())
        }
        "life batch16" => {
            let posted = measured(|| side.take_and_post_batch());
            side.device().complete_last_sends();
            posted + measured(|| side.poll_and_give_back())
        }
        _ => {
            side.post();
            side.device().complete_sends();
            let poll: fn(&mut dyn Side) =
                if case.ends_with("16") { |side| side.poll_batch() } else { |side| side.poll() };
            measured(|| poll(side))
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    ["raw", "safe"].into_iter().flat_map(|layer| CASES.map(|case| format!("{layer} {case}")))
}

fn count() -> Outcome<()> {
    let (mut raw, mut safe) = (raw::Raw::new()?, safe::Safe::new()?);
    for case in CASES {
        instructions::count(&format!("raw {case}"), || run(&mut raw, case));
        instructions::count(&format!("safe {case}"), || run(&mut safe, case));
    }
    // The devices' threads are halted, so nothing waits for them.
    std::process::exit(0);
}

/// A directory for callgrind's output.
fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("safe_layer-{}", std::process::id()))
}

fn main() -> Outcome<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let counts = || instructions::run("--count", &scratch());
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count"] => count()?,
        [] => return Ok(LIMITS.check(&counts())),
        ["--set-limits"] => return Ok(LIMITS.set(&counts(), names())),
        _ => eprintln!("usage: safe_layer [--set-limits]"),
    }
    Ok(ExitCode::FAILURE)
}
