//! Posting and polling over many queue pairs of one register and one CQ, in random order, with the
//! cache misses that callgrind simulates, and the memory that a queue pair takes.
//!
//! Both sides' objects are made by their libraries on devices that are halted, so that memory is
//! laid out as in a program. Requests are RDMA writes of 8 inline bytes, each with a doorbell and a
//! completion; 16 are posted, then completed, then polled.

use std::collections::BTreeMap;
use std::hint::black_box;

use uverbs::qp::{Inline, PostFlags, SharedBlueFlame};
use uverbs::qp_type::Rc;
use uverbs::{Context, Device, Remote, Result, op, raw};

use crate::halted::{self, QpNumbers};
use crate::libmlx5::many::Many as ManyOfLibmlx5;
use crate::producer::Producer;
use crate::report::Timing;
use crate::{OPERATIONS, instructions, measured};

const COUNTS: [usize; 5] = [1, 100, 1_000, 10_000, 100_000];
/// Callgrind would take many minutes to create more.
const COUNTED: usize = 10_000;
/// Requests that are posted before they are polled.
pub(crate) const GROUP: usize = 16;
/// Runs for each count; the first one warms up.
const RUNS: usize = 12;
const BATCHES: usize = 20;
/// Sizes of a common first- and second-level cache, so that counts do not depend on the machine.
const CACHES: [&str; 4] =
    ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,8,64"];

/// A side's queue pairs.
pub(crate) trait Side {
    /// Posts a request to the queue pair at `at`.
    fn post(&mut self, at: usize);

    /// Polls [`GROUP`] completions.
    fn poll(&mut self);
}

/// Queue pairs of a side, and the device's part of them.
pub(crate) struct Rig<S> {
    side: S,
    numbers: Vec<QpNumbers>,
    sent: Vec<u32>,
    cqe: Producer,
    random: u64,
}

impl<S: Side> Rig<S> {
    pub(crate) fn new(side: S, numbers: Vec<QpNumbers>, cqe: Producer) -> Self {
        let sent = vec![0; numbers.len()];
        let mut rig = Self { side, numbers, sent, cqe, random: 0x9e37_79b9_7f4a_7c15 };
        // The first request of a queue may cost more.
        for at in 0..rig.numbers.len() {
            rig.group([at; GROUP]);
        }
        rig
    }

    /// A random index; the sequence is the same for both sides.
    fn random_index(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % self.numbers.len()
    }

    /// Posts and polls [`OPERATIONS`] requests; nanoseconds.
    fn run(&mut self) -> u64 {
        let mut time = 0;
        for _ in 0..OPERATIONS / GROUP {
            let chosen = std::array::from_fn(|_| self.random_index());
            time += self.group(chosen);
        }
        time
    }

    /// A request to each of these queue pairs; nanoseconds.
    fn group(&mut self, chosen: [usize; GROUP]) -> u64 {
        let posts = measured(|| chosen.iter().for_each(|&at| self.side.post(at)));
        for at in chosen {
            let QpNumbers { user_index, number, .. } = self.numbers[at];
            self.cqe.send(user_index, 8 << 24 | number, self.sent[at]);
            self.sent[at] += 1;
        }
        posts + measured(|| self.side.poll())
    }
}

/// Our side, in the raw layer.
struct Ours {
    // Declared first, so destroyed before their CQ.
    pairs: Vec<raw::QueuePair<Rc, SharedBlueFlame>>,
    cq: raw::CompletionQueue,
}

impl Side for Ours {
    #[inline(always)]
    fn post(&mut self, at: usize) {
        let target = op::Write(Remote::new(0x1000, 0x1234));
        // SAFETY: the data is inline, and no device executes the request.
        let post = unsafe {
            self.pairs[at].post_send(at as u64, target, Inline(&[7; 8]), PostFlags::SIGNALED)
        };
        post.expect("space");
    }

    #[inline(always)]
    fn poll(&mut self) {
        let mut batch = self.cq.batch();
        let mut sum = 0;
        for _ in 0..GROUP {
            let completion = batch.next().expect("a completion");
            sum += completion.wr_id() + u64::from(completion.is_success());
        }
        black_box(sum);
    }
}

