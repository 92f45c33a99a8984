//! The cases, and the sides that run them.

use std::collections::BTreeMap;
use std::hint::black_box;

use crate::cases::CASES;
use crate::fixture::Bench;
use crate::libmlx5::{self, Libmlx5Queues};
use crate::report::{Row, Square, Timing};
use crate::safe::{self, Safe};
use crate::{OPERATIONS, instructions};

/// Timed runs of each side. One more run before them warms up.
const RUNS: usize = 15;
/// Batches of [`OPERATIONS`] operations in each run.
const BATCHES: usize = 60;
/// Runs for each point of the grid; the first one warms up and is not timed.
const GRID_RUNS: usize = 6;

/// One operation, and each side's way to do it.
struct Comparison {
    /// The name of ours, in the raw layer.
    name: &'static str,
    libmlx5: Option<fn(&mut Libmlx5Queues) -> u64>,
    safe: Option<fn(&mut Safe) -> u64>,
}

const fn against(name: &'static str, libmlx5: fn(&mut Libmlx5Queues) -> u64) -> Comparison {
    Comparison { name, libmlx5: Some(libmlx5), safe: None }
}

const fn with_safe(comparison: Comparison, safe: fn(&mut Safe) -> u64) -> Comparison {
    Comparison { safe: Some(safe), ..comparison }
}

const fn alone(name: &'static str) -> Comparison {
    Comparison { name, libmlx5: None, safe: None }
}

const COMPARISONS: &[Comparison] = &[
    against("write_inline_16_fixed", libmlx5::cases::write_inline_16),
    against("write_inline_16", libmlx5::cases::write_inline_16),
    against("write_inline_64_fixed", libmlx5::cases::write_inline_64),
    against("write_inline_64", libmlx5::cases::write_inline_64),
    with_safe(against("write_sge", libmlx5::cases::write_sge), safe::write_sge),
    against("write_sge_made", libmlx5::cases::write_sge),
    against("send_sge", libmlx5::cases::send_sge),
    against("write_sge_32", libmlx5::cases::write_sge_32),
    against("write_sge_made_32", libmlx5::cases::write_sge_32),
    against("write_inline_16_32", libmlx5::cases::write_inline_16_32),
    against("write_inline_16_fixed_32", libmlx5::cases::write_inline_16_32),
    against("ud_send_inline_16", libmlx5::cases::ud_send_inline_16),
    alone("template_payload"),
    alone("template_payload_fixed"),
    alone("template_address"),
    with_safe(against("recv", libmlx5::cases::recv), safe::recv),
    against("recv_32", libmlx5::cases::recv_32),
    against("srq_recv", libmlx5::cases::srq_recv),
    with_safe(against("poll_send_1", libmlx5::cases::poll_send_1), safe::poll_send_1),
    against("poll_send_16", libmlx5::cases::poll_send_16),
    against("poll_recv_16", libmlx5::cases::poll_recv_16),
    against("poll_empty", libmlx5::cases::poll_empty),
    against("poll_64_sends_16", libmlx5::polls::sends_16),
    against("poll_64_receives_16", libmlx5::polls::receives_16),
    against("poll_64_both_16", libmlx5::polls::both_16),
    against("poll_64_both_1", libmlx5::polls::both_1),
    against("poll_64_immediate_16", libmlx5::polls::immediate_16),
    against("poll_64_timestamp_16", libmlx5::polls::timestamp_16),
    against("poll_64_inline_32_16", libmlx5::polls::inline_16),
    against("poll_64_error_16", libmlx5::polls::error_16),
    against("poll_64_srq_16", libmlx5::polls::shared_16),
    against("poll_1000_sends_16", libmlx5::polls::thousand_sends_16),
    against("poll_1000_both_16", libmlx5::polls::thousand_both_16),
    against("poll_1000_immediate_16", libmlx5::polls::thousand_immediate_16),
];

/// Both sides, ready to run.
pub(crate) struct Sides {
    ours: Bench,
    libmlx5: Result<Libmlx5Queues, String>,
    safe: Safe,
}

impl Sides {
    pub(crate) fn new() -> Self {
        let libmlx5 = Libmlx5Queues::new();
        let safe = Safe::new().expect("the software device is built in");
        Self { ours: Bench::new(), libmlx5, safe }
    }

    /// Why sides are missing, and how to install them.
    pub(crate) fn missing(&self) -> Vec<&str> {
        self.libmlx5.as_ref().err().map(String::as_str).into_iter().collect()
    }

