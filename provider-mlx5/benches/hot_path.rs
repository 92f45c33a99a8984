//! Instructions and time of the hot path, on plain memory: no device, completions written by the
//! benchmark.
//!
//! ```text
//! cargo bench -p uverbs-mlx5 --bench hot_path       times, medians of many runs
//!   -- CASE             the same of cases whose name contains CASE
//!   -- --instructions   exact counts, by callgrind, beside their limits
//!   -- --grid           every operation, payload and form against their limits
//!   -- --grid POINT     counts of points whose name contains POINT
//!   -- --assembly       the hottest functions' code, beside the texts checked in
//!   -- --threads        one thread, then two, each with queues of its own
//!
//! --set-limits, --set-grid and --set-assembly make what is now what is checked in.
//! ```

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;

#[path = "hot_path/assembly.rs"]
mod assembly;
#[path = "hot_path/cases.rs"]
mod cases;
#[path = "hot_path/edges.rs"]
mod edges;
#[path = "hot_path/fixture.rs"]
mod fixture;
#[path = "hot_path/forwarding.rs"]
mod forwarding;
#[path = "hot_path/frames.rs"]
mod frames;
#[path = "hot_path/grid.rs"]
mod grid;
#[path = "hot_path/grid_more.rs"]
mod grid_more;
#[path = "hot_path/instructions.rs"]
mod instructions;
#[path = "hot_path/limits.rs"]
mod limits;
#[path = "hot_path/measure.rs"]
mod measure;
#[path = "hot_path/polls.rs"]
mod polls;
#[path = "hot_path/producer.rs"]
mod producer;
#[path = "hot_path/shapes.rs"]
mod shapes;
#[path = "hot_path/valgrind.rs"]
mod valgrind;

use cases::CASES;
use fixture::Bench;
use limits::Limits;
use measure::{OPERATIONS, measured};

const TABLE: Limits =
    Limits { file: "benches/hot_path/limits.txt", same_compiler: 1.05, shows_all: true };
const GRID: Limits =
    Limits { file: "benches/hot_path/grid.txt", same_compiler: 1.03, shows_all: false };

/// Before a part of points' names: counts these points under callgrind.
const COUNT_POINTS: &str = "--count-grid=";

const RUNS: usize = 11;
const BATCHES: usize = 400;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count"] => CASES.iter().for_each(count),
        [count] if count.starts_with(COUNT_POINTS) => count_points(&count[COUNT_POINTS.len()..]),
        ["--grid"] => return GRID.check(&grid_counts("")),
        ["--grid", only] => return print_grid(only),
        ["--set-grid"] => {
            return GRID.set(&grid_counts(""), grid::points().into_iter().map(|point| point.name));
        }
        ["--instructions"] => return TABLE.check(&counts()),
        ["--set-limits"] => {
            let names = CASES.iter().map(|case| case.name.to_owned());
            return TABLE.set(&counts(), names);
        }
        ["--threads"] => CASES.iter().for_each(scale),
        ["--assembly"] => return assembly::check(false),
        ["--set-assembly"] => return assembly::check(true),
        [] => CASES.iter().for_each(time),
        [name] => CASES.iter().filter(|case| case.name.contains(name)).for_each(time),
        _ => eprintln!(
            "usage: hot_path [--instructions | --set-limits | --grid [POINT] | --set-grid | --assembly | --set-assembly | --threads | CASE]"
        ),
    }
    ExitCode::SUCCESS
}

fn count(case: &cases::Case) {
    let mut bench = Bench::new();
    instructions::count(case.name, || black_box((case.run)(&mut bench)));
}

/// Counts of the points whose names contain `only`.
fn grid_counts(only: &str) -> Result<BTreeMap<String, f64>, String> {
    instructions::run(&format!("{COUNT_POINTS}{only}"), &scratch())
}

fn count_points(only: &str) {
    grid::points().into_iter().filter(|point| point.name.contains(only)).for_each(count_point);
}

fn count_point(mut point: grid::Point) {
    instructions::count(&point.name, || black_box((point.run)()));
}

/// Prints the instructions of each point whose name contains `only`.
fn print_grid(only: &str) -> ExitCode {
    match grid_counts(only) {
        Ok(counts) => {
            counts.iter().for_each(|(name, count)| println!("{name:<40} {count:8.2}"));
            ExitCode::SUCCESS
        }
        Err(missing) => limits::skip(&missing),
    }
}

fn counts() -> Result<BTreeMap<String, f64>, String> {
    instructions::run("--count", &scratch())
}

/// A directory for what callgrind writes.
fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hot_path-{}", std::process::id()))
}

/// Nanoseconds per operation of each of `threads` threads that run a case at the same time, on
/// queues of their own.
fn run_threads(case: &cases::Case, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let run = || {
        let mut bench = Bench::new();
        for _ in 0..20 {
            black_box((case.run)(&mut bench));
        }
        start.wait();
        let total: u64 = (0..BATCHES).map(|_| (case.run)(&mut bench)).sum();
        total as f64 / (BATCHES * OPERATIONS) as f64
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let times = running.into_iter().map(|thread| thread.join().expect("it ends"));
        times.fold(0.0, f64::max)
    })
}

/// One thread and two alternating: queues that share nothing cost the same.
fn scale(case: &cases::Case) {
    let mut ratios: Vec<f64> =
        (0..RUNS).map(|_| run_threads(case, 2) / run_threads(case, 1)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("{:<44} two threads / one: {:5.2} per operation", case.name, ratios[RUNS / 2]);
}

fn time(case: &cases::Case) {
    let mut bench = Bench::new();
    for _ in 0..20 {
        (case.run)(&mut bench);
    }
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let total: u64 = (0..BATCHES).map(|_| (case.run)(&mut bench)).sum();
            total as f64 / (BATCHES * OPERATIONS) as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{:<44} {:7.2} ns   (fastest {:.2})", case.name, runs[RUNS / 2], runs[0]);
}