fn ours(context: &Context, device: &uverbs::soft::SoftDevice, count: usize) -> Result<Rig<Ours>> {
    let pd = context.alloc_pd()?;
    let cq = context.create_raw_cq(1023).build()?;
    let domain = context.alloc_thread_domain()?;
    let make = |_| {
        let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        let builder = builder.max_send_wr(GROUP as u32).max_recv_wr(4).max_inline_data(8);
        let mut qp = builder.build_in(&domain)?;
        qp.connect(&qp.endpoint())?;
        Ok(qp)
    };
    let pairs = (0..count).map(make).collect::<Result<Vec<_>>>()?;
    let numbers: Vec<_> = pairs.iter().map(|qp| halted::numbers_of(device, qp.number())).collect();
    let cqe = halted::producer(device, numbers[0]);
    Ok(Rig::new(Ours { pairs, cq }, numbers, cqe))
}

/// Both sides with the same number of queue pairs.
struct Sides {
    ours: Rig<Ours>,
    libmlx5: std::result::Result<Rig<ManyOfLibmlx5>, String>,
    /// The growth of the resident set with each side.
    bytes: [u64; 2],
}

/// Both sides with each number of queue pairs up to `most`.
fn sides(most: usize) -> impl Iterator<Item = (usize, Sides)> {
    let device = halted::device("uverbs_scale").expect("the device starts");
    let context = Device::from_soft(device.clone()).open().expect("a context");
    COUNTS.into_iter().filter(move |count| *count <= most).map(move |count| {
        let before = resident();
        let ours = ours(&context, &device, count).expect("queue pairs");
        let between = resident();
        let libmlx5 = ManyOfLibmlx5::rig(count);
        let bytes = [between.saturating_sub(before), resident().saturating_sub(between)];
        (count, Sides { ours, libmlx5, bytes })
    })
}

/// Bytes of this process that are in memory (`VmRSS` of proc_pid_status(5)).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Counts both sides, for callgrind.
pub(crate) fn count() -> ! {
    for (count, Sides { mut ours, libmlx5, .. }) in sides(COUNTED) {
        instructions::count(&format!("ours {count}"), || ours.run());
        if let Ok(mut rig) = libmlx5 {
            instructions::count(&format!("libmlx5 {count}"), || rig.run());
        }
        std::mem::forget(ours);
    }
    // The device's thread is halted, so nothing waits for it.
    std::process::exit(0);
}

/// Prints one JSON object for each number of queue pairs.
pub(crate) fn table() -> ! {
    let counts = instructions::events("--count-scale", &crate::scratch(), &CACHES);
    let counts = counts.unwrap_or_else(|missing| {
        eprintln!("instructions were not counted: {missing}");
        BTreeMap::new()
    });
    for (count, Sides { mut ours, mut libmlx5, bytes }) in sides(usize::MAX) {
        let (mut own, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..=RUNS {
            own.push(batches(|| ours.run()));
            if let Ok(rig) = &mut libmlx5 {
                theirs.push(batches(|| rig.run()));
            }
        }
        if let Err(missing) = &libmlx5 {
            eprintln!("{missing}");
        }
        let side = |name: &str, times: &[f64], bytes: u64| {
            let events = counts.get(&format!("{name} {count}")).map(|all| misses(all));
            let event = |at: usize| events.map(|events| events[at]);
            let fields = [
                ("instr", event(0)),
                ("l1_misses", event(1)),
                ("l2_misses", event(2)),
                ("ns", Timing::of(times).map(|timing| timing.median)),
                ("bytes", (!times.is_empty()).then_some(bytes as f64 / count as f64)),
            ];
            let text = |value: Option<f64>| value.map_or("null".to_owned(), |v| format!("{v:.1}"));
            fields.map(|(field, value)| format!("\"{name}_{field}\":{}", text(value))).join(",")
        };
        let (own, theirs) = (side("ours", &own, bytes[0]), side("libmlx5", &theirs, bytes[1]));
        println!("{{\"case\":\"scale {count}\",{own},{theirs}}}");
        std::mem::forget(ours);
    }
    std::process::exit(0);
}

/// Instructions, and accesses to data that miss the first cache and the second: of callgrind's
/// `Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw`.
fn misses(events: &[f64]) -> [f64; 3] {
    let at = |index: usize| events.get(index).copied().unwrap_or(0.0);
    [at(0), at(4) + at(5), at(7) + at(8)]
}

/// Nanoseconds per operation.
fn batches(mut run: impl FnMut() -> u64) -> f64 {
    let total: u64 = (0..BATCHES).map(|_| run()).sum();
    total as f64 / (BATCHES * OPERATIONS) as f64
}