    /// Runs every case of every side once, for callgrind.
    pub(crate) fn count(&mut self) {
        for Comparison { name, libmlx5, safe } in COMPARISONS {
            instructions::count(&format!("ours {name}"), || ours(&mut self.ours, name));
            if let (Some(run), Ok(queues)) = (libmlx5, &mut self.libmlx5) {
                instructions::count(&format!("libmlx5 {name}"), || run(queues));
            }
            if let Some(run) = safe {
                instructions::count(&format!("safe {name}"), || run(&mut self.safe));
            }
        }
    }

    /// Times all cases, the sides in alternation.
    pub(crate) fn measure(&mut self, counts: &BTreeMap<String, f64>) -> Vec<Row> {
        COMPARISONS.iter().map(|comparison| self.compare(comparison, counts)).collect()
    }

    fn compare(&mut self, case: &Comparison, counts: &BTreeMap<String, f64>) -> Row {
        let (mut floor, mut own, mut theirs, mut safe) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..=RUNS {
            floor.push(batches(|| ours(&mut self.ours, "floor")));
            own.push(batches(|| ours(&mut self.ours, case.name)));
            if let (Some(run), Ok(queues)) = (case.libmlx5, &mut self.libmlx5) {
                theirs.push(batches(|| run(queues)));
            }
            if let Some(run) = case.safe {
                safe.push(batches(|| run(&mut self.safe)));
            }
        }
        let count = |side: &str| counts.get(&format!("{side} {}", case.name)).copied();
        Row {
            case: case.name,
            ours: Timing::of(&own).expect("ours always runs"),
            libmlx5: Timing::of(&theirs),
            safe: Timing::of(&safe),
            floor: Timing::of(&floor).expect("the floor always runs"),
            ratio: Timing::ratio(&theirs, &own),
            above_floor: Timing::ratio(&own, &floor).expect("both run"),
            ours_instructions: count("ours"),
            libmlx5_instructions: count("libmlx5"),
            safe_instructions: count("safe"),
        }
    }
}

/// Counts every point of the grid, for callgrind.
pub(crate) fn count_grid() {
    for mut point in crate::grid::points() {
        instructions::count(&point.name, &mut point.run);
    }
    let Ok(mut queues) = Libmlx5Queues::new() else { return };
    for crate::grid::Point { name, .. } in crate::grid::points() {
        if libmlx5::grid::run(&mut queues, &name).is_some() {
            let run = || libmlx5::grid::run(&mut queues, &name).unwrap_or_default();
            instructions::count(&format!("libmlx5 {name}"), run);
        }
    }
    // The device's thread is halted, so nothing waits for it.
    std::process::exit(0);
}

/// Counts and times every point of the grid, the sides in alternation.
pub(crate) fn grid() -> Vec<Square> {
    let counts = instructions::run("--count-grid", &crate::scratch()).unwrap_or_else(|missing| {
        eprintln!("instructions were not counted: {missing}");
        BTreeMap::new()
    });
    let mut queues = Libmlx5Queues::new().inspect_err(|missing| eprintln!("{missing}")).ok();
    let squares = crate::grid::points().into_iter().map(|mut point| {
        let (mut own, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..GRID_RUNS {
            own.push(batches(&mut point.run));
            let Some(queues) = &mut queues else { continue };
            if libmlx5::grid::run(queues, &point.name).is_some() {
                theirs
                    .push(batches(|| libmlx5::grid::run(queues, &point.name).unwrap_or_default()));
            }
        }
        let count = |name: &str| counts.get(name).copied();
        Square {
            ours: Timing::of(&own).map(|timing| timing.median),
            libmlx5: Timing::of(&theirs).map(|timing| timing.median),
            ours_instructions: count(&point.name),
            libmlx5_instructions: count(&format!("libmlx5 {}", point.name)),
            case: point.name,
        }
    });
    squares.collect()
}

/// Runs one of the raw layer's cases.
fn ours(bench: &mut Bench, name: &str) -> u64 {
    let case = CASES.iter().find(|case| case.name == name).expect("a case of that name");
    black_box((case.run)(bench))
}

/// Nanoseconds per operation.
fn batches(mut run: impl FnMut() -> u64) -> f64 {
    let total: u64 = (0..BATCHES).map(|_| run()).sum();
    total as f64 / (BATCHES * OPERATIONS) as f64
}
