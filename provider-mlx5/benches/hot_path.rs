//! Instructions and time of the hot path, on plain memory: no device, completions written by the benchmark.
//!
//! ```text
//! cargo bench -p uverbs-mlx5 --bench hot_path               times, medians of many runs
//! cargo bench -p uverbs-mlx5 --bench hot_path -- --list     the cases
//! valgrind --tool=callgrind --collect-atstart=no <the binary> --count <case>     instructions of BATCHES * 256 operations
//! ```

use std::hint::black_box;
use std::time::Instant;

#[path = "hot_path/cases.rs"]
mod cases;
#[path = "hot_path/fixture.rs"]
mod fixture;
#[path = "hot_path/valgrind.rs"]
mod valgrind;

use cases::CASES;
use fixture::Bench;

/// Operations per timed batch.
pub(crate) const OPERATIONS: usize = 256;
/// Batches under callgrind.
const COUNTED: usize = 4;
const RUNS: usize = 11;
const BATCHES: usize = 400;

/// Runs the measured part of a case: timed, and counted if callgrind watches.
#[inline(always)]
pub(crate) fn measured(work: impl FnOnce()) -> u64 {
    valgrind::toggle_collect();
    let start = Instant::now();
    work();
    let time = start.elapsed().as_nanos() as u64;
    valgrind::toggle_collect();
    time
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => CASES.iter().for_each(|case| println!("{}", case.name)),
        ["--count", name] => count(name),
        [] => CASES.iter().for_each(time),
        [name] => CASES.iter().filter(|case| case.name.contains(name)).for_each(time),
        _ => eprintln!("usage: hot_path [--list | --count CASE | CASE]"),
    }
}

fn count(name: &str) {
    let mut bench = Bench::new();
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        eprintln!("no case {name}");
        std::process::exit(1);
    };
    for _ in 0..COUNTED {
        black_box((case.run)(&mut bench));
    }
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
